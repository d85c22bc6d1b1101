"""The placement policy from outside: what is not as it wants it, and what it would stop."""

from collections.abc import Mapping
from dataclasses import asdict, replace

import pytest

from distributedlog.cluster.status import placement_status as placing
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.placement.placement_policy import PlacementPolicy
from distributedlog.metadata.model.transaction import Delete, KeyValue, Put, Transaction
from distributedlog.runtime.declarations.health_conditions import Code, condition
from distributedlog.runtime.interfaces.errors import CorruptData, InvalidRequest, VersionConflict
from tests.metadata.local_metadata import LocalMetadata

KEY = bytes(16)
ENFORCED = PlacementPolicy("rack", 2, enforced=True)


async def cluster(**labels: Mapping[str, str]) -> LocalMetadata:
    """Bookies by id, each with its labels."""
    metadata = LocalMetadata()
    for bookie, own in labels.items():
        said = BookieRegistration(bookie, {"": ("h", 1)}, labels=own, free_bytes=7)
        put = Put(keys.bookie_key(bookie), said.encode())
        await metadata.transact(Transaction((), (put,)))
    return metadata


async def ledger(metadata: LocalMetadata, ledger_id: int, *ensembles: Fragment) -> None:
    """A closed one with the entries 0 to 9."""
    made = LedgerMetadata(ledger_id, 2, 2, 1, ensembles, KEY)
    await metadata.transact(transactions.creation_ops(made, ()))
    closed = made.close_by_writer(9, 100)
    await metadata.transact(transactions.close_ops(closed, 1, ()))


async def found(metadata: LocalMetadata, newest: int | None = None) -> dict[int, str]:
    where = await placing.placement_status(metadata)
    return {
        ledger_id: why
        async for ledger_id, why in placing.placement_violations(
            metadata, where, newest_ledgers=newest
        )
    }


async def test_ledgers_with_copies_on_one_host_are_told() -> None:
    """But not what has no entries, nor what lies on a bookie of which nothing is known."""
    metadata = await cluster(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h2"})
    await ledger(metadata, 1, Fragment(0, ("b1", "b3"), 0))
    await ledger(metadata, 2, Fragment(0, ("b1", "b2"), 0))
    await ledger(metadata, 3, Fragment(0, ("b1", "b3"), 0), Fragment(10, ("b1", "b2"), 1))
    await ledger(metadata, 4, Fragment(0, ("b1", "gone"), 0))

    assert await found(metadata) == {2: "b1 and b2 share host h1"}
    where = await placing.placement_status(metadata)
    assert await placing.placement_conditions(metadata, where) == [
        condition(Code.COPIES_TOGETHER, ledgers=1, ledger=2, cause="b1 and b2 share host h1")
    ]
    assert where.condition() is None


async def test_copies_on_the_only_host_are_no_condition() -> None:
    """On one machine it cannot be otherwise."""
    metadata = await cluster(b1={"host": "h1"}, b2={"host": "h1"}, b3={"host": "h1"})
    await ledger(metadata, 1, Fragment(0, ("b1", "b2"), 0))

    where = await placing.placement_status(metadata)
    assert await placing.placement_conditions(metadata, where) == []


async def test_a_status_looks_at_the_newest_alone_and_only_where_somebody_minds() -> None:
    metadata = await cluster(b1={"rack": "r1"}, b2={"rack": "r1"})
    for ledger_id in (1, 5_000, 9_000, 9_001):
        await ledger(metadata, ledger_id, Fragment(0, ("b1", "b2"), 0))
    await metadata.transact(Transaction((), (Put(keys.NEXT_LEDGER, b"10000"),)))

    assert list(await found(metadata)) == [1, 5_000, 9_000, 9_001]
    assert list(await found(metadata, newest=2)) == [9_000, 9_001]
    assert list(await found(metadata, newest=3)) == [9_000, 9_001, 5_000]
    assert (
        await placing.placement_conditions(metadata, await placing.placement_status(metadata)) == []
    )

    await placing.change_policy(metadata, asdict(PlacementPolicy()))
    where = await placing.placement_status(metadata)
    assert where.domains == (placing.FailureDomain("r1", ("b1", "b2"), 14, 2),)
    [found_together] = await placing.placement_conditions(metadata, where)
    assert "b1 and b2 are in 1 rack, not 2" in found_together.text("cause")


async def test_the_newest_are_found_where_ids_are_far_apart_and_not_all_where_they_are_close() -> (
    None
):
    """Who makes a ledger now and then gives up the rest of each block; before, nobody gave up any."""
    metadata = await cluster(b1={"host": "h1"}, b2={"host": "h1"})
    for ledger_id in (*range(1, 3_001), *range(200_000, 1_000_000, 10_000)):
        await ledger(metadata, ledger_id, Fragment(0, ("b1", "b2"), 0))
    await metadata.transact(Transaction((), (Put(keys.NEXT_LEDGER, b"1000000"),)))

    apart = range(990_000, 190_000, -10_000)
    assert set(await found(metadata, newest=10)) >= set(apart[:10])
    assert set(await found(metadata, newest=50)) >= set(apart[:50])
    assert 100 <= len(await found(metadata, newest=100)) <= 100 + keys.LEDGER_ID_BLOCK


async def test_an_enforced_policy_warns_before_it_stops_all_writes() -> None:
    """H111: it is refused where the loss of one rack stops them."""
    racks = {f"b{n}": {"rack": f"r{n}"} for n in (1, 2)}
    metadata = await cluster(**racks, b4={})
    with pytest.raises(InvalidRequest, match="at least 3 racks"):
        await placing.change_policy(metadata, asdict(ENFORCED))
    third = BookieRegistration("b3", {"": ("h", 1)}, rack="r3")
    await metadata.transact(Transaction((), (Put(keys.bookie_key("b3"), third.encode()),)))

    await placing.change_policy(metadata, asdict(ENFORCED))

    where = await placing.placement_status(metadata)
    assert (where.stored, where.open_domains, where.condition()) == (True, 3, None)
    unknown = condition(Code.DOMAIN_UNKNOWN, level="rack", names="b4")
    assert await placing.placement_conditions(metadata, where) == [unknown]
    await metadata.transact(Transaction((), (Delete(keys.bookie_key("b1")),)))
    where = await placing.placement_status(metadata)
    at_limit = condition(Code.PLACEMENT_AT_LIMIT, level="rack", domains=2, needed=2)
    assert where.condition() == at_limit
    await metadata.transact(Transaction((), (Delete(keys.bookie_key("b2")),)))
    where = await placing.placement_status(metadata)
    at_limit = condition(Code.PLACEMENT_AT_LIMIT, level="rack", domains=1, needed=2)
    assert where.condition() == at_limit
    await placing.reset_policy(metadata)
    where = await placing.placement_status(metadata)
    assert (where.policy, where.stored, where.condition()) == (PlacementPolicy(), False, None)


async def test_a_policy_that_cannot_be_read_is_set_anew_as_a_whole_alone() -> None:
    """What it said may have been enforced: what is not given is not made up."""
    metadata = await cluster(**{f"b{n}": {"rack": f"r{n}"} for n in (1, 2, 3)})
    await metadata.transact(Transaction((), (Put(keys.PLACEMENT, b"rot"),)))

    with pytest.raises(CorruptData, match=r"--at-least N with --enforced .* replaces it"):
        await placing.change_policy(metadata, {"level": "rack"})
    with pytest.raises(CorruptData, match="--reset"):
        await placing.placement_status(metadata)
    await placing.change_policy(metadata, asdict(ENFORCED))

    assert (await placing.placement_status(metadata)).policy == ENFORCED
    await placing.change_policy(metadata, {"at_least": 1})
    assert (await placing.placement_status(metadata)).policy == replace(ENFORCED, at_least=1)


async def test_a_policy_that_another_changed_meanwhile_is_not_changed() -> None:
    """Also where it was forgotten and set again: a version begins anew, and each said another thing."""
    metadata = await cluster()
    await placing.change_policy(metadata, {"level": "zone"})
    read = metadata.get

    async def get(key: bytes) -> KeyValue | None:
        found = await read(key)
        metadata.get = read  # type: ignore[method-assign]
        await placing.reset_policy(metadata)
        await placing.change_policy(metadata, {"level": "host"})
        return found

    metadata.get = get  # type: ignore[method-assign]
    with pytest.raises(VersionConflict):
        await placing.change_policy(metadata, {"at_least": 3})

    assert (await placing.placement_status(metadata)).policy == PlacementPolicy("host")
