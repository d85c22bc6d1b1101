"""The client of the metadata quorum: finds the leader, retries what is safe to retry.

Every command carries (client id, request number), so that sending it again does not do it again (H20). What
was never sent, or was refused, certainly did not happen; what was sent and not answered until the deadline
is `OutcomeUnknown`. A lease is renewed at once when the connection that it was renewed on has ended: else it
ends within a second (`leases.py`). Questions are in `request_router.py`, connections in
`node_connections.py`, watches in `watch_client.py`.
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
"""Questions of one client at a time, lease renewals not counted; more wait here, in the order they came."""


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
        """Those that we hold, and the connection that each belongs to; None: to none any more."""
        self._lease_link_lost = trio.Event()
        self._router = RequestRouter(self._connections)
        self._watch_client = WatchClient(self._connections)
        self._client_id = client_id
        self._request_slots = trio.Semaphore(PENDING_REQUESTS_MAX)
        self._last_request = 0
        self._base_index = -1

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._connections.run)
            keep = self._failures.keep_running
            nursery.start_soon(keep, "the deadlines of metadata questions", self._router.run)
            nursery.start_soon(keep, "the renewal of cut leases", self._renew_orphaned_leases)
            task_status.started()

    @property
    def cluster_id(self) -> str:
        """Known after the first contact; "" before."""
        return self._connections.cluster_id

    @property
    def listener(self) -> str:
        """The name of the listener that we came in on: whose addresses of other nodes reach them."""
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
        """See `interface.Metadata`. A member that knows a leader answers; else another; else one that waits.

        Addresses are those of the side that we came in on, as far as a node advertises one.
        """
        return await query_status(self._connections)

    async def save(self) -> AsyncIterator[bytes]:
        """The whole state as of one moment after this call, as the chunks of a save (`backup_format.py`).

        The moment lies in what the leader remembers of changes meanwhile: it ends with the connection.
        Raises `InvalidRequest` when that ended, or another leads: begin again.
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
        """Have the quorum's members changed; who they are when that is committed, or was before.

        Done once or more often is the same. Raises `MembersRefused`, `QuorumUnreachable`.
        """
        reply = await self.request(Op.META_MEMBERS, request.encode())
        return [reach.member for reach in decode_members(reply.body)]

    async def change_trust(self, *change: str, force: bool = False) -> None:
        """Have it changed who may do what (`acl_commands.py` has the changes).

        Raises `NotAllowed`, `InvalidRequest` for what cannot be, or not while a node is too old for it;
        `ConfirmationRequired`, unless ``force``, for what lowers the protection or stops writers.
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
            await send((*change, FORCE))  # not at once: older nodes do not take the word

    async def trust_report(self, *, own: bool = False) -> AuthorizationReport:
        """What the leader says of who may do what; ``own``: of us alone."""
        reply = await self.request(Op.META_TRUST, AuthorizationRequest(own).encode())
        return decode_authorization_report(reply.body)

    async def make_token(
        self, user: str = "", *, valid_s: int, narrowing: TokenScope = ()
    ) -> bytes:
        """A token: of that user, asked by an admin; or "", of ourselves, for a day at most and no wider than
        we are. ``narrowing``: what it allows at most. Over TLS alone.

        Raises `NotAllowed`, `InvalidRequest`.
        """
        request = TokenRequest(user, valid_s, narrowing)
        return decode_token((await self.request(Op.META_TRUST, request.encode())).body)

    async def verify_token(self, token: bytes) -> Welcome:
        """Who shows it, asked by a proxy. Raises `NotAuthenticated`, `NotReady`, `QuorumUnreachable`."""
        reply = await self.request(Op.META_TRUST, VerifyRequest(token).encode())
        decoded_token = read_token(token)
        return Welcome(
            decoded_token.principal, token=decoded_token, valid_s=decode_remaining(reply.body)
        )

    async def rotate_secrets(self, what: str = "ledgers") -> int:
        """Have new ones drawn, of ``ledgers`` or ``tokens``; their number.

        Sent once: a second rotation ends what was made before the first. Raises `NotAllowed`;
        `OutcomeUnknown` where nobody knows whether it was done.
        """
        request = QuorumRequest(self._router, once=True)
        try:
            reply = await self.request(
                Op.META_TRUST, RotateRequest(what).encode(), quorum_request=request
            )
        except DistributedLogError as error:
            if request.unknown_outcomes:
                raise OutcomeUnknown(
                    f"{error}; new secrets may have been drawn: see dlog trust audit before another try"
                ) from error
            raise
        return decode_number(reply.body)

    # --- leases -----------------------------------------------------------------------------------

    def _assign_lease(self, lease: int) -> None:
        """The leader has just answered: the lease belongs to our connection to it."""
        self._link_by_lease[lease] = self._connections.current_link(self._connections.leader)
        if self._link_by_lease[lease] is None:
            self._lease_link_lost.set()  # it ended right after its answer

    def _on_link(self, link: ClientLink) -> None:
        self._watch_client.on_link(link)
        link.on_closed.append(lambda _: self._on_link_closed(link))

    def _on_link_closed(self, link: ClientLink) -> None:
        for lease, belongs_to in self._link_by_lease.items():
            if belongs_to is link:
                self._link_by_lease[lease] = None
                self._lease_link_lost.set()

    async def _renew_orphaned_leases(self) -> None:
        """Renew at once what belongs to a connection that has ended, until cancelled."""
        while True:
            await self._lease_link_lost.wait()
            self._lease_link_lost = trio.Event()
            try:
                for lease in [lease for lease, link in self._link_by_lease.items() if link is None]:
                    if lease in self._link_by_lease:
                        # The holder renews it, too, and gets the error.
                        with suppress(DistributedLogError):
                            await self.renew_lease(lease)
            except Exception:
                self._lease_link_lost.set()  # the others are renewed when this is run again
                raise

    # --- asking -----------------------------------------------------------------------------------

    async def _send_command(
        self,
        make_command: Callable[[int, int], ReplicatedCommand | AuthorizationRequest],
        op: int = Op.META_TRANSACT,
    ) -> CommandResult:
        """Have a command done once, and return its answer."""
        if self._base_index < 0:  # H20: a request names what its client knew when it was first sent
            await self.get(b"\0")
        self._last_request += 1
        number = self._last_request  # others take theirs while this one waits
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
                ):  # of this sending, not of those before
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
            # Never done: this was its first sending, it only named too old a base.

    async def request(
        self, op: int, body: Buffer, *, quorum_request: QuorumRequest | None = None
    ) -> Reply:
        """Ask the leader, whoever that is, until somebody answers.

        Raises the error that an answer carries, or `QuorumUnreachable` at the client's time limit.
        """
        deadline = trio.current_time() + self._connections.timeout_s
        quorum_request = quorum_request or QuorumRequest(self._router)
        if op == Op.META_LEASE:  # a lease must not end because much else is asked
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
        """Until few enough questions are under way. Raises `TooBusy` at the deadline."""
        with trio.move_on_at(deadline):
            await self._request_slots.acquire()
            return
        raise TooBusy(
            f"{PENDING_REQUESTS_MAX} questions of this client to the metadata quorum are under way, and"
            f" none of them was answered within {self._connections.timeout_s:g} s"
        ) from None
