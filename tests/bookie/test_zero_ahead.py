"""Zeros ahead of the journal's end: they come for lone commits only, and never over what was written."""

import random
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from distributedlog.runtime.disk.memory_disk import MemoryDisk, MemoryFile
from distributedlog.runtime.disk.preallocation import COMMIT_BYTES_MAX, STEP_BYTES, Preallocation
from distributedlog.runtime.interfaces.errors import DiskFailed

from .kit import OPTIONS, Adder, CutDisk, read_all, record, running

FILE_BYTES = 4 * STEP_BYTES
WINDOW = 2 * STEP_BYTES


class SlowFile:
    """A file whose zeros land late: at the end of a call that takes ``zeros_s``."""

    def __init__(self, file: MemoryFile, zeros_s: float) -> None:
        self.file = file
        self.zeros_s = zeros_s
        self.calls: list[tuple[int, int]] = []
        self.fail = False

    async def write_zeros(self, offset: int, length: int) -> None:
        self.calls.append((offset, length))
        await trio.sleep(self.zeros_s)
        if self.fail:
            raise DiskFailed("no zeros")
        self.file.write_at(offset, (bytes(length),))


async def slow_file(zeros_s: float = 0.05) -> SlowFile:
    file = await MemoryDisk().create("f", size=FILE_BYTES)
    assert isinstance(file, MemoryFile)
    return SlowFile(file, zeros_s)


@pytest.mark.parametrize("seed", range(10))
async def test_no_byte_that_was_taken_is_zeroed(seed: int, autojump_clock: MockClock) -> None:
    """H16: commits that are faster than the zeros run into a step, and wait for its end."""
    chance = random.Random(seed)
    waits = steps = 0
    async with trio.open_nursery() as nursery:
        zeros = Preallocation(WINDOW, phase=chance.getrandbits(64))
        nursery.start_soon(zeros.run)
        for _ in range(3):
            slow = await slow_file()
            zeros.start_file(slow.write_zeros, FILE_BYTES)
            offset = 0
            while True:
                length = 4096 * (40 if chance.random() < 0.01 else chance.choice((1, 1, 2)))
                if offset + length > FILE_BYTES:
                    break
                if not zeros.reserve(offset, offset + length):
                    waits += 1
                    await zeros.wait_reserved(offset, offset + length)
                slow.file.write_at(offset, (b"d" * length,))
                await trio.sleep(chance.choice((0.0005, 0.001, 0.02)))
                zeros.record_commit(length)
                offset += length
            await zeros.finish_file()
            steps += len(slow.calls)
            assert slow.file.read_at(0, offset) == b"d" * offset
            assert all(start + size <= FILE_BYTES for start, size in slow.calls)
        nursery.cancel_scope.cancel()
    assert steps > 3
    assert waits > 0


async def test_only_short_blocks_ask_and_the_window_bounds_it(autojump_clock: MockClock) -> None:
    slow = await slow_file()
    async with trio.open_nursery() as nursery:
        zeros = Preallocation(WINDOW, phase=0)
        nursery.start_soon(zeros.run)
        zeros.start_file(slow.write_zeros, FILE_BYTES)
        for _ in range(100):
            zeros.record_commit(COMMIT_BYTES_MAX + 4096)
            await trio.sleep(0.1)
        assert slow.calls == []
        for _ in range(100):
            zeros.record_commit(4096)
            await trio.sleep(0.1)
        assert slow.calls == [(0, STEP_BYTES), (STEP_BYTES, STEP_BYTES)]
        none = Preallocation(0, phase=0)
        none.start_file(slow.write_zeros, FILE_BYTES)
        nursery.start_soon(none.run)
        none.record_commit(4096)
        await trio.sleep(1)
        assert len(slow.calls) == 2
        nursery.cancel_scope.cancel()


async def test_lone_records_among_many_bytes_ask_for_none(autojump_clock: MockClock) -> None:
    """What is written at full speed would be written twice: 1.5 times the bytes at 8 MiB a second."""
    slow = await slow_file()
    async with trio.open_nursery() as nursery:
        zeros = Preallocation(WINDOW, phase=0)
        nursery.start_soon(zeros.run)
        zeros.start_file(slow.write_zeros, FILE_BYTES)
        zeros.record_commit(2 * WINDOW)
        for _ in range(100):
            zeros.record_commit(64 * 4096)
            await trio.sleep(0.1)
            zeros.record_commit(4096)
            await trio.sleep(0.1)
        assert slow.calls == []
        for _ in range(100):  # they are alone again
            zeros.record_commit(4096)
            await trio.sleep(0.1)
        assert slow.calls == [(0, STEP_BYTES), (STEP_BYTES, STEP_BYTES)]
        nursery.cancel_scope.cancel()


async def test_a_file_is_left_when_its_last_zeros_are_there(autojump_clock: MockClock) -> None:
    slow = await slow_file(zeros_s=3)
    async with trio.open_nursery() as nursery:
        zeros = Preallocation(WINDOW, phase=0)
        nursery.start_soon(zeros.run)
        zeros.start_file(slow.write_zeros, FILE_BYTES)
        zeros.record_commit(4096)
        await trio.sleep(1)
        began = trio.current_time()
        await zeros.finish_file()
        assert trio.current_time() - began == pytest.approx(2)
        zeros.record_commit(4096)
        await trio.sleep(10)
        assert len(slow.calls) == 1
        nursery.cancel_scope.cancel()


async def test_zeros_that_fail_end_the_node(autojump_clock: MockClock) -> None:
    """A failed write may have hidden the error of another's sync: nobody goes on with that file."""
    slow = await slow_file()
    slow.fail = True
    zeros = Preallocation(WINDOW, phase=0)
    zeros.start_file(slow.write_zeros, FILE_BYTES)
    zeros.record_commit(4096)
    with pytest.raises(DiskFailed):
        await zeros.run()


async def test_lone_adds_over_zeros_survive_rolls_and_a_restart(autojump_clock: MockClock) -> None:
    disk = CutDisk(sync_s=0.001)
    index = MemoryDisk()
    sent: list[bytes] = []
    options = replace(OPTIONS, zero_ahead_bytes=WINDOW)
    for _ in range(2):
        async with running(disk, options, index) as store:
            if sent:
                assert list((await read_all(store, 7)).values()) == sent
            adder = Adder(store, 7)
            for _ in range(300):
                adder.send(record(7, len(sent) + len(adder.sent), bytes(900)))
                await adder.all_acked()
            sent += adder.sent
            assert store.info()["rolls"] != 0
            assert store._journal.preallocation.steps >= 4
