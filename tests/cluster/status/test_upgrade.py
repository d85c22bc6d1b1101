"""The versions of a cluster's nodes in its status, and the end of an upgrade."""

from dataclasses import replace
from typing import Any

import pytest

from distributedlog.cluster.status import cluster_overview as overview
from distributedlog.cluster.status.cluster_versions import NodeVersion, version_conditions
from distributedlog.cluster.status.upgrade import check_finalize, finalize_upgrade
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.metadata.model.cluster_version import (
    CLUSTER_VERSION_KEY,
    ClusterVersion,
    confirmed_cluster_version,
    read_cluster_version,
)
from distributedlog.metadata.model.interface import MemberRole, MemberStatus
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.proxy.membership.proxy_registration import ProxyRegistration
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.declarations.versions import CURRENT, UNREPORTED, VERSION, Version
from distributedlog.runtime.interfaces.errors import (
    ConfirmationRequired,
    NotAllowed,
    OutcomeUnknown,
    UnsupportedFormat,
    UpgradeIncomplete,
)
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.conditions import codes_of
from tests.metadata.local_metadata import LocalMetadata

OLD_KEYS = ("version", "pulls")
"""Fields that the registration of an old version lacks."""


class Cluster(LocalMetadata):
    """Two metadata nodes, three bookies and a proxy, of this version; the cluster is that of version 0.1."""

    listener = ""
    outcome_lost = False
    version_reads = 0

    def __init__(self) -> None:
        super().__init__()
        self.members = [
            MemberStatus(name, f"h:{name}", role, 1, 1, True, name, version=VERSION)
            for name, role in (("m1", "leader"), ("m2", "follower"))
        ]

    async def status(self) -> list[MemberStatus]:
        return list(self.members)

    async def get(self, key: bytes) -> Any:
        self.version_reads += key == CLUSTER_VERSION_KEY
        return await super().get(key)

    async def transact(self, transaction: Transaction) -> Any:
        reply = await super().transact(transaction)
        if self.outcome_lost and transaction.operations[0].key == CLUSTER_VERSION_KEY:
            self.outcome_lost = False
            raise OutcomeUnknown("the answer was lost")
        return reply

    async def put(self, *puts: Put | Delete) -> None:
        await self.transact(Transaction((), puts))

    async def add_bookie(self, name: str, *, older: bool = False) -> None:
        there = BookieRegistration(
            name, {"": ("h", 1)}, copies_assigned_ledgers=True, version=VERSION
        )
        fields = unpack(there.encode(), "a registration")
        if older:
            fields = {key: value for key, value in fields.items() if key not in OLD_KEYS}
        cookie = Put(keys.cookie_key(name), pack({"label": f"n{name}", "incarnation": 1}))
        await self.put(cookie, Put(keys.bookie_key(name), pack(fields)))


async def cluster(*older: str, kind: type[Cluster] = Cluster) -> Any:
    made = kind()
    for name in ("b1", "b2", "b3"):
        await made.add_bookie(name, older=name in older)
    proxy = ProxyRegistration("9f", "write", {"": ("h", 2)}, label="w1", version=VERSION)
    await made.put(Put(proxy.key, proxy.encode()))
    return made


async def test_status_names_the_versions_of_a_mixed_cluster_as_information() -> None:
    """A bookie that states nothing is "0.1 or older", and not one that does not repair."""
    mixed = await cluster("b1", "b2", "b3")
    found = await overview.status(mixed, 30.0)

    [differ] = found["conditions"]
    assert (differ["code"], differ["severity"]) == (Code.VERSIONS_DIFFER, "info")
    assert differ["parameters"]["versions"] == (
        f"0.1 or older on nb1, nb2, nb3; {VERSION} on m1, m2, w1"
    )
    assert found["health"] == "healthy"
    assert found["versions"] == {
        "finalized": "0.1",
        "nodes": {"0.1 or older": ["nb1", "nb2", "nb3"], VERSION: ["m1", "m2", "w1"]},
    }
    assert [row["version"] for row in found["bookies"]] == ["0.1 or older"] * 3
    assert [row["version"] for row in found["metadata"]] == [VERSION] * 2


async def test_status_of_an_upgraded_cluster_asks_for_the_finalization() -> None:
    upgraded = await cluster()
    found = await overview.status(upgraded, 30.0)
    assert codes_of(found["conditions"]) == [Code.UPGRADE_NOT_FINALIZED]
    assert (found["health"], list(found["versions"]["nodes"])) == ("healthy", [VERSION])

    upgraded.finalize()
    assert (await overview.status(upgraded, 30.0))["conditions"] == []


async def test_older_node_in_a_finalized_cluster_is_a_problem() -> None:
    mixed = await cluster("b2")
    mixed.finalize()
    found = await overview.status(mixed, 30.0)
    assert codes_of(found["conditions"]) == [Code.NODES_BELOW_FINALIZED, Code.VERSIONS_DIFFER]
    assert found["conditions"][0]["parameters"] == {"names": "nb2", "finalized": str(CURRENT)}
    assert found["health"] == "degraded"


async def test_unreadable_version_is_a_damaged_record() -> None:
    damaged = await cluster()
    await damaged.put(Put(CLUSTER_VERSION_KEY, b"unreadable"))
    found = await overview.status(damaged, 30.0)
    assert codes_of(found["conditions"]) == [Code.DAMAGED_RECORDS]
    assert found["versions"]["finalized"] is None


async def test_versions_of_bookies_are_those_that_they_state() -> None:
    mixed = await cluster("b1")
    nodes = (await check_finalize(mixed)).nodes
    stated = {node.name: node.version for node in nodes if node.kind == "bookie"}
    assert stated == {"nb1": "", "nb2": VERSION, "nb3": VERSION}


def test_node_that_is_down_has_no_version() -> None:
    nodes = [NodeVersion("m1", "metadata", VERSION), NodeVersion("b1", "bookie", None)]
    assert [one.code for one in version_conditions(UNREPORTED, nodes)] == [
        Code.UPGRADE_NOT_FINALIZED
    ]
    assert version_conditions(CURRENT, nodes) == []
    assert version_conditions(UNREPORTED, nodes[1:]) == []


async def test_finalization_is_confirmed_and_stored_once() -> None:
    upgraded = await cluster()
    with pytest.raises(ConfirmationRequired, match="return to version 0"):
        await finalize_upgrade(upgraded)
    assert (await read_cluster_version(upgraded)).finalized == UNREPORTED

    upgraded.outcome_lost = True
    upgraded.version_reads = 0
    result = await finalize_upgrade(upgraded, force=True)
    assert result.is_done
    assert upgraded.version_reads == 2, "one per attempt"
    assert await read_cluster_version(upgraded) == ClusterVersion(CURRENT)
    assert (await finalize_upgrade(upgraded)).is_done
    item = await upgraded.get(CLUSTER_VERSION_KEY)
    assert item is not None
    assert item.version == 1


async def test_unreadable_version_is_replaced_after_a_confirmation() -> None:
    damaged = await cluster()
    await damaged.put(Put(CLUSTER_VERSION_KEY, b"unreadable"))
    assert (await check_finalize(damaged)).finalized is None
    with pytest.raises(ConfirmationRequired, match="unreadable"):
        await finalize_upgrade(damaged)
    result = await finalize_upgrade(damaged, force=True)
    assert result.finalized == CURRENT
    assert await read_cluster_version(damaged) == ClusterVersion(CURRENT)

    await damaged.put(Put(CLUSTER_VERSION_KEY, pack([99, 0, 3])))
    with pytest.raises(UnsupportedFormat):  # a newer version of dlog reads it
        await finalize_upgrade(damaged, force=True)


async def test_older_node_that_registers_during_the_change_is_a_health_condition() -> None:
    """The check and the change are not one transaction."""

    class Late(Cluster):
        async def transact(self, transaction: Transaction) -> Any:
            if transaction.operations[0].key == CLUSTER_VERSION_KEY:
                await self.add_bookie("b4", older=True)
            return await super().transact(transaction)

    late = await cluster(kind=Late)
    assert (await finalize_upgrade(late, force=True)).is_done
    found = await overview.status(late, 30.0)
    assert found["conditions"][0]["code"] == Code.NODES_BELOW_FINALIZED
    assert found["conditions"][0]["parameters"]["names"] == "nb4"


async def test_finalization_names_nodes_that_are_older_or_down() -> None:
    mixed = await cluster("b2")
    mixed.members[1] = replace(
        mixed.members[1], role=MemberRole.UNREACHABLE.value, alive=False, version=""
    )
    await mixed.put(Delete(keys.bookie_key("b3")))
    with pytest.raises(UpgradeIncomplete) as refused:
        await finalize_upgrade(mixed, force=True)
    for words in (
        "bookie nb2 has version 0.1 or older",
        "metadata m2 is offline",
        "bookie nb3 is offline",
    ):
        assert words in str(refused.value)
    assert [node.name for node in (await check_finalize(mixed)).blocking] == ["m2", "nb2", "nb3"]
    assert (await read_cluster_version(mixed)).finalized == UNREPORTED


async def test_finalization_for_an_earlier_version_than_that_of_the_cluster_changes_nothing() -> (
    None
):
    newer = await cluster()
    newer.finalize(Version(99, 0))
    assert (await finalize_upgrade(newer, force=True)).finalized == Version(99, 0)


async def test_cluster_whose_leader_refuses_to_read_the_key_is_not_finalized() -> None:
    """Version 0.1 lets only operators read a key that it does not know."""

    class Older(LocalMetadata):
        async def get(self, key: bytes) -> Any:
            if key == CLUSTER_VERSION_KEY:
                raise NotAllowed(f"no row has {key!r}")
            return await super().get(key)

    assert await read_cluster_version(Older()) == ClusterVersion()
    with pytest.raises(NotAllowed):  # it may be finalized, so a downgrade may lose data
        await confirmed_cluster_version(Older())


async def test_confirmed_version_of_the_cluster_is_that_of_the_key() -> None:
    upgraded = await cluster()
    assert await confirmed_cluster_version(upgraded) == ClusterVersion()
    upgraded.finalize()
    assert await confirmed_cluster_version(upgraded) == ClusterVersion(CURRENT)


async def test_principal_without_rights_gets_the_refusal_and_not_an_older_version() -> None:
    class Refusing(LocalMetadata):
        async def get(self, key: bytes) -> Any:
            raise NotAllowed("anonymous may not read")

    with pytest.raises(NotAllowed):
        await read_cluster_version(Refusing())
