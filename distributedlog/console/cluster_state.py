"""Collect the state of the cluster for the page: health first, then each node with its own figures.

Figures of nodes are untrusted: values that are not numbers are dropped, and texts are cut and shown as plain
text. Unknown values are None, never 0.

The figures of the charts are sampled once per second, with or without a viewer. A sample costs one request
per bookie. While there is a viewer, its states are the samples.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from statistics import median
from typing import Any

import trio

from ..cluster.declarations.config import format_address
from ..cluster.status.bookie_names import ID_CHARS, replace_bookie_ids
from ..cluster.status.cluster_overview import StatusCache, bookies, status, unknown
from ..log.namespace import Namespace
from ..metadata.client.metadata_client import MetadataClient
from ..metadata.model.interface import Scan
from ..proxy.membership.proxy_registration import PREFIX, WRITE, ProxyRegistration
from ..runtime.declarations.condition_texts import text_of
from ..runtime.declarations.health_conditions import from_map
from ..runtime.declarations.versions import shown_version
from ..runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    UnsupportedFormat,
)
from ..runtime.schedule.work_failures import WorkFailures
from .node_connections import NodeLinks
from .rate_history import PointHistory, RateHistory, SampleClock
from .record_rate import RecordRate
from .suggested_command import command_for

STATUS_S = 6.0
"""Timeout of the status, in seconds. Without a quorum half of it is used, then the page reports the loss."""
INFO_S = 1.0
"""Timeout of a node's figures, in seconds. Afterwards its row has no numbers."""
QUERIES_AT_ONCE = 32
ROWS_MAX = 200
SAMPLE_S = 1.0
"""Interval of the samples, in seconds."""
SAMPLED_NODES_S = 30
"""Maximum number of bookies that are queried per second without a viewer. More are sampled less often."""
ADDRESSES_S = 10.0
"""Without a viewer, the addresses of the bookies are read at this interval, in seconds."""
VIEWER_GONE = 2.5
"""After this many intervals without a state, samples no longer come from viewers."""
NEWEST_POINTS = 5
"""The intervals of the charts that are part of each state."""
REASONS_MAX = 100
TEXT_MAX = 300
"""Maximum number of characters of a text from a node."""
SLOW_FACTOR = 3
SLOW_S = 0.02
"""A disk is slow if its sync p99, in seconds, exceeds this and `SLOW_FACTOR` times the median of the others.
"""


class ClusterState:
    """Polls one cluster repeatedly. For one task at a time, besides that of `run`."""

    def __init__(
        self,
        nodes: NodeLinks,
        metadata: MetadataClient,
        where: str,
        wall_ms: Callable[[], int],
        namespace: Callable[[], Namespace | None] = lambda: None,
    ) -> None:
        """``namespace`` returns None until a quorum has answered."""
        self._nodes = nodes
        self._metadata = metadata
        self._where = where
        self._wall_ms = wall_ms
        self._sample_time = sample_time(wall_ms)
        self._rates = RateHistory()
        self._records = RecordRate(namespace, self._sample_time)
        self._records_s: float | None = None
        self._status_cache = StatusCache()
        self._history = PointHistory()
        self._querying = trio.Lock()
        self._sampled_at = -float("inf")
        """Time of the newest sample of the bookies."""
        self._polled_at = -float("inf")
        self._addresses: dict[str, str] = {}
        """Bookie ID to address, of the bookies to sample."""
        self._registered = 0
        """The number of registered bookies when `_addresses` was read."""
        self._addresses_at = -float("inf")
        self._answered_at: dict[str, float] = {}
        """Address to the time of the last figures of this node."""
        self.waited_s = 0.0
        """Seconds that the last poll waited for unavailable nodes, which is not a load on the cluster."""
        self.labels: dict[str, str] = {}
        """Labels of the known bookies, by ID."""

    async def poll(self) -> dict[str, Any]:
        """Return the state, also without a quorum.

        Its size is limited: the most serious rows come first, and omitted ones are counted.
        """
        started_at = trio.current_time()
        cluster_status = await self._status()
        self.waited_s = trio.current_time() - started_at if cluster_status["logs"] is None else 0.0
        bookies = sorted(
            cluster_status["bookies"], key=lambda row: (row["state"] == "up", row["label"])
        )
        self.labels = {row["id"]: cut(row["label"], 64) for row in bookies[: 10 * ROWS_MAX]}
        registered = sum(row["address"] is not None for row in bookies)
        shown_bookies, members = bookies[:ROWS_MAX], cluster_status["metadata"][:ROWS_MAX]
        proxies = [] if cluster_status["logs"] is None else await self._proxies()
        addresses = [row["address"] for row in (*shown_bookies, *members) if row["address"]]
        addresses += [address for _, address in proxies if address]
        started_at, self._polled_at = trio.current_time(), self._sample_time()
        infos = await self._query_infos(addresses)
        self.waited_s += trio.current_time() - started_at
        for old_address in self._answered_at.keys() - set(addresses):
            del self._answered_at[old_address]
        now = self._polled_at = self._sample_time()
        if cluster_status["logs"] is not None:
            self._addresses = {row["id"]: row["address"] for row in shown_bookies if row["address"]}
            self._addresses_at, self._registered = now, registered
        rows = [self._bookie_row(row, infos, now) for row in shown_bookies]
        mark_slow(rows)
        rows.sort(key=is_well)
        conditions = [from_map(row) for row in cluster_status["conditions"][:REASONS_MAX]]
        applied = max((row["applied"] for row in members if row["alive"]), default=0)
        return {
            "where": self._where,
            "now_ms": self._wall_ms(),
            "rates": self._add_sample(rows, registered, now) | {"records_s": self._records_s},
            "points": self.points(NEWEST_POINTS),
            "health": cluster_status["health"],
            "healthy": cluster_status["healthy"],
            "conditions": [
                {
                    "code": row.code,
                    "severity": row.severity.word,
                    "text": with_labels(text_of(row), self.labels),
                    "command": command_for(row),
                }
                for row in conditions
            ],
            "conditions_left_out": len(cluster_status["conditions"]) - len(conditions),
            "proxies": [self._proxy_row(row, address, infos, now) for row, address in proxies],
            "metadata": [self._member_row(row, infos, applied, now) for row in members],
            "bookies": rows,
            "bookies_left_out": len(bookies) - len(rows),
            "versions": cluster_status["versions"],
            "logs": cluster_status["logs"],
            "known": cluster_status["logs"] is not None,
            "under_replicated": len(cluster_status["under_replicated"]),
            "damaged_records": len(cluster_status["damaged_records"]),
        }

    def points(self, newest: int | None = None) -> list[dict[str, Any]]:
        """Return the newest intervals for the charts, or all; see `PointHistory.points`."""
        return self._history.points(self._sample_time(), self._wall_ms(), newest)

    async def run(self) -> None:
        """Sample the figures of the charts until cancelled, also without a viewer."""
        await WorkFailures().keep_running("the console's samples", self._sample_all)

    async def _sample_all(self) -> None:
        records_at = self._sample_time()
        while True:
            started_at, begin = trio.current_time(), self._sample_time()
            step_s = max(SAMPLE_S, len(self._addresses) / SAMPLED_NODES_S)
            if begin - self._polled_at >= VIEWER_GONE * SAMPLE_S and (
                begin - self._sampled_at >= step_s
            ):
                await self._sample_bookies()
            self._records_s = await self._records.measure()
            now = self._sample_time()
            self._history.add(records_at, now, {"records_s": self._records_s})
            records_at = now
            await trio.sleep_until(max(started_at + SAMPLE_S, trio.current_time() + SAMPLE_S / 2))

    async def _sample_bookies(self) -> None:
        if self._sample_time() - self._addresses_at >= ADDRESSES_S:
            with trio.move_on_after(INFO_S), suppress(DistributedLogError):
                bookie_rows = await bookies(self._metadata, self._metadata.listener)
                self._addresses = {
                    row["id"]: row["address"] for row in bookie_rows[:ROWS_MAX] if row["address"]
                }
                self._registered = sum(row["address"] is not None for row in bookie_rows)
            self._addresses_at = self._sample_time()
        infos = await self._query_infos(list(self._addresses.values()))
        now = self._sample_time()
        self._add_sample(
            [
                self._bookie_rates(bookie_id, infos.get(address, {}), now)
                for bookie_id, address in self._addresses.items()
            ],
            self._registered,
            now,
        )

    def _add_sample(
        self, rows: Sequence[Mapping[str, Any]], registered: int, now: float
    ) -> dict[str, float | None]:
        """Record the figures of all bookies together, and return them.

        Bookies without figures are missing in the totals. ``counted`` of ``bookies`` states how many are not,
        so that a total that is too low is not taken for a lower load.
        """
        counted = sum(row["entries_s"] is not None for row in rows)
        figures: dict[str, float | None] = {
            name: total(rows, name) for name in ("in_bytes_s", "out_bytes_s", "entries_s")
        }
        figures["uncounted"] = registered - counted
        sync_p99s = [row["sync_p99_s"] for row in rows if row["sync_p99_s"] is not None]
        figures["sync_p99_s"] = max(sync_p99s, default=None)
        self._history.add(self._sampled_at, now, figures)
        self._sampled_at = now
        return figures | {"counted": counted, "bookies": registered}

    async def _status(self) -> dict[str, Any]:
        """Return the status, or an unknown one if no metadata node answers."""
        problem = f"no metadata node has answered for {STATUS_S:g} s"
        with trio.move_on_after(STATUS_S):
            try:
                return await status(
                    self._metadata, STATUS_S, self._status_cache, now_ms=self._wall_ms()
                )
            except (NotAllowed, NotAuthenticated):
                raise  # missing rights do not describe the health of the cluster
            except DistributedLogError as error:
                problem = str(error)
        return unknown(problem)

    async def _query_infos(self, addresses: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the figures of the nodes by address, without those that do not answer."""
        infos: dict[str, dict[str, Any]] = {}
        limiter = trio.CapacityLimiter(QUERIES_AT_ONCE)

        async def ask(address: str) -> None:
            async with limiter:
                try:
                    infos[address] = await self._nodes.info(address, timeout_s=INFO_S)
                except DistributedLogError:
                    return
            self._answered_at[address] = self._sample_time()

        # Locked, because a node has one request at a time (`NodeLinks.info`).
        async with self._querying, trio.open_nursery() as nursery:
            for address in dict.fromkeys(addresses):
                nursery.start_soon(ask, address)
        return infos

    async def _proxies(self) -> list[tuple[ProxyRegistration, str]]:
        """Return the registered proxies with their addresses; [] if the metadata is unavailable."""
        registrations: list[ProxyRegistration] = []
        with trio.move_on_after(INFO_S), suppress(DistributedLogError):
            async for item in Scan(self._metadata, PREFIX):
                with suppress(CorruptData, UnsupportedFormat):
                    registrations.append(ProxyRegistration.decode(item.key, item.value))
                if len(registrations) == ROWS_MAX:
                    break
        registrations.sort(
            key=lambda registration: (registration.kind, registration.label, registration.id)
        )
        with_address = [
            (registration, registration.address(self._metadata.listener))
            for registration in registrations
        ]
        return [
            (registration, format_address(proxy_address) if proxy_address else "")
            for registration, proxy_address in with_address
        ]

    def _proxy_row(
        self,
        registration: ProxyRegistration,
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
        rates = self._rates.rates(f"proxy {registration.id}", now, counters) if counters else {}
        return {
            "label": cut(registration.label or registration.id, 64),
            "kind": registration.kind,
            "accepting": registration.accepting,
            "answers": bool(info),
            "address": cut(address, 100),
            "version": shown_version(cut(registration.version, 64)),
            "rack": cut(registration.rack, 64),
            "connections": number(info, "connections"),
            "logs": number(info, "logs" if registration.kind == WRITE else "feeds"),
            "records_s": rates.get("records"),
            "out_bytes_s": rates.get("bytes_sent"),
        }

    def _silent_s(self, address: str | None, now: float) -> float | None:
        """Return the seconds since a node last answered; None if it never did."""
        answered_at = self._answered_at.get(address or "")
        return None if answered_at is None else round(now - answered_at, 1)

    def _bookie_row(
        self, bookie: Mapping[str, Any], infos: Mapping[str, Mapping[str, Any]], now: float
    ) -> dict[str, Any]:
        info = infos.get(bookie["address"] or "", {})
        loop_lag_ms = number(info, "loop_lag_max_ms")
        corruption = bookie["corruption"] or {}
        return {
            "id": bookie["id"],
            "label": cut(bookie["label"], 64),
            "state": bookie["state"],
            "address": cut(bookie["address"] or "", 100),
            "version": cut(bookie["version"] or "", 64),
            "rack": cut(bookie["rack"] or "", 64),
            "answers": bool(info),
            "silent_s": self._silent_s(bookie["address"], now),
            "ledgers": bookie["ledgers"],
            "ledgers_missing": bookie["ledgers_missing"],
            "used_bytes": bookie["used_bytes"],
            "free_bytes": bookie["free_bytes"],
            "limbo": number(info, "limbo_ledgers"),
            "in_limbo": is_in_limbo(info),
            "corrupt": corruption.get("corrupt_ledgers"),
            "late_s": None if loop_lag_ms is None else loop_lag_ms / 1000,
            "slow": False,
        } | self._bookie_rates(bookie["id"], info, now)

    def _bookie_rates(
        self, bookie_id: str, info: Mapping[str, Any], now: float
    ) -> dict[str, float | None]:
        """Return the rates of a bookie since its previous sample."""
        counters = {
            name: value
            for name in ("entries", "payload_bytes", "read_bytes")
            if (value := number(info, name)) is not None
        }
        rates = self._rates.rates(bookie_id, now, counters) if counters else {}
        return {
            "sync_p99_s": self._sync_p99(bookie_id, info, now),
            "entries_s": rates.get("entries"),
            "in_bytes_s": rates.get("payload_bytes"),
            "out_bytes_s": rates.get("read_bytes"),
        }

    def _sync_p99(self, bookie: str, info: Mapping[str, Any], now: float) -> float | None:
        histogram = info.get("sync_seconds")
        counts = histogram.get("counts") if isinstance(histogram, dict) else None
        if not isinstance(counts, list) or not all(
            type(bucket_count) is int for bucket_count in counts
        ):
            return None
        try:
            return self._rates.quantile(bookie, now, counts, 0.99)
        except ValueError:  # another version has other buckets
            return None

    def _member_row(
        self,
        member: Mapping[str, Any],
        infos: Mapping[str, Mapping[str, Any]],
        applied: int,
        now: float,
    ) -> dict[str, Any]:
        info = infos.get(member["address"], {})
        key = f"metadata {member['address']}"
        counters = {
            name: value
            for name in ("syncs", "bytes_written", "revision")
            if (value := number(info, name)) is not None
        }
        rates = self._rates.rates(key, now, counters) if counters else {}
        return {
            "name": cut(member["name"], 64),
            "address": cut(member["address"], 100),
            "role": cut(member["role"], 100),
            "alive": member["alive"],
            "version": cut(member["version"] or "", 64),
            "term": member["term"] if member["alive"] else None,
            "applied": member["applied"] if member["alive"] else None,
            "behind": max(0, applied - member["applied"]) if member["alive"] else None,
            "silent_s": self._silent_s(member["address"], now),
            "leases": number(info, "leases"),
            "connections": number(info, "connections"),
            "refused": number(info, "refused"),
            "changes_s": rates.get("revision"),
            "syncs_s": rates.get("syncs"),
            "log_bytes_s": rates.get("bytes_written"),
            "conditions": [
                with_labels(each["text"], self.labels) for each in member["conditions"][:10]
            ],
        }


@asynccontextmanager
async def sampled_state(
    nodes: NodeLinks,
    metadata: MetadataClient,
    where: str,
    wall_ms: Callable[[], int],
    namespace: Callable[[], Namespace | None],
) -> AsyncIterator[ClusterState]:
    """Yield the state of a cluster, sampled until the end of the block. For the arguments see the class."""
    async with trio.open_nursery() as nursery:
        state = ClusterState(nodes, metadata, where, wall_ms, namespace)
        nursery.start_soon(state.run)
        yield state
        nursery.cancel_scope.cancel()


def sample_time(wall_ms: Callable[[], int]) -> Callable[[], float]:
    """Return a function that reads a new `SampleClock`."""
    clock = SampleClock()
    return lambda: clock.time_s(trio.current_time(), wall_ms() / 1000)


def is_in_limbo(info: Mapping[str, Any]) -> bool:
    """Return whether a bookie has ledgers in limbo state, so that it cannot prove to have all their entries.

    ``limbo_below`` stands for ledgers that the bookie has no record of. They are not counted.
    """
    return bool(number(info, "limbo_ledgers") or number(info, "limbo_below"))


def is_well(row: Mapping[str, Any]) -> bool:
    """Return whether a bookie has no problem. Others are listed first."""
    return row["state"] == "up" and row["answers"] and not (row["in_limbo"] or row["slow"])


def with_labels(text: str, labels: Mapping[str, str]) -> str:
    """Replace bookie IDs with labels, for display, and cut the text. Commands keep the IDs."""
    return cut(
        replace_bookie_ids(
            text, lambda bookie_id: labels.get(bookie_id, f"{bookie_id[:ID_CHARS]}…")
        )
    )


def mark_slow(rows: Sequence[dict[str, Any]]) -> None:
    """Set ``slow`` if the sync p99 of a disk is far above that of the others, with at least three disks."""
    measured = [row for row in rows if row["sync_p99_s"] is not None]
    for row in measured:
        other_p99s = [other["sync_p99_s"] for other in measured if other is not row]
        row["slow"] = len(other_p99s) >= 2 and row["sync_p99_s"] > max(
            SLOW_S, SLOW_FACTOR * median(other_p99s)
        )


def total(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the sum of the known values, or None if none is known."""
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) if values else None


def number(info: Mapping[str, Any], name: str) -> float | None:
    """Return a number from a node's figures, or None if it is missing or not a number."""
    value = info.get(name)
    return value if isinstance(value, int | float) and abs(value) < 2**63 else None


def cut(text: Any, length: int = TEXT_MAX) -> str:
    """Return the value as text of limited length."""
    full_text = str(text)
    return full_text if len(full_text) <= length else full_text[: length - 1] + "…"
