"""The window against a model that is trivially right, and the orders of events that bit others."""

import random

import pytest

from distributedlog.ledger.model.missing_range import MissingRange
from distributedlog.ledger.model.striping import Striping
from distributedlog.ledger.write.pending_adds import RELEASE_BATCH, PendingAdds, SlotStream
from distributedlog.runtime.interfaces.errors import ProtocolError
from tests.examples import few


def window(size: int = 3, write: int = 3, ack: int = 2) -> tuple[PendingAdds, list[SlotStream]]:
    one = PendingAdds(Striping(size, write, ack), [f"b{n}" for n in range(size)])
    return one, [one.begin_stream(n) for n in range(size)]


def push(one: PendingAdds, count: int) -> None:
    for _ in range(count):
        one.add(b"%08d" % (one.last_entry + 1))


def test_an_add_is_not_confirmed_before_the_adds_ahead_of_it() -> None:
    """G1: with E > Qw entry 2 has its quorum before entry 1."""
    one, streams = window(4, 2, 2)
    push(one, 4)  # 0: slots 0 1, 1: slots 1 2, 2: slots 2 3, 3: slots 3 0

    assert one.on_acked(streams[3], 2) == 0  # 2 and 3
    assert one.on_acked(streams[2], 2) == 0  # 1 and 2: entry 2 has both
    assert one.on_acked(streams[0], 2) == 0  # 0 and 3: entry 3 has both
    assert one.on_acked(streams[1], 1) == 1  # 0
    assert one.on_acked(streams[1], 2) == 3


def test_acks_in_any_order_confirm_by_the_quorum() -> None:
    one, streams = window()
    push(one, 10)

    assert one.on_acked(streams[0], 10) == 0
    assert one.on_acked(streams[2], 4) == 4
    assert one.on_acked(streams[1], 9) == 5
    assert one.lac == 8
    assert one.in_flight_bytes == 8
    assert one.retained_bytes == 6 * 8  # the third slot has up to entry 3
    assert one.on_acked(streams[2], 10) == 1
    assert one.retained_bytes == 8


@pytest.mark.parametrize(("size", "width", "count"), [(3, 3, 11), (3, 3, 3), (4, 2, 6), (4, 2, 3)])
def test_a_bookie_that_miscounts_breaks_the_protocol(size: int, width: int, count: int) -> None:
    """H1: a count is checked against what was sent: all ten, or the five of them that its slot holds."""
    one, streams = window(size, width, 2)
    push(one, 10)
    one.on_acked(streams[0], 4)

    with pytest.raises(ProtocolError):
        one.on_acked(streams[0], count)


def test_a_bookie_that_moved_is_not_credited_with_what_its_old_slot_got() -> None:
    """H1: E=4, Qw=3: B leaves slot 0 and comes back in slot 2; the old slot's acks are in the socket."""
    one, streams = window(4, 3, 2)
    push(one, 8)
    first = one.begin_change()
    one.end_change({0: "c"}, 1)
    old = streams[0]
    one.begin_stream(0)
    one.begin_change()
    one.end_change({2: "b0"}, 2)
    moved = one.begin_stream(2)

    assert first == 0
    assert one.on_acked(old, 6) == 0
    assert one.slots[2].acked_through == -1
    # "all up to entry 6" is what it had of slot 0; slot 2 holds entry 1 as well, which it never got.
    assert not one.striping.holds(0, 1)
    assert one.striping.holds(2, 1)
    one.on_acked(moved, 1)
    assert one.slots[2].acked_through == 0
    assert one.lac == -1


def test_late_acks_of_a_replaced_bookie_do_not_count() -> None:
    """Invariant 8."""
    one, streams = window()
    push(one, 4)
    one.begin_change()
    one.end_change({0: "c"}, 1)

    assert one.on_acked(streams[0], 4) == 0
    assert one.on_acked(streams[1], 4) == 0
    assert one.on_acked(streams[2], 4) == 4


def test_nothing_is_confirmed_while_a_change_is_undecided() -> None:
    """Invariant 7; what was acked meanwhile is counted at its end, replaced slots forget first (D5)."""
    one, streams = window()
    push(one, 2)
    one.on_acked(streams[0], 2)
    assert one.begin_change() == 0
    assert one.on_acked(streams[1], 2) == 0
    assert one.end_change({0: "c"}, 1) == 0  # slot 1 alone has them now
    assert one.on_acked(one.begin_stream(0), 1) == 1
    one.begin_change()
    assert one.on_acked(streams[2], 2) == 0
    assert one.end_change({}, 1) == 1


def test_a_reconnected_slot_is_sent_what_is_not_acked() -> None:
    """H22: a new stream begins at the first unacked entry."""
    one, streams = window()
    push(one, 5)
    one.on_acked(streams[0], 2)
    one.end_stream(streams[0])
    again = one.begin_stream(0)

    assert list(one.initial_records(again)) == [b"%08d" % n for n in (2, 3, 4)]
    assert one.on_acked(streams[0], 5) == 0
    one.on_acked(again, 1)
    assert one.slots[0].acked_through == 2


def test_a_detached_slot_pins_nothing_and_its_hole_is_known() -> None:
    """H22."""
    one, streams = window()
    push(one, 10)
    one.on_acked(streams[0], 3)
    one.on_acked(streams[1], 10)
    one.on_acked(streams[2], 8)
    assert one.retained_bytes == 7 * 8
    one.end_stream(streams[0])
    one.detach(0)

    assert one.retained_bytes == 2 * 8
    assert one.all_missing_ranges(None) == [MissingRange("b0", 3, None)]
    assert one.all_missing_ranges(10) == [MissingRange("b0", 3, 10), MissingRange("b2", 8, 10)]
    with pytest.raises(AssertionError, match="H22"):
        one.detach(1)
    one.attach(0)
    assert list(one.initial_records(one.begin_stream(0))) == [b"%08d" % n for n in (8, 9)]
    assert one.all_missing_ranges(None) == [MissingRange("b0", 3, 8)]
    one.on_acked(one.slots[0].stream, 2)  # type: ignore[arg-type]
    assert one.lac == 9


def test_a_window_of_many_entries_stays_small() -> None:
    one, streams = window()
    for round_ in range(1, 200):
        push(one, 100)
        for stream in streams:
            one.on_acked(stream, round_ * 100)
    assert one.lac == 19_899
    assert len(one._records) < 10_000
    assert one.retained_bytes == one.in_flight_bytes == 0
    assert one.unacked_bytes(0) == 0


def test_what_all_slots_have_is_dropped_every_few_adds() -> None:
    """A third acknowledgement only counts; up to then the bytes are kept, and seen by who asks for them."""
    one, streams = window()
    push(one, 1)
    for number in range(1, 10 * RELEASE_BATCH):
        for stream in streams:
            one.on_acked(stream, number)
        push(one, 1)
        kept = [n for n in range(number + 1) if one.record(n) is not None]
        assert kept == list(range(number - number % RELEASE_BATCH, number + 1))
    assert one.retained_bytes == one.in_flight_bytes
    assert one.record(number - 1) is None


def test_quorums_are_counted_anew_whatever_happened_to_the_slots() -> None:
    """Inv. 4: who is ahead of the LAC is counted ack by ack, and anew after each change."""
    one, streams = window(3, 3, 2)
    push(one, 6)
    one.on_acked(streams[0], 6)
    one.end_stream(streams[0])
    one.detach(0)  # it was ahead
    assert one.on_acked(streams[1], 4) == 0
    assert one.on_acked(streams[2], 3) == 3
    one.attach(0)
    again = one.begin_stream(0)
    assert one.on_acked(again, 1) == 1
    one.begin_change()
    one.end_change({1: "c"}, 1)  # slot 1 was not ahead, slot 0 neither
    assert one.on_acked(again, 3) == 0
    assert one.on_acked(streams[2], 6) == 2


class Truth:
    """What each bookie has, and the rule in one line: an entry counts for a slot if its bookie has it."""

    def __init__(self, striping: Striping, bookies: list[str]) -> None:
        self.striping = striping
        self.bookies = bookies
        self.has: dict[str, set[int]] = {}

    def acked(self, entry: int) -> bool:
        have = sum(
            entry in self.has.get(self.bookies[slot], set())
            for slot in self.striping.write_set(entry)
        )
        return have >= self.striping.ack_quorum


@pytest.mark.parametrize(
    "sizes",
    few([((3, 3, 2),), ((4, 2, 2),), ((4, 3, 2),), ((5, 3, 2),), ((1, 1, 1),), ((3, 3, 3),)], 2),
)
def test_what_is_counted_as_acked_is_there(sizes: tuple[int, int, int]) -> None:
    """H1: "counted acked => that bookie has it", with moves, reconnects, late acks and detached slots."""
    for seed in range(60):
        chance = random.Random(f"{sizes}{seed}")
        striping = Striping(*sizes)
        bookies = [f"b{n}" for n in range(sizes[0])]
        truth = Truth(striping, bookies)
        one = PendingAdds(striping, bookies)
        # stream -> the entries on their way to the bookie, and how many arrived
        wires: list[tuple[SlotStream, list[int], list[int]]] = []
        spare = sizes[0]
        epoch = 0
        lac = -1

        def open_stream(number: int) -> None:
            stream = one.begin_stream(number)  # noqa: B023
            entries = [int(bytes(record)) for record in one.initial_records(stream)]  # noqa: B023
            wires.append((stream, entries, [0]))  # noqa: B023

        for number in range(sizes[0]):
            open_stream(number)
        for _ in range(150):
            what = chance.random()
            if what < 0.4:
                entry = one.last_entry + 1
                one.add(b"%d" % entry)
                for stream, entries, _arrived in wires:
                    slot = one.slots[stream.slot]
                    if slot.stream is stream and striping.holds(stream.slot, entry):
                        entries.append(entry)
            elif what < 0.8:  # some arrive somewhere, late ones of dead streams too
                stream, entries, arrived = chance.choice(wires)
                upto = chance.randint(arrived[0], len(entries))
                truth.has.setdefault(stream.bookie, set()).update(entries[:upto])
                arrived[0] = upto
                if upto >= stream.acked_count:
                    one.on_acked(stream, upto)
            elif what < 0.86:
                number = chance.randrange(sizes[0])
                if not one.slots[number].detached:
                    open_stream(number)
            elif what < 0.93 and not one.ensemble_changing:
                number = chance.randrange(sizes[0])
                one.begin_change()
                epoch += 1
                away = sorted({w[0].bookie for w in wires} - set(truth.bookies))
                bookie = chance.choice([f"b{spare}", *away])  # a new one, or one that left before
                spare += 1
                truth.bookies[number] = bookie
                one.end_change({number: bookie}, epoch)
                open_stream(number)
            elif what < 0.97:
                number = chance.randrange(sizes[0])
                attached = [n for n, s in enumerate(one.slots) if not s.detached and n != number]
                if one.slots[number].detached:
                    one.attach(number)
                    open_stream(number)
                elif striping.keeps_ack_quorums(attached):
                    one.detach(number)
            for entry in range(lac + 1, one.lac + 1):
                assert truth.acked(entry), "inv. 4: newly confirmed, so an ack quorum has it"
            lac = one.lac
            in_flight = range(one.lac + 1, one.last_entry + 1)
            assert one.in_flight_bytes == sum(len(b"%d" % entry) for entry in in_flight)
            for number, slot in enumerate(one.slots):
                if slot.detached:
                    continue
                for entry in range(one.lac + 1, min(slot.acked_through, one.last_entry) + 1):
                    if striping.holds(number, entry):
                        assert entry in truth.has[slot.bookie], "H1"
        # Everything arrives: all of it is confirmed and nothing is kept.
        for number, slot in enumerate(one.slots):
            if slot.detached:
                one.attach(number)
            open_stream(number)
        for stream, entries, _ in wires:
            if one.slots[stream.slot].stream is stream and entries:
                one.on_acked(stream, len(entries))
        assert one.lac == one.last_entry
        assert one.retained_bytes == 0


def test_a_lone_entry_is_confirmed_like_any_other() -> None:
    """One entry at a time, by the quickest two of three: the same numbers as of several, and none in a change
    (inv. 7)."""
    one = PendingAdds(Striping(3, 3, 2), ["a", "b", "c"])
    streams = [one.begin_stream(number) for number in range(3)]
    for entry in range(20):
        one.add(bytes(10 + entry))
        quick, next_one, late = (streams[(entry + n) % 3] for n in range(3))
        assert one.on_acked(quick, entry + 1) == 0
        assert one.on_acked(next_one, entry + 1) == 1
        assert (one.lac, one.in_flight_bytes) == (entry, 0)
        assert one.on_acked(late, entry + 1) == 0
    one.begin_change()
    one.add(b"in a change")
    assert [one.on_acked(stream, 21) for stream in streams] == [0, 0, 0]
    assert one.lac == 19
    assert one.end_change({0: "d"}, 1) == 1
    assert (one.lac, one.in_flight_bytes) == (20, 0)
    assert one.retained_bytes == len(b"in a change"), "for the slot that has it not yet"


def test_who_waits_is_told_of_each_acknowledgement() -> None:
    one = PendingAdds(Striping(3, 3, 2), ["a", "b", "c"])
    streams = [one.begin_stream(number) for number in range(3)]
    for entry in range(4):
        one.add(b"record")
        one.notify_every_ack = entry % 2
        told = [bool(one.on_acked(stream, entry + 1)) for stream in streams]
        assert told == [bool(one.notify_every_ack), True, bool(one.notify_every_ack)]
    with pytest.raises(ProtocolError):
        one.on_acked(streams[0], 5)
