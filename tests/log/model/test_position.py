"""Positions: what they say, what they prove (H141), and what they are told of the log since."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import incarnation_id, position_key
from distributedlog.log.model.position import Position
from distributedlog.log.services.named_positions import UNPROVEN, PositionRecord
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import InvalidRequest, LogRecreated, LogTruncated
from distributedlog.runtime.protocol.frames import pack
from tests.examples import examples
from tests.log.conftest import World
from tests.log.records import control_entry, everything, put, rec


@settings(max_examples=examples(50))
@given(
    st.integers(0, 2**63 - 1),
    st.tuples(st.integers(1, 10**10 - 1), st.integers(0, 10**15 - 1), st.integers(0, 10**7 - 1)),
    st.integers(0, 2**62),
)
def test_a_position_is_read_back_from_text_and_json(
    log_id: int, dlsn: tuple[int, int, int], sequence_id: int
) -> None:
    position = Position(f"{log_id:016x}", DLSN(*dlsn), sequence_id)

    assert Position.parse(str(position)) == position
    assert Position.from_json(position.to_json()) == position


def test_what_is_no_position_is_refused() -> None:
    for text in ("1.2.3", "9f3a/1.2.3/4", "0" * 16 + "/0.2.3/4", "0" * 16 + "/1.2/4", "", None):
        with pytest.raises(InvalidRequest):
            Position.parse(text)  # type: ignore[arg-type]
    for value in ({}, {"incarnation": "0" * 16, "dlsn": "1.2.3"}, None, "x"):
        with pytest.raises(InvalidRequest):
            Position.from_json(value)  # type: ignore[arg-type]


def test_positions_of_one_log_are_in_order_and_of_two_are_not() -> None:
    first, same = Position("a" * 16, DLSN(1, 2, 3), 5), Position("a" * 16, DLSN(2, 0, 0), 5)

    assert sorted([Position("a" * 16, DLSN(2, 0, 1), 6), same, first])[:2] == [first, same]
    with pytest.raises(InvalidRequest):
        sorted([first, Position("b" * 16, DLSN(1, 2, 3), 5)])


async def test_who_goes_on_at_a_position_has_each_record_once(
    world: World, autojump_clock: MockClock
) -> None:
    """However it was read: record by record, in bulk, as columns; over empty segments and control entries."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1, 2)
        async with log.open_writer():
            pass
        async with log.open_writer() as writer:
            await writer.write_bulk([rec(3), rec(4), rec(5)])
            ledger = next(w for w in world.ledgers.writers if not w.over and not w.closing)
            ledger.add(*control_entry(5, records_before=3))
            await writer.write(rec(6))
            await writer.commit()
            records = await everything(log)
            assert [r.txid for r in records] == [1, 2, 3, 4, 5, 6]

            for had in range(7):
                async with log.open_reader() as reader:
                    for _ in range(had):
                        await reader.read_next()
                assert reader.position is not None
                assert reader.position.sequence_id == had, "in the middle of an entry it was closed"
                async with log.open_reader() as reader:
                    for _ in range(had):
                        await reader.read_next()
                    position = reader.position
                    rest = await reader.read_columns_many(0)
                assert position is not None
                assert position.sequence_id == had
                async with log.open_reader(position=position, to="end") as reader:
                    assert reader.position == position
                    assert [r async for r in reader] == records[had:]
                    assert reader.position is not None
                    assert reader.position.sequence_id == 6
                async with log.open_reader() as reader:
                    assert len(await reader.read_bulk(max(1, had), wait_s=1)) == max(1, had)
                    assert reader.position is not None
                    assert reader.position.sequence_id == max(1, had)
                assert sum(columns.count for columns in rest) <= 6 - had
            async with log.open_reader(at="latest") as reader:
                assert reader.position is None
                await writer.write(rec(7))
                await reader.read_columns()
                assert reader.position is not None
                assert (
                    reader.position.sequence_id == (await log.snapshot()).position.sequence_id == 7
                )


async def test_a_position_proves_what_was_had_and_an_address_does_not(
    world: World, autojump_clock: MockClock
) -> None:
    """H141, H24: all bookies have forgotten how far is confirmed, and nobody writes on."""
    async with world.process() as ns:
        log = ns.open_log("l")
        writer = await log.open_writer()
        await writer.write_bulk([rec(1), rec(2)])
        await writer.commit()
        async with log.open_reader() as reader:
            assert await reader.read_next() == rec(1)
            position = reader.position
        assert position is not None
        assert position.dlsn == DLSN(1, 0, 1)
        assert await log.positions.advance("address", position.dlsn) == position.dlsn
        world.ledgers.stores[1].lac = -1

        assert await log.positions.proven("address") is None
        assert await log.positions.proven("nobody") is None
        async with log.open_reader(dlsn=position.dlsn) as reader:
            assert await reader.read_next(wait_s=5) is None
        assert await log.positions.advance("address", position) == position.dlsn  # now it is proved
        assert await log.positions.proven("address") == position
        await log.positions.advance("address", position.dlsn)  # and stays so
        proven = await log.positions.proven("address")
        async with log.open_reader(position=proven) as reader:
            assert await reader.read_next(wait_s=5) == rec(2)
        await writer.abort()


async def test_to_hold_and_to_let_go_keep_the_proof_and_nothing_is_written_twice(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1, 2)
        async with log.open_reader() as reader:
            await reader.read_next()
            position = reader.position
        assert position is not None
        key = position_key(incarnation_id((await log.snapshot()).incarnation), "cold")

        async def versions() -> list[int]:
            found = await world.metadata.get(key)
            return [] if found is None else [found.version]

        for hold, version in ((True, 1), (True, 1), (False, 2), (False, 2), (True, 3)):
            to = position if version == 1 else position.dlsn
            assert await log.positions.advance("cold", to, hold=hold) == position.dlsn
            assert await versions() == [version]
            assert await log.positions.proven("cold") == position
            assert list(await log.positions.holds()) == ["cold"] * hold
        assert (
            await log.positions.advance("cold", DLSN.INITIAL) == position.dlsn
        )  # it stands further
        assert list(await log.positions.holds()) == ["cold"]


async def test_a_position_that_an_older_program_stored_is_an_address(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1, 2)
        key = position_key(incarnation_id((await log.snapshot()).incarnation), "old")
        value = pack([1, [1, 1, 0], 99])
        assert PositionRecord.decode(value) == PositionRecord(DLSN(1, 1, 0), 99, UNPROVEN)
        await world.metadata.transact(Transaction((), (Put(key, value),)))

        assert await log.positions.get("old") == DLSN(1, 1, 0)
        assert await log.positions.proven("old") is None


async def test_a_position_tells_what_became_of_the_log(
    world: World, autojump_clock: MockClock
) -> None:
    """Truncated: how much was lost; made again: another log. The same place by another name is no loss."""
    async with world.process() as ns:
        log = ns.open_log("l")
        await put(log, 1, 2)
        await put(log, 3, 4)
        async with log.open_reader() as reader:
            positions = [reader.position]
            for _ in range(4):
                await reader.read_next()
                positions.append(reader.position)
        await log.truncate(DLSN(2, 0, 0))

        for lost, position in ((2, positions[0]), (1, positions[1])):
            with pytest.raises(LogTruncated, match=rf", {lost} records? (is|are) lost"):
                await log.open_reader(position=position)
        for left, position in ((2, positions[2]), (1, positions[3]), (0, positions[4])):
            async with log.open_reader(position=position, to="end") as reader:
                assert len([r async for r in reader]) == left

        await ns.delete_log("l")
        await put(log, 5)
        with pytest.raises(LogRecreated):
            await log.open_reader(position=positions[4])
        with pytest.raises(LogRecreated):
            await log.positions.advance("a", positions[4])  # type: ignore[arg-type]
        for bad in ({"position": positions[4], "txid": 1}, {"position": DLSN(1, 0, 0)}):
            with pytest.raises(InvalidRequest):
                log.open_reader(**bad)
