"""A bookie id lives and dies with its data directory (H6)."""

import random
from dataclasses import replace

import pytest

from distributedlog.cluster.cookie import cookie_guard, take_identity
from distributedlog.ledger import keys
from distributedlog.metadata.local import LocalMetadata
from distributedlog.metadata.transaction import Delete, Transaction
from distributedlog.runtime.errors import ForeignData
from distributedlog.runtime.identity import (
    NodeIdentity,
    load_identity,
    new_node_id,
    store_identity,
)
from distributedlog.runtime.memory import MemoryDisk

CLUSTER = "c1"


class _Bookie:
    """Two disks and the way to start on them."""

    def __init__(self) -> None:
        self.disks = {"journal": MemoryDisk(), "index": MemoryDisk()}
        self.chance = random.Random(7)

    async def start(self, metadata: LocalMetadata, cluster: str = CLUSTER) -> NodeIdentity:
        identity, _ = await take_identity(
            self.disks, metadata, cluster_id=cluster, label="b", chance=self.chance
        )
        return identity

    async def store_something(self) -> None:
        await self.disks["journal"].create("journal-1")


async def _copy_identity(disk: MemoryDisk) -> MemoryDisk:
    """What a backup of FORMAT and of one file would give back."""
    copy = MemoryDisk()
    identity = await load_identity(disk)
    assert identity is not None
    await store_identity(copy, identity)
    await copy.create("journal-1")
    return copy


async def test_a_new_bookie_draws_an_id_and_keeps_it_over_starts() -> None:
    metadata, bookie = LocalMetadata(), _Bookie()

    first = await bookie.start(metadata)
    await bookie.store_something()
    second = await bookie.start(metadata)

    assert first.node_id == second.node_id
    assert (first.incarnation, second.incarnation) == (1, 2)
    assert await metadata.get(keys.cookie_key(first.node_id)) is not None


async def test_emptied_disks_make_a_new_bookie_never_the_old_one() -> None:
    metadata, bookie = LocalMetadata(), _Bookie()
    old = await bookie.start(metadata)

    bookie.disks = {"journal": MemoryDisk(), "index": MemoryDisk()}
    new = await bookie.start(metadata)

    assert new.node_id != old.node_id


@pytest.mark.parametrize("role", ["journal", "index"])
async def test_one_missing_disk_is_refused_by_name(role: str) -> None:
    metadata, bookie = LocalMetadata(), _Bookie()
    await bookie.start(metadata)
    await bookie.store_something()

    bookie.disks[role] = MemoryDisk()

    with pytest.raises(ForeignData, match=f"the {role} directory .* is empty or missing"):
        await bookie.start(metadata)


@pytest.mark.parametrize("role", ["journal", "index"])
async def test_an_older_copy_of_a_disk_is_refused(role: str) -> None:
    """It would deny what it acknowledged since (D14)."""
    metadata, bookie = LocalMetadata(), _Bookie()
    await bookie.start(metadata)
    await bookie.store_something()
    copy = await _copy_identity(bookie.disks[role])
    await bookie.start(metadata)

    bookie.disks[role] = copy

    with pytest.raises(ForeignData, match=f"the {role} directory .* older copy"):
        await bookie.start(metadata)


async def test_a_directory_of_another_cluster_is_refused() -> None:
    metadata, bookie = LocalMetadata(), _Bookie()
    await bookie.start(metadata)

    with pytest.raises(ForeignData, match=r"of cluster c1.*cluster c2"):
        await bookie.start(LocalMetadata(), "c2")


async def test_a_bookie_that_the_cluster_forgot_is_refused() -> None:
    """Decommissioned: its id must never answer again."""
    metadata, bookie = LocalMetadata(), _Bookie()
    identity = await bookie.start(metadata)
    await bookie.store_something()
    await metadata.transact(Transaction((), (Delete(keys.cookie_key(identity.node_id)),)))

    with pytest.raises(ForeignData, match="not known to cluster"):
        await bookie.start(metadata)


async def test_journal_and_index_of_two_bookies_do_not_mix() -> None:
    metadata, one, two = LocalMetadata(), _Bookie(), _Bookie()
    two.chance = random.Random(8)
    await one.start(metadata)
    await two.start(metadata)

    one.disks["index"] = two.disks["index"]

    with pytest.raises(ForeignData, match="give each bookie its own two"):
        await one.start(metadata)


async def test_files_without_an_identity_are_not_taken_over() -> None:
    bookie = _Bookie()
    await bookie.store_something()

    with pytest.raises(ForeignData, match="journal-1"):
        await bookie.start(LocalMetadata())


async def test_a_metadata_nodes_directory_is_refused() -> None:
    bookie = _Bookie()
    foreign = NodeIdentity(CLUSTER, new_node_id(bookie.chance), "metadata", "m", 1, "test")
    await store_identity(bookie.disks["journal"], foreign)

    with pytest.raises(ForeignData, match="belongs to a metadata node"):
        await bookie.start(LocalMetadata())


@pytest.mark.parametrize("role", ["journal", "index"])
async def test_a_first_start_that_ended_before_its_cookie_is_taken_up_again(role: str) -> None:
    """Nothing was acknowledged under that id yet."""
    metadata, bookie = LocalMetadata(), _Bookie()
    half = NodeIdentity(CLUSTER, new_node_id(bookie.chance), "bookie", "b", 1, "test")
    await store_identity(bookie.disks[role], half)

    identity = await bookie.start(metadata)

    assert identity.node_id == half.node_id
    assert (await bookie.start(metadata)).incarnation == 2


async def test_a_start_that_ended_between_the_disks_and_the_cookie_is_no_older_copy() -> None:
    metadata, bookie = LocalMetadata(), _Bookie()
    identity = await bookie.start(metadata)
    await bookie.store_something()
    await store_identity(
        bookie.disks["index"], replace(identity, incarnation=identity.incarnation + 1)
    )

    assert (await bookie.start(metadata)).incarnation == identity.incarnation + 1


async def test_the_guard_fails_once_a_copy_was_started() -> None:
    metadata, bookie = LocalMetadata(), _Bookie()
    identity, revision = await take_identity(
        bookie.disks, metadata, cluster_id=CLUSTER, label="b", chance=bookie.chance
    )
    guard = cookie_guard(identity.node_id, revision)
    assert (await metadata.transact(Transaction((guard,), ()))).succeeded

    await bookie.start(metadata)

    assert not (await metadata.transact(Transaction((guard,), ()))).succeeded
