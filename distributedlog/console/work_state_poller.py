"""What is being mended or drained, how far it is, and what it waits for."""

from collections.abc import Callable
from typing import Any

from ..cluster.repair.auditor_election import ELECTION_KEY
from ..cluster.repair.decommission import how_far
from ..cluster.status.cluster_overview import bookies
from ..ledger.model import ledger_keys as keys
from ..ledger.model import missing_range as holes
from ..metadata.client.metadata_client import MetadataClient
from ..metadata.model.interface import Scan
from ..runtime.declarations.health_conditions import Severity
from ..runtime.interfaces.errors import CorruptData, UnsupportedFormat
from .cluster_state import by_label, cut
from .suggested_command import command_about

INFO = Severity.INFO.word
NOTES_SHOWN = 100
NOTES_MAX = 10_000
"""Notes of missing copies that are counted."""
LEAVING_SHOWN = 20
WAITING_SHOWN = 10
"""Ledgers of a bookie that is to leave of which it is said what they wait for."""


class WorkStatePoller:
    """Looks again and again. For one task at a time."""

    def __init__(self, metadata: MetadataClient, wall_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._wall_ms = wall_ms

    async def look(self) -> dict[str, Any]:
        """The state. Raises `QuorumUnreachable`."""
        metadata = self._metadata
        known = await bookies(metadata, metadata.listener)
        labels = {one["id"]: cut(one["label"], 64) for one in known}
        elected = await metadata.get(ELECTION_KEY)
        repairer = None if elected is None else elected.value.decode("ascii", "replace")
        notes, left_out = await self._notes(labels)
        leaving = [one for one in known if one["to_leave"]]
        return {
            "now_ms": self._wall_ms(),
            "repairer": None if repairer is None else labels.get(repairer, cut(repairer, 64)),
            "leaving": [await self._leaving(one, labels) for one in leaving[:LEAVING_SHOWN]],
            "leaving_left_out": max(0, len(leaving) - LEAVING_SHOWN),
            "down": [
                {
                    "label": labels[one["id"]],
                    "ledgers": one["ledgers_missing"],
                    "command": command_about("ledger list --bookie", one["id"]),
                }
                for one in known
                if not one["running"]
            ][:LEAVING_SHOWN],
            "mending": [
                {
                    "label": labels[one["id"]],
                    "conditions": [by_label(each["text"], labels) for each in wrong[:10]],
                }
                for one in known
                if (wrong := [each for each in one["conditions"] if each["severity"] != INFO])
            ][:LEAVING_SHOWN],
            "notes": notes,
            "notes_left_out": left_out,
        }

    async def _notes(self, labels: dict[str, str]) -> tuple[list[dict[str, Any]], int]:
        """Ledgers that are noted to miss copies, and how many more there are."""
        shown: list[dict[str, Any]] = []
        count = 0
        async for item in Scan(self._metadata, keys.UNDER_PREFIX):
            count += 1
            if count > NOTES_MAX:
                break
            if len(shown) == NOTES_SHOWN:
                continue
            try:
                ledger, noted = keys.ledger_id_of(item.key), holes.decode(item.value)
            except (CorruptData, UnsupportedFormat):
                continue  # the verdict counts it among the damaged records
            shown.append(
                {
                    "ledger": ledger,
                    "holes": [
                        {
                            "bookie": labels.get(hole.bookie, hole.bookie[:8]),
                            "first": hole.first,
                            "to": hole.to,
                        }
                        for hole in noted[:8]
                    ],
                }
            )
        return shown, count - len(shown)

    async def _leaving(self, one: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
        found = await how_far(self._metadata, one["id"], named=WAITING_SHOWN)
        return {
            "label": cut(one["label"], 64),
            "command": command_about("decommission", one["id"]),
            "running": found.running,
            "ledgers": found.ledgers,
            "waiting": [
                {"ledger": each.ledger, "bytes": each.bytes, "why": by_label(each.why, labels)}
                for each in found.waiting
            ],
        }
