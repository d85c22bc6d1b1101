"""Term, vote, log and snapshots on a disk."""

import base64
import gc
import random
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import trio

from distributedlog.metadata.model.commands import Transact, encode_command
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.metadata.raft.raft_messages import Entry
from distributedlog.metadata.raft.ready import HardState, RaftRole, Ready, Snapshot
from distributedlog.metadata.raft.recovered_hard_state import (
    RECOVERY_FLOOR_FILE,
    RaftEntryId,
    RecoveredHardState,
)
from distributedlog.metadata.replica.snapshot_receiver import restore
from distributedlog.metadata.state.kv_snapshot import snapshot_chunks as chunks_of
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.metadata.storage.log_replay import commit_note, commit_of_note
from distributedlog.metadata.storage.member_identity import (
    MEMBERS_FILE,
    MemberIdentity,
    load_member_identity,
    load_recovery_floor,
    new_identity,
    store_member_identity,
    store_recovery_floor,
)
from distributedlog.metadata.storage.raft_storage import (
    ZEROED_AHEAD_BYTES,
    LoadedRaftState,
    RaftStorage,
)
from distributedlog.runtime.disk import checksummed_blocks as blocks
from distributedlog.runtime.disk.memory_disk import MemoryDisk, MemoryFile
from distributedlog.runtime.disk.preallocation import STEP_BYTES
from distributedlog.runtime.interfaces.errors import CorruptData, DiskFailed
from distributedlog.runtime.interfaces.host import Disk, File

SEED = 7
MEMBERS_OF_ONE = MemberIdentity("cluster", {"m1": "id1"}, True, SEED)
MIB = 1024 * 1024


def ready(**content: Any) -> Ready:
    nothing: dict[str, Any] = {
        "ready_number": 1,
        "hard_state": None,
        "snapshot": None,
        "truncate_from": None,
        "append": (),
        "send_now": (),
        "send_after_persist": (),
        "committed": (),
        "reads": (),
        "reads_lost": (),
        "send_snapshots": (),
        "role": RaftRole.FOLLOWER,
        "term": 1,
        "leader_id": "",
        "leader_changed": False,
    }
    return Ready(**{**nothing, **content})


def entry(index: int, term: int = 1, data: bytes = b"e") -> Ready:
    return ready(append=(Entry(index, term, data),))


async def begun(disk: Disk) -> RaftStorage:
    storage = RaftStorage(disk, SEED)
    await storage.create_log()
    await store_member_identity(disk, MEMBERS_OF_ONE)
    return storage


async def started(disk: Disk) -> tuple[RaftStorage, LoadedRaftState, MemberIdentity]:
    members = await load_member_identity(disk)
    assert members is not None
    storage = RaftStorage(disk, members.seed)
    return storage, *await storage.load(members)


async def committed_on(disk: Disk) -> int:
    return (await RaftStorage(disk, SEED).inspect(MEMBERS_OF_ONE)).commit_index


def log_name(disk: Disk) -> str:
    return [name for name in disk.list() if name.startswith("log.")][-1]


async def block_offsets(disk: Disk, name: str) -> list[int]:
    file = await disk.open(name)
    content = file.read_at(0, file.size())
    file.close()
    return [b.offset for b in blocks.scan(int(name[4:]), memoryview(content), SEED)]


async def flip(disk: Disk, name: str, offset: int) -> None:
    file = await disk.open(name)
    byte = file.read_at(offset, 1)
    file.write_at(offset, [bytes([byte[0] ^ 1])])
    file.close()


async def rot(disk: Disk, block: int) -> str:
    """Flip a bit of a block, counted from the end if negative; return the file's name."""
    name = log_name(disk)
    await flip(disk, name, (await block_offsets(disk, name))[block] + blocks.HEADER_BYTES)
    return name


def cannot_read(
    monkeypatch: pytest.MonkeyPatch, disk: MemoryDisk, name: str, offset: int, length: int
) -> None:
    """The device gives nothing of these bytes of a file, whatever it is called later."""
    content, read = disk._files[name], MemoryFile.read_at

    def read_at(self: MemoryFile, at: int, size: int) -> bytes:
        if self._content is content and at < offset + length and offset < at + size:
            raise CorruptData(f"{self.name}: read error at {offset}")
        return read(self, at, size)

    monkeypatch.setattr(MemoryFile, "read_at", read_at)


def entries(loaded: LoadedRaftState) -> list[tuple[int, int, bytes]]:
    log = loaded.log
    return [(e.index, e.term, e.data) for e in log.entries_from(log.base_index + 1)]


async def snapshot_of(index: int, term: int, storage: RaftStorage) -> Snapshot:
    state = KeyValueState()
    for at in range(1, index):
        state.apply(at, b"")
    command = Transact(transaction=Transaction((), (Put(b"k", bytes(1000)),)))
    state.apply(index, encode_command(command))
    snapshot = Snapshot(index, term)
    await storage.snapshots.save(snapshot, chunks_of(state))
    return snapshot


# --- what was saved is there ----------------------------------------------------------------------


async def test_what_was_saved_is_loaded() -> None:
    """M4."""
    disk = MemoryDisk()
    storage = await begun(disk)
    first = ready(
        hard_state=HardState(3, "x"), append=tuple(Entry(i, 3, b"%d" % i) for i in (1, 2, 3))
    )
    await storage.save([first, ready(hard_state=HardState(4, ""))])
    await storage.save([ready(truncate_from=2, append=(Entry(2, 4, b"new"),))])
    _, loaded, members = await started(disk)

    assert (loaded.damage, members.may_vote) == ("", True)
    assert loaded.hard_state == HardState(4, "")
    assert entries(loaded) == [(1, 3, b"1"), (2, 4, b"new")]


async def test_a_start_writes_a_new_file_and_the_next_one_finds_the_same() -> None:
    """H4: nothing is appended after a tail that was replayed."""
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([entry(1)])
    before = log_name(disk)
    storage, loaded, _ = await started(disk)
    assert log_name(disk) != before
    assert entries(loaded) == [(1, 1, b"e")]
    await storage.save([entry(2)])
    _, loaded, _ = await started(disk)

    assert entries(loaded) == [(1, 1, b"e"), (2, 1, b"e")]


async def test_a_forming_that_was_cut_short_leaves_nothing_behind() -> None:
    disk = MemoryDisk()
    await RaftStorage(disk, 99).create_log()  # and the power went before MEMBERS was stored
    await begun(disk)
    _, loaded, _ = await started(disk)

    assert loaded.damage == ""
    assert len([name for name in disk.list() if name.startswith("log.")]) == 1


async def test_a_new_file_does_not_count_until_its_beginning_is_whole() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([entry(1, data=bytes(600_000)), entry(2, data=b"last")])
    old = log_name(disk)
    kept = await _content(disk, old)
    await started(disk)
    new = log_name(disk)
    beginning = await _content(disk, new)
    assert len(await block_offsets(disk, new)) > 1

    for cut in range(0, len(beginning), blocks.ALIGN * 16):
        crashed = MemoryDisk()
        await store_member_identity(crashed, MEMBERS_OF_ONE)
        for name, content in ((old, kept), (new, beginning[:cut])):
            file = await crashed.create(name)
            file.write_at(0, [content])
        _, loaded, _ = await started(crashed)
        assert (loaded.damage, entries(loaded)[-1]) == ("", (2, 1, b"last"))


async def _content(disk: Disk, name: str) -> bytes:
    file = await disk.open(name)
    return file.read_at(0, file.size())


# --- damage ---------------------------------------------------------------------------------------


async def test_a_torn_tail_is_cut_and_is_no_damage() -> None:
    """H3."""
    disk = MemoryDisk()
    storage = await begun(disk)
    for index in (1, 2, 3):
        await storage.save([entry(index)])
    await rot(disk, -1)
    _, loaded, members = await started(disk)

    assert (loaded.damage, members.may_vote) == ("", True)
    assert entries(loaded) == [(1, 1, b"e"), (2, 1, b"e")]


async def test_a_damaged_log_costs_the_vote_and_is_kept() -> None:
    """M4, H5."""
    disk = MemoryDisk()
    storage = await begun(disk)
    for index in (1, 2, 3):
        await storage.save([ready(hard_state=HardState(1, "x"), append=(Entry(index, 1, b"e"),))])
    name = await rot(disk, 1)
    damaged = await _content(disk, name)
    _, loaded, members = await started(disk)

    assert "were synced and are missing" in loaded.damage
    assert loaded.hard_state == HardState(1, "x")
    assert (loaded.log.last_index, loaded.recovery_floor) == (0, RaftEntryId(1, 3))
    assert not members.may_vote
    assert await load_member_identity(disk) == members == replace(MEMBERS_OF_ONE, may_vote=False)
    assert await _content(disk, f"damaged.{name}") == damaged


async def test_a_node_that_lost_its_vote_goes_on_without() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([entry(1)])
    await storage.save([entry(2)])
    await rot(disk, 1)
    storage, _, _ = await started(disk)
    await storage.save([entry(1, data=b"again")])
    _, loaded, members = await started(disk)

    assert (loaded.damage, entries(loaded)) == ("", [(1, 1, b"again")])
    assert not members.may_vote


class _Cut(Exception):
    """The power went."""


class _CutDisk(MemoryDisk):
    """Loses power before the change of a name that ``steps`` counts down to."""

    steps = 1000

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise _Cut

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        self._step()
        return await super().create(name, size=size, direct=direct)

    async def rename(self, old: str, new: str) -> None:
        self._step()
        await super().rename(old, new)

    async def delete(self, *names: str) -> None:
        for name in names:
            self._step()
            await super().delete(name)


@pytest.mark.parametrize("steps", range(9))
async def test_damage_is_remembered_wherever_the_power_goes(steps: int) -> None:
    """M4: a start that found damage and crashed must not leave a directory that looks sound."""
    disk = _CutDisk()
    storage = await begun(disk)
    for index in (1, 2, 3):
        await storage.save([entry(index)])
    await storage.snapshots.save(Snapshot(2, 1), [b"x"])
    await rot(disk, 1)
    disk.steps = steps
    with suppress(_Cut):
        await started(disk)
    disk.steps = 1000
    _, loaded, members = await started(disk)

    assert not members.may_vote
    assert loaded.log.last_index < 3
    assert loaded.recovery_floor == RaftEntryId(1, 3)


async def test_what_a_lost_block_had_cut_off_does_not_come_back() -> None:
    """H106: a leader that is back has replaced it by older entries, and has this node's word for those."""
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([ready(hard_state=HardState(3, "x")), entry(1), entry(2, 3)])
    await storage.save(
        [ready(hard_state=HardState(4, "y"), truncate_from=2, append=(Entry(2, 2, b"older"),))]
    )
    await storage.write_watermark()
    await rot(disk, -2)
    _, loaded, members = await started(disk)

    assert not members.may_vote
    assert loaded.hard_state == HardState(4, "y")
    assert loaded.recovery_floor == RaftEntryId(2, 2)
    assert (2, 3) not in [(index, term) for index, term, _ in entries(loaded)]
    assert (loaded.log.last_term, loaded.log.last_index) < loaded.recovery_floor


async def test_a_rotten_disk_whose_end_is_no_block_has_forgotten() -> None:
    """H106: what lies behind the newest sound block may have been promised, and its mark be lost too."""
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([ready(hard_state=HardState(3, "x")), entry(1)])
    await storage.save([entry(2, 3)])
    await storage.save([entry(3, 3)])
    await storage.write_watermark()
    name = log_name(disk)
    for offset in [(await block_offsets(disk, name))[at] for at in (1, 3, 4)]:
        await flip(disk, name, offset + blocks.HEADER_BYTES)
    _, loaded, members = await started(disk)

    assert loaded.damage
    assert not members.may_vote
    assert loaded.recovery_floor is None


@pytest.mark.parametrize(
    "last", [ready(hard_state=HardState(5, "x")), entry(2)], ids=["vote", "entry"]
)
async def test_rot_of_the_last_block_is_seen_once_it_is_marked(last: Ready) -> None:
    """H3: without a mark it looks like a torn tail, and the node votes in term 5 again."""
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([entry(1)])
    await storage.save([last])
    await storage.write_watermark()
    await rot(disk, -2)
    _, loaded, members = await started(disk)

    assert loaded.damage
    assert not members.may_vote


async def test_rot_of_a_mark_loses_nothing() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([entry(1)])
    await storage.write_watermark()
    await rot(disk, -1)
    _, loaded, _ = await started(disk)

    assert (loaded.damage, entries(loaded)) == ("", [(1, 1, b"e")])


async def test_a_mark_is_written_once() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.write_watermark()
    before = storage.bytes_written
    await storage.save([entry(1)])
    await storage.write_watermark()
    after = storage.bytes_written
    await storage.write_watermark()

    assert after - before == 2 * blocks.ALIGN
    assert storage.bytes_written == after
    await storage.save([entry(2)])
    _, loaded, _ = await started(disk)
    assert [index for index, _, _ in entries(loaded)] == [1, 2]


async def test_rot_of_a_beginning_is_seen() -> None:
    """A file without a whole beginning is none, and there is no other."""
    disk = MemoryDisk()
    await begun(disk)
    await rot(disk, 0)
    _, loaded, members = await started(disk)

    assert loaded.damage
    assert not members.may_vote


async def test_what_was_promised_before_another_rot_is_promised_still() -> None:
    """H106: a log that is being filled up rots again; its newest blocks tell of less than there ever was."""
    disk = MemoryDisk()
    storage = await begun(disk)
    for index in range(1, 21):
        await storage.save([entry(index)])
    await storage.write_watermark()
    await rot(disk, 3)
    storage, loaded, _ = await started(disk)
    assert loaded.recovery_floor == RaftEntryId(1, 20)
    for index in range(loaded.log.last_index + 1, 10):
        await storage.save([entry(index)])
    await storage.write_watermark()
    await rot(disk, -4)

    _, loaded, members = await started(disk)

    assert loaded.damage
    assert not members.may_vote
    assert loaded.recovery_floor == RaftEntryId(1, 20)


@pytest.mark.parametrize("where", ["beginning", "middle", "newest", "after the end", "all"])
async def test_what_the_device_cannot_read_of_a_log_costs_the_vote(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4, H106: as if it had rotted; what comes last is known only where nothing unread may come after it."""
    disk = MemoryDisk()
    storage = await begun(disk)
    for index in range(1, 61):
        await storage.save([entry(index, data=bytes(3500))])
    await storage.write_watermark()
    name = log_name(disk)
    offsets = await block_offsets(disk, name)
    file = await disk.open(name)
    file.write_at(file.size(), [bytes(ZEROED_AHEAD_BYTES)])  # as it has them ahead of its end
    file.close()
    bad = {"beginning": 0, "middle": offsets[30], "newest": offsets[-1]}.get(
        where, offsets[-1] + MIB // 4
    )
    cannot_read(monkeypatch, disk, name, 0 if where == "all" else bad, MIB if where == "all" else 1)

    _, loaded, members = await started(disk)

    assert "is partly unreadable" in loaded.damage
    assert not members.may_vote
    assert f"damaged.{name}" in disk.list()
    assert loaded.recovery_floor == (
        RaftEntryId(1, 60) if where in ("beginning", "middle") else None
    )
    assert len(entries(loaded)) in {"middle": range(10, 31)}.get(where, range(1))
    _, again, members = await started(disk)
    assert not again.damage
    assert not members.may_vote


async def test_a_ghost_and_a_snapshot_that_cannot_be_read_are_damaged_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([ready(append=(Entry(1, 1, b"e"), Entry(2, 1, b"e")))])
    snapshot = await snapshot_of(1, 1, storage)
    await store_recovery_floor(disk, RecoveredHardState(HardState(1), RaftEntryId(1, 2)))
    for name in disk.list():
        if name == RECOVERY_FLOOR_FILE or name.startswith("snapshot."):
            cannot_read(monkeypatch, disk, name, 0, 1)

    assert await load_recovery_floor(disk) is None
    assert not await storage.snapshots.is_sound(snapshot)
    open_file = disk.open

    async def fails(name: str) -> MemoryFile:
        raise DiskFailed(f"{name}: the file system says that it is damaged")

    disk.open = fails  # type: ignore[method-assign]
    assert await load_recovery_floor(disk) is None
    assert not await storage.snapshots.is_sound(snapshot)
    disk.open = open_file  # type: ignore[method-assign]


async def test_members_that_are_damaged_are_no_members() -> None:
    disk = MemoryDisk()
    await begun(disk)
    await flip(disk, MEMBERS_FILE, 12)
    with pytest.raises(CorruptData):
        await load_member_identity(disk)


async def test_an_empty_directory_has_no_members() -> None:
    """H5."""
    assert await load_member_identity(MemoryDisk()) is None


# --- snapshots ------------------------------------------------------------------------------------


async def test_a_log_begins_after_a_snapshot() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([ready(append=tuple(Entry(i, 1, b"e") for i in range(1, 6)))])
    snapshot = await snapshot_of(3, 1, storage)
    await storage.compact(snapshot)
    storage, loaded, _ = await started(disk)

    assert (loaded.damage, loaded.snapshot) == ("", snapshot)
    assert (loaded.log.base_index, loaded.log.base_term) == (3, 1)
    assert [index for index, _, _ in entries(loaded)] == [4, 5]
    state, _ = await restore(storage.snapshots.chunks(snapshot))
    assert (state.index, state.revision) == (3, 1)


async def test_a_snapshot_that_is_restored_keeps_nothing_of_a_program_for_ever() -> None:
    storage = await begun(MemoryDisk())
    await storage.save([ready(append=tuple(Entry(i, 1, b"e") for i in range(1, 6)))])
    snapshot = await snapshot_of(3, 1, storage)
    frozen = gc.get_freeze_count()

    await restore(storage.snapshots.chunks(snapshot))

    assert gc.get_freeze_count() == frozen


async def test_a_snapshot_that_was_not_compacted_to_counts_with_the_log_it_lies_in() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([ready(append=tuple(Entry(i, 1, b"e") for i in range(1, 6)))])
    snapshot = await snapshot_of(3, 1, storage)
    _, loaded, _ = await started(disk)

    assert loaded.snapshot == snapshot
    assert loaded.log.base_index == 0


async def received(disk: Disk, snapshot: Snapshot, storage: RaftStorage) -> None:
    leader = await begun(MemoryDisk())
    await snapshot_of(snapshot.index, snapshot.term, leader)
    file, source = await storage.snapshots.create_received(), await leader.snapshots.open(snapshot)
    file.write_at(0, [source.read_at(0, source.size())])
    await storage.snapshots.commit_received(snapshot, file)


@pytest.mark.parametrize("index", [2, 10], ids=["another term", "after the end"])
async def test_a_received_snapshot_whose_ready_was_not_saved_does_not_count(index: int) -> None:
    """ready.py: the log and it do not fit together."""
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([ready(append=tuple(Entry(i, 1, b"e") for i in (1, 2, 3)))])
    await received(disk, Snapshot(index, 2), storage)
    _, loaded, _ = await started(disk)

    assert (loaded.damage, loaded.snapshot) == ("", None)
    assert [index for index, _, _ in entries(loaded)] == [1, 2, 3]
    assert not [name for name in disk.list() if name.startswith("snapshot.")]


async def test_a_received_snapshot_counts_when_its_ready_is_saved() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([entry(1)])
    snapshot = Snapshot(10, 2)
    await received(disk, snapshot, storage)
    await storage.save([ready(snapshot=snapshot, append=(Entry(11, 2, b"next"),))])
    _, loaded, _ = await started(disk)

    assert (loaded.damage, loaded.snapshot) == ("", snapshot)
    assert loaded.log.base_index == 10
    assert entries(loaded) == [(11, 2, b"next")]


async def test_a_snapshot_that_was_damaged_on_its_way_is_not_kept() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    file = await storage.snapshots.create_received()
    file.write_at(0, [bytes(100)])
    with pytest.raises(CorruptData):
        await storage.snapshots.commit_received(Snapshot(10, 2), file)
    assert not [name for name in disk.list() if name.startswith("snapshot.")]


async def test_a_damaged_snapshot_that_the_log_needs_costs_the_vote() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([ready(append=(Entry(1, 1, b"e"), Entry(2, 1, b"e")))])
    await storage.compact(await snapshot_of(1, 1, storage))
    name = next(name for name in disk.list() if name.startswith("snapshot."))
    await flip(disk, name, 100)
    _, loaded, members = await started(disk)

    assert "snapshot" in loaded.damage
    assert not members.may_vote
    assert f"damaged.{name}" in disk.list()


async def test_a_damaged_snapshot_that_the_log_does_not_need_is_set_aside() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([ready(append=tuple(Entry(i, 1, b"e") for i in range(1, 6)))])
    needed = await snapshot_of(2, 1, storage)
    await storage.compact(needed)
    await snapshot_of(4, 1, storage)
    name = [name for name in disk.list() if name.startswith("snapshot.")][-1]
    await flip(disk, name, 100)
    _, loaded, members = await started(disk)

    assert (loaded.damage, loaded.snapshot, members.may_vote) == ("", needed, True)
    assert f"damaged.{name}" in disk.list()


# --- cost -----------------------------------------------------------------------------------------


async def test_a_small_save_stays_small_however_long_the_log_is() -> None:
    """Nothing but a snapshot, or a start, has the log written anew."""
    disk = MemoryDisk()
    storage = await begun(disk)
    count = 24
    for index in range(1, count):
        await storage.save([entry(index, data=bytes(MIB))])
        assert storage.bytes_written < (index + 1) * (MIB + 2 * blocks.ALIGN)
    storage, _, _ = await started(disk)
    before = storage.bytes_written
    for index in range(count, count + 3):
        await storage.save([entry(index)])

    assert storage.bytes_written - before == 3 * blocks.ALIGN


async def test_a_snapshot_has_only_what_came_after_it_written_again() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    for index in range(1, 5):
        await storage.save([entry(index, data=bytes(MIB))])
    snapshot = await snapshot_of(4, 1, storage)
    await storage.save([entry(5)])
    old, before = log_name(disk), storage.bytes_written
    await storage.compact(snapshot)

    assert storage.bytes_written - before == storage.log_bytes == blocks.ALIGN
    assert old not in disk.list()
    _, loaded, _ = await started(disk)
    assert (loaded.damage, loaded.log.base_index) == ("", 4)
    assert [index for index, _, _ in entries(loaded)] == [5]


class _SlowDisk(MemoryDisk):
    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        await trio.sleep(1)
        return await super().create(name, size=size, direct=direct)


async def test_two_tasks_that_write_the_log_are_a_fault(autojump_clock: object) -> None:
    storage = await begun(_SlowDisk())
    await storage.save([entry(1)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.compact, Snapshot(1, 1))
        await trio.sleep(0.5)
        with pytest.raises(AssertionError, match="one task"):
            await storage.save([entry(2)])


def test_new_members_have_a_seed_of_their_own() -> None:
    """H4: another disk's blocks are none here."""
    one = new_identity("c", {"m1": "id1"}, random.Random(1))
    other = new_identity("c", {"m1": "id1"}, random.Random(2))

    assert one.may_vote
    assert one.seed != other.seed


# --- zeros ahead ----------------------------------------------------------------------------------


async def test_zeros_lie_ahead_of_the_log_and_are_no_part_of_it(autojump_clock: object) -> None:
    """H32: most syncs make the file no longer; a start finds all entries, and no damage in the zeros."""
    disk = MemoryDisk()
    storage = await begun(disk)
    grew = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.zero_ahead)
        file = await disk.open(log_name(disk))
        for index in range(1, 301):
            size = file.size()
            await storage.save([entry(index)])
            grew += file.size() > size and storage.log_bytes > size
            await trio.sleep(0.002)
        nursery.cancel_scope.cancel()

    assert grew <= 1  # the first one, before any zeros
    assert storage.log_bytes < file.size() <= storage.log_bytes + ZEROED_AHEAD_BYTES + STEP_BYTES
    file.close()
    _, loaded, _ = await started(disk)
    assert loaded.damage == ""
    assert [index for index, _, _ in entries(loaded)] == list(range(1, 301))


async def test_the_loss_of_a_durable_block_is_seen_though_zeros_follow(
    autojump_clock: object,
) -> None:
    """M4, H3: a block that became zeros is missing by its sequence, however the file goes on."""
    disk = MemoryDisk()
    storage = await begun(disk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.zero_ahead)
        for index in range(1, 6):
            await storage.save([entry(index)])
            await trio.sleep(0.05)
        await storage.write_watermark()
        nursery.cancel_scope.cancel()
    name = log_name(disk)
    file = await disk.open(name)
    file.write_at((await block_offsets(disk, name))[-2], [bytes(4096)])  # the entry before the mark
    file.close()

    _, loaded, members = await started(disk)

    assert "are missing" in loaded.damage
    assert not members.may_vote


async def test_no_room_for_zeros_is_no_failure_of_the_log(autojump_clock: object) -> None:
    """Nobody is told that the disk is full as long as the entries themselves find room."""
    disk = MemoryDisk(bytes_max=200 * 1024)
    storage = await begun(disk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.zero_ahead)
        for index in range(1, 31):
            await storage.save([entry(index)])
            await trio.sleep(0.02)
        nursery.cancel_scope.cancel()

    _, loaded, _ = await started(disk)
    assert [index for index, _, _ in entries(loaded)] == list(range(1, 31))


# --- what programs wrote before a block began with the vote, and a mark ended with the last entry -----

OLD_MEMBERS = "c-m8c<s{ZKH6my#<MQO3(&CcTqQ*tJhKn;(3=gvd0I4zypa"
OLD_LOG = (
    "c-rmRF-yZh7{>9tG%5}S2T^cz5<xmUM5MUsBre6N(rE1vrLAJ{19UV^vkDe0^aEHBDS}XNQE=@hxCw&02$D8|;~=vs{C~^6c"
    "Vx=;yw9QcX_a2Sds{pCZ7HM>b3&{N5l$oVDYSdwcMj~MV@I}b%f)I*+yvd4Q#`GePwGMp%qL%Z&G3seM*si-004l0cGp{ZxP"
    "J7{)%?G#<a|TR{qflv=YH9~2s*Y?uewqWq#eyhIP-4-00000NQ*+_%Uk~_{EYLzG0OjH&d((50RR91006+`c)!mMXDdrNwf|"
    "pGa=xkU0pfRm-2WSGH|qQ|2Aw|u00000DK&h{TUNi)Nb3Kmv^@a*KL7v#005Kc_44<5<7&-S`~R$x^QW~vK>Xf}YJZd39{>O"
    "V0D#o%=Qj7|_ZN4Q`u`bi4<P>ld>d12"
)


async def written_before() -> MemoryDisk:
    """Term 1 with entries 1 and 2, a mark, term 2 with entry 3, a mark, entry 4, a mark."""
    disk = MemoryDisk()
    for name, packed in ((MEMBERS_FILE, OLD_MEMBERS), ("log.00000001", OLD_LOG)):
        content = zlib.decompress(base64.b85decode(packed))
        file = await disk.create(name)
        if name != MEMBERS_FILE:
            content += bytes(-len(content) % blocks.ALIGN)
        await file.write_synced(0, content)
        file.close()
    return disk


async def test_a_directory_of_before_is_read() -> None:
    _, loaded, members = await started(await written_before())

    assert members == MEMBERS_OF_ONE
    assert (loaded.damage, loaded.recovery_floor, loaded.hard_state) == (
        "",
        None,
        HardState(2, "y"),
    )
    assert entries(loaded) == [(1, 1, b"e"), (2, 1, b"e"), (3, 2, b"e"), (4, 2, b"e")]


async def test_a_rotten_directory_of_before_knows_its_word_where_the_newest_blocks_say_it() -> None:
    disk = await written_before()
    await rot(disk, 1)
    _, loaded, members = await started(disk)

    assert not members.may_vote
    assert (loaded.hard_state, loaded.recovery_floor) == (HardState(2, "y"), RaftEntryId(2, 4))


async def test_a_rotten_directory_of_before_has_forgotten_where_they_say_only_a_part() -> None:
    """The entry of the newest block is known, the vote that was lost before it is not."""
    disk = await written_before()
    await rot(disk, 3)
    _, loaded, members = await started(disk)

    assert not members.may_vote
    assert (loaded.hard_state, loaded.recovery_floor, loaded.log.last_index) == (
        HardState(),
        None,
        0,
    )


# --- what is known to be committed ----------------------------------------------------------------


async def test_the_commit_is_stored_with_whatever_is_written_and_costs_no_sync() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([entry(1), entry(2)])
    syncs = storage.syncs
    await storage.save([replace(entry(3), commit=2)])
    assert storage.syncs == syncs + 1
    assert await committed_on(disk) == 2
    await storage.save([replace(ready(hard_state=HardState(7, "x")), commit=3)])
    _, loaded, _ = await started(disk)
    assert loaded.commit_index == 3
    _, again, _ = await started(disk)
    assert again.commit_index == 3, "a start writes it into its new file"


async def test_the_mark_of_an_idle_log_stores_the_commit() -> None:
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([entry(1), entry(2), entry(3)])
    await storage.write_watermark(3)
    assert await committed_on(disk) == 3


async def test_a_commit_above_the_log_counts_as_far_as_the_log_goes() -> None:
    """A follower hears of a commit before the entries have come."""
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([replace(entry(1), commit=9), replace(entry(2), commit=1)])
    assert await committed_on(disk) == 2
    long = tuple(Entry(n, 1, bytes(200_000)) for n in range(3, 9))
    await storage.save([ready(append=long, commit=5)])
    assert await committed_on(disk) == 8, "the commit of before"


async def test_a_damaged_log_still_says_what_was_committed() -> None:
    """The ghost keeps what was promised; the commit is kept beside it."""
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([ready(hard_state=HardState(3, "x")), entry(1)])
    await storage.save([replace(entry(2, 3), commit=1)])
    await storage.save([replace(entry(3, 3), commit=2)])
    await storage.write_watermark(3)
    await rot(disk, -3)
    _, loaded, members = await started(disk)
    assert (members.may_vote, loaded.recovery_floor) == (False, RaftEntryId(3, 3))
    assert loaded.log.last_index < 2
    assert loaded.commit_index == 3


async def test_a_lost_truncation_makes_no_commit() -> None:
    """Where the log ends after a lost block is not known: no note is read from there on."""
    disk = MemoryDisk()
    storage = await begun(disk)
    await storage.save([entry(1), entry(2), entry(3), entry(4)])
    await storage.save([ready(truncate_from=2, append=(Entry(2, 2, b"n"),), commit=1)])
    await storage.save([replace(ready(hard_state=HardState(3, "y")), commit=2)])
    await rot(disk, -2)
    _, loaded, _ = await started(disk)
    assert loaded.commit_index == 0


async def test_a_log_of_before_notes_no_commit() -> None:
    """Its blocks have 0 where the note is."""
    assert [commit_of_note(9, commit_note(9, commit)) for commit in (0, 1, 8, 9, 12)] == [
        0,
        1,
        8,
        9,
        9,
    ]
    assert commit_of_note(9, 0) == 0
    assert commit_note(1 << 40, 1) == 0, "too far back for the note"
