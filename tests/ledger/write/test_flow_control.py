"""What a process keeps and what it sends is bounded over all its ledgers (H22, H35)."""

import random
from collections import deque

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.ledger.write.flow_control import (
    COUNTED_BYTES_MIN,
    WOKEN_LEDGERS_MAX,
    InFlightBytes,
    LedgerInFlightBytes,
    RetainedBytes,
)
from distributedlog.ledger.write.ledger_writer import LedgerWriter
from distributedlog.runtime.interfaces.errors import WriteFailed
from tests.examples import examples

from ..model_bookie import model_cluster

RECORD = b"x" * 8_000
ENTRY = 10

# --- kept for slow bookies ------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200_000)), max_size=30))
def test_the_sum_is_that_of_what_each_ledger_keeps_now(steps: list[tuple[int, int]]) -> None:
    kept = RetainedBytes(300_000)
    parts = [kept.for_ledger() for _ in range(4)]
    model = [0] * 4
    for number, count in steps:
        model[number] = count if count >= COUNTED_BYTES_MIN else 0
        crowded = parts[number].is_over_budget(count)
        assert kept.retained_bytes == sum(model)
        assert crowded == (model[number] > 0 and sum(model) >= 300_000)


async def _fill(writer: LedgerWriter, count: int) -> None:
    for _ in range(count):
        await writer.wait_capacity()
        writer.add([RECORD], len(RECORD))
        await trio.sleep(0.001)


async def test_many_ledgers_with_one_paused_bookie_stay_below_the_process_bound(
    autojump_clock: MockClock,
) -> None:
    """Ten ledgers, none of them near its own bound; the slot is let go, and all of them finish."""
    bound = 1_000_000
    async with model_cluster(3) as cluster:
        client = await cluster.client(
            kept_bytes_max=bound, slot_silence_s=60.0, window_bytes_max=50_000
        )
        writers = [await client.create() for _ in range(10)]
        cluster["b2"].hang()
        most = 0
        done = trio.Event()

        async def watch() -> None:
            nonlocal most
            while not done.is_set():
                most = max(
                    most, sum(w._pending_adds.retained_bytes for w in writers if w.error is None)
                )
                await trio.sleep(0.01)

        with trio.fail_after(50):  # before its silence counts
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                async with trio.open_nursery() as filling:
                    for writer in writers:
                        filling.start_soon(_fill, writer, 100)
                done.set()
        for writer in writers:
            await writer.wait_settled()

        assert all(writer.lac == 99 for writer in writers)
        # Beside the bound: what each may keep uncounted, and what is in flight.
        assert bound / 2 < most < bound + 10 * (COUNTED_BYTES_MIN + 50_000)
        assert client._services.retained_bytes.retained_bytes == 0
        assert all(any(slot.detached for slot in w._pending_adds.slots) for w in writers)
        for writer in writers:
            writer.abort()


async def test_a_ledger_that_keeps_nothing_goes_on_when_others_are_at_the_bound(
    autojump_clock: MockClock,
) -> None:
    async with model_cluster(3) as cluster:
        client = await cluster.client(kept_bytes_max=1_000_000, slot_silence_s=60.0)
        client._services.retained_bytes.for_ledger().is_over_budget(2_000_000)
        writer = await client.create()

        with trio.fail_after(5):
            await _fill(writer, 200)

        assert client._services.retained_bytes.is_full
        writer.abort()


async def test_room_that_others_make_is_seen(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client = await cluster.client(
            kept_bytes_max=1_000_000, slot_silence_s=60.0, slot_stall_s=1000.0
        )
        other = client._services.retained_bytes.for_ledger()
        other.is_over_budget(2_000_000)
        writer = await client.create()
        cluster["b2"].hang()
        while writer.has_capacity:
            writer.add([RECORD], len(RECORD))
            await trio.sleep(0.01)

        with trio.fail_after(40):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.wait_capacity)
                await trio.sleep(16.0)  # seen to be throttled
                other.is_over_budget(0)

        assert not any(slot.detached for slot in writer._pending_adds.slots)
        writer.abort()


async def test_a_writer_that_ends_takes_back_what_it_kept(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client = await cluster.client(slot_silence_s=60.0)
        writer = await client.create()
        cluster["b2"].hang()
        await _fill(writer, 50)
        assert writer.has_capacity
        assert client._services.retained_bytes.retained_bytes > 0

        writer.abort()

        assert client._services.retained_bytes.retained_bytes == 0


async def test_a_writer_that_ends_waits_for_no_ack_any_more(autojump_clock: MockClock) -> None:
    """What it had sent is nobody's: the room is the other ledgers'. No task of it is left."""
    async with model_cluster(3) as cluster:
        client = await cluster.client(slot_silence_s=60.0)
        assert client._nursery is not None
        tasks = len(client._nursery.child_tasks)
        for bookie in ("b0", "b1", "b2"):
            cluster[bookie].hang()
        writer = await client.create()
        await trio.sleep(0.1)
        writer.add([RECORD], len(RECORD))
        assert client._services.in_flight_bytes.in_flight_bytes > 0
        at_once = await client.create()
        waiting = len(client._nursery.child_tasks)

        writer.abort()
        at_once.abort()  # before its task began
        assert client._services.in_flight_bytes.in_flight_bytes == 0
        assert not any(map(writer._streams.is_open, range(3)))

        await trio.sleep(1)
        assert len(client._nursery.child_tasks) == tasks < waiting


async def test_who_waits_for_room_is_told_when_the_client_is_gone(
    autojump_clock: MockClock,
) -> None:
    """Nobody looks after the slots any more: the wait would be for ever."""
    async with model_cluster(3) as cluster:
        client = await cluster.client(window_bytes_max=20_000, add_timeout_s=1000.0)
        failures: list[Exception] = []
        writer = await client.create(on_failed=failures.append)
        for bookie in ("b0", "b1", "b2"):
            cluster[bookie].hang()
        while writer.has_capacity:
            writer.add([RECORD], len(RECORD))
        waited = trio.Event()

        async def wait() -> None:
            await writer.wait_capacity()
            waited.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(0.1)
            assert not waited.is_set()
            assert client._nursery is not None
            client._nursery.cancel_scope.cancel()
            with trio.fail_after(5):
                await waited.wait()

        assert isinstance(writer.error, WriteFailed)
        assert not writer.error.definite
        assert failures == [writer.error]
        with pytest.raises(WriteFailed):
            await writer.wait_settled()


# --- sent and not confirmed -----------------------------------------------------------------------


class Sender:
    """A ledger that has always more to send, an entry at a time."""

    def __init__(self, everybody: InFlightBytes, sends: "deque[Sender]") -> None:
        self.part: LedgerInFlightBytes = everybody.for_ledger(self.send)
        self.under_way = self.sent = 0
        self.over = False
        self._sends = sends

    def send(self) -> None:
        while self.part.has_capacity and not self.over:
            self.part.add_sent(ENTRY)
            self.under_way += 1
            self.sent += 1
            self._sends.append(self)
        self.part.join_queue()

    def confirm(self) -> None:
        self.under_way -= 1
        self.part.set_unconfirmed(self.under_way * ENTRY)
        self.send()


def test_the_bound_holds_and_everybody_gets_the_same() -> None:
    everybody = InFlightBytes(10 * ENTRY)
    under_way: deque[Sender] = deque()
    senders = [Sender(everybody, under_way) for _ in range(50)]
    for sender in senders:
        sender.send()
    for _ in range(5000):
        assert (
            everybody.in_flight_bytes == len(under_way) * ENTRY <= (9 + WOKEN_LEDGERS_MAX) * ENTRY
        )
        under_way.popleft().confirm()

    counts = [sender.sent for sender in senders]
    assert sum(counts) >= 5010
    assert max(counts) - min(counts) <= 10  # the first ones had the bound to themselves


def test_who_went_lets_the_next_one_go() -> None:
    """Only so many go at a time; none of those who wait then waits for a confirmation."""
    everybody = InFlightBytes(100)
    sender = everybody.for_ledger(lambda: None)
    sender.add_sent(100)
    called: list[int] = []
    waiting = [
        everybody.for_ledger(lambda number=number: called.append(number))  # type: ignore[misc]
        for number in range(WOKEN_LEDGERS_MAX + 2)
    ]
    for one in waiting:
        one.join_queue()
    sender.set_unconfirmed(0)
    assert called == list(range(WOKEN_LEDGERS_MAX))

    waiting[0].add_sent(1)
    waiting[1].end()

    assert called == list(range(WOKEN_LEDGERS_MAX + 2))


def test_nobody_waits_when_nothing_is_under_way() -> None:
    """Whoever ends, confirms, or was let go and sends nothing, in any order."""
    for seed in range(200):
        chance = random.Random(seed)
        everybody = InFlightBytes(5 * ENTRY)
        under_way: deque[Sender] = deque()
        senders = [Sender(everybody, under_way) for _ in range(12)]
        for _ in range(300):
            sender = chance.choice(senders)
            step = chance.random()
            if step < 0.5:
                if not sender.over:
                    sender.send()
            elif step < 0.95 and under_way:
                under_way.rotate(chance.randrange(len(under_way)))
                oldest = under_way.popleft()
                if not oldest.over:
                    oldest.confirm()
            elif not sender.over:
                sender.over = True
                sender.part.end()
                senders[senders.index(sender)] = Sender(everybody, under_way)
            assert everybody.in_flight_bytes <= (4 + WOKEN_LEDGERS_MAX) * ENTRY
            assert everybody.in_flight_bytes or all(one.part.has_capacity for one in senders)
        for one in senders:
            one.over = True
        while under_way:
            one = under_way.popleft()
            one.under_way = 0
            one.part.set_unconfirmed(0)
            one.part.end()
        assert everybody.in_flight_bytes == 0
        assert everybody.for_ledger(lambda: None).has_capacity


async def test_writers_of_one_process_take_turns(autojump_clock: MockClock) -> None:
    """Forty logs at full speed never have more than the bound on one connection, and all get through."""
    async with model_cluster(3) as cluster:
        client = await cluster.client(sent_bytes_max=2000)
        writers = [await client.create() for _ in range(40)]
        most = 0

        async def write(number: int) -> None:
            nonlocal most
            writer = writers[number]
            for _ in range(20):
                await writer.wait_capacity()
                writer.add([bytes(100)], 100)
                most = max(most, sum(one.in_flight_bytes for one in writers))
                await trio.lowlevel.checkpoint()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(write, number)
            while any(writer.lac < 19 for writer in writers):  # noqa: ASYNC110 (virtual time)
                await trio.sleep(0.01)
        assert most <= 2000 + WOKEN_LEDGERS_MAX * 200
        for writer in writers:
            writer.abort()
        assert client._services.in_flight_bytes.in_flight_bytes == 0
