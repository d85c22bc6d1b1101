"""Reads from the device: how many at a time, and how many files stay open."""

from dataclasses import replace

import trio
from trio.testing import MockClock

from distributedlog.bookie.format.read_sources import LoadedExtent
from distributedlog.bookie.storage.entry_reader import DeviceReader, JournalFiles
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import DistributedLogError
from distributedlog.runtime.interfaces.host import File
from distributedlog.runtime.schedule.work_failures import WorkFailures

from ..kit import OPTIONS


class _SlowFile:
    def __init__(self, disk: "_SlowDisk") -> None:
        self._disk = disk

    async def read_in_worker(self, offset: int, length: int) -> bytes:
        self._disk.reads += 1
        self._disk.reads_at_once = max(self._disk.reads_at_once, self._disk.reads)
        await trio.sleep(1.0)
        self._disk.reads -= 1
        return bytes(length)

    def close(self) -> None:
        self._disk.open_files -= 1


class _SlowDisk(MemoryDisk):
    """A disk that counts open files and simultaneous reads."""

    reads = reads_at_once = open_files = 0

    async def open(self, name: str) -> File:
        self.open_files += 1
        file: File = _SlowFile(self)  # type: ignore[assignment]
        return file


async def _read_from_each_of_ten_files(**changes: int) -> _SlowDisk:
    disk, options = _SlowDisk(), replace(OPTIONS, **changes)
    reader = DeviceReader(JournalFiles(disk, str, options.open_files_max), options, WorkFailures())
    extents: list[LoadedExtent | DistributedLogError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        for number in range(10):
            reader.submit(number, number, 0, 4096, extents.append)
        await trio.sleep(20.0)
        nursery.cancel_scope.cancel()
    assert len(extents) == 10
    return disk


async def test_cold_readers_read_from_the_device_at_once(autojump_clock: MockClock) -> None:
    for readers in (1, 3):
        disk = await _read_from_each_of_ten_files(cold_readers=readers)
        assert disk.reads_at_once == readers


async def test_open_files_max_files_stay_open(autojump_clock: MockClock) -> None:
    disk = await _read_from_each_of_ten_files(open_files_max=4)

    assert disk.open_files == 4
