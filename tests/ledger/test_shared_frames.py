"""Writers of several ledgers whose entries share frames, over real bookies (H165, H167)."""

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.bookie.client import BookieClient
from distributedlog.ledger.client import LedgerClient
from distributedlog.ledger.writer import LedgerWriter
from distributedlog.runtime.frames import Op

from .test_real_bookies import RealCluster

NAMES = ("b1", "b2", "b3")


async def begun(
    nursery: trio.Nursery, ledgers: int
) -> tuple[RealCluster, LedgerClient, list[LedgerWriter]]:
    cluster = RealCluster(nursery)
    for name in NAMES:
        await cluster.start(name)
    client = await cluster.client()
    await trio.sleep(1)
    writers = [await client.create() for _ in range(ledgers)]
    await trio.sleep(1)
    beat(client, writers)
    assert all([writer._window._frames for writer in writers])
    await trio.sleep(1)
    return cluster, client, writers


def beat(client: LedgerClient, writers: list[LedgerWriter]) -> None:
    """One entry of each, in one frame."""
    client.gather()
    for writer in writers:
        writer.add([b"%d" % writer.last_entry], len(b"%d" % writer.last_entry))
    client.send_gathered()


def connections(client: LedgerClient) -> list[BookieClient]:
    return [one for name in NAMES if (one := client.pool.get(name)) is not None]


def lacs(cluster: RealCluster, writer: LedgerWriter) -> list[int]:
    key = writer._change.metadata.key
    return [cluster.stores[name].ledgers.look_up(writer.ledger_id, key).lac for name in NAMES]


async def test_frames_are_confirmed_and_their_lacs_told(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cluster, client, writers = await begun(nursery, 20)
    for _ in range(10):
        beat(client, writers)
        await trio.sleep(0.003)
    await trio.sleep(0.1)
    for writer in writers:
        assert (writer.lac, writer.in_flight_bytes) == (10, 0)
        assert lacs(cluster, writer) == [10] * 3
        shared = writer._streams.shared
        assert shared is not None
        assert shared.newest is not None
        assert shared.newest.streams == [], "an idle ledger keeps no other one"
    assert client._sent.bytes == 0
    await trio.sleep(3)
    assert not any(writer._swept for writer in writers), "nothing is left to be looked at"
    assert all([(await writer.close()).last_entry == 10 for writer in writers])
    nursery.cancel_scope.cancel()


Held = dict[BookieClient, list[bytes]]


def held_acks(client: LedgerClient, monkeypatch: pytest.MonkeyPatch) -> Held:
    """What bookies acknowledge from now on, for `acknowledge`."""
    held: Held = {connection: [] for connection in connections(client)}
    for connection in held:
        monkeypatch.setattr(connection.link, "on_frame", partial(_hold, held, connection))
    return held


def _hold(held: Held, of: BookieClient, op: int, flags: int, *rest: Any) -> None:
    if op == Op.ADD_ACKS:
        held[of].append(bytes(rest[-1]))
    else:
        of._on_frame(op, flags, *rest)


def acknowledge(of: BookieClient, acks: bytes) -> None:
    of._on_frame(Op.ADD_ACKS, 0, 0, 0, memoryview(acks))


async def test_two_frames_that_are_acknowledged_at_once_rest_as_one(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H167: the first one confirms the second one's entries, too, whose LAC is to be told all the same."""
    cluster, client, writers = await begun(nursery, 3)
    held = held_acks(client, monkeypatch)
    for _ in range(2):
        beat(client, writers)
        await trio.sleep(0.5)
    assert {len(acks) for acks in held.values()} == {2}
    for connection, acks in held.items():
        acknowledge(connection, b"".join(acks))

    assert [writer.lac for writer in writers] == [2] * 3
    await trio.sleep(0.1)
    assert [lacs(cluster, writer) for writer in writers] == [[2] * 3] * 3
    nursery.cancel_scope.cancel()


async def test_a_frame_that_is_acknowledged_in_another_order_confirms_the_same(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stream by stream, and what a slot has is what its own bookie said."""
    _, client, writers = await begun(nursery, 5)
    held = held_acks(client, monkeypatch)
    beat(client, writers)
    await trio.sleep(0.1)
    first, second, third = held
    acknowledge(first, held[first][0])
    for writer in writers[:2]:
        assert {slot.bookie: slot.through for slot in writer._window.slots} == {
            one.bookie_id: int(one is first) for one in held
        }
    acks = held[second][0]
    acknowledge(second, b"".join([acks[n : n + 16] for n in range(0, len(acks), 16)][::-1]))
    assert [writer.lac for writer in writers] == [1] * 5
    acknowledge(third, held[third][0])
    assert all([writer._window.at_rest for writer in writers])
    assert client._sent.bytes == 0
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["stop", "fence"])
async def test_what_goes_wrong_with_one_is_counted_slot_by_slot(
    how: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A bookie that goes while frames are under way costs no entry; a fenced ledger ends alone."""
    cluster, client, writers = await begun(nursery, 8)
    if how == "fence":
        first = writers[0]
        for bookie in connections(client):
            await bookie.fence(first.ledger_id, first._change.metadata.key, 5)
    for round_ in range(40):
        if how == "stop" and round_ == 7:
            await cluster.stop("b2")
        beat(client, [writer for writer in writers if writer.error is None])
        await trio.sleep(0.2)
    ended = [writer for writer in writers if writer.error is not None]
    assert ended == (writers[:1] if how == "fence" else [])
    for writer in writers:
        if writer not in ended:
            assert (writer.lac, writer.in_flight_bytes) == (40, 0)
            assert (await writer.close()).last_entry == 40
    nursery.cancel_scope.cancel()


async def test_who_waits_for_room_or_rest_hears_of_each_acknowledgement(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """`settle` waits for slots that lag, of which a frame says nothing after its quorum."""
    _, client, writers = await begun(nursery, 4)
    beat(client, writers)
    began = trio.current_time()
    for writer in writers:
        await writer.settle()
    assert trio.current_time() - began < 0.1
    assert all([writer._window.at_rest for writer in writers])
    nursery.cancel_scope.cancel()
