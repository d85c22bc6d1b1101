"""Records that refer to each other both ways, and what is found where one side is missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from distributedlog.cluster.coordination.repair_settings import REPAIR_SETTINGS
from distributedlog.cluster.status import reference_check
from distributedlog.cluster.status.audit_findings import AuditFinding, FindingCode
from distributedlog.cluster.status.reference_check import ReferenceCheck
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.log.model.log_keys import segment_key, staged_ledger_key, state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_record import SegmentEnd, SegmentRecord
from distributedlog.log.model.stored_settings import bind_key, conf_key
from distributedlog.log.segments.staged_ledgers import StagedLedger
from distributedlog.metadata.model.cluster_version import CLUSTER_VERSION_KEY, ClusterVersion
from distributedlog.metadata.model.interface import RangePage
from distributedlog.metadata.model.transaction import Delete, KeyValue, Put, Transaction
from distributedlog.proxy.membership.proxy_registration import PREFIX as PROXIES
from distributedlog.runtime.declarations.health_conditions import Severity
from distributedlog.runtime.declarations.versions import CURRENT, UNREPORTED
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.metadata.local_metadata import LocalMetadata

BOOKIES = ("b1", "b2", "b3")
SAMPLES = Path(__file__).resolve().parents[2] / "versions" / "samples_fea56d70.json"
OLDER: dict[str, Any] = json.loads(SAMPLES.read_text(encoding="utf-8"))["samples"]
STAGED = StagedLedger("", 0, 0).encode()
STATE, SEGMENT, SETTINGS = "a log's state", "a segment's record", "a log's settings"
STATE_FIELDS = {
    "log_id": 1, "name": 2, "first_segment": 8, "first_open_segment": 9, "last_segment": 10,
    "last_txid": 11, "txid_rule": 21, "unordered": 22,
}  # fmt: skip
SEGMENT_FIELDS = {
    "segment": 1, "ledger": 2, "closed": 6, "first_txid": 8, "last_txid": 9,
    "txid_base": 18, "segment_txid_rule": 19,
}  # fmt: skip
"""The positions of fields in the packed records of commit fea56d70."""


async def _do(metadata: LocalMetadata, *operations: Put | Delete) -> None:
    await metadata.transact(Transaction((), operations))


async def _stored(metadata: LocalMetadata, count: int) -> None:
    """Logs 1 to 10, whose segments lie in ledgers 1 to ``count``."""
    for ledger_id in range(1, count + 1):
        owner = (ledger_id % 10 + 1, ledger_id)
        fragments = (Fragment(0, BOOKIES, 0),)
        ledger = LedgerMetadata(ledger_id, 3, 3, 2, fragments, bytes(16), owner=owner)
        await metadata.transact(transactions.creation_ops(ledger, ()))
        segment = SegmentRecord(owner[1], ledger_id, 1, 0)
        await _do(metadata, Put(segment_key(*owner), segment.encode()))


async def _findings(metadata: LocalMetadata) -> list[AuditFinding]:
    return [one async for one in ReferenceCheck(metadata).audit()]


async def _found(metadata: LocalMetadata) -> list[tuple[int | None, str]]:
    return [(one.ledger, one.what) for one in await _findings(metadata)]


async def test_what_fits_is_counted_and_nothing_is_found() -> None:
    metadata = LocalMetadata()
    await _stored(metadata, 25)
    await _do(
        metadata,
        Put(keys.ledger_key(26), b"junk"),
        Put(keys.bookie_ledgers_prefix("b1") + b"x", b""),
    )

    references = ReferenceCheck(metadata)
    (found,) = [one async for one in references.audit()]
    assert (found.code, found.ledger) == (FindingCode.RECORD_UNREADABLE, None)
    assert found.where == keys.printable_key(keys.ledger_key(26))
    assert (references.ledgers, references.segments, references.entries) == (25, 25, 75)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (Delete(keys.bookie_ledger_key("b2", 7)), "its record lists bookie b2"),
        (Put(keys.bookie_ledger_key("b0", 7), b""), "only the index lists bookie b0"),
        (Put(keys.bookie_ledger_key("b9", 7), b""), "only the index lists bookie b9"),
        (Delete(segment_key(8, 7)), "its segment 7 of log 0000000000000008 does not refer to it"),
        (Delete(keys.ledger_key(7)), "the index of b1 lists it, but it does not exist"),
    ],
)
async def test_each_side_that_is_missing_is_found(change: Put | Delete, what: str) -> None:
    metadata = LocalMetadata()
    await _stored(metadata, 9)
    await _do(metadata, change)

    found = await _found(metadata)

    assert {ledger for ledger, _ in found} == {7}
    assert any(said.startswith(what) for _, said in found), found


async def test_a_segment_without_its_ledger_and_a_ledger_of_no_log_are_found() -> None:
    metadata = LocalMetadata()
    await _stored(metadata, 3)
    loose = LedgerMetadata(8, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16))
    noted = LedgerMetadata(9, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16))
    for ledger in (loose, noted):
        await metadata.transact(transactions.creation_ops(ledger, ()))
    await _do(metadata, Put(staged_ledger_key(5, 9), STAGED))
    gone = [
        Delete(keys.ledger_key(3)),
        *(Delete(keys.bookie_ledger_key(one, 3)) for one in BOOKIES),
    ]
    await _do(metadata, *gone)

    assert await _found(metadata) == [
        (8, "no log refers to it, and it is not recorded as staged or replaced"),
        (3, "segment 3 of log 0000000000000004 refers to it, but it does not exist"),
    ]


@pytest.mark.parametrize("key", [keys.ledger_key(7), segment_key(8, 7)])
async def test_a_record_that_cannot_be_read_does_not_end_the_audit(key: bytes) -> None:
    """It is named, and what is wrong beside it is found."""
    metadata = LocalMetadata()
    await _stored(metadata, 9)
    await _do(metadata, Put(key, b"junk"), Delete(keys.bookie_ledger_key("b2", 9)))

    unreadable, other = sorted(await _findings(metadata), key=lambda one: one.ledger or 0)
    assert (unreadable.ledger, unreadable.where) == (None, keys.printable_key(key))
    assert (other.ledger, other.what) == (9, "its record lists bookie b2")


class Older:
    """A store with records as version 0.1 stored them."""

    def __init__(self) -> None:
        self.metadata = LocalMetadata()

    async def put(self, key: bytes, sample: str, **changes: Any) -> None:
        """Store a sample of commit fea56d70 with other fields, by position or by option."""
        fields: Any = unpack(bytes.fromhex(OLDER[sample][0][0]), sample)
        if sample == SETTINGS:
            fields[1] = changes
        else:
            positions = STATE_FIELDS if sample == STATE else SEGMENT_FIELDS
            for name, value in changes.items():
                fields[positions[name]] = value
        await _do(self.metadata, Put(key, pack(fields)))

    async def put_log(self, log_id: int, name: str, **changes: Any) -> None:
        """Store the state of a log without segments."""
        empty = {"first_segment": 1, "first_open_segment": 1, "last_segment": 0}
        named = {"log_id": log_id, "name": name, **empty}
        await self.put(state_key(log_id), STATE, **{**named, **changes})

    async def codes(self) -> list[tuple[FindingCode, str]]:
        """The codes and objects of the audit."""
        return [(one.code, one.where) for one in await _findings(self.metadata)]


async def test_unreadable_records_of_other_kinds_are_found_and_the_version_can_be_repaired() -> (
    None
):
    metadata = LocalMetadata()
    await _do(metadata, Put(CLUSTER_VERSION_KEY, b"junk"), Put(keys.PLACEMENT, b"junk"))

    found = {one.where: one.code for one in await _findings(metadata)}

    assert found == {
        keys.printable_key(CLUSTER_VERSION_KEY): FindingCode.VERSION_UNREADABLE,
        keys.printable_key(keys.PLACEMENT): FindingCode.RECORD_UNREADABLE,
    }


@pytest.mark.parametrize("stored", [True, False])
async def test_boolean_txids_of_version_0_1_are_found_in_state_segment_and_staged_ledger(
    stored: bool,
) -> None:
    older = Older()
    await _stored(older.metadata, 9)
    await older.put_log(8, "orders", last_txid=stored)
    key = segment_key(8, 7)
    changes = {"segment": 7, "ledger": 7, "first_txid": stored, "last_txid": stored}
    await older.put(key, SEGMENT, **changes)
    end = SegmentEnd(0, 5, 1, 7, 8, 0, 0)
    fields = unpack(end.encode(), "an end")
    fields[4] = stored
    ledger = LedgerMetadata(
        10, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16), custom={"end": pack(fields)}
    )
    await older.metadata.transact(transactions.creation_ops(ledger, ()))
    await _do(older.metadata, Put(staged_ledger_key(8, 10), STAGED))

    found = await older.codes()

    name = 'log "orders" (0000000000000008)'
    assert found == [
        (FindingCode.TXID_BOOLEAN, f"segment 7 of {name}"),
        (FindingCode.TXID_BOOLEAN, name),
        (FindingCode.TXID_BOOLEAN, "ledger 10"),
    ]


async def test_stored_infinity_is_found_with_its_log_or_namespace() -> None:
    """Where it means "never", bookies of version 0.1 stop on it. Elsewhere this version replaces it."""
    older = Older()
    await older.put_log(5, "orders")
    inf = float("inf")
    await older.put(bind_key("prod"), SETTINGS, hold_max_s=inf, keep_alive_s=1.0)
    await older.put(
        conf_key(5), SETTINGS, retention_s=60.0, keep_alive_s=inf, segment_age_max_s=inf
    )
    await older.put(conf_key(6), SETTINGS, rolling=False)

    first, *others = await _findings(older.metadata)

    assert (first.code, first.where) == (FindingCode.OPTION_INFINITE, 'namespace "prod"')
    assert "hold_max_s" in first.what
    assert [(one.code, one.where) for one in others] == [
        (FindingCode.OPTION_OUT_OF_RANGE, 'log "orders" (0000000000000005)')
    ] * 2
    assert [one.what.split()[1] for one in others] == ["segment_age_max_s", "keep_alive_s"]


async def test_logs_with_several_txid_policies_are_information() -> None:
    older = Older()
    await older.put_log(1, "plain", txid_rule="given", last_txid=9)
    await older.put_log(2, "decreasing", txid_rule="given", unordered=True)
    await older.put_log(3, "linked", txid_rule="given")
    for log_id, segment, changes in (
        (1, 1, {"closed": True}),
        (3, 1, {"closed": True, "txid_base": 4, "segment_txid_rule": 1}),
        (3, 2, {"closed": True}),
        (4, 1, {"closed": True, "txid_base": 4, "segment_txid_rule": 1}),
    ):
        ledger_id = 10 * log_id + segment
        ledger = LedgerMetadata(
            ledger_id, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16), owner=(log_id, segment)
        )
        await older.metadata.transact(transactions.creation_ops(ledger, ()))
        await older.put(
            segment_key(log_id, segment), SEGMENT, segment=segment, ledger=ledger_id, **changes
        )
    await older.put_log(4, "clock", txid_rule="ms")
    state = LogState(5, "new", 0, txid_rule="ms", txid_policy="auto")
    await _do(older.metadata, Put(state_key(5), state.encode()))

    findings = await _findings(older.metadata)

    assert [(one.code, one.where.split()[1]) for one in findings] == [
        (FindingCode.TXIDS_UNSEARCHABLE, '"decreasing"'),
        (FindingCode.TXID_POLICIES_MIXED, '"linked"'),
        (FindingCode.TXID_POLICIES_DIFFER, '"new"'),
    ]
    assert {one.severity for one in findings} == {Severity.INFO}


async def test_findings_of_one_code_are_limited_and_the_others_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference_check, "FINDINGS_MAX", 3)
    older = Older()
    for log_id in range(1, 6):
        await older.put_log(log_id, f"l{log_id}", unordered=True)
    await _do(older.metadata, Put(state_key(9), b"junk"))

    references = ReferenceCheck(older.metadata)
    findings = [one async for one in references.audit()]

    assert references.findings.total() == sum(one.count for one in findings) == 6
    assert [one.code for one in findings] == [
        *[FindingCode.TXIDS_UNSEARCHABLE] * 3,
        FindingCode.RECORD_UNREADABLE,
        FindingCode.TXIDS_UNSEARCHABLE,
    ]
    assert [one.count for one in findings] == [1, 1, 1, 1, 2]
    assert findings[-1].what == "2 more findings"


def test_every_code_has_a_severity_and_a_next_step() -> None:
    for code in FindingCode:
        finding = AuditFinding(code, "ledger 1", "is wrong")
        assert finding.severity in (Severity.INFO, Severity.DEGRADED)
        assert finding.next_step


async def test_next_step_of_an_unreadable_record_depends_on_the_kind_of_its_key() -> None:
    """A program or a command stores most kinds again. No step starts with restoring a backup."""
    steps = {
        keys.bookie_key("b1"): "Restart this bookie",
        PROXIES + b"p1": "Restart this proxy",
        keys.sync_point_key("b1"): "Do not stop this bookie",
        keys.PLACEMENT: "Store the complete policy again",
        REPAIR_SETTINGS: "Store the settings again",
        keys.ledger_key(7): "Run dlog metadata backup",
        state_key(7): "Run dlog metadata backup",
        conf_key(7): "Run dlog metadata backup",
        bind_key("prod"): "Run dlog metadata backup",
    }
    metadata = LocalMetadata()
    await _do(metadata, *(Put(key, b"junk") for key in steps))

    found = {one.where: one.next_step for one in await _findings(metadata)}

    assert len(found) == len(steps)
    for key, step in steps.items():
        assert found[keys.printable_key(key)].startswith(step), key
    missing = AuditFinding(FindingCode.LEDGER_MISSING, "ledger 7", "does not exist")
    assert missing.next_step == found[keys.printable_key(keys.ledger_key(7))]


@pytest.mark.parametrize(
    ("stored", "severity"),
    [
        (None, Severity.DEGRADED),
        (ClusterVersion(UNREPORTED).encode(), Severity.DEGRADED),
        (b"junk", Severity.DEGRADED),
        (ClusterVersion(CURRENT).encode(), Severity.INFO),
    ],
    ids=["absent", "0.1", "unreadable", "current"],
)
async def test_values_that_only_version_0_1_cannot_read_are_information_after_the_upgrade(
    stored: bytes | None, severity: Severity
) -> None:
    older = Older()
    if stored is not None:
        await _do(older.metadata, Put(CLUSTER_VERSION_KEY, stored))
    await older.put_log(8, "orders", last_txid=True)
    await older.put(bind_key("prod"), SETTINGS, hold_max_s=float("inf"))

    findings = {one.code: one for one in await _findings(older.metadata)}

    for code in (FindingCode.TXID_BOOLEAN, FindingCode.OPTION_INFINITE):
        assert findings[code].severity == severity
        assert ("No action" in findings[code].next_step) == (severity == Severity.INFO)


class Changing(LocalMetadata):
    """A store in which a ledger is moved after the index was read, and before its record is."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = 0
        self.reads = 0

    async def get(self, key: bytes) -> KeyValue | None:
        self.reads += 1
        return await super().get(key)

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        self.reads += 1
        if self.moves and start.startswith(keys.LEDGER_PREFIX):
            self.moves -= 1
            item: Any = await super().get(keys.ledger_key(5))
            ledger = LedgerMetadata.decode(item.key, item.value)
            moved = LedgerMetadata(
                5, 3, 3, 2, (Fragment(0, ("b1", "b2", "b4"), 0),), bytes(16), owner=ledger.owner
            )
            await self.transact(transactions.change_ops(ledger, moved, item.version))
        return await super().range(start, end, limit=limit)


async def test_what_changes_meanwhile_is_looked_at_again_and_a_ledger_costs_no_read() -> None:
    """100,000 ledgers are some 600 pages, not half a million questions."""
    metadata = Changing()
    await _stored(metadata, 500)
    await _do(metadata, Put(keys.bookie_ledger_key("b4", 500), b""))
    metadata.moves, metadata.reads = 1, 0

    assert await _found(metadata) == [(500, "only the index lists bookie b4")]
    assert metadata.reads < 50, "a few, and one for each kind of record"
