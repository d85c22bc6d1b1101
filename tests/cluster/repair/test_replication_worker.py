"""Noted holes are filled, against real bookies on loopback (H22, H22b)."""

import pytest

from distributedlog.cluster.repair.auditor_election import ELECTION_KEY, RepairLeaderElection
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_metadata import Fragment
from distributedlog.ledger.model.missing_range import MissingRange, decode_missing_ranges
from distributedlog.metadata.model.transaction import Put, Transaction
from tests.metadata.local_metadata import LocalMetadata

from ..bookie_world import BOOKIES, KEY, LEDGER
from ..bookie_world import world as _world


async def test_a_bookie_that_was_away_gets_the_same_bytes_and_the_note_goes() -> None:
    """H2: what is copied is the record as its writer made it."""
    async with _world() as world:
        for bookie in ("b1", "b2"):
            await world.write(bookie, range(100))
        await world.write("b3", range(30))
        await world.ledger(99)
        note = await world.note(MissingRange("b3", 25, None))

        assert await world.repair.repair(note)

        assert await world.held("b3", 99) == await world.held("b1", 99)
        assert len(await world.held("b3", 99)) == 100
        assert world.copier.copied_entries == 70  # 25 to 29 were there
        assert await world.metadata.get(keys.missing_ranges_key(LEDGER)) is None


async def test_a_bookie_that_fenced_the_ledger_takes_the_copies() -> None:
    """H2: the record does not say how it is added; on a fenced ledger a copy is a recovery add."""
    async with _world() as world:
        for bookie in ("b1", "b2"):
            await world.write(bookie, range(10))
        for bookie in BOOKIES:
            await world.pool.clients[bookie].fence(LEDGER, KEY, 5)
        await world.ledger(9)
        note = await world.note(MissingRange("b3", 0, None))

        assert await world.repair.repair(note)

        assert await world.held("b3", 9) == await world.held("b1", 9)
        assert len(await world.held("b3", 9)) == 10


async def test_an_open_ledger_is_left_to_its_writer() -> None:
    """H22b: the repair fences nobody; the writer goes on."""
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(None)
        note = await world.note(MissingRange("b3", 0, None))

        assert not await world.repair.repair(note)

        await world.write("b1", range(10, 20))
        assert await world.metadata.get(keys.missing_ranges_key(LEDGER)) is not None


async def test_a_note_that_nothing_was_done_of_is_not_written_again() -> None:
    """A change of a note has all notes looked at: it would go round, as fast as the store can."""
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(9)
        note = await world.note(MissingRange("b3", 0, None))
        del world.pool.clients["b3"]

        assert not await world.repair.repair(note)

        left = await world.metadata.get(keys.missing_ranges_key(LEDGER))
        assert left is not None
        assert left.mod_revision == note.mod_revision


async def test_what_is_down_stays_in_the_note_and_the_rest_is_done() -> None:
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(9)
        note = await world.note(MissingRange("b2", 0, None), MissingRange("b3", 0, None))
        away = world.pool.clients.pop("b3")

        assert not await world.repair.repair(note)

        left = await world.metadata.get(keys.missing_ranges_key(LEDGER))
        assert left is not None
        assert [hole.bookie for hole in decode_missing_ranges(left.value)] == ["b3"]
        assert len(await world.held("b2", 9)) == 10
        world.pool.clients["b3"] = away
        assert await world.repair.repair(left)
        assert await world.metadata.get(keys.missing_ranges_key(LEDGER)) is None


async def test_what_had_to_wait_is_tried_at_once_when_its_bookie_is_back() -> None:
    """A note that could not be worked off rests, but no longer than its reason lasts."""
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(9)
        await world.note(MissingRange("b3", 0, None))
        away = world.pool.clients.pop("b3")
        await world.repair.run_pass()

        world.pool.clients["b3"] = away
        await world.repair.run_pass()

        assert await world.noted() == ()
        assert len(await world.held("b3", 9)) == 10


async def test_a_note_that_grew_meanwhile_is_not_removed() -> None:
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(9)
        stale = await world.note(MissingRange("b3", 0, 5))
        await world.note(MissingRange("b3", 0, None))

        assert not await world.repair.repair(stale)

        assert await world.metadata.get(keys.missing_ranges_key(LEDGER)) is not None


async def test_without_any_source_nothing_is_lost_from_the_note() -> None:
    async with _world() as world:
        await world.ledger(9)
        note = await world.note(MissingRange("b3", 0, None))

        assert not await world.repair.repair(note)

        assert await world.metadata.get(keys.missing_ranges_key(LEDGER)) is not None


async def test_a_note_without_a_ledger_is_swept_up() -> None:
    async with _world() as world:
        assert await world.repair.repair(await world.note(MissingRange("b3", 0, None)))
        assert await world.metadata.get(keys.missing_ranges_key(LEDGER)) is None


async def test_one_bookie_is_elected_and_another_follows_when_its_lease_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each change of the role is told once."""
    caplog.set_level("INFO", logger="distributedlog.cluster.repair.replication_worker")
    metadata = LocalMetadata()
    leases = [await metadata.grant_lease(6000), await metadata.grant_lease(6000)]
    one = RepairLeaderElection(metadata, "b1", lambda: leases[0])
    two = RepairLeaderElection(metadata, "b2", lambda: leases[1])

    assert await one.is_elected()
    assert not await two.is_elected()
    await metadata.revoke_lease(leases[0])
    assert await two.is_elected()
    assert await two.is_elected()
    assert not await one.is_elected()
    told = ["this bookie repairs from now on"] * 2 + ["this bookie no longer repairs"]
    assert caplog.messages == told
    holder = await metadata.get(ELECTION_KEY)
    assert holder is not None
    assert holder.value == b"b2"


async def test_a_bookie_that_is_not_to_repair_keeps_nobody_who_is_from_it() -> None:
    """It does what else falls to the elected one, and held the election for as long as it lived."""
    metadata = LocalMetadata()
    leases = [await metadata.grant_lease(6000), await metadata.grant_lease(6000)]
    idle = RepairLeaderElection(metadata, "b1", lambda: leases[0], repairs=False)
    able = RepairLeaderElection(metadata, "b2", lambda: leases[1])

    async def register(bookie: str, pulls: bool) -> None:
        value = BookieRegistration(bookie, {"": ("h", 1)}, copies_assigned_ledgers=pulls).encode()
        await metadata.transact(Transaction((), (Put(keys.bookie_key(bookie), value),)))

    await register("b1", False)
    assert await idle.is_elected()  # nobody is to repair: somebody has to purge

    await register("b2", True)
    assert not await able.is_elected()
    assert not await idle.is_elected()  # and gives it up
    assert await able.is_elected()
    assert not await idle.is_elected()


async def test_a_hole_of_a_bookie_that_is_no_member_any_more_goes_though_it_is_down() -> None:
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(9)
        note = await world.note(MissingRange("gone", 0, None))

        assert await world.repair.repair(note)


async def test_a_replica_in_limbo_does_not_keep_another_from_serving_the_copies() -> None:
    """A source that says nothing is passed over, as one that is down."""
    async with _world("b1", "b2", "b3") as world:
        await world.write("b2", range(10))
        world.stores["b1"].ledgers.limbo_below = 100
        await world.ledger(9, ensembles=(Fragment(0, ("b1", "b2", "b3"), 0),))
        note = await world.note(MissingRange("b3", 0, None))

        assert await world.repair.repair(note)

        assert len(await world.held("b3", 9)) == 10


async def test_notes_that_cannot_be_read_keep_no_other_from_its_copies() -> None:
    """Whoever wrote them, and wherever they stand in the order of keys."""
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(9)
        await world.note(MissingRange("b3", 0, None))
        poison = (
            b"under/",
            b"under/x",
            keys.missing_ranges_key(LEDGER) + b"0",
            keys.missing_ranges_key(0),
        )
        puts = tuple(Put(key, b"\xc1 no note") for key in poison)
        await world.metadata.transact(Transaction((), puts))

        await world.repair.run_pass()

        assert len(await world.held("b3", 9)) == 10
        assert await world.metadata.get(keys.missing_ranges_key(LEDGER)) is None


async def test_a_key_without_a_lease_is_nobodys_election() -> None:
    """Put there by anybody, it would stay for ever, and nobody would repair."""
    metadata = LocalMetadata()
    lease = await metadata.grant_lease(5000)
    await metadata.transact(Transaction((), (Put(ELECTION_KEY, b"evil"),)))

    assert await RepairLeaderElection(metadata, "b1", lambda: lease).is_elected()

    held = await metadata.get(ELECTION_KEY)
    assert held is not None
    assert (held.value, held.lease) == (b"b1", lease)


async def test_what_is_left_and_what_waits_is_counted() -> None:
    """For `dlog_cluster_underreplicated_ledgers` and `dlog_cluster_blocked_ledgers`."""
    async with _world() as world:
        await world.write("b1", range(10))
        await world.ledger(9)
        await world.note(MissingRange("b3", 0, None))
        away = world.pool.clients.pop("b3")
        await world.repair.run_pass()

        assert (world.repair.remaining, world.repair.blocked_records) == (1, 1)

        world.pool.clients["b3"] = away
        await world.repair.run_pass()

        assert (world.repair.remaining, world.repair.blocked_records) == (0, 0)
