"""The writer against model bookies: order, failures, bounds, the end."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from distributedlog.ledger.ledger_client import LedgerClient
from distributedlog.ledger.model.ledger_keys import (
    bookie_ledger_key,
    ledger_key,
    missing_ranges_key,
)
from distributedlog.ledger.model.ledger_metadata import LedgerState
from distributedlog.ledger.model.missing_range import MissingRange
from distributedlog.ledger.write.flow_control import COUNTED_BYTES_MIN
from distributedlog.ledger.write.ledger_writer import LedgerWriter
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    BookieReadOnly,
    DistributedLogError,
    InternalError,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    RequestTimeout,
    WriteFailed,
)

from ...plant import plant
from ..model_bookie import (
    ModelCluster,
    add,
    holes_of,
    model_cluster,
    put_record,
    record_of,
    written,
)


async def until(lac: int, writer: LedgerWriter, timeout_s: float = 30.0) -> None:
    """Wait (in virtual time) until the LAC is there."""
    with trio.fail_after(timeout_s):
        while writer.lac < lac and writer.error is None:  # noqa: ASYNC110 (virtual time)
            await trio.sleep(0.01)
    if writer.error is not None:
        raise writer.error


def ignore(told: object) -> None:
    pass


async def create(
    cluster: ModelCluster,
    on_confirmed: Callable[[int], None] = ignore,
    on_failed: Callable[[DistributedLogError], None] = ignore,
    **options: object,
) -> tuple[LedgerClient, LedgerWriter]:
    client = await cluster.client(**options)
    return client, await client.create(on_confirmed=on_confirmed, on_failed=on_failed)


async def test_entries_are_confirmed_in_order_and_closed(autojump_clock: MockClock) -> None:
    """G1; the explicit LAC follows at once, so that a lone record is readable."""
    async with model_cluster(3) as cluster:
        heard: list[int] = []
        _, writer = await create(cluster, on_confirmed=heard.append)

        assert [writer.add([b"a", b"bc"], 3), writer.add([b""], 0)] == [0, 1]
        await until(1, writer)
        await trio.sleep(0.05)

        assert heard == sorted(heard)
        assert heard[-1] == 1
        for bookie in ("b0", "b1", "b2"):
            held = cluster[bookie].model.ledgers[writer.ledger_id]
            assert sorted(held.entries) == [0, 1]
            assert held.lac == 1
        closed = await writer.close()
        assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 1, 3)
        assert await record_of(cluster, writer.ledger_id) == closed
        assert await cluster.store.get(missing_ranges_key(writer.ledger_id)) is None
        with pytest.raises(AlreadyClosed):
            writer.add([b""], 0)


async def test_a_writer_closes_no_ledger_that_somebody_recovers(autojump_clock: MockClock) -> None:
    """Inv. 19: the record has another version, although nothing was lost and no bookie was fenced."""
    async with model_cluster(3) as cluster:
        _, writer = await written(cluster, 3)
        marked = (await record_of(cluster, writer.ledger_id)).in_recovery()
        await put_record(cluster, marked)

        with pytest.raises(LedgerFenced):
            await writer.close()

        assert await record_of(cluster, writer.ledger_id) == marked


async def test_an_empty_ledger_closes_at_minus_one(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster)
        closed = await writer.close()
        assert (closed.last_entry, closed.length) == (-1, 0)


async def test_one_failed_bookie_is_replaced_by_one_metadata_write(
    autojump_clock: MockClock,
) -> None:
    """Order kept, no loss, one new fragment at LAC + 1, the reverse index follows."""
    async with model_cluster(4) as cluster:
        _, writer = await create(cluster)
        before = (await record_of(cluster, writer.ledger_id)).last_fragment.bookies
        add(writer, 10)
        await until(9, writer)
        writes = len(cluster.store.writes)
        cluster[before[1]].refuse_adds = BookieReadOnly("full")
        add(writer, 10)
        await until(19, writer)
        await trio.sleep(1)

        record = await record_of(cluster, writer.ledger_id)
        spare = next(b for b in cluster.pool.nodes if b not in before)
        assert len(record.ensembles) == 2
        first = record.ensembles[1].first_entry
        assert 10 <= first <= 20
        holes = await holes_of(cluster, writer.ledger_id)
        assert holes == (() if first == 10 else (MissingRange(before[1], 10, first),))
        assert record.ensembles[1].bookies == (before[0], spare, before[2])
        key = ledger_key(writer.ledger_id)
        of_ledger = [
            w for w in cluster.store.writes[writes:] if any(o.key == key for o in w.operations)
        ]
        assert len(of_ledger) == 1
        assert writer.add([b""], 0) == 20
        await until(20, writer)
        await trio.sleep(0.1)
        assert sorted(cluster[spare].model.ledgers[writer.ledger_id].entries) == list(
            range(first, 21)
        )
        assert await cluster.store.get(bookie_ledger_key(spare, writer.ledger_id)) is not None
        assert (await writer.close()).last_entry == 20


async def test_a_replaced_first_fragment_leaves_no_trace(autojump_clock: MockClock) -> None:
    """Invariant 6: a fragment at the same first entry replaces; the index forgets the bookie."""
    async with model_cluster(4) as cluster:
        client = await cluster.client()
        prepared = await client.prepare()
        bookies = prepared.metadata.last_fragment.bookies
        cluster[bookies[2]].refuse_adds = BookieReadOnly("full")
        assert (await cluster.store.transact(prepared.create_ops())).succeeded
        writer = client.writer(prepared)
        add(writer, 3)
        cluster[bookies[0]].mute = True  # nothing is confirmed without the third
        await until(2, writer)
        await trio.sleep(1)

        record = await record_of(cluster, writer.ledger_id)
        assert [f.first_entry for f in record.ensembles] == [0]
        assert bookies[2] not in record.bookies()
        assert await cluster.store.get(bookie_ledger_key(bookies[2], writer.ledger_id)) is None
        writer.abort()


async def test_a_broken_connection_is_made_again_without_metadata(
    autojump_clock: MockClock,
) -> None:
    """H22: within the bound a new stream, sent again from the first entry that is not acked."""
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster)
        writes = len(cluster.store.writes)
        add(writer, 3)
        cluster["b1"].disconnect()
        add(writer, 3)
        await until(5, writer)
        await trio.sleep(0.5)
        cluster["b1"].reconnect()
        await trio.sleep(0.5)

        assert sorted(cluster["b1"].model.ledgers[writer.ledger_id].entries) == list(range(6))
        assert len(cluster.store.writes) == writes
        assert not writer.needs_roll
        writer.abort()


async def test_one_dead_one_paused_four_in_all(autojump_clock: MockClock) -> None:
    """H22: without a spare the slot is detached and the hole is listed; no call fails, memory is flat."""
    async with model_cluster(4) as cluster:
        _, writer = await create(cluster)
        bookies = (await record_of(cluster, writer.ledger_id)).last_fragment.bookies
        dead = cluster[bookies[0]]
        add(writer, 5)
        await until(4, writer)
        dead.stop()
        add(writer, 5)
        await trio.sleep(3)
        await until(9, writer)
        record = await record_of(cluster, writer.ledger_id)
        assert bookies[0] not in record.last_fragment.bookies
        paused = cluster[record.last_fragment.bookies[1]]
        paused.hang()
        for _ in range(20):
            add(writer, 5)
            await trio.sleep(0.5)
        await until(109, writer)

        noted = await holes_of(cluster, writer.ledger_id)
        holes = {hole.bookie: hole for hole in noted}
        assert holes[paused.id] == MissingRange(paused.id, holes[paused.id].first, None)
        assert 9 <= holes[paused.id].first <= 12
        assert not writer.needs_roll  # three are live of the three needed, but one is the paused
        paused.hang(False)
        paused.disconnect()
        paused.reconnect()
        await trio.sleep(1)
        last = add(writer, 2)
        await until(last, writer)
        await trio.sleep(1)
        assert last in paused.model.ledgers[writer.ledger_id].entries
        noted = await holes_of(cluster, writer.ledger_id)
        assert {h.bookie: h.end for h in noted}[paused.id] == 110
        assert writer.needs_roll
        closed = await writer.close()
        assert closed.last_entry == last


async def test_a_slot_that_stands_still_is_let_go_at_the_byte_bound(
    autojump_clock: MockClock,
) -> None:
    """H22: the writer has no room while a slot is far behind, and lets it go when it does not catch up."""
    async with model_cluster(3) as cluster:
        _, writer = await create(
            cluster, slot_bytes_max=10_000, slot_silence_s=60.0, window_bytes_max=5_000
        )
        cluster["b2"].hang()
        most = 0
        with trio.fail_after(120):
            for _ in range(1000):
                await writer.wait_capacity()
                add(writer, 1)
                most = max(most, writer._pending_adds.retained_bytes)
        await until(999, writer)

        assert most < 11_000
        assert (
            writer._pending_adds.slots[2 if writer._pending_adds.slots[2].bookie == "b2" else 0]
            is not None
        )
        detached = [slot.bookie for slot in writer._pending_adds.slots if slot.detached]
        assert detached == ["b2"]
        writer.abort()


async def test_fewer_than_the_ack_quorum_wait_then_fail_as_unknown(
    autojump_clock: MockClock,
) -> None:
    """H22: adds wait until their deadline, then the writer is fatal and the outcome unknown (G7)."""
    async with model_cluster(3) as cluster:
        failures: list[Exception] = []
        _, writer = await create(cluster, on_failed=failures.append)
        cluster["b0"].stop()
        cluster["b1"].stop()
        add(writer, 1)
        started = trio.current_time()
        with pytest.raises(WriteFailed, match="not connected") as caught:
            await until(0, writer)

        assert 4.5 <= trio.current_time() - started <= 7
        assert not caught.value.definite
        assert caught.value.fatal_to_writer
        assert failures == [caught.value]


async def test_bookies_that_return_in_time_save_the_adds(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster)
        cluster["b0"].stop()
        cluster["b1"].stop()
        add(writer, 3)
        await trio.sleep(3.5)
        assert writer.lac == -1
        cluster["b1"].start()
        await until(2, writer)
        writer.abort()


async def test_no_acks_while_the_metadata_store_is_frozen(autojump_clock: MockClock) -> None:
    """D4: nothing is acked on the new ensemble before the store has it."""
    async with model_cluster(4) as cluster:
        _, writer = await create(cluster)
        bookies = (await record_of(cluster, writer.ledger_id)).last_fragment.bookies
        add(writer, 2)
        await until(1, writer)
        cluster.store.freeze()
        cluster[bookies[0]].refuse_adds = BookieReadOnly("full")
        cluster[bookies[1]].mute = True
        add(writer, 1)
        await trio.sleep(0.2)
        cluster[bookies[1]].mute = False
        add(writer, 3)  # the two that are left ack these, yet the change is undecided (inv. 7)
        await trio.sleep(1.5)
        assert writer.lac == 1
        cluster.store.freeze(False)
        await until(5, writer)
        writer.abort()


@pytest.mark.parametrize("state", ["in_recovery", "closed"])
async def test_the_record_turns_during_a_change(state: str, autojump_clock: MockClock) -> None:
    """Pending adds fail as fenced or closed, the ensembles are untouched."""
    async with model_cluster(4) as cluster:
        _, writer = await create(cluster)
        record = await record_of(cluster, writer.ledger_id)
        add(writer, 2)
        await until(1, writer)
        cluster.store.freeze()
        cluster[record.last_fragment.bookies[0]].refuse_adds = BookieReadOnly("full")
        cluster[record.last_fragment.bookies[1]].mute = True
        add(writer, 2)
        await trio.sleep(0.1)
        turned = record.in_recovery()
        if state == "closed":
            turned = turned.close_by_recovery(1, 20, turned.ensembles)
        await put_record(cluster, turned)
        cluster.store.freeze(False)
        with pytest.raises(LedgerFenced if state == "in_recovery" else LedgerClosed):
            await until(3, writer)

        assert (await record_of(cluster, writer.ledger_id)).ensembles == record.ensembles
        with pytest.raises(LedgerFenced if state == "in_recovery" else LedgerClosed):
            writer.add([b""], 0)


async def test_a_second_failure_while_the_first_is_handled(autojump_clock: MockClock) -> None:
    """Folded into a next round."""
    async with model_cluster(5) as cluster:
        _, writer = await create(cluster)
        bookies = (await record_of(cluster, writer.ledger_id)).last_fragment.bookies
        cluster.store.freeze()
        cluster[bookies[0]].refuse_adds = BookieReadOnly("full")
        add(writer, 2)
        await trio.sleep(0.1)
        cluster[bookies[1]].refuse_adds = BookieReadOnly("full")
        add(writer, 2)
        await trio.sleep(0.1)
        cluster.store.freeze(False)
        await until(3, writer)
        await trio.sleep(1)

        record = await record_of(cluster, writer.ledger_id)
        assert not {bookies[0], bookies[1]} & set(record.last_fragment.bookies)
        assert record.last_fragment.bookies[2] == bookies[2]
        writer.abort()


async def test_a_failed_slot_outside_the_heads_write_set(autojump_clock: MockClock) -> None:
    """D7: with E > Qw the writer does not hang."""
    async with model_cluster(6) as cluster:
        client = await cluster.client(ensemble_size=5, write_quorum=3, ack_quorum=2)
        writer = await client.create()
        bookies = (await record_of(cluster, writer.ledger_id)).last_fragment.bookies
        add(writer, 1)  # entry 0: slots 0, 1, 2
        await until(0, writer)
        cluster[bookies[4]].refuse_adds = BookieReadOnly("full")
        add(writer, 12)
        await until(12, writer)
        await trio.sleep(1)
        assert bookies[4] not in (await record_of(cluster, writer.ledger_id)).last_fragment.bookies
        closed = await writer.close()
        assert (closed.last_entry, closed.length) == (12, 130)


async def test_completion_stays_in_order_when_striped(autojump_clock: MockClock) -> None:
    """Entries 2 and 3 have their quorum and are confirmed only after 1 (G1)."""
    async with model_cluster(4) as cluster:
        client = await cluster.client(ensemble_size=4, write_quorum=2, ack_quorum=2)
        writer = await client.create()
        bookies = (await record_of(cluster, writer.ledger_id)).last_fragment.bookies
        cluster[bookies[1]].add_delay_s = 0.5  # slot 1 holds entries 0, 1, 4, 5
        add(writer, 4)
        await trio.sleep(0.3)
        assert writer.lac == -1
        await until(3, writer)
        writer.abort()


async def test_a_writer_is_fenced_by_a_bookie(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster)
        for node in cluster.pool.nodes.values():
            node.model.fence(writer.ledger_id, writer._change.metadata.key)
        add(writer, 1)
        with pytest.raises(LedgerFenced):
            await until(0, writer)


async def test_a_ledger_is_created_with_a_bookie_down(autojump_clock: MockClock) -> None:
    """H22b: three known, two live: the third slot starts detached, and joins when it is back."""
    async with model_cluster(3) as cluster:
        cluster["b1"].stop()
        client = await cluster.client()
        writer = await client.create()
        add(writer, 2)
        await until(1, writer)
        noted = await holes_of(cluster, writer.ledger_id)
        assert noted == (MissingRange("b1", 0, None),)
        assert not writer.needs_roll
        cluster["b1"].start()
        await trio.sleep(0.1)
        add(writer, 2)
        await until(3, writer)
        await trio.sleep(1)
        assert sorted(cluster["b1"].model.ledgers[writer.ledger_id].entries) == [2, 3]
        assert writer.needs_roll
        await writer.close()
        noted = await holes_of(cluster, writer.ledger_id)
        assert noted == (MissingRange("b1", 0, 2),)


async def test_ledger_is_created_while_a_bookie_is_read_only(autojump_clock: MockClock) -> None:
    """Its slot starts without it, as for a bookie that is down, and joins when it is writable again."""
    async with model_cluster(3) as cluster:
        cluster["b1"].model.read_only = True
        client = await cluster.client()
        writer = await client.create()
        add(writer, 2)
        await until(1, writer)
        await trio.sleep(5)
        assert await holes_of(cluster, writer.ledger_id) == (MissingRange("b1", 0, None),)
        assert writer.ledger_id not in cluster["b1"].model.ledgers
        assert not writer.needs_roll

        cluster["b1"].model.read_only = False
        cluster.pool.tell()
        add(writer, 2)
        await until(3, writer)
        await trio.sleep(1)
        assert sorted(cluster["b1"].model.ledgers[writer.ledger_id].entries) == [2, 3]


async def test_ledger_is_created_while_a_bookie_leaves_the_cluster(
    autojump_clock: MockClock,
) -> None:
    """Nothing is sent to it, and the open ledger is no reason to roll again and again."""
    async with model_cluster(3) as cluster:
        client = await cluster.client()
        cluster.pool._leaving_bookies["b2"] = None
        writer = await client.create()
        add(writer, 2)
        await until(1, writer)
        await trio.sleep(5)
        assert await holes_of(cluster, writer.ledger_id) == (MissingRange("b2", 0, None),)
        assert writer.ledger_id not in cluster["b2"].model.ledgers
        assert not writer.needs_roll
        assert not writer.should_close_early


async def test_ledger_needs_writable_bookies_for_its_ack_quorum(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        cluster["b0"].model.read_only = True
        cluster["b1"].model.read_only = True
        client = await cluster.client()
        with pytest.raises(NotEnoughBookies, match="b0, b1"):
            await client.create()


async def test_flush_of_the_lac_waits_for_an_ack_quorum_of_bookies(
    autojump_clock: MockClock,
) -> None:
    """A reader that asks any two of three bookies then sees the last entry."""
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster)
        add(writer, 3)
        await until(2, writer)
        cluster["b1"].hang()
        cluster["b2"].hang()
        returned = False

        async def flush() -> None:
            nonlocal returned
            await writer.flush_lac()
            returned = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush)
            await trio.sleep(2)
            assert not returned
            cluster["b2"].hang(False)
            await trio.sleep(1)
            assert returned
        lacs = [cluster[one].model.ledgers[writer.ledger_id].lac for one in ("b0", "b2")]
        assert lacs == [2, 2]


async def test_flush_of_the_lac_survives_a_reconnection(autojump_clock: MockClock) -> None:
    """The bookies are asked again on their new connections."""
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster)
        add(writer, 1)
        await until(0, writer)
        for one in ("b0", "b1", "b2"):
            cluster[one].hang()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.flush_lac)
            await trio.sleep(0.1)
            for one in ("b0", "b1"):
                cluster[one].disconnect()
                cluster[one].hang(False)
                cluster[one].reconnect()
        assert cluster["b0"].model.ledgers[writer.ledger_id].lac == 0
        assert cluster["b1"].model.ledgers[writer.ledger_id].lac == 0


async def test_flush_of_the_lac_ends_by_its_timeout_and_the_writer_continues(
    autojump_clock: MockClock,
) -> None:
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster, slot_silence_s=60.0)
        add(writer, 1)
        await until(0, writer)
        cluster["b0"].hang()
        cluster["b1"].hang()
        with pytest.raises(RequestTimeout):
            await writer.flush_lac()
        cluster["b0"].hang(False)
        add(writer, 1)
        await until(1, writer)
        await writer.flush_lac()


async def test_window_bytes_bound_what_is_in_flight(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster, window_bytes_max=1000)
        most = 0
        for _ in range(100):
            await writer.wait_capacity()
            add(writer, 1)
            most = max(most, writer.in_flight_bytes)
        await until(99, writer)
        assert most <= 1000 + 72
        await trio.sleep(1)
        assert not writer._pending_adds.notify_every_ack, (
            "who waits no more is not told of each acknowledgement"
        )
        writer.abort()


async def test_what_was_kept_for_a_slow_slot_is_given_back(autojump_clock: MockClock) -> None:
    """By the next one who asks for room, though little is kept by then: else the process has that less."""
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster, slot_silence_s=60.0)
        cluster["b2"].hang()
        for _ in range(40):
            last = add(writer, 1, bytes(4096))
        await until(last, writer)
        assert writer.has_capacity
        kept = writer._retained_bytes._total
        assert kept.retained_bytes > COUNTED_BYTES_MIN
        cluster["b2"].hang(on=False)
        await trio.sleep(5)
        await until(add(writer, 1), writer)
        assert (
            writer._pending_adds.pushed_bytes - writer._pending_adds.released_bytes
            < writer._uncounted_bytes_max
        )
        assert writer.has_capacity
        assert kept.retained_bytes == 0
        writer.abort()


async def test_nothing_is_confirmed_after_the_end(autojump_clock: MockClock) -> None:
    """What was counted with other ledgers' acknowledgements is told after them: one may have ended this."""
    async with model_cluster(3) as cluster:
        confirmed_to: list[int] = []
        _, writer = await create(cluster, on_confirmed=confirmed_to.append)
        await until(add(writer, 1), writer)
        add(writer, 1)
        for slot in writer._pending_adds.slots[:2]:
            assert slot.stream is not None
            writer._pending_adds.on_acked(slot.stream, 2)
        writer.abort()
        writer._on_progress()
        assert (writer.lac, confirmed_to) == (0, [0])


async def test_a_ledger_settles_only_between_ensemble_changes(autojump_clock: MockClock) -> None:
    """Found by sim seed 18: a slot that lagged behind the last entry was replaced while it was waited for."""
    async with model_cluster(4) as cluster:
        _, writer = await create(cluster, slot_silence_s=0.15)
        slow = (await record_of(cluster, writer.ledger_id)).last_fragment.bookies[0]
        cluster[slow].hang()
        add(writer, 3)
        await until(2, writer)
        cluster.store.freeze()

        with trio.move_on_after(10.0) as waiting:
            await writer.wait_settled()
        assert waiting.cancelled_caught  # a change is undecided
        cluster.store.freeze(False)
        await writer.wait_settled()

        writer.close_ops()


async def test_a_store_that_ended_under_an_ensemble_change_closes_nothing(
    autojump_clock: MockClock,
) -> None:
    """Found by sim seed 165: its `AlreadyClosed` was taken for that of an earlier try to close the ledger."""
    async with model_cluster(4) as cluster:
        _, writer = await create(cluster, slot_silence_s=0.15)
        cluster[(await record_of(cluster, writer.ledger_id)).last_fragment.bookies[0]].hang()
        add(writer, 3)
        await until(2, writer)
        cluster.store.freeze()
        with trio.move_on_after(1.0):
            await writer.wait_settled()  # a change is undecided

        writer.fail(AlreadyClosed("the metadata client has ended"))

        with pytest.raises(AlreadyClosed, match="client has ended"):
            await writer.wait_settled()
        with pytest.raises(AlreadyClosed, match="client has ended"):
            writer.close_ops()
        cluster.store.freeze(False)


async def test_a_try_to_close_is_repeated(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        _, writer = await create(cluster)
        add(writer, 3)
        await writer.wait_settled()
        share = writer.close_ops()

        await writer.wait_settled()

        assert writer.close_ops() == share
        with pytest.raises(AlreadyClosed):
            add(writer, 1)


@pytest.mark.parametrize(
    "where",
    [
        "a count",
        "an acknowledgement",
        "a refusal",
        "news of bookies",
        "the sweep",
        "the pass over LACs",
    ],
)
async def test_a_rule_that_is_broken_in_one_ledger_ends_that_writer_alone(
    autojump_clock: MockClock, where: str
) -> None:
    """What ledgers share, connections, the sweep and the client's tasks, goes on."""
    async with model_cluster(3) as cluster:
        heard: list[DistributedLogError] = []
        client, writer = await create(cluster, on_failed=heard.append)
        other = await client.create()

        def breaks(*_: object, **__: object) -> None:
            raise AssertionError("planted")

        if where == "a count":
            writer._pending_adds._ack_quorum = None  # type: ignore[assignment]
        elif where == "an acknowledgement":
            plant(writer, "_report_confirmed", breaks)
        elif where == "a refusal":
            writer._ensemble_monitor._request_replacement = breaks  # type: ignore[method-assign]
            cluster["b1"].refuse_adds = BookieReadOnly("planted")
        elif where == "news of bookies":
            writer._ensemble_monitor._check_slots = breaks  # type: ignore[method-assign]
            cluster.later(0.05, cluster.pool.tell)
        elif where == "the sweep":
            writer._ensemble_monitor.check_timeouts = breaks  # type: ignore[method-assign, assignment]
        else:
            plant(writer._streams, "send_lac", breaks)
        add(writer, 1)
        await trio.sleep(10)

        assert len(heard) == 1
        assert isinstance(writer.error, InternalError | WriteFailed)
        assert not heard[0].definite
        with pytest.raises(type(heard[0])):
            add(writer, 1)
        await until(add(other, 3), other)
        assert (await other.close()).last_entry == 2
