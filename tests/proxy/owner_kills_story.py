"""One log, many producers, and its owner killed and paused again and again; judged from the log alone.

    python -m tests.proxy.owner_kills_story --producers 50 --kills 20 --pauses 10

Scenario 28 of DistributedLog's. Storage in one process, write proxies in processes of their own. Each
producer writes numbered records in a pipeline. A plain one whose writer ends opens another and goes on with
the next number. Whoever has the log is killed with -9 and started anew, or stopped for longer than its lease
and let go on. Then the log is read, once, directly: every acknowledged record is there once, at the place
that was told; others at most once; each producer's numbers ascend. With ``--once`` the producers are known to
the log: their writers go on over all of it, and every record is there exactly once.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

import trio

from distributedlog import DLSN, PendingWrite, open_namespace
from distributedlog.cluster.declarations.config import parse_address
from distributedlog.cluster.declarations.options import WRITE_PROXY, ProxyNodeConfig, to_json
from distributedlog.cluster.local.child_processes import Child, start_child, start_fork_server
from distributedlog.cluster.local.fork_server import ForkServer
from distributedlog.cluster.local.local_cluster import local_cluster
from distributedlog.log.interfaces.open_call import Opening
from distributedlog.log.model.lock_record import lock_holder
from distributedlog.log.namespace import Namespace
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.runtime.interfaces.errors import DistributedLogError
from distributedlog.uri import parse_uri

LOG = "shared"
UNDER_WAY_MAX = 20
PAUSE_S = 5.0
"""Of an owner, longer than the lease of its locks."""
BETWEEN_S = (0.3, 1.0)
WRITES_S = 40.0
"""Without an acknowledgement for so long the story fails."""


@dataclass
class Producer:
    """What one producer was told."""

    name: bytes
    once: bool
    """Is it a producer that the log knows?"""
    acked: dict[int, DLSN] = field(default_factory=dict)
    unknown: int = 0
    next: int = 0
    opened: int = 0
    """Writers."""
    ends: list[str] = field(default_factory=list)
    """What they ended with."""

    async def run(self, namespace: Namespace, stop: trio.Event) -> None:
        """Write until told to stop; a writer that ends is followed by another."""
        while not stop.is_set():
            try:
                async with self._open(namespace) as writer:
                    self.opened += 1
                    under_way: list[tuple[int, PendingWrite]] = []
                    try:
                        while not stop.is_set():
                            number, self.next = self.next, self.next + 1
                            record = b"%s/%d " % (self.name, number) + b"x" * (number % 100)
                            under_way.append((number, await writer.submit(record)))
                            if len(under_way) >= UNDER_WAY_MAX:
                                await self._take(under_way.pop(0))
                            await trio.sleep(0.002)
                    finally:
                        with trio.CancelScope(shield=True), trio.move_on_after(20):
                            for one in under_way:
                                await self._take(one)
            except DistributedLogError as error:
                self.ends.append(f"{type(error).__name__}: {error}")

    def _open(self, namespace: Namespace) -> Opening[LogWriter]:
        name = self.name.decode() if self.once else None
        return namespace.open_log(LOG).open_writer(producer=name)

    async def _take(self, one: tuple[int, PendingWrite]) -> None:
        try:
            self.acked[one[0]] = await one[1]
        except DistributedLogError:
            self.unknown += 1


@dataclass
class Proxies:
    """The write proxies, by id, each a process."""

    uri: str
    forks: ForkServer
    children: dict[str, Child] = field(default_factory=dict)
    _number: int = 0

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._number += 1
        name = f"w{self._number}"
        config = ProxyNodeConfig(
            name,
            WRITE_PROXY,
            parse_uri(self.uri).addresses,
            {"": parse_address(address, "the address")},
        )
        spec = {"run": "node", "config": to_json(config), "data": None}
        child = await start_child(name, spec, self.forks)
        self.children[child.ready["id"]] = child

    @property
    def proxied_uri(self) -> str:
        places = ";".join(child.ready["address"] for child in self.children.values())
        return f"distributedlog+proxy://{places}/{parse_uri(self.uri).path}"

    async def stop(self) -> None:
        for child in self.children.values():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT)
            child.kill()
            await child.process.wait()


def judge(stored: list[tuple[DLSN, bytes]], producers: list[Producer]) -> dict[str, int]:
    """What the log says of what was promised. Raises `AssertionError`."""
    at: dict[bytes, DLSN] = {}
    last: Counter[bytes] = Counter()
    for dlsn, payload in stored:
        key, _, filling = payload.partition(b" ")
        name, _, digits = key.partition(b"/")
        number = int(digits)
        assert key not in at, f"{key!r} is there twice: {at[key]} and {dlsn}"
        assert filling == b"x" * (number % 100), f"{key!r} is not what was sent"
        assert number + 1 > last[name], f"{key!r} is after {last[name] - 1}"
        last[name] = number + 1
        at[key] = dlsn
    acked = 0
    for one in producers:
        for number, told in one.acked.items():
            key = b"%s/%d" % (one.name, number)
            assert at.get(key) == told, (
                f"{key!r} was acknowledged at {told}, it is at {at.get(key)}"
            )
            acked += 1
    return {
        "stored": len(stored),
        "acknowledged": acked,
        "unknown": sum(one.unknown for one in producers),
    }


async def story(
    *, producers: int, kills: int, pauses: int, seed: int, proxies: int = 3, once: bool = False
) -> dict[str, object]:
    """Play it; what was seen."""
    chance = random.Random(seed)
    told = [Producer(b"p%d" % n, once) for n in range(producers)]
    resumed: list[float] = []
    forks = start_fork_server()
    with TemporaryDirectory(prefix="dlog-") as place:
        async with local_cluster(place, metadata_nodes=1, forks=forks) as cluster:
            tier = Proxies(cluster.uri, forks)
            try:
                for _ in range(proxies):
                    await tier.start()
                async with open_namespace(cluster.uri) as direct:
                    await direct.create_log(LOG, txids="count")
                    await _play(tier, direct, told, chance, kills, pauses, resumed)
                    async with direct.open_log(LOG).open_reader(to="end") as reader:
                        stored = [(one.dlsn, one.payload) async for one in reader]
            finally:
                with trio.CancelScope(shield=True):
                    await tier.stop()
    forks.close()
    found: dict[str, object] = {**judge(stored, told)}
    if once:
        ends = {end for one in told for end in one.ends}
        assert all(one.opened == 1 and not one.unknown for one in told), f"writers ended: {ends}"
        assert found["stored"] == found["acknowledged"], "each record once, and none but those"
    found["resumed_s"] = [round(one, 2) for one in sorted(resumed)]
    return found


async def _play(
    tier: Proxies,
    direct: Namespace,
    told: list[Producer],
    chance: random.Random,
    kills: int,
    pauses: int,
    resumed: list[float],
) -> None:
    stop = trio.Event()

    def acked() -> int:
        return sum(len(one.acked) for one in told)

    async def more(number: int) -> None:
        """Until so many more are acknowledged."""
        wanted = acked() + number
        with trio.move_on_after(WRITES_S) as scope:
            while acked() < wanted:  # noqa: ASYNC110
                await trio.sleep(0.01)
        ends = {end for one in told for end in one.ends}
        assert not scope.cancelled_caught, f"no more writes within {WRITES_S:g} s: {ends}"

    async with (
        open_namespace(tier.proxied_uri) as one,
        open_namespace(tier.proxied_uri) as other,
        trio.open_nursery() as nursery,
    ):
        for number, producer in enumerate(told):
            nursery.start_soon(producer.run, (one, other)[number % 2], stop)
        await more(10 * len(told))
        events = ["kill"] * kills + ["pause"] * pauses
        chance.shuffle(events)
        for event in events:
            await trio.sleep(chance.uniform(*BETWEEN_S))
            holder = await lock_holder(direct.metadata, await direct.resolve_name(LOG))
            if holder is None or holder.proxy not in tier.children:
                await more(1)
                continue
            child = tier.children[holder.proxy]
            began = time.monotonic()
            if event == "kill":
                child.kill()
                del tier.children[holder.proxy]
                await child.process.wait()
                nursery.start_soon(tier.start, child.ready["address"])
            else:
                os.kill(child.pid, signal.SIGSTOP)
                nursery.start_soon(_wake, child)
            await trio.sleep(0.1)  # what was on its way before is told
            await more(1)
            resumed.append(time.monotonic() - began)
            await more(2 * len(told))
        stop.set()


async def _wake(child: Child) -> None:
    await trio.sleep(PAUSE_S)
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGCONT)


def main() -> None:
    """Play it as told on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--producers", type=int, default=50)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pauses", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--once", action="store_true", help="producers that the log knows")
    given = vars(parser.parse_args())
    found = trio.run(lambda: story(**given))
    print(found)
    sys.exit(0)


if __name__ == "__main__":
    main()
