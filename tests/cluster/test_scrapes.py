"""What a scrape of each kind of node has: whole, of a bounded size, and taken by promtool where that is."""

import re
import shutil

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from distributedlog import LogRecord, local_cluster, open_namespace
from distributedlog.cluster.declarations.config import parse_address
from distributedlog.cluster.local.local_cluster import LocalCluster
from distributedlog.cluster.node.node_pages import METRICS_OF_KIND, node_pages
from distributedlog.runtime.machine import real_host
from tests.test_metrics import promtool

SAMPLES_MAX = 900
LOGS, CLIENTS = 24, 6


async def _scrapes(cluster: LocalCluster) -> dict[str, bytes]:
    found = {}
    for node in cluster.nodes:
        pages = node_pages(real_host("scraper"), node.name, [parse_address(node.address, "it")])
        page = await pages["/metrics"]()
        assert page.status == 200, page
        found[node.name] = page.body
    return found


def _samples(body: bytes) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (one.name, tuple(sorted(one.labels.items())))
        for family in text_string_to_metric_families(body.decode())
        for one in family.samples
    }


async def _write(uri: str, logs: range) -> None:
    """In a client of its own."""
    async with open_namespace(uri) as namespace:
        for n in logs:
            async with namespace.open_log(f"l{n}").open_writer() as writer:
                await writer.write(LogRecord(1, b"x"))


@pytest.mark.properties
async def test_a_scrape_is_as_large_with_many_logs_and_clients_as_with_none() -> None:
    """H251: no label names what there may be any number of, so 10,000 logs are no more than 24."""
    with trio.fail_after(240):
        async with local_cluster(
            memory=True, in_process=True, write_proxies=1, read_proxies=1
        ) as cluster:
            await _write(cluster.uri, range(1))
            await _write(cluster.proxied_uri, range(1))
            few = await _scrapes(cluster)
            while not any(b"dlog_cluster_repairer 1.0" in body for body in few.values()):
                await trio.sleep(1.1)  # no page is older
                few = await _scrapes(cluster)
            each = LOGS // CLIENTS
            async with trio.open_nursery() as nursery:
                for client in range(CLIENTS):
                    uri = cluster.proxied_uri if client % 3 == 0 else cluster.uri
                    logs = range(1 + client * each, 1 + (client + 1) * each)
                    nursery.start_soon(_write, uri, logs)
            await trio.sleep(1.1)
            many = await _scrapes(cluster)

    kinds = {node.name: node.kind for node in cluster.nodes}
    assert set(kinds.values()) == set(METRICS_OF_KIND)
    repairers = 0
    for name, body in many.items():
        assert body != few[name], "nothing was counted"
        shown = _samples(body)
        assert len(shown) <= SAMPLES_MAX
        assert shown == _samples(few[name])
        text = body.decode()
        if kinds[name] == "bookie":
            repairers += "dlog_cluster_repairer 1.0" in text
            [ledgers] = re.findall(r"^dlog_bookie_ledgers (\S+)$", text, re.M)
            assert float(ledgers) > LOGS
        elif "proxy" not in kinds[name]:
            here = {
                one.name for one in METRICS_OF_KIND[kinds[name]] if "certificate" not in one.name
            }
            assert here <= {shown_name for shown_name, _ in shown}, "there are no certificates"
    assert repairers == 1
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here: the rest was held")
    for body in many.values():
        promtool("check", "metrics", given=body)
