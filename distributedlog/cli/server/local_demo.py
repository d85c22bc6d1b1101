"""`dlog local --demo`: a cluster, a bookie that is killed, and every record read back."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from ..framework.errors import FAILED, ExitWithCode
from ..framework.options import Settings
from ..framework.output import emit, prose, size

RECORDS = 20_000
RECORD_BYTES = 200
LOG = "demo"
BATCH = 200
WHAT_AT = len("read back   0.070 s  ")
"""The column of what a step did: what does not fit its line goes on below."""


async def run_demo(settings: Settings, options: dict[str, Any], processes: bool) -> None:
    """Run it. The bookie that is killed is a process of its own; with ``processes`` every node is.

    Raises `ExitWithCode` (exit code 1) when a record is missing or out of place.
    """
    from ... import open_namespace
    from ...cluster.local.local_cluster import local_cluster

    steps = _Steps(settings)
    killed = "bookie2" if options["bookies"] > 1 else "bookie1"
    written, read = hashlib.sha256(), hashlib.sha256()
    # Its own death is part of the play.
    options = {**options, "on_death": lambda name, why: None}
    with steps.step("start") as note:
        how = {"processes": True} if processes else {"in_process": True, "apart": (killed,)}
        entered = local_cluster(**options, **how)
        cluster = await entered.__aenter__()
        kinds = [node.kind for node in cluster.nodes]
        note(
            f"{kinds.count('metadata')} metadata nodes and {kinds.count('bookie')} bookies,"
            f" {'each' if processes else killed} a process of its own, on {cluster.data or 'memory'}"
        )
    try:
        async with open_namespace(cluster.uri) as namespace:
            await namespace.create_log(LOG)
            log = namespace.open_log(LOG)
            async with log.open_writer() as writer:
                with steps.step("write") as note:
                    await _write(writer, 0, written)
                    note(f"{RECORDS:,} records, each on the disks of two bookies before it counted")
                with steps.step("kill") as note:
                    node = next(node for node in cluster.nodes if node.name == killed)
                    cluster.kill(killed)
                    note(f"kill -9 of {killed} (pid {node.pid}): no goodbye, nothing flushed")
                with steps.step("write on") as note:
                    await _write(writer, RECORDS, written)
                    note(f"{RECORDS:,} records more, with the bookies that are left")
            with steps.step("read back") as note:
                count, last = await _read_back(log, read)
                note(
                    f"{count:,} of {2 * RECORDS:,} records, in order,"
                    f" {size(count * (RECORD_BYTES // 9 * 9))}, last at {last}"
                )
    finally:
        with steps.step("stop") as note:
            await entered.__aexit__(None, None, None)
            note("every process has ended")
    same = count == 2 * RECORDS and written.digest() == read.digest()
    if settings.json:
        emit({"ok": same, "records": count, "digest": read.hexdigest(), "steps": steps.taken})
    else:
        verdict = "the same bytes in the same order" if same else "NOT what was written"
        prose(f"sha256 of what was written and of what was read: {verdict}")
    if not same:
        raise ExitWithCode(FAILED)


async def _write(writer: Any, first: int, digest: Any) -> None:
    """Write `RECORDS` records, in batches, and add their payloads to the digest."""
    from ... import LogRecord

    for start in range(first, first + RECORDS, BATCH):
        batch = []
        for number in range(start, start + BATCH):
            payload = b"%09d" % number * (RECORD_BYTES // 9)
            digest.update(payload)
            batch.append(LogRecord(txid=number, payload=payload))
        await writer.submit_bulk(batch)
    await writer.commit()


async def _read_back(log: Any, digest: Any) -> tuple[int, Any]:
    """Read to the end into the digest; return the number of records and the last DLSN."""
    count, last = 0, None
    async with log.open_reader(to="end") as reader:
        async for record in reader:
            digest.update(record.payload)
            count += 1
            assert last is None or record.dlsn > last, "G1: positions only grow"
            last = record.dlsn
    return count, last


class _Steps:
    """Prints each step with what it took."""

    def __init__(self, settings: Settings) -> None:
        self._quiet = settings.quiet or settings.json
        self.taken: list[dict[str, Any]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[Any]:
        said: list[str] = []
        before = perf_counter()
        yield said.append
        seconds = perf_counter() - before
        self.taken.append({"step": name, "seconds": round(seconds, 3), "what": "; ".join(said)})
        if not self._quiet:
            prose(f"{name:<10} {seconds:6.3f} s  {'; '.join(said)}", hang=WHAT_AT)
            sys.stdout.flush()
