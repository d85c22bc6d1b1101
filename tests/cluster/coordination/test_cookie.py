"""A bookie id lives and dies with its data directory (H6)."""

import json
import random
from dataclasses import asdict, replace

import pytest
import xxhash

from distributedlog.bookie.disk.disk_reserve import Reserve, reserve_name
from distributedlog.cluster.coordination.cookie import claim_identity, cookie_guard, decode_cookie
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.metadata.model.transaction import Delete, Transaction, TransactionReply
from distributedlog.runtime.disk.atomic_file import replace_file
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.disk.node_identity import (
    FILE_NAME,
    NodeIdentity,
    load_identity,
    new_node_id,
    store_identity,
)
from distributedlog.runtime.interfaces.errors import DiskFull, ForeignData, OutcomeUnknown
from tests.metadata.local_metadata import LocalMetadata

CLUSTER = "c1"


class _Bookie:
    """Two disks and the way to start on them."""

    def __init__(self) -> None:
        self.disks = {"journal": MemoryDisk(), "index": MemoryDisk()}
        self.chance = random.Random(7)

    async def start(
        self, metadata: LocalMetadata, cluster: str = CLUSTER, principal: str = ""
    ) -> NodeIdentity:
        identity, _ = await claim_identity(
            self.disks,
            metadata,
            cluster_id=cluster,
            label="b",
            rng=self.chance,
            principal=principal,
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


async def bound_to(metadata: LocalMetadata, bookie_id: str) -> str:
    """Whom the cookie names."""
    found = await metadata.get(keys.cookie_key(bookie_id))
    assert found is not None
    principal: str = decode_cookie(found.key, found.value)["principal"]
    return principal


async def test_another_bookies_certificate_does_not_start_a_directory() -> None:
    """H227: the right authority, the wrong name. Nothing is counted up for it."""
    metadata, bookie = LocalMetadata(), _Bookie()
    first = await bookie.start(metadata, principal="bookie/b1")
    await bookie.store_something()

    with pytest.raises(ForeignData, match=r"is bookie/b1 by its cookie.* bookie/b2"):
        await bookie.start(metadata, principal="bookie/b2")

    again = await bookie.start(metadata, principal="bookie/b1")
    assert (again.node_id, again.incarnation) == (first.node_id, 2)
    assert await bound_to(metadata, first.node_id) == "bookie/b1"


async def test_a_cookie_of_before_takes_the_name_of_the_next_start_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Started without certificates until now; on the way back, without one again, the name stays."""
    caplog.set_level("WARNING", "distributedlog.cluster.coordination.cookie")
    metadata, bookie = LocalMetadata(), _Bookie()
    identity = await bookie.start(metadata)
    await bookie.store_something()
    assert await bound_to(metadata, identity.node_id) == ""

    await bookie.start(metadata, principal="bookie/b1")
    await bookie.start(metadata, principal="bookie/b1")
    await bookie.start(metadata)

    assert await bound_to(metadata, identity.node_id) == "bookie/b1"
    (line,) = caplog.messages
    assert "only with the certificate of bookie/b1" in line
    with pytest.raises(ForeignData):
        await bookie.start(metadata, principal="bookie/b2")


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

    with pytest.raises(ForeignData, match="has no cookie in cluster"):
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


@pytest.mark.parametrize("named", [(), ("index",)])
async def test_a_first_start_that_was_killed_while_it_named_its_disks(
    named: tuple[str, ...],
) -> None:
    """Seed 25 of the whole cluster: FORMAT was written aside and not yet renamed; nothing is stored."""
    metadata, bookie = LocalMetadata(), _Bookie()
    identity = NodeIdentity(CLUSTER, new_node_id(bookie.chance), "bookie", "b", 1, "test")
    for role in named:
        await store_identity(bookie.disks[role], identity)
    for role in {"index", "journal"} - set(named):
        await bookie.disks[role].create(FILE_NAME + ".new")

    started = await bookie.start(metadata)

    assert (started.node_id == identity.node_id) == bool(named)
    assert [await load_identity(disk) for disk in bookie.disks.values()] == [started, started]


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
    identity, revision = await claim_identity(
        bookie.disks, metadata, cluster_id=CLUSTER, label="b", rng=bookie.chance
    )
    guard = cookie_guard(identity.node_id, revision)
    assert (await metadata.transact(Transaction((guard,), ()))).succeeded

    await bookie.start(metadata)

    assert not (await metadata.transact(Transaction((guard,), ()))).succeeded


class _Slow(LocalMetadata):
    """Does what it was asked only when the next one asks: whoever asked first was killed meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Transaction] = []
        self.holding = False

    async def transact(self, transaction: Transaction) -> TransactionReply:
        if self.holding:
            self.held.append(transaction)
            raise OutcomeUnknown("no answer")
        held, self.held = self.held, []
        for late in held:
            await super().transact(late)
        return await super().transact(transaction)


@pytest.mark.parametrize("killed", [1, 3])
@pytest.mark.parametrize("first", [True, False])
async def test_a_start_right_after_a_kill_knows_its_own_late_cookie(
    killed: int, first: bool
) -> None:
    """The request of a killed start is done between the next one's look and its own request."""
    metadata, bookie = _Slow(), _Bookie()
    if not first:
        await bookie.start(metadata)
        await bookie.store_something()
    metadata.holding = True
    for _ in range(killed):
        with pytest.raises(OutcomeUnknown):
            await bookie.start(metadata)
    metadata.holding = False

    identity = await bookie.start(metadata)

    assert identity.incarnation == 2 + (not first)
    assert (await bookie.start(metadata)).incarnation == identity.incarnation + 1


async def test_a_copy_that_starts_at_the_same_moment_is_still_refused() -> None:
    """Both looked at the same cookie; the other one's name is not on these disks."""
    metadata, bookie, other = _Slow(), _Bookie(), _Bookie()
    await bookie.start(metadata)
    await bookie.store_something()
    other.chance = random.Random(8)
    other.disks = {role: await _copy_identity(disk) for role, disk in bookie.disks.items()}
    metadata.holding = True
    with pytest.raises(OutcomeUnknown):
        await other.start(metadata)
    metadata.holding = False

    with pytest.raises(ForeignData, match="started elsewhere"):
        await bookie.start(metadata)


async def test_a_directory_of_an_older_version_is_taken_up() -> None:
    """It names no start."""
    metadata, bookie = LocalMetadata(), _Bookie()
    identity = await bookie.start(metadata)
    await bookie.store_something()
    for disk in bookie.disks.values():
        body = json.dumps({k: v for k, v in asdict(identity).items() if k != "starts"}).encode()
        digest = b"xxh3_64 " + xxhash.xxh3_64_hexdigest(body).encode() + b"\n"
        await replace_file(disk, FILE_NAME, body + b"\n" + digest)

    assert (await bookie.start(metadata)).incarnation == 2


@pytest.mark.parametrize("role", ["journal", "index"])
async def test_a_start_on_a_full_disk_counts_up_in_what_the_reserve_gives(role: str) -> None:
    """The identity is replaced on both disks at each start, and that takes room (H28)."""
    metadata, bookie = LocalMetadata(), _Bookie()
    disk = bookie.disks[role] = MemoryDisk(bytes_max=1 << 20)
    await bookie.start(metadata)
    await bookie.store_something()
    await Reserve(disk, role, 256 << 10).ensure()
    await disk.delete(reserve_name("start"))  # as an older version left it
    for starts in range(2, 5):
        name = f"ballast-{starts}"
        await disk.create(name, size=disk.free_bytes())

        assert (await bookie.start(metadata)).incarnation == starts

    await disk.delete(reserve_name(role), reserve_name("start"))
    await disk.create("more", size=disk.free_bytes())
    with pytest.raises(DiskFull):
        await bookie.start(metadata)
    await disk.delete("more")
    assert (await bookie.start(metadata)).incarnation > 4


@pytest.mark.parametrize("role", ["journal", "index"])
async def test_a_bookie_that_stayed_full_counts_up_at_every_start(role: str) -> None:
    """A checkpoint or a journal file has used the reserve, and other programs took all that was free."""
    metadata, bookie = LocalMetadata(), _Bookie()
    disk = bookie.disks[role] = MemoryDisk(bytes_max=1 << 20)
    await bookie.start(metadata)
    await bookie.store_something()
    reserve = Reserve(disk, role, 256 << 10)
    await reserve.ensure()
    await reserve.free()
    for starts in range(2, 8):
        await disk.create(f"ballast-{starts}", size=disk.free_bytes())

        assert (await bookie.start(metadata)).incarnation == starts


async def test_a_lost_reserve_for_starts_is_made_of_the_reserve_of_the_role() -> None:
    """An older version never made it, or another program was quicker with its space."""
    metadata, bookie = LocalMetadata(), _Bookie()
    disk = bookie.disks["index"] = MemoryDisk(bytes_max=1 << 20)
    await bookie.start(metadata)
    await bookie.store_something()
    await Reserve(disk, "index", 256 << 10).ensure()
    await disk.delete(reserve_name("start"))
    await disk.create("ballast", size=disk.free_bytes())

    assert (await bookie.start(metadata)).incarnation == 2
    assert reserve_name("start") in disk.list()
