"""The client of the metadata quorum: finds the leader, and repeats requests that are safe to repeat.

Every command carries (client ID, request number), so that it is executed once even if it is sent again
(H20). A request that was never sent, or was refused, was certainly not executed. A request that was sent
and not answered until the deadline raises `OutcomeUnknown`. If the connection on which a lease was last
renewed ends, the client renews the lease immediately, because it would end within a second (`leases.py`).

Requests are in `request_router.py`, connections in `node_connections.py`, watches in `watch_client.py`.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress

import trio

from ...runtime.interfaces.errors import (
    ConfirmationRequired,
    DistributedLogError,
    LeaseExpired,
    OutcomeUnknown,
    TooBusy,
)
from ...runtime.interfaces.host import Address, Buffer
from ...runtime.interfaces.principals import TokenScope, Welcome
from ...runtime.net.client_link import ClientLink, Reply
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.frames import Op, pack
from ...runtime.protocol.tokens import read_token
from ..model.acl_records import FORCE
from ..model.command_results import CommandResult
from ..model.commands import GrantLease, ReplicatedCommand, RevokeLease, Transact, encode_command
from ..model.configuration import Member
from ..model.interface import MemberStatus, RangePage, Watch
from ..model.transaction import KeyValue, Transaction, TransactionReply, check_number
from ..protocol.client_messages import (
    AuthorizationReport,
    AuthorizationRequest,
    MembersRequest,
    RangeRequest,
    WatchRequest,
    decode_authorization_report,
    decode_item,
    decode_members,
    decode_outcome,
    decode_page,
)
from ..protocol.token_messages import (
    RotateRequest,
    TokenRequest,
    VerifyRequest,
    decode_number,
    decode_remaining,
    decode_token,
)
from ..storage.backup_format import BackupRequest, decode_backup_start, decode_chunk
from .node_connections import NodeConnections
from .request_router import QuorumRequest, RequestRouter
from .status_query import query_status
from .watch_client import WatchClient

PENDING_REQUESTS_MAX = 256
"""Concurrent requests of one client, without lease renewals.

Further requests wait in the order of their arrival.
"""


class MetadataClient:
    """Implements `interface.Metadata` over the nodes at ``addresses``, while `run` is running."""

    def __init__(
        self,
        endpoint: Endpoint,
        addresses: Sequence[Address],
        *,
        client_id: str,
        timeout_s: float = 30.0,
    ) -> None:
        self._failures = endpoint.failures
        self._connections = NodeConnections(
            endpoint, addresses, timeout_s, lambda link: self._on_link(link)
        )
        self._link_by_lease: dict[int, ClientLink | None] = {}
        """The client's leases, and the connection that each belongs to. None after that connection ended."""
        self._lease_link_lost = trio.Event()
        self._router = RequestRouter(self._connections)
        self._watch_client = WatchClient(self._connections)
        self._client_id = client_id
        self._request_slots = trio.Semaphore(PENDING_REQUESTS_MAX)
        self._last_request = 0
        self._base_index = -1

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._connections.run)
            keep = self._failures.keep_running
            nursery.start_soon(keep, "the deadlines of metadata requests", self._router.run)
            nursery.start_soon(
                keep, "the renewal of leases after a lost connection", self._renew_orphaned_leases
            )
            task_status.started()

    @property
    def cluster_id(self) -> str:
        """Return the cluster ID. It is "" before the first contact."""
        return self._connections.cluster_id

    @property
    def listener(self) -> str:
        """Return the name of the listener that this client connected to.

        The addresses that other nodes advertise for this listener are reachable for this client.
        """
        return self._connections.listener

    # --- interface.Metadata -----------------------------------------------------------------------

    async def get(self, key: bytes) -> KeyValue | None:
        """See `interface.Metadata`."""
        reply = await self.request(Op.META_READ, RangeRequest(key, None).encode())
        index, item = decode_item(reply.body)
        self._base_index = max(self._base_index, index)
        return item

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        """See `interface.Metadata`."""
        check_number(limit, "the limit of a range", minimum=1)
        reply = await self.request(Op.META_READ, RangeRequest(start, end, limit).encode())
        index, page = decode_page(reply.body)
        self._base_index = max(self._base_index, index)
        return page

    async def transact(self, transaction: Transaction) -> TransactionReply:
        """See `interface.Metadata`."""
        transaction.check()
        client = self._client_id
        answer = await self._send_command(lambda n, base: Transact(client, n, base, transaction))
        assert answer.transaction is not None, "a transaction is answered with its reply"
        return answer.transaction

    async def grant_lease(self, ttl_ms: int) -> int:
        """See `interface.Metadata`."""
        check_number(ttl_ms, "the ttl of a lease in ms")
        client = self._client_id
        lease = (
            await self._send_command(lambda n, base: GrantLease(client, n, base, ttl_ms))
        ).lease
        self._assign_lease(lease)
        return lease

    async def renew_lease(self, lease: int) -> None:
        """See `interface.Metadata`."""
        check_number(lease, "a lease")
        try:
            await self.request(Op.META_LEASE, pack(["renew", lease]))
        except LeaseExpired:
            self._link_by_lease.pop(lease, None)
            raise
        self._assign_lease(lease)

    async def revoke_lease(self, lease: int) -> None:
        """See `interface.Metadata`."""
        check_number(lease, "a lease")
        client = self._client_id
        self._link_by_lease.pop(lease, None)
        await self._send_command(lambda n, base: RevokeLease(client, n, base, lease))

    def watch(
        self, start: bytes, end: bytes, *, after_revision: int
    ) -> AbstractAsyncContextManager[Watch]:
        """See `interface.Metadata`."""
        return self._watch_client.watch(WatchRequest(start, end, after_revision))

    async def status(self) -> list[MemberStatus]:
        """See `interface.Metadata`.

        A member with a known leader answers if possible, otherwise another member, otherwise nodes that
        wait for a cluster. The addresses are those for the listener that this client uses, if a node
        advertises one.
        """
        return await query_status(self._connections)

    async def save(self) -> AsyncIterator[bytes]:
        """Yield the chunks of a backup of the whole state (`backup_format.py`).

        The backup has the state as of one moment after this call. The leader keeps old values of changed
        keys for it, while the connection lasts.

        Raises:
            InvalidRequest: The connection ended, another node leads, or too much has changed. Start the
                backup again.
        """
        reply = await self.request(Op.META_SAVE, BackupRequest().encode())
        number, chunk = decode_backup_start(reply.body)
        count = 0
        while chunk:
            yield chunk
            count += 1
            reply = await self.request(Op.META_SAVE, BackupRequest(number, count).encode())
            chunk = decode_chunk(reply.body)

    async def change_members(self, request: MembersRequest) -> list[Member]:
        """Change the members of the quorum, and return them when the change is committed.

        A repetition has no effect.

        Raises:
            MembersRefused: The change is not allowed.
            QuorumUnreachable: No quorum answered.
        """
        reply = await self.request(Op.META_MEMBERS, request.encode())
        return [reach.member for reach in decode_members(reply.body)]

    async def change_authorization(self, *change: str, force: bool = False) -> None:
        """Change users, grants, quotas or the authorization mode. `acl_commands.py` lists the changes.

        Args:
            change: The words of the change.
            force: Also make a change that lowers the protection or stops writers.

        Raises:
            NotAllowed: The principal may not make the change.
            InvalidRequest: The change is invalid, or a node is too old for it.
            ConfirmationRequired: The change needs ``force``.
        """
        client = self._client_id

        async def send(words: tuple[str, ...]) -> None:
            await self._send_command(
                lambda n, base: AuthorizationRequest(False, client, n, base, words), Op.META_TRUST
            )

        try:
            await send(change)
        except ConfirmationRequired:
            if not force:
                raise
            # not in the first attempt, because older nodes reject this word
            await send((*change, FORCE))

    async def authorization_report(self, *, own: bool = False) -> AuthorizationReport:
        """Return the authorization report of the leader.

        With ``own``, it contains only the client's principal and rights.
        """
        reply = await self.request(Op.META_TRUST, AuthorizationRequest(own).encode())
        return decode_authorization_report(reply.body)

    async def make_token(
        self, user: str = "", *, valid_s: int, token_scope: TokenScope = ()
    ) -> bytes:
        """Request a token. This requires TLS.

        Args:
            user: The user of the token, which an admin may choose. "" stands for the client itself.
            valid_s: Its lifetime in seconds. At most one day for the client itself.
            token_scope: A restriction to some logs. The token never exceeds the rights of its user.

        Raises:
            NotAllowed, InvalidRequest: The request was refused.
        """
        request = TokenRequest(user, valid_s, token_scope)
        return decode_token((await self.request(Op.META_TRUST, request.encode())).body)

    async def verify_token(self, token: bytes) -> Welcome:
        """Return the principal of a token. Proxies call this.

        Raises:
            NotAuthenticated: The token is invalid.
            NotReady, QuorumUnreachable: The token could not be verified now.
        """
        reply = await self.request(Op.META_TRUST, VerifyRequest(token).encode())
        decoded_token = read_token(token)
        return Welcome(
            decoded_token.principal, token=decoded_token, valid_s=decode_remaining(reply.body)
        )

    async def rotate_secrets(self, what: str = "ledgers") -> int:
        """Create new secrets of ``ledgers`` or ``tokens``, and return the number of the generation.

        The request is sent once, because a second rotation would end everything made before the first.

        Raises:
            NotAllowed: The principal may not rotate secrets.
            OutcomeUnknown: The rotation may have been executed.
        """
        request = QuorumRequest(self._router, once=True)
        try:
            reply = await self.request(
                Op.META_TRUST, RotateRequest(what).encode(), quorum_request=request
            )
        except DistributedLogError as error:
            if request.unknown_outcomes:
                raise OutcomeUnknown(
                    f"{error}; new secrets may have been created. Check dlog trust audit before you retry"
                ) from error
            raise
        return decode_number(reply.body)

    # --- leases -----------------------------------------------------------------------------------

    def _assign_lease(self, lease: int) -> None:
        """Assign a lease to the connection to the leader, which has just answered."""
        self._link_by_lease[lease] = self._connections.current_link(self._connections.leader)
        if self._link_by_lease[lease] is None:
            self._lease_link_lost.set()  # it ended directly after its reply

    def _on_link(self, link: ClientLink) -> None:
        self._watch_client.on_link(link)
        link.on_closed.append(lambda _: self._on_link_closed(link))

    def _on_link_closed(self, link: ClientLink) -> None:
        for lease, belongs_to in self._link_by_lease.items():
            if belongs_to is link:
                self._link_by_lease[lease] = None
                self._lease_link_lost.set()

    async def _renew_orphaned_leases(self) -> None:
        """Renew leases whose connection has ended, until cancelled."""
        while True:
            await self._lease_link_lost.wait()
            self._lease_link_lost = trio.Event()
            try:
                for lease in [lease for lease, link in self._link_by_lease.items() if link is None]:
                    if lease in self._link_by_lease:
                        # The holder renews the lease too, and receives the error.
                        with suppress(DistributedLogError):
                            await self.renew_lease(lease)
            except Exception:
                # The other leases are renewed when this task runs again.
                self._lease_link_lost.set()
                raise

    # --- requests ---------------------------------------------------------------------------------

    async def _send_command(
        self,
        make_command: Callable[[int, int], ReplicatedCommand | AuthorizationRequest],
        op: int = Op.META_TRANSACT,
    ) -> CommandResult:
        # H20: a request names the index that its client knew when it was first sent
        if self._base_index < 0:
            await self.get(b"\0")
        self._last_request += 1
        number = self._last_request  # because concurrent requests increase the counter
        request = QuorumRequest(self._router)
        while True:
            new_command = make_command(number, self._base_index)
            command = (
                new_command.encode()
                if isinstance(new_command, AuthorizationRequest)
                else encode_command(new_command)
            )
            try:
                reply = await self.request(op, command, quorum_request=request)
            except DistributedLogError as error:
                if (
                    request.unknown_outcomes and error.definite
                ):  # the error is about this attempt, not about earlier ones
                    raise OutcomeUnknown(f"{error}; the change may have been made") from error
                raise
            index, result = decode_outcome(reply.body)
            self._base_index = max(self._base_index, index)
            if result.error is None:
                return result
            stale = (
                isinstance(result.error, OutcomeUnknown)
                and result.error.detail == OutcomeUnknown.STALE
            )
            if not stale or request.unknown_outcomes:
                raise result.error
            # Never executed: this was the first attempt, and only its base index was too old.

    async def request(
        self, op: int, body: Buffer, *, quorum_request: QuorumRequest | None = None
    ) -> Reply:
        """Send a request to the leader, and search for the leader until a node answers.

        Raises:
            QuorumUnreachable: No node answered within the time limit of the client.
            DistributedLogError: The error of the reply.
        """
        deadline = trio.current_time() + self._connections.timeout_s
        quorum_request = quorum_request or QuorumRequest(self._router)
        if op == Op.META_LEASE:  # a lease must not end because of many other requests
            return await quorum_request.send(op, body, deadline)
        try:
            self._request_slots.acquire_nowait()
        except trio.WouldBlock:
            await self._acquire_slot(deadline)
        try:
            return await quorum_request.send(op, body, deadline)
        finally:
            self._request_slots.release()

    async def _acquire_slot(self, deadline: float) -> None:
        """Wait until few enough requests are pending. Raises `TooBusy` at the deadline."""
        with trio.move_on_at(deadline):
            await self._request_slots.acquire()
            return
        raise TooBusy(
            f"{PENDING_REQUESTS_MAX} requests of this client to the metadata quorum are pending, and"
            f" none of them was answered within {self._connections.timeout_s:g} s"
        ) from None
