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
from ...runtime.protocol.handshake import FEATURE_CODES
from ...runtime.protocol.schema import is_number
from ..declarations.events import SNAPSHOT_REFUSED, UNREACHABLE
from ..model.configuration import parse_place
from ..protocol.client_messages import Row, decode_rows, encode_digest
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
ASK_S = 1.0
CHUNK_BYTES = 512 * 1024
CHUNK_S = 10.0
REFUSED_S = 10.0
"""A snapshot that a peer has had whole and could not take is sent again after so long: a node of before, say,
which waits for its upgrade."""
ANSWERS = PreVoteReply | VoteReply | AppendReply | HeartbeatReply


class RaftPeers:
    """All other members, by node id."""

    def __init__(
        self,
        endpoint: Endpoint,
        listed: Mapping[str, Address],
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
        self.refusals: dict[str, str] = {}
        self._endpoint = endpoint
        self._failures = endpoint.failures
        self._listed = listed
        self._own_name = own_name
        self._replica = replica
        self._cluster_id = cluster_id
        self._nursery = nursery
        self._links: dict[str, ClientLink] = {}
        self._encoded: tuple[Message | None, bool, bytes] = None, True, b""
        self._ways_back: dict[str, Link] = {}
        self._kept: dict[str, trio.CancelScope] = {}
        self.strangers = UnknownPeers(replica.raft, endpoint, self._all_places, cluster_id, nursery)

    def on_members(self) -> None:
        """Connect to those that are members now, and to nobody else."""
        self.strangers.on_members()
        wanted = self._replica.raft.peers
        for peer in [peer for peer in self._kept if peer not in wanted]:
            self._kept.pop(peer).cancel()
            self.refusals.pop(peer, None)
        for peer in wanted:
            if peer not in self._kept:
                scope = self._kept[peer] = trio.CancelScope()
                self._nursery.start_soon(self._keep, peer, scope)

    def lacking(self, feature: int) -> list[str]:
        """The names of the other voters that do not say that they know it: older, or not there to ask."""
        found = []
        for peer in self._replica.raft.voters:
            link = self._links.get(peer)
            if peer == self._replica.raft.node_id:
                continue
            if link is None or link.closed is not None or not link.peer.features & feature:
                found.append(self.name(peer))
        return found

    def on_heard(self, peer: str, link: Link) -> None:
        """A node speaks to us: its answer finds a way back."""
        self._ways_back[peer] = link

    def send(self, peer: str, message: Message) -> None:
        """Send, or drop where there is no connection."""
        link: Link | None = self._links.get(peer)
        if link is None and isinstance(message, ANSWERS):
            link = self._ways_back.get(peer)
            if link is not None and link.closed is not None:
                del self._ways_back[peer]
        if link is not None and link.closed is None and link.outgoing_bytes < OUTGOING_BYTES_MAX:
            codes = bool(link.peer.features & FEATURE_CODES)
            encoded, form, body = self._encoded
            if message is not encoded or form is not codes:  # one append for all its receivers
                body = encode(message, codes=codes)
                self._encoded = message, codes, body
            link.send(envelope(Op.META_RAFT, len(body)), body)

    def tell_wrong(self, peer: str, index: int, digest: int) -> None:
        """Say what the state of most was after entry ``index``; dropped where there is no connection."""
        link = self._links.get(peer)
        if link is not None and link.closed is None and link.outgoing_bytes < OUTGOING_BYTES_MAX:
            body = encode_digest(index, digest)
            link.send(envelope(Op.META_DIFFERS, len(body)), body)

    async def ask(self, peer: str, op: int, body: bytes, *, feature: int = 0) -> memoryview:
        """A question to a peer. Raises `ConnectionLost` where there is no connection, and what it answers.

        ``feature``: raises `InvalidRequest` where it does not know that: it would hang up, and Raft with it.
        """
        link = self._links.get(peer)
        if link is None:
            raise ConnectionLost(f"no connection to metadata node {self.name(peer)}")
        if not link.peer.features & feature == feature:
            raise InvalidRequest(f"metadata node {self.name(peer)} is older: upgrade it first")
        return (await link.request(op, body, timeout_s=ASK_S)).body

    async def ask_status(self, peer: str) -> Row | None:
        """What a peer says of itself, or None."""
        link = self._links.get(peer)
        if link is None or link.closed is not None:
            return None
        try:
            rows = decode_rows(
                (await link.request(Op.META_STATUS, pack(["self"]), timeout_s=ASK_S)).body
            )
        except DistributedLogError:
            return None
        return rows[0] if rows else None

    async def _keep(self, peer: str, scope: trio.CancelScope) -> None:
        """Hold the connection to one peer, for as long as it is one."""
        unit = f"the connection to metadata node {self.name(peer)}"
        with scope:
            await self._failures.keep(unit, self._hold, peer)
        if self._links.pop(peer, None) is not None:
            self._replica.on_connection_closed(peer)

    def _places(self, peer: str) -> list[Address]:
        member = self._replica.raft.configuration.member(peer)
        if member is None:
            return []
        places = [parse_place(member.address), self._listed.get(member.name)]
        own = self._own_places()
        return [
            place
            for n, place in enumerate(places)
            if place and place not in places[:n] and place not in own
        ]

    def _own_places(self) -> set[Address | None]:
        """Ours as a member, and in the list: where another member is said to be here, we took its place."""
        raft = self._replica.raft
        ours = raft.configuration.member(raft.node_id)
        found = {self._listed.get(self._own_name)}
        if ours is not None:
            found |= {parse_place(ours.address), self._listed.get(ours.name)}
        return found

    def _all_places(self) -> list[Address]:
        """Where members are, or were when the list was written; but us."""
        own = self._own_places()
        known = [parse_place(member.address) for member in self._replica.raft.configuration.members]
        return [place for place in [*known, *self._listed.values()] if place and place not in own]

    def name(self, peer: str) -> str:
        """For people: a member's name, or the id of who is none."""
        member = self._replica.raft.configuration.member(peer)
        return member.name if member is not None else peer

    async def _hold(self, peer: str) -> None:
        redial = Backoff(REDIAL_MIN_S, REDIAL_MAX_S)
        for turn in count():
            places = self._places(peer)
            if not places:  # or it is ours: the one whose place we have is gone, and soon no member
                if self.name(peer) != self._own_name:
                    self._note(peer, ConnectionLost("its address is not known"))
                await trio.sleep(REDIAL_MAX_S)
                continue
            place = places[turn % len(places)]
            try:
                async with trio.open_nursery() as nursery:
                    link = await self._endpoint.dial(
                        place, nursery=nursery, expected_node_id=peer, kind=METADATA
                    )
                    ended = trio.Event()
                    link.subscribe(
                        self._frames_of(peer, link),
                        on_batch=self._replica.drain,
                        on_closed=lambda _, ended=ended: ended.set(),  # type: ignore[misc]
                    )
                    if not link.peer.cluster_id:  # it belongs to us and was not told yet (H5)
                        await link.request(
                            Op.META_FORM, self._founding_for(peer).encode(), timeout_s=ASK_S
                        )
                    self._links[peer] = link
                    self.refusals.pop(peer, None)
                    redial.reset()
                    row = await self.ask_status(peer)
                    if row is not None:
                        self.advertised[peer] = row.advertised
                    if link.closed is None:
                        await ended.wait()
                    nursery.cancel_scope.cancel()
            except DistributedLogError as error:
                self._note(peer, error)
            except BaseExceptionGroup as group:
                others = group.split(DistributedLogError)[1]
                if others is not None:
                    raise
                self._note(peer, ConnectionLost(str(group.exceptions[0])))
            if self._links.pop(peer, None) is not None:
                self._replica.on_connection_closed(peer)
            await trio.sleep(redial.next_s())

    def _founding_for(self, node_id: str) -> Bootstrap:
        """Return what a member without data is told: the founding, if it is one of the founders (H5)."""
        raft = self._replica.raft
        if raft.log.base_index == 0:
            founders = raft.log.configuration_at(0)
            if node_id in founders.voters:
                return Bootstrap(self._cluster_id, {m.name: m.node_id for m in founders.members})
        member = raft.configuration.member(node_id)
        return Bootstrap(self._cluster_id, {member.name if member else "": node_id}, let_in=True)

    def _frames_of(self, peer: str, link: ClientLink) -> OnFrame:
        def on_frame(op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
            message = decode(body) if op == Op.META_RAFT else None
            if not isinstance(message, ANSWERS) or message.sender != peer:
                raise ProtocolError(
                    f"{link.peer_address} sent operation {op}, which answers nothing"
                )
            self._replica.on_message(message)

        return on_frame

    def _note(self, peer: str, error: DistributedLogError) -> None:
        if self.refusals.get(peer) != str(error):
            self.refusals[peer] = str(error)
            name, why = self.name(peer), str(error)
            UNREACHABLE.say(
                log, "metadata node %s cannot be reached: %s", name, why, peer=name, why=why
            )

    async def send_snapshot(
        self, term: int, sender: str, wanted: SendSnapshot, snapshot: Snapshot, storage: RaftStorage
    ) -> float:
        """Send a snapshot file in chunks, resumed where the peer says.

        0.0 when it has taken it; else how many seconds to wait before it is tried again: `REFUSED_S` where
        it cannot be taken as it is.
        """
        link = self._links.get(wanted.peer)
        if link is None:
            return ASK_S
        try:
            file = await storage.snapshots.open(snapshot)
        except FileNotFoundError:
            return ASK_S  # a newer one has just taken its place
        except DistributedLogError as error:
            log.info("no snapshot is sent to %s now: %s", self.name(wanted.peer), error)
            return REFUSED_S if isinstance(error, DiskFailed) else ASK_S
        try:
            total, offset = file.size(), 0
            while offset < total:
                data = await file.read_cold(offset, CHUNK_BYTES)
                chunk = SnapshotChunk(
                    term, sender, snapshot.index, snapshot.term, offset, total, data
                )
                reply = await link.request(Op.META_RAFT, encode(chunk), timeout_s=CHUNK_S)
                match unpack(reply.body, "a snapshot's progress"):
                    case [0] if offset + len(data) == total:
                        SNAPSHOT_REFUSED.say(
                            log,
                            "metadata node %s cannot take the snapshot at entry %d, its log says why: is it"
                            " an older version? It is sent again in %.0f s",
                            self.name(wanted.peer),
                            snapshot.index,
                            REFUSED_S,
                            peer=self.name(wanted.peer),
                            entry=snapshot.index,
                        )
                        return REFUSED_S
                    case [following] if is_number(following) and offset != following <= total:
                        offset = following
                    case _:
                        raise ProtocolError(
                            f"{link.peer_address} does not take the snapshot's chunks"
                        )
            return 0.0
        except DistributedLogError as error:
            log.info("sending a snapshot to %s ended: %s", self.name(wanted.peer), error)
            return REFUSED_S if isinstance(error, CorruptData) else ASK_S
        finally:
            file.close()
