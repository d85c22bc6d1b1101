"""The connections from one metadata node to the others: Raft's messages, snapshots, who answers.

Each node dials each other one, so a message has one way. A peer is dialled by its id: whoever has taken its
address, or the same machine with an emptied directory, is told so and is no peer (H5, H6).
"""

import logging
from collections.abc import Callable, Mapping

import trio

from ..runtime.errors import ConnectionLost, DistributedLogError, ProtocolError
from ..runtime.frames import Op, envelope, pack, unpack
from ..runtime.host import Address
from ..runtime.rpc import ClientLink, Endpoint
from .forming import Founding
from .messages import Message, SnapshotChunk, encode
from .ready import SendSnapshot, Snapshot
from .storage import RaftStorage
from .wire import Row, decode_rows

log = logging.getLogger("distributedlog.metadata.peers")

OUTGOING_BYTES_MAX = 16 * 1024 * 1024
"""A peer that reads nothing gets nothing more: Raft sends again what was lost."""
REDIAL_MIN_S = 0.05
REDIAL_MAX_S = 1.0
ASK_S = 1.0
CHUNK_BYTES = 512 * 1024
CHUNK_S = 10.0


class Peers:
    """All other voters, by node id."""

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: Mapping[str, Address],
        names: Mapping[str, str],
        founding: Founding,
        on_closed: Callable[[str], None],
    ) -> None:
        """``addresses`` and ``names`` by node id."""
        self.advertised: dict[str, dict[str, str]] = {}
        """What each peer advertises, by listener name."""
        self.refusals: dict[str, str] = {}
        self._endpoint = endpoint
        self._addresses = addresses
        self._names = names
        self._founding = founding
        self._on_closed = on_closed
        self._links: dict[str, ClientLink] = {}

    def send(self, peer: str, message: Message) -> None:
        """Send, or drop where there is no connection."""
        link = self._links.get(peer)
        if link is not None and link.closed is None and link.outgoing_bytes < OUTGOING_BYTES_MAX:
            body = encode(message)
            link.send(envelope(Op.META_RAFT, len(body)), body)

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

    async def keep(self, peer: str) -> None:
        """Hold the connection to one peer, for ever."""
        delay_s = REDIAL_MIN_S
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    link = await self._endpoint.dial(
                        self._addresses[peer], nursery=nursery, expected_node_id=peer
                    )
                    ended = trio.Event()
                    link.on_closed.append(lambda _, told=ended: told.set())  # type: ignore[misc]
                    if not link.peer.cluster_id:  # it belongs to us and was not told yet (H5)
                        await link.request(Op.META_FORM, self._founding.encode(), timeout_s=ASK_S)
                    self._links[peer] = link
                    self.refusals.pop(peer, None)
                    delay_s = REDIAL_MIN_S
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
                self._on_closed(peer)
            await trio.sleep(delay_s)
            delay_s = min(REDIAL_MAX_S, 2 * delay_s)

    def _note(self, peer: str, error: DistributedLogError) -> None:
        if self.refusals.get(peer) != str(error):
            self.refusals[peer] = str(error)
            log.info("metadata node %s cannot be reached: %s", self._names[peer], error)

    async def send_snapshot(
        self, term: int, sender: str, wanted: SendSnapshot, snapshot: Snapshot, storage: RaftStorage
    ) -> bool:
        """Send a snapshot file in chunks, resumed where the peer says; True when it has all of it."""
        link = self._links.get(wanted.peer)
        if link is None:
            return False
        file = await storage.open_snapshot(snapshot)
        try:
            total, offset = file.size(), 0
            while offset < total:
                data = await file.read_cold(offset, CHUNK_BYTES)
                chunk = SnapshotChunk(
                    term, sender, snapshot.index, snapshot.term, offset, total, data
                )
                reply = await link.request(Op.META_RAFT, encode(chunk), timeout_s=CHUNK_S)
                match unpack(reply.body, "a snapshot's progress"):
                    case [int() as following] if 0 <= following <= total and following != offset:
                        offset = following
                    case _:
                        raise ProtocolError(
                            f"{link.peer_address} does not take the snapshot's chunks"
                        )
            return True
        except DistributedLogError as error:
            log.info("sending a snapshot to %s ended: %s", self._names[wanted.peer], error)
            return False
        finally:
            file.close()
