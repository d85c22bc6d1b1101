"""How long producers wait when a log moves, when its owner is killed, and while a proxy is drained.

    python -m tests.proxy.pauses_story                   all three (docs/internals/performance.md)
    python -m tests.proxy.pauses_story --only moves --moves 20

Metadata nodes, bookies and write proxies are processes. *Moves* and *kills*: some logs, a record each few
milliseconds to each, whether answered or not; a pause is the longest time between two acknowledgements around
the event. Plain writers go through all moves, for a move leaves nothing unknown; producers go through the
kills. *Drain*: one proxy has all of many logs, each written now and then; a second one comes, the first is
drained, and every record that was written is acknowledged and in its log once.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import trio

from distributedlog import PendingWrite, open_namespace
from distributedlog.cluster.local.child_processes import start_fork_server
from distributedlog.cluster.local.local_cluster import LocalCluster, local_cluster
from distributedlog.cluster.status.proxy_overview import drain_proxy, hosted_logs, move_log
from distributedlog.log.namespace import Namespace

from .owner_kills_story import Proxies

EVERY_S = 0.01
"""Between two records of a log."""
BEFORE_S, AFTER_S = 0.5, 2.5
"""What an event is given, before it and after it."""
AGAIN_S = 1.0
"""A proxy that was killed is started anew after this: its start is not what is measured."""
LATE_S = 10.0
"""A pause that is longer ends the story."""
OPENED_AT_ONCE = 32
ASKED_MS = {"moves": 100.0, "kills": 1500.0}


@dataclass
class Written:
    """One log, and when its records were acknowledged."""

    name: str
    acked_at: list[float] = field(default_factory=list)
    taken: int = 0

    async def run(self, namespace: Namespace, producer: bool, stop: trio.Event) -> None:
        """A record each few milliseconds, until the event; all are acknowledged, or this raises."""
        under_way: list[PendingWrite] = []
        log = namespace.open_log(self.name)
        async with log.open_writer(producer=self.name if producer else None) as writer:
            while not stop.is_set():
                pending = await writer.submit(b"x" * 100)
                self.taken += 1
                under_way.append(pending)
                await trio.sleep(EVERY_S)
                self._look(under_way)
            for pending in under_way:
                await pending
                self.acked_at.append(trio.current_time())

    def _look(self, under_way: list[PendingWrite]) -> None:
        done = 0
        while done < len(under_way) and under_way[done].done():
            under_way[done].result()
            done += 1
        if done:
            del under_way[:done]
            self.acked_at += [trio.current_time()] * done

    def pause_s(self, since: float, until: float) -> float:
        """The longest time without an acknowledgement that begins or ends between the two."""
        times = [at for at in self.acked_at if since - BEFORE_S <= at <= until]
        ends = [*times[1:], until]
        return max((b - a for a, b in zip(times, ends, strict=True) if b >= since), default=0.0)


@asynccontextmanager
async def storage(proxies: int) -> AsyncIterator[tuple[LocalCluster, Proxies]]:
    """A cluster of processes, and so many write proxies beside it."""
    forks = start_fork_server()
    try:
        with TemporaryDirectory(prefix="dlog-") as place:
            async with local_cluster(place, processes=True, forks=forks) as cluster:
                tier = Proxies(cluster.uri, forks)
                try:
                    for _ in range(proxies):
                        await tier.start()
                    yield cluster, tier
                finally:
                    with trio.CancelScope(shield=True):
                        await tier.stop()
    finally:
        forks.close()


def summary(pauses_s: Sequence[float]) -> dict[str, Any]:
    """In milliseconds."""
    ms = sorted(round(1000 * one, 1) for one in pauses_s)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {"pauses": len(ms), **{k: ms[round(part * (len(ms) - 1))] for k, part in at.items()}}


async def moves_or_kills(what: str, times: int, logs: int, seed: int) -> dict[str, Any]:
    """One event after the other; pauses of the logs that it met."""
    chance = random.Random(seed)
    pauses: list[float] = []
    baseline: list[float] = []
    async with storage(3) as (cluster, tier), open_namespace(cluster.uri) as direct:
        written = [Written(f"log-{n}") for n in range(logs)]
        for one in written:
            await direct.create_log(one.name, txids="count")
        stop = trio.Event()
        async with open_namespace(tier.proxied_uri) as namespace, trio.open_nursery() as nursery:
            for one in written:
                nursery.start_soon(one.run, namespace, what == "kills", stop)
            await trio.sleep(2.0)
            for number in range(times):
                await trio.sleep(BEFORE_S)
                rest = trio.current_time()
                baseline += [one.pause_s(rest - BEFORE_S, rest) for one in written]
                if what == "moves":
                    began, met = await _move(direct, tier, chance.choice(written))
                else:
                    began, met = await _kill(direct, tier, chance, written, nursery)
                end = trio.current_time() + LATE_S
                while any(one.acked_at[-1] < began + 0.1 for one in met):
                    assert trio.current_time() < end, f"no acknowledgement for {LATE_S:g} s"
                    await trio.sleep(0.01)
                await trio.sleep(AFTER_S)
                until = trio.current_time()
                pauses += [one.pause_s(began, until) for one in met]
                print(f"{what} {number + 1} of {times}", file=sys.stderr, flush=True)
            stop.set()
        assert all(len(one.acked_at) == one.taken for one in written), "each is acknowledged"
        for one in written:
            stored = await direct.open_log(one.name).count()
            assert stored == one.taken, f"{one.name}: {stored} of {one.taken}"
    return {
        **summary(pauses),
        "asked_ms": ASKED_MS[what],
        "without_an_event": summary(baseline),
        "all_ms": sorted(round(1000 * one) for one in pauses),
    }


async def _move(direct: Namespace, tier: Proxies, one: Written) -> tuple[float, list[Written]]:
    rows = await hosted_logs(direct.metadata)  # type: ignore[arg-type]
    owner = next(row["proxy"] for row in rows if row["log"] == one.name)
    names = [child.name for child in tier.children.values()]
    target = names[(names.index(owner) + 1) % len(names)]
    began = trio.current_time()
    await move_log(direct.metadata, direct.path, one.name, target)  # type: ignore[arg-type]
    return began, [one]


async def _kill(
    direct: Namespace,
    tier: Proxies,
    chance: random.Random,
    written: list[Written],
    nursery: trio.Nursery,
) -> tuple[float, list[Written]]:
    rows = await hosted_logs(direct.metadata)  # type: ignore[arg-type]
    chosen = chance.choice(written).name
    owner = next(r["proxy"] for r in rows if r["log"] == chosen)
    met = [
        one for one in written if any(r["log"] == one.name and r["proxy"] == owner for r in rows)
    ]
    proxy_id = next(key for key, child in tier.children.items() if child.name == owner)
    child = tier.children.pop(proxy_id)
    began = trio.current_time()
    child.kill()
    await child.process.wait()

    async def start_again() -> None:
        await trio.sleep(AGAIN_S)
        await tier.start(child.ready["address"])

    nursery.start_soon(start_again)
    return began, met


async def drained(logs: int) -> dict[str, Any]:
    """One proxy has them all; then it is drained, and another one has them."""
    async with storage(1) as (cluster, tier), open_namespace(cluster.uri) as direct:
        (first,) = tier.children.values()
        acked = [0] * logs
        longest = [0.0] * logs
        stop, over = trio.Event(), trio.Event()
        limit = trio.CapacityLimiter(OPENED_AT_ONCE)
        taken = [0] * logs

        async def write(number: int, namespace: Namespace, *, task_status: Any) -> None:
            log = namespace.open_log(f"log-{number}")
            async with limit:
                writer = await log.open_writer()
                await writer.write(b"first")
            taken[number] = acked[number] = 1
            task_status.started()
            async with writer:
                await trio.sleep(random.random())
                while not stop.is_set():
                    began = trio.current_time()
                    taken[number] += 1
                    await writer.write(b"x" * 100)
                    acked[number] += 1
                    longest[number] = max(longest[number], trio.current_time() - began)
                    await trio.sleep(1.0)
                await over.wait()

        async with (
            open_namespace(tier.proxied_uri) as namespace,
            trio.open_nursery() as writers,
        ):
            async with trio.open_nursery() as opening:
                for number in range(logs):
                    opening.start_soon(writers.start, partial(write, number, namespace))
            await tier.start()
            await trio.sleep(3.0)
            longest[:] = [0.0] * logs
            before = sum(acked)
            began = time.monotonic()
            await drain_proxy(direct.metadata, first.name)  # type: ignore[arg-type]
            drain_s = time.monotonic() - began
            await trio.sleep(2.0)
            during = sum(acked) - before
            stop.set()
            over.set()
        stored = 0
        for number in range(logs):
            count = await direct.open_log(f"log-{number}").count()
            assert count == taken[number] == acked[number], (number, count, taken[number])
            stored += count
    return {
        "logs": logs,
        "drain_s": round(drain_s, 2),
        "records_while_drained": during,
        "records_in_all": stored,
        "lost_or_failed": 0,
        "longest_write": summary(longest),
    }


def main() -> None:
    """Play it as told on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("moves", "kills", "drain"), default=None)
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--written", type=int, default=4, help="logs, for moves and kills")
    parser.add_argument("--logs", type=int, default=1000, help="of the proxy that is drained")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for what, times in (("moves", given.moves), ("kills", given.kills)):
        if given.only in (None, what):
            found = trio.run(moves_or_kills, what, times, given.written, given.seed)
            print(json.dumps({what: found}), flush=True)
    if given.only in (None, "drain"):
        print(json.dumps({"drain": trio.run(drained, given.logs)}), flush=True)


if __name__ == "__main__":
    main()
