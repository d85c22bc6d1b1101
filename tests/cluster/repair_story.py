"""Repair and drain on real processes: ``python -m tests.cluster.repair_story --ledgers 200 --gb 2``.

Three metadata nodes and some bookies; closed logs of a given size; beside them busy writers, of which every
acknowledgement is timed, and idle ones. Then, one after the other: a bookie is killed and its directory
deleted, a new one comes, the old one is decommissioned: until nothing names it. And a bookie that runs is
drained. Printed: seconds, bytes a second, and the writers' p99 before and meanwhile. In the end every record
is read back.

``--open``: instead, a writer is killed with -9, one of its bookies too, 45 s later another one: the log is
read and written on.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.cluster.local.child_processes import environment
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata
from distributedlog.metadata.model.interface import Scan
from tests.cluster.story import Cluster

PAYLOAD = b"x" * 10_000
BUSY_PAYLOAD = b"y" * 1000
AT_ONCE = 8
END_S = 3600.0


@dataclass
class Phase:
    """What one part took."""

    name: str
    began: float
    ended: float
    bytes: int
    ledgers: int

    def line(self, p99_before_ms: float, p99_ms: float) -> str:
        """For people."""
        took_s = self.ended - self.began
        return (
            f"{self.name}: {self.ledgers} ledgers, {self.bytes / 1e6:.0f} MB in {took_s:.1f} s,"
            f" {self.bytes / 1e6 / took_s:.1f} MB/s; writers' p99 {p99_ms:.1f} ms,"
            f" before {p99_before_ms:.1f} ms"
        )


# --- roles, each a process of its own ---------------------------------------------------------------


async def fill(logs: int, records: int) -> None:
    """Closed logs of so many records of 10 KB."""
    async with open_namespace(os.environ["DLOG_URI"]) as namespace, trio.open_nursery() as nursery:
        left = list(range(logs))

        async def some() -> None:
            while left:
                name = f"closed-{left.pop()}"
                await namespace.create_log(name)
                async with namespace.open_log(name).open_writer() as writer:
                    for txid in range(records):
                        await writer.submit(LogRecord(txid, PAYLOAD))

        for _ in range(AT_ONCE):
            nursery.start_soon(some)


async def write(busy: int, idle: int, rate: int) -> None:
    """Until stdin ends: busy logs at so many records a second, idle ones with a record or none.

    Prints "ready", and in the end each acknowledgement: when it came, and after how many ms.
    """
    seen: list[tuple[float, float]] = []
    counts: dict[str, int] = {}
    over = trio.Event()
    async with open_namespace(os.environ["DLOG_URI"]) as namespace, trio.open_nursery() as nursery:

        async def one(name: str, every_s: float) -> None:
            await namespace.create_log(name)
            # Closed at the end: who only stops leaves his last record to the next writer's recovery.
            async with namespace.open_log(name).open_writer() as writer:
                counts[name] = 0
                while not over.is_set():
                    began = time.monotonic()
                    await writer.write(LogRecord(counts[name], BUSY_PAYLOAD))
                    counts[name] += 1
                    now = time.monotonic()
                    if every_s < 60:
                        seen.append((now, (now - began) * 1000))
                    with trio.move_on_after(max(0.0, every_s - (now - began))):
                        await over.wait()

        for n in range(busy):
            nursery.start_soon(one, f"busy-{n}", 1 / rate)
        for n in range(idle):
            nursery.start_soon(one, f"idle-{n}", 1e6)
        await namespace.create_log("empty")
        empty = await namespace.open_log("empty").open_writer()
        while len(counts) < busy + idle:  # noqa: ASYNC110 (a story)
            await trio.sleep(0.05)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        over.set()
        await empty.aclose()
    print(json.dumps({"seen": seen, "counts": counts}))


async def check(logs: int, records: int, counts: dict[str, int]) -> int:
    """Read everything back; how many records it was. Raises where one is missing."""
    total = 0
    async with open_namespace(os.environ["DLOG_URI"]) as namespace:
        for name, count in {**{f"closed-{n}": records for n in range(logs)}, **counts}.items():
            async with namespace.open_log(name).open_reader() as reader:
                for txid in range(count):
                    record = await reader.read_next(wait_s=60.0)
                    assert record is not None, f"{name}: {txid} of {count} records"
                    assert record.txid == txid
                total += count
    return total


async def held(bookie: str) -> tuple[int, int]:
    """Ledgers that name a bookie, and their bytes there."""
    ledgers = size = 0
    async with open_namespace(os.environ["DLOG_URI"]) as namespace:
        async for item in Scan(namespace.metadata, keys.bookie_ledgers_prefix(bookie)):
            ledger_id = keys.ledger_id_of(item.key)
            found = await namespace.metadata.get(keys.ledger_key(ledger_id))
            if found is not None:
                ledgers += 1
                size += LedgerMetadata.decode(found.key, found.value).length or 0
    return ledgers, size


# --- the story ----------------------------------------------------------------------------------------


class Story:
    """Plays on one cluster."""

    def __init__(self, cluster: Cluster, *, ledgers: int, records: int) -> None:
        self.cluster = cluster
        self.ledgers = ledgers
        self.records = records

    def role(self, *arguments: object, **options: Any) -> "subprocess.Popen[bytes]":
        """A process of this module."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.repair_story", "--role", *map(str, arguments)],
            stdout=subprocess.PIPE,
            env={**environment(), "DLOG_URI": self.cluster.uri},
            **options,
        )

    def done(self, *arguments: object) -> Any:
        """What a role prints, at its end."""
        process = self.role(*arguments)
        text, _ = process.communicate(timeout=END_S)
        assert process.returncode == 0, f"{arguments[0]} failed"
        return json.loads(text) if text.strip() else None

    def bookie_id(self, name: str) -> str:
        """Of the one that runs under this name."""
        lines = self.cluster.run("bookies", "--json").stdout.splitlines()
        found = [json.loads(line) for line in lines]
        (one,) = [one["id"] for one in found if one["label"] == name and one["state"] == "up"]
        return str(one)

    def leave(self, name: str, bookie: str) -> Phase:
        """Decommission a bookie, until nothing names it."""
        ledgers, size = self.done("held", bookie)
        began = time.monotonic()
        run = self.cluster.run(
            "decommission", bookie, "--wait", "--timeout", str(int(END_S)), timeout=END_S + 60
        )
        ended = time.monotonic()
        assert run.returncode == 0, (run.stdout, run.stderr[-2000:])
        return Phase(name, began, ended, size, ledgers)

    def lose_directory(self, name: str) -> Phase:
        """Kill a bookie and delete its directory; a new one starts in its place."""
        lost = self.bookie_id(name)
        self.cluster.kill(name)
        shutil.rmtree(self.cluster.directory / name)
        self.cluster.start(name)
        return self.leave(f"{name}'s directory deleted", lost)


def play(
    directory: Path,
    *,
    bookies: int,
    ledgers: int,
    gb: float,
    busy: int,
    idle: int,
    rate: int,
    rest_s: float,
) -> str:
    """Prints what each part took; how much was read back.

    Raises where a record is missing, or repair does not end."""
    records = max(1, int(gb * 1e9 / ledgers / len(PAYLOAD)))
    with Cluster.planned(directory, bookies=bookies) as cluster:
        cluster.start()
        story = Story(cluster, ledgers=ledgers, records=records)
        story.done("fill", ledgers, records)
        writing = story.role("write", busy, idle, rate, stdin=subprocess.PIPE)
        try:
            assert writing.stdout is not None
            assert writing.stdout.readline() == b"ready\n"
            began = time.monotonic()
            time.sleep(rest_s)
            calm = (began, time.monotonic())
            phases = [story.lose_directory("bookie1")]
            time.sleep(min(rest_s, 5.0))
            phases.append(story.leave("bookie2 drained", story.bookie_id("bookie2")))
            said, _ = writing.communicate(b"", timeout=120)
            assert writing.returncode == 0, "the writers failed"
        finally:
            writing.kill()
            writing.wait()
        found = json.loads(said)
        before = p99(found["seen"], *calm)
        for one in phases:
            print(one.line(before, p99(found["seen"], one.began, one.ended)), flush=True)
        total = story.done("check", ledgers, records, json.dumps(found["counts"]))
        short = cluster.run("under-replicated")
        assert short.stdout == b"every ledger has all its copies\n", short.stdout
    return f"{total} records were read back"


def p99(seen: list[tuple[float, float]], began: float, ended: float) -> float:
    """Of the acknowledgements of that time, ms."""
    found = sorted(ms for at, ms in seen if began <= at <= ended)
    return found[len(found) * 99 // 100] if found else 0.0


def play_open(directory: Path, *, apart_s: float) -> str:
    """Two bookies lost one after the other under the open ledger of a dead writer."""
    with Cluster.planned(directory, bookies=5) as cluster:
        cluster.start()
        assert cluster.run("log", "create", "l").returncode == 0
        writer = cluster.popen(
            "log", "write", "l", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        assert writer.stdin is not None
        lines = b"".join(b"line %d\n" % n for n in range(1000))
        writer.stdin.write(lines)
        writer.stdin.flush()
        while cluster.run("log", "read", "l").stdout != lines:
            time.sleep(0.5)
        labels = {
            one["id"]: one["label"]
            for one in map(json.loads, cluster.run("bookies", "--json").stdout.splitlines())
        }
        on = json.loads(Story(cluster, ledgers=0, records=0).done("ensemble"))
        first, second = [labels[one] for one in on[:2]]
        writer.kill()
        writer.wait()
        cluster.kill(first)
        time.sleep(apart_s)
        cluster.kill(second)
        began = time.monotonic()
        more = cluster.run("log", "write", "l", "--timeout", "60", input=b"last\n")
        took_s = time.monotonic() - began
        assert more.returncode == 0, more.stderr
        read = cluster.run("log", "read", "l")
        assert read.stdout == lines + b"last\n", (len(read.stdout), read.stderr)
    return (
        f"killed {first}, {apart_s:g} s later {second}: written on after {took_s:.1f} s, all read"
    )


async def ensemble() -> str:
    """The bookies of the log's ledger."""
    async with open_namespace(os.environ["DLOG_URI"]) as namespace:
        (segment, *_) = await namespace.open_log("l").segments()
        found = await namespace.metadata.get(keys.ledger_key(segment.ledger_id))
        assert found is not None
        return json.dumps(LedgerMetadata.decode(found.key, found.value).bookies())


async def _role(kind: str, *rest: str) -> None:
    if kind == "fill":
        await fill(int(rest[0]), int(rest[1]))
    elif kind == "write":
        await write(int(rest[0]), int(rest[1]), int(rest[2]))
    elif kind == "check":
        print(json.dumps(await check(int(rest[0]), int(rest[1]), json.loads(rest[2]))))
    elif kind == "held":
        print(json.dumps(await held(rest[0])))
    else:
        print(json.dumps(await ensemble()))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bookies", type=int, default=5)
    parser.add_argument("--ledgers", type=int, default=200)
    parser.add_argument("--gb", type=float, default=2.0, help="of all closed ledgers, one copy")
    parser.add_argument("--busy", type=int, default=10, help="logs that are written meanwhile")
    parser.add_argument("--idle", type=int, default=10, help="logs that are open and rest")
    parser.add_argument("--rate", type=int, default=20, help="records a second and busy log")
    parser.add_argument("--rest", type=float, default=20.0, help="seconds of calm before")
    parser.add_argument("--open", action="store_true", help="two bookies lost under an open ledger")
    parser.add_argument("--apart", type=float, default=45.0, help="seconds between the two")
    parser.add_argument("--data", type=Path, help="where the nodes keep theirs; else below /tmp")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        trio.run(_role, *given.role)
        return
    with tempfile.TemporaryDirectory(dir=given.data) as directory:
        place = Path(directory)
        if given.open:
            said = play_open(place, apart_s=given.apart)
        else:
            said = play(
                place,
                bookies=given.bookies,
                ledgers=given.ledgers,
                gb=given.gb,
                busy=given.busy,
                idle=given.idle,
                rate=given.rate,
                rest_s=given.rest,
            )
    print(said)


if __name__ == "__main__":
    main()
