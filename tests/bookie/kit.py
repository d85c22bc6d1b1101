"""What the tests of a bookie share: a disk that loses what was not synced, and a client of a store."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio

from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.format import entry as entries
from distributedlog.bookie.format.extent_map import ExtentLocation
from distributedlog.bookie.format.index_format import (
    DIGESTS_MODULUS,
    EXTENT_KEY,
    META_KEY,
    STATE_KEY,
    IndexDamaged,
    IndexTotals,
    decode_extent,
    decode_state,
    file_number_of,
    verify_and_sum_digests,
)
from distributedlog.bookie.format.journal_format import DELETED, file_number
from distributedlog.bookie.format.read_sources import LoadedExtent
from distributedlog.bookie.ledgers.ledger_table import IncomingStream, Ledger, LedgerTable, LongPoll
from distributedlog.bookie.storage.index import Index
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.disk.memory_disk import MemoryDisk, MemoryFile, MemoryMap
from distributedlog.runtime.interfaces.errors import DiskFailed, DiskFull, DistributedLogError
from distributedlog.runtime.interfaces.host import (
    Address,
    Buffer,
    Connection,
    Disk,
    Host,
    Listener,
    Summary,
)

SECTOR = 512
KEY = b"0123456789abcdef"
OPTIONS = BookieOptions(
    journal_file_bytes=1 << 20,
    gather_bytes=256 << 10,
    gather_buffers=4,
    unsynced_bytes_max=512 << 10,
    free_bytes_min=0,
    compaction_s=0,
    ledgers_in_memory_max=2,
)
SMALL = replace(
    OPTIONS, journal_file_bytes=128 << 10, gather_bytes=64 << 10, unsynced_bytes_max=48 << 10
)
"""Files that roll after a few entries."""
MANUAL = replace(SMALL, checkpoint_s=1e6, checkpoint_bytes=1 << 30, checkpoint_runs=1 << 20)
"""No checkpoint but those that the test asks for, and the one of each start."""


class PowerCut(Exception):
    """The machine is off."""


class CutDisk(MemoryDisk):
    """A memory disk with a power switch: what was not synced survives by the sector, or does not.

    Files only; its maps are as durable as their transactions. ``sync_s``: how long a sync takes; one
    covers what was written before it began (H10).
    """

    def __init__(self, *, sync_s: float = 0.0, bytes_max: int | None = None) -> None:
        super().__init__(bytes_max=bytes_max)
        self.sync_s = sync_s
        self.files: dict[str, CutFile] = {}
        self.off = False
        self.syncs = 0
        self.fail_syncs = False
        self.inline = False
        """Does it sync on the loop, where that is asked for?"""
        self.zeros_s = 0.0
        """How long zeros take; they land at the end of that."""
        self.hot = True
        """Does `read_hot` find its bytes in the page cache?"""
        self.full_maps = False
        """There is no room for any transaction of its maps."""
        self.fuse = -1
        """So many more steps that change the disk, then the power goes off; -1: never."""

    def burn(self) -> None:
        """One step."""
        if self.off:
            raise PowerCut
        if self.fuse == 0:
            self.off = True
            raise PowerCut
        self.fuse -= 1

    async def open_map(self, name: str) -> "CutMap":
        await super().open_map(name)
        handle = CutMap(name, self._maps[name])
        handle.disk = self
        self._open_maps[name][-1] = handle
        return handle

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> "CutFile":
        self.burn()
        await super().create(name, size=size, direct=direct)
        self.files[name] = CutFile(self, name, direct=direct)
        return self.files[name]

    async def open(self, name: str) -> "CutFile":
        await super().open(name)
        found = CutFile(self, name, direct=False)
        found.pending = self.files[name].pending
        found.doomed = self.files[name].doomed
        return found

    async def rename(self, old: str, new: str) -> None:
        self.burn()
        await super().rename(old, new)
        self.files[new] = self.files.pop(old)

    async def delete(self, *names: str) -> None:
        for name in names:  # a power cut may come between any two
            self.burn()
            await super().delete(name)
            del self.files[name]

    def cut(self, draw: random.Random, survive: float = 0.5) -> "CutDisk":
        """Switch the power off; what is found when it is on again."""
        self.off = True
        found = CutDisk(sync_s=self.sync_s, bytes_max=self.bytes_max)
        found._maps = self._maps
        found._files = self._files
        found.used_bytes = self.used_bytes
        for content in found._files.values():
            content._disk = found
        for name in sorted(self.files):
            file = self.files[name]
            for offset, old in reversed(file.doomed):
                found._files[name].write(offset, [old], len(old), name)
            for offset, old in reversed(file.pending):
                for start in range(0, len(old), SECTOR):
                    if draw.random() >= survive:
                        part = old[start : start + SECTOR]
                        found._files[name].write(offset + start, [part], len(part), name)
            found.files[name] = CutFile(found, name, direct=False)
        return found

    def durable(self, name: str, offset: int, length: int) -> bytes:
        """What is on the platter now: the oracle of "is it durable at the ack"."""
        data = bytearray(self._files[name].read(offset, length))
        for at, old in reversed(self.files[name].pending):
            for index, byte in enumerate(old):
                if offset <= at + index < offset + length:
                    data[at + index - offset] = byte
        return bytes(data)

    def flip(self, name: str, offset: int, bit: int = 0) -> None:
        """Rot."""
        self._files[name].data[offset] ^= 1 << bit


class CutFile(MemoryFile):
    """A file of a `CutDisk`: knows what it would lose."""

    def __init__(self, disk: CutDisk, name: str, *, direct: bool) -> None:
        super().__init__(name, disk._files[name], direct=direct)
        self.disk = disk
        self.pending: list[tuple[int, bytes]] = []
        self.doomed: list[tuple[int, bytes]] = []
        """Its sync failed: in the page cache, clean, and never written (H4)."""

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self.disk.burn()
        length = sum(len(buffer) for buffer in buffers)
        self.pending.append((offset, self._content.read(offset, length)))
        old = self.pending[-1][1]
        if len(old) < length:
            self.pending[-1] = (offset, old + bytes(length - len(old)))
        super().write_at(offset, buffers)

    @property
    def syncs_inline(self) -> bool:
        return self.disk.inline

    def write_synced_now(self, offset: int, buffer: Buffer) -> None:
        self.write_at(offset, (buffer,))
        self.disk.syncs += 1
        self.disk.burn()
        covered = len(self.pending)
        self._end_sync(covered)

    async def write_synced(self, offset: int, buffer: Buffer) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self.write_at(offset, (buffer,))
        await self.sync()

    async def write_zeros(self, offset: int, length: int) -> None:
        if self.disk.zeros_s:
            await trio.sleep(self.disk.zeros_s)
        await super().write_zeros(offset, length)

    async def sync(self) -> None:
        covered = len(self.pending)
        self.disk.syncs += 1
        if self.disk.sync_s:
            await trio.sleep(self.disk.sync_s)
        else:
            await trio.lowlevel.checkpoint()
        self.disk.burn()
        self._end_sync(covered)

    def _end_sync(self, covered: int) -> None:
        if self.disk.fail_syncs:
            self.doomed += self.pending[:covered]
            del self.pending[:covered]
            raise DiskFailed(f"{self.name}: the sync failed")
        del self.pending[:covered]

    def truncate(self, size: int) -> None:
        self.disk.burn()
        super().truncate(size)

    async def punch_hole(self, offset: int, length: int) -> bool:
        self.disk.burn()
        self.pending.append((offset, self._content.read(offset, length)))
        return await super().punch_hole(offset, length)

    def read_if_cached(self, offset: int, length: int) -> bytes | None:
        return self.read_at(offset, length) if self.disk.hot else None


class CutMap(MemoryMap):
    """A map of a `CutDisk`: a transaction is there or not."""

    disk: CutDisk

    async def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        summary: Summary | None = None,
    ) -> None:
        self.disk.burn()
        if self.disk.full_maps:
            await trio.lowlevel.checkpoint()
            raise DiskFull("no room for a transaction")
        await super().apply(puts, deletes, summary)
        self.disk.burn()


async def _no_dial(address: Address) -> Connection:
    raise AssertionError("no network here")


async def _no_listen(address: Address) -> Listener:
    raise AssertionError("no network here")


def host_of(journal: Disk, index: Disk | None = None, seed: int = 0) -> Host:
    """A machine with these disks and no network."""
    return Host(
        "b1",
        _no_dial,
        _no_listen,
        {"journal": journal, "index": index or journal},
        random.Random(seed),
        lambda: 0,
    )


@asynccontextmanager
async def running(
    journal: Disk, options: BookieOptions = OPTIONS, index: Disk | None = None, *, seed: int = 0
) -> AsyncIterator[BookieStore]:
    """A store that serves; killed at the end, without a goodbye."""
    store = await open_store(host_of(journal, index, seed), options, bookie_id="b1")
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            counted(store)
            yield store
            counted(store)
            if not (isinstance(journal, CutDisk) and journal.off):
                await led_to(store)
            nursery.cancel_scope.cancel()
    except* PowerCut:
        if not isinstance(journal, CutDisk) or journal.fuse == 0:
            raise  # not switched off by the test, as its last word


def counted(store: BookieStore) -> None:
    """What is counted where it changes is what a walk finds, over the map and what is in memory."""
    if store.checkpointer.lock.locked():
        return  # the map is being changed
    try:
        _counted(store.ledgers, store._index)
    except IndexDamaged:
        return  # a test has damaged it


async def led_to(store: BookieStore) -> None:
    """The footer of each file leads to all that the map has in it."""
    for number in (*store._journal.sealed_files, *store._journal.compacted_files):
        try:
            spans = await store.compactor._footer_ranges_of([number])
        except DistributedLogError:
            continue  # a test has made it so
        if spans is None or store.checkpointer.lock.locked():
            continue
        stored, found = store._index.ordered_map, list[tuple[bytes, bytes]]()
        for ledger, first, last in spans:
            start, end = EXTENT_KEY.pack(b"r", ledger, first), EXTENT_KEY.pack(b"r", ledger, last)
            found += stored.scan(start, end + b"\0", 1 << 20)
        assert found == sorted(set(found)), "no span overlaps another"
        wanted = [
            pair for pair in stored.scan(b"r", b"s", 1 << 20) if file_number_of(pair[1]) == number
        ]
        assert [pair for pair in found if file_number_of(pair[1]) == number] == wanted


def _counted(ledgers: LedgerTable, index: Index) -> None:
    flags: dict[int, int] = {}
    for key, value in index.ordered_map.scan(b"s", b"t", 1 << 20):
        flags[STATE_KEY.unpack(key)[1]] = decode_state(key, value)[1]
    written = IndexTotals()
    for each in flags.values():
        written.count_state(each)
    for key, value in index.ordered_map.scan(b"r", b"s", 1 << 20):
        written.add_extent(decode_extent(key, value))
    for ledger in ledgers.loaded_ledgers():
        if ledger.is_known:
            flags[ledger.id] = ledger.flags
    now = IndexTotals()
    for each in flags.values():
        now.count_state(each)
    live = Counter(written.live_bytes)
    for ledger in ledgers.loaded_ledgers():
        live.update({} if ledger.extents is None else ledger.extents.bytes_by_file())

    said = index.stored_totals.copy()
    assert (said.known_count, said.limbo_count, said.tombstone_count, said.extent_count) == (
        written.known_count,
        written.limbo_count,
        written.tombstone_count,
        written.extent_count,
    )
    assert said.live_bytes == written.live_bytes
    assert all(said.file_ends[file] >= end for file, end in written.file_ends.items())
    assert (ledgers.known_count, ledgers.limbo_count, ledgers.tombstone_count) == (
        now.known_count,
        now.limbo_count,
        now.tombstone_count,
    )
    assert {file: size for file, size in index.live_bytes.items() if size} == live
    pairs = index.ordered_map.scan(b"\0", b"\xff", 1 << 20)
    digests = verify_and_sum_digests([pair for pair in pairs if pair[0] != META_KEY])
    assert said.digest_sum == digests % DIGESTS_MODULUS


async def flags_by_id(store: BookieStore) -> dict[int, int]:
    """Of all that are known here, tombstones included; ids ascending."""
    return {
        state.ledger_id: state.flags async for page in store.ledgers.state_pages() for state in page
    }


async def ids(store: BookieStore) -> list[int]:
    """Of the ledgers that are known here and not deleted, ascending."""
    return [ledger for ledger, flags in (await flags_by_id(store)).items() if not flags & DELETED]


async def dies_at_step(
    step: int,
    journal: CutDisk,
    index: Disk | None = None,
    options: BookieOptions = SMALL,
    *,
    serve_s: float = 0.0,
) -> bool:
    """Start, and serve for so long; at that step of the journal's disk the power goes off: was it reached?"""
    died = False
    journal.fuse = step
    try:
        async with running(journal, options, index):
            if serve_s:
                await trio.sleep(serve_s)
    except* PowerCut:
        died = True
    return died


@dataclass(eq=False)
class Adder:
    """A writer's connection: sends records, hears acks and refusals. A `StreamOwner`."""

    store: BookieStore
    ledger: int
    key: bytes = KEY
    recovery: bool = False
    acked: int = 0
    counted: int = 0
    sent: list[bytes] = field(default_factory=list)
    refused: list[tuple[DistributedLogError, int]] = field(default_factory=list)
    on_ack: Callable[[int], None] | None = None
    changed: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.late: list[bytes] = []
        self.stream = self.store.add_handler.open_stream(
            self, 1, self.ledger, self.key, recovery=self.recovery, fragment_epoch=0
        )

    def on_acked(self, acks: list[tuple[int, int]]) -> None:
        for _, count in acks:
            assert count >= self.acked
            self.acked = count
            if self.on_ack is not None:
                self.on_ack(count)
        self._change()

    def on_refused(self, stream: IncomingStream, error: DistributedLogError, position: int) -> None:
        self.refused.append((error, position))
        self._change()

    def _change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def send(self, *records: bytes | bytearray) -> None:
        """One ADD frame."""
        self.sent += [bytes(record) for record in records]
        body = b"".join(records)
        if self.late:
            self.late.append(body)
            return
        taken = self._take(body)
        self.store.group_commit.commit_adds(self)
        if taken < len(body):
            self.late.append(body[taken:])

    def _take(self, body: bytes) -> int:
        """As a session does: what is plain by the short way, the rest by the other."""
        adds, view = self.store.add_handler, memoryview(body)
        if adds.add_single_entries({1: self.stream}, iter([(1, len(view))]), view, 0) is None:
            return len(view)
        return adds.add_records(self.stream, view, self.resume)

    def resume(self) -> None:
        late, self.late = self.late, []
        while late:
            body = late.pop(0)
            taken = self.store.add_handler.add_records(self.stream, memoryview(body), self.resume)
            self.store.group_commit.wake()
            if taken < len(body):
                self.late = [body[taken:], *late]
                return

    async def all_acked(self) -> None:
        """Wait for the acks of all that was sent."""
        with trio.fail_after(60):
            while self.acked < len(self.sent) and not self.refused:
                await self.changed.wait()
        assert not self.refused, self.refused

    async def refusal(self) -> tuple[DistributedLogError, int]:
        """Wait for the refusal."""
        with trio.fail_after(60):
            while not self.refused:
                await self.changed.wait()
        return self.refused[0]


def record(ledger: int, entry: int, payload: bytes = b"", lac: int | None = None) -> bytes:
    """An entry record; the payload says which it is unless given."""
    payload = payload or b"ledger %d entry %d" % (ledger, entry)
    so_far = (entry + 1) * len(payload)
    return bytes(
        entries.encode(
            ledger, entry, so_far, entry - 1 if lac is None else lac, [payload], len(payload)
        )
    )


async def fence(store: BookieStore, ledger: int, key: bytes = KEY) -> Ledger:
    """Fence, and wait until it is durable."""
    answers: list[tuple[Ledger, DistributedLogError | None]] = []
    done = trio.Event()

    def on_done(ledger: Ledger, error: DistributedLogError | None) -> None:
        answers.append((ledger, error))
        done.set()

    store.fence(ledger, key, on_done)
    with trio.fail_after(60):
        await done.wait()
    found, error = answers[0]
    if error is not None:
        raise error
    return found


async def read_all(
    store: BookieStore, ledger: int, first: int = 0, last: int = 1 << 40
) -> dict[int, bytes]:
    """All that is here, as {entry: record}."""
    found = store.ledgers.get_known(ledger, KEY)
    records: dict[int, bytes] = {}
    extent: LoadedExtent | None = None
    while first <= last:
        collected = store.collect(found, first, last, 1 << 20, extent)
        for part in collected.parts:
            for each in entries.records(part):
                records[each.entry] = bytes(each.record)
        if collected.complete_to >= last:
            break
        first = collected.complete_to + 1
        if collected.device_extent is not None:
            extent = await from_device(store, collected.device_extent)
    return records


async def from_device(store: BookieStore, run: ExtentLocation) -> LoadedExtent:
    """As a session asks the device."""
    answers: list[LoadedExtent | DistributedLogError] = []
    done = trio.Event()

    def on_done(answer: LoadedExtent | DistributedLogError) -> None:
        answers.append(answer)
        done.set()

    store.device_reader.submit(None, run.file_number, run.offset, run.length, on_done)
    with trio.fail_after(60):
        await done.wait()
    answer = answers[0]
    if not isinstance(answer, LoadedExtent):
        raise answer
    return answer


@dataclass(eq=False)
class Poller:
    """Long polls. A `WaiterOwner`."""

    answers: list[tuple[int, bool, DistributedLogError | None]] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)

    def on_lac_advanced(self, poll: LongPoll) -> bool:
        """It asks for no standing answers."""
        return False

    def on_poll_done(self, poll: LongPoll, error: DistributedLogError | None) -> None:
        self.answers.append((poll.ledger.lac, poll.ledger.fence_durable, error))
        self.changed.set()

    def wait(self, store: BookieStore, ledger: int, previous_lac: int, wait_s: float = 1.0) -> None:
        deadline = trio.current_time() + wait_s
        store.add_long_poll(
            lambda found: LongPoll(self, 1, found, KEY, previous_lac, 0, deadline), ledger, KEY
        )


def journal_names(disk: CutDisk) -> list[str]:
    """The journal files of a disk, the oldest first."""
    return [name for name in disk.list() if file_number(name)]


async def add_acked(
    store: BookieStore, ledger: int, count: int = 1, payload_bytes: int = 0, *, apart_s: float = 0.0
) -> Adder:
    """The first ``count`` entries of a ledger, acknowledged; with 0 payload bytes each says which it is."""
    adder = Adder(store, ledger)
    for n in range(count):
        adder.send(record(ledger, n, bytes(payload_bytes)))
        if apart_s:
            await trio.sleep(apart_s)
    await adder.all_acked()
    return adder


async def some_files(store: BookieStore) -> Adder:
    """Ledger 7: a hundred entries of 3,000 bytes, acknowledged; with `SMALL` options, over several files."""
    return await add_acked(store, 7, 100, 3000, apart_s=0.001)
