"""The cluster's state for the page: the verdict first, then each node with what it says of itself.

What a node says is a peer's: numbers are taken as numbers or not at all, texts are cut and shown as texts.
What is not known is None, never 0.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import trio

from ..cluster.declarations.config import format_address
from ..cluster.status.bookie_names import ID_CHARS, with_names
from ..cluster.status.cluster_overview import Seldom, status, unknown
from ..metadata.client.metadata_client import MetadataClient
from ..metadata.model.interface import Scan
from ..proxy.membership.proxy_registration import PREFIX, WRITE, ProxyRegistration
from ..runtime.declarations.condition_texts import text_of
from ..runtime.declarations.health_conditions import from_map
from ..runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    UnsupportedFormat,
)
from .node_connections import NodeLinks
from .rate_history import RateHistory
from .suggested_command import command_for

STATUS_S = 6.0
"""Half of it without a quorum: then the page says so."""
INFO_S = 1.0
"""A node that says nothing for so long is a row without numbers."""
ASKED_AT_ONCE = 32
ROWS_MAX = 200
POINTS_MAX = 900
"""Of the charts: what was seen last, while somebody looked. History is Prometheus' task."""
REASONS_MAX = 100
TEXT_MAX = 300
"""Characters of what somebody else said."""
SLOW_TIMES = 3
SLOW_S = 0.02
"""A disk is slow whose p99 is above this, and so many times the median of the others."""


class ClusterState:
    """Looks at one cluster, again and again. For one task at a time."""

    def __init__(
        self, nodes: NodeLinks, metadata: MetadataClient, where: str, wall_ms: Callable[[], int]
    ) -> None:
        self._nodes = nodes
        self._metadata = metadata
        self._where = where
        self._wall_ms = wall_ms
        self._rates = RateHistory()
        self._seldom = Seldom()
        self._points: deque[dict[str, float | None]] = deque(maxlen=POINTS_MAX)
        self._answered: dict[str, float] = {}
        """By address: when a node's numbers came last."""
        self.waited_s = 0.0
        """Of the last look: for who did not answer. That is no load to anybody."""
        self.labels: dict[str, str] = {}
        """Of the bookies that are known, by id."""

    async def look(self) -> dict[str, Any]:
        """The state, also without a quorum. Bounded: the worst come first, what is left out is counted."""
        begun = trio.current_time()
        found = await self._status()
        self.waited_s = trio.current_time() - begun if found["logs"] is None else 0.0
        bookies = sorted(found["bookies"], key=lambda one: (one["state"] == "up", one["label"]))
        self.labels = {one["id"]: cut(one["label"], 64) for one in bookies[: 10 * ROWS_MAX]}
        shown, members = bookies[:ROWS_MAX], found["metadata"][:ROWS_MAX]
        proxies = [] if found["logs"] is None else await self._proxies()
        addresses = [one["address"] for one in (*shown, *members) if one["address"]]
        begun = trio.current_time()
        infos = await self._infos([*addresses, *(address for _, address in proxies if address)])
        now = trio.current_time()
        self.waited_s += now - begun
        rows = [self._bookie(one, infos, now) for one in shown]
        mark_slow(rows)
        rows.sort(key=is_well)
        conditions = [from_map(one) for one in found["conditions"][:REASONS_MAX]]
        applied = max((one["applied"] for one in members if one["alive"]), default=0)
        now_ms = self._wall_ms()
        self._points.append(
            {"at": now_ms}
            | {name: total(rows, name) for name in ("in_bytes_s", "out_bytes_s", "entries_s")}
        )
        return {
            "where": self._where,
            "now_ms": now_ms,
            "point": self._points[-1],
            "health": found["health"],
            "healthy": found["healthy"],
            "conditions": [
                {
                    "code": one.code,
                    "severity": one.severity.word,
                    "text": by_label(text_of(one), self.labels),
                    "command": command_for(one),
                }
                for one in conditions
            ],
            "conditions_left_out": len(found["conditions"]) - len(conditions),
            "proxies": [self._proxy(one, address, infos, now) for one, address in proxies],
            "metadata": [self._member(one, infos, applied, now) for one in members],
            "bookies": rows,
            "bookies_left_out": len(bookies) - len(rows),
            "logs": found["logs"],
            "known": found["logs"] is not None,
            "under_replicated": len(found["under_replicated"]),
            "damaged_records": len(found["damaged_records"]),
        }

    def points(self) -> list[dict[str, float | None]]:
        """What was seen of all bookies together, a point a look, the oldest first."""
        return list(self._points)

    async def _status(self) -> dict[str, Any]:
        """As `overview.status`; also where not one metadata node answers."""
        why = f"no metadata node has answered for {STATUS_S:g} s"
        with trio.move_on_after(STATUS_S):
            try:
                return await status(self._metadata, STATUS_S, self._seldom)
            except (NotAllowed, NotAuthenticated):
                raise  # that one may not see it says nothing of how the cluster is
            except DistributedLogError as error:
                why = str(error)
        return unknown(why)

    async def _infos(self, addresses: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What the nodes say of themselves, by address; those that say nothing are not in it."""
        found: dict[str, dict[str, Any]] = {}
        places = trio.CapacityLimiter(ASKED_AT_ONCE)

        async def ask(address: str) -> None:
            async with places:
                try:
                    found[address] = await self._nodes.info(address, timeout_s=INFO_S)
                except DistributedLogError:
                    return
            self._answered[address] = trio.current_time()

        async with trio.open_nursery() as nursery:
            for address in dict.fromkeys(addresses):
                nursery.start_soon(ask, address)
        for gone in self._answered.keys() - set(addresses):
            del self._answered[gone]
        return found

    async def _proxies(self) -> list[tuple[ProxyRegistration, str]]:
        """Those that are registered now, with their addresses; [] where the metadata cannot say it."""
        found: list[ProxyRegistration] = []
        with trio.move_on_after(INFO_S), suppress(DistributedLogError):
            async for item in Scan(self._metadata, PREFIX):
                with suppress(CorruptData, UnsupportedFormat):
                    found.append(ProxyRegistration.decode(item.key, item.value))
                if len(found) == ROWS_MAX:
                    break
        found.sort(key=lambda one: (one.kind, one.label, one.id))
        places = [(one, one.address(self._metadata.listener)) for one in found]
        return [(one, format_address(place) if place else "") for one, place in places]

    def _proxy(
        self,
        one: ProxyRegistration,
        address: str,
        infos: Mapping[str, Mapping[str, Any]],
        now: float,
    ) -> dict[str, Any]:
        info = infos.get(address, {})
        counters = {
            name: value
            for name in ("records", "bytes_sent")
            if (value := number(info, name)) is not None
        }
        rates = self._rates.look(f"proxy {one.id}", now, counters) if counters else {}
        return {
            "label": cut(one.label or one.id, 64),
            "kind": one.kind,
            "accepting": one.accepting,
            "answers": bool(info),
            "address": cut(address, 100),
            "rack": cut(one.rack, 64),
            "connections": number(info, "connections"),
            "logs": number(info, "logs" if one.kind == WRITE else "feeds"),
            "records_s": rates.get("records"),
            "out_bytes_s": rates.get("bytes_sent"),
        }

    def _silent_s(self, address: str | None, now: float) -> float | None:
        """For how long a node has said nothing; None: never heard here."""
        at = self._answered.get(address or "")
        return None if at is None else round(now - at, 1)

    def _bookie(
        self, one: Mapping[str, Any], infos: Mapping[str, Mapping[str, Any]], now: float
    ) -> dict[str, Any]:
        info = infos.get(one["address"] or "", {})
        counters = {
            name: value
            for name in ("entries", "payload_bytes", "read_bytes")
            if (value := number(info, name)) is not None
        }
        rates = self._rates.look(one["id"], now, counters) if counters else {}
        late = number(info, "loop_lag_max_ms")
        rot = one["rot"] or {}
        return {
            "id": one["id"],
            "label": cut(one["label"], 64),
            "state": one["state"],
            "address": cut(one["address"] or "", 100),
            "rack": cut(one["rack"] or "", 64),
            "answers": bool(info),
            "silent_s": self._silent_s(one["address"], now),
            "ledgers": one["ledgers"],
            "ledgers_missing": one["ledgers_missing"],
            "used_bytes": one["used_bytes"],
            "free_bytes": one["free_bytes"],
            "limbo": number(info, "limbo_ledgers"),
            "in_limbo": is_in_limbo(info),
            "rotten": rot.get("rotten_ledgers"),
            "sync_p99_s": self._sync_p99(one["id"], info, now),
            "late_s": None if late is None else late / 1000,
            "entries_s": rates.get("entries"),
            "in_bytes_s": rates.get("payload_bytes"),
            "out_bytes_s": rates.get("read_bytes"),
            "slow": False,
        }

    def _sync_p99(self, bookie: str, info: Mapping[str, Any], now: float) -> float | None:
        said = info.get("sync_seconds")
        counts = said.get("counts") if isinstance(said, dict) else None
        if not isinstance(counts, list) or not all(type(one) is int for one in counts):
            return None
        try:
            return self._rates.quantile(bookie, now, counts, 0.99)
        except ValueError:  # another version's bounds
            return None

    def _member(
        self,
        one: Mapping[str, Any],
        infos: Mapping[str, Mapping[str, Any]],
        applied: int,
        now: float,
    ) -> dict[str, Any]:
        info = infos.get(one["address"], {})
        key = f"metadata {one['address']}"
        counters = {
            name: value
            for name in ("syncs", "bytes_written", "revision")
            if (value := number(info, name)) is not None
        }
        rates = self._rates.look(key, now, counters) if counters else {}
        return {
            "name": cut(one["name"], 64),
            "address": cut(one["address"], 100),
            "role": cut(one["role"], 100),
            "alive": one["alive"],
            "term": one["term"] if one["alive"] else None,
            "applied": one["applied"] if one["alive"] else None,
            "behind": max(0, applied - one["applied"]) if one["alive"] else None,
            "silent_s": self._silent_s(one["address"], now),
            "leases": number(info, "leases"),
            "connections": number(info, "connections"),
            "refused": number(info, "refused"),
            "changes_s": rates.get("revision"),
            "syncs_s": rates.get("syncs"),
            "log_bytes_s": rates.get("bytes_written"),
            "conditions": [by_label(each["text"], self.labels) for each in one["conditions"][:10]],
        }


def is_in_limbo(info: Mapping[str, Any]) -> bool:
    """Does a bookie say so? Ledgers that it does not know any more are in limbo too, and not counted."""
    return bool(number(info, "limbo_ledgers") or number(info, "limbo_below"))


def is_well(row: Mapping[str, Any]) -> bool:
    """Nothing is to be seen there; the others come first."""
    return row["state"] == "up" and row["answers"] and not (row["in_limbo"] or row["slow"])


def by_label(text: str, labels: Mapping[str, str]) -> str:
    """For eyes: bookies by their labels instead of their ids, which the commands have. As `cut` does, cut."""
    return cut(with_names(text, lambda one: labels.get(one, f"{one[:ID_CHARS]}…")))


def mark_slow(rows: Sequence[dict[str, Any]]) -> None:
    """Set ``slow`` where a disk's p99 is far from its peers'. With fewer than three nobody is."""
    known = [row for row in rows if row["sync_p99_s"] is not None]
    for row in known:
        others = [one["sync_p99_s"] for one in known if one is not row]
        row["slow"] = len(others) >= 2 and row["sync_p99_s"] > max(
            SLOW_S, SLOW_TIMES * median(others)
        )


def total(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Of those that are known; None: of none."""
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) if known else None


def number(said: Mapping[str, Any], name: str) -> float | None:
    """A number that a peer said, or None: another version says others."""
    value = said.get(name)
    return value if isinstance(value, int | float) and abs(value) < 2**63 else None


def cut(text: Any, length: int = TEXT_MAX) -> str:
    """As a text that is not too long."""
    whole = str(text)
    return whole if len(whole) <= length else whole[: length - 1] + "…"
