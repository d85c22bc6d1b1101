"""The connections from one metadata node to the others: Raft's messages, snapshots, who answers.

Each node dials each other member that it knows of, so a message has one way. Only an answer goes back over
the connection that its question came on, where there is no other: a node that is let in, or was away while
the members changed, does not know its leader yet. A peer is dialled by its id: whoever has taken its
address, or the same machine with an emptied directory, is told so and is no peer (H5).
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
"""A peer that reads nothing gets nothing more: Raft sends again what was lost."""
REDIAL_MIN_S = 0.05
REDIAL_MAX_S = 1.0
REQUEST_TIMEOUT_S = 1.0
CHUNK_BYTES = 512 * 1024
CHUNK_TIMEOUT_S = 10.0
SNAPSHOT_RETRY_S = 10.0
"""A snapshot that a peer has had whole and could not take is sent again after so long: a node of before, say,
which waits for its upgrade."""
REPLY_MESSAGES = PreVoteReply | VoteReply | AppendReply | HeartbeatReply


class RaftPeers:
    """All other members, by node id."""

    def __init__(
        self,
        endpoint: Endpoint,
        configured_peers: Mapping[str, Address],
        replica: RaftReplica,
        nursery: trio.Nursery,
        cluster_id: str,
        own_name: str,
    ) -> None:
        """``listed``: addresses by name, tried where the configuration's do not answer.

        ``own_name``: ours in that list.
        """
        self.advertised: dict[str, dict[str, str]] = {}
        """What each peer advertises, by listener name."""
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
        """Connect to those that are members now, and to nobody else."""
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
        """The names of the other voters that do not say that they know it: older, or not there to ask."""
        names = []
        for peer in self._replica.raft.voters:
            link = self._links.get(peer)
            if peer == self._replica.raft.node_id:
                continue
            if link is None or link.closed is not None or not link.peer.features & feature:
                names.append(self.name_of(peer))
        return names

    def on_message_from(self, peer: str, link: Link) -> None:
        """A node speaks to us: its answer finds a way back."""
        self._reply_links[peer] = link

    def send(self, peer: str, message: Message) -> None:
        """Send, or drop where there is no connection."""
        link: Link | None = self._links.get(peer)
        if link is None and isinstance(message, REPLY_MESSAGES):
            link = self._reply_links.get(peer)
            if link is not None and link.closed is not None:
                del self._reply_links[peer]
        if link is not None and link.closed is None and link.outgoing_bytes < OUTGOING_BYTES_MAX:
            codes = bool(link.peer.features & FEATURE_ERROR_CODES)
            encoded, form, body = self._last_encoded
            if message is not encoded or form is not codes:  # one append for all its receivers
                body = encode(message, codes=codes)
                self._last_encoded = message, codes, body
            link.send(envelope(Op.META_RAFT, len(body)), body)

    def notify_state_differs(self, peer: str, index: int, digest: int) -> None:
        """Say what the state of most was after entry ``index``; dropped where there is no connection."""
        link = self._links.get(peer)
        if link is not None and link.closed is None and link.outgoing_bytes < OUTGOING_BYTES_MAX:
            body = encode_digest(index, digest)
            link.send(envelope(Op.META_DIFFERS, len(body)), body)

    async def request(self, peer: str, op: int, body: bytes, *, feature: int = 0) -> memoryview:
        """A question to a peer. Raises `ConnectionLost` where there is no connection, and what it answers.

        ``feature``: raises `InvalidRequest` where it does not know that: it would hang up, and Raft with it.
        """
        link = self._links.get(peer)
        if link is None:
            raise ConnectionLost(f"no connection to metadata node {self.name_of(peer)}")
        if not link.peer.features & feature == feature:
            raise InvalidRequest(f"metadata node {self.name_of(peer)} is older: upgrade it first")
        return (await link.request(op, body, timeout_s=REQUEST_TIMEOUT_S)).body

    async def query_status(self, peer: str) -> MemberStatusRow | None:
        """What a peer says of itself, or None."""
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
        """Hold the connection to one peer, for as long as it is one."""
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
        """Ours as a member, and in the list: where another member is said to be here, we took its place."""
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
        """Where members are, or were when the list was written; but us."""
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
        """For people: a member's name, or the id of who is none."""
        member = self._replica.raft.configuration.member(peer)
        return member.name if member is not None else peer

    async def _connect_loop(self, peer: str) -> None:
        redial = Backoff(REDIAL_MIN_S, REDIAL_MAX_S)
        for attempt in count():
            addresses = self._addresses_of(peer)
            if (
                not addresses
            ):  # or it is ours: the one whose place we have is gone, and soon no member
                if self.name_of(peer) != self._own_name:
                    self._record_connect_error(peer, ConnectionLost("its address is not known"))
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
                    if not link.peer.cluster_id:  # it belongs to us and was not told yet (H5)
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
        """Return what a member without data is told: the founding, if it is one of the founders (H5)."""
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
                    f"{link.peer_address} sent operation {op}, which answers nothing"
                )
            self._replica.on_message(message)

        return on_frame

    def _record_connect_error(self, peer: str, error: DistributedLogError) -> None:
        if self.connect_errors.get(peer) != str(error):
            self.connect_errors[peer] = str(error)
            name, why = self.name_of(peer), str(error)
            UNREACHABLE.emit(
                log, "metadata node %s cannot be reached: %s", name, why, peer=name, why=why
            )

    async def send_snapshot(
        self,
        term: int,
        sender: str,
        snapshot_request: SendSnapshot,
        snapshot: Snapshot,
        storage: RaftStorage,
    ) -> float:
        """Send a snapshot file in chunks, resumed where the peer says.

        0.0 when it has taken it; else how many seconds to wait before it is tried again: `SNAPSHOT_RETRY_S`
        where it cannot be taken as it is.
        """
        link = self._links.get(snapshot_request.peer)
        if link is None:
            return REQUEST_TIMEOUT_S
        try:
            file = await storage.snapshots.open(snapshot)
        except FileNotFoundError:
            return REQUEST_TIMEOUT_S  # a newer one has just taken its place
        except DistributedLogError as error:
            log.info(
                "no snapshot is sent to %s now: %s", self.name_of(snapshot_request.peer), error
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
                            "metadata node %s cannot take the snapshot at entry %d, its log says why: is it"
                            " an older version? It is sent again in %.0f s",
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
                            f"{link.peer_address} does not take the snapshot's chunks"
                        )
            return 0.0
        except DistributedLogError as error:
            log.info(
                "sending a snapshot to %s ended: %s", self.name_of(snapshot_request.peer), error
            )
            return SNAPSHOT_RETRY_S if isinstance(error, CorruptData) else REQUEST_TIMEOUT_S
        finally:
            file.close()
