"""What a namespace counts, and whose registry collects it."""

import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from distributedlog import open_namespace
from distributedlog.log.format.record import LogRecord
from distributedlog.log.limits.memory_budget import MemoryBudget
from distributedlog.log.services.log_metrics import (
    METRICS,
    LogMeters,
    NamespaceMetrics,
    register,
    unregister,
)
from distributedlog.log.write.send_queue import TIMING_SAMPLE_INTERVAL
from distributedlog.runtime.schedule.call_scheduler import CallScheduler
from tests.log.conftest import World


async def test_records_are_counted_when_they_are_acknowledged_and_when_they_are_read(
    world: World,
) -> None:
    async with world.process() as ns:
        await ns.create_log("l")
        async with ns.open_log("l").open_writer() as writer:
            for txid in range(10):
                await writer.write(LogRecord(txid, b"12345"))
            await writer.commit()
            async with ns.open_log("l").open_reader() as reader:
                assert len(await reader.read_bulk(10)) == 10
        found = ns.metrics.snapshot()
    assert found["dlog_client_records_written_total"] == 10
    assert found["dlog_client_entries_written_total"] == 10
    assert found["dlog_client_records_read_total"] == 10
    assert found["dlog_client_bytes_read_total"] == 50
    assert found["dlog_client_writers_total"] == found["dlog_client_readers_total"] == 1
    assert found["dlog_client_writers_failed_total"] == 0
    assert found["dlog_client_held_bytes"] == 0
    assert found["dlog_client_write_seconds_count"] == 10  # each was waited for alone
    assert set(found) == {
        f"{one.name}{end}"
        for one in METRICS
        for end in (("_count", "_sum") if one.kind == "histogram" else ("",))
    }


async def test_of_entries_in_flight_together_one_is_timed(world: World) -> None:
    """No clock is read an entry where many are on their way."""
    async with world.process(entry_bytes_max=1000) as ns:
        await ns.create_log("l")
        async with ns.open_log("l").open_writer() as writer:
            pending = [await writer.submit(LogRecord(n, bytes(900))) for n in range(20)]
            for one in pending:
                await one
        found = ns.metrics.snapshot()
    assert found["dlog_client_entries_written_total"] == 20
    assert 1 <= found["dlog_client_write_seconds_count"] < 20
    assert found["dlog_client_write_seconds_sum"] > 0


async def test_while_many_logs_are_busy_one_of_so_many_entries_is_timed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two looks at the clock a lone record are more than what is known of a thousand of them is worth."""
    always = property(lambda _: True, lambda _, many: None)
    monkeypatch.setattr(CallScheduler, "is_busy", always, raising=False)
    async with world.process() as ns:
        await ns.create_log("l")
        async with ns.open_log("l").open_writer() as writer:
            for txid in range(2 * TIMING_SAMPLE_INTERVAL):
                await writer.write(LogRecord(txid, b"12345"))
        found = ns.metrics.snapshot()
    assert found["dlog_client_write_seconds_count"] == 2
    assert found["dlog_client_entries_written_total"] == 2 * TIMING_SAMPLE_INTERVAL


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


def _metrics(path: str, written: int) -> NamespaceMetrics:
    meters = LogMeters(records_written=written)
    meters.write_seconds.observe(0.001, written)
    return NamespaceMetrics(path, meters, MemoryBudget(1 << 30), lambda: 0)


def test_namespaces_of_one_registry_are_told_apart_and_leave(registry: CollectorRegistry) -> None:
    """Those of one path are added up: a registry takes no sample twice."""
    found = [_metrics("a", 1), _metrics("b", 2), _metrics("b", 3)]
    for one in found:
        register(registry, one)
    text = generate_latest(registry).decode()
    assert 'dlog_client_records_written_total{namespace="a"} 1.0' in text
    assert 'dlog_client_records_written_total{namespace="b"} 5.0' in text
    assert text.count("# TYPE dlog_client_records_written_total ") == 1
    assert 'dlog_client_write_seconds_count{namespace="b"} 5.0' in text
    assert 'dlog_client_write_seconds_bucket{le="0.0008",namespace="b"} 0.0' in text
    assert 'dlog_client_write_seconds_bucket{le="0.0016",namespace="b"} 5.0' in text
    for one in found:
        unregister(registry, one)
    assert generate_latest(registry) == b""
    register(registry, found[0])
    assert b"dlog_client" in generate_latest(registry)
    unregister(registry, found[0])
    unregister(registry, found[0])


def test_looking_resets_nothing_and_never_goes_back(registry: CollectorRegistry) -> None:
    """H252, H254: a thread collects while the loop counts."""
    metrics = _metrics("a", 0)
    seen: list[float] = []

    def look() -> None:
        while not seen or seen[-1] < 50_000:
            seen.append(metrics.snapshot()["dlog_client_records_written_total"])

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(50_000):
        metrics._meters.records_written += 1
    thread.join(30)
    assert seen == sorted(seen)
    assert seen[-1] == 50_000


async def test_a_namespace_that_was_never_entered_registers_nothing(
    registry: CollectorRegistry,
) -> None:
    open_namespace("distributedlog://127.0.0.1:1/n", metrics=registry)
    assert generate_latest(registry) == b""
