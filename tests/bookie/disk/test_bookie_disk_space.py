"""Read-only is a function of facts: each alone is enough, each has its name, and none hides another."""

from dataclasses import replace

import pytest

from distributedlog.bookie.disk.bookie_disk_space import (
    BookieDiskSpace,
    DiskSpaceFacts,
    index_is_behind,
    read_only_conditions,
)
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.interfaces.errors import BookieReadOnly, TooBusy
from tests.conditions import codes_of

MIB = 1 << 20
WELL = DiskSpaceFacts(
    journal_free_bytes=2048 * MIB,
    index_free_bytes=64 * MIB,
    free_bytes_min=1024 * MIB,
    no_next_file=False,
    reserves_missing=(),
    checkpoint_failed=False,
    extents_in_memory=16 * 50_000,
    checkpoint_runs=50_000,
    requested_read_only=False,
)
BAD: dict[str, dict[str, object]] = {
    "journal_disk_low": {"journal_free_bytes": 1024 * MIB - 1},
    "journal_file_no_space": {"no_next_file": True},
    "index_disk_low": {"index_free_bytes": 64 * MIB - 1},
    "checkpoint_no_space": {"checkpoint_failed": True},
    "index_memory_full": {"extents_in_memory": 16 * 50_000 + 1},
    "reserve_missing": {"reserves_missing": ("journal",)},
    "read_only_requested": {"requested_read_only": True},
}


def test_with_room_everywhere_it_takes_entries() -> None:
    assert read_only_conditions(WELL) == ()
    assert not index_is_behind(WELL)


@pytest.mark.parametrize("name", BAD)
def test_each_fact_alone_is_a_condition_with_its_code(name: str) -> None:
    facts = replace(WELL, **BAD[name])  # type: ignore[arg-type]

    assert codes_of(read_only_conditions(facts)) == [name]
    assert index_is_behind(facts) == (name == "index_memory_full")


@pytest.mark.parametrize("name", BAD)
def test_for_want_of_room_others_make_haste(name: str) -> None:
    """Not where it is read-only because somebody wants it to be: that may be for weeks."""
    space = BookieDiskSpace("b1", lambda: replace(WELL, **BAD[name]))  # type: ignore[arg-type]
    for told in BAD[name].keys() & vars(space).keys():
        setattr(space, told, True)
    space.check()
    assert space.read_only
    assert space.is_low == (name != "read_only_requested")
    space.has_read_errors = True
    space.check()
    assert space.is_low == (name != "read_only_requested")


def test_it_says_when_it_changes_and_only_then() -> None:
    """Others are told of it at once."""
    space = BookieDiskSpace("b1", lambda: WELL)
    told: list[bool] = []
    space.subscribe(lambda: told.append(space.read_only))
    space.check()
    assert told == []
    for missing in (True, False):
        space.set_next_file_missing(missing=missing)
        space.check()
    assert told == [True, False]


def test_all_facts_together_are_all_named() -> None:
    facts = WELL
    for change in BAD.values():
        facts = replace(facts, **change)  # type: ignore[arg-type]
    facts = replace(facts, reserves_missing=("journal", "index"))

    found = read_only_conditions(facts)
    assert list(dict.fromkeys(codes_of(found))) == list(BAD)
    disks = [one.text("disk") for one in found if one.code == Code.RESERVE_MISSING]
    assert disks == ["journal", "index"]


def test_a_small_bound_for_the_journal_is_the_indexs_too() -> None:
    """An operator who sets ``free_bytes_min`` for a small disk has not to know of the index's own bound."""
    facts = replace(WELL, free_bytes_min=8 * MIB, index_free_bytes=8 * MIB)

    assert read_only_conditions(facts) == ()
    short = read_only_conditions(replace(facts, index_free_bytes=8 * MIB - 1))
    assert codes_of(short) == [Code.INDEX_DISK_LOW]


def test_what_the_journal_meets_counts_at_once() -> None:
    """No add is taken in the quarter of a second until the next look."""
    space = BookieDiskSpace("b1", lambda: WELL)
    space.check()
    assert space.refusal(recovery=False) is None

    space.set_next_file_missing(missing=True)
    assert isinstance(space.refusal(recovery=False), BookieReadOnly)
    assert space.refusal(recovery=True) is None

    space.set_next_file_missing(missing=False)
    assert (space.conditions, space.refusal(recovery=False)) == ((), None)


@pytest.mark.parametrize(
    "name", ["journal_file_no_space", "checkpoint_no_space", "read_only_requested"]
)
def test_what_was_told_holds_over_each_look(name: str) -> None:
    space = BookieDiskSpace("b1", lambda: WELL)
    (field,) = BAD[name]
    setattr(space, field, True)
    space.check()
    assert codes_of(space.conditions) == [name]
    space.check()
    assert space.read_only
    setattr(space, field, False)
    space.check()
    assert not space.read_only


def test_an_index_that_cannot_follow_refuses_recoveries_too() -> None:
    space = BookieDiskSpace("b1", lambda: replace(WELL, **BAD["index_memory_full"]))  # type: ignore[arg-type]
    space.check()
    assert isinstance(space.refusal(recovery=False), BookieReadOnly)
    assert isinstance(space.refusal(recovery=True), TooBusy)
