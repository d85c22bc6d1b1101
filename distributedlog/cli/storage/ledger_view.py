"""Describe ledgers for `dlog ledger`: their metadata records, and the copies on bookies."""

from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

from ...cluster.repair.copier import REQUEST_S, lacking_ranges, list_held_entries
from ...cluster.repair.decommission import find_bookie
from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_metadata import NO_ENTRY, LedgerMetadata
from ...ledger.model.missing_range import decode_missing_ranges
from ...ledger.placement.ensemble_placement import describe_violations
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NoSuchLedger,
    UnsupportedFormat,
)

GAPS_MAX = 10_000
"""Maximum number of missing ranges that are listed per bookie."""


async def ledgers(
    metadata: Metadata, bookie: str, state: str | None, limit: int
) -> AsyncIterator[dict[str, Any]]:
    """Yield at most ``limit`` ledgers, ordered by ID.

    Records that cannot be decoded are skipped.

    Args:
        metadata: The metadata store.
        bookie: Only ledgers on this bookie: a name, an ID, or the start of an ID. "" means all.
        state: Only ledgers in this state, or None.
        limit: The maximum number.

    Raises:
        InvalidRequest: No bookie has this name or ID, or several have.
    """
    bookie_id = await find_bookie(metadata, bookie) if bookie else ""
    async for item in Scan(
        metadata, keys.bookie_ledgers_prefix(bookie_id) if bookie_id else keys.LEDGER_PREFIX
    ):
        if limit == 0:
            return
        try:
            record = item
            if bookie_id:
                stored = await metadata.get(keys.ledger_key(keys.ledger_id_of(item.key)))
                if stored is None:
                    continue
                record = stored
            ledger = LedgerMetadata.decode(record.key, record.value)
        except (CorruptData, UnsupportedFormat):
            continue  # `dlog status` reports it
        if state is None or ledger.state.value == state:
            limit -= 1
            yield _ledger_row(ledger)


def _ledger_row(ledger: LedgerMetadata) -> dict[str, Any]:
    name = ledger.custom.get("log", b"").decode(errors="replace")
    return {
        "ledger": ledger.ledger_id,
        "state": ledger.state.value,
        "log": name or (None if ledger.owner is None else f"{ledger.owner[0]:016x}"),
        "segment": None if ledger.owner is None else ledger.owner[1],
        "entries": None if ledger.last_entry is None else ledger.last_entry + 1,
        "bytes": ledger.length,
        "bookies": list(ledger.bookies()),
    }


async def describe(logs: Any, ledger_id: int) -> dict[str, Any]:
    """Describe the record of a ledger and the copy on each bookie. Raises `NoSuchLedger`."""
    item = await logs.metadata.get(keys.ledger_key(ledger_id))
    if item is None:
        raise NoSuchLedger(f"ledger {ledger_id} does not exist")
    ledger = LedgerMetadata.decode(item.key, item.value)
    missing_item = await logs.metadata.get(keys.missing_ranges_key(ledger_id))
    missing_ranges = () if missing_item is None else decode_missing_ranges(missing_item.value)
    row = _ledger_row(ledger)
    return row | {
        "quorums": [ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum],
        "last_entry": ledger.last_entry,
        "ensembles": [
            {"first_entry": ensemble.first_entry, "bookies": list(ensemble.bookies)}
            for ensemble in ledger.ensembles
        ],
        "bookies": [await _bookie_report(logs, ledger, bookie) for bookie in ledger.bookies()],
        "placement_violations": _placement_violations(logs.ledgers.pool, ledger),
        "lost": [
            {
                "first": ensemble.first,
                "last": ensemble.last,
                "by": ensemble.declared_by,
                "at_ms": ensemble.declared_at_ms,
                "why": ensemble.reason,
            }
            for ensemble in ledger.lost
        ],
        "missing_ranges": [
            {"bookie": ensemble.bookie, "first": ensemble.first, "to": ensemble.end}
            for ensemble in missing_ranges
        ],
    }


def _placement_violations(pool: Any, ledger: LedgerMetadata) -> list[str]:
    """Return a description of each violation of the placement policy in this ledger."""
    labels = {bookie: pool.labels(bookie) for bookie in ledger.bookies()}
    violations: dict[str, None] = {}
    for fragment in ledger.ensembles:
        fragment_violations = describe_violations(
            ledger.striping, fragment.bookies, labels, pool.placement
        )
        violations.update(dict.fromkeys(fragment_violations))
    return list(violations)


async def _bookie_report(logs: Any, ledger: LedgerMetadata, bookie: str) -> dict[str, Any]:
    report: dict[str, Any] = {"bookie": bookie, "lac": None, "lists": None}
    report |= {"last": None, "missing": None}
    client = logs.ledgers.pool.get(bookie)
    if client is None:
        return report | {"report": "does not answer"}
    try:
        lac_answer = await client.read_lac(ledger.ledger_id, ledger.key, REQUEST_S)
        report["lac"] = None if lac_answer.lac == NO_ENTRY else lac_answer.lac
        report["last"] = None if lac_answer.last_entry == NO_ENTRY else lac_answer.last_entry
        held_entries = await list_held_entries(ledger, client)
    except DistributedLogError as error:
        return report | {"report": f"{type(error).__name__}: {error}"}
    report["lists"] = sum(count for _, count in held_entries.ranges)
    if not held_entries.proves_absence:
        return report | {"report": "may have lost some entries (limbo state)"}
    if not ledger.closed:
        return report | {"report": "ok"}
    gaps = list(islice(lacking_ranges(ledger, bookie, held_entries), GAPS_MAX))
    report["missing"] = [[gap.first, gap.last] for gap in gaps]
    if not gaps:
        return report | {"report": "has all required entries"}
    least = "at least " if len(gaps) == GAPS_MAX else ""
    more = f" and {least}{len(gaps) - 1} more ranges" if len(gaps) > 1 else ""
    return report | {"report": f"lacks {gaps[0].first} to {gaps[0].last}{more}"}
