"""A recovery that meets a note of holes, and one that is given up half-way."""

import trio
from trio.testing import MockClock

from distributedlog.ledger.model.missing_range import MissingRange

from .model_bookie import add, confirmed, holes_of, model_cluster, written


async def test_recovery_forgets_no_hole_that_its_writer_noted(autojump_clock: MockClock) -> None:
    """H22b: one of three is down from the start, the writer dies with an entry in flight.

    The recovery has nobody to write that entry back to in the third slot, and notes it; what the
    bookie missed before stays in the note, or it is never copied.
    """
    async with model_cluster(3) as cluster:
        cluster["b1"].stop()
        client, writer = await written(cluster, 5)
        assert await holes_of(cluster, writer.ledger_id) == (MissingRange("b1", 0, None),)
        cluster["b2"].swallow = lambda entry: entry == 5
        add(writer, 1, b"tail")
        await trio.sleep(0.05)
        writer.abort()
        cluster["b2"].swallow = None
        cluster["b2"].read_delay_s = 0.2  # b0 has it, and answers first

        closed = await client.recover(writer.ledger_id)

        assert closed.last_entry == 5
        missed = [h for h in await holes_of(cluster, writer.ledger_id) if h.bookie == "b1"]
        assert missed
        assert missed[0].first == 0
        assert missed[-1].end is None or missed[-1].end == 6


async def test_what_a_dead_writer_never_noted_is_noted_by_the_close(
    autojump_clock: MockClock,
) -> None:
    """L8: the writer dies with its note unwritten; who answered and lacks an entry says so by its list."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 5)
        del cluster["b1"].model.ledgers[writer.ledger_id].entries[3]
        writer.abort()

        closed = await client.recover(writer.ledger_id)

        assert closed.last_entry == 4
        assert await holes_of(cluster, writer.ledger_id) == (MissingRange("b1", 0, 5),)


async def test_a_bookie_that_does_not_answer_a_recovery_is_noted_whole(
    autojump_clock: MockClock,
) -> None:
    """It had all, or it had nothing: who repairs looks before it copies."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 5)
        writer.abort()
        cluster["b2"].stop()

        await client.recover(writer.ledger_id)

        assert await holes_of(cluster, writer.ledger_id) == (MissingRange("b2", 0, 5),)


async def test_a_close_of_what_all_hold_notes_nothing(autojump_clock: MockClock) -> None:
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 5)
        writer.abort()

        await client.recover(writer.ledger_id)

        assert await holes_of(cluster, writer.ledger_id) == ()


async def test_a_writer_that_lost_its_ledger_changes_no_note(autojump_clock: MockClock) -> None:
    """H22: a note is written while the ledger is its writer's; later it is the recoverer's."""
    async with model_cluster(3) as cluster:
        _, writer = await written(cluster, 5)
        other = await cluster.client()
        await other.recover(writer.ledger_id)
        before = await holes_of(cluster, writer.ledger_id)

        cluster["b1"].stop()  # the zombie has not heard of it, and loses a bookie
        writer._change.on_failure(1, writer._pending_adds.slots[1].bookie)
        await trio.sleep(5)

        assert await holes_of(cluster, writer.ledger_id) == before
        writer.abort()


async def test_a_recovery_that_is_cancelled_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    """H31: a takeover gives a recovery up at its deadline; acks that come later concern nobody."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 2)
        cluster["b0"].swallow = cluster["b1"].swallow = lambda entry: entry >= 2
        add(writer, 3, b"tail")
        await trio.sleep(0.05)
        writer.abort()
        for node in cluster.pool.nodes.values():
            node.swallow = None
            node.add_delay_s = 0.3  # the acks of what is written back come late
        for bookie in ("b0", "b1"):
            cluster[bookie].read_delay_s = 0.05  # the one that has them answers first

        with trio.move_on_after(0.2) as scope:
            await client.recover(writer.ledger_id)
        assert scope.cancelled_caught
        streams = [s for node in cluster.pool.nodes.values() for s in node.client.streams]  # type: ignore[union-attr]
        await trio.sleep(1)

        assert streams == []
        assert (await client.recover(writer.ledger_id)).last_entry == 4


async def test_a_writers_close_notes_what_its_slots_miss(autojump_clock: MockClock) -> None:
    """H22b: the slot that was down to the end has a hole up to the end, and only up to there."""
    async with model_cluster(3) as cluster:
        _, writer = await written(cluster, 3)
        cluster["b2"].stop()
        add(writer, 2)
        await confirmed(writer)

        await writer.close()

        assert await holes_of(cluster, writer.ledger_id) == (MissingRange("b2", 3, 5),)


async def test_a_recovery_notes_what_it_wrote_back_to_nobody(autojump_clock: MockClock) -> None:
    """H22b: written back to two of three, with no fourth bookie: the third's copy is owed."""
    async with model_cluster(3) as cluster:
        client, writer = await written(cluster, 2)
        cluster["b1"].swallow = cluster["b2"].swallow = lambda entry: entry >= 2
        add(writer, 1, b"tail")
        await trio.sleep(0.05)
        writer.abort()
        assert await holes_of(cluster, writer.ledger_id) == ()
        cluster["b1"].swallow = None
        cluster["b2"].stop()

        closed = await client.recover(writer.ledger_id)

        assert closed.last_entry == 2
        (hole,) = [h for h in await holes_of(cluster, writer.ledger_id) if h.bookie == "b2"]
        assert hole.first <= 2
        assert hole.end == 3
