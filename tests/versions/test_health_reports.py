"""What nodes report of their health, and shared wire fields, between this build and an older one.

An older build sends texts. This one reads them as texts, and decides nothing from them. It sends codes, and
next to them the field that an older build reads, with the words from which that build decides.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.metadata.model import command_results as answers
from distributedlog.metadata.model.interface import MemberRole, MemberStatus
from distributedlog.metadata.protocol import client_messages as wire
from distributedlog.metadata.raft import raft_messages as messages
from distributedlog.metadata.storage.metadata_disk_space import is_disk_low
from distributedlog.runtime.declarations import condition_texts
from distributedlog.runtime.declarations.condition_texts import report_of, texts_of
from distributedlog.runtime.declarations.health_conditions import (
    Code,
    HealthCondition,
    Severity,
    condition,
    either_form,
)
from distributedlog.runtime.interfaces.errors import OutcomeUnknown
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.conditions import codes_of, every_condition

from .health_reports import READ, RECORD, run

OLDER: dict[str, str] = json.loads(
    (Path(__file__).parent / "health_fea56d70.json").read_text(encoding="utf-8")
)
LOW = condition(Code.METADATA_DISK_LOW, free_bytes=1, needed_bytes=2, log_full=0, snapshot_failed=0)
ACCEPTED = messages.AppendReply(3, "n1", True, 70, 0, 0, 9, 64, 1 << 60)
REFUSED = messages.AppendReply(3, "n1", False, 70, 60, 2, 9)


def sent(name: str) -> bytes:
    return bytes.fromhex(OLDER[name])


def test_texts_of_the_older_build_become_conditions_that_decide_nothing() -> None:
    registration = BookieRegistration.decode(b"bookie/b1", sent("registration"))
    info = unpack(sent("info"), "INFO")

    for conditions in (registration.conditions, either_form(None, info["reasons"])):
        assert {(one.code, one.severity) for one in conditions} == {
            (Code.LEGACY_TEXT, Severity.DEGRADED)
        }
        assert texts_of(conditions)[0].startswith("some ledgers are in limbo: ")
    rows = wire.decode_rows(sent("rows"))
    assert [codes_of(row.status.conditions) for row in rows[:2]] == [[], [Code.LEGACY_TEXT]]
    assert not any(is_disk_low(row.status.conditions) for row in rows)


def test_registration_without_codes_has_the_fields_of_the_older_build() -> None:
    """The simulator runs nodes that announce no codes as those of the older build."""
    registration = BookieRegistration.decode(b"bookie/b1", sent("registration"))

    found = unpack(registration.encode(codes=False), "a registration")

    assert found.keys() == unpack(sent("registration"), "a registration").keys()


def test_roles_of_the_older_build_are_told_from_their_details() -> None:
    """Its field has both: the role, and behind a colon why; or an error's text alone."""
    found = {row.status.name: row.status for row in wire.decode_rows(sent("rows"))}

    assert {name: (one.role, one.role_detail) for name, one in found.items()} == {
        "m1": ("leader", ""),
        "m2": ("follower", ""),
        "m3": (MemberRole.DAMAGED, "a block is torn"),
        "m4": (MemberRole.EMPTY, ""),
        "m5": (MemberRole.UNREACHABLE, "node x is met at h:5: WrongPeer"),
        "m6": (MemberRole.UNREACHABLE, ""),
        "m7": (MemberRole.LEARNER, ""),
    }


def test_replies_and_answers_of_the_older_build_have_their_fields() -> None:
    assert messages.decode(sent("accepted")) == ACCEPTED
    assert messages.decode(sent("refused")) == REFUSED
    stale = answers.decode_answer(sent("stale")).error
    assert isinstance(stale, OutcomeUnknown)
    assert stale.detail == OutcomeUnknown.STALE


def payloads() -> dict[str, Any]:
    """What this build sends to an older one."""
    registrations = {
        one.code: BookieRegistration("b1", {"": ("h", 1)}, conditions=(one,)).encode().hex()
        for one in (*every_condition(), HealthCondition("moon_phase", Severity.HEALING))
    }
    rows = [
        wire.MemberStatusRow(MemberStatus("m1", "h:1", "leader", 3, 9, True, "n1", (LOW,)), {}),
        wire.MemberStatusRow(
            MemberStatus("m3", "h:3", "damaged", 3, 9, True, "n3", (), "torn"), {}
        ),
        wire.MemberStatusRow(MemberStatus("m4", "h:4", "empty", 0, 0, True, "n4"), {}),
        wire.MemberStatusRow(
            MemberStatus("m5", "h:5", "unreachable", 0, 0, False, "n5", (), "why"), {}
        ),
        wire.MemberStatusRow(MemberStatus("m6", "h:6", "unreachable", 0, 0, False, "n6"), {}),
    ]
    stale = answers.CommandResult(error=OutcomeUnknown(answers.STALE_REQUEST, OutcomeUnknown.STALE))
    return {
        "registrations": registrations,
        "rows": wire.encode_rows(rows).hex(),
        "info": pack({"read_only": True, **report_of((LOW,))}).hex(),
        "accepted": messages.encode(ACCEPTED, codes=False).hex(),
        "refused": messages.encode(REFUSED, codes=False).hex(),
        "stale": answers.encode_answer(stale, codes=False).hex(),
    }


@pytest.mark.processes
@pytest.mark.parametrize("seed", [None, 1, 2], ids=str)
def test_older_build_decides_the_same_whatever_the_texts_of_this_build(
    seed: int | None, older_source: Path, older_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed is not None:
        chance = random.Random(seed)
        for code in Code:
            words = " ".join(chance.sample(["moon", "river", "nine", "green", "and"], 3))
            monkeypatch.setitem(condition_texts.TEXTS, code, words)

    found = run(READ, older_source, older_python, payloads())

    info = {one.code for one in every_condition() if one.severity is Severity.INFO}
    healing = {one.code for one in every_condition() if one.severity is Severity.HEALING}
    assert found["uncertain"] == [Code.LIMBO]
    assert set(found["healed"]) == info
    assert set(found["healing"]) == healing | {"moon_phase"}
    assert found["no_good_copy"] == [Code.ENTRIES_CORRUPT_WITHOUT_COPY]
    assert found["short"] == ["m1"]
    assert found["roles"] == {
        "m1": "leader",
        "m3": "damaged: torn",
        "m4": "waiting, empty",
        "m5": "why",
        "m6": "unreachable",
    }
    assert found["info"][0].startswith("no room: ")
    assert found["accepted"] == [70, 64, 1 << 60, 9]
    assert found["refused"] == [70, 60, 2, 9]
    assert found["stale"] is True


@pytest.mark.processes
def test_recorded_reports_are_those_of_the_older_build(
    older_source: Path, older_python: str
) -> None:
    assert run(RECORD, older_source, older_python) == OLDER
