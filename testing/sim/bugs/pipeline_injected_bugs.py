"""Injected bugs of pipeline calls. `PipelineRun` must find each of them.

    python -m distributedlog.testing.sim.bugs.pipeline_injected_bugs [SEEDS]

prints a table: bug | seeds until found | found by.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....cluster.gc import segment_purger as purging
from ....ledger.model import ledger_transactions as transactions
from ....ledger.model.stored_ledger import StoredLedger
from ....log.changes import log_truncation as truncation
from ....log.format.dlsn import DLSN
from ....log.model.log_keys import app_version_key
from ....log.model.log_state import ClosedSegmentTotals, LogState
from ....log.segments import segment_link as link
from ....log.segments import segment_purge as purge
from ....metadata.model.interface import Metadata
from ....metadata.model.transaction import Transaction
from ..workloads.pipeline import PipelineRun
from ..world.bug_injection import Patch, describe_cause, patched, print_table

_share = link.SegmentLinking._link_ops
_place = truncation._resolve_point
_last_below = purge.last_purgeable_segment
_linked = LogState.with_linked


def _whatever_was_linked(self: link.SegmentLinking, state: LogState, *rest: Any) -> Transaction:
    """The application's version key is put without a condition on its earlier value."""
    transaction = _share(self, state, *rest)
    key = app_version_key(self._log_id, self._app)
    compares = tuple(compare for compare in transaction.compares if compare.key != key)
    return Transaction(compares, transaction.operations)


def _whoever_owns_it(self: StoredLedger) -> Transaction:
    """A ledger is deleted according to metadata that was read earlier, without a condition."""
    transaction = transactions.deletion_ops(self.metadata, self.version)
    return Transaction((), transaction.operations)


def _gone_is_no_obstacle(self: StoredLedger, owner: tuple[int, int]) -> Transaction:
    """A ledger is linked according to metadata that was read earlier, without a condition."""
    transaction = transactions.link_ops(self.metadata, self.version, owner)
    return Transaction((), transaction.operations)


async def _one_too_far(*args: Any) -> tuple[DLSN, int]:
    """The truncation point is set after the requested record."""
    point, sequence_id = await _place(*args)
    return DLSN(point.segment, point.entry + 1, 0), sequence_id + 1


async def _and_the_one_with_the_point(metadata: Metadata, state: LogState) -> int:
    """The segment with the truncation point is considered a segment before it."""
    last = await _last_below(metadata, state)
    point = state.truncated_to.segment
    return point if state.first_segment <= point < state.first_open_segment else last


def _numbers_start_anew(self: LogState, totals: ClosedSegmentTotals) -> LogState:
    """Linked records do not count in the sequence IDs after them."""
    return replace(_linked(self, totals), next_sequence_id=self.next_sequence_id)


def _half_of_it(
    self: link.SegmentLinking, log_lock: Any, linkable: Sequence[Any], stored_version: Any
) -> Any:
    """A link with several segments omits the last one."""
    return _link(self, log_lock, linkable[:1], stored_version)


_link = link.SegmentLinking._link

INJECTED_BUGS: dict[str, tuple[Patch, ...]] = {
    "a version is linked whatever was linked (H14)": (
        (link.SegmentLinking, "_link_ops", _whatever_was_linked),
    ),
    "an unlinked ledger is deleted unconditionally (H13)": (
        (StoredLedger, "delete_ops", _whoever_owns_it),
    ),
    "a deleted ledger is linked (H13)": ((StoredLedger, "link_ops", _gone_is_no_obstacle),),
    "truncated one entry too far (G6)": ((truncation, "_resolve_point", _one_too_far),),
    "the purge takes the segment of the point (G6)": (
        (purge, "last_purgeable_segment", _and_the_one_with_the_point),
        (purging, "last_purgeable_segment", _and_the_one_with_the_point),
    ),
    "sequence ids go on without what was linked (G1)": (
        (LogState, "with_linked", _numbers_start_anew),
    ),
    "a link leaves its last segment out (G8)": ((link.SegmentLinking, "_link", _half_of_it),),
}


def seeds_until_found(name: str, seeds: range) -> tuple[int, str] | None:
    """Return the number of seeds that find a bug and the failure, or None if it survives."""
    with patched(INJECTED_BUGS[name]):
        for count, seed in enumerate(seeds, 1):
            failures = PipelineRun(seed).run().failures
            if failures:
                return count, describe_cause(failures)
    return None


def main() -> int:
    """Print the table. Return 1 if a bug survived, otherwise 0."""
    logging.disable(logging.CRITICAL)
    budget = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    return print_table(INJECTED_BUGS, lambda name: seeds_until_found(name, range(budget)), budget)


if __name__ == "__main__":
    sys.exit(main())
