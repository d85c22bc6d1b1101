"""What a start believes of the blocks it finds (H3, H4): pure decisions, and starts that are cut short."""

import random
from dataclasses import replace

import trio
import trio.testing

from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.replay.journal_replay import ReplayedBlock, decide

from ..kit import KEY, OPTIONS, Adder, CutDisk, PowerCut, fence, read_all, record, running

Clock = trio.testing.MockClock
SMALL = replace(
    OPTIONS, journal_file_bytes=128 << 10, gather_bytes=64 << 10, unsynced_bytes_max=48 << 10
)


def block(
    sequence: int, durable_to: int, *, start: int = 1, skip: tuple[int, int] | None = None
) -> ReplayedBlock:
    found = ReplayedBlock(jb.COMMIT, sequence, durable_to, start, start, sequence * 4096, 4096)
    if skip is not None:
        found.controls.append(jb.ControlRecord(jb.SKIP, 0, 0, *skip, b""))
    return found


def judged(
    found: list[ReplayedBlock], first: int = 1
) -> tuple[list[int], list[int], list[object], int]:
    decision = decide(found, from_sequence=first)
    return (
        [each.sequence for each in decision.durable_blocks],
        [each.sequence for each in decision.unsynced_blocks],
        list(decision.lost_ranges),
        decision.tail_from,
    )


def test_a_clean_end_has_one_survivor() -> None:
    """The last block is not known synced: nobody came after it to say so."""
    assert judged([block(1, 0), block(2, 1), block(3, 2)]) == ([1, 2], [3], [], 4)


def test_the_tail_is_cut_with_its_valid_successors() -> None:
    """H3: blocks of one unsynced stretch reach the platter in any order."""
    assert judged([block(1, 0), block(2, 1), block(4, 1), block(5, 1)]) == ([1], [2], [], 3)


def test_what_was_synced_and_is_gone_is_corruption_and_replay_goes_on() -> None:
    assert judged([block(1, 0), block(3, 2), block(4, 3)]) == ([1, 3], [4], [(2, 2)], 5)


def test_what_the_checkpoint_covers_is_synced() -> None:
    """The floor: nothing after the position, and all before it was synced."""
    assert judged([], first=8) == ([], [], [], 8)
    assert judged([block(9, 7)], first=8) == ([], [], [], 8)


def test_a_later_start_cuts_off_what_an_earlier_one_left_after_it() -> None:
    """H4: the old 4 and 5 lie after the cut at 3, and the new 3 is of the same size."""
    old = [block(1, 0), block(2, 1), block(4, 2), block(5, 4)]
    new = [block(3, 1, start=2), block(4, 3, start=2)]

    decision = decide(old + new, from_sequence=1)

    assert [(each.sequence, each.start_count) for each in decision.durable_blocks] == [
        (1, 1),
        (2, 1),
        (3, 2),
    ]
    assert [(each.sequence, each.start_count) for each in decision.unsynced_blocks] == [(4, 2)]
    assert decision.tail_from == 5


def test_a_later_start_whose_own_first_block_is_rotten_still_cuts() -> None:
    """Its next blocks say how much was synced: the old 4 does not come back in place of a lost one."""
    old = [block(1, 0), block(2, 1), block(4, 2)]
    new = [block(5, 4, start=2), block(6, 5, start=2)]

    assert judged([*old[:2], *new]) == ([1, 2, 5], [6], [(3, 4)], 7)


def test_skipped_sequences_do_not_count_and_are_not_missed() -> None:
    """H4: copied after them, or written off: present or gone, they are no corruption."""
    copies = [block(3, 1, start=2), block(4, 1, start=2, skip=(2, 2)), block(5, 4, start=2)]

    assert judged([block(1, 0), block(2, 1), *copies]) == ([1, 3, 4], [5], [], 6)
    assert judged([block(1, 0), *copies]) == ([1, 3, 4], [5], [], 6)


def test_a_skip_in_the_cut_tail_excuses_nothing() -> None:
    """Its copies did not all survive: what it names is a survivor still."""
    torn = [block(3, 1, start=2), block(5, 1, start=2, skip=(2, 2))]

    assert judged([block(1, 0), block(2, 1), *torn]) == ([1], [2, 3], [], 4)
    assert judged([block(1, 0), *torn]) == ([1], [], [], 2)


async def test_starts_that_are_cut_short_at_every_step(autojump_clock: Clock) -> None:
    """H4: crash, restart, crash at each step, equal block sizes, survivors in the page cache."""
    for step in range(30):
        for survive in (0.0, 0.6):
            draw = random.Random(step)
            disk = CutDisk(sync_s=0.01)
            async with running(disk, SMALL) as store:
                adder = Adder(store, 7)
                for n in range(6):
                    adder.send(record(7, n))
                    await trio.sleep(0.004)
                await fence(store, 8)
                for n in range(6, 9):
                    adder.send(record(7, n))
                    await trio.sleep(0.004)
                acked = adder.sent[: adder.acked]
            # The process died, its page cache lives. Now starts that are cut short.
            for fuse in (step, step // 2, step):
                disk.fuse = fuse
                try:
                    async with running(disk, SMALL) as store:
                        found = list((await read_all(store, 7)).values())
                        assert found[: len(acked)] == acked
                        acked = found
                        raise PowerCut
                except* PowerCut:
                    pass
                disk = disk.cut(draw, survive)
            async with running(disk, SMALL) as store:
                assert list((await read_all(store, 7)).values())[: len(acked)] == acked
                assert store.ledgers.limbo_below == 0
                assert store.ledgers.get_known(8, KEY).fenced
                # And the new file's own tail: what was served stays.
                again = Adder(store, 7, recovery=True)
                again.send(record(7, 20))
                await again.all_acked()
