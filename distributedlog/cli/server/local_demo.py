"""`dlog local --demo`: run a cluster, kill a bookie, and read every record back."""

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
TEXT_COLUMN = len("read back   0.070 s  ")
"""Column of the result of a step. Longer results continue there on the next line."""


async def run_demo(settings: Settings, options: dict[str, Any], processes: bool) -> None:
    """Run the demonstration.

    The bookie that is killed runs in its own process. With ``processes``, every node does.

    Raises:
        ExitWithCode: With code 1, if a record is missing or out of order.
    """
    from ... import open_namespace
    from ...cluster.local.local_cluster import local_cluster

    steps = _DemoSteps(settings)
    killed_node = "bookie2" if options["bookies"] > 1 else "bookie1"
    written_digest, read_digest = hashlib.sha256(), hashlib.sha256()
    # The death of this bookie is expected and not reported.
    options = {**options, "on_death": lambda name, why: None}
    with steps.step("start") as note:
        process_options = (
            {"processes": True}
            if processes
            else {"in_process": True, "separate_nodes": (killed_node,)}
        )
        cluster_context = local_cluster(**options, **process_options)
        cluster = await cluster_context.__aenter__()
        kinds = [node.kind for node in cluster.nodes]
        note(
            f"{kinds.count('metadata')} metadata nodes and {kinds.count('bookie')} bookies,"
            f" {'each' if processes else killed_node} in its own process, on {cluster.data or 'memory'}"
        )
    try:
        async with open_namespace(cluster.uri) as namespace:
            await namespace.create_log(LOG)
            log = namespace.open_log(LOG)
            async with log.open_writer() as writer:
                with steps.step("write") as note:
                    await _write(writer, 0, written_digest)
                    note(f"{RECORDS:,} records, each acknowledged after two bookies synced it")
                with steps.step("kill") as note:
                    node = next(node for node in cluster.nodes if node.name == killed_node)
                    cluster.kill(killed_node)
                    note(f"kill -9 of {killed_node} (pid {node.pid}), without a shutdown or flush")
                with steps.step("write on") as note:
                    await _write(writer, RECORDS, written_digest)
                    note(f"{RECORDS:,} more records, to the remaining bookies")
            with steps.step("read back") as note:
                count, last = await _read_back(log, read_digest)
                note(
                    f"{count:,} of {2 * RECORDS:,} records, in order,"
                    f" {size(count * (RECORD_BYTES // 9 * 9))}, last at {last}"
                )
    finally:
        with steps.step("stop") as note:
            await cluster_context.__aexit__(None, None, None)
            note("every process has ended")
    is_equal = written_digest.digest() == read_digest.digest()
    _print_result(settings, is_equal, count, read_digest.hexdigest(), steps)
    if not is_equal:
        raise ExitWithCode(FAILED)


def _print_result(
    settings: Settings, is_equal: bool, count: int, read_digest: str, steps: "_DemoSteps"
) -> None:
    """Print whether the records that were read are equal to those written."""
    if settings.json:
        emit(
            {
                "ok": is_equal,
                "records": count,
                "digest": read_digest,
                "steps": steps.results,
            }
        )
    else:
        verdict = "identical" if is_equal else "DIFFERENT"
        prose(f"SHA-256 of the written and the read records: {verdict}")


async def _write(writer: Any, first: int, digest: Any) -> None:
    """Write `RECORDS` records in batches, and add their payloads to the digest."""
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
            assert last is None or record.dlsn > last, "G1: positions strictly increase"
            last = record.dlsn
    return count, last


class _DemoSteps:
    """Prints each step with its duration."""

    def __init__(self, settings: Settings) -> None:
        self._quiet = settings.quiet or settings.json
        self.results: list[dict[str, Any]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[Any]:
        notes: list[str] = []
        started_at = perf_counter()
        yield notes.append
        seconds = perf_counter() - started_at
        self.results.append({"step": name, "seconds": round(seconds, 3), "what": "; ".join(notes)})
        if not self._quiet:
            prose(f"{name:<10} {seconds:6.3f} s  {'; '.join(notes)}", indent=TEXT_COLUMN)
            sys.stdout.flush()
