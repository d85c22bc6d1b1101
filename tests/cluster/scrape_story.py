"""How large a scrape is of nodes that have much: a sample for nothing that there may be any number of (H251).

    python -m tests.cluster.scrape_story            100,000 ledgers, 10,000 logs, 1,000 clients; two minutes
    python -m tests.cluster.scrape_story --ledgers 1000 --logs 100 --clients 20

A cluster in this process, in memory, with proxies, and a gateway over it. Logs are made, each bookie is told
of ledgers, clients come, ask every node and go. Prints the samples of each node's page and has `promtool
check metrics` read it where that is; fails above 900.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from prometheus_client.parser import text_string_to_metric_families

from distributedlog import LogRecord, local_cluster, open_namespace
from distributedlog.cluster.declarations.config import parse_address
from distributedlog.cluster.local.local_cluster import LocalCluster
from distributedlog.cluster.node.node_pages import node_pages
from distributedlog.cluster.status.node_health import query_info
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.machine import real_host
from tests.gateway.http_kit import gate
from tests.test_metrics import promtool

SAMPLES_MAX = 900
AT_ONCE = 200
VISITS_AT_ONCE = 4
"""Who asks for numbers has few places."""
FIRST_LEDGER = 1 << 40
"""Of those that bookies are told of: no writer comes to these."""
TIMEOUT_S = 60.0


async def scrapes(ledgers: int, logs: int, clients: int) -> dict[str, bytes]:
    """The pages of all nodes, by name, when there is as much as that."""
    async with local_cluster(
        memory=True, in_process=True, write_proxies=1, read_proxies=1
    ) as cluster:
        async with open_namespace(cluster.uri) as namespace:
            await _each(logs, lambda n: namespace.create_log(f"l{n}"))
            await _tell(namespace, ledgers)
            async with namespace.open_log("l0").open_writer() as writer:
                await writer.write(LogRecord(1, b"x"))
        async with open_namespace(cluster.proxied_uri) as namespace:
            async with namespace.open_log("l0").open_writer() as writer:
                await writer.write(LogRecord(2, b"x"))
            async with namespace.open_log("l0").open_reader() as reader:
                await reader.read_next()
        await _each(clients, lambda n: _visit(cluster), VISITS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            gateway = await gate(nursery, cluster.uri)
            await gateway.ask("POST", "/v1/logs/l1/records", b"x")
            found = {"gateway": (await gateway.ask("GET", "/metrics")).body}
            await gateway.stop()
        await trio.sleep(1.1)  # no page is older
        for node in cluster.nodes:
            pages = node_pages(real_host("scraper"), node.name, [parse_address(node.address, "it")])
            found[node.name] = (await pages["/metrics"]()).body
        return found


async def _each(
    count: int, deed: Callable[[int], Awaitable[object]], at_once: int = AT_ONCE
) -> None:
    """So many, some at a time."""
    numbers = iter(range(count))

    async def work() -> None:
        for n in numbers:
            await deed(n)

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once, count)):
            nursery.start_soon(work)


async def _tell(namespace: Namespace, ledgers: int) -> None:
    """Every bookie knows so many ledgers: a fence is kept, also of one never heard of."""
    ledgers_of: Any = namespace.ledgers
    pool = ledgers_of.pool
    while len(pool.candidates()) < 3:  # noqa: ASYNC110 (nobody tells)
        await trio.sleep(0.05)
    for candidate in pool.candidates():
        fence = pool.get(candidate.id).fence
        await _each(ledgers, lambda n: fence(FIRST_LEDGER + n, bytes(16), TIMEOUT_S))  # noqa: B023


async def _visit(cluster: LocalCluster) -> None:
    """A client: connects to every node, says hello, asks, and goes."""
    host = real_host("client")
    for node in cluster.nodes:
        await query_info(host, parse_address(node.address, "it"), timeout_s=TIMEOUT_S)


def samples(body: bytes) -> int:
    """How many a page has."""
    return sum(len(one.samples) for one in text_string_to_metric_families(body.decode()))


def main() -> None:
    """Ends with 1 where a page is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--logs", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=1_000)
    given = parser.parse_args()
    found = trio.run(scrapes, given.ledgers, given.logs, given.clients)
    checked = shutil.which("promtool") is not None
    for name, body in found.items():
        if b"dlog_bookie_ledgers " in body:
            [known] = re.findall(rb"^dlog_bookie_ledgers (\S+)$", body, re.M)
            assert float(known) >= given.ledgers, f"{name} knows {known!r} ledgers"
        if checked:
            promtool("check", "metrics", given=body)
        print(f"{name:12} {samples(body):4} samples, {len(body):6,} bytes")
    print("promtool check metrics: " + ("no complaint" if checked else "not there"))
    if max(map(samples, found.values())) > SAMPLES_MAX:
        sys.exit(f"more than {SAMPLES_MAX}")


if __name__ == "__main__":
    main()
