"""Read-only is a function of facts: each alone is enough, each has its name, and none hides another."""

from dataclasses import replace

import pytest

from distributedlog.bookie.space import Facts, index_is_behind, read_only_reasons

MIB = 1 << 20
WELL = Facts(
    journal_free_bytes=2048 * MIB,
    index_free_bytes=64 * MIB,
    free_bytes_min=1024 * MIB,
    no_next_file=False,
    reserves_missing=(),
    checkpoint_failed=False,
    runs_in_memory=16 * 50_000,
    checkpoint_runs=50_000,
    asked=False,
)
BAD: dict[str, dict[str, object]] = {
    "journal space": {"journal_free_bytes": 1024 * MIB - 1},
    "journal file": {"no_next_file": True},
    "index space": {"index_free_bytes": 64 * MIB - 1},
    "checkpoint": {"checkpoint_failed": True},
    "index memory": {"runs_in_memory": 16 * 50_000 + 1},
    "journal reserve": {"reserves_missing": ("journal",)},
    "index reserve": {"reserves_missing": ("index",)},
    "asked": {"asked": True},
}


def test_with_room_everywhere_it_takes_entries() -> None:
    assert read_only_reasons(WELL) == {}
    assert not index_is_behind(WELL)


@pytest.mark.parametrize("name", BAD)
def test_each_fact_alone_is_a_reason_with_its_name(name: str) -> None:
    facts = replace(WELL, **BAD[name])  # type: ignore[arg-type]

    reasons = read_only_reasons(facts)

    assert list(reasons) == [name]
    assert all(text.startswith("read-only: ") for text in reasons.values())
    assert index_is_behind(facts) == (name == "index memory")


def test_all_facts_together_are_all_named() -> None:
    facts = WELL
    for change in BAD.values():
        facts = replace(facts, **change)  # type: ignore[arg-type]
    facts = replace(facts, reserves_missing=("journal", "index"))

    assert list(read_only_reasons(facts)) == list(BAD)


def test_a_small_bound_for_the_journal_is_the_indexs_too() -> None:
    """An operator who sets ``free_bytes_min`` for a small disk has not to know of the index's own bound."""
    facts = replace(WELL, free_bytes_min=8 * MIB, index_free_bytes=8 * MIB)

    assert read_only_reasons(facts) == {}
    assert list(read_only_reasons(replace(facts, index_free_bytes=8 * MIB - 1))) == ["index space"]
