"""What counts as a bookie's silence, and what is this process's own lateness (H25, H35)."""

import pytest
import trio
from trio.testing import MockClock

from distributedlog.ledger.model.striping import Striping
from distributedlog.ledger.write.pending_adds import PendingAdds
from distributedlog.ledger.write.slot_timers import PROGRESS_BYTES_MIN, SendProgress, SlotTimers

from ..model_bookie import model_cluster

SWEEP_S = 0.5
SILENCE_S = 2.0
STEP = PROGRESS_BYTES_MIN


class Sweeps:
    """A window of three bookies with one entry sent, and a connection's queue for each."""

    def __init__(self) -> None:
        self.window = PendingAdds(Striping(3, 3, 2), ("b0", "b1", "b2"))
        self.window.add(b"entry")
        self.lateness = SlotTimers(self.window)
        self.now = 0.0
        self.leaving: list[SendProgress | None] = [(0, 0)] * 3

    def sweep(self, after_s: float = SWEEP_S) -> list[int]:
        """Who is silent at a sweep so much later."""
        self.now += after_s
        self.lateness.on_timer(self.now, SWEEP_S, self.leaving.__getitem__)
        return self.lateness.silent_slots(SILENCE_S)

    def until_silent(self) -> int:
        """Sweeps until all are."""
        for count in range(1, 100):
            if len(self.sweep()) == 3:
                return count
        raise AssertionError("nobody is found to be silent")


def test_who_owes_an_ack_is_silent_after_the_time_for_it() -> None:
    sweeps = Sweeps()
    assert sweeps.until_silent() == 4
    assert sweeps.lateness.oldest_add_s == 1.5


def test_time_in_which_this_process_stood_still_is_not_the_bookies() -> None:
    """Each sweep comes a minute late: none of them is more than one sweep without an ack."""
    sweeps = Sweeps()
    assert [sweeps.sweep(60.0) for _ in range(3)] == [[], [], []]
    assert sweeps.lateness.oldest_add_s == 1.0
    assert sweeps.sweep(60.0) == [0, 1, 2]  # four times it was looked, and nothing had come


def test_what_waits_behind_other_ledgers_adds_is_not_owed_yet() -> None:
    """100 MB of other ledgers' adds stand before it on each connection, and go out."""
    sweeps = Sweeps()
    for sent in range(0, 100, 2):
        sweeps.leaving = [(sent * STEP, (100 - sent) * STEP)] * 3
        assert sweeps.sweep() == []
    assert sweeps.lateness.oldest_add_s < 1.0

    sweeps.leaving = [(100 * STEP, 50 * STEP)] * 3  # what was queued after it is not its own

    assert sweeps.until_silent() == 4


def test_a_queue_that_does_not_move_is_the_bookies_silence() -> None:
    """A paused bookie takes nothing: its queue excuses it at the first look alone."""
    sweeps = Sweeps()
    sweeps.leaving = [(10, 100)] * 3
    sweeps.sweep()
    assert sweeps.until_silent() == 4


def test_a_queue_that_drips_is_the_bookies_silence() -> None:
    """Else two bookies that take a byte now and then would hold a writer for ever."""
    sweeps = Sweeps()
    for sent in range(4):
        sweeps.leaving = [(sent * 1000, 100 * STEP)] * 3
        sweeps.sweep()
    sweeps.leaving = [(4000, 100 * STEP)] * 3
    assert sweeps.sweep() == [0, 1, 2]


def test_one_full_queue_excuses_no_other_bookie() -> None:
    sweeps = Sweeps()
    found = []
    for sent in range(0, 40, 10):
        sweeps.leaving[1] = (sent * STEP, 1000 * STEP)
        found = sweeps.sweep()
    assert found == [0, 2]


def test_another_connection_begins_anew() -> None:
    """Its count of bytes begins at 0."""
    sweeps = Sweeps()
    sweeps.leaving = [(1000 * STEP, 100 * STEP)] * 3
    sweeps.sweep()
    for sent in (5, 10):
        sweeps.leaving = [(sent * STEP, 10 * STEP)] * 3
        sweeps.sweep()
    sweeps.leaving = [(15 * STEP, 0)] * 3
    assert sweeps.until_silent() == 4


@pytest.mark.parametrize("moves", [True, False])
async def test_a_writer_keeps_a_bookie_while_its_adds_wait_here(
    autojump_clock: MockClock, moves: bool
) -> None:
    """Seen at 60,000 records/s over 1,000 logs: 110 MB waited for each bookie, all of which were taken for
    silent, given up, and each log's writer with them."""
    async with model_cluster(4) as cluster:
        client = await cluster.client()
        writer = await client.create()
        nodes = list(cluster.pool.nodes.values())
        connections = [cluster.pool.get(node.id) for node in nodes]
        for node in nodes:
            node.hang()
        writer.add([b"x"], 1)
        for step in range(40):
            for connection in connections:
                assert connection is not None
                connection.send_progress = (step * moves * 100 * STEP, 10_000 * STEP)
            await trio.sleep(0.25)
        if not moves:
            assert writer.error is not None
            return
        assert writer.error is None
        assert writer._change.change_count == 0
        for node in nodes:
            node.hang(False)
        await trio.sleep(0.1)
        assert writer.lac == 0
        writer.abort()
