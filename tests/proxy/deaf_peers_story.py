"""Producers that read no answer, readers that never read: what others notice, and what is held for them.

    python -m tests.proxy.deaf_peers_story                 10 of each kind, 10 s without them, 10 s with them
    python -m tests.proxy.deaf_peers_story --deaf 50 --seconds 30 --only readers

Storage, a write proxy and a read proxy are processes. Good writers and readers of some logs go through them:
latencies from the call to the acknowledgement, and to the reader, before the deaf ones come and while they
are there. A deaf producer has a log of its own, sends ten records a second and never reads its connection
again; a deaf reader has 500 subscriptions to a log that is filled, credit without end, and does not read
either. Each good record is acknowledged and read once; a proxy's memory grows by what its bounds say at most.
That who reads no answers is read no further is a test (`test_write_proxy.py`): it takes 8 MiB of them.
"""

import argparse
import json
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from distributedlog import open_namespace
from distributedlog.cluster.declarations.config import parse_address
from distributedlog.cluster.local.local_cluster import LocalCluster, local_cluster
from distributedlog.log.namespace import Namespace
from distributedlog.proxy.protocol.proxy_messages import ProduceOpen, encode_produce
from distributedlog.proxy.protocol.read_messages import CREDIT_MAX, Subscribe
from distributedlog.runtime.interfaces.errors import DistributedLogError
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.client_link import ClientLink
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, envelope
from distributedlog.runtime.protocol.handshake import Hello

LOGS = 8
EVERY_S = 0.02
SUBSCRIPTIONS = 500
UNREAD_BYTES = 8 * 1024 * 1024
"""Of a connection whose peer does not read: then it is not read on, or sent no more."""
REST_BYTES = 192 * 1024 * 1024
"""What a proxy may grow by beside: rings, windows, what allocators keep."""


@dataclass
class Good:
    """One log, its writer and its reader."""

    acked_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    written: int = 0
    read: int = 0

    async def write(self, namespace: Namespace, name: str, stop: trio.Event) -> None:
        """A record each few milliseconds; it says when it was written."""
        async with namespace.open_log(name).open_writer() as writer:
            while not stop.is_set():
                began = trio.current_time()
                await writer.write(struct.pack("<d", began))
                self.written += 1
                self.acked_s.append(trio.current_time() - began)
                await trio.sleep(EVERY_S)

    async def follow(self, namespace: Namespace, name: str) -> None:
        """Each record, once and in order."""
        last = 0.0
        async with namespace.open_log(name).open_reader() as reader:
            async for record in reader:
                (began,) = struct.unpack("<d", record.payload)
                assert began > last, "in order, each once"
                last, self.read = began, self.read + 1
                self.read_s.append(trio.current_time() - began)


@asynccontextmanager
async def connections(address: str, number: int) -> AsyncIterator[list[ClientLink]]:
    """So many to a proxy."""
    endpoint = Endpoint(real_host("deaf"), lambda: Hello(kind="client"))
    place = parse_address(address, "a proxy")
    async with trio.open_nursery() as nursery:
        links = [await endpoint.dial(place, nursery=nursery) for _ in range(number)]
        yield links
        nursery.cancel_scope.cancel()


async def produce(link: ClientLink, number: int) -> None:
    """Until cancelled, and nothing is read after the stream is open."""
    request = ProduceOpen(1, "default", f"deaf-{number}").encode()
    await link.request(Op.PRODUCE_OPEN, request, timeout_s=30)
    link.pause_reading()
    first = 0
    with suppress(DistributedLogError):
        while link.closed is None:
            link.send(encode_produce(1, first, first, None, [b"x"]))
            first += 1
            await trio.sleep(0.1)


async def subscribe(link: ClientLink) -> None:
    """Many times to one log, with credit without end."""
    body = Subscribe("default", "filled", at="latest", credit=CREDIT_MAX).encode()
    for ident in range(10, 10 + SUBSCRIPTIONS):
        link.send(envelope(Op.SUBSCRIBE, len(body), ident=ident), body)
    await trio.sleep(2)
    link.pause_reading()


async def fill(namespace: Namespace) -> None:
    """A megabyte a second, directly."""
    async with namespace.open_log("filled").open_writer() as writer:
        while True:
            await writer.write(bytes(100_000))
            await trio.sleep(0.1)


def rss_bytes(cluster: LocalCluster, kind: str) -> int:
    """Of the proxy of that kind."""
    (pid,) = [cluster.children[node.name].pid for node in cluster.nodes if node.kind == kind]
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in x)
    return 1024 * int(line.split()[1])


def latencies(goods: list[Good]) -> dict[str, dict[str, float]]:
    """In milliseconds, of all since the last time."""
    found = {}
    for what in ("acked_s", "read_s"):
        times = sorted(one for good in goods for one in getattr(good, what))
        for good in goods:
            getattr(good, what).clear()
        found[what.removesuffix("_s")] = {
            f"p{part}": round(1000 * times[int(len(times) * part / 100)], 1) for part in (50, 99)
        }
    return found


async def played(deaf: int, seconds: float, only: str) -> dict[str, Any]:
    """What was seen. Raises where a good one missed anything, or a proxy grew beyond its bounds."""
    goods = [Good() for _ in range(LOGS)]
    kinds = ("write-proxy", "read-proxy")
    async with (
        local_cluster(processes=True, write_proxies=1, read_proxies=1) as cluster,
        open_namespace(cluster.uri) as direct,
        open_namespace(cluster.proxied_uri) as namespace,
    ):
        at = {node.kind: node.address for node in cluster.nodes}
        for number in range(LOGS):
            await direct.create_log(f"good-{number}", txids="count")
        for number in range(deaf):
            await direct.create_log(f"deaf-{number}", txids="count")
        await direct.create_log("filled", txids="count")
        stop = trio.Event()
        async with trio.open_nursery() as readers:
            for number, good in enumerate(goods):
                readers.start_soon(good.follow, namespace, f"good-{number}")
            async with trio.open_nursery() as writers, trio.open_nursery() as others:
                for number, good in enumerate(goods):
                    writers.start_soon(good.write, namespace, f"good-{number}", stop)
                others.start_soon(fill, direct)
                await trio.sleep(3)
                latencies(goods)
                await trio.sleep(seconds)
                before, held = latencies(goods), {one: rss_bytes(cluster, one) for one in kinds}
                print(f"before: {before}", file=sys.stderr, flush=True)
                async with (
                    connections(at["write-proxy"], deaf) as producing,
                    connections(at["read-proxy"], deaf) as reading,
                ):
                    for number, link in enumerate(producing if only != "readers" else ()):
                        others.start_soon(produce, link, number)
                    for link in reading if only != "producers" else ():
                        others.start_soon(subscribe, link)
                    await trio.sleep(4)
                    latencies(goods)
                    await trio.sleep(seconds)
                    during = latencies(goods)
                    grown = {one: rss_bytes(cluster, one) - held[one] for one in kinds}
                others.cancel_scope.cancel()
                stop.set()
            with trio.fail_after(30):
                while any(good.read < good.written for good in goods):  # noqa: ASYNC110
                    await trio.sleep(0.05)
            readers.cancel_scope.cancel()
    assert all(good.read == good.written for good in goods)
    bound = deaf * UNREAD_BYTES + REST_BYTES
    assert max(grown.values()) <= bound, grown
    return {
        "deaf_of_each_kind": deaf,
        "records": sum(good.written for good in goods),
        "before_ms": before,
        "during_ms": during,
        "grown_mib": {one: round(size / 2**20) for one, size in grown.items()},
        "bound_mib": bound // 2**20,
    }


def main() -> None:
    """Play it as told on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaf", type=int, default=10, help="producers, and as many readers")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", choices=("producers", "readers"), default="")
    given = parser.parse_args()
    print(json.dumps(trio.run(played, given.deaf, given.seconds, given.only)), flush=True)


if __name__ == "__main__":
    main()
