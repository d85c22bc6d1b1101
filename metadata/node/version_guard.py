"""The version of the cluster on a metadata node: written into a new cluster, and checked by each node.

A cluster that forms now has no older node, so it is finalized for its version from the start. The leader
stores this after every voter has stated that version. If a founder is older, or this is not done within
`FOUNDING_S`, or all nodes restart before, the key stays absent, as in a cluster of version 0.1, and an
operator finalizes the cluster. A later upgrade of that founder must not do it, because other nodes and
clients can still be older.

A node of a lower version than the cluster's ends with `UnsupportedFormat` before it serves clients, or when
it applies the change. Builds up to version 0.1 do not know the key, and continue.
"""

import trio

from ...runtime.declarations.versions import UNREPORTED, parse_version
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ..model.cluster_version import CLUSTER_VERSION_KEY, ClusterVersion
from ..model.commands import Transact, encode_command
from ..model.transaction import Compare, Put, Transaction
from ..peers.raft_peers import RaftPeers
from ..replica.replica import RaftReplica

RETRY_S = 0.02
"""Interval at which the leader of a new cluster checks whether all voters are connected."""
FOUNDING_S = 60.0
"""After this time no node gives a new cluster its version."""


class VersionGuard:
    """Writes and checks the version of the cluster, for one metadata node."""

    def __init__(self, replica: RaftReplica, peers: RaftPeers, version: str) -> None:
        """Create the guard of a node that states this version."""
        self._replica = replica
        self._peers = peers
        self._version = parse_version(version)
        self._checked_revision = 0

    def check(self) -> None:
        """End the node if the cluster is finalized for a newer version. Called after each change."""
        item = self._replica.state.get(CLUSTER_VERSION_KEY)
        if item is None or item.mod_revision == self._checked_revision:
            return
        self._checked_revision = item.mod_revision
        try:
            ClusterVersion.decode(item.value).check_node()
        except UnsupportedFormat as error:
            self._replica.fail(error)
        except CorruptData:
            return  # `dlog status` lists the record; no version is known to be too old

    async def write_first_version(self) -> None:
        """Finalize a new cluster for its version. Returns when this is done, or is left to an operator."""
        if self._version == UNREPORTED:
            return  # without the key, the cluster is one of this version
        replica, deadline = self._replica, trio.current_time() + FOUNDING_S
        while replica.state.get(CLUSTER_VERSION_KEY) is None and trio.current_time() < deadline:
            if replica.is_leader:
                versions = await self._voter_versions()
                if any(
                    text is not None and parse_version(text) < self._version for text in versions
                ):
                    return
                if None not in versions and replica.is_leader:
                    self._propose()
            await trio.sleep(RETRY_S)

    async def _voter_versions(self) -> list[str | None]:
        """Return the versions that the other voters state, and None for each that does not answer."""
        rows = [
            await self._peers.query_status(voter)
            for voter in self._replica.raft.voters
            if voter != self._replica.raft.node_id
        ]
        return [None if row is None else row.status.version for row in rows]

    def _propose(self) -> None:
        """Propose the version. A concurrent or repeated proposal has no effect."""
        record = ClusterVersion(self._version)
        absent = Compare.version(CLUSTER_VERSION_KEY, 0)
        change = Transaction((absent,), (Put(CLUSTER_VERSION_KEY, record.encode()),))
        self._replica.propose(encode_command(Transact(transaction=change)), lambda answer: None)
        self._replica.drain()
