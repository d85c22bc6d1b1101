"""Work that looks at the whole again: one look for many changes, few lines for what waits."""

import logging
from functools import partial

import pytest
import trio
import trio.testing

from distributedlog.cluster.coordination.blocked_work import AGAIN_S, BlockedWorkLog
from distributedlog.cluster.coordination.reconcile_loop import (
    BATCH_S,
    REST_FACTOR,
    reconcile_on_change,
)
from distributedlog.cluster.repair.replication_worker import EVERY_S, REST_S_MAX, ReplicationWorker
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange, encode_missing_ranges
from distributedlog.metadata.model.interface import RangePage
from distributedlog.metadata.model.transaction import KeyValue, Put, Transaction
from distributedlog.runtime.interfaces.errors import QuorumUnreachable
from distributedlog.runtime.interfaces.log_lines import get_logger
from distributedlog.runtime.schedule.work_failures import WorkFailures
from tests.metadata.local_metadata import LocalMetadata

from ..bookie_world import BOOKIES, KEY, Pool

Clock = trio.testing.MockClock
NOTES = 200


class CountedMetadata(LocalMetadata):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def get(self, key: bytes) -> KeyValue | None:
        self.reads += 1
        return await super().get(key)

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        self.reads += 1
        return await super().range(start, end, limit=limit)

    async def put(self, key: bytes, value: bytes = b"") -> None:
        await self.transact(Transaction((), (Put(key, value),)))


class _Elected:
    async def is_elected(self) -> bool:
        return True


async def _noted(metadata: CountedMetadata, bookie: str) -> None:
    """Closed ledgers, each with a note that names the bookie."""
    for ledger_id in range(NOTES):
        ledger = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, BOOKIES, 0),), KEY)
        await metadata.transact(transactions.creation_ops(ledger, ()))
        await metadata.transact(transactions.close_ops(ledger.close_by_writer(9, 100), 1, ()))
        await metadata.put(
            keys.missing_ranges_key(ledger_id),
            encode_missing_ranges((MissingRange(bookie, 0, None),)),
        )
    metadata.reads = 0


def _repair(metadata: CountedMetadata) -> ReplicationWorker:
    return ReplicationWorker(metadata, Pool(), _Elected(), None)  # type: ignore[arg-type]


async def test_many_changes_are_one_look(autojump_clock: Clock) -> None:
    metadata, looks = LocalMetadata(), []

    async def look() -> None:
        looks.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                reconcile_on_change,
                metadata,
                (b"a/", b"b/"),
                look,
                every_s=1000.0,
                failures=WorkFailures(),
                unit="a look",
            )
        )
        await trio.sleep(10)
        assert len(looks) == 1
        for number in range(NOTES):
            await metadata.transact(
                Transaction((), (Put(b"ab"[number % 2 :][:1] + b"/%d" % number, b""),))
            )
        await trio.sleep(10)
        assert len(looks) == 2
        await trio.sleep(1000)
        nursery.cancel_scope.cancel()

    assert len(looks) == 3  # by the clock


async def test_a_change_during_a_look_is_looked_at_and_long_looks_are_rare(
    autojump_clock: Clock,
) -> None:
    metadata, begun = LocalMetadata(), []

    async def look() -> None:
        begun.append(trio.current_time())
        await metadata.transact(Transaction((), (Put(b"a/own", b""),)))
        await trio.sleep(2)

    with trio.move_on_after(100):
        await reconcile_on_change(
            metadata, (b"a/",), look, every_s=1000.0, failures=WorkFailures(), unit="a look"
        )

    assert begun[0] == pytest.approx(BATCH_S)
    assert begun[1] - begun[0] == pytest.approx(2 + REST_FACTOR * 2)
    assert len(begun) == 10


async def test_a_look_that_fails_comes_again_and_is_told_once(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    metadata, looks = LocalMetadata(), []

    async def look() -> None:
        looks.append(trio.current_time())
        if len(looks) < 50:
            raise QuorumUnreachable("no leader")

    with trio.move_on_after(200):
        await reconcile_on_change(
            metadata, (b"a/",), look, every_s=1000.0, failures=WorkFailures(), unit="a look"
        )

    assert len(looks) == 50
    assert len([one for one in caplog.records if "trying again" in one.message]) == 1


async def test_notes_that_go_one_by_one_cost_a_read_each(autojump_clock: Clock) -> None:
    """It was a pass over all that were left for each one that went: 40,583 reads for 200."""
    metadata = CountedMetadata()
    await _noted(metadata, "taken out of the ensemble since")

    with trio.move_on_after(2 * EVERY_S):
        await _repair(metadata).run()

    left = await metadata.range(keys.MISSING_RANGES_PREFIX, keys.MISSING_RANGES_PREFIX + b"\xff")
    assert left.items == ()
    assert metadata.reads <= NOTES + 50


async def test_notes_that_must_wait_cost_few_reads_and_lines(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """They are tried again after 5, 10, 20, … 60 s, and told together."""
    caplog.set_level(logging.INFO)
    metadata = CountedMetadata()
    await _noted(metadata, "b1")

    with trio.move_on_after(600):
        await _repair(metadata).run()

    tries = 4 + 600 / REST_S_MAX + 1
    assert metadata.reads <= NOTES * tries + 600 / EVERY_S * 10
    told = [one.message for one in caplog.records if one.name.startswith("distributedlog.cluster")]
    assert len(told) <= 600 / AGAIN_S + 1
    assert told[0].startswith(
        "200 ledgers with missing entries wait for copies: for bookie b1: ConnectionLost (200"
    )


async def test_what_waits_is_told_when_it_is_news(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    waiting = BlockedWorkLog(get_logger("test"), "things wait")

    for causes in (["a"], ["a"], ["a", "b"], [], []):
        for cause in causes:
            waiting.record(cause, f"one of {cause}")
        waiting.end_pass()

    assert [one.message for one in caplog.records] == [
        "1 things wait: a (1, such as: one of a)",
        "2 things wait: a (1, such as: one of a); b (1, such as: one of b)",
        "no things wait any more",
    ]
    caplog.clear()
    for number in range(20):
        waiting.record(f"cause {number}", "x")
    waiting.end_pass()
    assert caplog.records[0].message.endswith("and 15 other causes")
