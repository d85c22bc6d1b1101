"""Subscribers and workers that are paused and killed, as processes of their own (H155, H156)."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distributedlog import LogRecord, SubscriptionLost, blocking
from distributedlog.cluster.local.child_processes import environment
from distributedlog.log.consumers.work_queue import TRIES_MAX
from tests.cluster.shared_reader import LOST

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parent / "shared_reader.py"
WAIT_S = 120.0


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[str, Any]]:
    with (
        blocking.local_cluster(memory=True, metadata_nodes=1) as cluster,
        blocking.open_namespace(cluster.uri, config={"lock_lease_s": 2.0}) as opened,
    ):
        yield cluster.uri, opened


class Reader:
    """A process that reads, and what it said that it handled."""

    def __init__(self, uri: str, kind: str, log: str, name: str, out: Path) -> None:
        self.out = out
        out.touch()
        command = [sys.executable, str(SCRIPT), kind, log, name, str(out)]
        self.process = subprocess.Popen(command, env={**environment(), "DLOG_URI": uri})

    def handled(self) -> list[int]:
        lines = self.out.read_text().splitlines()
        return [int(line) for line in lines if line.isdigit()]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def write(namespace: Any, name: str, count: int) -> Any:
    namespace.create_log(name)
    log = namespace.open_log(name)
    with log.open_writer() as writer:
        for txid in range(count):
            writer.write(LogRecord(txid, bytes(100)))
    return log


def test_a_holder_that_slept_past_its_lease_commits_nothing(
    world: tuple[str, Any], tmp_path: Path
) -> None:
    """H155."""
    uri, namespace = world
    log = write(namespace, "slept", 300)
    first = Reader(uri, "subscribe", "slept", "a", tmp_path / "first")
    try:
        wait_until(lambda: len(first.handled()) >= 5)
        first.send(signal.SIGSTOP)
        with log.subscribe("a", wait_s=WAIT_S) as second:
            began = second.reader.read_next().txid
            assert began <= max(first.handled()) + 1, "what was not committed is given again"
            while second.reader.read_next().txid < 200:
                pass
            second.commit(now=True)
            stands = log.positions.get("a")
            first.send(signal.SIGCONT)
            assert first.process.wait(WAIT_S) == LOST
            assert log.positions.get("a") == stands == second.committed
            second.commit(now=True)
    finally:
        first.process.kill()
        first.process.wait()
    assert max(first.handled()) < 200
    with log.subscribe("a", takeover=True) as third:
        with log.subscribe("a", takeover=True):
            third.reader.read_next()
            with pytest.raises(SubscriptionLost):
                third.commit(now=True)
        with pytest.raises(SubscriptionLost):
            third.close()


def test_eight_workers_that_are_paused_and_killed_handle_every_record(
    world: tuple[str, Any], tmp_path: Path
) -> None:
    """H156: each record at least once, the floor reaches the end, nothing is tried for ever."""
    uri, namespace = world
    count = 300
    log = write(namespace, "shared", count)
    last = log.last_dlsn()
    workers = [Reader(uri, "work", "shared", "q", tmp_path / f"{number}") for number in range(8)]
    try:
        wait_until(lambda: sum(bool(one.handled()) for one in workers) >= 4)
        paused, killed = workers[:2], workers[2:4]
        for one in paused:
            one.send(signal.SIGSTOP)
        for one in killed:
            one.send(signal.SIGKILL)
        wait_until(lambda: log.work_queues()["q"].floor > last)
        for one in paused:
            one.send(signal.SIGCONT)
        log.seal()
        for one in workers:
            code = one.process.wait(WAIT_S)
            assert code == (-signal.SIGKILL if one in killed else 0)
    finally:
        for one in workers:
            one.process.kill()
            one.process.wait()
    every = [txid for one in workers for txid in one.handled()]
    assert set(every) == set(range(count))
    state = log.work_queues()["q"]
    assert (state.items, state.set_aside_items) == ((), ())
    assert state.floor > last
    assert max(every.count(txid) for txid in set(every)) <= TRIES_MAX
