"""A metadata node's disk: term, vote and log as checksummed blocks in one file at a time.

A log file ends in zeros, written ahead: what is no block is the end, or a write that was never finished.
Each begins with the whole state as it was when the file was made, so that a start never appends
after a tail that it replayed (H4): it writes what it found into a new file, syncs that, deletes the old one,
and only then goes on. A snapshot has it done, too, with what came after that, which is little: one is taken
seldom (`replica.py`). Within a file a torn tail and a lost block are told apart by `blocks.judge`.

    MEMBERS         who votes, and the seed of this disk's blocks (`member_identity.py`)
    log.00000007    blocks of operations: hard state, entries, truncations, snapshots; and marks
    snapshot.*      the state, up to some index (`snapshot_store.py`)
    damaged.*       what could not be believed, kept for whoever wants to look; nothing reads it

A node whose log or vote is damaged loses its right to vote, durably, before anything else is touched (M4).
What its newest blocks say of its promises is kept beside (GHOST), with the sound beginning of its log
(`recovered_hard_state.py`).

A full disk ends nothing. What could not be written is kept and written when there is room, and nobody is told
before; a new log file that there is no room for is not begun, the old one is gone on with. A start on a full
disk goes on with the file it replayed, too: it cuts off the tail that it did not believe, and writes the rest
over itself, so that nothing counts that only the page cache had.

The header of each block also contains the last entry that is known to be committed
(`log_operations.commit_note`). A node whose leader would replace such an entry ends (`ready.Diverged`).

What a mark is for: the last synced block has no successor, so that its rot looks like a torn tail. A small
block after it, written when the log has been idle for about 20 ms, names it as durable, and says the vote and
the last entry once more. What remains: rot of
the newest block (a vote or acknowledged entries) before its mark, that is a power cut and a damaged sector
within the same 20 ms. Nothing on this disk can tell that from a write that was never finished.
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
"""Where there was no room for a new file, it is tried again after so much more."""
WRITE_BYTES = 2 * 1024 * 1024
"""A long beginning is written in pieces of about this size, one a turn."""
ZEROED_AHEAD_BYTES = 512 * 1024
"""So far ahead of its end a log file has zeros, which are no blocks: a sync that makes no file longer is
cheaper by a half."""
KIND_OPERATIONS = 1
KIND_WATERMARK = 2
DAMAGED_PREFIX = "damaged."


class _BlockContent(NamedTuple):
    """One block, not sealed yet."""

    kind: int
    payload: bytes
    last_index: int
    """The last entry of the log after it."""


@dataclass(slots=True)
class LoadedRaftState:
    """What a start found."""

    hard_state: HardState
    log: RaftLog
    snapshot: Snapshot | None
    """The newest that the log vouches for."""
    damage: str
    """What was found damaged now; "" if nothing."""
    recovery_floor: RaftEntryId | None = None
    """The last entry that there ever was, where the log is less than that: `recovered_hard_state.py`. Without
    it, a node that may not vote does not know what it has promised: its log is empty, and so is the vote."""
    commit_index: int = 0
    """The last entry that is known to be committed, or 0. A damaged log may end before it."""


async def remove_leftovers(disk: Disk) -> None:
    """Remove what was being written when a node ended: it is nothing, and may be all the room there is."""
    await disk.delete(*(name for name in disk.list() if name.endswith(TEMPORARY_SUFFIX)))


class RaftStorage:
    """Term, vote, log and snapshots of one node.

    `save`, `compact` and `write_watermark` are one task's; the snapshot calls may come from others.
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
        """A new file that there was no room for is tried again when this one is so long."""
        self._sequence = 0
        self._durable_to = 0
        self._watermarked_to = 0
        """The block of this sequence is the last one, and its rot would lose nothing."""
        self._start_count = 0
        self._replayed_end = 0, 0
        """Bytes and last sequence of the file that a start took its state from; no more of it is believed."""
        self._preallocation = Preallocation(ZEROED_AHEAD_BYTES, seed)
        self._zeros_file: File | None = None
        self.zeroing_allowed = True
        """There is room for zeros."""
        self._pending_operations: list[Any] = []
        """Operations that a full disk did not take."""
        self._hard_state = HardState()
        self._log = RaftLog()
        """The durable log: what a new file begins with."""
        self._written_index = 0
        """The last entry in the blocks that were written."""
        self._commit_index = 0
        """The last entry that is known to be committed, which the note of each block stores."""
        self._recovered_state: RecoveredHardState | None = None
        """What the newest blocks say of what was promised, where that is certain."""
        self._sound_prefix: RaftLog | None = None
        """The sound beginning of a log that is damaged."""
        self._damaged_logs: frozenset[int] = frozenset()
        """Files that are put aside, not deleted, once a new one has been begun: no crash leaves none."""

    @property
    def log_bytes(self) -> int:
        """The size of the log file."""
        return self._offset

    # --- a start ----------------------------------------------------------------------------------

    async def create_log(
        self,
        founders: Configuration = UNKNOWN_CONFIGURATION,
        *,
        base_snapshot: Snapshot | None = None,
    ) -> None:
        """The first log file of a node that joins a cluster; before MEMBERS is stored.

        ``founding``: the members, where the cluster forms; UNKNOWN for a node that is let in later.
        ``after``: a snapshot that is durable here, and that this cluster goes on from
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
            await self._begin_file()  # also deletes those of a start that did not get to MEMBERS

    async def load(self, members: MemberIdentity) -> tuple[LoadedRaftState, MemberIdentity]:
        """Replay, then begin a new file with what was found; durable when this returns.

        Where there is damage, the right to vote is given up first: the members that are returned, which
        are stored already; then the ghost. Raises `UnsupportedFormat`.
        """
        damage, snapshot = await self._replay_and_check(members)
        if damage:
            if members.may_vote:
                members = replace(members, may_vote=False)
                await store_member_identity(
                    self._disk, members
                )  # a crash from here on finds it said
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
        """Keep what is sound and put the rest aside; return the snapshot that it begins after, if any.

        A snapshot is of committed entries, whoever it came from: any sound one will do.
        """
        recovered, prefix, snapshot = self._recovered_state, self._sound_prefix, None
        stored_state = await load_recovery_floor(self._disk)
        if recovered is None:
            # What was promised since is not known; where there is no log at all, either: it may have voted.
            await remove_recovery_floor(self._disk)
        else:
            if (
                prefix is not None
                and RaftEntryId(prefix.last_term, prefix.last_index) > recovered.last
            ):
                prefix = (
                    None  # a lost block has cut off what it ends in: it is not what was promised
                )
            if stored_state is not None:
                recovered = recovered._replace(last=max(recovered.last, stored_state.last))
            await store_recovery_floor(self._disk, recovered)
            for candidate, _ in reversed(self.snapshots.list()):
                if await self.snapshots.is_sound(candidate):
                    snapshot = await self._with_configuration(candidate)
                    break
        self._hard_state = recovered.hard_state if recovered is not None else HardState()
        # Of one that was let in, the entry that did so names the members.
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
        """The ghost of a node that may not vote by its own log alone; its vote, if it is kept with that."""
        recovered = await load_recovery_floor(self._disk)
        if members.may_vote or recovered is None:
            await remove_recovery_floor(self._disk)  # one that is damaged tells nothing
            return None
        if recovered.hard_state.term >= self._hard_state.term:
            voted = self._hard_state.term == recovered.hard_state.term and self._hard_state.vote
            self._hard_state = self._hard_state if voted else recovered.hard_state
        return recovered.last

    async def store_recovered_state(self, recovered: RecoveredHardState) -> RecoveredHardState:
        """What this node may have promised, as the other voters say: durable when this returns.

        Returned with the own term and vote where those are later than all others know of.
        """
        if self._hard_state.term > recovered.hard_state.term:
            recovered = recovered._replace(hard_state=self._hard_state)
        await store_recovery_floor(self._disk, recovered)
        self._hard_state = recovered.hard_state
        with self._exclusive_write():
            await self._begin_file()
        return recovered

    async def clear_recovery_floor(self, members: MemberIdentity) -> MemberIdentity:
        """The log is no less than it ever was: it counts by itself again. Durable when this returns."""
        members = replace(members, may_vote=True)
        await store_member_identity(self._disk, members)
        await remove_recovery_floor(self._disk)
        return members

    async def inspect(self, members: MemberIdentity) -> LoadedRaftState:
        """What `load` would find; nothing is changed. For who only reads. Raises `UnsupportedFormat`."""
        damage, snapshot = await self._replay_and_check(members)
        return LoadedRaftState(
            self._hard_state, self._log, snapshot, damage, commit_index=self._commit_index
        )

    async def _replay_and_check(self, members: MemberIdentity) -> tuple[str, Snapshot | None]:
        """Replay; return the damage, "" if there is none, and the newest snapshot that counts."""
        damage = await self._replay_newest(members.founders)
        snapshot = await self._newest_snapshot()
        base = self._log.base_index
        if not damage and base and (snapshot is None or snapshot.index < base):
            damage = f"the snapshot that the log begins after (index {base}) is missing or damaged"
        return damage, snapshot

    async def _replay_newest(self, founding: Configuration) -> str:
        """Take the state of the newest file that was begun whole; return its damage, "" if none."""
        numbers = self._log_files()
        self._file_number = max(numbers, default=0)
        for number in reversed(numbers):
            damage = await self._replay(number, founding)
            if damage is not None:
                return damage
            # Its beginning was never finished: the file before it still is the truth.
        return f"no whole log file among {len(numbers)}"

    async def _replay(self, number: int, founding: Configuration) -> str | None:
        """Take a file's state; return its damage, or None if its beginning is not whole."""
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
        lost_from = scan_result.corrupt[0][0] if scan_result.corrupt else scan_result.tail_from
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
                lost_from = first_sequence  # without its beginning the file has only last words
        is_begun = replay.first_sequence == first_sequence and replay.has_complete_beginning
        beginning_synced = any(first_sequence <= block.durable_to for block in valid_blocks)
        if read_error or scan_result.corrupt or (beginning_synced and not is_begun):
            newest = _newest_before(scan_result.tail_from, valid_blocks)
            end = newest.offset + newest.padded_length
            # On a disk that rots, what lies behind may have been more than a write that was never finished.
            if unreadable_end <= end and not data[end:].strip(b"\0"):
                self._recovered_state = scanner.recovered_state()
            self._sound_prefix = replay.log if replay.first_sequence == first_sequence else None
            lost_ranges = scan_result.corrupt or "of its beginning"
            return read_error or f"{name}: blocks {lost_ranges} were synced and are gone"
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
        """A log file; what of it cannot be read is zeros, why in words, and where the last of it ends.

        Raises `TooBusy` for a lack of descriptors.
        """
        why, unread_to = "", 0

        def on_unreadable(error: CorruptData, end: int) -> None:
            nonlocal why, unread_to
            why, unread_to = why or f"{name} cannot be read everywhere: {error}", end

        try:
            file = await self._disk.open(name)
        except (
            FileNotFoundError,
            DiskFailed,
        ) as error:  # nothing was written: it is this file alone
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
        """Make what was replayed durable where it is, and the end of the file: see the module."""
        name = _log_name(self._file_number)
        size, self._sequence = self._replayed_end
        for number in self._log_files():
            if number > self._file_number:
                await self._disk.delete(_log_name(number))  # never begun whole
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
        """The newest sound one that the log begins after, or holds the last entry of.

        Any other was received from a leader whose Ready was never made durable: it does not count, the
        log and it do not fit together (`ready.py`).
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
                await self._disk.delete(name)  # outdated, or does not count
            elif snapshot != newest:
                await self._quarantine([name])  # newer, and damaged

    async def _quarantine(self, names: Iterable[str]) -> None:
        """Give files names under which nobody takes them for good."""
        for name in names:
            aside = DAMAGED_PREFIX + name
            while aside in self._disk.list():
                aside += ".again"
            await self._disk.rename(name, aside)

    # --- the log ----------------------------------------------------------------------------------

    async def save(self, readies: Sequence[Ready]) -> None:
        """Make durable what these Readys ask for, in order, with one sync.

        Raises `DiskFull`: nothing counts yet, and the next call writes it with what it brings.
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
        """Forget the log up to a snapshot that is durable here, and older snapshots."""
        with self._exclusive_write():
            if snapshot.index > self._log.base_index:
                self._log.compact(snapshot.index)
                if not await self._try_new_file():
                    # Of the snapshots the log that stays needs none but this one, whose end it holds.
                    await self.snapshots.delete_before(snapshot.index)
                    await self._try_new_file()
        await self.snapshots.delete_before(snapshot.index)

    async def write_watermark(self, commit: int = 0) -> None:
        """Name the newest block as durable in a small one after it; nothing where that is done.

        ``commit``: the last entry that is known to be committed.
        Called when there was nothing to save for about 20 ms; the module has the reason.
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
                return  # what it would have said holds all the same
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
        # Entries that a snapshot of ours has overtaken meanwhile are no news.
        new_entries = [entry for entry in ready.append if entry.index > self._log.last_index]
        self._log.append(new_entries)
        for entry in new_entries:
            yield ["entry", entry.index, entry.term, entry.data]

    async def _append(self, operations: Iterable[Any]) -> None:
        # Each block begins with term and vote: whichever is lost, the newest says them.
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
        """Seal and write blocks one after another, and sync once. Raises `DiskFull`: as if not called."""
        position_before = self._offset, self._sequence
        try:
            await self._write_blocks(contents)
        except DiskFull:
            self._offset, self._sequence = position_before
            await self._reopen_file()
            raise

    async def _reopen_file(self) -> None:
        """A file that failed once stays failed: take another handle, and cut off what was begun."""
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
        """Write the whole state into a new file, then delete the old one, or put it aside if it is damaged.

        Rot of its beginning never looks like a torn tail: a file without a whole beginning is none.
        Raises `DiskFull`: the old file stays, and is written on.
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
        self._pending_operations = []  # the state that was written holds it
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
        """Write zeros after the log's end as it grows, until cancelled. Raises `DiskFailed`."""
        while True:
            try:
                await self._preallocation.run()
            except (DiskFull, TooBusy):
                await self._stop_zeroing()  # the next file has some again, if there is room

    async def _write_zeros(self, offset: int, length: int) -> None:
        """By a handle of its own: where there is no room for zeros, the log itself has not failed."""
        if self._zeros_file is None:
            self._zeros_file = await self._disk.open(_log_name(self._file_number))
        await self._zeros_file.write_zeros(offset, length)

    async def _stop_zeroing(self) -> None:
        """No more zeros in this file; nothing of it is being zeroed when this returns."""
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
        # Two at once would write blocks over each other and sync neither.
        assert not self._writing, "the log is written by one task"
        self._writing = True
        try:
            yield
        finally:
            self._writing = False


def _can_continue_after(log: RaftLog, snapshot: Snapshot | None) -> bool:
    """Whether a log can be gone on with after a snapshot, or needs none."""
    if snapshot is None:
        return log.base_index == 0
    return log.term_at(snapshot.index) == snapshot.term


_LOG_NAME = re.compile(r"log\.[0-9]{8,9}")


def _newest_before(sequence: int, valid_blocks: Sequence[blocks.Block]) -> blocks.Block:
    """Return the block with the highest sequence below this one."""
    return max((b for b in valid_blocks if b.sequence < sequence), key=lambda b: b.sequence)


def _log_name(number: int) -> str:
    return f"log.{number:08d}"
