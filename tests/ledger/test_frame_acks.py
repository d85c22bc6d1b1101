"""Entries that go in frames shared with other ledgers are confirmed as if each slot were counted."""

import random

import pytest

from distributedlog.ledger.add_window import AddWindow, Stream
from distributedlog.ledger.striping import Striping
from distributedlog.runtime.errors import ProtocolError


class Frame:
    """One of a single ledger; `acknowledge` is what a connection says."""

    def __init__(self, width: int = 3, order: tuple[int, ...] = (0, 1, 2)) -> None:
        self.width = width
        self.order = order
        """The slots of its bits."""
        self.acked = 0
        self.acks = 0
        self.is_whole = False
        self.left: list[object] = []

    def leave(self, streams: object) -> None:
        self.left.append(streams)

    def acknowledge(self, bit: int) -> None:
        assert not self.acked >> bit & 1
        self.acked |= 1 << bit
        self.acks += 1
        self.is_whole = self.acks == self.width


SHARED = object()


def sharing(order: tuple[int, ...] = (0, 1, 2)) -> tuple[AddWindow, list[Stream]]:
    one = AddWindow(Striping(3, 3, 2), ["a", "b", "c"])
    streams = [one.begin_stream(number) for number in range(3)]
    one.share(order, SHARED)
    return one, streams


def test_a_frame_confirms_its_entry_at_the_quorum() -> None:
    """G3, and what is kept is dropped when all have it."""
    one, _ = sharing()
    for entry in range(40):
        frame = Frame()
        assert one.push_shared(b"record", frame)
        frame.acknowledge(entry % 3)
        assert one.lac == entry - 1
        frame.acknowledge((entry + 1) % 3)
        assert one.confirm_shared(frame) == 1
        assert (one.lac, one.in_flight_bytes, one.at_rest) == (entry, 0, False)
        frame.acknowledge((entry + 2) % 3)
        assert one.at_rest
        assert frame.left == []
    assert one.kept_bytes == 0
    assert [slot.through for slot in one.slots] == [39] * 3


def test_a_later_frame_confirms_nothing_before_its_time() -> None:
    """G1: the second one is at its quorum first."""
    one, _ = sharing()
    first, second, third = Frame(), Frame(), Frame()
    assert all([one.push_shared(b"record", frame) for frame in (first, second, third)])
    for bit in (0, 1):
        second.acknowledge(bit)
    assert one.confirm_shared(second) == 0
    for bit in (1, 2):
        first.acknowledge(bit)
    assert one.confirm_shared(first) == 2
    assert (one.lac, one.in_flight_bytes) == (1, 6)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_what_a_slot_has_is_what_its_connection_acknowledged(order: tuple[int, ...]) -> None:
    """Looked at in the middle: of the first frame one connection, of the second one none."""
    one, streams = sharing(order)
    whole, begun, none = Frame(), Frame(), Frame()
    for frame in (whole, begun, none):
        assert one.push_shared(b"record", frame)
    for bit in range(3):
        whole.acknowledge(bit)
    assert one.confirm_shared(whole) == 1
    begun.acknowledge(1)

    through = [slot.through for slot in one.slots]

    assert through == [1 if number == order[1] else 0 for number in range(3)]
    assert (whole.left, begun.left, none.left) == ([SHARED], [SHARED], [SHARED])
    with pytest.raises(ProtocolError):
        one.on_acked(streams[order[1]], 1)
    assert one.on_acked(streams[order[1]], 2) == 0  # known
    assert one.on_acked(streams[order[0]], 3) == 1
    assert one.confirm_shared(begun) == 0  # it is told of a frame that it has left


def test_a_quorum_that_was_seen_and_not_told_counts() -> None:
    """Something is looked at between the acknowledgement and what follows from it: no other one comes."""
    one, _ = sharing()
    frame = Frame()
    one.push_shared(b"record", frame)
    frame.acknowledge(0)
    frame.acknowledge(1)
    assert one.owed(2)
    assert one.lac == -1

    assert one.confirm_shared(frame) == 1


def test_nothing_goes_in_a_frame_while_a_slot_is_behind_or_somebody_waits() -> None:
    one, streams = sharing()
    one.push(b"record")
    for stream in streams:
        assert not one.push_shared(b"record", Frame())
        one.on_acked(stream, one.last)
    assert not one.push_shared(b"record", Frame())
    for stream in streams:
        one.on_acked(stream, one.last + 1)
    frame = Frame()
    assert one.push_shared(b"record", frame)

    one.tell_each()

    assert frame.left == [SHARED]
    assert [bool(one.on_acked(stream, one.last + 1)) for stream in streams] == [True] * 3
    assert not one.push_shared(b"record", Frame())
    one.awaited = 0
    for stream in streams:
        one.on_acked(stream, one.last + 1)
    one.begin_change()
    assert not one.push_shared(b"in a change", Frame())


def test_who_shares_no_more_is_counted_slot_by_slot() -> None:
    one, streams = sharing()
    frame = Frame()
    one.push_shared(b"record", frame)
    frame.acknowledge(2)

    one.share((2, 1, 0), object())

    assert frame.left == [SHARED]
    assert [one.on_acked(stream, 1) for stream in streams] == [1, 0, 0]


Item = tuple[int, Frame | None]


class World:
    """A window, what is sent to each slot's bookie, and what those have acknowledged."""

    def __init__(self, sizes: tuple[int, int, int], chance: random.Random) -> None:
        self.size, self.quorum, self.chance = sizes[0], sizes[2], chance
        self.bookies = [f"b{n}" for n in range(self.size)]
        self.window = AddWindow(Striping(*sizes), self.bookies)
        self.has: dict[str, int] = dict.fromkeys(self.bookies, -1)
        self.wires: dict[int, tuple[Stream, list[Item], int]] = {}
        self.order: tuple[int, ...] = ()
        self.spare = self.size
        for number in range(self.size):
            self.open(number)

    def open(self, number: int) -> None:
        stream = self.window.begin_stream(number)
        sent: list[Item] = [
            (stream.first + n, None) for n, _ in enumerate(self.window.unsent(stream))
        ]
        self.wires[number] = (stream, sent, 0)
        self.share()

    def share(self) -> None:
        order = list(range(self.size)) if len(self.wires) == self.size else []
        self.chance.shuffle(order)
        self.order = tuple(order)
        self.window.share(order, SHARED)

    def push(self, *, shared: bool) -> bool:
        record, frame = bytes(self.chance.randrange(1, 50)), None
        together = False
        if shared and self.order:
            frame = Frame(self.size, self.order)
            together = self.window.push_shared(record, frame)
            if not together:
                frame.leave(None)
        else:
            self.window.push(record)
        for _, sent, _ in self.wires.values():
            sent.append((self.window.last, frame))
        return together

    def acknowledge(self, number: int, *, loses: bool) -> None:
        """The next one that was sent to that slot, by its frame or, where that is lost, by itself."""
        stream, sent, arrived = self.wires[number]
        if arrived == len(sent):
            return
        entry, frame = sent[arrived]
        self.wires[number] = (stream, sent, arrived + 1)
        self.has[self.bookies[number]] = entry
        if frame is not None and not loses:
            frame.acknowledge(frame.order.index(number))
            if frame.acks == self.quorum:
                self.window.confirm_shared(frame)
        if frame is None or frame.left or loses:
            self.window.on_acked(stream, arrived + 1)

    def disconnect(self, number: int) -> None:
        self.window.end_stream(self.wires.pop(number)[0])
        self.share()

    def replace(self, number: int) -> None:
        self.window.begin_change()
        self.wires.pop(number, None)
        self.spare += 1
        self.bookies[number] = f"b{self.spare}"
        self.has[self.bookies[number]] = self.window.lac
        self.window.end_change({number: self.bookies[number]}, self.spare)
        self.open(number)

    @property
    def reached(self) -> int:
        """The last entry that a quorum has, by the simplest count."""
        return sorted(self.has[bookie] for bookie in self.bookies)[-self.quorum]


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 3, 3), (2, 2, 1), (1, 1, 1)])
def test_frames_and_streams_count_the_same(sizes: tuple[int, int, int]) -> None:
    """H1, inv. 4: with entries by themselves between, frames that are lost, reconnects and changes.

    After each acknowledgement the LAC is where a count of all slots has it, not above and not below; and what
    a slot is said to have, its bookie has.
    """
    together = 0
    for seed in range(150):
        chance = random.Random(f"{sizes}{seed}")
        world = World(sizes, chance)
        window = world.window
        rough = chance.choice((0.0, 0.02, 0.1))
        lac = -1
        for _ in range(200):
            what, number = chance.random(), chance.randrange(world.size)
            if what < 0.2:
                together += world.push(shared=chance.random() < 0.9)
            elif what < 0.9:
                if number in world.wires:
                    world.acknowledge(number, loses=chance.random() < rough)
            elif what < 0.9 + rough / 2 and number in world.wires:
                world.disconnect(number)
            elif what < 0.9 + rough / 1.5:
                world.replace(number)
            elif what < 0.97 and number not in world.wires:
                world.open(number)
            elif what > 0.97:
                assert window.kept_bytes >= window.in_flight_bytes
                assert 0 <= window.behind_bytes(number) <= window.pushed_bytes
                for slot, bookie in zip(window.slots, world.bookies, strict=True):
                    assert slot.through <= max(world.has[bookie], window.lac), "H1"
            assert window.lac == max(lac, world.reached), (
                "inv. 4, and nothing that has its quorum waits"
            )
            lac = window.lac
        for number in range(world.size):
            if number not in world.wires:
                world.open(number)
            for _ in world.wires[number][1]:
                world.acknowledge(number, loses=False)
        assert (window.lac, window.at_rest) == (window.last, True)
        assert window.kept_bytes == 0
    assert together > 500
