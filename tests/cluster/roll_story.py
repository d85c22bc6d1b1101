"""Rolls under tail readers on real processes: ``python -m tests.cluster.roll_story --minutes 10``.

Three metadata nodes and three bookies; a writer of 300 records of 1 KB a second in a process of its own, in
segments of 1 MiB, so that one ends each three or four seconds; eight readers at the log's end, in two
processes. Each reads each record once, in order. Printed is the longest time between two records, as
acknowledged to the writer and as seen by readers, apart for those between which a segment ends: a roll's
pause is what is longer than within a segment.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.cluster.local.child_processes import environment
from tests.cluster.story import Cluster

LOG = "rolling"
GOAL_MS = 50.0
END_S = 60.0
"""What a reader waits for the next record at most."""


@dataclass
class Gaps:
    """The longest times between two records in a row, ms."""

    over_rolls: list[float] = field(default_factory=list)
    """Where a segment ends between the two; each of them."""
    within_ms: float = 0.0
    """Within one segment: what the machine does to everybody."""
    records: int = 0
    _segment: int = 0
    _at: float = 0.0

    def saw(self, segment: int) -> None:
        """A record of this segment, now."""
        now = time.monotonic()
        gap_ms = (now - self._at) * 1000
        if self.records and segment != self._segment:
            self.over_rolls.append(gap_ms)
        elif self.records:
            self.within_ms = max(self.within_ms, gap_ms)
        self._segment, self._at = segment, now
        self.records += 1

    def said(self) -> dict[str, Any]:
        """For JSON."""
        over = sorted(self.over_rolls)
        return {
            "records": self.records,
            "rolls": len(over),
            "roll_ms_max": round(over[-1], 1) if over else 0.0,
            "roll_ms_p50": round(over[len(over) // 2], 1) if over else 0.0,
            "within_ms_max": round(self.within_ms, 1),
        }


async def write(records: int, rate: int, segment_bytes: int, payload_bytes: int) -> dict[str, Any]:
    """One record after the other, evenly; late ones are not left out."""
    gaps = Gaps()
    payload = bytes(payload_bytes)
    sender, receiver = trio.open_memory_channel[Any](100_000)
    async with open_namespace(os.environ["DLOG_URI"]) as namespace:
        log = namespace.open_log(LOG, config={"segment_bytes_max": segment_bytes})
        async with log.open_writer() as writer, trio.open_nursery() as nursery:

            async def acknowledged() -> None:
                async for pending in receiver:
                    gaps.saw((await pending).segment)

            nursery.start_soon(acknowledged)
            began = trio.current_time()
            for txid in range(records):
                await trio.sleep_until(began + txid / rate)
                await sender.send(await writer.submit(LogRecord(txid, payload)))
            sender.close()
    return gaps.said()


async def read(records: int, readers: int) -> list[dict[str, Any]]:
    """Raises where a record is missing, or comes twice."""
    found = [Gaps() for _ in range(readers)]
    async with open_namespace(os.environ["DLOG_URI"]) as namespace, trio.open_nursery() as nursery:

        async def tail(gaps: Gaps) -> None:
            async with namespace.open_log(LOG).open_reader() as reader:
                for number in range(records):
                    record = await reader.read_next(wait_s=END_S)
                    assert record is not None, f"record {number} did not come within {END_S:g} s"
                    assert (record.txid, record.sequence_id) == (number, number)
                    gaps.saw(record.dlsn.segment)

        for gaps in found:
            nursery.start_soon(tail, gaps)
    return [gaps.said() for gaps in found]


def play(
    directory: Path,
    *,
    seconds: float,
    rate: int,
    readers: int,
    processes: int,
    segment_bytes: int,
    payload_bytes: int,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the writer saw, and each reader. Raises where anybody missed a record."""
    records = int(seconds * rate)
    with Cluster.planned(directory, bookies=3) as cluster:
        cluster.start()
        made = cluster.run("log", "create", LOG)
        assert made.returncode == 0, made.stderr

        def start(*arguments: object) -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.roll_story", *map(str, arguments)],
                stdout=subprocess.PIPE,
                env={**environment(), "DLOG_URI": cluster.uri},
            )

        share = readers // processes
        reading = [start("--role", "read", records, share) for _ in range(processes)]
        writing = start("--role", "write", records, rate, segment_bytes, payload_bytes)
        try:
            said = [_result(one, seconds + 4 * END_S) for one in (writing, *reading)]
        finally:
            for one in (writing, *reading):
                one.kill()
                one.wait()
    return said[0], [one for of_process in said[1:] for one in of_process]


def _result(process: "subprocess.Popen[bytes]", timeout_s: float) -> Any:
    text, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, "a process of the story failed"
    return json.loads(text)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=300, help="records a second")
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2, help="of the readers")
    parser.add_argument("--segment-bytes", type=int, default=1 << 20)
    parser.add_argument("--payload-bytes", type=int, default=1000)
    parser.add_argument("--data", type=Path, help="where the nodes keep theirs; else below /tmp")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        kind, *numbers = given.role
        numbers = list(map(int, numbers))
        role = write if kind == "write" else read
        gc.freeze()  # as docs/internals/performance.md advises who minds 30 ms
        print(json.dumps(trio.run(role, *numbers)))
        return
    if given.data:
        given.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.data) as directory:
        writer, readers = play(
            Path(directory),
            seconds=given.minutes * 60,
            rate=given.rate,
            readers=given.readers,
            processes=given.processes,
            segment_bytes=given.segment_bytes,
            payload_bytes=given.payload_bytes,
        )
    print(f"{writer['rolls']} rolls, {writer['records']} records, {len(readers)} readers")
    for name, one in [("writer", writer), *((f"reader {n}", one) for n, one in enumerate(readers))]:
        print(
            f"{name:9}  over rolls: longest {one['roll_ms_max']:7.1f} ms, median {one['roll_ms_p50']:5.1f};"
            f"  within segments: longest {one['within_ms_max']:7.1f} ms"
        )
    longest = max(one["roll_ms_max"] for one in (writer, *readers))
    print(f"goal: under {GOAL_MS:g} ms; longest: {longest:.1f} ms")


if __name__ == "__main__":
    main()
