"""`lifecycle.decide` against a model that keeps every record: what is lost is said, and nothing else is.

A record is an entry, so position ``1.n.0`` is sequence id n, and the end of a deleted log is ``2.0.0``.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.deleted_log import DeletedLog
from distributedlog.log.model.log_state import LogEnd
from distributedlog.log.model.position_outcome import CurrentLog, HeldPosition, LogLookup
from distributedlog.runtime.interfaces.errors import LogDeleted, LogRecreated, LogTruncated
from distributedlog.spark.read.data_loss_policy import LogAction, LossRules, SourceDecision, decide
from tests.examples import examples


@dataclass
class Log:
    """One incarnation, with all that was ever acknowledged: records 0 to ``records`` - 1."""

    log_id: int
    records: int = 0
    cut: int = 0
    """Truncated before this one."""
    state: str = "there"
    """``there``, ``deleting``, ``gone`` (its end is known), ``unknown`` (nobody knows its end)."""
    owed: set[int] = field(default_factory=set)
    """Records that a query which followed this name was to read, and has neither read nor been told of."""


@dataclass
class World:
    """One name, and one query that follows it."""

    logs: list[Log] = field(default_factory=list)
    held: HeldPosition | None = None

    @property
    def now(self) -> Log | None:
        return self.logs[-1] if self.logs and self.logs[-1].state == "there" else None

    def found(self) -> LogLookup:
        there, gone, deleting = None, [], False
        for log in self.logs:
            if log.state == "there":
                place = DLSN(1, log.cut, 0)
                there = CurrentLog(f"{log.log_id:016x}", place, log.cut, DLSN(1, log.records, 0))
            elif log.state == "deleting":
                deleting = self.held is not None and self.held.incarnation == f"{log.log_id:016x}"
            else:
                end = LogEnd(DLSN(2, 0, 0), log.records, log.state == "gone")
                gone.append(DeletedLog(log.log_id, end, log.cut, 0))
        return LogLookup(there, gone, deleting)

    def position(self, dlsn: DLSN) -> HeldPosition:
        """In the log that is there, as an offset holds it."""
        assert self.now is not None
        return HeldPosition(dlsn, f"{self.now.log_id:016x}", dlsn.entry)


OPS = st.lists(st.tuples(st.integers(0, 59), st.integers(0, 8)), min_size=5, max_size=40)
LEGAL = {
    "there": ["append", "append", "look", "delete", "truncate", "begin to delete"],
    "deleting": ["delete", "look"],
    "gone": ["create", "look"],
}


def play(world: World, choice: int, number: int) -> str:
    """One of the things that can happen now; ``look`` is the caller's."""
    last = world.logs[-1] if world.logs else Log(0, state="gone")
    legal = LEGAL.get(last.state, LEGAL["gone"])
    op = legal[choice % len(legal)]
    if op == "create":
        world.logs.append(Log(len(world.logs) + 1))
    elif op == "append":
        last.owed.update(range(last.records, last.records + number))
        last.records += number
    elif op == "truncate":
        last.cut = min(last.records, last.cut + number)
        held = world.held
        if held is None or held.incarnation != f"{last.log_id:016x}":
            last.owed = {one for one in last.owed if one >= last.cut}  # before it was met
    elif op == "begin to delete":
        last.state = "deleting"
    elif op == "delete":
        last.state = "unknown" if number == 8 else "gone"
        if world.held is None:
            last.owed.clear()  # nobody followed this name, or what is gone of it has been told
    return op


def look(world: World, rules: LossRules, number: int) -> SourceDecision:
    """One trigger: decide, then read so many records; the model says what the decision had to be."""
    found = world.found()
    decision = decide("a", world.held, found, rules)
    held, now = world.held, world.now
    if held is None:
        assert decision.action is (LogAction.LEAVE if now is None else LogAction.READ)
    elif found.is_being_deleted:
        assert decision.action is LogAction.KEEP
        return decision
    else:
        past = [log for log in world.logs if log.state in ("gone", "unknown")]
        owed = sum(len(log.owed) for log in past)
        if now is not None and held.incarnation == f"{now.log_id:016x}":
            owed += sum(1 for one in now.owed if one < now.cut)
        at = int(held.incarnation, 16) - 1
        unsure = any(log.state == "unknown" for log in world.logs[at:])
        if unsure:
            assert decision.lost_records is None
        else:
            assert decision.lost_records == owed
        if decision.lost_records != 0 and rules.fail_on_data_loss:
            assert decision.action is LogAction.FAIL
            assert decision.error is not None
            return decision
        assert decision.action is not LogAction.FAIL
        assert bool(decision.warning) == (
            now is None or decision.lost_records != 0 or at + 1 != now.log_id
        )
    if decision.action is LogAction.KEEP:
        return decision  # it is said again when there is a place to go on from
    for log in world.logs:  # it was said; what a pattern never met is nobody's
        log.owed = {one for one in log.owed if log is now and one >= log.cut}
    if decision.action is LogAction.READ:
        assert now is not None
        assert decision.start is not None
        stop = min(now.records, decision.start.entry + number)
        read = set(range(decision.start.entry, stop))
        assert read <= now.owed, "a record is read once"
        now.owed -= read
        world.held = world.position(DLSN(1, stop, 0))
    elif decision.action is LogAction.LEAVE:
        world.held = None
    return decision


@settings(max_examples=examples(300))
@given(OPS, st.booleans(), st.booleans())
def test_what_was_not_read_is_said_to_the_record(
    ops: list[tuple[int, int]], fail: bool, named: bool
) -> None:
    """Deleted, made again, truncated in any order, looked at or not, of a running query or a restarted one
    (the decision cannot tell): each record is read once, or counted as lost, or its end is not known."""
    rules = LossRules(fail_on_data_loss=fail, is_named=named)
    world = World()
    for choice, number in ops:
        if (
            play(world, choice, number) == "look"
            and look(world, rules, number).action is LogAction.FAIL
        ):
            return  # the query has ended, with an error


@pytest.mark.parametrize("new_logs", ["earliest", "latest", "ignore"])
@pytest.mark.parametrize("named", [True, False])
def test_a_log_made_again_begins_by_new_logs(new_logs: str, named: bool) -> None:
    """Once all of the old one was read."""
    held = HeldPosition(DLSN(1, 9, 0), f"{7:016x}", 9)
    there = CurrentLog(f"{8:016x}", DLSN(1, 0, 0), 0, DLSN(1, 5, 0))
    gone = [DeletedLog(7, LogEnd(DLSN(2, 0, 0), 9, True), 0, 0)]

    decision = decide(
        "a", held, LogLookup(there, gone), LossRules(new_logs=new_logs, is_named=named)
    )

    where = {"earliest": DLSN(1, 0, 0), "latest": DLSN(1, 5, 0), "ignore": None}[new_logs]
    assert decision.start == where
    assert decision.action is (LogAction.LEAVE if where is None else LogAction.READ)


def test_errors_say_what_is_lost_and_what_to_do() -> None:
    """Each of its own type."""
    held = HeldPosition(DLSN(1, 9, 0), f"{7:016x}", 9)
    gone = [DeletedLog(7, LogEnd(DLSN(2, 0, 0), 509, True), 0, 0)]
    again = CurrentLog(f"{8:016x}", DLSN(1, 0, 0), 0, DLSN(1, 5, 0))
    shorter = CurrentLog(f"{7:016x}", DLSN(1, 12, 0), 12, DLSN(1, 50, 0))

    deleted = decide("a", held, LogLookup(None, gone), LossRules()).error
    forgotten = decide("a", held, LogLookup(None, []), LossRules()).error
    remade = decide("a", held, LogLookup(again, gone), LossRules()).error
    truncated = decide("a", held, LogLookup(shorter), LossRules()).error

    assert type(deleted) is LogDeleted
    assert "read up to 1.9.0, 500 records are lost" in str(deleted)
    assert "whether that was all of it is not known" in str(forgotten)
    assert type(remade) is LogRecreated
    assert isinstance(truncated, LogTruncated)
    assert truncated.first == "1.12.0"
    assert all(
        '"failOnDataLoss"=false' in str(error) for error in (deleted, forgotten, remade, truncated)
    )


def test_a_position_without_a_sequence_id_is_compared_by_place() -> None:
    """The store was away when the offset was made."""
    gone = [DeletedLog(7, LogEnd(DLSN(2, 0, 0), 9, True), 0, 0)]

    behind = decide(
        "a", HeldPosition(DLSN(2, 0, 0), f"{7:016x}", None), LogLookup(None, gone), LossRules()
    )
    before = decide(
        "a", HeldPosition(DLSN(1, 9, 0), f"{7:016x}", None), LogLookup(None, gone), LossRules()
    )

    assert (behind.action, behind.lost_records) == (LogAction.KEEP, 0)
    assert (before.action, before.lost_records) == (LogAction.FAIL, None)


def test_a_log_that_the_options_do_not_name_any_more_is_dropped() -> None:
    held = HeldPosition(DLSN(1, 9, 0), f"{7:016x}", 9)

    decision = decide("a", held, LogLookup(), LossRules(is_selected=False))

    assert decision.action is LogAction.LEAVE
    assert "not among the options" in decision.warning


def test_logs_that_came_and_went_between_count_too() -> None:
    """But for what was truncated in them; one whose end nobody knows makes the sum unknown."""
    held = HeldPosition(DLSN(1, 9, 0), f"{7:016x}", 9)
    first = DeletedLog(7, LogEnd(DLSN(2, 0, 0), 10, True), 0, 0)
    second = DeletedLog(8, LogEnd(DLSN(2, 0, 0), 30, True), 25, 0)
    third = DeletedLog(9, LogEnd(DLSN(2, 0, 0), 3, False), 0, 0)

    assert decide("a", held, LogLookup(None, [first, second]), LossRules()).lost_records == 1 + 5
    assert (
        decide("a", held, LogLookup(None, [first, second, third]), LossRules()).lost_records is None
    )
    assert (
        decide(
            "a", held, LogLookup(None, [first, second]), LossRules(new_logs="ignore")
        ).lost_records
        == 1
    )
