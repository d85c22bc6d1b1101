"""The disk of a metadata node: term, vote and log as checksummed blocks, in one log file at a time.

The end of a log file is preallocated with zeros. Bytes that are not a block are the end of the log, or an
unfinished write. Each file begins with the whole state at its creation, so that a start never appends after
a replayed tail (H4). A start writes the replayed state into a new file, syncs it, deletes the old file, and
then continues. A snapshot starts a new file too, which contains only the later entries. Snapshots are rare
(`replica.py`), so this costs little. Within a file, `blocks.classify_tail` distinguishes a torn tail from a
lost block. The files::

    MEMBERS         the cluster, the right to vote, and the seed of the blocks (`member_identity.py`)
    log.00000007    blocks of operations (hard state, entries, truncations, snapshots) and marks
    snapshot.*      the state up to some index (`snapshot_store.py`)
    damaged.*       damaged files, kept for inspection and never read

A node with a damaged log or vote loses its right to vote, durably, before anything else is changed (M4).
The hard state in its newest blocks is stored in the file GHOST, and the sound beginning of its log is kept
(`recovered_hard_state.py`).

A full disk does not end the node. Operations that could not be written are kept until there is space, and
are not acknowledged before. If there is no space for a new log file, the old one continues to be used. A
start on a full disk also continues with the replayed file. It cuts off the invalid tail, and rewrites the
rest in place, so that blocks that were only in the page cache do not count as durable.

The header of each block also contains the last entry that is known to be committed
(`log_replay.commit_note`). A node whose leader would replace such an entry ends (`ready.Diverged`).

The last synced block has no successor, so its corruption looks like a torn tail. Therefore a small block,
the mark, is written after it when the log has been idle for about 20 ms. The mark states that the last
block is durable, and repeats the vote and the last entry.

One case remains: the newest block (a vote or acknowledged entries) is corrupted before its mark is written.
That requires a power cut and a damaged sector within the same 20 ms. Nothing on this disk can distinguish
it from an unfinished write.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from sys import maxsize
from typing import Any, NamedTuple

import trio

from ...runtime.disk import checksummed_blocks as blocks
from ...runtime.disk.atomic_file import TEMPORARY_SUFFIX, read_skipping_unreadable
from ...runtime.disk.preallocation import Preallocation
from ...runtime.interfaces.errors import CorruptData, DiskFailed, DiskFull, ProtocolError, TooBusy
from ...runtime.interfaces.host import Disk, File
from ...runtime.protocol.frames import pack, unpack
from ..model.configuration import (
    UNKNOWN_CONFIGURATION,
    Configuration,
    decode_configuration,
    is_configuration,
)
from ..raft.raft_log import RaftLog
from ..raft.raft_messages import Entry
from ..raft.ready import HardState, Ready, Snapshot
from ..raft.recovered_hard_state import (
    HardStateScanner,
    RaftEntryId,
    RecoveredHardState,
    watermark_payload,
)
from .log_replay import (
    RaftLogReplay,
    commit_note,
    commit_of_note,
    group_operations,
    last_index_after,
)
from .member_identity import (
    MemberIdentity,
    load_recovery_floor,
    remove_recovery_floor,
    store_member_identity,
    store_recovery_floor,
)
from .snapshot_store import SnapshotStore

NEW_FILE_RETRY_BYTES = 1024 * 1024
"""Bytes after which a new file is tried again that failed for lack of space."""
WRITE_BYTES = 2 * 1024 * 1024
"""The initial state of a file is written in parts of about this size, one per event-loop iteration."""
ZEROED_AHEAD_BYTES = 512 * 1024
"""Length of the zeros that are written ahead of the end of the log.

A sync that does not make a file longer costs only half as much.
"""
KIND_OPERATIONS = 1
KIND_WATERMARK = 2
DAMAGED_PREFIX = "damaged."


class _BlockContent(NamedTuple):
    """A block that is not sealed yet."""

    kind: int
    payload: bytes
    last_index: int
    """The last entry of the log after this block."""


@dataclass(slots=True)
class LoadedRaftState:
    """The state that a start found on the disk."""

    hard_state: HardState
    log: RaftLog
    snapshot: Snapshot | None
    """The newest snapshot that matches the log."""
    damage: str
    """The damage that this start found, or ""."""
    recovery_floor: RaftEntryId | None = None
    """The last entry that ever existed, if the log ends before it (`recovered_hard_state.py`).

    If a node may not vote and has no floor, its acknowledgements are unknown. Its log and its vote are then
    empty.
    """
    commit_index: int = 0
    """The last entry that is known to be committed, or 0. A damaged log may end before it."""


async def remove_leftovers(disk: Disk) -> None:
    """Delete temporary files of an interrupted write. They have no value, and may occupy all free space."""
    await disk.delete(*(name for name in disk.list() if name.endswith(TEMPORARY_SUFFIX)))


class RaftStorage:
    """Term, vote, log and snapshots of one node.

    `save`, `compact` and `write_watermark` are called by one task. Other tasks may use the snapshots.
    """

    def __init__(self, disk: Disk, seed: int) -> None:
        self.snapshots = SnapshotStore(disk)
        self.syncs = 0
        self.bytes_written = 0
        self._disk = disk
        self._seed = seed
        self._writing = False
        self._file: File | None = None
        self._file_number = 0
        self._offset = 0
        self._retry_new_file_at = inf
        """Length of the file at which a new file is tried again, after a lack of space."""
        self._sequence = 0
        self._durable_to = 0
        self._watermarked_to = 0
        """Sequence of the last block, if it is a mark or has one.

        Its corruption would lose nothing.
        """
        self._start_count = 0
        self._replayed_end = 0, 0
        """End and last sequence of the valid part of the replayed file."""
        self._preallocation = Preallocation(ZEROED_AHEAD_BYTES, seed)
        self._zeros_file: File | None = None
        self.zeroing_allowed = True
        """Whether there is space for zeros."""
        self._pending_operations: list[Any] = []
        """Operations that could not be written to a full disk."""
        self._hard_state = HardState()
        self._log = RaftLog()
        """The durable log, which is the initial state of a new file."""
        self._written_index = 0
        """The last entry in the written blocks."""
        self._commit_index = 0
        """The last entry that is known to be committed, which the note of each block stores."""
        self._recovered_state: RecoveredHardState | None = None
        """The hard state in the newest blocks, if it is certain."""
        self._sound_prefix: RaftLog | None = None
        """The sound beginning of a damaged log."""
        self._damaged_logs: frozenset[int] = frozenset()
        """Files that are renamed and not deleted when a new file exists.

        So a crash always leaves a file.
        """

    @property
    def log_bytes(self) -> int:
        """Return the size of the log file."""
        return self._offset

    # --- start ------------------------------------------------------------------------------------

    async def create_log(
        self,
        founders: Configuration = UNKNOWN_CONFIGURATION,
        *,
        base_snapshot: Snapshot | None = None,
    ) -> None:
        """Create the first log file of a node that joins a cluster, before MEMBERS is stored.

        Args:
            founders: The members of a new cluster, or `UNKNOWN_CONFIGURATION` for a node that is added
                later.
            base_snapshot: A durable snapshot on this disk with which the cluster continues
                (`force_new_cluster.py`).
        """
        self._log = RaftLog(configuration=founders)
        if base_snapshot is not None:
            self._log = RaftLog(
                base_snapshot.index, base_snapshot.term, (), base_snapshot.configuration
            )
            self._hard_state = HardState(base_snapshot.term)
        self._start_count = 1
        self._file_number = max(self._log_files(), default=0)
        with self._exclusive_write():
            await self._begin_file()  # also deletes files of a start that did not reach MEMBERS

    async def load(self, members: MemberIdentity) -> tuple[LoadedRaftState, MemberIdentity]:
        """Replay the log, and begin a new file with the result. It is durable on return.

        If there is damage, the right to vote is removed first, and the recovery floor is stored next. The
        returned identity is already stored.

        Raises:
            UnsupportedFormat: A newer version wrote the data.
        """
        damage, snapshot = await self._replay_and_check(members)
        if damage:
            if members.may_vote:
                members = replace(members, may_vote=False)
                await store_member_identity(
                    self._disk, members
                )  # a crash after this point finds the damage recorded
            snapshot = await self._salvage_damaged_log(members)
        ghost = await self._load_recovery_floor(members)
        self._start_count += 1
        await self._remove_stale_snapshots(snapshot)
        with self._exclusive_write():
            try:
                await self._begin_file()
            except DiskFull:
                if damage:
                    raise
                await self._continue_file()
        replayed_log = self._log
        founding = replayed_log.configuration_at(replayed_log.base_index)
        log = RaftLog(replayed_log.base_index, replayed_log.base_term, self._entries(), founding)
        loaded = LoadedRaftState(self._hard_state, log, snapshot, damage, ghost, self._commit_index)
        return loaded, members

    async def _salvage_damaged_log(self, members: MemberIdentity) -> Snapshot | None:
        """Keep the sound data and rename the rest. Return the snapshot at the beginning of the log, if any.

        Any sound snapshot is usable, because a snapshot contains only committed entries.
        """
        recovered, prefix, snapshot = self._recovered_state, self._sound_prefix, None
        stored_state = await load_recovery_floor(self._disk)
        if recovered is None:
            # The hard state is unknown. Without any log it is unknown too, because the node may have voted.
            await remove_recovery_floor(self._disk)
        else:
            if (
                prefix is not None
                and RaftEntryId(prefix.last_term, prefix.last_index) > recovered.last
            ):
                prefix = (
                    # a lost block truncated this part, so it differs from the acknowledged log
                    None
                )
            if stored_state is not None:
                recovered = recovered._replace(last=max(recovered.last, stored_state.last))
            await store_recovery_floor(self._disk, recovered)
            for candidate, _ in reversed(self.snapshots.list()):
                if await self.snapshots.is_sound(candidate):
                    snapshot = await self._with_configuration(candidate)
                    break
        self._hard_state = recovered.hard_state if recovered is not None else HardState()
        # For a node that was added later, the entry that added it has the members.
        founding = members.founders if len(members.voters) > 1 else UNKNOWN_CONFIGURATION
        self._log = RaftLog(configuration=founding)
        if recovered is not None and prefix is not None and _can_continue_after(prefix, snapshot):
            self._log = prefix
        elif snapshot is not None:
            self._log = RaftLog(snapshot.index, snapshot.term, (), snapshot.configuration)
        self._damaged_logs = frozenset(self._log_files())
        await self._quarantine(
            [name for candidate, name in self.snapshots.list() if candidate != snapshot]
        )
        return snapshot

    async def _with_configuration(self, snapshot: Snapshot) -> Snapshot:
        async for chunk in self.snapshots.chunks(snapshot):
            if is_configuration(chunk):
                return replace(snapshot, configuration=decode_configuration(chunk))
            break
        return snapshot

    async def _load_recovery_floor(self, members: MemberIdentity) -> RaftEntryId | None:
        """Return the recovery floor of a node that may not vote by its log alone.

        Adopt the vote stored with it.
        """
        recovered = await load_recovery_floor(self._disk)
        if members.may_vote or recovered is None:
            await remove_recovery_floor(self._disk)  # a damaged file is useless
            return None
        if recovered.hard_state.term >= self._hard_state.term:
            voted = self._hard_state.term == recovered.hard_state.term and self._hard_state.vote
            self._hard_state = self._hard_state if voted else recovered.hard_state
        return recovered.last

    async def store_recovered_state(self, recovered: RecoveredHardState) -> RecoveredHardState:
        """Store the hard state that the reports of the other voters permit. It is durable on return.

        Return it with the own term and vote if they are later than those of the others.
        """
        if self._hard_state.term > recovered.hard_state.term:
            recovered = recovered._replace(hard_state=self._hard_state)
        await store_recovery_floor(self._disk, recovered)
        self._hard_state = recovered.hard_state
        with self._exclusive_write():
            await self._begin_file()
        return recovered

    async def clear_recovery_floor(self, members: MemberIdentity) -> MemberIdentity:
        """Record that the log is complete, so that the node may vote by its log alone. Durable on return."""
        members = replace(members, may_vote=True)
        await store_member_identity(self._disk, members)
        await remove_recovery_floor(self._disk)
        return members

    async def inspect(self, members: MemberIdentity) -> LoadedRaftState:
        """Return the result of `load` without a change of the disk, for tools that only read.

        Raises:
            UnsupportedFormat: A newer version wrote the data.
        """
        damage, snapshot = await self._replay_and_check(members)
        return LoadedRaftState(
            self._hard_state, self._log, snapshot, damage, commit_index=self._commit_index
        )

    async def _replay_and_check(self, members: MemberIdentity) -> tuple[str, Snapshot | None]:
        """Replay the log. Return the damage, or "", and the newest valid snapshot."""
        damage = await self._replay_newest(members.founders)
        snapshot = await self._newest_snapshot()
        base = self._log.base_index
        if not damage and base and (snapshot is None or snapshot.index < base):
            damage = f"the snapshot that the log begins after (index {base}) is missing or damaged"
        return damage, snapshot

    async def _replay_newest(self, founding: Configuration) -> str:
        """Replay the newest file with a complete beginning. Return its damage, or ""."""
        numbers = self._log_files()
        self._file_number = max(numbers, default=0)
        for number in reversed(numbers):
            damage = await self._replay(number, founding)
            if damage is not None:
                return damage
            # The beginning of this file was never completed, so the previous file is valid.
        return f"no complete log file among {len(numbers)}"

    async def _replay(self, number: int, founding: Configuration) -> str | None:
        """Replay a file. Return its damage, or None if its beginning is incomplete."""
        name = _log_name(number)
        data, read_error, unreadable_end = await self._read_file(name)
        valid_blocks = list(blocks.scan(number, memoryview(data), self._seed))
        if not valid_blocks:
            return read_error or None
        first_sequence = valid_blocks[0].sequence
        scan_result = blocks.classify_tail(
            [(block.sequence, block.durable_to) for block in valid_blocks],
            from_sequence=first_sequence,
            min_durable_to=0,
        )
        self._sequence = max(self._sequence, valid_blocks[-1].sequence)
        replay, scanner = RaftLogReplay(founding), HardStateScanner()
        lost_from = (
            scan_result.lost_ranges[0][0] if scan_result.lost_ranges else scan_result.tail_from
        )
        for block in valid_blocks:
            self._start_count = max(self._start_count, block.start_count)
            if block.sequence >= scan_result.tail_from:
                break
            if block.kind == KIND_WATERMARK:
                scanner.take_mark(block.sequence, bytes(block.payload))
                self._update_commit(scanner, block.note)
            if block.kind != KIND_OPERATIONS:
                continue
            await trio.lowlevel.checkpoint()
            try:
                operations = unpack(block.payload, name)
                scanner.add_operations(block.sequence, operations)
                self._update_commit(scanner, block.note)
                if block.sequence < lost_from:
                    replay.apply_operations(operations)
            except (ProtocolError, ValueError):
                if replay.first_sequence == first_sequence:
                    return f"{name}: block {block.sequence} does not fit those before it"
                # without its beginning, only the last values of the file are usable
                lost_from = first_sequence
        is_begun = replay.first_sequence == first_sequence and replay.has_complete_beginning
        beginning_synced = any(first_sequence <= block.durable_to for block in valid_blocks)
        if read_error or scan_result.lost_ranges or (beginning_synced and not is_begun):
            newest = _newest_before(scan_result.tail_from, valid_blocks)
            end = newest.offset + newest.padded_length
            # On a corrupted disk, bytes after the end may be more than an unfinished write.
            if unreadable_end <= end and not data[end:].strip(b"\0"):
                self._recovered_state = scanner.recovered_state()
            self._sound_prefix = replay.log if replay.first_sequence == first_sequence else None
            lost_ranges = scan_result.lost_ranges or "of its beginning"
            return read_error or f"{name}: blocks {lost_ranges} were synced and are missing"
        if not is_begun:
            return None
        self._recovered_state = RecoveredHardState(
            replay.hard_state, RaftEntryId(replay.log.last_term, replay.log.last_index)
        )
        self._hard_state, self._log = replay.hard_state, replay.log
        self._file_number = number
        last = _newest_before(scan_result.tail_from, valid_blocks)
        self._replayed_end = last.offset + last.padded_length, last.sequence
        return ""

    def _update_commit(self, scanner: HardStateScanner, note: int) -> None:
        if scanner.last_entry is not None:
            self._commit_index = max(
                self._commit_index, commit_of_note(scanner.last_entry.log_index, note)
            )

    async def _read_file(self, name: str) -> tuple[bytes, str, int]:
        """Return a log file, the read error as text, and the end of the last unreadable part.

        Unreadable parts are replaced by zeros.

        Raises:
            TooBusy: There are too many open files.
        """
        why, unread_to = "", 0

        def on_unreadable(error: CorruptData, end: int) -> None:
            nonlocal why, unread_to
            why, unread_to = why or f"{name} is partly unreadable: {error}", end

        try:
            file = await self._disk.open(name)
        except (
            FileNotFoundError,
            DiskFailed,
        ) as error:  # nothing was written, so only this file is affected
            return b"", f"{name} cannot be opened: {error}", maxsize
        try:
            return (
                await read_skipping_unreadable(file, 0, file.size(), on_unreadable),
                why,
                unread_to,
            )
        finally:
            file.close()

    async def _continue_file(self) -> None:
        """Make the replayed data and the end of the file durable in place, as the module describes."""
        name = _log_name(self._file_number)
        size, self._sequence = self._replayed_end
        for number in self._log_files():
            if number > self._file_number:
                await self._disk.delete(_log_name(number))  # its beginning was never completed
        self._file = file = await self._disk.open(name)
        if file.size() > size:
            file.truncate(size)
            await file.sync()
        for offset in range(0, size, WRITE_BYTES):
            await file.write_synced(
                offset, await file.read_in_worker(offset, min(WRITE_BYTES, size - offset))
            )
        self._offset = size
        self._written_index = self._log.last_index
        self._durable_to = self._sequence

    async def _newest_snapshot(self) -> Snapshot | None:
        """Return the newest sound snapshot at the beginning of the log, or whose last entry is in the log.

        Any other snapshot was received from a leader, but its Ready was never made durable. It does not
        match the log and does not count (`ready.py`).
        """
        for snapshot, _ in reversed(self.snapshots.list()):
            if self._log_contains(snapshot) and await self.snapshots.is_sound(snapshot):
                return snapshot
        return None

    def _log_contains(self, snapshot: Snapshot) -> bool:
        return self._log.term_at(snapshot.index) == snapshot.term

    async def _remove_stale_snapshots(self, newest: Snapshot | None) -> None:
        for snapshot, name in self.snapshots.list():
            if newest is None or snapshot.index < newest.index or not self._log_contains(snapshot):
                await self._disk.delete(name)  # outdated, or not valid
            elif snapshot != newest:
                await self._quarantine([name])  # newer, and damaged

    async def _quarantine(self, names: Iterable[str]) -> None:
        """Rename files, so that they are not used."""
        for name in names:
            aside = DAMAGED_PREFIX + name
            while aside in self._disk.list():
                aside += ".again"
            await self._disk.rename(name, aside)

    # --- the log ----------------------------------------------------------------------------------

    async def save(self, readies: Sequence[Ready]) -> None:
        """Make the contents of these Readys durable, in order, with one sync.

        Raises:
            DiskFull: Nothing is durable yet. The next call writes these contents too.
        """
        with self._exclusive_write():
            for ready in readies:
                self._pending_operations += self._operations_of(ready)
            if not self._pending_operations:
                return
            if self._offset > self._retry_new_file_at and await self._try_new_file():
                return
            await self._append(self._pending_operations)
            self._pending_operations = []

    async def _try_new_file(self) -> bool:
        try:
            await self._begin_file()
        except DiskFull:
            self._retry_new_file_at = self._offset + NEW_FILE_RETRY_BYTES
            return False
        return True

    async def compact(self, snapshot: Snapshot) -> None:
        """Discard the log up to a snapshot that is durable here, and older snapshots."""
        with self._exclusive_write():
            if snapshot.index > self._log.base_index:
                self._log.compact(snapshot.index)
                if not await self._try_new_file():
                    # The remaining log needs only this snapshot, whose last entry it contains.
                    await self.snapshots.delete_before(snapshot.index)
                    await self._try_new_file()
        await self.snapshots.delete_before(snapshot.index)

    async def write_watermark(self, commit: int = 0) -> None:
        """Write a mark, which states that the newest block is durable, if it has none.

        Called when there was nothing to save for about 20 ms, see the module. ``commit`` is the last entry
        that is known to be committed.
        """
        if self._watermarked_to == self._durable_to:
            return
        self._commit_index = max(self._commit_index, commit)
        with self._exclusive_write():
            try:
                last = RaftEntryId(self._log.last_term, self._log.last_index)
                promised = RecoveredHardState(self._hard_state, last)
                await self._write_or_rollback(
                    [_BlockContent(KIND_WATERMARK, watermark_payload(promised), last.log_index)]
                )
            except DiskFull:
                return  # The mark is not necessary.
            self._watermarked_to = self._durable_to

    def _operations_of(self, ready: Ready) -> Iterator[Any]:
        self._commit_index = max(self._commit_index, ready.commit)
        if ready.hard_state is not None:
            self._hard_state = ready.hard_state
            yield ["hard", ready.hard_state.term, ready.hard_state.vote]
        if ready.snapshot is not None:
            new_snapshot = ready.snapshot
            self._log.reset(new_snapshot.index, new_snapshot.term, new_snapshot.configuration)
            yield [
                "snapshot",
                new_snapshot.index,
                new_snapshot.term,
                new_snapshot.configuration.encode(),
            ]
        if ready.truncate_from is not None and ready.truncate_from <= self._log.last_index:
            self._log.truncate(ready.truncate_from)
            yield ["truncate", ready.truncate_from]
        # Ignore entries that an own snapshot contains already.
        new_entries = [entry for entry in ready.append if entry.index > self._log.last_index]
        self._log.append(new_entries)
        for entry in new_entries:
            yield ["entry", entry.index, entry.term, entry.data]

    async def _append(self, operations: Iterable[Any]) -> None:
        # Each block begins with term and vote, so that the newest sound block always has them.
        hard = ["hard", self._hard_state.term, self._hard_state.vote]
        end = self._written_index

        def contents() -> Iterator[_BlockContent]:
            nonlocal end
            for group in group_operations(operations):
                end = last_index_after(group, end)
                yield _BlockContent(KIND_OPERATIONS, pack([hard, *group]), end)

        await self._write_or_rollback(contents())
        self._written_index = end

    async def _write_or_rollback(self, contents: Iterable["_BlockContent"]) -> None:
        """Seal and write blocks, and sync once.

        Raises:
            DiskFull: The state is as before the call.
        """
        position_before = self._offset, self._sequence
        try:
            await self._write_blocks(contents)
        except DiskFull:
            self._offset, self._sequence = position_before
            await self._reopen_file()
            raise

    async def _reopen_file(self) -> None:
        """Open the file again, because its handle stays failed, and cut off the unfinished write."""
        assert self._file is not None
        await self._stop_zeroing()
        self._file.close()
        self._file = await self._disk.open(_log_name(self._file_number))
        if self._file.size() > self._offset:
            self._file.truncate(self._offset)

    async def _write_blocks(self, contents: Iterable["_BlockContent"]) -> None:
        assert self._file is not None, "loaded before saved"
        content = bytearray()
        for kind, payload, end in contents:
            if len(content) >= WRITE_BYTES:
                write_end = self._offset + len(content)
                if not self._preallocation.reserve(self._offset, write_end):
                    await self._preallocation.wait_reserved(self._offset, write_end)
                self._file.write_at(self._offset, [content])
                self._offset = write_end
                self.bytes_written += len(content)
                content = bytearray()
                await trio.lowlevel.checkpoint()
            start = len(content)
            content += bytes(blocks.padded_length(len(payload)))
            payload_start = start + blocks.HEADER_BYTES
            content[payload_start : payload_start + len(payload)] = payload
            self._sequence += 1
            blocks.write_header(
                content,
                start,
                kind=kind,
                payload_bytes=len(payload),
                start_count=self._start_count,
                sequence=self._sequence,
                durable_to=self._durable_to,
                file_number=self._file_number,
                file_offset=self._offset + start,
                seed=self._seed,
                note=commit_note(end, self._commit_index),
            )
        last = self._sequence
        offset, self._offset = self._offset, self._offset + len(content)
        if not self._preallocation.reserve(offset, self._offset):
            await self._preallocation.wait_reserved(offset, self._offset)
        await self._file.write_synced(offset, content)
        if self.zeroing_allowed:
            self._preallocation.record_commit(len(content))
        self._durable_to = last
        self.syncs += 1
        self.bytes_written += len(content)

    async def _begin_file(self) -> None:
        """Write the whole state into a new file, then delete the old one, or rename it if it is damaged.

        A file without a complete beginning is ignored, so corruption there never looks like a torn tail.

        Raises:
            DiskFull: The old file continues to be used.
        """
        old_numbers = self._log_files()
        await self._stop_zeroing()
        previous_state = (
            self._file,
            self._file_number,
            self._offset,
            self._sequence,
            self._durable_to,
        )
        self._file_number = max([self._file_number, *old_numbers]) + 1
        name = _log_name(self._file_number)
        try:
            self._file = await self._disk.create(name)
            self._offset = 0
            self._durable_to = self._sequence
            await self._append(self._initial_operations())
        except DiskFull:
            if name in self._disk.list():
                if self._file is not None:
                    self._file.close()
                await self._disk.delete(name)
            self._file, self._file_number, self._offset, self._sequence, self._durable_to = (
                previous_state
            )
            raise
        if previous_state[0] is not None:
            previous_state[0].close()
        self._pending_operations = []  # the written state contains it
        # The beginning needs no mark: its corruption never looks like a torn tail.
        self._watermarked_to = self._durable_to
        self._retry_new_file_at = inf
        for number in old_numbers:
            if number in self._damaged_logs:
                await self._quarantine([_log_name(number)])
            else:
                await self._disk.delete(_log_name(number))
        self._preallocation.start_file(self._write_zeros, maxsize)
        self._preallocation.reserve(0, self._offset)

    async def zero_ahead(self) -> None:
        """Write zeros after the end of the log as it grows, until cancelled.

        Raises:
            DiskFailed: The disk returned an error.
        """
        while True:
            try:
                await self._preallocation.run()
            except (DiskFull, TooBusy):
                await self._stop_zeroing()  # The next file has zeros again, if there is space.

    async def _write_zeros(self, offset: int, length: int) -> None:
        """Use a separate handle, so that a lack of space for zeros does not make the log's handle fail."""
        if self._zeros_file is None:
            self._zeros_file = await self._disk.open(_log_name(self._file_number))
        await self._zeros_file.write_zeros(offset, length)

    async def _stop_zeroing(self) -> None:
        """Write no more zeros in this file. No write of zeros is in progress on return."""
        await self._preallocation.finish_file()
        if self._zeros_file is not None:
            self._zeros_file.close()
            self._zeros_file = None

    def _initial_operations(self) -> Iterator[Any]:
        log = self._log
        yield ["begin", self._sequence + 1]
        yield ["hard", self._hard_state.term, self._hard_state.vote]
        members = log.configuration_at(log.base_index).encode()
        yield ["snapshot", log.base_index, log.base_term, members]
        for entry in self._entries():
            yield ["entry", entry.index, entry.term, entry.data]
        yield ["begun"]

    def _entries(self) -> tuple[Entry, ...]:
        return self._log.entries_from(self._log.base_index + 1)

    def _log_files(self) -> list[int]:
        return sorted(int(name[4:]) for name in self._disk.list() if _LOG_NAME.fullmatch(name))

    @contextmanager
    def _exclusive_write(self) -> Iterator[None]:
        # Two concurrent writes would overwrite each other's blocks.
        assert not self._writing, "the log is written by one task"
        self._writing = True
        try:
            yield
        finally:
            self._writing = False


def _can_continue_after(log: RaftLog, snapshot: Snapshot | None) -> bool:
    """Whether a log can continue after a snapshot, or needs none."""
    if snapshot is None:
        return log.base_index == 0
    return log.term_at(snapshot.index) == snapshot.term


_LOG_NAME = re.compile(r"log\.[0-9]{8,9}")


def _newest_before(sequence: int, valid_blocks: Sequence[blocks.Block]) -> blocks.Block:
    """Return the block with the highest sequence below this one."""
    return max((b for b in valid_blocks if b.sequence < sequence), key=lambda b: b.sequence)


def _log_name(number: int) -> str:
    return f"log.{number:08d}"
