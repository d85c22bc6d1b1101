"""A reader in sequence whose ranges end within runs: each byte is read about once."""

from random import Random

import pytest

from distributedlog.bookie.client.bookie_client import BookieClient
from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.format import entry as entries
from distributedlog.bookie.format.extent_map import ExtentLocation
from distributedlog.bookie.format.read_sources import LoadedExtent
from distributedlog.bookie.storage.entry_reader import CACHED_READ_BYTES_MAX, EntryReader
from distributedlog.runtime.disk.directory_disk import CACHED_READ_BYTES
from distributedlog.runtime.net.frame_reader import ReceiveSpace
from distributedlog.runtime.protocol.frames import ENVELOPE_BYTES

from .kit import KEY, CutDisk, CutFile, record
from .test_server import T, Writing, served

PAYLOAD = 2000


async def in_frames(client: BookieClient, count: int) -> list[bytes]:
    """Entries of ledger 7, acknowledged by 40: runs of up to so many."""
    writing = Writing(client, 7)
    sent = [record(7, n, bytes([n % 251]) * PAYLOAD) for n in range(count)]
    for first in range(0, count, 40):
        for each in sent[first : first + 40]:
            writing.stream.send(each)
        await writing.until_acked(first + 40)
    return sent


async def test_the_next_range_goes_on_where_the_last_one_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []
    read_hot = EntryReader._read_cached

    def note(
        reader: EntryReader, run: ExtentLocation, needed: int, wanted: int
    ) -> LoadedExtent | None:
        begun.append(run.first)
        return read_hot(reader, run, needed, wanted)

    async with served(disk=CutDisk()) as (bookie, nursery):
        client = await bookie.dial(nursery)
        sent = await in_frames(client, 600)
        monkeypatch.setattr(EntryReader, "_read_cached", note)
        found: list[bytes] = []
        asked: list[int] = []
        while len(found) < 80:  # out of the ring by now
            asked.append(len(found))
            answer = await client.read(
                7, KEY, len(found), 599, 7 * len(sent[0]), past_lac=True, timeout_s=T
            )
            found += [bytes(one.record) for one in entries.records(answer.body)]

        assert found == sent[: len(found)]
        assert set(asked) <= set(begun), "no range was begun again at its run's first entry"


async def test_of_a_long_run_only_what_is_asked_for_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_bytes = 0
    read_hot = EntryReader._read_cached

    def note(
        reader: EntryReader, run: ExtentLocation, needed: int, wanted: int
    ) -> LoadedExtent | None:
        nonlocal read_bytes
        found = read_hot(reader, run, needed, wanted)
        read_bytes += 0 if found is None else len(found.data)
        return found

    async with served(disk=CutDisk()) as (bookie, nursery):
        client = await bookie.dial(nursery)
        sent = await in_frames(client, 600)
        monkeypatch.setattr(EntryReader, "_read_cached", note)
        answered = 0
        for first in range(0, 80, 5):
            answer = await client.read(
                7, KEY, first, first + 4, 9 * len(sent[0]), past_lac=True, timeout_s=T
            )
            assert answer.complete_to == first + 4
            answered += len(answer.body)

    assert answered <= read_bytes < 1.2 * answered


async def test_a_reply_of_several_runs_reads_no_run_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lies between two runs, and what does not fit the reply, is no reason to read one again."""
    reads: list[int] = []
    read_hot = CutFile.read_if_cached

    def note(file: CutFile, offset: int, length: int) -> bytes | None:
        reads.append(length)
        return read_hot(file, offset, length)

    async with served(disk=CutDisk()) as (bookie, nursery):
        client = await bookie.dial(nursery)
        sent = await in_frames(client, 1200)
        monkeypatch.setattr(CutFile, "read_if_cached", note)
        found: list[bytes] = []
        while len(found) < 600:
            # The 61st does not fit.
            answer = await client.read(
                7, KEY, len(found), 1199, 60 * len(sent[0]) + 100, past_lac=True, timeout_s=T
            )
            found += [bytes(one.record) for one in entries.records(answer.body)]

    assert found == sent[: len(found)]
    answered = sum(map(len, found))
    assert sum(reads) < 1.1 * answered
    assert min(reads) >= len(sent[0]), "less than a record is of no use"


def test_the_longest_reply_is_read_and_received_in_one_piece_of_memory_that_is_used_again() -> None:
    longest = BookieOptions().reply_bytes_max

    assert longest <= CACHED_READ_BYTES_MAX <= CACHED_READ_BYTES
    space = ReceiveSpace(4096, 0)
    frame = ENVELOPE_BYTES + 64 + longest
    space.large_buffers.acquire(frame)[:1] = b"u"
    assert bytes(space.large_buffers.acquire(frame)[:1]) == b"u"


@pytest.mark.parametrize("hot", [True, False])
async def test_any_range_of_records_of_any_length_is_found(hot: bool) -> None:
    chance = Random(11)
    disk = CutDisk()
    async with served(disk=disk) as (bookie, nursery):
        client = await bookie.dial(nursery)
        writing = Writing(client, 7)
        sizes = [chance.choice((1, 40, 900, 5000)) for _ in range(600)]
        sent = [record(7, n, bytes([n % 251]) * size) for n, size in enumerate(sizes)]
        first = 0
        while first < len(sent):
            some = sent[first : first + chance.randint(1, 50)]
            for each in some:
                writing.stream.send(each)
            first += len(some)
            await writing.until_acked(first)
        disk.hot = hot
        for _ in range(300):
            first = chance.randrange(200)
            last = first + chance.randrange(60)
            bytes_max = chance.choice((1, 100, 3000, 30_000, 300_000))
            answer = await client.read(7, KEY, first, last, bytes_max, past_lac=True, timeout_s=T)
            found = [bytes(one.record) for one in entries.records(answer.body)]
            assert found == sent[first : answer.complete_to + 1]
            assert 0 < len(found) <= last + 1 - first
            assert len(found) == 1 or len(answer.body) <= bytes_max
