"""Health conditions: what a node reports, what peers read of it, and that no text decides anything."""

import json

import pytest

from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.runtime.declarations.condition_texts import (
    TEXTS,
    as_json,
    report_of,
    text_of,
    texts_for_older_versions,
)
from distributedlog.runtime.declarations.health_conditions import (
    CONDITIONS_MAX,
    KINDS,
    REPAIRED_SHOWN_S,
    TEXT_CHARACTERS_MAX,
    Code,
    HealthCondition,
    NodeConditions,
    RepairCount,
    Severity,
    as_maps,
    condition,
    conditions_form,
    either_form,
    legacy_form,
    limit_conditions,
    worst_first,
    worst_of,
)
from distributedlog.runtime.protocol.schema import SchemaError
from tests.conditions import codes_of, every_condition

CODES = """
address_loopback address_of_other_node address_unanswered admin_refused admin_requested bookie_down
bookie_down_no_replacement bookie_down_unused bookie_drained bookie_leaving bookie_read_only
bookie_unanswered certificate_ended certificate_ends checkpoint_no_space copies_together damaged_reads
damaged_records deletions_held disk_read_errors domain_unknown entries_corrupt
entries_corrupt_without_copy entries_repaired index_behind index_disk_low index_memory_full
journal_disk_low journal_file_no_space legacy_text limbo limbo_ended metadata_disk_low
metadata_lists_differ metadata_log_incomplete metadata_majority_lost metadata_node_damaged
metadata_node_down metadata_node_empty metadata_node_learner metadata_peer_differs
metadata_state_differs more_conditions no_cluster_formed no_metadata_answer no_metadata_quorum
no_new_ledgers no_repair nodes_below_finalized one_copy_left placement_at_limit proxy_unanswered
read_only_requested repair_paused reserve_missing rights_unknown stop_copies_uncertain stop_more
stop_no_acks stop_no_copy stop_no_majority stop_no_new_ledgers stop_no_recovery stop_one_copy
stop_record_unreadable under_replicated upgrade_not_finalized versions_differ work_failed
"""
"""A code is added here, and never changed."""


def test_every_code_has_a_severity_and_a_text() -> None:
    assert set(KINDS) == set(TEXTS) == set(Code)
    for number in (-1, 0, 1, 2_000):
        for one in every_condition(number):
            text = text_of(one.about(bookie="b" * 32))
            assert text
            assert text.isprintable()
            assert "?" not in text.replace("dlog metadata replace ?", "") or one.code in (
                Code.METADATA_NODE_DOWN,
                Code.METADATA_NODE_EMPTY,
                Code.METADATA_NODE_DAMAGED,
                Code.METADATA_NODE_LEARNER,
            ), text


def test_codes_are_never_renamed() -> None:
    """They are stored in registrations, sent between versions, and used in alert configurations."""
    assert sorted(Code) == CODES.split()


def test_a_condition_is_replaced_and_cleared_by_its_code_and_unit() -> None:
    conditions = NodeConditions()
    conditions.set(condition(Code.INDEX_BEHIND, minutes=1))
    for unit in ("retention of log 5", "retention of log 7"):
        conditions.set(condition(Code.WORK_FAILED, unit=unit, error="OverflowError", tries=1), unit)
    conditions.set(condition(Code.INDEX_BEHIND, minutes=2))

    assert codes_of(conditions.current()) == ["index_behind", "work_failed", "work_failed"]
    assert conditions.current()[0].integer("minutes") == 2

    conditions.clear(Code.WORK_FAILED, "retention of log 5")
    conditions.clear(Code.LIMBO)  # never set
    assert [one.text("unit") for one in conditions.current()] == ["", "retention of log 7"]


def test_a_check_is_called_at_each_read() -> None:
    conditions = NodeConditions()
    answers = [None, condition(Code.CERTIFICATE_ENDS, at="tomorrow"), None]
    conditions.add_check(lambda: answers.pop(0))

    assert [codes_of(conditions.current()) for _ in range(3)] == [[], ["certificate_ends"], []]


def test_however_much_goes_wrong_few_conditions_are_reported_and_the_worst_first() -> None:
    found = [
        condition(Code.WORK_FAILED, unit=f"{n}", error="x", tries=1)
        for n in range(CONDITIONS_MAX + 5)
    ]
    found.append(condition(Code.ENTRIES_CORRUPT_WITHOUT_COPY, ledgers=1, cause="x"))

    kept = limit_conditions(found)

    assert len(kept) == CONDITIONS_MAX
    assert kept[0].code == Code.ENTRIES_CORRUPT_WITHOUT_COPY
    assert kept[-1] == condition(Code.MORE_CONDITIONS, Severity.DEGRADED, count=7)
    assert limit_conditions(found[:3]) == tuple(found[:3])


def test_a_condition_comes_back_from_its_form_in_registrations_and_status() -> None:
    found = every_condition()[:CONDITIONS_MAX]

    assert conditions_form(json.loads(json.dumps(as_maps(found)))) == tuple(found)
    assert [set(one) for one in as_json(found[:1])] == [{"code", "severity", "parameters", "text"}]


def test_a_long_text_comes_back_as_it_was_sent() -> None:
    """Wherever it is cut: a registration that reads back as another one is refused."""
    for cut in range(TEXT_CHARACTERS_MAX - 3, TEXT_CHARACTERS_MAX + 3):
        found = condition(Code.LIMBO, ledgers=1, below=0, cause="x" * cut + "  \x1b y\n z")
        one = BookieRegistration("b1", {"": ("h", 1)}, conditions=(found,))

        assert BookieRegistration.decode(b"bookie/b1", one.encode()) == one


@pytest.mark.parametrize(
    "wrong",
    [
        {"code": ""}, {"code": 7}, {"code": "x" * 65}, {"severity": 3}, {"parameters": []},
        {"parameters": {"a": None}}, {"parameters": {"a": 1.5}}, {"parameters": {"a": True}},
        {"parameters": {"": 1}}, {"parameters": {"a": 1 << 63}}, {"parameters": {"a": ["x"]}},
        {"parameters": {f"p{n}": 1 for n in range(17)}},
        {"parameters": {"a": "x" * (TEXT_CHARACTERS_MAX + 1)}},
    ],
    ids=repr,
)  # fmt: skip
def test_what_a_peer_sends_is_checked(wrong: dict[str, object]) -> None:
    sound = {"code": "limbo", "severity": "degraded", "parameters": {"a": 1, "b": "x"}}
    assert conditions_form([sound])
    values: list[object] = [[sound | wrong], [wrong], "text", [[]], [sound] * (CONDITIONS_MAX + 1)]
    for value in values:
        with pytest.raises(SchemaError):
            conditions_form(value)


def test_a_newer_versions_code_severity_and_fields_are_taken() -> None:
    [one] = conditions_form(
        [{"code": "moon_phase", "severity": "apocalyptic", "parameters": {"n": 1}, "since": [1, 2]}]
    )

    assert one == HealthCondition("moon_phase", Severity.DEGRADED, {"n": 1})
    assert text_of(one) == "moon_phase (n=1)"
    [known] = conditions_form([{"code": "limbo", "severity": "down", "parameters": {}}])
    assert text_of(known), "a known code with other parameters is shown too"


def test_what_a_peer_sends_moves_no_cursor() -> None:
    [one] = conditions_form(
        [{"code": "a\x1b[2J", "severity": "info", "parameters": {"b\n": "c\x1bd\ne"}}]
    )
    assert (one.code, one.parameters["b\n"]) == ("a?[2J", "c?d e")
    [old] = legacy_form(["a\x1b[2Jb"])
    assert text_of(old) == "a?[2Jb"


def test_texts_of_an_older_version_are_conditions_without_a_code() -> None:
    texts = [
        "no room on the disk",
        "some ledgers are in limbo",
        "healed: x",
        "without a good copy: y",
    ]

    found = either_form(None, texts)

    assert {(one.code, one.severity) for one in found} == {(Code.LEGACY_TEXT, Severity.DEGRADED)}
    assert [text_of(one) for one in found] == texts
    codes = as_maps([condition(Code.NO_REPAIR)])
    assert codes_of(either_form(codes, texts)) == [Code.NO_REPAIR], "codes are enough"


@pytest.mark.parametrize("value", [None, "text", {}, [1], [["x"]], ["x" * 301], ["x"] * 17])
def test_texts_of_an_older_version_are_checked(value: object) -> None:
    with pytest.raises(SchemaError):
        legacy_form(value)


def test_an_older_version_finds_the_words_from_which_it_decides_whatever_the_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commit fea56d70: "no room" (metadata/storage/metadata_disk_space.py), "limbo"
    (cluster/status/safe_to_stop.py), and the severities."""
    for code in Code:
        monkeypatch.setitem(TEXTS, code, "blah")
    found = [
        condition(
            Code.METADATA_DISK_LOW, free_bytes=1, needed_bytes=2, log_full=0, snapshot_failed=0
        ),
        condition(Code.LIMBO, ledgers=1, below=0, cause="x"),
        condition(Code.LIMBO_ENDED, cause="x"),
        condition(Code.ENTRIES_CORRUPT, ledgers=1),
        condition(Code.ENTRIES_CORRUPT_WITHOUT_COPY, ledgers=1, cause="x"),
        condition(Code.WORK_FAILED, unit="x", error="y", tries=1),
    ]

    assert texts_for_older_versions(found) == [
        *("no room: blah", "limbo: blah", "healed: blah", "healing: blah"),
        *("without a good copy: blah", "blah"),
    ]
    assert report_of(found)["conditions"] == as_maps(found)


def test_the_text_of_a_condition_names_its_node_once() -> None:
    down = condition(Code.BOOKIE_DOWN, ledgers=1).about(bookie="b1")
    limbo = condition(Code.LIMBO, ledgers=1, below=0, cause="x").about(bookie="b1")
    low = condition(Code.INDEX_BEHIND, minutes=3).about(node="m1")

    assert text_of(down).startswith("bookie b1 is offline")
    assert text_of(limbo).startswith("bookie b1: it may have lost entries of 1 ledger")
    assert text_of(low).startswith("metadata node m1: its index")
    assert text_of(down, lambda bookie: f"one ({bookie})").startswith("bookie one (b1) is offline")


def test_the_worst_condition_is_the_health() -> None:
    info, healing, risk = (
        condition(Code.ENTRIES_REPAIRED, ledgers=1),
        condition(Code.ENTRIES_CORRUPT, ledgers=1),
        condition(Code.ONE_COPY_LEFT, ledgers=1, ledger=1),
    )
    assert worst_of([]).health == worst_of([info]).health == "healthy"
    assert worst_of([info, risk, healing]).health == "at_risk"
    assert worst_first([info, risk, healing, risk]) == [risk, risk, healing, info]


def test_repairs_are_shown_for_an_hour_and_counted_until_then() -> None:
    repairs = RepairCount()
    assert not repairs.is_reported(0.0)

    repairs.add(10.0)
    repairs.add(REPAIRED_SHOWN_S)
    end = 2 * REPAIRED_SHOWN_S
    assert (repairs.count, repairs.is_reported(end - 1), repairs.is_reported(end)) == (
        2,
        True,
        False,
    )

    repairs.add(3 * REPAIRED_SHOWN_S)
    assert repairs.count == 1
