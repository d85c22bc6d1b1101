"""Finalize an upgrade: permit the formats of this version, after which no downgrade is possible.

Until then, all programs write what the older version reads, so each node can return to it. Clients
learn the version when they need it (`metadata/model/cluster_version.py`). The check uses the registrations
and the status of the metadata nodes. It detects neither clients nor nodes of 0.1 that are started later.
"""

from dataclasses import dataclass, replace

from ...metadata.client.metadata_client import MetadataClient
from ...metadata.model.cluster_version import (
    CLUSTER_VERSION_KEY,
    ClusterVersion,
    read_cluster_version,
)
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.declarations.versions import CURRENT, GatedFormat, Version
from ...runtime.interfaces.errors import ConfirmationRequired, OutcomeUnknown, UpgradeIncomplete
from .cluster_overview import bookies
from .cluster_versions import NodeVersion, node_versions
from .proxy_overview import registered_proxies


@dataclass(frozen=True, slots=True)
class FinalizeCheck:
    """Whether the upgrade of a cluster to a version can be finalized."""

    finalized: Version
    """The version for which the cluster is finalized."""
    target: Version
    """The version of this program, for which it would be finalized."""
    nodes: tuple[NodeVersion, ...]

    @property
    def is_done(self) -> bool:
        """Whether the cluster is finalized for the target, or for a newer version."""
        return self.finalized >= self.target

    @property
    def blocking(self) -> tuple[NodeVersion, ...]:
        """The nodes that are down or have an older version than the target."""
        return tuple(node for node in self.nodes if not node.runs(self.target))

    @property
    def formats(self) -> tuple[GatedFormat, ...]:
        """The formats that the change would permit."""
        return tuple(
            gated
            for gated in GatedFormat
            if gated.is_permitted(self.target) and not gated.is_permitted(self.finalized)
        )


async def check_finalize(metadata: MetadataClient, target: Version = CURRENT) -> FinalizeCheck:
    """Check all metadata nodes, all bookies with a cookie, and the registered proxies.

    Raises:
        NotAllowed: The principal may not read the registrations.
        CorruptData, UnsupportedFormat: The stored version is unreadable.
    """
    current = await read_cluster_version(metadata)
    nodes = node_versions(
        await metadata.status(), await bookies(metadata), await registered_proxies(metadata)
    )
    return FinalizeCheck(current.finalized, target, tuple(nodes))


async def finalize_upgrade(
    metadata: MetadataClient, now_ms: int, target: Version = CURRENT, *, force: bool = False
) -> FinalizeCheck:
    """Finalize the cluster for a version. A repetition has no effect.

    Args:
        metadata: The metadata client of an administrator.
        now_ms: The time in ms since 1970.
        target: The version.
        force: Do it without a confirmation.

    Returns:
        The state after the change.

    Raises:
        UpgradeIncomplete: A node is down or has an older version.
        ConfirmationRequired: The change needs ``force``.
        NotAllowed: The principal is no administrator.
        CorruptData, UnsupportedFormat: The stored version is unreadable.
    """
    while True:
        # read before the check, so that a change in between makes the transaction fail
        stored = await metadata.get(CLUSTER_VERSION_KEY)
        check = await check_finalize(metadata, target)
        if check.is_done:
            return check
        if check.blocking:
            raise UpgradeIncomplete(
                f"the upgrade to version {target} cannot be finalized: "
                + ", ".join(map(str, check.blocking))
                + ". Upgrade these nodes or start them, or remove them from the cluster"
            )
        if not force:
            raise ConfirmationRequired(
                f"Afterwards no node or client can return to version {check.finalized}: programs may write "
                + " and ".join(gated.title for gated in check.formats)
            )
        principal = (await metadata.authorization_report(own=True)).principal
        record = ClusterVersion(target, now_ms, principal)
        unchanged = Compare.version(CLUSTER_VERSION_KEY, 0 if stored is None else stored.version)
        change = Transaction((unchanged,), (Put(CLUSTER_VERSION_KEY, record.encode()),))
        try:
            reply = await metadata.transact(change)
        except OutcomeUnknown:
            continue  # the next iteration reads whether it was made
        if reply.succeeded:
            return replace(check, finalized=target)
