"""The state of a work queue, as a value: driven at random, beside the plainest model of it (H156)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.consumers.work_state import (
    BYTES_MAX,
    CLAIMS_MAX,
    DEAD_LETTERED_MAX,
    WorkItemStatus,
    WorkState,
    next_item_end,
)
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.segment_ranges import SegmentInfo
from distributedlog.runtime.interfaces.errors import CorruptData
from distributedlog.runtime.protocol.frames import pack, unpack
from distributedlog.runtime.protocol.schema import NUMBER_MAX
from tests.examples import examples

TRIES_MAX = 2
NEW = WorkState(DLSN(1, 0, 0), 9)


def at(place: int) -> DLSN:
    return DLSN(1 + place // 100, place % 100, 0)


def place_of(dlsn: DLSN) -> int:
    return (dlsn.segment - 1) * 100 + dlsn.entry


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from("cccddgwrx"), st.integers(0, 7)), max_size=80))
def test_every_place_is_handled_or_in_somebodys_hands(steps: list[tuple[str, int]]) -> None:
    """Claims, ends, deaths in any order: what is below the floor was done, parked, or given up; no two
    workers have one stretch; a number that was lost is never taken again."""
    state, end = NEW, 0
    handled: set[int] = set()  # places that are done, or given up
    lost: set[int] = set()
    for action, number in steps:
        worker = 1 + number % 3
        claims = sorted(state.claims, key=lambda one: one.number)
        one = claims[number % len(claims)] if claims else None
        if action == "c":
            if state.next_waiting is None:
                end += 1 + number
                state = state.with_item_to(at(end))
            waiting = state.next_waiting
            assert waiting is not None
            taken = state.with_claim(waiting, worker)
            assert taken is not None
            state, mine = taken
            assert mine.number not in lost
            assert (mine.first, mine.end, mine.tries) == (
                waiting.first,
                waiting.end,
                waiting.tries + 1,
            )
        elif action == "d" and one is not None:
            after = state.with_done(one.number)
            assert after is not None
            state = after
            handled |= set(range(place_of(one.first), place_of(one.end)))
            lost.add(one.number)
        elif action == "g" and one is not None:
            after = state.with_claim_returned(one.number, tries_max=TRIES_MAX)
            assert after is not None
            state = after
            lost.add(one.number)
        elif action == "w":
            lost |= {one.number for one in claims if one.worker == worker}
            state = state.without_workers({worker}, tries_max=TRIES_MAX)
            assert worker not in {one.worker for one in state.claims}
        elif action in "rx" and state.dead_lettered:
            parked = state.dead_lettered[number % len(state.dead_lettered)]
            assert parked.tries == TRIES_MAX
            after = (
                state.with_retry(parked.number)
                if action == "r"
                else state.with_dropped(parked.number)
            )
            assert after is not None
            state = after
            if action == "x":
                handled |= set(range(place_of(parked.first), place_of(parked.end)))
        assert all(state.with_done(number) is None for number in lost)
        assert WorkState.decode(state.encode()) == state
        in_hands = [
            place
            for one in (*state.items, *state.set_aside_items)
            if one.status != WorkItemStatus.DONE
            for place in range(place_of(one.first), place_of(one.end))
        ]
        assert len(in_hands) == len(set(in_hands)), "nobody has what another one has"
        assert set(in_hands) | handled == set(range(end))
        assert not set(in_hands) & handled
        assert all(one.tries <= TRIES_MAX for one in state.claims)
    while (waiting := state.next_waiting) is not None or state.claims:
        for claim in state.claims:
            state = state.with_done(claim.number) or state
        if waiting is not None:
            taken = state.with_claim(waiting, 1)
            assert taken is not None
            state = taken[0]
    assert state.floor == at(end) == state.next_unclaimed, (
        "parked stretches do not hold the floor up"
    )


def filled(count: int) -> WorkState:
    """So many claims of stretches whose numbers are as large as they ever are."""
    state = replace(NEW, next_number=1 << 31)
    for n in range(count):
        state = state.with_item_to(DLSN(100_000 + n, 40_000_000, 0))
        taken = state.with_claim(state.items[-1], (1 << 62) + n)
        if taken is None:
            return state
        state = taken[0]
    return state


def test_there_are_so_many_claims_and_parked_stretches_and_no_more() -> None:
    state = filled(CLAIMS_MAX)
    assert len(state.claims) == CLAIMS_MAX
    longer = state.with_item_to(DLSN(1 << 20, 0, 0))
    assert longer.with_claim(longer.items[-1], 7) is None
    for one in state.claims:
        back = state.with_claim_returned(one.number, tries_max=1)
        assert back is not None
        state = back
        assert len(state.encode()) <= BYTES_MAX
    assert len(state.dead_lettered) == DEAD_LETTERED_MAX
    waiting = state.next_waiting
    assert waiting is not None
    assert state.claims == []
    assert state.floor == waiting.first, "what cannot be parked holds the floor up, and is tried on"
    taken = state.with_claim(waiting, 7)
    assert taken is not None
    assert taken[1].tries == 2


def test_a_state_whose_fields_do_not_fit_is_damaged() -> None:
    good = filled(3).encode()
    spoils: list[Callable[[Any], object]] = [
        lambda fields: fields.__setitem__(3, 1),  # a claim has a number that was not given yet
        lambda fields: fields[4][0].__setitem__(5, 0),  # nobody's claim
        lambda fields: fields.__setitem__(
            1, [1 << 30, 0, 0]
        ),  # the floor is after the first stretch
        lambda fields: fields[4][1].__setitem__(4, 3),  # parked, and in line
        lambda fields: fields[5].append([1, 0, 0, 1, 1, 0, 7, 2, 0, 1]),  # done, and kept aside
        lambda fields: fields.__setitem__(3, NUMBER_MAX),  # the number after it fits no value
        lambda fields: fields[4][0].__setitem__(6, NUMBER_MAX),  # nor would the next try
    ]
    for spoil in spoils:
        fields = unpack(good, "a state")
        spoil(fields)
        with pytest.raises(CorruptData):
            WorkState.decode(pack(fields))


def info(segment: int, entries: int, mean: int = 10, *, closed: bool = True) -> SegmentInfo:
    return SegmentInfo(
        "0" * 16, segment, segment, closed, 0, entries - 1, entries, entries * mean, 0, 0, 0, 0, 0
    )


@pytest.mark.parametrize(
    ("cursor", "bytes_max", "end"),
    [
        (DLSN(1, 0, 0), 1, DLSN(1, 1, 0)),
        (DLSN(1, 0, 0), 35, DLSN(1, 3, 0)),
        (DLSN(1, 4, 0), 60, DLSN(2, 0, 0)),
        (DLSN(1, 4, 0), 65, DLSN(2, 0, 0)),
        (DLSN(1, 4, 0), 80, DLSN(2, 2, 0)),
        (DLSN(1, 0, 0), 1000, DLSN(4, 5, 0)),
        (DLSN(3, 0, 0), 1000, DLSN(4, 5, 0)),
        (DLSN(4, 4, 0), 1000, DLSN(4, 5, 0)),
        (DLSN(4, 5, 0), 1000, None),
        (DLSN(5, 0, 0), 1000, None),
        (DLSN(2, 8, 2), 5, DLSN(2, 9, 0)),
    ],
)
def test_a_stretch_is_cut_by_bytes_over_segments(
    cursor: DLSN, bytes_max: int, end: DLSN | None
) -> None:
    segments = [info(1, 10), info(2, 10), info(4, 5, closed=False)]

    assert next_item_end(segments, cursor, bytes_max) == end
