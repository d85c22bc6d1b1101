"""The connections of a metadata node to the other members, for Raft messages, snapshots and status.

Each node dials each other known member, so each direction has its own connection. A node replies over the
connection of the request only if it has no connection to the peer. A new node, or one that was away during
a change of the members, does not know its leader yet. A peer is dialed by its node ID. Another node at that
address, or the same machine with an emptied directory, is rejected (H5).
"""

from collections.abc import Mapping
from itertools import count

import trio

from ...runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DiskFailed,
    DistributedLogError,
    InvalidRequest,
    ProtocolError,
)
from ...runtime.interfaces.host import Address
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.interfaces.principals import METADATA
from ...runtime.net.client_link import ClientLink, OnFrame
from ...runtime.net.link import Link
from ...runtime.net.rpc import Endpoint
from ...runtime.primitives.backoff import Backoff
from ...runtime.protocol.frames import Op, envelope, pack, unpack
from ...runtime.protocol.handshake import FEATURE_ERROR_CODES
from ...runtime.protocol.schema import is_number
from ..declarations.events import SNAPSHOT_REFUSED, UNREACHABLE
from ..model.configuration import parse_host_port
from ..protocol.client_messages import MemberStatusRow, decode_rows, encode_digest
from ..raft.raft_messages import (
    AppendReply,
    HeartbeatReply,
    Message,
    PreVoteReply,
    SnapshotChunk,
    VoteReply,
    decode,
    encode,
)
from ..raft.ready import SendSnapshot, Snapshot
from ..replica.replica import RaftReplica
from ..storage.raft_storage import RaftStorage
from .bootstrap import Bootstrap
from .unknown_peers import UnknownPeers

log = get_logger("distributedlog.metadata.peers.raft_peers")

OUTGOING_BYTES_MAX = 16 * 1024 * 1024
"""A peer with this many unsent bytes receives nothing more. Raft repeats lost messages."""
REDIAL_MIN_S = 0.05
REDIAL_MAX_S = 1.0
REQUEST_TIMEOUT_S = 1.0
CHUNK_BYTES = 512 * 1024
CHUNK_TIMEOUT_S = 10.0
SNAPSHOT_RETRY_S = 10.0
"""Delay until a snapshot is sent again that the peer received completely and could not install.

The peer may be an older version that waits for its upgrade.
"""
REPLY_MESSAGES = PreVoteReply | VoteReply | AppendReply | HeartbeatReply


class RaftPeers:
    """All other members, by node ID."""

    def __init__(
        self,
        endpoint: Endpoint,
        configured_peers: Mapping[str, Address],
        replica: RaftReplica,
        nursery: trio.Nursery,
        cluster_id: str,
        own_name: str,
    ) -> None:
        """Create the peers. `on_members` connects to them.

        Args:
            endpoint: The endpoint of this node.
            configured_peers: Configured addresses by name, used if those of the members do not answer.
            replica: The replica that receives the messages.
            nursery: Runs the connections.
            cluster_id: The cluster of this node.
            own_name: The name of this node in ``configured_peers``.
        """
        self.advertised: dict[str, dict[str, str]] = {}
        """The advertised addresses of each peer, by listener name."""
        self.connect_errors: dict[str, str] = {}
        self._endpoint = endpoint
        self._failures = endpoint.failures
        self._configured_peers = configured_peers
        self._own_name = own_name
        self._replica = replica
        self._cluster_id = cluster_id
        self._nursery = nursery
        self._links: dict[str, ClientLink] = {}
        self._last_encoded: tuple[Message | None, bool, bytes] = None, True, b""
        self._reply_links: dict[str, Link] = {}
        self._connection_scopes: dict[str, trio.CancelScope] = {}
        self.unknown_peers = UnknownPeers(
            replica.raft, endpoint, self._all_member_addresses, cluster_id, nursery
        )

    def on_members(self) -> None:
        """Connect to the present members, and close the connections to former ones."""
        self.unknown_peers.on_members()
        current_peers = self._replica.raft.peers
        for peer in [peer for peer in self._connection_scopes if peer not in current_peers]:
            self._connection_scopes.pop(peer).cancel()
            self.connect_errors.pop(peer, None)
        for peer in current_peers:
            if peer not in self._connection_scopes:
                scope = self._connection_scopes[peer] = trio.CancelScope()
                self._nursery.start_soon(self._run_connection, peer, scope)

    def peers_without_feature(self, feature: int) -> list[str]:
        """Return the names of the other voters that are not known to have this feature.

        Such a voter is older, or not connected now. Learners are not checked.
        """
        names = []
        for peer in self._replica.raft.voters:
            link = self._links.get(peer)
            if peer == self._replica.raft.node_id:
                continue
            if link is None or link.closed is not None or not link.peer.features & feature:
                names.append(self.name_of(peer))
        return names

    def on_message_from(self, peer: str, link: Link) -> None:
        """Use ``link`` for replies to a node that has sent a message on it."""
        self._reply_links[peer] = link

    def send(self, peer: str, message: Message) -> None:
        """Send a message, or drop it if there is no connection."""
        link: Link | None = self._links.get(peer)
        if link is None and isinstance(message, REPLY_MESSAGES):
            link = self._reply_links.get(peer)
            if link is not None and link.closed is not None:
                del self._reply_links[peer]
        if link is not None and link.closed is None and link.outgoing_bytes < OUTGOING_BYTES_MAX:
            codes = bool(link.peer.features & FEATURE_ERROR_CODES)
            encoded, form, body = self._last_encoded
            # One append is encoded once for all its receivers.
            if message is not encoded or form is not codes:
                body = encode(message, codes=codes)
                self._last_encoded = message, codes, body
            link.send(envelope(Op.META_RAFT, len(body)), body)

    def notify_state_differs(self, peer: str, index: int, digest: int) -> None:
        """Send the digest of the majority after entry ``index``. Dropped if there is no connection."""
        link = self._links.get(peer)
        if link is not None and link.closed is None and link.outgoing_bytes < OUTGOING_BYTES_MAX:
            body = encode_digest(index, digest)
            link.send(envelope(Op.META_DIFFERS, len(body)), body)

    async def request(self, peer: str, op: int, body: bytes, *, feature: int = 0) -> memoryview:
        """Send a request to a peer and return the body of its reply.

        Args:
            peer: The node ID of the peer.
            op: The operation.
            body: The body of the request.
            feature: The feature that the operation needs. A peer without it would close the connection,
                which Raft also uses.

        Raises:
            ConnectionLost: There is no connection to the peer.
            InvalidRequest: The peer lacks the feature.
            DistributedLogError: The error with which the peer replies.
        """
        link = self._links.get(peer)
        if link is None:
            raise ConnectionLost(f"no connection to metadata node {self.name_of(peer)}")
        if not link.peer.features & feature == feature:
            raise InvalidRequest(f"metadata node {self.name_of(peer)} is older: upgrade it first")
        return (await link.request(op, body, timeout_s=REQUEST_TIMEOUT_S)).body

    async def query_status(self, peer: str) -> MemberStatusRow | None:
        """Return the status that a peer reports, or None."""
        link = self._links.get(peer)
        if link is None or link.closed is not None:
            return None
        try:
            rows = decode_rows(
                (
                    await link.request(Op.META_STATUS, pack(["self"]), timeout_s=REQUEST_TIMEOUT_S)
                ).body
            )
        except DistributedLogError:
            return None
        return rows[0] if rows else None

    async def _run_connection(self, peer: str, scope: trio.CancelScope) -> None:
        """Keep the connection to one peer, while it is a member."""
        unit = f"the connection to metadata node {self.name_of(peer)}"
        with scope:
            await self._failures.keep_running(unit, self._connect_loop, peer)
        if self._links.pop(peer, None) is not None:
            self._replica.on_connection_closed(peer)

    def _addresses_of(self, peer: str) -> list[Address]:
        member = self._replica.raft.configuration.member(peer)
        if member is None:
            return []
        addresses = [parse_host_port(member.address), self._configured_peers.get(member.name)]
        own_addresses = self._own_addresses()
        return [
            address
            for n, address in enumerate(addresses)
            if address and address not in addresses[:n] and address not in own_addresses
        ]

    def _own_addresses(self) -> set[Address | None]:
        """Return the addresses of this node as a member and in the configuration.

        If the address of another member is among them, this node has taken its place.
        """
        raft = self._replica.raft
        own_member = raft.configuration.member(raft.node_id)
        addresses = {self._configured_peers.get(self._own_name)}
        if own_member is not None:
            addresses |= {
                parse_host_port(own_member.address),
                self._configured_peers.get(own_member.name),
            }
        return addresses

    def _all_member_addresses(self) -> list[Address]:
        """Return the present and the configured addresses of the members, except those of this node."""
        own_addresses = self._own_addresses()
        member_addresses = [
            parse_host_port(member.address) for member in self._replica.raft.configuration.members
        ]
        return [
            address
            for address in [*member_addresses, *self._configured_peers.values()]
            if address and address not in own_addresses
        ]

    def name_of(self, peer: str) -> str:
        """Return the name of a member, or the ID of a node that is not a member, for messages."""
        member = self._replica.raft.configuration.member(peer)
        return member.name if member is not None else peer

    async def _connect_loop(self, peer: str) -> None:
        redial = Backoff(REDIAL_MIN_S, REDIAL_MAX_S)
        for attempt in count():
            addresses = self._addresses_of(peer)
            if (
                not addresses
            ):  # Or its address is this node's, which replaces it. It will soon be removed.
                if self.name_of(peer) != self._own_name:
                    self._record_connect_error(peer, ConnectionLost("its address is unknown"))
                await trio.sleep(REDIAL_MAX_S)
                continue
            address = addresses[attempt % len(addresses)]
            try:
                async with trio.open_nursery() as nursery:
                    link = await self._endpoint.dial(
                        address, nursery=nursery, expected_node_id=peer, kind=METADATA
                    )
                    ended = trio.Event()
                    link.subscribe(
                        self._make_frame_handler(peer, link),
                        on_batch=self._replica.drain,
                        on_closed=lambda _, ended=ended: ended.set(),  # type: ignore[misc]
                    )
                    # a member that has not joined the cluster yet (H5)
                    if not link.peer.cluster_id:
                        await link.request(
                            Op.META_FORM,
                            self._bootstrap_for(peer).encode(),
                            timeout_s=REQUEST_TIMEOUT_S,
                        )
                    self._links[peer] = link
                    self.connect_errors.pop(peer, None)
                    redial.reset()
                    row = await self.query_status(peer)
                    if row is not None:
                        self.advertised[peer] = row.advertised
                    if link.closed is None:
                        await ended.wait()
                    nursery.cancel_scope.cancel()
            except DistributedLogError as error:
                self._record_connect_error(peer, error)
            except BaseExceptionGroup as group:
                others = group.split(DistributedLogError)[1]
                if others is not None:
                    raise
                self._record_connect_error(peer, ConnectionLost(str(group.exceptions[0])))
            if self._links.pop(peer, None) is not None:
                self._replica.on_connection_closed(peer)
            await trio.sleep(redial.next_s())

    def _bootstrap_for(self, node_id: str) -> Bootstrap:
        """Return the message by which a member without data joins: the founding, or its addition (H5)."""
        raft = self._replica.raft
        if raft.log.base_index == 0:
            founders = raft.log.configuration_at(0)
            if node_id in founders.voters:
                return Bootstrap(self._cluster_id, {m.name: m.node_id for m in founders.members})
        member = raft.configuration.member(node_id)
        return Bootstrap(
            self._cluster_id, {member.name if member else "": node_id}, is_addition=True
        )

    def _make_frame_handler(self, peer: str, link: ClientLink) -> OnFrame:
        def on_frame(op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
            message = decode(body) if op == Op.META_RAFT else None
            if not isinstance(message, REPLY_MESSAGES) or message.sender != peer:
                raise ProtocolError(
                    f"{link.peer_address} sent operation {op}, which is not a reply"
                )
            self._replica.on_message(message)

        return on_frame

    def _record_connect_error(self, peer: str, error: DistributedLogError) -> None:
        if self.connect_errors.get(peer) != str(error):
            self.connect_errors[peer] = str(error)
            name, why = self.name_of(peer), str(error)
            UNREACHABLE.emit(
                log, "metadata node %s is unreachable: %s", name, why, peer=name, why=why
            )

    async def send_snapshot(
        self,
        term: int,
        sender: str,
        snapshot_request: SendSnapshot,
        snapshot: Snapshot,
        storage: RaftStorage,
    ) -> float:
        """Send a snapshot file in chunks. Continue at the offset that the peer reports.

        Returns:
            0.0 when the peer has installed it. Otherwise the seconds to wait until the next attempt, which
            is `SNAPSHOT_RETRY_S` if the peer cannot install it.
        """
        link = self._links.get(snapshot_request.peer)
        if link is None:
            return REQUEST_TIMEOUT_S
        try:
            file = await storage.snapshots.open(snapshot)
        except FileNotFoundError:
            return REQUEST_TIMEOUT_S  # it was just replaced by a newer one
        except DistributedLogError as error:
            log.info(
                "cannot send a snapshot to %s now: %s", self.name_of(snapshot_request.peer), error
            )
            return SNAPSHOT_RETRY_S if isinstance(error, DiskFailed) else REQUEST_TIMEOUT_S
        try:
            total, offset = file.size(), 0
            while offset < total:
                data = await file.read_in_worker(offset, CHUNK_BYTES)
                chunk = SnapshotChunk(
                    term, sender, snapshot.index, snapshot.term, offset, total, data
                )
                reply = await link.request(Op.META_RAFT, encode(chunk), timeout_s=CHUNK_TIMEOUT_S)
                match unpack(reply.body, "a snapshot's progress"):
                    case [0] if offset + len(data) == total:
                        SNAPSHOT_REFUSED.emit(
                            log,
                            "metadata node %s cannot install the snapshot at entry %d. Its log states the"
                            " cause, usually an older version. The next attempt is in %.0f s",
                            self.name_of(snapshot_request.peer),
                            snapshot.index,
                            SNAPSHOT_RETRY_S,
                            peer=self.name_of(snapshot_request.peer),
                            entry=snapshot.index,
                        )
                        return SNAPSHOT_RETRY_S
                    case [next_offset] if is_number(next_offset) and offset != next_offset <= total:
                        offset = next_offset
                    case _:
                        raise ProtocolError(
                            f"{link.peer_address} does not accept the snapshot's chunks"
                        )
            return 0.0
        except DistributedLogError as error:
            log.info(
                "sending a snapshot to %s ended: %s", self.name_of(snapshot_request.peer), error
            )
            return SNAPSHOT_RETRY_S if isinstance(error, CorruptData) else REQUEST_TIMEOUT_S
        finally:
            file.close()
