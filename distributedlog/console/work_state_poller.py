"""Collect the repairs and drains, with progress and the reason of each wait."""

from collections.abc import Callable
from typing import Any

from ..cluster.coordination.repair_settings import usable_repair_settings
from ..cluster.repair.auditor_election import ELECTION_KEY
from ..cluster.repair.decommission import decommission_status
from ..cluster.status.cluster_overview import bookies
from ..ledger.model import ledger_keys as keys
from ..ledger.model.missing_range import decode_missing_ranges
from ..metadata.client.metadata_client import MetadataClient
from ..metadata.model.interface import Scan
from ..runtime.declarations.health_conditions import Severity
from ..runtime.interfaces.errors import CorruptData, UnsupportedFormat
from .cluster_state import cut, with_labels
from .suggested_command import command_about

INFO = Severity.INFO.word
SHOWN_RECORDS = 100
RECORDS_MAX = 10_000
"""Maximum number of records of missing copies that are counted."""
DRAINING_SHOWN = 20
WAITING_SHOWN = 10
"""Maximum number of ledgers of a draining bookie that are listed with their reasons."""


class WorkStatePoller:
    """Polls repeatedly. For one task at a time."""

    def __init__(self, metadata: MetadataClient, wall_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._wall_ms = wall_ms

    async def poll(self) -> dict[str, Any]:
        """Return the state. Raises `QuorumUnreachable`."""
        metadata = self._metadata
        bookie_rows = await bookies(metadata, metadata.listener)
        labels = {row["id"]: cut(row["label"], 64) for row in bookie_rows}
        election_item = await metadata.get(ELECTION_KEY)
        repairer = None if election_item is None else election_item.value.decode("ascii", "replace")
        settings = await usable_repair_settings(metadata)
        notes, left_out = await self._under_replicated(labels)
        draining = [row for row in bookie_rows if row["draining"]]
        now_ms = self._wall_ms()
        return {
            "now_ms": now_ms,
            "repairer": None if repairer is None else labels.get(repairer, cut(repairer, 64)),
            "paused_until": settings.pause_end if settings.is_paused(now_ms) else None,
            "draining": [
                await self._draining_row(row, labels) for row in draining[:DRAINING_SHOWN]
            ],
            "draining_left_out": max(0, len(draining) - DRAINING_SHOWN),
            "offline": [
                {
                    "label": labels[row["id"]],
                    "ledgers": row["ledgers_missing"],
                    "command": command_about("ledger list --bookie", row["id"]),
                }
                for row in bookie_rows
                if not row["running"]
            ][:DRAINING_SHOWN],
            "mending": [
                {
                    "label": labels[row["id"]],
                    "conditions": [
                        with_labels(reported["text"], labels) for reported in bad_conditions[:10]
                    ],
                }
                for row in bookie_rows
                if (
                    bad_conditions := [
                        reported for reported in row["conditions"] if reported["severity"] != INFO
                    ]
                )
            ][:DRAINING_SHOWN],
            "notes": notes,
            "notes_left_out": left_out,
        }

    async def _under_replicated(self, labels: dict[str, str]) -> tuple[list[dict[str, Any]], int]:
        """Return ledgers that are recorded to lack copies, and the number of further ones."""
        shown_records: list[dict[str, Any]] = []
        count = 0
        async for item in Scan(self._metadata, keys.MISSING_RANGES_PREFIX):
            count += 1
            if count > RECORDS_MAX:
                break
            if len(shown_records) == SHOWN_RECORDS:
                continue
            try:
                ledger, missing_ranges = (
                    keys.ledger_id_of(item.key),
                    decode_missing_ranges(item.value),
                )
            except (CorruptData, UnsupportedFormat):
                continue  # the status counts it among the damaged records
            shown_records.append(
                {
                    "ledger": ledger,
                    "missing_ranges": [
                        {
                            "bookie": labels.get(missing_range.bookie, missing_range.bookie[:8]),
                            "first": missing_range.first,
                            "to": missing_range.end,
                        }
                        for missing_range in missing_ranges[:8]
                    ],
                }
            )
        return shown_records, count - len(shown_records)

    async def _draining_row(self, row: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
        progress = await decommission_status(self._metadata, row["id"], waiting_max=WAITING_SHOWN)
        return {
            "label": cut(row["label"], 64),
            "command": command_about("decommission", row["id"]),
            "running": progress.running,
            "ledgers": progress.ledgers,
            "waiting": [
                {
                    "ledger": waiting_ledger.ledger,
                    "bytes": waiting_ledger.bytes,
                    "why": with_labels(waiting_ledger.why, labels),
                }
                for waiting_ledger in progress.waiting
            ],
        }
