"""What a held position meets: the table, then readers of every kind beside a model (H154)."""

from bisect import bisect_left
from dataclasses import dataclass, field

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.deleted_log import DeletedLog
from distributedlog.log.model.log_state import LogEnd, LogState
from distributedlog.log.model.position import Position
from distributedlog.log.model.position_outcome import (
    CurrentLog,
    HeldPosition,
    LogLookup,
    PositionOutcome,
    PositionResolution,
    resolve_position,
)
from distributedlog.log.model.segment_ranges import SegmentRange
from distributedlog.log.namespace import Namespace
from distributedlog.log.read.log_reader import LogReader
from distributedlog.log.read.multi_reader import LogBatch
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    LogDeleted,
    LogNotFound,
    LogRecreated,
    LogTruncated,
)
from tests.examples import examples
from tests.log.conftest import World
from tests.log.records import put, rec

OLD, NEW = f"{7:016x}", f"{8:016x}"
HELD = HeldPosition(DLSN(3, 4, 1), OLD, 900)
AGAIN = CurrentLog(NEW, DLSN(1, 0, 0), 0)


def there(point: DLSN, sequence_id: int, first: DLSN | None = None) -> LogLookup:
    return LogLookup(CurrentLog(OLD, first or point, sequence_id, truncation_point=point))


def gone(records: int, *, exact: bool = True) -> DeletedLog:
    return DeletedLog(7, LogEnd(DLSN(5, 0, 0), records, exact), 0, 0)


Row = tuple[
    str, LogLookup, PositionOutcome, DLSN | None, int | None, type[DistributedLogError] | None
]
NEXT = DLSN(4, 0, 0)
TABLE: list[Row] = [
    ("the point before", there(DLSN(2, 0, 0), 500), PositionOutcome.CONTINUE, HELD.dlsn, 0, None),
    ("the point here", there(HELD.dlsn, 900), PositionOutcome.CONTINUE, HELD.dlsn, 0, None),
    ("the same place by another name", there(NEXT, 900), PositionOutcome.CONTINUE, NEXT, 0, None),
    (
        "purged up to the next segment",
        there(HELD.dlsn, 900, NEXT),
        PositionOutcome.CONTINUE,
        NEXT,
        0,
        None,
    ),
    (
        "nothing but control entries",
        there(DLSN(4, 0, 0), 0),
        PositionOutcome.CONTINUE,
        DLSN(4, 0, 0),
        0,
        None,
    ),
    (
        "the point above",
        there(DLSN(4, 0, 0), 930),
        PositionOutcome.TRUNCATED,
        DLSN(4, 0, 0),
        30,
        LogTruncated,
    ),
    (
        "deleted, all had",
        LogLookup(deleted_logs=[gone(900)]),
        PositionOutcome.DELETED,
        None,
        0,
        LogDeleted,
    ),
    (
        "deleted, the end above",
        LogLookup(deleted_logs=[gone(950)]),
        PositionOutcome.DELETED,
        None,
        50,
        LogDeleted,
    ),
    (
        "deleted, not exact",
        LogLookup(deleted_logs=[gone(900, exact=False)]),
        PositionOutcome.DELETED,
        None,
        None,
        LogDeleted,
    ),
    ("deleted and forgotten", LogLookup(), PositionOutcome.DELETED, None, None, LogDeleted),
    (
        "made again, all had",
        LogLookup(AGAIN, [gone(900)]),
        PositionOutcome.DELETED,
        None,
        0,
        LogRecreated,
    ),
    (
        "made again, the end above",
        LogLookup(AGAIN, [gone(950)]),
        PositionOutcome.DELETED,
        None,
        50,
        LogRecreated,
    ),
    (
        "known by its id",
        LogLookup(deleted_logs=[gone(950)], successor=NEW),
        PositionOutcome.DELETED,
        None,
        50,
        LogRecreated,
    ),
    (
        "made again and forgotten",
        LogLookup(AGAIN),
        PositionOutcome.DELETED,
        None,
        None,
        LogRecreated,
    ),
    (
        "being deleted",
        LogLookup(is_being_deleted=True),
        PositionOutcome.DELETING,
        None,
        None,
        LogDeleted,
    ),
    ("renamed", LogLookup(current_name="new"), PositionOutcome.RENAMED, None, None, LogNotFound),
    (
        "renamed, another made",
        LogLookup(AGAIN, current_name="new"),
        PositionOutcome.RENAMED,
        None,
        None,
        LogRecreated,
    ),
]


@pytest.mark.parametrize(
    ("found", "met", "at", "lost", "error"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_each_finding_has_one_verdict(
    found: LogLookup,
    met: PositionOutcome,
    at: DLSN | None,
    lost: int | None,
    error: type[DistributedLogError] | None,
) -> None:
    """And one error, with the numbers."""
    verdict = resolve_position(HELD, found)

    assert (verdict.outcome, verdict.position, verdict.lost) == (met, at, lost)
    if error is None:
        return
    raised = verdict.error("a", HELD)
    assert type(raised) is error
    if isinstance(raised, LogDeleted | LogTruncated):
        assert raised.lost == lost
        assert raised.again().lost == lost
        number = {None: "", 0: "all of it had been read"}.get(lost, f"{lost} records are lost")
        assert number in str(raised)
    if isinstance(raised, LogDeleted):
        end = found.deleted_logs[0].end if found.deleted_logs else None
        assert raised.end == ("" if end is None else str(end.dlsn))
        assert raised.exact is (end is not None and end.is_exact)
    if isinstance(raised, LogTruncated):
        assert raised.first == str(at)


def test_a_position_without_a_number_is_compared_by_place() -> None:
    """An address that was typed: how much is lost is not known, whether any may be."""
    held = HeldPosition(DLSN(3, 4, 1), OLD, None)

    assert resolve_position(held, there(DLSN(4, 0, 0), 930)) == PositionResolution(
        PositionOutcome.TRUNCATED, DLSN(4, 0, 0), None
    )
    assert resolve_position(held, LogLookup(deleted_logs=[gone(950)])).lost is None
    assert resolve_position(held, there(held.dlsn, 930, NEXT)) == PositionResolution(
        PositionOutcome.CONTINUE, NEXT
    )
    behind = HeldPosition(DLSN(5, 0, 0), OLD, None)
    assert resolve_position(behind, LogLookup(deleted_logs=[gone(950)])).lost == 0


def test_until_its_end_is_noted_a_log_that_is_deleted_is_there() -> None:
    state = LogState(7, "a", 0, first_open_segment=5, last_segment=4, next_sequence_id=950)
    claimed = state.with_deletion_begun("alpha", "w")

    assert resolve_position(HELD, LogLookup.of(claimed)).outcome is PositionOutcome.CONTINUE
    assert resolve_position(HELD, LogLookup.of(claimed.with_end(exact=True))).lost == 50


@pytest.mark.parametrize("detail", ["", "/", "//", "1.2.3", "1.2.3/x/exact", "1.2.3/-1/", "a/٣/b"])
def test_what_an_error_says_is_read_from_whatever_came(detail: str) -> None:
    """It may come from a peer."""
    assert LogDeleted("", detail).lost is None
    assert LogTruncated("", detail).lost is None
    assert LogTruncated("", detail).first in ("", "1.2.3", "a")


# --- readers of every kind against a model --------------------------------------------------------


@dataclass
class Made:
    """One incarnation; a record's txid is its sequence id."""

    incarnation: str
    dlsns: list[DLSN] = field(default_factory=list)
    cuts: list[int] = field(default_factory=lambda: [0])
    """Every truncation's first record that is left; the last one holds."""
    buried: str | None = None
    """The name under which it was deleted; None: it is there."""

    @property
    def cut(self) -> int:
        return self.cuts[-1]

    @property
    def records(self) -> int:
        return len(self.dlsns)

    def check(self, error: DistributedLogError, had: int, *, counted: bool = True) -> None:
        """Is what a reader says after ``had`` records what happened? ``counted``: must it know how many?"""
        if isinstance(error, LogTruncated):
            first = bisect_left(self.dlsns, DLSN.parse(error.first))
            assert first in self.cuts
            assert first > had
            assert error.lost == first - had or (not counted and error.lost is None)
            return
        assert isinstance(error, LogDeleted), error
        assert self.buried is not None
        if error.lost is None:
            assert not counted
        else:
            assert error.exact
            assert error.lost == self.records - had


@dataclass
class Following:
    """An open reader, and how far it has got."""

    made: Made
    reader: LogReader
    had: int
    told: bool = False

    async def read(self, number: int) -> None:
        """So many records more, as far as there are; each is the next one."""
        if self.told:
            return
        try:
            for _ in range(number):
                record = await self.reader.read_next(wait_s=1.0)
                if record is None:
                    return
                assert record.txid == record.sequence_id == self.had
                self.had += 1
        except DistributedLogError as error:
            self.made.check(error, self.had)
            self.told = True


class Story:
    """One name after the other, its logs, and who reads them."""

    def __init__(self, world: World, ns: Namespace) -> None:
        self.world = world
        self.ns = ns
        self.name = "l"
        self.logs: list[Made] = []
        self.following: list[Following] = []
        self.positions: list[tuple[Made, Position]] = []
        self.plans: list[tuple[Made, int, list[SegmentRange]]] = []

    @property
    def there(self) -> Made | None:
        return self.logs[-1] if self.logs and self.logs[-1].buried is None else None

    async def play(self, op: int, number: int) -> None:
        now = self.there
        if now is None:
            await self.ns.create_log(self.name)
            self.logs.append(Made(f"{await self.ns.resolve_name(self.name):016x}"))
        elif op in (0, 1):
            await self.append(now, number, dies=op == 1)
        elif op == 2:
            await self.truncate(now, number)
        elif op == 3:
            await self.ns.delete_log(self.name)
            now.buried = self.name
        elif op == 4:
            old, self.name = self.name, f"l{number % 2}" if self.name == "l" else "l"
            await self.ns.rename_log(old, self.name)
        elif op == 5:
            await self.open(now)
        elif op == 6:
            for one in self.following:
                await one.read(number)
                if one.reader.position is not None:
                    self.positions.append((one.made, one.reader.position))
        else:
            await self.look()

    async def append(self, now: Made, number: int, *, dies: bool) -> None:
        """A segment of one or two entries; of a writer that is killed, or closes."""
        at = now.records
        async with self.world.process("writer") as ns:
            writer = await ns.open_log(self.name).open_writer()
            for first, last in ((at, at + number // 2), (at + number // 2, at + number)):
                if first < last:
                    now.dlsns += await writer.write_bulk([rec(n) for n in range(first, last)])
            if not dies:
                await writer.aclose()
        await trio.sleep(60 if dies else 0)  # the lock of the process that was killed

    async def truncate(self, now: Made, number: int) -> None:
        cut = min(now.records, now.cut + number)
        if cut == now.cut:
            return
        to = now.dlsns[cut] if cut < now.records else DLSN(now.dlsns[-1].segment + 9, 0, 0)
        await self.ns.open_log(self.name).truncate(to)
        now.cuts.append(cut)

    async def open(self, now: Made) -> None:
        log = self.ns.open_log(self.name)
        snapshot = await log.snapshot()
        plan = [one.range() for one in snapshot.segments if one.entries]
        self.plans.append((now, snapshot.first_sequence_id, plan))
        self.positions.append((now, snapshot.position))
        reader = await log.open_reader()
        self.following.append(Following(now, reader, now.cut))

    async def look(self) -> None:
        """Open each position and each plan that anybody holds."""
        asked = self.ns.open_log(self.name)
        for made, position in self.positions[-6:]:
            counted = made.buried in (None, self.name)
            given, error = position.sequence_id, None
            try:
                async with asked.open_reader(position=position, to="end") as reader:
                    async for record in reader:
                        assert record.sequence_id == given
                        given += 1
            except DistributedLogError as caught:
                error = caught
            self.check_end(made, given, error, counted)
            assert made.cut <= position.sequence_id or error is not None
            given, error = position.sequence_id, None
            async with self.ns.open_reader(
                logs=[self.name], positions={self.name: position}, to="end"
            ) as several:
                async for item in several:
                    if isinstance(item, LogBatch):
                        assert item.columns.txids[0] == given
                        given += item.columns.count
                    elif item.error is not None:
                        error = item.error
                        kind = "recreated" if isinstance(error, LogRecreated) else "deleted"
                        assert item.kind == (kind if made.buried is not None else "truncated")
            self.check_end(made, given, error, counted)
        for made, first, plan in self.plans[-6:]:
            counted = (
                made.buried in (None, self.name) and not plan[0].first_entry if plan else False
            )
            given, error = first, None
            try:
                async with asked.open_ranges(plan) as ranges:
                    async for columns in ranges:
                        assert columns.txids[0] == given
                        given += columns.count
            except DistributedLogError as caught:
                error = caught
            if error is not None and plan:
                made.check(error, given, counted=counted)

    def check_end(
        self, made: Made, given: int, error: DistributedLogError | None, counted: bool
    ) -> None:
        if error is None:
            assert made.buried is None
            assert given == made.records
            return
        made.check(error, given, counted=counted)
        if isinstance(error, LogRecreated):
            assert self.there is not None
        elif isinstance(error, LogDeleted):
            assert self.there is None


OPS = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), min_size=6, max_size=20)


@settings(max_examples=examples(20))
@given(OPS)
def test_what_each_reader_says_is_what_happened(ops: list[tuple[int, int]]) -> None:
    """H154: append, truncate, delete, make again, rename in any order; open readers that lag, positions that
    are opened later, several logs as one, ranges in another process: what was given and what is said to be
    lost is all that there was, to the record."""

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            async with world.process(read_ahead_bytes=1, read_bytes=1) as ns:
                story = Story(world, ns)
                for op, number in ops:
                    await story.play(op, number)
                await story.look()
                for one in story.following:
                    await one.read(1000)
                    await one.read(1000)
                    made = one.made
                    assert one.told or (made.buried is None and one.had == made.records)
            nursery.cancel_scope.cancel()

    trio.run(body, clock=MockClock(autojump_threshold=0))


# --- single cases ---------------------------------------------------------------------------------


async def test_a_reader_at_the_end_is_told_that_it_had_all(
    world: World, autojump_clock: MockClock
) -> None:
    """It waits at the end while the log is claimed, recovered and deleted: two transactions, one answer."""
    async with world.process() as ns:
        await put(ns.open_log("a"), *range(5))
        log = ns.open_log("a")
        async with log.open_reader() as whole, log.open_reader(at="latest") as late:
            assert len(await whole.read_bulk(9, wait_s=1.0)) == 5
            assert await late.read_next(wait_s=1.0) is None
            await ns.delete_log("a")
            for reader in (whole, late):
                with pytest.raises(LogDeleted, match="all of it had been read") as caught:
                    await reader.read_next()
                assert (caught.value.lost, caught.value.exact, caught.value.end) == (
                    0,
                    True,
                    "2.0.0",
                )


async def test_a_handle_of_one_incarnation_says_where_it_ended(
    world: World, autojump_clock: MockClock
) -> None:
    """Nobody's position is held: how much is lost is not said."""
    async with world.process() as ns:
        await put(ns.open_log("a"), *range(5))
        held = ns.open_log("a", incarnation=f"{await ns.resolve_name('a'):016x}")
        await ns.delete_log("a")

        with pytest.raises(LogDeleted) as caught:
            await held.describe()
        await ns.create_log("a")
        with pytest.raises(LogRecreated) as again:
            await held.describe()

        for error in (caught.value, again.value):
            assert (error.end, error.lost, error.exact) == ("2.0.0", None, True)
