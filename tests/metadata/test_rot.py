"""Metadata nodes whose disks rot: nothing is lost, and nobody has to do anything (H106)."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio

from distributedlog.metadata.model.configuration import Configuration
from distributedlog.metadata.node.force_new_cluster import read_node_disk
from distributedlog.metadata.peers.hard_state_recovery import (
    TERMS_AHEAD,
    UNKNOWN_VOTE,
    VoterReport,
    recovered_hard_state,
)
from distributedlog.metadata.raft.ready import HardState
from distributedlog.metadata.raft.recovered_hard_state import (
    RECOVERY_FLOOR_FILE,
    HardStateScanner,
    RaftEntryId,
    RecoveredHardState,
    watermark_payload,
)
from distributedlog.metadata.storage.member_identity import (
    load_member_identity,
    new_identity,
    store_member_identity,
    store_recovery_floor,
)
from distributedlog.metadata.storage.metadata_disk_space import RESERVE_FILE
from distributedlog.metadata.storage.raft_storage import RaftStorage
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.disk.checksummed_blocks import ALIGN
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import CommittedEntriesLost, CorruptData
from tests.conditions import codes_of
from tests.examples import few
from tests.metadata.quorum import Quorum, fill, put, quorum, serving_quorum
from tests.metadata.storage.test_raft_storage import cannot_read, log_name
from tests.metadata.test_metadata_quorum import caught_up

KEYS = 20


async def lose(nodes: Quorum, name: str, *places: int) -> None:
    """Zero some blocks of the node's log, counted from its beginning."""
    disk = nodes.disks[name]
    file = await disk.open(next(file for file in disk.list() if file.startswith("log.")))
    for place in places:
        file.write_at(place * ALIGN, [bytes(ALIGN)])
    file.close()


async def blocks_in(nodes: Quorum, name: str) -> int:
    """How many blocks the node's log has."""
    disk = nodes.disks[name]
    file = await disk.open(next(file for file in disk.list() if file.startswith("log.")))
    content = await file.read_in_worker(0, file.size())
    file.close()
    return len(content.rstrip(b"\0")) // ALIGN + 1


async def all_whole(nodes: Quorum, names: Sequence[str]) -> None:
    """Wait until these nodes count by themselves again."""
    with trio.fail_after(60):
        for name in names:
            while True:
                members = await load_member_identity(nodes.disks[name])
                assert members is not None
                if members.may_vote and RECOVERY_FLOOR_FILE not in nodes.disks[name].list():
                    break
                await trio.sleep(0.05)


@pytest.mark.parametrize("place", few([1, -3, 0, 2, 5, 15, -2], 2))
async def test_a_block_of_one_node_rots(place: int, autojump_clock: object) -> None:
    """It comes back with its word, and with one other it makes a quorum that has everything."""
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        await trio.sleep(1)
        await nodes.kill()
        count = await blocks_in(nodes, "m2")
        await lose(nodes, "m2", place % count)
        await nodes.start("m1", "m2")

        found = await client.get(b"k%02d" % (KEYS - 1))
        assert found is not None
        await all_whole(nodes, ["m2"])
        await nodes.start("m3")
        await nodes.kill("m1")
        for n in range(KEYS):
            assert await client.get(b"k%02d" % n) is not None


async def test_two_of_three_rot_in_different_places(autojump_clock: object) -> None:
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        await trio.sleep(1)
        chance = random.Random(4)
        for _ in range(3):
            await nodes.kill()
            whole = chance.choice(nodes.names)
            rotten = [name for name in nodes.names if name != whole]
            for name in rotten:
                count = await blocks_in(nodes, name)
                await lose(nodes, name, chance.randrange(count - 1))
            await nodes.start()

            for n in range(KEYS):
                assert await client.get(b"k%02d" % n) is not None
            await client.transact(put(b"more", b""))
            await all_whole(nodes, rotten)
            await caught_up(nodes)
            await trio.sleep(1)


async def test_two_of_three_have_places_that_the_device_cannot_read(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One loses the beginning of its log, one its newest blocks."""
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        await trio.sleep(1)
        await nodes.kill()
        newest = (await blocks_in(nodes, "m2") - 1) * ALIGN
        for name, place in (("m1", 0), ("m2", newest)):
            disk = nodes.disks[name]
            cannot_read(monkeypatch, disk, log_name(disk), place, 1)
        await nodes.start()

        for n in range(KEYS):
            assert await client.get(b"k%02d" % n) is not None
        await client.transact(put(b"more", b""))
        await all_whole(nodes, ["m1", "m2"])


async def test_who_has_less_than_a_rotten_node_promised_is_not_elected(
    autojump_clock: object,
) -> None:
    """What two have acknowledged and the third has not: with the one whose copy rotted it must not lead."""
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        leader = await nodes.leader()
        rotten, behind = (name for name in nodes.names if name != leader)
        await nodes.kill(behind)
        await client.transact(put(b"late", b"1"))
        await trio.sleep(1)
        await nodes.kill()
        await lose(nodes, rotten, 1)
        await nodes.start(rotten, behind)
        await trio.sleep(30)

        assert "leader" not in {row.role for row in (await nodes.rows()).values()}
        await nodes.start(leader)
        assert await client.get(b"late") is not None
        await all_whole(nodes, [rotten])


async def test_who_has_forgotten_its_word_waits_for_all_others(autojump_clock: object) -> None:
    """As a directory does that an older version called damaged."""
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        await nodes.kill()
        disk = nodes.disks["m2"]
        for name in disk.list():
            if name.startswith(("log.", "snapshot.")):
                await disk.delete(name)
        await nodes.start("m1", "m2")
        await trio.sleep(30)
        rows = await nodes.rows()
        assert rows["m2"].role.startswith("damaged")
        assert rows["m1"].role != "leader"

        await nodes.start("m3")
        for n in range(KEYS):
            assert await client.get(b"k%02d" % n) is not None
        await all_whole(nodes, ["m2"])
        await nodes.kill("m1")
        await client.transact(put(b"by m2 and m3", b""))


async def test_what_was_said_before_all_are_there_does_not_count(autojump_clock: object) -> None:
    """Who has answered may have learned of more since: it must live while the last one answers."""
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        await nodes.kill()
        disk = nodes.disks["m2"]
        for name in disk.list():
            if name.startswith(("log.", "snapshot.")):
                await disk.delete(name)
        await nodes.start("m1", "m2")
        await trio.sleep(10)
        await nodes.kill("m1")
        await nodes.start("m3")
        await trio.sleep(30)
        assert RECOVERY_FLOOR_FILE not in disk.list()
        assert (await nodes.rows())["m2"].role.startswith("damaged")

        await nodes.start("m1")
        await all_whole(nodes, ["m2"])


async def test_a_log_that_is_less_than_it_was_is_no_survivor(autojump_clock: object) -> None:
    """A new cluster from it would silently lack what it had acknowledged."""
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        await trio.sleep(1)
        await nodes.kill()
        await lose(nodes, "m2", 2)
        await nodes.start("m2")
        await nodes.kill("m2")
        assert RECOVERY_FLOOR_FILE in nodes.disks["m2"].list()
        with pytest.raises(CorruptData, match="lacks entries that it once had"):
            await read_node_disk(nodes.disks["m2"])
        assert await read_node_disk(nodes.disks["m1"])


async def test_a_node_that_is_filled_up_says_so_and_survives_a_kill_at_any_time(
    autojump_clock: object,
) -> None:
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        leader = await nodes.leader()
        rotten = nodes.other_than(leader)
        await trio.sleep(1)
        await nodes.kill(rotten)
        await lose(nodes, rotten, 2)
        for delay_s in (0.0, 0.01, 0.05, 0.2):
            await nodes.start(rotten)
            await trio.sleep(delay_s)
            await nodes.kill(rotten)
        nodes.cut_off(rotten)
        await nodes.start(rotten)
        members = await load_member_identity(nodes.disks[rotten])
        assert members is not None
        if not members.may_vote:
            rows = await nodes.rows()
            assert Code.METADATA_LOG_INCOMPLETE in codes_of(rows[rotten].conditions)
        nodes.join_again(rotten)
        await all_whole(nodes, [rotten])
        assert not (await nodes.rows())[rotten].conditions
        await client.transact(put(b"on", b""))
        await caught_up(nodes)


async def test_members_that_may_not_vote_come_back_with_a_sound_log(
    autojump_clock: object,
) -> None:
    """What an older version left of a damaged node: an empty log, and the vote given up for ever."""
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        await nodes.kill("m3")
        members = await load_member_identity(nodes.disks["m3"])
        assert members is not None
        await store_member_identity(nodes.disks["m3"], replace(members, may_vote=False))
        await nodes.start("m3")

        await all_whole(nodes, ["m3"])
        await client.transact(put(b"on", b""))
        await caught_up(nodes)


async def test_a_node_that_is_filled_up_on_a_full_disk_lives(autojump_clock: object) -> None:
    """It says that it is whole when there is room; the log itself needed none, by the zeros ahead of it."""
    async with quorum(3) as nodes:
        for name in nodes.names:
            nodes.disks[name] = MemoryDisk(bytes_max=40 * 1024 * 1024)
        await nodes.start()
        client = await nodes.client()
        await fill(client, KEYS)
        await caught_up(nodes)
        rotten = nodes.other_than(await nodes.leader())
        await trio.sleep(1)
        await nodes.kill(rotten)
        await lose(nodes, rotten, 2)
        nodes.cut_off(rotten)
        await nodes.start(rotten)
        await trio.sleep(1)
        disk = nodes.disks[rotten]
        for name in ("ballast", "more"):
            (await disk.create(name, size=disk.free_bytes())).close()
            if RESERVE_FILE in disk.list():
                await disk.delete(RESERVE_FILE)
        nodes.join_again(rotten)
        for n in range(KEYS):
            await client.transact(put(b"full %02d" % n, b""))
        await trio.sleep(2)
        members = await load_member_identity(disk)
        assert members is not None
        assert not members.may_vote

        await disk.delete("ballast", "more")
        await client.transact(put(b"on", b""))
        await all_whole(nodes, [rotten])
        await caught_up(nodes)


async def test_a_log_that_is_gone_takes_a_ghost_of_before_with_it() -> None:
    """H106: what it voted since stood in the log alone: it would vote a second time in those terms."""
    disk = MemoryDisk()
    members = new_identity("c", {"a": "a", "b": "b", "x": "x"}, random.Random(1))
    await RaftStorage(disk, members.seed).create_log(Configuration.from_ids("abx"))
    members = replace(members, may_vote=False)
    await store_member_identity(disk, members)
    await store_recovery_floor(disk, RecoveredHardState(HardState(10, "b"), RaftEntryId(9, 5)))
    loaded, members = await RaftStorage(disk, members.seed).load(members)
    assert loaded.recovery_floor == RaftEntryId(9, 5)
    await disk.delete(*(name for name in disk.list() if name.startswith("log.")))

    loaded, _ = await RaftStorage(disk, members.seed).load(members)

    assert loaded.damage
    assert loaded.recovery_floor is None  # it asks all others


# --- older copies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("also_away", [False, True])
async def test_an_older_copy_of_a_directory_is_filled_up(
    also_away: bool, autojump_clock: object
) -> None:
    """H107: sound, and it has forgotten: a leader has its word for more, or somebody whole is ahead of it."""
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        leader = await nodes.leader()
        older, other = (name for name in nodes.names if name != leader)
        await nodes.kill(older)
        copy = await copy_of(nodes.disks[older])
        await nodes.start(older)
        for n in range(KEYS):
            await client.transact(put(b"later %02d" % n, b""))
        await caught_up(nodes)
        await nodes.kill(older)
        if also_away:  # who had this node's word: the one that is left has all of it
            await nodes.kill(leader)
        nodes.disks[older] = copy
        await nodes.start(older)
        with trio.fail_after(20):
            await client.transact(put(b"on", b""))
            await caught_up(nodes)

        assert not (await nodes.rows())[older].conditions
        if also_away:
            await nodes.start(leader)
        await nodes.kill(other)
        for n in range(KEYS):
            assert await client.get(b"later %02d" % n) is not None
        await client.transact(put(b"by the older copy", b""))


async def copy_of(disk: MemoryDisk) -> MemoryDisk:
    """As from a backup."""
    copy = MemoryDisk()
    for name in disk.list():
        file = await disk.open(name)
        made = await copy.create(name)
        await made.write_synced(0, await file.read_in_worker(0, file.size()))
        made.close()
        file.close()
    return copy


# --- the word ---------------------------------------------------------------------------------------


def test_the_newest_blocks_say_what_was_promised() -> None:
    words = HardStateScanner()
    words.add_operations(1, [["hard", 3, "a"], ["snapshot", 5, 2, b""], ["entry", 6, 3, b""]])
    assert words.recovered_state() == RecoveredHardState(HardState(3, "a"), RaftEntryId(3, 6))
    words.add_operations(2, [["hard", 4, "b"], ["hard", 4, "b"]])
    assert words.recovered_state() == RecoveredHardState(HardState(4, "b"), RaftEntryId(3, 6))
    words.add_operations(3, [["hard", 4, "b"], ["truncate", 6]])
    assert words.recovered_state() is None


def test_after_a_gap_nothing_of_before_it_is_believed() -> None:
    words = HardStateScanner()
    words.add_operations(1, [["hard", 3, "a"], ["entry", 6, 3, b""]])
    words.add_operations(3, [["hard", 4, "b"]])
    assert words.recovered_state() is None
    words.add_operations(4, [["hard", 4, "b"], ["entry", 8, 4, b""]])
    assert words.recovered_state() == RecoveredHardState(HardState(4, "b"), RaftEntryId(4, 8))
    words.take_mark(6, b"")  # of an older version
    assert words.recovered_state() is None
    word = RecoveredHardState(HardState(5, "c"), RaftEntryId(4, 9))
    words.take_mark(8, watermark_payload(word))
    assert words.recovered_state() == word
    words.take_mark(9, b"\xc1")
    assert words.recovered_state() is None


def test_all_other_voters_are_heard_before_anything_is_believed() -> None:
    from distributedlog.metadata.model.configuration import Configuration

    members = Configuration.from_ids("abcd")
    said = {
        "b": VoterReport("b", 7, RaftEntryId(3, 9), members),
        "c": VoterReport("c", 4, RaftEntryId(4, 2), members),
    }
    assert recovered_hard_state("a", said) == "d must report the limits of the lost hard state"
    said["d"] = VoterReport("d", 5, RaftEntryId(4, 1), members)
    assert recovered_hard_state("a", said) == RecoveredHardState(
        HardState(7 + TERMS_AHEAD, UNKNOWN_VOTE), RaftEntryId(4, 2)
    )
    assert isinstance(recovered_hard_state("z", said), str)
    assert isinstance(recovered_hard_state("a", {}), str)


async def test_a_majority_on_older_copies_deletes_nothing_of_a_node_that_was_away(
    autojump_clock: object,
) -> None:
    """Raft does not cover it: they lead. The third has what clients were told is done, and ends."""
    async with serving_quorum() as (nodes, client):
        await fill(client, KEYS)
        await caught_up(nodes)
        leader = await nodes.leader()
        others = [name for name in nodes.names if name != leader]
        await nodes.kill(*others)
        copies = {name: await copy_of(nodes.disks[name]) for name in others}
        await nodes.start(*others)
        for n in range(KEYS):
            await client.transact(put(b"later %02d" % n, b""))
        await caught_up(nodes)
        await trio.sleep(1)
        await nodes.kill(*nodes.names)
        for name in others:
            nodes.disks[name] = copies[name]
        await nodes.start(*others)
        await client.transact(put(b"without them", b""))

        nodes.may_end.add(leader)
        await nodes.start(leader)
        with trio.fail_after(20):
            ended = await nodes.end_of(leader)
        assert ended.subgroup(CommittedEntriesLost) is not None
        assert "force-new-cluster" in repr(ended)
        members = await load_member_identity(nodes.disks[leader])
        assert members is not None
        found = await RaftStorage(nodes.disks[leader], members.seed).inspect(members)
        kept = [entry.data for entry in found.log.entries_from(found.log.base_index + 1)]
        assert all(any(b"later %02d" % n in data for data in kept) for n in range(KEYS))
