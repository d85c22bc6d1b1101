"""Space comes back on a real disk over kills: ``python -m tests.bookie.space_story --mib 4096 --kills 50``.

One bookie's store in a process of its own, on a directory; in it, at ``--rate``, writers of four ledgers at
a time, of 1 to 64 KB an entry, three of which are deleted a little later, and a lone writer of 1 KB each
10 ms. The process is killed with -9 again and again and started anew. In the end every acknowledged entry of
every ledger that was not deleted is read and compared. Printed are disk taken for each live byte, bytes
written for each byte given, and the lone writer's p99 while records move and while none do.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.format import entry as entries
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.declarations.options import KIB, MIB
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.sync_mode import choose_sync_mode
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.primitives.background_rate import p99

from .kit import KEY, Adder, from_device, record

SIZES = (1000, 4000, 16_000, 64_000)
LONE = 1 << 40
"""Ids of the lone writer's ledgers, one a start."""
WINDOW = 64
OPTIONS = replace(BookieOptions(), free_bytes_min=64 * MIB, compaction_s=2.0)


def options_of(mib: int) -> BookieOptions:
    """Of a small story: small files, else what is made ahead is all that there is."""
    if mib >= 512:
        return OPTIONS
    small = replace(OPTIONS, journal_file_bytes=1 * MIB, journal_file_bytes_min=1 * MIB)
    return replace(
        small,
        gather_bytes=256 * KIB,
        free_bytes_min=4 * MIB,
        compaction_s=0.3,
        checkpoint_s=0.3,
        checkpoint_bytes=1 * MIB,
    )


def entry_of(ledger: int, number: int) -> bytes:
    """Each is another one, so that a wrong one shows."""
    size = 1000 if ledger >= LONE else SIZES[ledger % 4]
    said = b"ledger %d entry %d " % (ledger, number)
    return record(ledger, number, (said * (size // len(said) + 1))[:size])


@dataclass(eq=False)
class Stream(Adder):
    """A writer that keeps nothing of what it has sent."""

    given: int = 0

    async def put(self) -> None:
        """The next entry, when there is room for it."""
        self.send(entry_of(self.ledger, self.given))
        self.sent.clear()
        self.given += 1
        await self.acked_to(self.given - WINDOW)

    async def acked_to(self, count: int) -> None:
        """So many are acknowledged."""
        while self.acked < count:
            assert not self.refused, self.refused
            await self.changed.wait()


def say(**event: Any) -> None:
    """To the story."""
    print(json.dumps(event), flush=True)


def written_bytes() -> int:
    """What this process had the device write."""
    said = Path("/proc/self/io").read_text()
    return int(dict(line.split(": ") for line in said.splitlines())["write_bytes"])


async def write(
    store: BookieStore, first: int, generation_bytes: int, *, rate_bytes_per_s: float
) -> None:
    """Ledgers four at a time, from id ``first`` on; three of each four are deleted, one four later."""
    doomed: list[int] = []
    paid_at = trio.current_time()
    while True:
        streams = [Stream(store, first + n) for n in range(4)]
        say(open=[stream.ledger for stream in streams])
        size = 0
        while size < generation_bytes:
            for stream in streams:
                for _ in range(SIZES[3] // SIZES[stream.ledger % 4]):
                    await stream.put()
                    size += SIZES[stream.ledger % 4]
                paid_at = max(paid_at, trio.current_time() - 1.0) + SIZES[3] / rate_bytes_per_s
                await trio.sleep_until(paid_at)
            acked = {stream.ledger: stream.acked for stream in streams}
            say(acked=acked, io=written_bytes())
        for stream in streams:
            await stream.acked_to(stream.given)
        say(acked={stream.ledger: stream.acked for stream in streams})
        if doomed:
            say(doomed=doomed)
            for ledger in doomed:
                await store.delete_ledger(ledger)
        doomed = [first, first + 1, first + 2]
        first += 4


async def write_alone(store: BookieStore, ledger: int) -> None:
    """1 KB each 10 ms, each waited for; how long each took, by whether records move meanwhile."""
    stream = Stream(store, ledger)
    say(open=[ledger])
    while True:
        took: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(10):
            moving = bool(store._journal.pinned_files)
            begun = trio.current_time()
            await stream.put()
            await stream.acked_to(stream.given)
            took[moving].append(trio.current_time() - begun)
            await trio.sleep(0.01)
        times = {"still": took[False], "moving": took[True]}
        say(
            acked={ledger: stream.acked}, **times, io=written_bytes(), moved=store.stats.moved_bytes
        )


async def check(store: BookieStore, live: dict[int, int]) -> int:
    """Read what was acknowledged; how many bytes."""
    size = 0
    for ledger_id, count in live.items():
        if not count:
            continue  # it was killed before the first one: nobody was told that it is there
        ledger = store.ledgers.get_known(ledger_id, KEY)
        first, extent = 0, None
        while first < count:
            found = store.collect(ledger, first, count - 1, MIB, extent)
            for part in found.parts:
                for one in entries.records(part):
                    assert one.entry == first, f"ledger {ledger_id}: {one.entry} is not {first}"
                    assert bytes(one.record) == entry_of(ledger_id, first), (ledger_id, first)
                    size += len(one.record)
                    first += 1
            if not found.parts:
                assert found.device_extent is not None, f"ledger {ledger_id}: entry {first} is gone"
                extent = await from_device(store, found.device_extent)
            await trio.lowlevel.checkpoint()
    return size


async def settle(store: BookieStore, live: dict[int, int], dead: list[int], rest_s: float) -> None:
    """Delete what was to be deleted, wait for the room, look at all that is to be there."""
    for ledger in dead:
        await store.delete_ledger(ledger)
    await store.checkpoint()
    until = trio.current_time() + rest_s
    last = -1
    while trio.current_time() < until or store.stored_bytes != last or store._journal.pinned_files:
        last = store.stored_bytes
        await trio.sleep(2.5 * store.options.compaction_s)
    assert not store.ledgers.limbo_below
    size = await check(store, live)
    say(checked=size, info=store.info(), io=written_bytes(), moved=store.stats.moved_bytes)


async def bookie(path: Path, mib: int, rate: float, orders: dict[str, Any]) -> None:
    """One life of it."""
    disk = DirectoryDisk(path)
    found = await choose_sync_mode(disk.path)
    disk.sync_mode = found.mode
    host = real_host("b1", disks={"journal": disk, "index": disk})
    store = await open_store(host, options_of(mib), bookie_id="b1")
    assert not store.ledgers.limbo_below, store.health_conditions()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        say(serves=True)
        if "live" in orders:
            live = {int(ledger): count for ledger, count in orders["live"].items()}
            await settle(store, live, orders["dead"], orders["rest_s"])
            nursery.cancel_scope.cancel()
            return
        for ledger in orders["dead"]:
            await store.delete_ledger(ledger)
        writing = partial(write, rate_bytes_per_s=rate * MIB)
        nursery.start_soon(writing, store, orders["first"], orders["generation_bytes"])
        nursery.start_soon(write_alone, store, LONE + orders["first"])


@dataclass
class Story:
    """What the writers were told, over all lives of the bookie."""

    acked: dict[int, int] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    """Deleted, or their deletion was asked for."""
    written: int = 0
    moved: int = 0
    """Of that into cold files."""
    still: list[float] = field(default_factory=list)
    moving: list[float] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    _io: int = 0
    _moved: int = 0

    @property
    def given_bytes(self) -> int:
        """Of all acknowledged records."""
        return sum(count * len(entry_of(ledger, 0)) for ledger, count in self.acked.items())

    def hear(self, line: str) -> None:
        """One event."""
        event = json.loads(line)
        for ledger in event.get("open", ()):
            self.acked[ledger] = 0
        self.acked |= {int(ledger): count for ledger, count in event.get("acked", {}).items()}
        self.dead |= set(event.get("doomed", ()))
        self.still += event.get("still", ())
        self.moving += event.get("moving", ())
        self._io = event.get("io", self._io)
        self._moved = event.get("moved", self._moved)
        self.said |= event

    def ended(self) -> None:
        """A life is over."""
        self.written += self._io
        self.moved += self._moved
        self._io = self._moved = 0


def life(path: Path, mib: int, rate: float, orders: dict[str, Any]) -> "subprocess.Popen[str]":
    """Start it."""
    command = [sys.executable, "-m", "tests.bookie.space_story", "--child", json.dumps(orders)]
    command += ["--mib", str(mib), "--rate", str(rate), "--path", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines(process: "subprocess.Popen[str]") -> Iterator[str]:
    """Whole lines that it says, until it ends."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):
            yield line


def taken_bytes(path: Path) -> int:
    """What the directory takes of the device."""
    return sum(each.stat().st_blocks * 512 for each in path.rglob("*") if each.is_file())


def tell(
    path: Path, mib: int, kills: int, *, rest_s: float, rate: float = 1e6, seed: int = 0
) -> dict[str, Any]:
    """The whole of it; figures."""
    draw = random.Random(seed)
    story = Story()
    generation_bytes = max(MIB // 2, mib * MIB // 16)
    for number in range(kills + 1):
        used = [ledger for ledger in story.acked if ledger < LONE]
        # Of an interrupted four, too, three go.
        story.dead |= {ledger for ledger in used if ledger % 4 != 3}
        orders = {
            "first": max(used, default=-1) // 4 * 4 + 4,
            "generation_bytes": generation_bytes,
            "dead": sorted(story.dead),
        }
        wanted = mib * MIB * (number + draw.random() / 2 + 0.5) / (kills + 1)
        process = life(path, mib, rate, orders)
        for line in lines(process):
            story.hear(line)
            if story.given_bytes >= wanted:
                process.kill()  # -9
        process.wait()
        story.ended()
        assert story.given_bytes >= wanted, "it ended by itself"
    story.dead |= {ledger for ledger in story.acked if ledger < LONE and ledger % 4 != 3}
    live = {ledger: count for ledger, count in story.acked.items() if ledger not in story.dead}
    given = story.given_bytes
    begun = time.monotonic()
    process = life(path, mib, rate, {"live": live, "dead": sorted(story.dead), "rest_s": rest_s})
    for line in lines(process):
        story.hear(line)
    assert process.wait() == 0, "it did not settle"
    story.ended()
    checked, info = story.said["checked"], story.said["info"]
    return {
        "given_mib": given // MIB,
        "live_mib": round(checked / MIB, 1),
        "kills": kills + 1,
        "taken_for_a_live_byte": round(taken_bytes(path) / checked, 3),
        "files_for_a_live_byte": round(info["stored_bytes"] / checked, 3),
        "written_for_a_given_byte": round(story.written / given, 3),
        "moved_for_a_given_byte": round(story.moved / given, 3),
        "settled_s": round(time.monotonic() - begun, 1),
        "p99_still_ms": round(p99(story.still) * 1000, 2) if story.still else None,
        "p99_moving_ms": round(p99(story.moving) * 1000, 2) if story.moving else None,
        "records_still": len(story.still),
        "records_moving": len(story.moving),
    }


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument(
        "--rate", type=float, default=8.0, help="MiB a second: 10 s between two kills"
    )
    parser.add_argument("--rest", type=float, default=70.0, help="seconds: a long file is cut")
    parser.add_argument("--path", type=Path, default=None)
    parser.add_argument("--child", default="")
    asked = parser.parse_args()
    if asked.child:
        trio.run(bookie, asked.path, asked.mib, asked.rate, json.loads(asked.child))
        return
    with tempfile.TemporaryDirectory() as directory:
        path = asked.path or Path(directory)
        found = tell(path, asked.mib, asked.kills, rest_s=asked.rest, rate=asked.rate)
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
