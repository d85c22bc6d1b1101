"""Saves of the metadata, and clusters that begin anew from one: nothing is given out twice (H104)."""

import random
from dataclasses import replace

import pytest
import trio

from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.command_results import CommandResult
from distributedlog.metadata.model.commands import GrantLease, Transact, encode_command
from distributedlog.metadata.model.configuration import UNKNOWN_CONFIGURATION
from distributedlog.metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from distributedlog.metadata.node import force_new_cluster as refounding
from distributedlog.metadata.node.force_new_cluster import (
    INDEXES_AHEAD,
    VERSIONS_AHEAD,
    LoadedBackup,
    advance_state,
    force_new_cluster,
    iter_items,
    read_backup,
    read_node_disk,
    write_backup,
)
from distributedlog.metadata.protocol.client_messages import MembersRequest
from distributedlog.metadata.replica.snapshot_receiver import restore
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.metadata.storage.backup_format import (
    BackupHeader,
    BackupTransfer,
    backup_chunks,
)
from distributedlog.metadata.storage.snapshot_store import SnapshotStore
from distributedlog.runtime.disk.atomic_file import TEMPORARY_SUFFIX
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    Compacted,
    CorruptData,
    ForeignData,
    InvalidRequest,
    LeaseExpired,
    OutcomeUnknown,
)
from tests.examples import few
from tests.metadata.quorum import filled_quorum, put, quorum
from tests.metadata.test_metadata_members import until_voters

FILE = "m.save"


def unchanged(item: KeyValue) -> bytes:
    return item.value


async def _save(client: MetadataClient, disk: MemoryDisk) -> int:
    """Write a save of the cluster to `FILE`; its size in bytes."""
    file, size = await disk.create(FILE), 0

    async def write(data: bytes) -> None:
        nonlocal size
        file.write_at(size, [data])
        size += len(data)

    await write_backup(write, client.save())
    await file.sync()
    return size


async def _saved(client: MetadataClient) -> LoadedBackup:
    disk = MemoryDisk()
    await _save(client, disk)
    return await read_backup(disk, FILE)


async def _founder(saved: LoadedBackup, name: str, **added: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    state = advance_state(saved.state, unchanged, {k.encode(): v for k, v in added.items()})
    chance = random.Random(5)
    await force_new_cluster(disk, saved.head, state, name=name, address=f"{name}:4181", rng=chance)
    return disk


async def test_a_save_is_one_moment_while_everything_goes_on() -> None:
    """Two keys that are always put together are never seen apart, and nothing of before is missing."""
    async with filled_quorum() as (_, client):
        over = trio.Event()

        async def write() -> None:
            n = 0
            while not over.is_set():
                n += 1
                both = (Put(b"a", b"%d" % n), Put(b"z", b"%d" % n))
                await client.transact(Transaction((), both))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            saves = [await _saved(client) for _ in range(5)]
            over.set()

        for saved in saves:
            one, other = saved.state.get(b"a"), saved.state.get(b"z")
            assert (one and one.value) == (other and other.value)
            assert saved.state.get(b"k19") is not None
        assert saves[0].head.index < saves[-1].head.index
        assert len(saves[0].head.members.voters) == 3


async def test_a_save_ends_with_its_connection_and_says_so() -> None:
    async with filled_quorum() as (nodes, client):
        chunks = client.save()
        await anext(chunks)
        leader = await nodes.leader()

        await nodes.kill(leader)

        with pytest.raises(InvalidRequest, match="the backup again"):
            async for _ in chunks:
                pass


@pytest.mark.parametrize("place", few([0, 300, 5, 40, -1, -9], 2))
async def test_a_damaged_save_is_refused(place: int) -> None:
    async with filled_quorum() as (_, client):
        disk = MemoryDisk()
        await _save(client, disk)
    file = await disk.open(FILE)
    content = bytearray(await file.read_in_worker(0, file.size()))
    content[place] ^= 0x40
    await disk.delete(FILE)
    await (await disk.create(FILE)).write_synced(0, bytes(content))

    with pytest.raises(CorruptData):
        await read_backup(disk, FILE)


async def test_a_save_without_its_end_is_refused() -> None:
    async with filled_quorum() as (_, client):
        disk = MemoryDisk()
        size = await _save(client, disk)
    file = await disk.open(FILE)
    for length in (0, 11, size // 2, size - 12, size - 1):
        content = await file.read_in_worker(0, length)
        await (await disk.create(f"cut{length}")).write_synced(0, content or b"\0")

        with pytest.raises(CorruptData):
            await read_backup(disk, f"cut{length}")


async def test_a_cluster_goes_on_from_a_save_and_lets_others_in() -> None:
    async with filled_quorum() as (nodes, client):
        saved = await _saved(client)
        await client.transact(put(b"later", b"lost"))
        await nodes.kill()
    async with quorum(3, seed=2) as nodes:
        nodes.disks["m1"] = await _founder(saved, "m1", **{"x/added": b"1"})
        await nodes.start("m1")
        _, client = await nodes.client(), await nodes.client()  # not the first: it was there before

        assert client.cluster_id in ("", saved.head.cluster_id)
        for n in range(20):
            found = await client.get(b"k%02d" % n)
            assert found is not None
            assert found.value == b"v%d" % n
        assert await client.get(b"later") is None
        added = await client.get(b"x/added")
        assert added is not None
        await nodes.start("m2", "m3")
        others = ["m2", "m3"]
        for name in others:
            await client.change_members(MembersRequest("add", name, f"{name}:4181"))
            await until_voters(client, "m1", *others[: others.index(name) + 1])
        await client.transact(put(b"new", b"1"))
        await nodes.kill("m1")
        assert await client.get(b"new") is not None


async def test_the_same_from_the_disk_of_the_one_that_is_left() -> None:
    """Its directory is only read, and what was acknowledged with it is there."""
    async with filled_quorum() as (nodes, client):
        left = await nodes.leader()
        await client.transact(put(b"last", b"1"))
        await nodes.kill()
        disk = nodes.disks[left]
        before = disk.list()
        saved = await read_node_disk(disk)

        assert disk.list() == before
        assert saved.state.get(b"last") is not None
        again = await read_node_disk(disk)
        assert list(iter_items(again.state)) == list(iter_items(saved.state))
    async with quorum(1, seed=3) as nodes:
        nodes.disks["m1"] = await _founder(saved, "m1")
        await nodes.start()
        client = await nodes.client()
        assert await client.get(b"last") is not None


async def test_a_save_that_nobody_fetches_on_holds_no_more_than_a_bound() -> None:
    """Who has begun one and asks for no more of it: what changes meanwhile is not kept without end."""
    world = World()
    for n in range(1000):
        world.do(put(b"k%03d" % n, bytes(100)))
    view = world.state.snapshot_view(changes_bytes_max=10_000)
    assert view.next_keys(10)
    for n in range(1000):
        world.do(put(b"new%d" % n, b""))
        world.do(Transaction((), (Delete(b"new%d" % n),)))
        assert len(view._values_before) <= 100

    with pytest.raises(InvalidRequest, match="the backup again"):
        view.next_keys(10)
    chunks = list(backup_chunks(BackupHeader("c", 1, 1, UNKNOWN_CONFIGURATION), world.state))
    assert len(chunks) > 2


async def test_a_restore_that_was_killed_at_its_first_file_is_done_again() -> None:
    async with filled_quorum() as (nodes, client):
        saved = await _saved(client)
        await nodes.kill()
    disk = MemoryDisk()
    await disk.create("FORMAT" + TEMPORARY_SUFFIX)

    state = advance_state(saved.state, unchanged, {})
    chance = random.Random(5)
    await force_new_cluster(disk, saved.head, state, name="m1", address="m1:4181", rng=chance)

    assert list(iter_items((await read_node_disk(disk)).state)) == list(iter_items(state))


async def test_a_restore_that_was_killed_at_its_last_file_is_done_again_with_another_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the first try left has the same name, and says another address."""
    async with filled_quorum() as (nodes, client):
        saved = await _saved(client)
        await nodes.kill()
    disk, state = MemoryDisk(), advance_state(saved.state, unchanged, {})

    async def begin(address: str) -> None:
        chance = random.Random(5)
        await force_new_cluster(disk, saved.head, state, name="m1", address=address, rng=chance)

    with monkeypatch.context() as killed:
        killed.setattr(refounding, "store_member_identity", None)
        with pytest.raises(TypeError):
            await begin("wrong:4181")
    await begin("m1:4181")

    (alone,) = (await read_node_disk(disk)).head.members.members
    assert alone.address == "m1:4181"
    snapshots = SnapshotStore(disk)
    ((snapshot, _),) = snapshots.list()
    _, members = await restore(snapshots.chunks(snapshot))
    assert members.members == (alone,)


async def test_a_directory_that_belongs_to_somebody_is_not_begun_anew() -> None:
    async with filled_quorum() as (nodes, client):
        saved = await _saved(client)
        await nodes.kill()
        for disk in (nodes.disks["m1"], MemoryDisk()):
            if not disk.list():
                await disk.create("notes.txt")
            with pytest.raises(ForeignData):
                await force_new_cluster(
                    disk, saved.head, saved.state, name="m1", address="", rng=random.Random(1)
                )


# --- each jump: what goes wrong without it ---------------------------------------------------------


class World:
    """A state, and what is applied to it."""

    def __init__(self) -> None:
        self.state = KeyValueState()
        self.client_base = 0

    def do(
        self, transaction: Transaction, client: str = "", request: int = 0, base: int = 0
    ) -> CommandResult:
        command = Transact(client, request, base, transaction)
        answer, _ = self.state.apply(self.state.index + 1, encode_command(command))
        return answer

    def grant(self) -> int:
        answer, _ = self.state.apply(self.state.index + 1, encode_command(GrantLease(ttl_ms=1000)))
        return answer.lease


def _split() -> tuple[World, World]:
    """A state at the save, and the one that went on from there."""
    saved, went_on = World(), World()
    for world in (saved, went_on):
        world.do(put(b"k", b"1"))
    return saved, went_on


def _restored(saved: World) -> World:
    world = World()
    world.state = advance_state(saved.state, unchanged, {})
    return world


def test_a_request_of_before_is_not_done_again_under_its_old_number() -> None:
    """Sent before the loss and again after the restore: its outcome is unknown, it is not done."""
    saved, went_on = _split()
    for _ in range(10):
        went_on.do(put(b"x", b""))
    base = went_on.state.index
    new = _restored(saved)

    answer = new.do(put(b"k", b"again"), "c", 7, base)

    assert isinstance(answer.error, OutcomeUnknown)
    found = new.state.get(b"k")
    assert found is not None
    assert found.value == b"1"


def test_a_version_of_before_holds_never_by_chance() -> None:
    """The key went from version 1 to 2 before the loss, and again, by somebody else, after it."""
    saved, went_on = _split()
    went_on.do(put(b"k", b"zombie's"))
    seen = went_on.state.get(b"k")
    assert seen is not None
    new = _restored(saved)
    new.do(put(b"k", b"of now"))

    answer = new.do(Transaction((Compare.version(b"k", seen.version),), (Put(b"k", b"zombie's"),)))

    assert answer.transaction is not None
    assert not answer.transaction.succeeded


def test_a_revision_of_before_holds_never_by_chance() -> None:
    saved, went_on = _split()
    went_on.do(put(b"k", b"zombie's"))
    seen = went_on.state.get(b"k")
    assert seen is not None
    new = _restored(saved)
    new.do(put(b"k", b"of now"))

    compare = Compare.mod_revision(b"k", seen.mod_revision)
    answer = new.do(Transaction((compare,), (Put(b"k", b"zombie's"),)))

    assert answer.transaction is not None
    assert not answer.transaction.succeeded


def test_what_did_not_change_keeps_its_revision() -> None:
    """A bookie that runs on has its cookie's revision for a guard, and need not start again."""
    saved, _ = _split()
    before, after = saved.state.get(b"k"), _restored(saved).state.get(b"k")
    assert before is not None

    assert after == replace(before, version=before.version + VERSIONS_AHEAD)


def test_a_watch_of_before_begins_anew() -> None:
    """Of a revision that the restored state has not reached, or has: it is not told half."""
    saved, went_on = _split()
    went_on.do(put(b"k", b"2"))
    new = _restored(saved)
    new.do(put(b"k", b"of now"))

    for revision in (1, went_on.state.revision):
        with pytest.raises(Compacted):
            new.state.events_after(revision, b"", b"\xff")


def test_a_lease_of_before_is_gone_and_never_given_again() -> None:
    saved, went_on = _split()
    for world in (saved, went_on):
        lease = world.grant()
        world.do(put(b"lock", b"", lease))
    later = went_on.grant()
    new = _restored(saved)

    assert new.state.get(b"lock") is None
    assert not new.state.leases
    assert isinstance(new.do(put(b"lock", b"", lease)).error, LeaseExpired)
    assert new.grant() > later


def test_keys_that_are_set_stand_in_order_and_others_may_change() -> None:
    saved, _ = _split()
    saved.do(put(b"m", b"old"))
    added = {b"a": b"1", b"l": b"2", b"m": b"3", b"z": b"4"}
    state = advance_state(saved.state, lambda item: item.value + b"!", added)

    assert [(item.key, item.value) for item in iter_items(state)] == [
        (b"a", b"1"),
        (b"k", b"1!"),
        (b"l", b"2"),
        (b"m", b"3"),
        (b"z", b"4"),
    ]
    assert all(item.mod_revision == state.revision for item in iter_items(state))
    assert state.revision == saved.state.revision + INDEXES_AHEAD


def test_a_save_is_given_out_chunk_by_chunk_and_no_other_than_the_next_or_the_last() -> None:
    """Whoever asks otherwise would write one chunk twice, or leave one out."""
    given = BackupTransfer(1, iter([b"0", b"1", b"2"]))

    assert [given.chunk(0), given.chunk(1), given.chunk(1)] == [b"0", b"1", b"1"]
    for n in (0, 3, 7):
        with pytest.raises(InvalidRequest):
            given.chunk(n)
    assert [given.chunk(2), given.chunk(3), given.chunk(3)] == [b"2", b"", b""]
