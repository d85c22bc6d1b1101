"""Seeds of a log that pipelines use: links, truncation and purge, named positions, sealing (G6, G8).

Cluster, faults and oracles are those of `seed.py`. The clients differ, and there is an additional checker.
"""

from dataclasses import replace

import trio

from ....log.format.dlsn import DLSN
from ....log.namespace import Namespace
from ....runtime.interfaces.errors import EndOfStream, LogTruncated
from ....runtime.interfaces.host import Host
from ...verify.checks.history_check import Violation, check_log
from ...verify.workloads import pipeline, workload
from ...verify.workloads.pipeline import PipelineHistory
from .seed import CHAOS_S, SeedRun

PIPE = "pipe"
PURGE_GRACES = 4
"""Number of grace periods after the last truncation until the rest is checked, so that the purge is done."""
SESSION_RECORDS_MAX = 40
"""Short sessions, so that links sometimes find the log without a writer."""


class PipelineRun(SeedRun):
    """One seed with pipelines."""

    def __init__(self, seed: int, *, chaos_s: float = CHAOS_S, keep_trace: bool = False) -> None:
        super().__init__(seed, chaos_s=chaos_s, keep_trace=keep_trace)
        self.pipeline_history = PipelineHistory(self.history)
        self.found_versions = 0
        """Number of versions that the log contains at the end."""
        self.purged_segments = 0

    # --- clients ----------------------------------------------------------------------------------

    async def _write(self, namespace: Namespace, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            if host.name == self.cluster.clients[0]:
                rates = replace(self.rates, session_records_max=SESSION_RECORDS_MAX)
                nursery.start_soon(
                    workload.write_sessions, namespace, PIPE, self.history, host.random, rates
                )
            else:
                nursery.start_soon(
                    pipeline.drive, namespace, PIPE, self.pipeline_history, host.random
                )

    async def _read(self, namespace: Namespace, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipeline.drive, namespace, PIPE, self.pipeline_history, host.random)
            nursery.start_soon(pipeline.collect, namespace, PIPE, host.random)

    async def _measure(self, namespace: Namespace, host: Host) -> None:
        await pipeline.archive(namespace, PIPE, self.pipeline_history, host.random)

    # --- the end ----------------------------------------------------------------------------------

    async def _prove(self, namespace: Namespace, host: Host) -> None:
        """Write, link and seal, read the rest, and check the log after its last change."""
        log = namespace.open_log(PIPE)
        try:
            await workload.prove_alive(namespace, PIPE, self.history, host.random)
            for name in self.cluster.clients[:-1]:  # no other client changes the log any more
                self.cluster.machines[name].kill()
            linked = await log.linked_version(pipeline.APP)
            version = 0 if linked is None else linked.version + 1
            await pipeline.link_version(
                log, version, self.pipeline_history, host.random, takeover=True
            )
            await log.seal(takeover=True)
        except EndOfStream:
            self.simulation.record_event("it was sealed by an earlier try")
        await pipeline.read_rest(namespace, PIPE, self.pipeline_history)
        await self._check_end(namespace)

    async def _settle(self, namespace: Namespace) -> None:
        """Do nothing."""

    async def _conclude(self) -> None:
        self.simulation.record_event(
            "final", len(self.pipeline_history.archived), self.history.acked_count
        )
        # A link may add txids below the log's last one, because the log does not require increasing ones.
        report = check_log(
            self.history, self.pipeline_history.archived_records(), ordered_txids=False
        )
        self.result.reports.append(report)
        self.found_versions = pipeline.check_batches(self.pipeline_history)

    async def _check_end(self, namespace: Namespace) -> None:
        """Check that a sealed log rejects writers, and that reads respect a truncation point."""
        log = namespace.open_log(PIPE)
        try:
            await log.open_writer(takeover=True)
        except EndOfStream:
            pass
        else:
            raise Violation("a sealed log accepted a writer")
        records = self.pipeline_history.archived_records()
        first_sequence_id = (await log.snapshot()).first_sequence_id
        kept_records = records[(first_sequence_id + len(records)) // 2 :]
        truncation_point = DLSN(*kept_records[0].position)
        if await log.truncate(truncation_point) != truncation_point:
            raise Violation(
                f"G6: the log was not truncated from {first_sequence_id} to {truncation_point} as requested"
            )
        await trio.sleep(PURGE_GRACES * self.shape.purge_grace_s)
        snapshot = await log.snapshot()
        self.purged_segments = (await log.describe()).state.first_segment - 1
        if snapshot.end_sequence_id != len(records):
            raise Violation(
                f"G1 gap: the log has {snapshot.end_sequence_id} records, {len(records)} were read"
            )
        if snapshot.first_sequence_id != kept_records[0].sequence_id:
            raise Violation(
                f"G6: truncated to {truncation_point}, sequence id {kept_records[0].sequence_id}, and "
                "the log begins at"
                f" {snapshot.first_dlsn}, {snapshot.first_sequence_id}"
            )
        ranges = [segment.range() for segment in snapshot.segments]
        try:
            async with log.open_ranges(ranges) as reader:
                range_records = sum([columns.count async for columns in reader])
        except LogTruncated as error:
            raise Violation(
                f"G6: read failed although the truncation had ended ({error})"
            ) from error
        if range_records != snapshot.records:
            raise Violation(
                f"G5: ranges have {range_records} records, the log has {snapshot.records}"
            )
