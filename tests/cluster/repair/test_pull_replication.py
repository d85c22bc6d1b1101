"""Ledgers are fetched by who takes a lost bookie's place: handed over, taken back, never done twice."""

import random
from collections.abc import Callable, Iterable

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.repair.copier import Copier, EntryRange
from distributedlog.cluster.repair.decommission import decommission_status, request_decommission
from distributedlog.cluster.repair.lost_bookies import (
    BookieLiveness,
    LostBookieRepair,
    RepairTargets,
)
from distributedlog.cluster.repair.pull_replication import (
    HEARTBEAT_S,
    STALE_MOVE_S,
    MoveQueue,
    PullReplication,
    ReplicaMove,
)
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.placement.ensemble_placement import Candidate
from distributedlog.metadata.model.interface import Scan
from distributedlog.metadata.model.transaction import Delete, KeyValue, Put, Transaction

from ..bookie_world import BOOKIES, LEDGER, World, world


def _lost(
    w: World,
    pulls: Callable[[str], bool] = lambda bookie: True,
    candidates: Callable[[], list[Candidate]] | None = None,
) -> LostBookieRepair:
    return LostBookieRepair(
        w.metadata,
        w.pool,
        w.election,
        w.copier,
        RepairTargets(candidates or w.candidates, random.Random(1).random, can_pull=pulls),
        BookieLiveness(0.0),
    )


async def _stored(w: World) -> None:
    for bookie in BOOKIES:
        await w.write(bookie, range(5))
    await w.ledger(4)


async def _put(w: World, *operations: Put | Delete) -> None:
    await w.metadata.transact(Transaction((), operations))


async def _dies(w: World, bookie: str) -> None:
    w.pool.clients.pop(bookie, None)
    await _put(w, Delete(keys.bookie_key(bookie)))


async def _moves(w: World) -> list[KeyValue]:
    return [item async for item in Scan(w.metadata, keys.MOVE_PREFIX)]


async def _pass(lost: LostBookieRepair) -> None:
    await lost.observe_bookies()
    await lost.run_jobs(await lost.find_jobs())


async def test_who_takes_the_place_fetches_the_entries_and_swaps_itself_in() -> None:
    async with world(*BOOKIES, "b4") as w:
        await _stored(w)
        await _dies(w, "b3")
        lost = _lost(w)

        await _pass(lost)
        await _pass(lost)  # and is asked once

        (asked,) = await _moves(w)
        assert asked.key == keys.move_key("b4", LEDGER)
        assert (await w.record()).bookies() == BOOKIES
        assert w.copier.copied_entries == 0
        await request_decommission(w.metadata, "b3")
        assert [
            one.why for one in (await decommission_status(w.metadata, "b3", waiting_max=9)).waiting
        ] == ["bookie b4 fetches it"]

        own = Copier(w.pool)
        pulling = PullReplication(w.metadata, w.pool, own, "b4")
        await pulling.run_pass()

        assert (pulling.pulled_ledgers, own.copied_entries) == (1, 5)
        assert (await w.record()).bookies() == ("b1", "b2", "b4")
        assert await w.ids("b4") == list(range(5))
        assert await _moves(w) == []


async def test_where_nobody_fetches_it_is_done_here() -> None:
    """Bookies of an older version; a ledger in which no one can take the place everywhere."""
    async with world(*BOOKIES, "b4") as w:
        await _stored(w)
        await _dies(w, "b3")
        old = _lost(w, pulls=lambda bookie: False)

        await _pass(old)

        assert (await w.record()).bookies() == ("b1", "b2", "b4")
        assert await _moves(w) == []


async def test_a_bookie_that_is_back_keeps_what_it_has() -> None:
    """H99: also where its ledger is being fetched at this moment: the swap fails."""
    async with world(*BOOKIES, "b4") as w:
        await _stored(w)
        connection = w.pool.clients["b3"]
        await _dies(w, "b3")
        lost = _lost(w)
        await _pass(lost)
        (asked,) = await _moves(w)

        class ComesBack(Copier):
            """While the copy is under way."""

            async def copy(
                self,
                metadata: LedgerMetadata,
                stretches: Iterable[EntryRange],
                bookie: str,
                target: object,
            ) -> int:
                done = await super().copy(metadata, stretches, bookie, target)  # type: ignore[arg-type]
                w.pool.clients["b3"] = connection
                await w.register("b3")
                await _pass(lost)
                return done

        pulling = PullReplication(w.metadata, w.pool, ComesBack(w.pool), "b4")
        assert not await pulling.pull_ledger(asked, ReplicaMove.decode(asked.value))

        assert (await w.record()).bookies() == BOOKIES
        assert await _moves(w) == []
        await pulling.run_pass()
        assert pulling.pulled_ledgers == 0


async def test_a_bookie_that_was_started_again_meanwhile_does_not_swap_itself_in() -> None:
    """H116: what it holds now is looked at anew."""
    async with world(*BOOKIES, "b4") as w:
        await _stored(w)
        await _dies(w, "b3")
        lost = _lost(w)
        await _pass(lost)

        class StartsAgain(Copier):
            """Before the copy is done."""

            async def copy(
                self,
                metadata: LedgerMetadata,
                stretches: Iterable[EntryRange],
                bookie: str,
                target: object,
            ) -> int:
                await _put(w, Put(keys.cookie_key("b4"), b"c"))
                return await super().copy(metadata, stretches, bookie, target)  # type: ignore[arg-type]

        pulling = PullReplication(w.metadata, w.pool, StartsAgain(w.pool), "b4")
        await pulling.run_pass()
        assert (pulling.pulled_ledgers, (await w.record()).bookies()) == (0, BOOKIES)

        again = PullReplication(w.metadata, w.pool, Copier(w.pool), "b4")
        await again.run_pass()
        assert (again.pulled_ledgers, (await w.record()).bookies()) == (1, ("b1", "b2", "b4"))


async def test_what_nobody_works_off_is_taken_back_and_done_here(
    autojump_clock: MockClock,
) -> None:
    """And what is worked on, for however long, is not."""
    w = World(None)  # type: ignore[arg-type]
    for bookie in (*BOOKIES, "b4", "b5"):
        await w.register(bookie)
        w.pool.clients[bookie] = object()  # type: ignore[assignment]
    await w.ledger(4)
    await _dies(w, "b3")
    lost, moved = _lost(w), []

    async def move(ledger_id: int, bookie: str) -> bool:
        moved.append(trio.current_time())
        return True

    lost.move_ledger = move  # type: ignore[method-assign]
    worked_on = [True]

    async def work() -> None:
        (asked,) = await _moves(w)
        pulling = PullReplication(w.metadata, w.pool, w.copier, "")
        with trio.move_on_after(STALE_MOVE_S * 3):
            await pulling.pull_ledger(asked, ReplicaMove.decode(asked.value))
        worked_on[0] = False

    async def forever(*_: object) -> bool:
        await trio.sleep_forever()
        raise AssertionError

    pull = pytest.MonkeyPatch()
    pull.setattr(PullReplication, "_copy_and_swap", forever)
    try:
        async with trio.open_nursery() as nursery:
            await _pass(lost)
            nursery.start_soon(work)
            while not moved:
                await trio.sleep(5)
                await _pass(lost)
                assert not (worked_on[0] and moved)
    finally:
        pull.undo()

    assert STALE_MOVE_S * 4 - HEARTBEAT_S <= moved[0] <= STALE_MOVE_S * 4 + 10
    assert await _moves(w) == []
    await _pass(lost)
    assert len(await _moves(w)) == 1, "then somebody is asked again"


async def test_a_drain_goes_on_over_an_election_and_who_knows_nothing_takes_nothing_back() -> None:
    """The next one who repairs has not looked yet; who is not elected never does."""
    async with world(*BOOKIES, "b4") as w:
        await _stored(w)
        await request_decommission(w.metadata, "b3")
        first = _lost(w, candidates=lambda: [one for one in World.candidates(w) if one.id == "b4"])
        w.candidates = lambda: []  # type: ignore[method-assign]
        await _pass(first)
        assert len(await _moves(w)) == 1

        other = _lost(w)
        await other.find_jobs()
        assert len(await _moves(w)) == 1
        await _pass(other)
        assert len(await _moves(w)) == 1

        await PullReplication(w.metadata, w.pool, w.copier, "b4").run_pass()
        assert (await w.record()).bookies() == ("b1", "b2", "b4")


async def test_a_target_is_asked_for_so_many_at_a_time_the_most_urgent_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("distributedlog.cluster.repair.pull_replication.OUT_MAX", 2)
    w = World(None)  # type: ignore[arg-type]
    out = MoveQueue(w.metadata, lambda bookie: True)
    for number, (kind, size) in enumerate([(0, 9), (2, 5), (1, 1)]):
        ledger = LedgerMetadata(number, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16))
        await _put(w, Put(keys.ledger_key(number), ledger.encode()))
        assert await out.hand_over(ledger, 1, "b4", ReplicaMove("b3", kind, size))
    assert [ReplicaMove.decode(item.value).priority for item in await _moves(w)] == [0, 2]
    assert out.pending_moves == {(0, "b3"), (1, "b3")}

    seen: list[int] = []
    pulling = PullReplication(w.metadata, w.pool, w.copier, "b4")

    async def pull(item: KeyValue, move: ReplicaMove) -> bool:
        seen.append(move.priority)
        return True

    pulling.pull_ledger = pull  # type: ignore[method-assign]
    await pulling.run_pass()
    assert seen == [0, 2]
