"""A frame of many ledgers' entries is acknowledged as one, or its streams one by one (H1, H165)."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.bookie import messages as m
from distributedlog.bookie.client import (
    SHARED_BYTES_MAX,
    SHARED_ENTRY_BYTES,
    AddStream,
    BookieClient,
    SharedFrame,
    SharedStreams,
)
from distributedlog.bookie.entry import HEADER
from distributedlog.bookie.session import BookieSession
from distributedlog.runtime.errors import DistributedLogError, LedgerFenced, ProtocolError
from distributedlog.runtime.frames import Op

from .kit import KEY, OPTIONS, read_all, record
from .test_common_frames import Bookies

Clock = trio.testing.MockClock
NAMES = ("b1", "b2", "b3")


class Owner:
    """Of one ledger on three connections: what it was told."""

    def __init__(self, clients: list[BookieClient], ledger: int, *, quorum: int = 2) -> None:
        self.ledger = ledger
        self.confirmed: list[tuple[SharedFrame, bool]] = []
        self.frames: list[SharedFrame] = []
        self.left: list[SharedFrame] = []
        self.acked: list[tuple[str, int]] = []
        self.progress = 0
        self.refused: list[str] = []
        self.broke: list[Exception] = []
        self.fails: Exception | None = None
        self.lac = -1
        self.streams = [self._open(client) for client in clients]
        shared = self.streams[0].together(self.streams, quorum, self)
        assert shared is not None
        self.shared: SharedStreams = shared

    def _open(self, client: BookieClient) -> AddStream:
        def on_acked(count: int) -> bool:
            self.acked.append((client.bookie_id, count))
            for frame in self.frames:  # as a window does: from now on it counts its streams
                if not frame.is_whole and frame not in self.left:
                    self.left.append(frame)
                    frame.leave(self.shared)
            return True

        def on_refused(position: int, error: DistributedLogError) -> None:
            self.refused.append(f"{client.bookie_id}: {type(error).__name__}")

        return client.open_stream(
            self.ledger,
            KEY,
            recovery=False,
            fragment_epoch=0,
            on_acked=on_acked,
            on_refused=on_refused,
            on_progress=self._on_progress,
            on_broken=self.broke.append,
        )

    def _on_progress(self) -> None:
        self.progress += 1

    def on_frame_acked(self, frame: SharedFrame, *, watched: bool) -> None:
        self.confirmed.append((frame, watched))
        if self.fails is not None:
            raise self.fails

    def rested_lac(self, streams: SharedStreams) -> int:
        assert streams is self.shared
        if self.fails is not None:
            raise self.fails
        return self.lac

    def broken(self, error: Exception) -> None:
        self.broke.append(error)

    def add(self, entry: int, size: int = 100) -> SharedFrame | None:
        frame = self.shared.add(record(self.ledger, entry, bytes(size)))
        self.frames += [frame] if frame is not None else []
        return frame


class World:
    """Three bookies, connections to them, and ledgers that share."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.bookies = Bookies(nursery)
        self.clients: list[BookieClient] = []
        self.owners: list[Owner] = []

    async def begin(self, ledgers: int, *, quorum: int = 2, sync_s: float = 0.0) -> None:
        self.clients = [await self.bookies.start(name, OPTIONS, sync_s=sync_s) for name in NAMES]
        for n, client in enumerate(self.clients):  # streams have other numbers on each connection
            for ledger in range(n):
                client.open_stream(
                    90 + ledger,
                    KEY,
                    recovery=False,
                    fragment_epoch=0,
                    on_acked=lambda count: None,
                    on_refused=lambda position, error: None,
                )
        self.owners = [Owner(self.clients, n + 1, quorum=quorum) for n in range(ledgers)]
        await trio.sleep(1)

    def gather(self) -> None:
        for client in self.clients:
            client.link.gather()

    def send(self) -> None:
        for client in self.clients:
            client.link.send_gathered()

    def beat(self, entry: int) -> SharedFrame:
        """One entry of each, in one frame."""
        self.gather()
        frames = {owner.add(entry) for owner in self.owners}
        self.send()
        (frame,) = frames
        assert frame is not None
        return frame

    def said(self, bookie: int, *pairs: tuple[int, int], watched: bool = False) -> None:
        """An ADD_ACKS of that bookie: of so many of these owners' records."""
        numbers = [owner.streams[bookie].number for owner in self.owners]
        body = m.encode_acks([(numbers[owner], count) for owner, count in pairs])
        flags = m.ACK_WATCHED if watched else 0
        self.clients[bookie]._on_frame(Op.ADD_ACKS, flags, 0, 0, memoryview(body))


async def in_world(
    check: Callable[[World], Any], *, ledgers: int = 3, quorum: int = 2, silent: bool = True
) -> None:
    """``silent``: the bookies acknowledge nothing for some seconds."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        await world.begin(ledgers, quorum=quorum, sync_s=5.0 if silent else 0.0)
        found = check(world)
        if found is not None:
            await found
        nursery.cancel_scope.cancel()


async def test_a_whole_frame_is_told_once_at_its_quorum(autojump_clock: Clock) -> None:
    """On real bookies; nobody hears of single streams."""

    async def check(world: World) -> None:
        for entry in range(30):
            frame = world.beat(entry)
            await trio.sleep(1)
            assert (frame.acks, frame.acked, frame.is_whole) == (3, 0b111, True)
            for owner in world.owners:
                assert [one for one, _ in owner.confirmed].count(frame) == 1
        for owner in world.owners:
            assert (owner.acked, owner.left, owner.refused) == ([], [], [])
            assert [stream.sent for stream in owner.streams] == [30] * 3
        for name in NAMES:
            for owner in world.owners:
                held = await read_all(world.bookies.stores[name], owner.ledger)
                assert list(held) == list(range(30))
        assert not any(client.expected for client in world.clients)

    await in_world(check, ledgers=20, silent=False)


@pytest.mark.parametrize("quorum", [1, 2, 3])
async def test_it_is_told_at_the_quorum_and_not_before(quorum: int, autojump_clock: Clock) -> None:
    def check(world: World) -> None:
        frame = world.beat(0)
        for acks, bookie in enumerate((2, 0, 1), 1):
            world.said(bookie, (0, 1), (1, 1), (2, 1))
            assert frame.acks == acks
            assert frame.is_whole == (acks == 3)
            told = [len(owner.confirmed) for owner in world.owners]
            assert told == [int(acks >= quorum)] * 3

    await in_world(check, quorum=quorum)


async def test_what_is_said_in_another_way_is_counted_stream_by_stream(
    autojump_clock: Clock,
) -> None:
    """A part, another order, a stream more before it: nothing is taken for the whole that is not."""

    def check(world: World) -> None:
        frame = world.beat(0)
        world.said(0, (0, 1), (1, 1))
        assert frame.acks == 0
        assert [owner.acked for owner in world.owners] == [[("b1", 1)], [("b1", 1)], []]
        assert [owner.left for owner in world.owners] == [[frame], [frame], []]
        world.said(0, (2, 1))
        assert world.owners[2].acked == [("b1", 1)]

        world.said(1, (0, 1), (1, 1), (2, 1))  # whole, but they have left it
        assert frame.acks == 1
        assert [owner.acked[-1] for owner in world.owners] == [("b2", 1)] * 3
        world.said(2, (2, 1), (1, 1), (0, 1))
        assert frame.acks == 1
        assert [owner.acked[-1] for owner in world.owners] == [("b3", 1)] * 3
        assert [len(owner.confirmed) for owner in world.owners] == [0] * 3
        assert not any(client.expected for client in world.clients)

    await in_world(check)


async def test_two_frames_of_one_commit_are_both_matched(autojump_clock: Clock) -> None:
    """One after the other, also with what others sent by themselves between them, and in one that goes
    further: a bookie says of a stream how far it is, once."""

    async def check(world: World) -> None:
        one, two, three = world.owners
        world.gather()
        first = one.add(0)
        assert first is not None
        assert two.add(0) is first
        world.send()
        three.shared.send(record(3, 0))
        world.gather()
        second = two.add(1)
        assert second is not None
        assert second is not first
        world.send()
        await trio.sleep(0.1)  # all has left

        world.said(0, (0, 1), (1, 2), (2, 1))

        assert (first.acks, second.acks) == (1, 0)
        assert (one.acked, two.acked, three.acked) == ([], [("b1", 2)], [("b1", 1)])
        world.said(1, (0, 1), (1, 1), (2, 1), (1, 2))
        assert (first.acks, second.acks) == (2, 1)
        assert three.acked == [("b1", 1), ("b2", 1)]
        assert [frame for frame, _ in one.confirmed] == [first]

    await in_world(check)


async def test_a_ledger_is_in_a_frame_once(autojump_clock: Clock) -> None:
    """A bookie says of a stream one number: its second record goes in the next frame."""

    async def check(world: World) -> None:
        world.gather()
        frames = [world.owners[0].add(entry) for entry in range(5)]
        world.send()
        assert len(set(frames)) == 5
        await trio.sleep(1)
        for store in world.bookies.stores.values():
            assert list(await read_all(store, 1)) == list(range(5))

    await in_world(check, silent=False)


async def test_large_records_go_by_themselves_and_count(autojump_clock: Clock) -> None:
    async def check(world: World) -> None:
        owner = world.owners[0]
        world.beat(0)
        await trio.sleep(1)
        world.gather()
        assert owner.add(1, SHARED_ENTRY_BYTES) is None
        owner.shared.send(record(1, 1, bytes(SHARED_ENTRY_BYTES)))
        world.send()
        await trio.sleep(1)
        frame = world.beat(2)
        await trio.sleep(1)
        assert frame.is_whole
        assert sorted(owner.acked) == [(name, 2) for name in NAMES]
        assert [stream.sent for stream in owner.streams] == [3] * 3

    await in_world(check, ledgers=1, silent=False)


async def test_more_than_was_sent_is_believed_of_nobody(autojump_clock: Clock) -> None:
    def check(world: World) -> None:
        frame = world.beat(0)
        with pytest.raises(ProtocolError, match="2 records acked, 1 sent"):
            world.said(0, (0, 1), (1, 2), (2, 1))
        assert len(world.owners[0].confirmed) == 0
        assert frame.acks == 1  # what is sound of it counts: so far all have acknowledged it
        with pytest.raises(ProtocolError, match="not whole pairs"):
            world.clients[1]._on_frame(Op.ADD_ACKS, 0, 0, 0, memoryview(b"12345"))

    await in_world(check)


async def test_what_breaks_at_one_owner_is_told_to_it_alone(autojump_clock: Clock) -> None:
    def check(world: World) -> None:
        frame = world.beat(0)
        fault = world.owners[1].fails = ValueError("a rule of ours")
        for bookie in range(2):
            world.said(bookie, (0, 1), (1, 1), (2, 1))
        assert [len(owner.confirmed) for owner in world.owners] == [1, 1, 1]
        assert [owner.broke for owner in world.owners] == [[], [fault], []]
        frame.tell(0)
        assert [owner.broke for owner in world.owners] == [[], [fault, fault], []]

    await in_world(check)


async def test_a_connection_that_ends_leaves_the_frame_to_the_others(autojump_clock: Clock) -> None:
    def check(world: World) -> None:
        frame = world.beat(0)
        world.clients[0]._on_link_closed(DistributedLogError("cut"))
        assert [owner.refused for owner in world.owners] == [["b1: ConnectionLost"]] * 3
        assert not world.clients[0].expected
        for bookie in (1, 2):
            world.said(bookie, (0, 1), (1, 1), (2, 1))
        assert (frame.acks, frame.is_whole) == (2, False)
        assert [len(owner.confirmed) for owner in world.owners] == [1, 1, 1]

    await in_world(check)


async def test_a_stream_that_is_refused_leaves_the_frame_to_be_counted(
    autojump_clock: Clock,
) -> None:
    """A fenced ledger's record is not there; the bookie acknowledges the others."""

    async def check(world: World) -> None:
        await world.clients[1].fence(2, KEY, 5)
        frame = world.beat(0)
        await trio.sleep(1)
        assert [owner.refused for owner in world.owners] == [[], ["b2: LedgerFenced"], []]
        assert LedgerFenced.fatal_to_writer
        assert (frame.acked, frame.is_whole) == (0b101, False)
        assert ("b2", 1) in world.owners[0].acked
        assert ("b2", 1) in world.owners[2].acked
        assert not any(client.expected for client in world.clients)

    await in_world(check, silent=False)


async def test_who_waits_for_a_lac_is_told_of_with_the_frame(autojump_clock: Clock) -> None:
    """At whichever of the bookies, also at the last one; and no longer than it is said."""

    def check(world: World) -> None:
        def beat(entry: int, *flags: bool) -> list[bool]:
            world.beat(entry)
            for bookie, watched in enumerate(flags):
                world.said(bookie, *((n, entry + 1) for n in range(3)), watched=watched)
            return [owner.confirmed[-1][1] for owner in world.owners]

        assert beat(0, False, False, False) == [False] * 3
        assert beat(1, True, False, False) == [True] * 3
        assert [one.watched for one in world.owners[0].streams] == [True, False, False]
        assert beat(2, False, False, True) == [False] * 3  # it came after the quorum
        assert beat(3, False, False, True) == [True] * 3
        assert beat(4, False, False, False) == [True] * 3
        assert beat(5, False, False, False) == [False] * 3
        assert [one.watched for one in world.owners[0].streams] == [False] * 3

    await in_world(check)


async def test_lacs_of_a_frame_are_told_together_unless_an_add_says_them(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H167: one frame a connection, of those alone that have rested."""
    came: list[tuple[str, int, int]] = []
    on_frame = BookieSession.on_frame

    def noted(self: BookieSession, op: int, *rest: Any) -> None:
        came.append((self._store.bookie_id, op, len(m.decode_lacs(rest[4]))))
        on_frame(self, op, *rest)

    async def check(world: World) -> None:
        frame = world.beat(0)
        frame.is_told = True  # as an owner says at the quorum
        await trio.sleep(1)
        one, two, three = world.owners
        one.lac = two.lac = three.lac = 0
        world.gather()
        assert two.add(1) is not None
        world.send()
        three.lac = -1  # its owner says that nothing is to be told
        await trio.sleep(1)
        monkeypatch.setattr(BookieSession, "on_frame", noted)

        frame.tell(0)
        await trio.sleep(1)

        assert sorted(came) == [(name, Op.WRITE_LACS, 1) for name in NAMES]
        for store in world.bookies.stores.values():
            assert store.ledgers.look_up(1, KEY).lac == 0
            assert store.ledgers.look_up(3, KEY).lac == -1

    await in_world(check, silent=False)


async def test_who_shares_is_not_sent_to_by_itself(autojump_clock: Clock) -> None:
    """Its count would not be the frame's; where it shares no more it counts on."""

    def check(world: World) -> None:
        owner = world.owners[0]
        world.beat(0)
        with pytest.raises(AssertionError, match="SharedStreams"):
            owner.streams[0].send(record(1, 1))
        owner.shared.end()
        assert [stream.sent for stream in owner.streams] == [1] * 3
        owner.streams[0].send(record(1, 1))
        assert [stream.sent for stream in owner.streams] == [2, 1, 1]
        again = owner.streams[0].together(owner.streams, 2, owner)
        assert again is not None
        assert again.before == tuple([one.sent for one in again.streams])

    await in_world(check)


async def test_other_streams_in_the_place_of_its_own_acknowledge_nothing_of_it(
    autojump_clock: Clock,
) -> None:
    """As many, and further: but one of them is not in the frame."""

    def check(world: World) -> None:
        one, two, three = world.owners
        three.shared.send(record(3, 0))
        world.gather()
        frame = one.add(0)
        assert frame is not None
        assert two.add(0) is frame
        world.send()
        world.said(0, (0, 1), (2, 1))
        assert (frame.acks, two.acked) == (0, [])
        assert (one.acked, three.acked) == ([("b1", 1)], [("b1", 1)])

    await in_world(check)


async def test_what_goes_by_itself_does_not_pass_what_was_gathered(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: its acknowledgement would be taken for that of the record before it."""
    came: list[int] = []
    on_frame = BookieSession.on_frame

    def noted(self: BookieSession, op: int, *rest: Any) -> None:
        if op == Op.ADD and self._store.bookie_id == "b2":
            came.append(HEADER.unpack_from(rest[4])[7])
        on_frame(self, op, *rest)

    async def check(world: World) -> None:
        owner = world.owners[0]
        world.gather()
        owner.add(0)
        owner.shared.send(record(1, 1, bytes(SHARED_ENTRY_BYTES)))
        owner.add(2)
        owner.shared.end()
        for stream in owner.streams:
            stream.send(record(1, 3))
        world.send()
        await trio.sleep(1)
        assert came == [0, 1, 2, 3]

    monkeypatch.setattr(BookieSession, "on_frame", noted)
    await in_world(check, ledgers=1, silent=False)


async def test_nothing_is_expected_of_a_connection_that_is_closed(autojump_clock: Clock) -> None:
    def check(world: World) -> None:
        world.clients[2].link.close(DistributedLogError("cut"))
        frame = world.beat(0)
        assert [len(client.expected) for client in world.clients] == [1, 1, 0]
        frame.broken(fault := ValueError("it could not be told"))
        assert [owner.broke for owner in world.owners] == [[fault]] * 3

    await in_world(check)


async def test_what_streams_were_sent_before_is_in_their_counts(autojump_clock: Clock) -> None:
    async def check(world: World) -> None:
        owner = world.owners[0]
        owner.shared.end()
        for stream in owner.streams[:2]:  # as one that was opened later, or has less to catch up
            stream.send(record(1, 0))
        shared = owner.streams[0].together(owner.streams, 2, owner)
        assert shared is not None
        owner.shared = shared
        world.gather()
        frame = owner.add(1)
        world.send()
        assert frame is not None
        await trio.sleep(1)
        assert frame.is_whole
        assert ("b3", 1) not in owner.acked
        assert {count for _, count in owner.acked} <= {1}, "nothing went further than the frame"

    await in_world(check, ledgers=1, silent=False)


async def test_what_was_sent_before_a_frame_is_acknowledged_before_it(
    autojump_clock: Clock,
) -> None:
    """A large record of one of its ledgers that is still under way: the frame is not lost by that."""

    async def check(world: World) -> None:
        world.owners[1].shared.send(record(2, 0))
        world.gather()
        frames = {owner.add(int(owner.ledger == 2)) for owner in world.owners}
        world.send()
        await trio.sleep(0.1)
        (frame,) = frames
        assert frame is not None
        world.said(0, (1, 1))
        assert (len(world.clients[0].expected), world.owners[0].left) == (1, [])
        world.said(0, (0, 1), (1, 2), (2, 1))
        assert frame.acks == 1
        world.said(1, (1, 2), (0, 1), (2, 1))  # by itself, and more than that
        assert (frame.acks, world.owners[0].left) == (1, [frame])

    await in_world(check)


async def test_several_frames_of_a_ledger_are_acknowledged_by_one_count(
    autojump_clock: Clock,
) -> None:
    """Of the later ones nothing is told again, which would be a count that goes backwards."""

    async def check(world: World) -> None:
        owner = world.owners[0]
        for entry in range(4):
            world.beat(entry)
        await trio.sleep(0.1)
        world.said(0, (0, 3))
        world.said(0, (0, 4))
        assert owner.acked == [("b1", 3), ("b1", 4)]
        assert (owner.broke, owner.refused) == ([], [])

    await in_world(check, ledgers=1)


async def test_what_was_said_before_acknowledges_no_later_frame(autojump_clock: Clock) -> None:
    async def check(world: World) -> None:
        first, second = world.beat(0), world.beat(1)
        await trio.sleep(0.1)  # all has left
        for _ in range(2):
            world.said(0, (0, 1), (1, 1), (2, 1))
            assert (first.acks, second.acks) == (1, 0)

    await in_world(check)


async def test_a_frame_keeps_its_ledgers_while_it_has_to_tell_them_something(
    autojump_clock: Clock,
) -> None:
    def check(world: World) -> None:
        for told_first in (True, False):
            frame = world.beat(int(not told_first))
            frame.is_told = True  # as an owner says at the quorum
            acks = [(n, 1 + (not told_first)) for n in range(3)]
            world.said(0, *acks)
            world.said(1, *acks)
            if told_first:
                frame.tell(0)
                assert len(frame.streams) == 3
            world.said(2, *acks)
            if not told_first:
                assert len(frame.streams) == 3
                frame.tell(0)
            assert frame.streams == []
            frame.leave(world.owners[0].shared)

    await in_world(check)


async def test_a_frame_has_an_end(autojump_clock: Clock) -> None:
    """In bytes; and ledgers of other quorums are in another one."""

    def check(world: World) -> None:
        world.gather()
        made = [owner.add(0, SHARED_ENTRY_BYTES - 100) for owner in world.owners]
        frames = list(dict.fromkeys(made))
        assert None not in frames
        assert len(frames) == 3
        assert max([made.count(frame) for frame in frames]) == SHARED_BYTES_MAX // (16 << 10) + 1
        all_three = Owner(world.clients, 77, quorum=3)
        other = all_three.add(0)
        assert other is not None
        assert other not in frames
        assert other.quorum == 3

    await in_world(check, ledgers=40)
