"""Samples without a viewer: what is asked, how often, and what is known of small and large namespaces."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.console.cluster_state import ADDRESSES_S, ROWS_MAX, ClusterState
from distributedlog.console.rate_history import SERIES
from distributedlog.console.record_rate import LOGS_MAX, NAMES_S, RecordRate
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.interfaces.errors import LedgerStateUnknown, RequestTimeout
from distributedlog.runtime.protocol.frames import pack
from tests.metadata.local_metadata import LocalMetadata


class Nodes:
    """Bookies that count 100 bytes per second, and what was asked of them."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.silent = set[str]()
        self.counted_s = 0
        """Seconds for which they counted while trio's clock stood still."""

    async def info(self, address: str, *, timeout_s: float) -> dict[str, Any]:
        self.asked[address] += 1
        if address in self.silent:
            await trio.sleep(timeout_s)
            raise RequestTimeout(address)
        counted_s = self.counted_s + trio.current_time()
        return {"payload_bytes": round(100 * counted_s), "entries": 5, "read_bytes": 0}


async def _registered(bookies: int) -> Any:
    metadata: Any = LocalMetadata()
    metadata.listener = ""
    for number in range(bookies):
        bookie = BookieRegistration(f"b{number}", {"": ("h", number + 1)})
        cookie = pack({"label": f"bookie{number}", "incarnation": 1})
        puts = (
            Put(keys.bookie_key(f"b{number}"), bookie.encode()),
            Put(keys.cookie_key(f"b{number}"), cookie),
        )
        await metadata.transact(Transaction((), puts))
    return metadata


def _seconds(state: ClusterState) -> list[list[Any]]:
    rows: list[list[Any]] = state.points()[0]["rows"]
    return rows


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


async def test_without_a_viewer_each_bookie_is_asked_once_per_second(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, nodes: Nodes
) -> None:
    state: Any = ClusterState(nodes, await _registered(3), "uri", lambda: 0)  # type: ignore[arg-type]
    nursery.start_soon(state.run)
    await trio.sleep(60.5)

    assert nodes.asked == {f"h:{port}": 61 for port in (1, 2, 3)}
    rows = _seconds(state)
    assert len(rows) in (59, 60)
    assert {row[3] for row in rows} == {300.0}  # bytes of all three
    nursery.cancel_scope.cancel()


async def test_many_bookies_are_sampled_less_often_and_without_gaps(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, nodes: Nodes
) -> None:
    state: Any = ClusterState(nodes, await _registered(120), "uri", lambda: 0)  # type: ignore[arg-type]
    nursery.start_soon(state.run)
    await trio.sleep(60.5)

    assert nodes.asked.total() <= 60 * 30 + 120
    indexes = [row[0] for row in _seconds(state)]
    assert len(indexes) > 50
    assert indexes == list(range(int(indexes[0]), int(indexes[0]) + len(indexes)))
    nursery.cancel_scope.cancel()


async def test_a_bookie_that_joins_is_sampled_and_one_that_leaves_is_not(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, nodes: Nodes
) -> None:
    metadata = await _registered(2)
    state: Any = ClusterState(nodes, metadata, "uri", lambda: 0)  # type: ignore[arg-type]
    nursery.start_soon(state.run)
    await trio.sleep(1)
    joined = BookieRegistration("b9", {"": ("h", 10)})
    cookie = pack({"label": "bookie9", "incarnation": 1})
    changes = (
        Delete(keys.bookie_key("b0")),
        Put(keys.bookie_key("b9"), joined.encode()),
        Put(keys.cookie_key("b9"), cookie),
    )
    await metadata.transact(Transaction((), changes))
    await trio.sleep(ADDRESSES_S + 1)
    before = nodes.asked["h:1"]
    await trio.sleep(10)

    assert nodes.asked["h:1"] == before
    assert nodes.asked["h:2"] > before
    assert nodes.asked["h:10"] >= 10
    nursery.cancel_scope.cancel()


async def test_a_silent_bookie_takes_no_samples_of_the_others(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, nodes: Nodes
) -> None:
    nodes.silent.add("h:1")
    state: Any = ClusterState(nodes, await _registered(2), "uri", lambda: 0)  # type: ignore[arg-type]
    nursery.start_soon(state.run)
    await trio.sleep(31)

    rows = _seconds(state)
    assert len(rows) > 25
    assert {row[3] for row in rows} == {100.0}
    nursery.cancel_scope.cancel()


async def test_a_total_without_a_silent_bookie_states_it(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, nodes: Nodes
) -> None:
    """A total fell when a bookie did not answer, as if less was written."""
    state: Any = ClusterState(nodes, await _registered(3), "uri", lambda: 0)  # type: ignore[arg-type]
    nursery.start_soon(state.run)
    await trio.sleep(20.5)
    nodes.silent.add("h:1")
    await trio.sleep(20)
    uncounted = 1 + SERIES.index("uncounted")
    found = [(row[3], row[uncounted]) for row in _seconds(state)]

    assert set(found[:15]) == {(300.0, 0.0)}
    assert set(found[-10:]) == {(200.0, 1.0)}
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("silent", "bookies", "counted"), [(0, 3, 3), (1, 3, 2), (3, 3, 0), (0, ROWS_MAX + 5, ROWS_MAX)]
)
async def test_figures_of_the_cluster_state_how_many_bookies_they_count(
    autojump_clock: trio.testing.MockClock, nodes: Nodes, silent: int, bookies: int, counted: int
) -> None:
    nodes.silent |= {f"h:{number + 1}" for number in range(silent)}
    state: Any = ClusterState(nodes, await _registered(bookies), "uri", lambda: 0)  # type: ignore[arg-type]
    await state.poll()
    await trio.sleep(1)
    rates = (await state.poll())["rates"]

    assert (rates["bookies"], rates["counted"]) == (bookies, counted)


@pytest.mark.parametrize("skipped_s", [20, 200])
async def test_a_suspended_console_has_a_gap_and_no_peak(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, nodes: Nodes, skipped_s: int
) -> None:
    """The monotonic clock stopped, the counters did not: old points moved, and were joined to new ones."""
    skipped = 0
    state: Any = ClusterState(
        nodes,  # type: ignore[arg-type]
        await _registered(2),
        "uri",
        lambda: round((1_000_000 + skipped + trio.current_time()) * 1000),
    )
    nursery.start_soon(state.run)
    await trio.sleep(30.25)
    before = state.points()[0]
    skipped = skipped_s
    nodes.counted_s += skipped_s
    await trio.sleep(30)
    after = state.points()[0]

    def times(points: Any) -> list[float]:
        return [points["base_ms"] / 1000 + row[0] for row in points["rows"]]

    old, new = times(before), times(after)
    assert new[: len(old)] == old, "they keep their times"
    gaps = [later - earlier for earlier, later in pairwise(new) if later - earlier > 1]
    assert len(gaps) == 1
    assert skipped_s < gaps[0] < skipped_s + 4
    assert len(new) >= 55
    assert {row[3] for row in after["rows"]} == {200.0}, "and no rate is above the real one"
    nursery.cancel_scope.cancel()


class Logs:
    """A namespace of logs that grow by ten records per second each."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.read = Counter[str]()
        self.unreadable = set[str]()

    async def log_page(self, *, limit: int) -> Any:
        return SimpleNamespace(names=self.names[:limit])

    def open_log(self, name: str) -> Any:
        async def snapshot(*, limit: int) -> Any:
            await trio.lowlevel.checkpoint()
            self.read[name] += 1
            if name in self.unreadable:
                raise LedgerStateUnknown(name)
            return SimpleNamespace(end_sequence_id=round(10 * trio.current_time()))

        return SimpleNamespace(snapshot=snapshot)


async def _measured(logs: Logs, seconds: int) -> list[float | None]:
    rate = RecordRate(lambda: logs)  # type: ignore[arg-type, return-value]
    found = []
    for _ in range(seconds):
        found.append(await rate.measure())
        await trio.sleep(1)
    return found


async def test_records_are_the_sum_over_logs_of_which_one_is_read_per_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    logs = Logs(["a", "b", "c"])
    found = await _measured(logs, 30)

    assert logs.read.total() == 30
    assert max(logs.read.values()) - min(logs.read.values()) <= 1
    assert found[:5] == [None] * 5, "each log must have been read twice"
    assert set(found[5:]) == {30.0}


async def test_records_of_many_logs_are_unknown_and_none_is_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    logs = Logs([f"{number:03d}" for number in range(LOGS_MAX + 1)])

    assert set(await _measured(logs, 30)) == {None}
    assert not logs.read


async def test_a_namespace_without_logs_has_no_records(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert await _measured(Logs([]), 2) == [0, 0]


async def test_records_are_unknown_while_a_log_cannot_be_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    logs = Logs(["a", "b"])
    logs.unreadable.add("b")

    assert set(await _measured(logs, 20)) == {None}
    assert logs.read["a"] >= 8, "the others are read meanwhile"


async def test_a_new_log_is_counted_soon(autojump_clock: trio.testing.MockClock) -> None:
    logs = Logs(["a"])
    rate = RecordRate(lambda: logs)  # type: ignore[arg-type, return-value]
    for _ in range(5):
        await rate.measure()
        await trio.sleep(1)
    logs.names.append("b")
    for _ in range(round(NAMES_S)):
        await rate.measure()
        await trio.sleep(1)

    assert await rate.measure() == 20
