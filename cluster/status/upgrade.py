"""Finalize an upgrade: permit the formats of this version, after which no downgrade is possible.

Until then, all programs write what the older version reads, so each node can return to it. Clients
learn the version when they need it (`metadata/model/cluster_version.py`). The check uses the registrations
and the status of the metadata nodes. It detects no clients, and no node of an older version that registers
between the check and the change. Such a node is a health condition (`Code.NODES_BELOW_FINALIZED`), and is
refused at its next start if it is newer than 0.1.
"""

from contextlib import suppress
from dataclasses import dataclass, replace

from ...metadata.model.cluster_version import (
    CLUSTER_VERSION_KEY,
    ClusterVersion,
    get_newer_key,
)
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.declarations.versions import CURRENT, UNREPORTED, GatedFormat, Version
from ...runtime.interfaces.errors import (
    ConfirmationRequired,
    CorruptData,
    OutcomeUnknown,
    UpgradeIncomplete,
)
from .cluster_overview import read_bookies
from .cluster_versions import NodeVersion, node_versions
from .proxy_overview import registered_proxies


@dataclass(frozen=True, slots=True)
class FinalizeCheck:
    """Whether the upgrade of a cluster to a version can be finalized."""

    finalized: Version | None
    """The version for which the cluster is finalized, or None if it is unreadable."""
    target: Version
    """The version of this program, for which it would be finalized."""
    nodes: tuple[NodeVersion, ...]
    stored_version: int
    """The number of changes of the key with the version, for a transaction. 0 if the key is absent."""

    @property
    def is_done(self) -> bool:
        """Whether the cluster is finalized for the target, or for a newer version."""
        return self.finalized is not None and self.finalized >= self.target

    @property
    def blocking(self) -> tuple[NodeVersion, ...]:
        """The nodes that are offline or have an older version than the target."""
        return tuple(node for node in self.nodes if not node.runs(self.target))

    @property
    def formats(self) -> tuple[GatedFormat, ...]:
        """The formats that the change would permit."""
        finalized = self.finalized or UNREPORTED
        return tuple(
            gated
            for gated in GatedFormat
            if gated.is_permitted(self.target) and not gated.is_permitted(finalized)
        )

    @property
    def consequence(self) -> str:
        """The reason why the change needs a confirmation."""
        titles = " and ".join(gated.title for gated in self.formats)
        if self.finalized is None:
            return (
                f"The stored version is unreadable, and version {self.target} replaces it. If the cluster was"
                f" finalized for a newer version, use that version of dlog. Programs may write {titles}"
            )
        return (
            f"Afterwards no node or client can return to version {self.finalized}: programs may write"
            f" {titles}"
        )


async def check_finalize(metadata: Metadata, target: Version = CURRENT) -> FinalizeCheck:
    """Check all metadata nodes, all bookies with a cookie, and the registered proxies.

    Raises:
        NotAllowed: The principal may not read the registrations.
        UnsupportedFormat: A newer version wrote the stored version.
    """
    # read before the nodes, so that a change in between makes the transaction of `finalize_upgrade` fail
    item = await get_newer_key(metadata, CLUSTER_VERSION_KEY)
    nodes = node_versions(
        await metadata.status(), await read_bookies(metadata), await registered_proxies(metadata)
    )
    finalized: Version | None = None
    with suppress(CorruptData):
        stored = ClusterVersion() if item is None else ClusterVersion.decode(item.value)
        finalized = stored.finalized
    return FinalizeCheck(finalized, target, tuple(nodes), 0 if item is None else item.version)


async def finalize_upgrade(
    metadata: Metadata, target: Version = CURRENT, *, force: bool = False
) -> FinalizeCheck:
    """Finalize the cluster for a version. A repetition has no effect. An unreadable version is replaced.

    Args:
        metadata: The metadata store, with the rights of an administrator.
        target: The version.
        force: Do it without a confirmation.

    Returns:
        The state after the change.

    Raises:
        UpgradeIncomplete: A node is offline or has an older version.
        ConfirmationRequired: The change needs ``force``.
        NotAllowed: The principal is no administrator.
        UnsupportedFormat: A newer version wrote the stored version.
    """
    while True:
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
            raise ConfirmationRequired(check.consequence)
        unchanged = Compare.version(CLUSTER_VERSION_KEY, check.stored_version)
        change = Transaction(
            (unchanged,), (Put(CLUSTER_VERSION_KEY, ClusterVersion(target).encode()),)
        )
        try:
            reply = await metadata.transact(change)
        except OutcomeUnknown:
            continue  # the next iteration reads whether it was made
        if reply.succeeded:
            return replace(check, finalized=target)
