"""Ledgers for `dlog ledger`: their records, and what bookies say of them."""

from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

from ...cluster.repair.copier import REQUEST_S, lacking, list_held
from ...cluster.repair.decommission import find_bookie
from ...ledger.model import ledger_keys as keys
from ...ledger.model import missing_range as holes
from ...ledger.model.ledger_metadata import NO_ENTRY, LedgerMetadata
from ...ledger.placement.ensemble_placement import not_adhering
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NoSuchLedger,
    UnsupportedFormat,
)

GAPS_MAX = 10_000
"""Of one bookie that are shown."""


async def ledgers(
    metadata: Metadata, bookie: str, state: str | None, limit: int
) -> AsyncIterator[dict[str, Any]]:
    """At most ``limit`` ledgers, in order; what cannot be read is passed over. Raises `InvalidRequest`."""
    on = await find_bookie(metadata, bookie) if bookie else ""
    async for item in Scan(metadata, keys.on_prefix(on) if on else keys.LEDGER_PREFIX):
        if limit == 0:
            return
        try:
            record = item
            if on:
                stored = await metadata.get(keys.ledger_key(keys.ledger_id_of(item.key)))
                if stored is None:
                    continue
                record = stored
            ledger = LedgerMetadata.decode(record.key, record.value)
        except (CorruptData, UnsupportedFormat):
            continue  # `dlog status` names it
        if state is None or ledger.state.value == state:
            limit -= 1
            yield _of(ledger)


def _of(ledger: LedgerMetadata) -> dict[str, Any]:
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
    """A ledger's record and what each bookie says of it. Raises `NoSuchLedger`."""
    item = await logs.metadata.get(keys.ledger_key(ledger_id))
    if item is None:
        raise NoSuchLedger(f"ledger {ledger_id} does not exist")
    ledger = LedgerMetadata.decode(item.key, item.value)
    note = await logs.metadata.get(keys.under_key(ledger_id))
    noted = () if note is None else holes.decode(note.value)
    found = _of(ledger)
    return found | {
        "quorums": [ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum],
        "last_entry": ledger.last_entry,
        "ensembles": [
            {"first_entry": one.first_entry, "bookies": list(one.bookies)}
            for one in ledger.ensembles
        ],
        "bookies": [await _says(logs, ledger, bookie) for bookie in ledger.bookies()],
        "together": _together(logs.ledgers.pool, ledger),
        "lost": [
            {
                "first": one.first,
                "last": one.last,
                "by": one.by,
                "at_ms": one.at_ms,
                "why": one.why,
            }
            for one in ledger.lost
        ],
        "noted": [{"bookie": one.bookie, "first": one.first, "to": one.to} for one in noted],
    }


def _together(pool: Any, ledger: LedgerMetadata) -> list[str]:
    """Which of its bookies stand together, though the placement policy wants them apart."""
    labels = {bookie: pool.labels(bookie) for bookie in ledger.bookies()}
    found: dict[str, None] = {}
    for one in ledger.ensembles:
        said = not_adhering(ledger.striping, one.bookies, labels, pool.placement)
        found.update(dict.fromkeys(said))
    return list(found)


async def _says(logs: Any, ledger: LedgerMetadata, bookie: str) -> dict[str, Any]:
    found: dict[str, Any] = {"bookie": bookie, "lac": None, "lists": None}
    found |= {"last": None, "missing": None}
    client = logs.ledgers.pool.get(bookie)
    if client is None:
        return found | {"says": "does not answer"}
    try:
        answer = await client.read_lac(ledger.ledger_id, ledger.key, REQUEST_S)
        found["lac"] = None if answer.lac == NO_ENTRY else answer.lac
        found["last"] = None if answer.last_entry == NO_ENTRY else answer.last_entry
        held = await list_held(ledger, client)
    except DistributedLogError as error:
        return found | {"says": f"{type(error).__name__}: {error}"}
    found["lists"] = sum(count for _, count in held.ranges)
    if not held.known:
        return found | {"says": "may have lost some of it (limbo)"}
    if not ledger.closed:
        return found | {"says": "ok"}
    gaps = list(islice(lacking(ledger, bookie, held), GAPS_MAX))
    found["missing"] = [[gap.first, gap.last] for gap in gaps]
    if not gaps:
        return found | {"says": "has all it should"}
    least = "at least " if len(gaps) == GAPS_MAX else ""
    more = f" and {least}{len(gaps) - 1} more stretches" if len(gaps) > 1 else ""
    return found | {"says": f"lacks {gaps[0].first} to {gaps[0].last}{more}"}
