"""Bookies that are gone, or are to leave: what they held is stored elsewhere, then the record says so."""

import random
from collections import deque
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.coordination.repair_settings import (
    REPAIR_SETTINGS,
    change_repair_settings,
)
from distributedlog.cluster.repair.auditor_election import RepairLeaderElection
from distributedlog.cluster.repair.decommission import fewest_sound_copies, request_decommission
from distributedlog.cluster.repair.lost_bookies import (
    OBSERVATION_GAP_S_MAX,
    URGENT,
    BookieLiveness,
    LostBookieRepair,
    RepairJob,
    RepairTargets,
)
from distributedlog.cluster.repair.replication_worker import EVERY_S
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_metadata import DeclaredLoss, Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange
from distributedlog.ledger.placement.ensemble_placement import Candidate
from distributedlog.ledger.placement.placement_policy import PlacementPolicy
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.interfaces.errors import NotAllowed, NotEnoughBookies, QuorumUnreachable
from distributedlog.runtime.protocol.frames import pack

from .bookie_world import KEY, LEDGER, World, world

MEMBERS = {"b1", "b2", "b3"}


def _lost(world: World, after_s: float = 300.0, urgent_after_s: float = 15.0) -> LostBookieRepair:
    return LostBookieRepair(
        world.metadata,
        world.pool,
        world.election,
        world.copier,
        RepairTargets(world.candidates, random.Random(1).random),
        BookieLiveness(after_s, urgent_after_s),
    )


async def test_pause_moves_nothing_and_ends_by_itself(autojump_clock: MockClock) -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        await _stored(w, 3)
        now_ms = 1_000_000
        lost = LostBookieRepair(
            w.metadata,
            w.pool,
            w.election,
            w.copier,
            RepairTargets(w.candidates, random.Random(1).random, wall_ms=lambda: now_ms),
            BookieLiveness(0.0),
        )
        await _dies(w, "b3")
        await change_repair_settings(w.metadata, lambda stored: stored.with_pause(now_ms, 60.0))
        await lost.observe_bookies()

        await lost.run_pass()
        assert lost.moved_ledgers == 0
        assert list(lost.liveness.lost_bookies) == ["b3"]

        now_ms += 60_000
        await lost.observe_bookies()
        await lost.run_pass()
        assert lost.moved_ledgers == 1


async def test_pause_stops_a_pass_after_the_ledgers_in_work(autojump_clock: MockClock) -> None:
    async with world() as w:
        await _stored(w, 3)
        lost = await _without_b3(w)
        moved = []

        async def move(ledger_id: int, bookie: str) -> bool:
            moved.append(ledger_id)
            await trio.sleep(1)
            if ledger_id == 0:
                await change_repair_settings(w.metadata, lambda stored: stored.with_pause(0, 60.0))
                await lost.observe_bookies()
            return True

        lost.move_ledger = move  # type: ignore[method-assign]
        jobs = deque(RepairJob(3, 1, number, ("b3",), frozenset()) for number in range(100))

        await lost.run_jobs(jobs)

        assert 1 <= len(moved) < 20


async def test_pause_that_begins_during_the_search_for_ledgers_stops_the_pass(
    autojump_clock: MockClock,
) -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        await _stored(w, 3)
        lost = await _without_b3(w)
        find = lost.find_jobs

        async def find_and_pause() -> deque[RepairJob]:
            jobs = await find()
            await change_repair_settings(w.metadata, lambda stored: stored.with_pause(0, 60.0))
            await lost.observe_bookies()
            return jobs

        lost.find_jobs = find_and_pause  # type: ignore[method-assign]

        await lost.run_pass()

        assert lost.moved_ledgers == 0


async def test_metadata_leader_that_refuses_to_read_the_settings_stops_no_repair(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader of version 0.1 lets only operators read a key that it does not know."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _stored(w, 3)
        get = w.metadata.get

        async def get_as_older(key: bytes) -> Any:
            if key == REPAIR_SETTINGS:
                raise NotAllowed(f"no row has {key!r}")
            return await get(key)

        monkeypatch.setattr(w.metadata, "get", get_as_older)
        lost = await _without_b3(w)

        await lost.run_pass()

        assert lost.moved_ledgers == 1


async def test_stored_delay_replaces_the_option_while_the_leader_runs(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        await _stored(w, 3)
        lost = _lost(w, after_s=1_000.0)
        await _dies(w, "b3")
        await lost.observe_bookies()
        await trio.sleep(10)
        await lost.observe_bookies()
        assert lost.liveness.lost_bookies == {}

        await change_repair_settings(w.metadata, lambda stored: stored.with_lost_after(10.0))
        await lost.observe_bookies()
        assert list(lost.liveness.lost_bookies) == ["b3"]

        never = pack({"format": 1, "paused_until_ms": 1 << 60, "lost_after_ms": 10_000})
        for damaged in (b"damaged", never):
            await w.metadata.transact(Transaction((), (Put(REPAIR_SETTINGS, damaged),)))
            await lost.observe_bookies()
            assert lost.liveness.lost_bookies == {}


async def _dies(world: World, bookie: str) -> None:
    del world.pool.clients[bookie]
    await world.metadata.transact(Transaction((), (Delete(keys.bookie_key(bookie)),)))


async def _without_b3(world: World) -> LostBookieRepair:
    """b3 dies, and is seen to be gone for good."""
    lost = _lost(world, after_s=0.0)
    await _dies(world, "b3")
    await lost.observe_bookies()
    return lost


async def _stored(world: World, count: int) -> None:
    """So many entries on b1, b2 and b3, and their ledger is closed."""
    for bookie in ("b1", "b2", "b3"):
        await world.write(bookie, range(count))
    await world.ledger(count - 1)


async def _is_to_leave(world: World, bookie: str) -> None:
    await world.metadata.transact(Transaction((), (Put(keys.leaving_key(bookie), b""),)))


def _see(absences: BookieLiveness, now: float, **changed: set[str]) -> dict[str, str]:
    absences.observe(
        now,
        ensemble_bookies=sorted(MEMBERS),
        registered=changed.get("registered", MEMBERS),
        bookies_with_cookie=changed.get("cookies", MEMBERS),
        leaving=changed.get("leaving", set()),
    )
    return absences.lost_bookies


def test_who_is_away_for_the_whole_delay_is_lost_and_who_comes_back_is_not() -> None:
    absences = BookieLiveness(60.0)
    for now in range(0, 60, 5):
        assert not _see(absences, float(now), registered={"b1", "b2"})
    assert list(_see(absences, 60.0, registered={"b1", "b2"})) == ["b3"]
    assert not _see(absences, 65.0)
    assert not _see(absences, 70.0, registered={"b1", "b2"})


def test_the_delay_begins_anew_after_a_time_in_which_nobody_looked() -> None:
    """H19: the quorum was away, or this process was stalled: who knows who was there meanwhile?"""
    absences = BookieLiveness(60.0)
    for now in range(0, 60, 5):
        _see(absences, float(now), registered={"b1", "b2"})

    assert not _see(absences, 55.0 + OBSERVATION_GAP_S_MAX + 1.0, registered={"b1", "b2"})


@pytest.mark.parametrize("trouble", ["no quorum", "another is elected"])
async def test_the_delay_begins_anew_after_a_moment_in_which_nobody_could_know(
    trouble: str, autojump_clock: MockClock
) -> None:
    """H19: a look that failed, or another repairer's, is as good as the bookie's return."""
    world = World(None)  # type: ignore[arg-type]
    lease = await world.metadata.grant_lease(10**7)
    world.election = RepairLeaderElection(world.metadata, "r", lambda: lease)
    for bookie in MEMBERS:
        await world.register(bookie)
        world.pool.clients[bookie] = object()  # type: ignore[assignment]
    await world.ledger(9)
    await _dies(world, "b3")
    lost = _lost(world)
    elected = world.election.is_elected
    moved = []

    async def move(ledger_id: int, bookie: str) -> bool:
        moved.append(trio.current_time())
        return False

    lost.move_ledger = move  # type: ignore[method-assign]

    async def troubled() -> bool:
        if trouble == "no quorum":
            raise QuorumUnreachable("nobody answers")
        return False

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lost.run)
        await trio.sleep(198)  # the looks are at multiples of 5
        world.election.is_elected = troubled  # type: ignore[method-assign]
        await trio.sleep(EVERY_S)
        world.election.is_elected = elected  # type: ignore[method-assign]
        await trio.sleep(290)
        assert lost.liveness.lost_bookies == {}
        await trio.sleep(8 * EVERY_S)
        assert list(lost.liveness.lost_bookies) == ["b3"]
        assert moved

        world.election.is_elected = troubled  # type: ignore[method-assign]
        await trio.sleep(2 * EVERY_S)
        assert lost.liveness.lost_bookies == {}
        moved.clear()
        await trio.sleep(4 * EVERY_S)
        assert moved == []  # who knows nothing moves nothing
        nursery.cancel_scope.cancel()


def test_who_is_to_leave_or_was_forgotten_is_lost_at_once() -> None:
    absences = BookieLiveness(60.0)

    assert list(_see(absences, 0.0, leaving={"b2"})) == ["b2"]
    found = _see(absences, 1.0, registered={"b1", "b2"}, cookies={"b1", "b2"})
    assert list(found) == ["b3"]


def test_most_bookies_away_at_once_are_not_lost_and_the_time_begins_anew() -> None:
    """H99: it is we who are cut off. What is to leave, or was decommissioned, is lost all the same."""
    absences = BookieLiveness(60.0)
    for now in range(0, 120, 5):
        found = _see(absences, float(now), registered={"b1"}, cookies={"b1", "b2"})
        assert list(found) == ["b3"]
        assert not absences.urgent_bookies
    for now in range(120, 175, 5):
        assert not _see(absences, float(now), registered={"b1", "b2"})
    assert list(_see(absences, 175.0, registered={"b1", "b2"})) == ["b3"]


def test_haste_begins_after_fifteen_seconds_and_never_while_half_of_the_bookies_are_away() -> None:
    """H99: a switch that reboots takes half of them; the time counts from when fewer were away."""
    absences = BookieLiveness(300.0, 15.0)
    members = {"b1", "b2", "b3", "b4"}

    def see(now: int, away: set[str]) -> tuple[set[str], set[str]]:
        absences.observe(
            float(now),
            ensemble_bookies=sorted(members),
            registered=members - away,
            bookies_with_cookie=members,
            leaving=set(),
        )
        return set(absences.urgent_bookies), set(absences.presumed_lost)

    for now in range(0, 60, 5):
        assert see(now, {"b3", "b4"}) == (set(), set())
    for now in range(60, 75, 5):
        assert see(now, {"b4"}) == (set(), {"b4"})
    assert see(75, {"b4"}) == ({"b4"}, {"b4"})
    absences.reset()
    assert (absences.urgent_bookies, absences.presumed_lost) == (frozenset(), frozenset())
    assert see(80, {"b4"}) == (set(), {"b4"})
    assert see(85, set()) == (set(), set())


def test_the_copies_of_an_entry_are_counted_where_it_has_the_fewest() -> None:
    """Fragments, stripes, and holes that are noted."""
    fragments = (Fragment(0, ("b1", "b2", "b3"), 0), Fragment(6, ("b1", "b4", "b5"), 1))
    ledger = LedgerMetadata(LEDGER, 3, 3, 2, fragments, KEY).close_by_writer(9, 100)

    assert fewest_sound_copies(ledger, set(), ()) == 3
    assert fewest_sound_copies(ledger, {"b2"}, ()) == 2
    assert fewest_sound_copies(ledger, {"b2", "b4"}, ()) == 2
    assert fewest_sound_copies(ledger, {"b2", "b3"}, ()) == 1
    assert fewest_sound_copies(ledger, {"b2"}, [MissingRange("b3", 2, 3)]) == 1
    assert (
        fewest_sound_copies(
            ledger, {"b2"}, [MissingRange("b5", 6, None), MissingRange("b3", 6, None)]
        )
        == 2
    )
    assert fewest_sound_copies(ledger, {"b1", "b4", "b5"}, ()) == 0
    striped = LedgerMetadata(LEDGER, 3, 2, 2, fragments[:1], KEY).close_by_writer(9, 100)
    assert fewest_sound_copies(striped, {"b2"}, ()) == 1
    short = LedgerMetadata(LEDGER, 3, 2, 2, fragments[:1], KEY).close_by_writer(0, 10)
    assert fewest_sound_copies(short, {"b3"}, ()) == 2  # its only entry lies on b1 and b2
    empty = LedgerMetadata(LEDGER, 3, 3, 2, fragments[:1], KEY).close_by_writer(-1, 0)
    assert fewest_sound_copies(empty, {"b1", "b2", "b3"}, ()) == 3
    given_up = ledger.with_loss(DeclaredLoss(0, 5, "op", 1, ""))
    assert fewest_sound_copies(given_up, {"b2", "b3"}, ()) == 3, (
        "nobody wants copies of what is lost"
    )


async def test_what_has_one_copy_left_waits_for_nobody_and_the_rest_does() -> None:
    """H99: an urgent bookie's ledgers with two copies stay where they are."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _stored(w, 5)
        lost = _lost(w, urgent_after_s=0.0)
        await _dies(w, "b3")
        await lost.observe_bookies()
        assert not lost.liveness.lost_bookies
        assert lost.liveness.urgent_bookies == {"b3"}

        await lost.run_pass()
        assert (await w.record()).bookies() == ("b1", "b2", "b3")
        await w.note(MissingRange("b1", 2, 4))
        await lost.run_pass()
        assert (await w.record()).bookies() == ("b1", "b2", "b4")


async def test_haste_ends_where_another_bookie_came_back_meanwhile() -> None:
    """H99: who was away when the work was planned is looked at again before each piece of it."""
    async with world("b1", "b2", "b3", "b4", "b5") as w:
        for bookie in ("b1", "b2", "b3"):
            await w.write(bookie, range(5))
        await w.ledger(4)
        lost = _lost(w, urgent_after_s=0.0)
        clients = {name: w.pool.clients[name] for name in ("b2", "b3")}
        for name in clients:
            await _dies(w, name)
        await lost.observe_bookies()
        jobs = await lost.find_jobs()
        assert [(job.priority, job.ledger_id, job.bookies) for job in jobs] == [
            (URGENT, LEDGER, ("b2", "b3"))
        ]
        w.pool.clients["b2"] = clients["b2"]
        await w.register("b2")
        await lost.observe_bookies()

        await lost.run_jobs(jobs)

        assert (await w.record()).bookies() == ("b1", "b2", "b3")


async def test_what_has_the_fewest_copies_comes_first_and_of_that_the_smallest() -> None:
    w = World(None)  # type: ignore[arg-type]
    for bookie in ("b1", "b2", "b3", "b4", "b5"):
        await w.register(bookie)
        w.pool.clients[bookie] = object()  # type: ignore[assignment]
    sizes = {1: 500, 2: 100, 3: 900, 4: 300, 5: 200}
    members = {1: ("b1", "b2", "b5"), 2: ("b1", "b2", "b3"), 3: ("b1", "b4", "b5")}
    members |= {4: ("b1", "b2", "b5"), 5: ("b2", "b3", "b5")}
    for ledger_id, size in sizes.items():
        ledger = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, members[ledger_id], 0),), KEY)
        await w.metadata.transact(transactions.creation_ops(ledger, ()))
        if ledger_id != 2:
            closed = ledger.close_by_writer(9, size)
            await w.metadata.transact(transactions.close_ops(closed, 1, ()))
    lost = _lost(w, after_s=0.0)
    for bookie in ("b4", "b5"):
        await _dies(w, bookie)
    await lost.observe_bookies()

    jobs = await lost.find_jobs()

    assert [(job.priority, job.ledger_id) for job in jobs] == [(0, 3), (2, 5), (2, 4), (2, 1)]


async def test_a_lost_bookies_entries_are_copied_and_then_the_record_is_swapped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Inv. 28, and the reverse index with it."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _stored(w, 50)
        lost = await _without_b3(w)

        assert list(lost.liveness.lost_bookies) == ["b3"]
        (reported,) = [line for line in caplog.messages if "copied to other bookies" in line]
        assert reported.startswith("bookie b3 ")
        assert await lost.drain("b3")

        assert (await w.record()).bookies() == ("b1", "b2", "b4")
        assert await w.held("b4", 49) == await w.held("b1", 49)
        assert len(await w.held("b4", 49)) == 50
        assert await w.metadata.get(keys.bookie_ledger_key("b3", LEDGER)) is None
        assert await w.metadata.get(keys.bookie_ledger_key("b4", LEDGER)) is not None
        assert (
            await w.metadata.get(keys.cookie_key("b3")) is not None
        )  # it may come back, empty-handed


async def test_each_fragment_and_each_stripe_gets_its_own() -> None:
    """E > Qw: only the entries of the slot are copied."""
    async with world("b1", "b2", "b3", "b4", "b5") as w:
        fragments = (Fragment(0, ("b1", "b2", "b3"), 0), Fragment(6, ("b4", "b3", "b1"), 1))
        for entry in range(12):
            members = fragments[entry >= 6].bookies
            for slot in range(3):
                if (slot - entry) % 3 < 2:
                    await w.write(members[slot], [entry])
        await w.ledger(11, sizes=(3, 2, 2), ensembles=fragments)
        lost = _lost(w, after_s=0.0)
        before = await w.ids("b3")
        await _dies(w, "b3")
        await lost.observe_bookies()

        assert await lost.drain("b3")

        changed = (await w.record()).ensembles
        first, second = changed[0].bookies[2], changed[1].bookies[1]
        assert {first, second} & {"b3"} == set()
        assert changed[0].bookies[:2] == ("b1", "b2")
        assert (changed[1].bookies[0], changed[1].bookies[2]) == ("b4", "b1")
        there = {*(await w.ids(first)), *(await w.ids(second))}
        assert there >= set(before)


@pytest.mark.parametrize("drawn", [0.0, 0.5, 0.99])
async def test_copies_that_are_stored_elsewhere_go_to_the_rack_that_was_lost(drawn: float) -> None:
    """Whatever chance says, and also where a policy is enforced."""
    racks = {"b1": "r1", "b2": "r2", "b3": "r3", "b4": "r1", "b5": "r3", "b6": "r2"}
    async with world(*racks) as w:
        await _stored(w, 5)
        lost = LostBookieRepair(
            w.metadata,
            w.pool,
            w.election,
            w.copier,
            RepairTargets(
                lambda: [Candidate(one, {"rack": racks[one]}) for one in sorted(w.pool.clients)],
                lambda: drawn,
                policy=lambda: PlacementPolicy("rack", 3, enforced=True),
            ),
            BookieLiveness(0.0),
        )
        await _dies(w, "b3")
        await lost.observe_bookies()

        assert await lost.drain("b3")

        assert (await w.record()).bookies() == ("b1", "b2", "b5")


def test_who_took_one_slot_takes_another_only_where_it_stands_as_well_as_any() -> None:
    racks = {"b1": "r1", "b2": "r2", "b3": "r3", "b4": "r3", "b5": "r3", "b6": "r1"}
    w = World(None)  # type: ignore[arg-type]
    fragments = (Fragment(0, ("b1", "b2", "b3"), 0), Fragment(5, ("b4", "b2", "b3"), 1))
    closed = LedgerMetadata(LEDGER, 3, 3, 2, fragments, KEY).close_by_writer(9, 100)
    for at_least, second in ((3, "b6"), (2, "b5")):
        lost = LostBookieRepair(
            w.metadata,
            w.pool,
            w.election,
            w.copier,
            RepairTargets(
                lambda: [Candidate(one, {"rack": racks[one]}) for one in ("b5", "b6")],
                lambda: 0.0,
                policy=lambda at_least=at_least: PlacementPolicy("rack", at_least),  # type: ignore[misc]
                labels=lambda one: {"rack": racks[one]},
            ),
            BookieLiveness(0.0),
        )

        chosen = lost._choose_replacement(closed, 0, 2, [])
        assert chosen == "b5"
        assert lost._choose_replacement(closed, 1, 2, [chosen]) == second


async def test_the_record_names_nobody_before_the_copies_are_there() -> None:
    """Inv. 28: no source, no swap."""
    async with world("b1", "b2", "b3", "b4") as w:
        await w.write("b3", range(5))
        await w.ledger(4)
        lost = await _without_b3(w)

        assert not await lost.drain("b3")

        assert (await w.record()).bookies() == ("b1", "b2", "b3")


async def test_a_swap_fails_when_the_new_bookie_was_started_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have lost what was copied to it: its cookie has moved on, and it is looked at anew."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _stored(w, 5)
        lost = await _without_b3(w)
        copy: Any = w.copier.copy

        async def copy_and_restart(*args: Any) -> int:
            copied: int = await copy(*args)
            await w.register("b4")
            return copied

        monkeypatch.setattr(w.copier, "copy", copy_and_restart)
        assert not await lost.move_ledger(LEDGER, "b3")
        assert (await w.record()).bookies() == ("b1", "b2", "b3")
        monkeypatch.setattr(w.copier, "copy", copy)
        assert await lost.move_ledger(LEDGER, "b3")


async def test_an_open_ledger_is_its_writers() -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        await w.write("b1", range(5))
        await w.ledger(None)
        lost = await _without_b3(w)

        assert not await lost.drain("b3")

        assert (await w.record()).bookies() == ("b1", "b2", "b3")
        await w.write("b1", range(5, 10))  # nobody fenced it


async def test_without_a_spare_bookie_nothing_changes() -> None:
    async with world() as w:
        await _stored(w, 5)
        lost = await _without_b3(w)

        with pytest.raises(NotEnoughBookies, match="no bookie can replace b3"):
            await lost.move_ledger(LEDGER, "b3")


async def test_a_bookie_that_comes_back_in_time_cancels_it() -> None:
    async with world("b1", "b2", "b3", "b4") as w:
        await _stored(w, 5)
        lost = _lost(w, after_s=0.0)
        client = w.pool.clients["b3"]
        await _dies(w, "b3")
        await lost.observe_bookies()
        w.pool.clients["b3"] = client
        await w.register("b3")
        await lost.observe_bookies()

        assert not await lost.drain("b3")

        assert (await w.record()).bookies() == ("b1", "b2", "b3")


@pytest.mark.parametrize("successor", ["b4", "b5", "b1"])
async def test_who_is_said_to_take_the_place_takes_it_where_it_can(successor: str) -> None:
    async with world("b1", "b2", "b3", "b4", "b5") as w:
        await _stored(w, 5)
        await request_decommission(w.metadata, "b3", successor=successor)
        lost = _lost(w)
        await lost.observe_bookies()

        await lost.run_pass()

        (*_, taken) = (await w.record()).bookies()
        if successor == "b1":
            assert taken in ("b4", "b5"), "b1 has the ledger already"
        else:
            assert taken == successor


async def test_a_bookie_that_is_to_leave_is_drained_and_forgotten_once_it_is_down() -> None:
    """It is a source of the copies while it runs; its to-do list of deletions goes with it."""
    async with world("b1", "b2", "b3", "b4") as w:
        await w.write("b3", range(5))  # the only copy
        await w.ledger(4, sizes=(3, 3, 1))
        await _is_to_leave(w, "b3")
        todo = Put(keys.delete_key("b3", 99), b"")
        seen = Put(keys.sync_point_key("b3"), b"")
        await w.metadata.transact(Transaction((), (todo, seen)))
        lost = _lost(w)
        await lost.observe_bookies()

        assert await lost.drain("b3")

        assert (await w.record()).bookies() == ("b1", "b2", "b4")
        assert len(await w.held("b4", 4)) == 5
        for kept in (keys.cookie_key("b3"), seen.key, keys.leaving_key("b3"), todo.key):
            assert await w.metadata.get(kept) is not None, "it runs, and deletes for itself"
        await _dies(w, "b3")
        await lost.observe_bookies()
        assert await lost.drain("b3")
        for gone in (keys.cookie_key("b3"), seen.key, keys.leaving_key("b3"), todo.key):
            assert await w.metadata.get(gone) is None
        await lost.observe_bookies()
        assert not lost.liveness.lost_bookies


async def test_a_drained_bookie_that_starts_in_that_moment_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It serves, and would be let in nowhere: it is forgotten when it is down."""
    async with world("b1", "b2", "b3", "b4") as w:
        await _is_to_leave(w, "b4")
        await _dies(w, "b4")
        lost = _lost(w)
        await lost.observe_bookies()
        get = w.metadata.get

        async def get_and_start(key: bytes) -> Any:
            found = await get(key)
            if key == keys.bookie_key("b4"):
                await w.metadata.transact(Transaction((), (Put(key, b"r"),)))
            return found

        monkeypatch.setattr(w.metadata, "get", get_and_start)
        assert await lost.drain("b4")

        assert await get(keys.cookie_key("b4")) is not None
        assert await get(keys.leaving_key("b4")) is not None
