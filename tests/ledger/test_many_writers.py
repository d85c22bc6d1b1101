"""A process with many ledgers: what is told and looked at for all of them together."""

import math

import pytest
import trio
from trio.testing import MockClock

from distributedlog.ledger.write.explicit_lac import (
    BATCH_LACS_MIN,
    LAC_DELAY_S,
    SEND_WAIT_S,
    ExplicitLacFlusher,
    PendingLac,
)
from distributedlog.ledger.write.ledger_writer import LedgerWriter
from distributedlog.runtime.interfaces.errors import WriteFailed
from distributedlog.runtime.schedule.call_scheduler import CHECKS_PER_TURN

from ..plant import plant
from .model_bookie import LATENCY_S, ModelCluster, add, confirmed, model_cluster


class Told:
    """Which LACs a writer sends in messages of their own, when, and to how many."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.lacs: list[int] = []
        self.times: list[float] = []
        self.watched: list[bool] = []
        streams = writer._streams
        send = streams.send_lac

        def noted(lac: int, *, waiting_only: bool = False) -> None:
            self.lacs.append(lac)
            self.times.append(trio.current_time())
            self.watched.append(waiting_only)
            send(lac, waiting_only=waiting_only)

        plant(streams, "send_lac", noted)


async def acked(writer: LedgerWriter) -> float:
    """When it was, to a tenth of a message's time."""
    while writer.lac < writer.last_entry:  # noqa: ASYNC110 (virtual time)
        await trio.sleep(LATENCY_S / 10)
    return trio.current_time()


def lacs_at(cluster: ModelCluster, writer: LedgerWriter) -> list[int]:
    return [cluster[b].model.ledgers[writer.ledger_id].lac for b in ("b0", "b1", "b2")]


async def test_a_lone_record_waits_for_no_company(autojump_clock: MockClock) -> None:
    """H167: its LAC is at all bookies after `LAC_DELAY_S`, whatever other ledgers do or do not."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        writer, busy = await client.create(), await client.create()
        told = Told(writer)
        for count in range(5):
            add(writer, 1)
            at = await acked(writer)
            await trio.sleep(LAC_DELAY_S + 2 * LATENCY_S)
            assert told.lacs == list(range(count + 1))
            assert told.times[-1] <= at + LAC_DELAY_S
            assert lacs_at(cluster, writer) == [count] * 3
            await trio.sleep(0.0013 * count)
            add(busy, 3)


async def test_a_lac_goes_at_once_where_a_reader_waits(autojump_clock: MockClock) -> None:
    """H167: and only there; the others hear of it later."""
    async with model_cluster(3) as cluster:
        writer = await (await cluster.client()).create()
        add(writer, 1)
        await confirmed(writer)
        told = Told(writer)
        for sink in writer._streams._live_sinks[1:2]:
            sink.has_lac_waiters = True
        add(writer, 1)
        at = await acked(writer)
        await trio.sleep(2 * LATENCY_S)

        assert (told.lacs, told.watched) == ([1], [True])
        assert told.times[0] <= at
        assert sorted(lacs_at(cluster, writer)) == [0, 0, 1]
        await trio.sleep(LAC_DELAY_S)
        assert lacs_at(cluster, writer) == [1, 1, 1]


async def test_what_an_add_says_needs_no_message(autojump_clock: MockClock) -> None:
    """Whoever writes one record after the other pays no message a record for its LAC."""
    async with model_cluster(3) as cluster:
        writer = await (await cluster.client()).create()
        await trio.sleep(0.01)
        told = Told(writer)
        for _ in range(100):
            add(writer, 1)
            await acked(writer)
        assert told.lacs == []
        await trio.sleep(LAC_DELAY_S)
        assert told.lacs == [99]


async def test_a_commit_tells_its_lac_before_it_returns(autojump_clock: MockClock) -> None:
    """H167: `publish_lac` waits for no round, and the next one does not say it again."""
    async with model_cluster(3) as cluster:
        writer = await (await cluster.client()).create()
        await trio.sleep(0.01)
        told = Told(writer)
        add(writer, 1)
        await acked(writer)

        writer.publish_lac()

        assert told.lacs == [0]
        await trio.sleep(1)
        assert told.lacs == [0]


async def test_idle_writers_cost_no_timer(autojump_clock: MockClock) -> None:
    """H35: with nothing under way or amiss a thousand of them are not looked at."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        writers = [await client.create() for _ in range(5)]
        for writer in writers:
            add(writer, 2)
        for writer in writers:
            await confirmed(writer)
        await trio.sleep(2 * client.options.slot_silence_s)

        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
        assert not any(writer._timer_armed for writer in writers)


@pytest.mark.parametrize("what", ["silent", "away"])
async def test_an_idle_writer_sees_what_goes_wrong_later(
    autojump_clock: MockClock, what: str
) -> None:
    """A bookie that falls silent, or goes, after a long rest is gone without as ever."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        add(writer, 1)
        await confirmed(writer)
        await trio.sleep(100)
        if what == "silent":
            cluster["b1"].hang()
        else:
            cluster["b1"].disconnect()
            await trio.sleep(100)
        add(writer, 1)
        await confirmed(writer)
        await trio.sleep(1.5 * client.options.slot_silence_s)

        assert [s.bookie for s in writer._pending_adds.slots if s.detached] == ["b1"]
        assert (await writer.close()).last_entry == 1


async def test_adds_that_nobody_acknowledges_fail_after_a_rest(autojump_clock: MockClock) -> None:
    """`add_timeout_s` counts from the add, not from a sweep before the rest."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        add(writer, 1)
        await confirmed(writer)
        await trio.sleep(1000)
        for bookie in ("b0", "b1", "b2"):
            cluster[bookie].hung = True
        began = trio.current_time()
        add(writer, 1)
        while writer.error is None:  # noqa: ASYNC110 (virtual time)
            await trio.sleep(0.1)

        passed = trio.current_time() - began
        assert isinstance(writer.error, WriteFailed)
        timeout, sweep = client.options.add_timeout_s, client.options.sweep_s
        assert timeout <= passed <= timeout + 3 * sweep


async def test_each_lac_that_rests_is_told_whatever_breaks(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """H166: what breaks is its owner's; there may be more of them than are looked at in a turn."""
    told, broken, sent = list[int](), list[Exception](), list[str]()
    lacs = ExplicitLacFlusher(lambda: sent.append("gather"), lambda: sent.append("send"))
    nursery.start_soon(lacs.run)
    breaks = PendingLac(lambda lac: told.remove(-lac), broken.append)
    sound = PendingLac(told.append, broken.append)
    for lac in range(1, 3 * CHECKS_PER_TURN):
        lacs.schedule(breaks if lac % 100 == 7 else sound, lac)

    await trio.sleep(2 * LAC_DELAY_S)

    assert told == [lac for lac in range(1, 3 * CHECKS_PER_TURN) if lac % 100 != 7]
    assert {type(one) for one in broken} == {ValueError}
    assert sent == ["gather", "send"] * 3


async def test_who_sends_together_takes_lacs_along(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go before the connections send what was gathered."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        order: list[str] = []
        monkeypatch.setattr(
            client._lac_flusher, "flush_with_deferred", lambda: order.append("LACs")
        )
        monkeypatch.setattr(client.pool, "send_deferred", lambda: order.append("send"))

        client.defer_sends()
        client.send_deferred()

        assert order == ["LACs", "send"]


async def test_lacs_of_many_ledgers_go_with_what_others_send_together(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """H167: while there are beats, and no longer; those of few ledgers wait for none."""
    told, sent, broken = list[tuple[int, float]](), list[str](), list[Exception]()
    lacs = ExplicitLacFlusher(lambda: sent.append("gather"), lambda: sent.append("send"))
    nursery.start_soon(lacs.run)
    one = PendingLac(lambda lac: told.append((lac, trio.current_time())), broken.append)
    lacs.flush_with_deferred()
    for _ in range(20):
        for lac in range(BATCH_LACS_MIN):
            lacs.schedule(one, lac)
        await trio.sleep(SEND_WAIT_S * 0.8)
        lacs.flush_with_deferred()
    assert sent == []
    assert len(told) >= 19 * BATCH_LACS_MIN

    rested_at = trio.current_time()
    for lac in range(BATCH_LACS_MIN):
        lacs.schedule(one, 1000 + lac)
    await trio.sleep(1)
    assert sent == ["gather", "send"]
    last = [at for lac, at in told if lac >= 1000]
    assert len(last) == BATCH_LACS_MIN
    assert max(last) - rested_at <= SEND_WAIT_S + LAC_DELAY_S

    lacs.flush_with_deferred()
    rested_at = trio.current_time()
    for lac in range(BATCH_LACS_MIN - 1):
        lacs.schedule(one, 2000 + lac)
    await trio.sleep(1.2 * LAC_DELAY_S)
    assert sent == ["gather", "send"] * 2
    assert told[-1][0] == 2000 + BATCH_LACS_MIN - 2
    for lac in range(2 * CHECKS_PER_TURN):
        lacs.schedule(one, lac)
    lacs.flush_with_deferred()
    await trio.sleep(1.5 * LAC_DELAY_S)
    told.clear()
    lacs.flush_with_deferred()
    assert len(told) == CHECKS_PER_TURN  # of more the rest goes with the next
    lacs.flush_with_deferred()
    assert len(told) == 2 * CHECKS_PER_TURN
