"""Full disks and restarts, on processes: what a bookie does where there is no room, and how little it takes.

    python -m tests.cluster.full_disk_story          two parts need root, for file systems of their own

1. Three bookies on file systems of 40 MB: lines are written, then each is filled to its last byte and all
   bookies are killed with -9, four times. They start again, say why they are read-only, and serve every
   line. The room is given back: without another start they take new lines.
2. A bookie of the default settings, almost empty: killed and started four times, it has grown by less than
   20 MB.
3. Three bookies on file systems of 320 MB, root again: twenty logs of 40 MB are written in turn, each read
   back whole, and the third last one is deleted. Printed are how long that took, and the longest wait of a
   write: room is given back while somebody is refused for it.
"""

import argparse
import contextlib
import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.runtime.interfaces.errors import DistributedLogError
from tests.cluster.story import Cluster
from tests.conditions import codes_of

NO_SPACE = {
    "journal_disk_low",
    "journal_file_no_space",
    "index_disk_low",
    "checkpoint_no_space",
    "reserve_missing",
}
"""Codes of a bookie that is read-only for want of space."""

MB = 1_000_000
RESTARTS = 4
FULL_STARTS = 4
GROWN_BYTES_MAX = 20 * MB
AGAIN_S = 30.0
LOG = "lines"
BOOKIES = ("bookie1", "bookie2", "bookie3")
SMALL = "[store]\njournal_file_bytes = 4194304\ngather_bytes = 1048576\nfree_bytes_min = 8388608\n"
IN_TURN = "[store]\njournal_file_bytes = 33554432\nfree_bytes_min = 33554432\n"
IN_TURN_MB = 320
LOGS, KEPT = 20, 2
LOG_RECORDS, RECORD_BYTES, BULK = 5000, 8000, 50
IN_FLIGHT = 4
Say = Callable[[str], None]


def run_full(directory: Path, *, say: Say) -> bytes:
    """The first part; what is read in the end. Raises `AssertionError` where the story does not hold."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "small.toml"
    config.write_text(SMALL)
    lines = b"".join(b"line %d %s\n" % (n, b"x" * 400) for n in range(10_000))
    with (
        file_systems([directory / name for name in BOOKIES]) as places,
        Cluster.planned(directory, bookies=3) as cluster,
    ):
        cluster.more = {name: ["--config", str(config)] for name in BOOKIES}
        cluster.start()
        _write(cluster, lines, "--create")
        for place in places:
            fill(place / "ballast")
        for _ in range(FULL_STARTS):  # each takes what the one before has given up
            cluster.kill(*BOOKIES)
            for place in places:
                fill(place / "ballast")
                assert _free(place) == 0
            cluster.start(*BOOKIES)
        say(
            f"three bookies were killed with -9 {FULL_STARTS} times, no byte free on their disks,"
            " and serve again"
        )
        found = [
            one
            for one in cluster.json("status", codes=(6,))["conditions"]
            if one["code"] in NO_SPACE
        ]
        assert len({one["parameters"]["bookie"] for one in found}) == 3, found
        say("  " + "\n  ".join(one["text"] for one in found))
        assert cluster.run("log", "read", LOG).stdout == lines
        say(f"all {len(lines):,} bytes are read back from them")
        for place in places:
            (place / "ballast").unlink()
        until = time.monotonic() + AGAIN_S
        while NO_SPACE & set(codes_of(cluster.json("status", codes=(0, 6))["conditions"])):
            assert time.monotonic() < until, f"still read-only after {AGAIN_S:g} s"
        _write(cluster, b"one more\n")
        read: bytes = cluster.run("log", "read", LOG).stdout
        assert read == lines + b"one more\n"
        say("the room is back: they take new lines, without another start")
        return read


def run_restarts(directory: Path, *, say: Say) -> int:
    """The second part; the bytes that the restarts added."""
    with Cluster.planned(directory, bookies=3) as cluster:
        cluster.start()
        _write(cluster, b"a line\n", "--create")
        before = _taken(directory / "bookie1")
        for n in range(RESTARTS):
            cluster.kill("bookie1")
            cluster.start("bookie1")
            _write(cluster, b"line %d\n" % n)
        grown = _taken(directory / "bookie1") - before
        say(
            f"an almost empty bookie takes {before / MB:.1f} MB, {RESTARTS} restarts added {grown / MB:.1f}"
        )
        assert grown <= GROWN_BYTES_MAX
        return grown


def run_in_turn(directory: Path, *, say: Say, logs: int = LOGS) -> int:
    """The third part; how many records were read back, each of which is as it was written."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "small.toml"
    config.write_text(IN_TURN)
    with (
        file_systems([directory / name for name in BOOKIES], mb=IN_TURN_MB),
        Cluster.planned(directory, bookies=3) as cluster,
    ):
        cluster.more = {name: ["--config", str(config)] for name in BOOKIES}
        cluster.start()
        begun = time.monotonic()
        read, waited_s = trio.run(_in_turn, cluster.uri, logs)
        took_s = time.monotonic() - begun
        say(f"{logs} logs in turn took {took_s:.1f} s, the longest wait was {waited_s:.1f} s")
        return read


async def _in_turn(uri: str, logs: int) -> tuple[int, float]:
    waits: list[float] = []
    kept: deque[str] = deque()
    read = 0
    async with open_namespace(uri) as namespace:
        for number in range(logs):
            name = f"log-{number}"
            await namespace.create_log(name)
            log = namespace.open_log(name)
            written = 0
            while written < LOG_RECORDS:
                try:
                    async with log.open_writer() as writer:
                        said, written = written, max(0, writer.last_txid)
                        assert written >= said, "what was acknowledged is there"
                        pending = deque[tuple[int, Any]]()
                        next_ = written
                        while next_ < LOG_RECORDS or pending:
                            while next_ < LOG_RECORDS and len(pending) < IN_FLIGHT:
                                bulk = [_record(name, next_ + n + 1) for n in range(BULK)]
                                next_ += BULK
                                pending.append((next_, await writer.submit_bulk(bulk)))
                            begun = time.monotonic()
                            upto, bulk_pending = pending.popleft()
                            await bulk_pending
                            written = upto
                            waits.append(time.monotonic() - begun)
                except DistributedLogError:  # what is unknown is looked at when it is opened again
                    await trio.sleep(0.2)
            async with log.open_reader(to="end") as reader:
                for txid in range(1, LOG_RECORDS + 1):
                    found = await reader.read_next()
                    assert found is not None
                    assert (found.txid, found.payload) == (txid, _record(name, txid).payload)
                    read += 1
            kept.append(name)
            if len(kept) > KEPT:
                await namespace.delete_log(kept.popleft())
    return read, max(waits)


def _record(name: str, txid: int) -> LogRecord:
    return LogRecord(txid=txid, payload=f"{name} record {txid}".encode().ljust(RECORD_BYTES, b"."))


def _write(cluster: Cluster, lines: bytes, *arguments: str) -> None:
    done = cluster.run("log", "write", LOG, *arguments, input=lines)
    assert done.returncode == 0, done.stderr[-2000:]


@contextlib.contextmanager
def file_systems(places: list[Path], *, mb: int = 40) -> Iterator[list[Path]]:
    """Small ones, mounted there until the end; needs root."""
    with contextlib.ExitStack() as mounts:
        for place in places:
            place.mkdir(parents=True)
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={mb}m", "none", str(place)],
                check=True,
                capture_output=True,
            )
            mounts.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
        yield places


def fill(path: Path) -> None:
    """Take the rest of the file system, to the last byte."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def _free(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _taken(place: Path) -> int:
    """What the files below take of the disk, bytes."""
    return sum(path.stat().st_blocks * 512 for path in place.rglob("*") if path.is_file())


def main() -> None:
    """Play all parts, or the second one alone without root."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if os.geteuid():
            print("not root: no file systems of their own, the second part is all")
        else:
            run_full(Path(directory) / "full", say=print)
            run_in_turn(Path(directory) / "turn", say=print)
        run_restarts(Path(directory) / "restarts", say=print)


if __name__ == "__main__":
    main()
