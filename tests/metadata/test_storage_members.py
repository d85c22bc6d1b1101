"""Who the members are, over restarts, snapshots, and files of before they could change."""

from distributedlog.metadata.model.configuration import Configuration
from distributedlog.metadata.raft.raft_messages import Entry
from distributedlog.metadata.raft.ready import HardState, Snapshot
from distributedlog.metadata.storage.log_replay import RaftLogReplay
from distributedlog.metadata.storage.member_identity import store_member_identity
from distributedlog.metadata.storage.raft_storage import RaftStorage
from distributedlog.runtime.disk.memory_disk import MemoryDisk

from .storage.test_raft_storage import MEMBERS_OF_ONE, SEED, ready, started


async def test_the_members_are_found_again_at_the_base_and_after_it() -> None:
    """Thesis 4.1: a restart uses the newest configuration of its log."""
    disk = MemoryDisk()
    founders = Configuration.from_ids("abc")
    storage = RaftStorage(disk, SEED)
    await storage.create_log(founders)
    await store_member_identity(disk, MEMBERS_OF_ONE)
    _, loaded, _ = await started(disk)
    assert loaded.log.configuration == founders

    storage, _, _ = await started(disk)
    change = Configuration.from_ids("ab")
    entries = (Entry(1, 1, b"x"), Entry(2, 1, change.encode()), Entry(3, 1, b"y"))
    await storage.save([ready(hard_state=HardState(1, ""), append=entries)])
    _, loaded, _ = await started(disk)

    assert loaded.log.configurations == ((0, founders), (2, change))


async def test_the_members_outlive_the_entry_that_named_them() -> None:
    disk = MemoryDisk()
    storage = RaftStorage(disk, SEED)
    await storage.create_log(Configuration.from_ids("abc"))
    await store_member_identity(disk, MEMBERS_OF_ONE)
    storage, _, _ = await started(disk)
    change = Configuration.from_ids("ab")
    entries = (Entry(1, 1, change.encode()), Entry(2, 1, b"y"))
    await storage.save([ready(hard_state=HardState(1, ""), append=entries)])
    await storage.snapshots.save(Snapshot(2, 1), [b"x"])
    await storage.compact(Snapshot(2, 1))
    _, loaded, _ = await started(disk)

    assert loaded.log.configurations == ((2, change),)


def test_a_log_of_before_members_could_change_is_its_founders() -> None:
    founders = Configuration.from_ids("abc")
    replay = RaftLogReplay(founders)
    replay.apply_operations(
        [["begin", 1], ["hard", 1, ""], ["snapshot", 0, 0], ["entry", 1, 1, b"x"], ["begun"]]
    )

    assert replay.log.configuration == founders
