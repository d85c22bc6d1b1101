"""A namespace of 100,000 logs: what listing and watching them costs, and what the metadata nodes hold.

    python -m tests.cluster.many_logs --logs 100000

Three metadata nodes in processes of their own, with disks. Most logs are made as `create_log` makes them, but
500 in a transaction; then logs are listed in pages, watched with their names and without, and a log is made,
renamed and deleted beside them. Said are calls of the metadata store, bytes of memory, CPU seconds.
"""

import argparse
import resource
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import trio

from distributedlog import local_cluster, open_namespace
from distributedlog.log.model.log_keys import LOG_ID_BITS, encode_log_id, name_key, state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.namespace import Namespace
from distributedlog.metadata.model.transaction import Compare, Put, Transaction

A_TRANSACTION = 500


class Counting:
    """The metadata store, and how often it was asked for what."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._metadata, name)


def rss_bytes(pid: int | str = "self") -> int:
    """Of a process, as the kernel counts it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS in its status")


def cpu_s() -> float:
    """Of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def make(namespace: Namespace, names: list[str], chance: Random) -> None:
    """As `Namespace.create_log` does, many at once."""
    compares, puts = [], []
    for name in names:
        log_id = chance.getrandbits(LOG_ID_BITS)
        state = replace(LogState(log_id, name, namespace.wall_ms()), txid_rule="auto")
        name_at, state_at = name_key(namespace.path, name), state_key(log_id)
        compares += [Compare.version(name_at, 0), Compare.version(state_at, 0)]
        puts += [Put(name_at, encode_log_id(log_id)), Put(state_at, state.encode())]
    reply = await namespace.metadata.transact(Transaction(tuple(compares), tuple(puts)))
    assert reply.succeeded


class Said:
    """One line for each thing that was done."""

    def __init__(self, metadata: Counting, pids: dict[str, int]) -> None:
        self._metadata = metadata
        self._pids = pids
        self._begin()

    def _begin(self) -> None:
        self._cpu_s, self._began, self._rss = cpu_s(), time.monotonic(), rss_bytes()
        self._metadata.calls.clear()

    def __call__(self, what: str) -> None:
        calls = ", ".join(f"{n} {name}" for name, n in sorted(self._metadata.calls.items()))
        grown = (rss_bytes() - self._rss) / 2**20
        nodes = ", ".join(f"{rss_bytes(pid) / 2**20:.0f}" for pid in self._pids.values())
        print(
            f"{what}: {cpu_s() - self._cpu_s:.2f} s of CPU here, "
            f"{time.monotonic() - self._began:.1f} s; {calls}; {grown:+.1f} MiB here, nodes {nodes} MiB",
            flush=True,
        )
        self._begin()


async def play(logs: int, pages: int) -> None:
    """Make, list, watch."""
    with TemporaryDirectory() as directory:
        async with (
            local_cluster(directory, processes=True) as cluster,
            open_namespace(cluster.uri) as namespace,
        ):
            pids = {node.name: node.pid for node in cluster.nodes if node.kind == "metadata"}
            counted = Counting(namespace.metadata)
            namespace.metadata = counted
            say, chance = Said(counted, pids), Random(1)
            say("begin")
            names = [f"tenant-{n % 100:02}/log-{n:06}" for n in range(logs)]
            for at in range(0, logs, A_TRANSACTION):
                await make(namespace, names[at : at + A_TRANSACTION], chance)
            say(f"{logs:,} logs made")
            assert [name async for name in namespace.logs()] == sorted(names)
            say("all listed")
            page = await namespace.log_page("tenant-42/", limit=pages)
            assert len(page.names) == min(
                pages, len([n for n in names if n.startswith("tenant-42/")])
            )
            say("a page")
            for keep in (True, False):
                async with namespace.watch_logs(keep_names=keep) as watch:
                    say(f"a watch, keep={keep}")
                    await namespace.create_log("tenant-42/new")
                    await namespace.rename_log("tenant-42/new", "tenant-43/new")
                    await namespace.delete_log("tenant-43/new")
                    kinds: list[str] = []
                    with trio.fail_after(30):
                        while kinds[-1:] != ["deleted"]:
                            change = await watch.next()
                            assert change is not None
                            kinds.append(change.kind)
                    assert kinds == ["created", "renamed", "deleted"]
                    say("a log made, renamed, deleted, and told")
            async with namespace.open_log(names[logs // 2]).open_writer() as writer:
                await writer.write(b"x")
            say("one of them written")


def main() -> None:
    """The figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--logs", type=int, default=100_000)
    parser.add_argument("--page", type=int, default=100)
    given = parser.parse_args()
    trio.run(play, given.logs, given.page)


if __name__ == "__main__":
    main()
