"""What a process keeps for slow bookies is bounded for all of its ledgers together (H22)."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.ledger.kept_bytes import COUNTED_FROM_BYTES, KeptBytes
from distributedlog.ledger.writer import LedgerWriter
from distributedlog.runtime.errors import WriteFailed
from tests.examples import examples

from .model_bookie import model_cluster

RECORD = b"x" * 8_000


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200_000)), max_size=30))
def test_the_sum_is_that_of_what_each_ledger_keeps_now(steps: list[tuple[int, int]]) -> None:
    kept = KeptBytes(300_000)
    shares = [kept.share() for _ in range(4)]
    model = [0] * 4
    for number, count in steps:
        model[number] = count if count >= COUNTED_FROM_BYTES else 0
        crowded = shares[number].crowded(count)
        assert kept.bytes == sum(model)
        assert crowded == (model[number] > 0 and sum(model) >= 300_000)


async def _fill(writer: LedgerWriter, count: int) -> None:
    for _ in range(count):
        await writer.wait_room()
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
                most = max(most, sum(w._window.kept_bytes for w in writers if w.error is None))
                await trio.sleep(0.01)

        with trio.fail_after(50):  # before its silence counts
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                async with trio.open_nursery() as filling:
                    for writer in writers:
                        filling.start_soon(_fill, writer, 100)
                done.set()
        for writer in writers:
            await writer.settle()

        assert all(writer.lac == 99 for writer in writers)
        # Beside the bound: what each may keep uncounted, and what is in flight.
        assert bound / 2 < most < bound + 10 * (COUNTED_FROM_BYTES + 50_000)
        assert client._kept.bytes == 0
        assert all(any(slot.detached for slot in w._window.slots) for w in writers)
        for writer in writers:
            writer.abort()


async def test_a_ledger_that_keeps_nothing_goes_on_when_others_are_at_the_bound(
    autojump_clock: MockClock,
) -> None:
    async with model_cluster(3) as cluster:
        client = await cluster.client(kept_bytes_max=1_000_000, slot_silence_s=60.0)
        client._kept.share().crowded(2_000_000)
        writer = await client.create()

        with trio.fail_after(5):
            await _fill(writer, 200)

        assert client._kept.full
        writer.abort()


async def test_room_that_others_make_is_seen(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client = await cluster.client(
            kept_bytes_max=1_000_000, slot_silence_s=60.0, slot_stall_s=1000.0
        )
        other = client._kept.share()
        other.crowded(2_000_000)
        writer = await client.create()
        cluster["b2"].hang()
        while writer.room:
            writer.add([RECORD], len(RECORD))
            await trio.sleep(0.01)

        with trio.fail_after(40):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.wait_room)
                await trio.sleep(16.0)  # seen to be throttled
                other.crowded(0)

        assert not any(slot.detached for slot in writer._window.slots)
        writer.abort()


async def test_a_writer_that_ends_takes_back_what_it_kept(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client = await cluster.client(slot_silence_s=60.0)
        writer = await client.create()
        cluster["b2"].hang()
        await _fill(writer, 50)
        assert writer.room
        assert client._kept.bytes > 0

        writer.abort()

        assert client._kept.bytes == 0


async def test_who_waits_for_room_is_told_when_the_client_is_gone(
    autojump_clock: MockClock,
) -> None:
    """Nobody looks after the slots any more: the wait would be for ever."""
    async with model_cluster(3) as cluster:
        client = await cluster.client(window_bytes_max=20_000, add_timeout_s=1000.0)
        writer = await client.create()
        failures: list[Exception] = []
        writer.on_failed = failures.append
        for bookie in ("b0", "b1", "b2"):
            cluster[bookie].hang()
        while writer.room:
            writer.add([RECORD], len(RECORD))
        waited = trio.Event()

        async def wait() -> None:
            await writer.wait_room()
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
            await writer.settle()
