"""The simulator's own exam: named bugs, each put in by replacing one function, each to be found by seeds.

    python tests/sim/planted.py --all            a table: bug | layer | seeds until found | found by
    python tests/sim/planted.py --bug NAME       one bug, in this process
    python tests/sim/planted.py --list

Each bug runs in a process of its own, with the product as it is. A bug that survives its budget is a
finding about the faults that are drawn, and is listed as such. The cores have tables of their own
(sim/raft_planted.py, sim/ledger_planted.py); ``--all`` prints them too.
"""

import argparse
import gc
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import trio  # noqa: E402

from distributedlog.bookie import entry as entries  # noqa: E402
from distributedlog.bookie import opening, replay  # noqa: E402
from distributedlog.bookie.adds import Adds  # noqa: E402
from distributedlog.bookie.beginning import Beginning  # noqa: E402
from distributedlog.bookie.journal import Journal  # noqa: E402
from distributedlog.bookie.reads import Reader  # noqa: E402
from distributedlog.bookie.store import Store  # noqa: E402
from distributedlog.ledger import shares  # noqa: E402
from distributedlog.ledger.add_window import AddWindow  # noqa: E402
from distributedlog.ledger.client import LedgerClient  # noqa: E402
from distributedlog.ledger.recovery import Recovery  # noqa: E402
from distributedlog.ledger.striping import Striping  # noqa: E402
from distributedlog.ledger.writer import LedgerWriter  # noqa: E402
from distributedlog.log.keeper import SegmentKeeper  # noqa: E402
from distributedlog.log.ownership import OwnedLog  # noqa: E402
from distributedlog.log.pipeline import Pipeline  # noqa: E402
from distributedlog.log.state import LogState  # noqa: E402
from distributedlog.metadata.history import History  # noqa: E402
from distributedlog.metadata.leadership import Leadership  # noqa: E402
from distributedlog.metadata.raft import Raft  # noqa: E402
from distributedlog.metadata.ready import HardState  # noqa: E402
from distributedlog.metadata.request_ring import RequestRing  # noqa: E402
from distributedlog.metadata.storage import RaftStorage  # noqa: E402
from distributedlog.metadata.transaction import Transaction  # noqa: E402
from distributedlog.runtime import blocks  # noqa: E402
from distributedlog.runtime.errors import WriteFailed  # noqa: E402
from distributedlog.sim import ledger_planted  # noqa: E402
from distributedlog.sim.bookie_world import BookieWorld  # noqa: E402
from distributedlog.sim.seed import SeedRun  # noqa: E402

SECONDS_MAX = {"bookie": 120.0, "cluster": 400.0}
"""CPU seconds before a bug counts as surviving."""


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug."""

    name: str
    layer: str
    """Where it is looked for: ``bookie`` (one bookie's world) or ``cluster`` (the whole)."""
    plant: Callable[[], None]
    seeds: int
    directed: str = ""
    """What finds it where these seeds do not: a directed test, or the seeds of a core; else "" ."""


BUGS: dict[str, Bug] = {}


def bug(layer: str, *, seeds: int = 0, directed: str = "") -> Callable[[Callable[[], None]], None]:
    """Register the function below as a bug; its name, with spaces, is the bug's."""

    def register(plant: Callable[[], None]) -> None:
        name = plant.__name__.replace("_", " ")
        budget = seeds or (150 if layer == "bookie" else 20)
        BUGS[name] = Bug(name, layer, plant, budget, directed)

    return register


def patch(owner: Any, name: str, value: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} any more: the bug is to be planted anew"
    setattr(owner, name, value)


# --- one bookie -----------------------------------------------------------------------------------


@bug("bookie")
def acknowledge_before_the_sync() -> None:
    """G2: a commit's acks leave while its sync runs."""
    original = Journal._write
    told: dict[int, bool] = {}

    async def write_and_tell(self: Any, block: Any) -> int:
        if self._told is not None and self._offset + block.padded_length < self._limit - 65536:
            told[id(block)] = True
            self._told(block, self.number, self._offset - block.start)
        return await original(self, block)

    async def commit_one(self: Any, on_synced: Any) -> None:
        block = self._ring.take()
        shift = 0
        self._told = on_synced
        if block.padded_length:
            shift = await self._write(block)
        else:
            await trio.lowlevel.checkpoint()
        self._ring.synced(block)
        self.commits += 1
        if not told.pop(id(block), False):
            on_synced(block, self.number, shift)

    Journal._told = None  # type: ignore[attr-defined]
    patch(Journal, "_write", write_and_tell)
    patch(Journal, "_commit_one", commit_one)


@bug("bookie")
def fence_answered_before_it_is_durable() -> None:
    """Inv. 11."""
    original = Store.fence

    def fence(self: Any, ledger_id: int, key: bytes, done: Any) -> None:
        said: list[bool] = []

        def once(ledger: Any, error: Any) -> None:
            if not said:
                said.append(True)
                done(ledger, error)

        original(self, ledger_id, key, once)
        once(self._ledger(ledger_id), None)

    patch(Store, "fence", fence)


@bug("bookie")
def fence_kept_in_memory_only() -> None:
    """Inv. 12: a restarted bookie has forgotten it."""

    from distributedlog.bookie import journal_blocks
    from distributedlog.bookie.ledgers import Ledger

    original = Ledger.state_record

    def state_record(self: Any) -> bytes:
        flags = self.flags
        self.flags &= ~journal_blocks.FENCED
        try:
            return original(self)
        finally:
            self.flags = flags

    patch(Ledger, "state_record", state_record)


@bug("bookie")
def fence_not_asked_by_adds() -> None:
    """G4: adds do not look at the fence."""
    original = Store.refusal

    def refusal(self: Any, stream: Any) -> Any:
        recovery, stream.recovery = stream.recovery, True
        try:
            return original(self, stream)
        finally:
            stream.recovery = recovery

    patch(Store, "refusal", refusal)


@bug("bookie")
def page_cache_trusted_after_a_failed_sync() -> None:
    """H4: what a start finds in the cache is taken for durable and not written again."""
    original = replay.decide

    def decide(found: Any, *, from_sequence: int) -> Any:
        decision = original(found, from_sequence=from_sequence)
        durable = [*decision.durable, *decision.survivors]
        return replay.Decision(
            durable, [], decision.corrupt, decision.tail_from - 1, decision.tail_from
        )

    async def no_sync(self: Any, name: str) -> None:
        await trio.lowlevel.checkpoint()

    patch(opening, "decide", decide)
    patch(Beginning, "sync", no_sync)


@bug("bookie")
def no_digest_check_on_replay() -> None:
    """A torn or rotten block counts if its header looks right."""

    def block_at(
        file_number: int, data: memoryview, seed: int, index: int, file_offset: int
    ) -> Any:
        if len(data) - index < blocks.HEADER_BYTES:
            return None
        _, magic, _, kind, length, payload_bytes, starts, _, sequence, durable_to, number = (
            blocks.HEADER.unpack_from(data, index)
        )
        if magic != blocks.MAGIC or number != file_number:
            return None
        if length != blocks.padded(payload_bytes) or index + length > len(data):
            return None
        payload = data[index + blocks.HEADER_BYTES : index + blocks.HEADER_BYTES + payload_bytes]
        return blocks.Block(
            kind, starts, sequence, durable_to, file_number, file_offset, payload, length
        )

    patch(blocks, "block_at", block_at)


@bug("bookie")
def tail_judged_by_bytes() -> None:
    """H3: the first bad block is taken for the torn tail, whatever is known to be synced."""

    def judge(blocks_meta: Any, *, from_sequence: int, durable_floor: int) -> Any:
        expected = from_sequence
        for sequence, _ in sorted(blocks_meta):
            if sequence > expected:
                break
            expected = max(expected, sequence + 1)
        return blocks.Verdict(
            max(expected, durable_floor + 1), [], max(expected - 1, durable_floor)
        )

    patch(blocks, "judge", judge)


@bug("bookie", directed="tests/bookie/test_replay.py")
def old_blocks_behind_a_cut_tail_come_back() -> None:
    """H4: what an earlier start left behind its tail is replayed by a later one."""

    def keep_all(found: Any) -> list[Any]:
        return list(found)

    patch(replay, "_cut_by_later_starts", keep_all)


@bug("bookie")
def a_duplicate_is_acknowledged_at_once() -> None:
    """H10: the first copy is gathered and not synced."""
    original = Adds.take

    def take(self: Any, stream: Any, body: memoryview, resume: Any) -> int:
        before = self._stats.duplicates
        taken = original(self, stream, body, resume)
        if self._stats.duplicates > before:
            stream.owner.on_acked([(stream.number, stream.taken)])
        return taken

    patch(Adds, "take", take)


@bug("bookie")
def losses_do_not_lead_to_limbo() -> None:
    """Inv. 22: after corruption the bookie denies what it may have held."""

    def nothing(self: Any, index: Any) -> None:
        return

    patch(opening._Opening, "_into_limbo", nothing)


@bug("bookie")
def a_read_that_is_cut_claims_to_be_complete() -> None:
    """H9: complete_to says the whole range, whatever the byte limit left out."""
    original = Reader.collect

    def collect(
        self: Any, ledger: Any, first: int, last: int, bytes_max: int, stretch: Any = None
    ) -> Any:
        found = original(self, ledger, first, last, bytes_max, stretch)
        if found.parts:
            found.complete_to = last
            found.cold = None
        return found

    patch(Reader, "collect", collect)


@bug("bookie")
def unsynced_entries_are_acknowledged_by_the_sync_that_runs() -> None:
    """H10, the twin: what was gathered during a sync is acknowledged by it."""
    original = Store.on_synced

    def on_synced(self: Any, block: Any, file_number: int, shift: int) -> None:
        newest = self._ring.newest()
        if newest is not None and newest is not block and newest.acks:
            for stream, count in newest.acks.items():
                block.acks[stream] = max(count, block.acks.get(stream, 0))
        original(self, block, file_number, shift)

    patch(Store, "on_synced", on_synced)


@bug("bookie")
def acks_count_records_that_were_refused() -> None:
    """H1: the count runs ahead of what was gathered."""
    original = Adds.take

    def take(self: Any, stream: Any, body: memoryview, resume: Any) -> int:
        taken = original(self, stream, body, resume)
        block = self._ring.newest()
        if block is not None and stream in block.acks:
            block.acks[stream] += 1
        return taken

    patch(Adds, "take", take)


# --- the whole cluster ----------------------------------------------------------------------------


@bug("cluster")
def one_ack_confirms() -> None:
    """G3: the LAC runs ahead of the ack quorum."""
    original = AddWindow.__init__

    def one(self: Any, striping: Any, *args: Any, **kwargs: Any) -> None:
        one_ack = Striping(striping.ensemble_size, striping.write_quorum, 1)
        original(self, one_ack, *args, **kwargs)

    patch(AddWindow, "__init__", one)


@bug("cluster")
def a_takeover_does_not_fence() -> None:
    """D1: neither the fence nor the recovery's reads fence."""
    from distributedlog.bookie import client as bookie_client

    async def fence(self: Any, ledger: int, key: bytes, timeout_s: float) -> Any:
        return await self.read_lac(ledger, key, timeout_s)

    original = bookie_client.BookieClient.read

    async def read(self: Any, *args: Any, fence: bool = False, **kwargs: Any) -> Any:
        return await original(self, *args, **kwargs)

    patch(bookie_client.BookieClient, "fence", fence)
    patch(bookie_client.BookieClient, "read", read)


@bug("cluster", directed="sim/ledger_planted.py")
def recovery_trusts_silence() -> None:
    """Inv. 16, G3: who does not answer does not have it."""
    from distributedlog.sim.ledger_planted import _silence

    patch(Recovery, "_absence", _silence)


@bug("cluster", directed="sim/ledger_planted.py")
def ensemble_change_acknowledged_before_the_metadata() -> None:
    """D4: acks on the new ensemble count before the store has it."""

    async def propose(self: Any, round_: Any) -> None:
        change = self._change
        version = round_.version
        proposed = round_.proposed
        before = change.metadata
        self._decided(version + 1)
        try:
            await self._store.transact(shares.change_share(before, proposed, version))
        except Exception:
            return

    patch(LedgerWriter, "_propose", propose)


@bug("cluster", directed="sim/ledger_planted.py")
def a_ledger_is_closed_without_compare_and_set() -> None:
    """Inv. 19: a writer closes over a recovery, or the reverse."""
    original = shares.closing_share

    def closing_share(*args: Any, **kwargs: Any) -> Transaction:
        return Transaction((), original(*args, **kwargs).operations)

    patch(shares, "closing_share", closing_share)


@bug("cluster")
def the_epoch_is_not_looked_at() -> None:
    """H12: on a conflict a fenced writer takes the new state for its own."""

    def take(self: Any, found: Any) -> None:
        self.state, self.version = LogState.decode(found.value), found.version

    patch(OwnedLog, "_take", take)


@bug("cluster")
def a_roll_sends_to_the_next_segment_early() -> None:
    """H11: the next segment gets entries while this one's tail is in flight."""
    original = SegmentKeeper.look

    def look(self: Any, *, drained: bool) -> None:
        original(self, drained=True)

    patch(SegmentKeeper, "look", look)


@bug("cluster")
def a_failed_segment_is_sent_again_whole() -> None:
    """G7: after an error what the old segment kept is sent to the next one, too."""
    original = SegmentKeeper._replace

    async def replace(self: Any) -> None:
        confirmed, self._writer.confirmed = self._writer.confirmed, lambda *args: None
        try:
            await original(self)
        finally:
            self._writer.confirmed = confirmed

    patch(SegmentKeeper, "_replace", replace)


@bug("cluster")
def what_was_in_flight_is_not_sent_again() -> None:
    """G1: after an error the writer goes on with the next record: a hole in its order."""

    def take_back(self: Any) -> None:
        while self._in_flight:
            batch = self._in_flight.popleft()
            batch.finish(WriteFailed("given up"))

    patch(Pipeline, "take_back", take_back)


@bug("cluster")
def a_retried_request_is_a_new_one() -> None:
    """H20: a command whose answer was lost is done twice."""

    def find(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    patch(RequestRing, "find", find)


@bug("cluster")
def an_unknown_outcome_counts_as_not_done() -> None:
    """H20: the log's writer sends its change again without looking."""
    original = OwnedLog._change

    async def change(self: Any, apply: Any, done: Any, share: Any) -> None:
        self._certain = True
        await original(self, apply, lambda state: False, share)

    patch(OwnedLog, "_change", change)


@bug("cluster", directed="sim/raft_planted.py")
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


@bug("cluster", directed="sim/raft_planted.py")
def raft_acknowledges_from_memory() -> None:
    """A follower's acks do not wait for its disk."""
    from distributedlog.metadata.messages import AppendReply

    def accept(self: Any, leader_id: str, index: int) -> None:
        self._send(leader_id, AppendReply(self.term, self.node_id, True, index, 0, 0))

    patch(Raft, "_accept", accept)


@bug("cluster", directed="sim/raft_planted.py")
def reads_by_a_lone_leader() -> None:
    """H26: a leader serves reads without a quorum round."""

    def confirmed_round(self: Any) -> int:
        return int(self.round)

    patch(Leadership, "_confirmed_round", confirmed_round)


@bug("cluster", directed="sim/raft_planted.py")
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

    from distributedlog.cluster import copying
    from distributedlog.ledger import reader, recovering, tail

    for module in (reader, recovering, tail, copying):
        patch(module, "records", records)


@bug("cluster")
def a_watch_skips_a_change() -> None:
    """M6: now and then a watcher is not told."""
    original = History.after
    count = [0]

    def after(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        count[0] += 1
        if count[0] % 20 == 0 and isinstance(found, list) and found:
            return found[1:]
        return found

    patch(History, "after", after)


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


# --- running --------------------------------------------------------------------------------------


def hunt(planted: Bug, *, start: int = 0) -> tuple[int, str, float] | None:
    """Seeds until found (1 or more), by what, CPU seconds; None: it survives its budget."""
    logging.disable(logging.CRITICAL)
    planted.plant()
    began = time.process_time()
    for number in range(planted.seeds):
        seed = start + number
        world: Any = BookieWorld(seed) if planted.layer == "bookie" else SeedRun(seed)
        failures = world.run().failures
        used_s = time.process_time() - began
        if failures:
            cause = failures[0]
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            if isinstance(cause, AttributeError | TypeError | NameError):
                raise RuntimeError(f"the bug does not fit the product any more: {cause}") from cause
            return number + 1, f"{type(cause).__name__}: {str(cause).split(chr(10))[0]}", used_s
        if used_s > SECONDS_MAX[planted.layer]:
            return None
        if number % 5 == 4:
            gc.collect()
    return None


def describe(planted: Bug, found: tuple[int, str, float] | None) -> str:
    if found is None:
        verdict = f"directed: {planted.directed}" if planted.directed else "survives"
        return f"{planted.name} | {planted.layer} | survives {planted.seeds} | {verdict}"
    seeds, why, used_s = found
    return f"{planted.name} | {planted.layer} | {seeds} ({used_s:.0f} s) | {why[:110]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--layer", choices=("bookie", "cluster"))
    parser.add_argument("--bug")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(BUGS))
        return 0
    if options.bug:
        planted = BUGS[options.bug]
        found = hunt(planted, start=options.start)
        print(describe(planted, found), flush=True)
        return 0 if found is not None else 1
    survivors = 0
    print("planted bug | layer | seeds until found | found by")
    for name, planted in BUGS.items():
        if options.layer in (None, planted.layer):
            run = subprocess.run(
                [sys.executable, __file__, "--bug", name, "--start", str(options.start)],
                capture_output=True,
                text=True,
            )
            print(
                run.stdout.strip() or f"{name} | {run.stderr.strip().splitlines()[-1]}", flush=True
            )
            survivors += run.returncode != 0 and not planted.directed
    if options.layer is None:
        for name in ledger_planted.PLANTED:
            seed = ledger_planted.seeds_until_found(name, range(2000))
            verdict = "survives 2000" if seed is None else str(seed + 1)
            print(
                f"{name} | ledger core | {verdict} | {'' if seed is None else 'seeds'}", flush=True
            )
        subprocess.run([sys.executable, "-m", "distributedlog.sim.raft_planted", "500"], cwd=ROOT)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
