"""Bugs that seeds of the whole cluster are to find (`testing/sim/workloads/seed.py`)."""

import math
from typing import Any

import trio

from distributedlog.bookie.format import entry as entries
from distributedlog.cluster.repair.copier import Copier
from distributedlog.cluster.repair.ledger_audit import LedgerAudit
from distributedlog.cluster.repair.limbo_repair import LimboRepair
from distributedlog.ledger.ledger_client import LedgerClient
from distributedlog.ledger.model import ledger_ids as ids
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata
from distributedlog.ledger.model.striping import Striping
from distributedlog.ledger.recovery.quorum_coverage import QuorumCoverage
from distributedlog.ledger.write.ensemble_monitor import EnsembleMonitor
from distributedlog.ledger.write.pending_adds import PendingAdds
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.writer_log_state import WriterLogState
from distributedlog.log.write.segment_roller import SegmentRoller
from distributedlog.log.write.send_queue import SendQueue
from distributedlog.metadata.model.transaction import Transaction
from distributedlog.metadata.raft.leader_state import LeaderState
from distributedlog.metadata.raft.raft import Raft
from distributedlog.metadata.raft.ready import HardState
from distributedlog.metadata.replica.replica import RaftReplica
from distributedlog.metadata.state.request_dedup import RequestDedup
from distributedlog.metadata.state.watch_history import WatchHistory
from distributedlog.metadata.storage.raft_storage import RaftStorage
from distributedlog.runtime.interfaces.errors import WriteFailed
from distributedlog.runtime.schedule.work_failures import WorkFailures
from tests.sim.planting import bug, patch


@bug("cluster")
def one_ack_confirms() -> None:
    """G3: the LAC runs ahead of the ack quorum."""
    original = PendingAdds.__init__

    def one(self: Any, striping: Any, *args: Any, **kwargs: Any) -> None:
        one_ack = Striping(striping.ensemble_size, striping.write_quorum, 1)
        original(self, one_ack, *args, **kwargs)

    patch(PendingAdds, "__init__", one)


@bug("cluster")
def a_takeover_does_not_fence() -> None:
    """D1: neither the fence nor the recovery's reads fence."""
    from distributedlog.bookie.client import bookie_client

    async def fence(self: Any, ledger: int, key: bytes, timeout_s: float) -> Any:
        return await self.read_lac(ledger, key, timeout_s)

    original = bookie_client.BookieClient.read

    async def read(self: Any, *args: Any, fence: bool = False, **kwargs: Any) -> Any:
        return await original(self, *args, **kwargs)

    patch(bookie_client.BookieClient, "fence", fence)
    patch(bookie_client.BookieClient, "read", read)


@bug("cluster", directed="testing/sim/ledger/ledger_injected_bugs.py")
def recovery_trusts_silence() -> None:
    """Inv. 16, G3: who does not answer does not have it."""
    from distributedlog.testing.sim.ledger.ledger_injected_bugs import _silence

    patch(QuorumCoverage, "absence", _silence)


@bug("cluster", directed="testing/sim/ledger/ledger_injected_bugs.py")
def ensemble_change_acknowledged_before_the_metadata() -> None:
    """D4: acks on the new ensemble count before the store has it."""

    async def propose(self: Any, round_: Any) -> None:
        change = self._change
        version = round_.version
        proposed = round_.proposed
        before = change.metadata
        self._decided(version + 1)
        try:
            await self._store.transact(transactions.change_ops(before, proposed, version))
        except Exception:
            return

    patch(EnsembleMonitor, "_propose", propose)


@bug("cluster", directed="testing/sim/ledger/ledger_injected_bugs.py")
def a_ledger_is_closed_without_compare_and_set() -> None:
    """Inv. 19: a writer closes over a recovery, or the reverse."""
    original = transactions.close_ops

    def closing_share(*args: Any, **kwargs: Any) -> Transaction:
        return Transaction((), original(*args, **kwargs).operations)

    patch(transactions, "close_ops", closing_share)


@bug("cluster")
def the_epoch_is_not_looked_at() -> None:
    """H12: on a conflict a fenced writer takes the new state for its own."""

    def take(self: Any, stored: Any) -> None:
        self.state, self.version = LogState.decode(stored.value), stored.version

    patch(WriterLogState, "_update", take)


@bug("cluster")
def a_roll_sends_to_the_next_segment_early() -> None:
    """H11: the next segment gets entries while this one's tail is in flight."""
    original = SegmentRoller.prepare_send

    def look(self: Any, *, drained: bool) -> None:
        original(self, drained=True)

    patch(SegmentRoller, "prepare_send", look)


@bug("cluster")
def a_failed_segment_is_sent_again_whole() -> None:
    """G7: after an error what the old segment kept is sent to the next one, too."""
    original = SegmentRoller._replace_current

    async def replace(self: Any) -> None:
        confirmed, self._on_confirmed = self._on_confirmed, lambda *args: None
        try:
            await original(self)
        finally:
            self._on_confirmed = confirmed

    patch(SegmentRoller, "_replace_current", replace)


@bug("cluster")
def what_was_in_flight_is_not_sent_again() -> None:
    """G1: after an error the writer goes on with the next record: a hole in its order."""

    def take_back(self: Any) -> None:
        while self._in_flight:
            batch = self._in_flight.popleft()
            batch.finish(WriteFailed("given up"))

    patch(SendQueue, "return_to_queue", take_back)


@bug("cluster")
def a_retried_request_is_a_new_one() -> None:
    """H20: a command whose answer was lost is done twice."""

    def find(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    patch(RequestDedup, "find", find)


@bug("cluster")
def an_unknown_outcome_counts_as_not_done() -> None:
    """H20: the log's writer sends its change again without looking."""
    original = WriterLogState._change

    async def change(self: Any, apply: Any, is_done: Any, extra_ops: Any) -> None:
        self._is_current = True
        await original(self, apply, lambda state: False, extra_ops)

    patch(WriterLogState, "_change", change)


@bug("cluster", directed="testing/sim/raft/raft_injected_bugs.py")
def votes_are_not_stored() -> None:
    """M4."""
    original = RaftStorage.save

    async def save(self: Any, readies: Any) -> None:
        from dataclasses import replace

        forgetful = [
            ready
            if ready.hard_state is None
            else replace(ready, hard_state=HardState(ready.hard_state.term, ""))
            for ready in readies
        ]
        await original(self, forgetful)

    patch(RaftStorage, "save", save)


@bug("cluster", directed="testing/sim/raft/raft_injected_bugs.py")
def raft_acknowledges_from_memory() -> None:
    """A follower's acks do not wait for its disk."""
    from distributedlog.metadata.raft.raft_messages import AppendReply

    def accept(self: Any, leader_id: str, index: int, number: int) -> None:
        self._send(leader_id, AppendReply(self.term, self.node_id, True, index, 0, 0, number))

    patch(Raft, "_accept", accept)


@bug("cluster", directed="testing/sim/raft/raft_injected_bugs.py")
def reads_by_a_lone_leader() -> None:
    """H26: a leader serves reads without a quorum round."""

    def confirmed_round(self: Any) -> int:
        return int(self.round)

    patch(LeaderState, "_confirmed_round", confirmed_round)


@bug("cluster", directed="testing/sim/raft/raft_injected_bugs.py")
def a_vote_for_an_older_log() -> None:
    """Paper 5.4.1."""

    def up_to_date(self: Any, last_index: int, last_term: int) -> bool:
        return True

    patch(Raft, "_is_up_to_date", up_to_date)


@bug("cluster")
def records_of_other_bytes_are_served() -> None:
    """G5: a reader does not look at digests."""
    import xxhash

    original = entries.records

    def records(view: Any) -> Any:
        view = memoryview(bytearray(view))
        at = 0
        while len(view) - at >= entries.HEADER_BYTES:
            length = entries.HEADER.unpack_from(view, at)[1]
            if length < entries.HEADER_BYTES or at + length > len(view):
                break
            digest = xxhash.xxh3_64_intdigest(view[at + 8 : at + length])
            view[at : at + 8] = digest.to_bytes(8, "little")
            at += length
        return original(view)

    from distributedlog.cluster.repair import copier as copying
    from distributedlog.ledger.read import ledger_reader as reader
    from distributedlog.ledger.read import tail_polls as tail
    from distributedlog.ledger.recovery import recovery_driver

    for module in (reader, recovery_driver, tail, copying):
        patch(module, "records", records)


@bug("cluster", directed="tests/cluster/test_lost_bookies.py")
def copies_are_said_to_be_made_and_are_not() -> None:
    """L8, inv. 28: notes go and records are swapped, and nothing was stored."""

    async def copy(self: Any, *args: Any) -> int:
        await trio.lowlevel.checkpoint()
        return 0

    patch(Copier, "copy", copy)


@bug("cluster", directed="tests/cluster/test_limbo_healing.py")
def limbo_is_lifted_from_what_was_lost() -> None:
    """Inv. 22: the mark of a closed ledger goes before anything was looked at."""

    async def heal(self: Any, ledger_id: int) -> bool:
        found = await self._metadata.get(keys.ledger_key(ledger_id))
        if found is None or not (ledger := LedgerMetadata.decode(found.key, found.value)).closed:
            return False
        await self._limbo.lift_limbo(ledger_id, ledger.key)
        return True

    patch(LimboRepair, "repair_ledger", heal)


@bug("cluster", directed="tests/cluster/test_limbo_healing.py")
def ids_are_kept_for_ever() -> None:
    """H7: a program that has written since before a loss keeps its bookie in limbo."""
    patch(ids, "BLOCK_LIFETIME_S", math.inf)


@bug("cluster", directed="tests/ledger/test_real_bookies.py")
def nobody_leaves_who_is_in_limbo() -> None:
    """H7: what was open at a loss has a copy less until it is full, or old."""
    patch(EnsembleMonitor, "_waits_for_close", lambda self, bookie, below: False)


@bug("cluster", directed="tests/cluster/repair/test_ledger_audit.py")
def holes_that_nobody_noted_stay() -> None:
    """L8, H22b: the audit of entry lists sees nothing."""

    async def look_at(self: Any, item: Any) -> tuple[Any, ...]:
        await trio.lowlevel.checkpoint()
        return ()

    patch(LedgerAudit, "audit_ledger", look_at)


@bug("cluster")
def a_watch_skips_a_change() -> None:
    """M6: now and then a watcher is not told."""
    original = WatchHistory.after
    count = [0]

    def after(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        count[0] += 1
        if count[0] % 20 == 0 and isinstance(found, list) and found:
            return found[1:]
        return found

    patch(WatchHistory, "after", after)


@bug("cluster")
def a_recovered_ledger_is_cut_by_one() -> None:
    """G3: the end of a recovered ledger is taken one entry too low."""
    from dataclasses import replace

    original = LedgerClient.recover

    async def recover(self: Any, ledger_id: int) -> Any:
        closed = await original(self, ledger_id)
        if closed.last_entry is not None and closed.last_entry > 0:
            return replace(closed, last_entry=closed.last_entry - 1)
        return closed

    patch(LedgerClient, "recover", recover)


@bug("cluster")
def nobody_looks_where_a_bookie_stands() -> None:
    """H111: copies of an entry in one rack, where there is another one."""
    from distributedlog.ledger.model.bookie_registration import BookieRegistration

    patch(BookieRegistration, "where", lambda self: {})


@bug("cluster")
def an_unexpected_exception_in_background_work_ends_the_node() -> None:
    """Faults 1b: nothing contains what the work of one log raises."""
    patch(WorkFailures, "keep_running", keep_without_containing)


@bug("cluster")
def an_unexpected_exception_in_the_core_of_raft_is_contained() -> None:
    """A node goes on acknowledging after an unknown error in what must be durable first."""
    for one in CONTAINED_CORE:
        patch(*one)


async def keep_without_containing(self: Any, unit: str, run: Any, *args: Any) -> None:
    await run(*args)


def containing(run: Any) -> Any:
    async def contained(self: Any) -> None:
        while True:
            try:
                await run(self)
            except Exception:
                await trio.sleep(1.0)

    return contained


CONTAINED_CORE = [
    (RaftReplica, name, containing(getattr(RaftReplica, name)))
    for name in ("persist", "run_clock", "raise_failure")
]
