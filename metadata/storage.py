"""A metadata node's disk: term, vote and log as checksummed blocks, snapshots as checksummed files.

One log file is the truth at a time. Each begins with the whole state as it was when the file was made, so
that a start never appends behind a tail that it replayed (H4): it writes what it found into a new file,
syncs that, deletes the old one, and only then goes on. Within a file a torn tail and a lost block are told
apart by `blocks.judge` (H3). A node whose log or vote is damaged says so and never votes (M4, H5).

    MEMBERS         who votes, under which cluster id, and the seed of this disk's blocks
    log.00000007    blocks of operations: hard state, entries, truncations, snapshot marks
    snapshot.<index>.<term>   | u32 length | xxh3_64 u64 | chunk | ... | u32 0 | u64 chunks |
"""

import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import trio
import xxhash

from ..runtime import blocks
from ..runtime.atomic_file import ASIDE, read_file, replace_file
from ..runtime.errors import CorruptData
from ..runtime.frames import pack, unpack
from ..runtime.host import Disk, File
from .messages import Entry
from .raft_log import RaftLog
from .ready import HardState, Ready, Snapshot

MEMBERS = "MEMBERS"
MEMBERS_FORMAT = 1
LOG_FILE_BYTES = 16 * 1024 * 1024
"""A log file above this is replaced by a new one."""
BLOCK_OPERATIONS_BYTES = 256 * 1024
KIND_OPERATIONS = 1
CHUNK = struct.Struct("<IQ")
CHUNK_BYTES_MAX = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Members:
    """Who forms the quorum, by name; ids live and die with data directories (H5)."""

    cluster_id: str
    voters: Mapping[str, str]
    """Name to node id."""
    may_vote: bool
    """False for ever after this node's own log or vote was found damaged."""
    seed: int


@dataclass(slots=True)
class Loaded:
    """What a start found."""

    hard_state: HardState
    log: RaftLog
    snapshot: Snapshot | None
    damage: str
    """Why the log cannot be trusted; "" if it can."""


async def load_members(disk: Disk) -> Members | None:
    """None for a directory that never belonged to a cluster. Raises `CorruptData`."""
    content = await read_file(disk, MEMBERS)
    if content is None:
        return None
    if len(content) < 8 or xxhash.xxh3_64_digest(content[8:]) != content[:8]:
        raise CorruptData(f"{MEMBERS}: the checksum is wrong ({len(content)} bytes)")
    form, cluster_id, voters, may_vote, seed = unpack(content[8:], MEMBERS)
    if form != MEMBERS_FORMAT:
        raise CorruptData(f"{MEMBERS}: format {form}, known is {MEMBERS_FORMAT}")
    return Members(cluster_id, voters, may_vote, seed)


async def store_members(disk: Disk, members: Members) -> None:
    """Durable when this returns."""
    body = pack(
        [MEMBERS_FORMAT, members.cluster_id, dict(members.voters), members.may_vote, members.seed]
    )
    await replace_file(disk, MEMBERS, xxhash.xxh3_64_digest(body) + body)


class RaftStorage:
    """Term, vote, log and snapshots of one node. `save` and the snapshot calls come from one task each."""

    def __init__(self, disk: Disk, seed: int) -> None:
        self._disk = disk
        self._seed = seed
        self._file: File | None = None
        self._number = 0
        self._offset = 0
        self._sequence = 0
        self._durable_to = 0
        self._start_count = 0
        self._hard_state = HardState()
        self._log = RaftLog()
        """The durable log: what a new file begins with."""
        self.syncs = 0
        self.bytes_written = 0

    # --- the log ----------------------------------------------------------------------------------

    async def begin(self) -> None:
        """The first log file of a node that joins a forming cluster; before MEMBERS is stored."""
        for number in self._log_files():  # of a start that did not get as far as MEMBERS
            await self._disk.delete(_log_name(number))
        self._start_count = 1
        await self._begin_file()

    async def load(self) -> Loaded:
        """Replay, then begin a new file with what was found; durable when this returns."""
        snapshot = await self._newest_snapshot()
        damage = ""
        found = False
        numbers = self._log_files()
        for number in reversed(numbers):
            replay = await self._replay(number)
            if replay is None:  # its beginning was never finished: the file before it still counts
                continue
            found, damage = True, replay
            break
        if not found:
            damage = f"no whole log file among {len(numbers)}"
        if not damage and self._log.base_index:
            mark = Snapshot(self._log.base_index, self._log.base_term)
            if snapshot is None or snapshot.index < mark.index:
                damage = f"the snapshot that the log begins behind (index {mark.index}) is missing"
        if damage:
            self._hard_state, self._log, snapshot = HardState(), RaftLog(), None
        self._number = max(numbers, default=0)
        self._start_count += 1
        await self._begin_file()
        entries = (
            self._log.entry(i) for i in range(self._log.base_index + 1, self._log.last_index + 1)
        )
        log = RaftLog(self._log.base_index, self._log.base_term, entries)
        return Loaded(self._hard_state, log, snapshot, damage)

    async def save(self, readies: Sequence[Ready]) -> None:
        """Make durable what these Readys ask for, in order, with one sync."""
        operations: list[Any] = []
        for ready in readies:
            operations += self._operations_of(ready)
        if not operations:
            return
        if self._offset > LOG_FILE_BYTES:
            await self._begin_file()  # holds the new state already
        else:
            await self._append(operations)

    async def compact(self, snapshot: Snapshot) -> None:
        """Forget the log up to a snapshot that is durable here, and older snapshots."""
        if snapshot.index > self._log.base_index:
            self._log.compact(snapshot.index)
            await self._begin_file()
        for index, _, name in self._snapshot_files():
            if index < snapshot.index:
                await self._disk.delete(name)

    def _operations_of(self, ready: Ready) -> Iterator[Any]:
        if ready.hard_state is not None:
            self._hard_state = ready.hard_state
            yield ["hard", ready.hard_state.term, ready.hard_state.vote]
        if ready.snapshot is not None:
            self._log.reset(ready.snapshot.index, ready.snapshot.term)
            yield ["snapshot", ready.snapshot.index, ready.snapshot.term]
        if ready.truncate_from is not None and ready.truncate_from <= self._log.last_index:
            self._log.truncate(max(ready.truncate_from, self._log.base_index + 1))
            yield ["truncate", ready.truncate_from]
        # Entries that a snapshot of ours has overtaken meanwhile are no news.
        fresh = [entry for entry in ready.append if entry.index > self._log.last_index]
        self._log.append(fresh)
        for entry in fresh:
            yield ["entry", entry.index, entry.term, entry.data]

    async def _append(self, operations: Iterable[Any]) -> None:
        assert self._file is not None, "loaded before saved"
        content = bytearray()
        for group in _groups(operations):
            payload = pack(group)
            start = len(content)
            content += bytes(blocks.padded(len(payload)))
            content[start + blocks.HEADER_BYTES : start + blocks.HEADER_BYTES + len(payload)] = (
                payload
            )
            self._sequence += 1
            blocks.header_into(
                content,
                start,
                kind=KIND_OPERATIONS,
                payload_bytes=len(payload),
                start_count=self._start_count,
                sequence=self._sequence,
                durable_to=self._durable_to,
                file_number=self._number,
                file_offset=self._offset + start,
                seed=self._seed,
            )
        last = self._sequence
        offset, self._offset = self._offset, self._offset + len(content)
        await self._file.write_synced(offset, content)
        self._durable_to = last
        self.syncs += 1
        self.bytes_written += len(content)

    async def _begin_file(self) -> None:
        old = self._log_files()
        if self._file is not None:
            self._file.close()
        self._number += 1
        self._file = await self._disk.create(_log_name(self._number))
        self._offset = 0
        self._durable_to = self._sequence
        log = self._log
        beginning: list[Any] = [
            ["begin", self._start_count, self._sequence + 1],
            ["hard", self._hard_state.term, self._hard_state.vote],
            ["snapshot", log.base_index, log.base_term],
        ]
        for index in range(log.base_index + 1, log.last_index + 1):
            entry = log.entry(index)
            beginning.append(["entry", entry.index, entry.term, entry.data])
        beginning.append(["begun"])
        await self._append(beginning)
        for number in old:
            await self._disk.delete(_log_name(number))

    async def _replay(self, number: int) -> str | None:
        """Take a file's state; return its damage, or None if its beginning is not whole."""
        content = await read_file(self._disk, _log_name(number))
        found = list(blocks.scan(number, memoryview(content or b""), self._seed))
        if not found:
            return None
        first = found[0].sequence
        verdict = blocks.judge(
            [(block.sequence, block.durable_to) for block in found],
            from_sequence=first,
            durable_floor=0,
        )
        hard_state, log, begun = HardState(), RaftLog(), False
        began_with = 0
        for block in found:
            if block.sequence >= verdict.tail_from:
                break
            self._sequence = max(self._sequence, block.sequence)
            for operation in unpack(block.payload, _log_name(number)):
                match operation:
                    case ["begin", starts, sequence]:
                        began_with = sequence
                        self._start_count = max(self._start_count, starts)
                    case ["begun"]:
                        begun = True
                    case ["hard", term, vote]:
                        hard_state = HardState(term, vote)
                    case ["snapshot", index, term]:
                        log.reset(index, term)
                    case ["truncate", index] if index > log.base_index:
                        log.truncate(index)
                    case ["entry", index, term, data] if index == log.last_index + 1:
                        log.append([Entry(index, term, data)])
                    case _ if not verdict.corrupt:
                        raise CorruptData(f"{_log_name(number)}: an operation that does not fit")
        if verdict.corrupt:
            return f"{_log_name(number)}: blocks {verdict.corrupt} were synced and are gone"
        if not begun or began_with != first:
            return None
        self._hard_state, self._log = hard_state, log
        return ""

    def _log_files(self) -> list[int]:
        return sorted(
            int(name[4:])
            for name in self._disk.list()
            if name.startswith("log.") and name[4:].isdigit()
        )

    # --- snapshots --------------------------------------------------------------------------------

    async def save_snapshot(self, snapshot: Snapshot, chunks: Iterable[bytes]) -> None:
        """Write a snapshot aside, a chunk a turn, and name it when it is durable."""
        name = _snapshot_name(snapshot)
        if name in self._disk.list():
            return
        file = await self._new_file(name + ASIDE)
        try:
            offset = count = 0
            for chunk in chunks:
                file.write_at(
                    offset, [CHUNK.pack(len(chunk), xxhash.xxh3_64_intdigest(chunk)), chunk]
                )
                offset += CHUNK.size + len(chunk)
                count += 1
                await trio.lowlevel.checkpoint()
            await file.write_synced(offset, CHUNK.pack(0, count))
        finally:
            file.close()
        await self._disk.rename(name + ASIDE, name)

    async def read_snapshot(self, snapshot: Snapshot) -> list[bytes]:
        """The chunks of a snapshot file, each checked. Raises `CorruptData`."""
        return [chunk async for chunk in _read_chunks(self._disk, _snapshot_name(snapshot))]

    async def open_snapshot(self, snapshot: Snapshot) -> File:
        """The file's bytes, to be sent to another node."""
        return await self._disk.open(_snapshot_name(snapshot))

    async def receive_file(self) -> File:
        """An empty file for a snapshot that comes from the leader."""
        return await self._new_file("received" + ASIDE)

    async def keep_received(self, snapshot: Snapshot, file: File) -> None:
        """Check and name a received snapshot; durable when this returns. Raises `CorruptData`."""
        await file.sync()
        async for _ in _read_chunks(self._disk, "received" + ASIDE):
            pass
        await self._disk.rename("received" + ASIDE, _snapshot_name(snapshot))

    async def _new_file(self, name: str) -> File:
        if name in self._disk.list():
            await self._disk.delete(name)
        return await self._disk.create(name)

    async def _newest_snapshot(self) -> Snapshot | None:
        for index, term, name in reversed(self._snapshot_files()):
            try:
                async for _ in _read_chunks(self._disk, name):
                    pass
            except CorruptData:
                continue
            return Snapshot(index, term)
        return None

    def _snapshot_files(self) -> list[tuple[int, int, str]]:
        found = []
        for name in self._disk.list():
            parts = name.split(".")
            if len(parts) == 3 and parts[0] == "snapshot":
                found.append((int(parts[1], 16), int(parts[2], 16), name))
        return sorted(found)


async def _read_chunks(disk: Disk, name: str) -> AsyncIterator[bytes]:
    try:
        file = await disk.open(name)
    except FileNotFoundError:
        raise CorruptData(f"{name}: there is no such snapshot") from None
    try:
        offset = count = 0
        while True:
            head = await file.read_cold(offset, CHUNK.size)
            if len(head) < CHUNK.size:
                raise CorruptData(f"{name}: ends at offset {offset}, before its last mark")
            length, digest = CHUNK.unpack(head)
            if length == 0:
                if digest != count:
                    raise CorruptData(f"{name}: {count} chunks, announced were {digest}")
                return
            if length > CHUNK_BYTES_MAX:
                raise CorruptData(f"{name}: a chunk of {length} bytes at offset {offset}")
            chunk = await file.read_cold(offset + CHUNK.size, length)
            if len(chunk) != length or xxhash.xxh3_64_intdigest(chunk) != digest:
                raise CorruptData(f"{name}: the chunk at offset {offset} is damaged")
            yield chunk
            offset += CHUNK.size + length
            count += 1
    finally:
        file.close()


def new_members(cluster_id: str, voters: Mapping[str, str], chance: Random) -> Members:
    """For a node that joins a cluster which forms."""
    return Members(cluster_id, voters, True, chance.getrandbits(63))


def _groups(operations: Iterable[Any]) -> Iterator[list[Any]]:
    group: list[Any] = []
    size = 0
    for operation in operations:
        group.append(operation)
        size += 40 + (len(operation[3]) if operation[0] == "entry" else 0)
        if size >= BLOCK_OPERATIONS_BYTES or len(group) >= 4096:
            yield group
            group, size = [], 0
    if group:
        yield group


def _log_name(number: int) -> str:
    return f"log.{number:08d}"


def _snapshot_name(snapshot: Snapshot) -> str:
    return f"snapshot.{snapshot.index:016x}.{snapshot.term:x}"
