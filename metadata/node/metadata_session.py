"""The server's part of one connection to a metadata node: requests of a client, or messages of a peer.

All calls are synchronous. A frame is decoded and passed on, and its reply is sent when the state has it. No
task is started per request.
"""

from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    NotReady,
    ProtocolError,
    TooBusy,
    WrongPeer,
)
from ...runtime.interfaces.principals import ANONYMOUS
from ...runtime.net.link import Link
from ...runtime.protocol.capability_messages import decode_request
from ...runtime.protocol.frames import Op, pack
from ...runtime.protocol.handshake import FEATURE_ERROR_CODES
from ...runtime.protocol.schema import decode_message
from ..auth.capability_issuer import generations_of
from ..auth.namespace_quotas import NO_GROWTH
from ..auth.quorum_secrets import check_no_secrets, check_not_secret
from ..auth.token_service import token_secrets_of
from ..model.command_results import CommandResult
from ..model.commands import (
    AuthorizationChange,
    GrantLease,
    ReplicatedCommand,
    RevokeLease,
    Transact,
    decode_command,
    encode_command,
)
from ..model.interface import RangePage
from ..model.request_identity import (
    PRINCIPAL_CHARS_MAX,
    is_principal,
    qualified_client,
    request_identity,
)
from ..model.rights import ADMIN, AUTHENTICATED, OPERATOR, PROXY
from ..peers.bootstrap import Bootstrap
from ..peers.hard_state_recovery import VoterReport
from ..protocol.client_messages import (
    STATUS_REQUEST,
    MembersRequest,
    RangeRequest,
    WatchRequest,
    decode_digest,
    decode_lease,
    encode_authorization_report,
    encode_item,
    encode_members,
    encode_outcome,
    encode_page,
    encode_rows,
)
from ..protocol.token_messages import (
    AdminRecoveryRequest,
    RotateRequest,
    TokenRequest,
    VerifyRequest,
    decode_authorization_request,
    encode_number,
    encode_remaining,
    encode_requesting_nodes,
)
from ..raft.raft_messages import SnapshotChunk, SnapshotChunkReply, decode
from ..raft.recovered_hard_state import RaftEntryId
from ..replica.admission_control import NO_TIMEOUT_S
from ..storage.backup_format import (
    BackupHeader,
    BackupRequest,
    BackupTransfer,
    backup_chunks,
    encode_backup_start,
    encode_chunk,
)
from .metadata_node import MetadataNode
from .quorum_member import AdminRecoveryResult, MemberNode
from .watch_server import ServedWatches, serial_of

CLIENT_COMMANDS = (Transact, GrantLease, RevokeLease)


class MetadataSession:
    """One connection."""

    def __init__(self, node: MetadataNode, link: Link) -> None:
        member = node.member
        if member is not None and member.replica.state.authorization_revision:
            error = member.authorizer.connection_error(link.principal, serial_of(link), link.token)
            if error is not None:
                raise error
        self._node = node
        self._link = link
        self._principal = link.principal
        self._request_owner = request_identity(link.principal, link.token)
        self._watches = ServedWatches(link)
        node.watches[self._watches] = None
        self._backup: BackupTransfer | None = None
        """The backup that is fetched on this connection. A new one ends it."""
        self._backup_count = 0

    # --- runtime.link.LinkSession -----------------------------------------------------------------

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """See `link.LinkSession`."""
        member = self._node.member
        if op == Op.META_FORM:
            self._bootstrap(ident, body)
        elif op == Op.META_STATUS:
            self._status(ident, body)
        elif op == Op.META_MEMBERS:
            self._members(ident, body)
        elif member is None:
            self._refuse(op, ident, NotReady(self._node.not_ready_reason))
        elif op == Op.META_RAFT:
            self._on_raft_message(member, ident, body)
        elif op == Op.META_READ:
            self._read(member, ident, body)
        elif op == Op.META_TRANSACT:
            self._transact(member, ident, deadline_ms, body)
        elif op == Op.META_TRUST:
            self._on_authorization_request(member, ident, deadline_ms, body)
        elif op == Op.META_LEASE:
            self._renew_lease(member, ident, decode_lease(body))
        elif op == Op.META_WATCH:
            self._watch(member, ident, body)
        elif op == Op.META_DIFFERS:
            self._on_state_differs(member, body)
        elif op == Op.META_RECALL:
            self._report_hard_state(member, ident)
        elif op == Op.META_SAVE:
            self._send_backup(member, ident, BackupRequest.decode(body))
        elif op == Op.META_CAPS:
            self._issue_capabilities(member, ident, body)
        elif op == Op.META_WATCH_CANCEL:
            self._watches.cancel(ident)
        elif op == Op.INFO:
            if self._check_credit(ident):
                self._link.reply(ident, pack(member.info()))
        else:
            raise ProtocolError(
                f"{self._link.peer_address} sent operation {op}, which metadata nodes do not support"
            )

    def on_batch_end(self) -> None:
        """See `link.LinkSession`."""
        if self._node.member is not None:
            self._node.member.replica.drain()

    def on_closed(self) -> None:
        """See `link.LinkSession`."""
        del self._node.watches[self._watches]
        self._backup = None
        if self._node.member is not None:
            self._node.member.leases.on_closed(self._link)

    # --- requests ---------------------------------------------------------------------------------

    def _on_raft_message(self, member: MemberNode, ident: int, body: memoryview) -> None:
        peer = self._link.peer
        if peer.kind != "metadata" or peer.cluster_id != self._node.cluster_id:
            raise WrongPeer(f"{self._link.peer_address} is not a metadata node of this cluster")
        message = decode(body)
        if message.sender != peer.node_id:
            raise ProtocolError(f"{self._link.peer_address} sent a message of {message.sender}")
        if isinstance(message, SnapshotChunkReply):
            raise ProtocolError("a snapshot's progress is a reply, not a message")
        if not member.peers.unknown_peers.is_trusted(peer.node_id, self._link.peer_address):
            return  # Raft repeats the message, when the node may be known as a member
        if isinstance(message, SnapshotChunk):
            member.snapshot_receiver.on_chunk(
                message, lambda offset: self._link.reply(ident, pack([offset]))
            )
        else:
            member.peers.on_message_from(peer.node_id, self._link)
            member.replica.on_message(message)

    def _read(self, member: MemberNode, ident: int, body: memoryview) -> None:
        """Reply with a key (without an end in the request) or with a page of a range.

        The state contains all commands that were acknowledged before the request (`read_linearizable`). The
        rights are those at the time of the reply.
        """
        request = RangeRequest.decode(body)
        try:
            check_not_secret(request.start, request.end)
        except NotAllowed as refusal:
            self._link.reply_error(ident, refusal)
            return

        def ready(error: DistributedLogError | None) -> None:
            state = member.replica.state
            if error is not None:
                self._link.reply_error(ident, self._with_leader_address(member, error))
                return
            if not self._check_credit(ident):
                return
            # None: all keys are visible. A function decides for each key. Otherwise: the visible ranges.
            visible_parts = (
                member.may_read(self._link, request.start, request.end)
                if state.authorization_revision
                else None
            )
            if isinstance(visible_parts, NotAllowed):
                self._link.reply_error(ident, visible_parts)
            elif request.end is None:
                item = state.get(request.start)
                self._link.reply(ident, encode_item(state.index, state.revision, item))
            else:
                if visible_parts is None or callable(visible_parts):
                    page = state.range(request.start, request.end, request.limit)
                else:
                    page = state.range_of_parts(visible_parts, request.limit)
                if callable(visible_parts):
                    visible_items = tuple(item for item in page.items if visible_parts(item.key))
                    # The client continues a page after its last key, so a page without visible keys must be
                    # the last.
                    page = RangePage(
                        visible_items, page.revision, page.more and bool(visible_items)
                    )
                self._link.reply(ident, encode_page(state.index, page))

        member.replica.read_linearizable(ready)

    def _on_state_differs(self, member: MemberNode, body: memoryview) -> None:
        peer = self._link.peer
        if peer.kind != "metadata" or peer.cluster_id != self._node.cluster_id:
            raise WrongPeer(f"{self._link.peer_address} is not a metadata node of this cluster")
        member.replica.on_state_differs(peer.node_id, *decode_digest(body))

    def _report_hard_state(self, member: MemberNode, ident: int) -> None:
        raft = member.replica.raft
        last = RaftEntryId(raft.log.last_term, raft.log.last_index)
        if raft.recovery_floor is not None:
            last = max(last, raft.recovery_floor)
        report = VoterReport(raft.node_id, raft.term, last, raft.configuration)
        self._link.reply(ident, report.encode())

    def _send_backup(self, member: MemberNode, ident: int, request: BackupRequest) -> None:
        if request.backup_number:
            if not self._check_right(
                member, ident, ADMIN, "fetch a backup"
            ) or not self._check_credit(ident):
                return  # also if the right was revoked after the backup began
            backup = self._backup
            try:
                if backup is None or backup.number != request.backup_number:
                    raise InvalidRequest(
                        "this backup is no longer available here. Start the backup again"
                    )
                self._link.reply(ident, encode_chunk(backup.chunk(request.chunk)))
            except InvalidRequest as error:
                self._link.reply_error(ident, error)
            return

        def ready(error: DistributedLogError | None) -> None:
            replica = member.replica
            if error is not None:
                self._link.reply_error(ident, self._with_leader_address(member, error))
                return
            if not self._check_right(member, ident, ADMIN, "fetch a backup"):
                return
            index, log = replica.state.index, replica.raft.log
            term = log.term_at(index) or log.base_term
            head = BackupHeader(self._node.cluster_id, index, term, log.configuration_at(index))
            self._backup_count += 1
            self._backup = BackupTransfer(self._backup_count, backup_chunks(head, replica.state))
            self._link.reply(ident, encode_backup_start(self._backup_count, self._backup.chunk(0)))

        member.replica.read_linearizable(ready)  # after all earlier acknowledged commands

    def _decode_client_command(self, ident: int, command: bytes) -> ReplicatedCommand | None:
        """Decode a command. If it is malformed or names a secret, reply with the error and return None.

        Raises `ProtocolError` for a command that no client sends.
        """
        try:
            decoded_command = decode_command(command)
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
            return None
        if (
            type(decoded_command) not in CLIENT_COMMANDS
            or not decoded_command.client
            or "/" in decoded_command.client
        ):
            raise ProtocolError(f"{self._link.peer_address} sent a command that is not a client's")
        if isinstance(decoded_command, Transact):
            try:
                check_no_secrets(decoded_command.transaction)
            except NotAllowed as refusal:
                self._link.reply_error(ident, refusal)
                return None
        return decoded_command

    def _transact(self, member: MemberNode, ident: int, deadline_ms: int, body: memoryview) -> None:
        command = bytes(body)
        decoded_command = self._decode_client_command(ident, command)
        if decoded_command is None:
            return
        if self._principal != ANONYMOUS:
            decoded_command.client = qualified_client(self._request_owner, decoded_command.client)
            command = encode_command(decoded_command)
        replica, growth = member.replica, NO_GROWTH
        # A pending command was authorized and will be executed, so a refusal now would be wrong.
        if replica.is_leader and not replica.is_pending(decoded_command):
            denial = self._command_error(member, decoded_command)
            if denial is not None and not _has_succeeded(
                replica.state.earlier_result(decoded_command)
            ):
                can_authorize = replica.can_authorize
                self._link.reply_error(
                    ident, denial if can_authorize else replica.authorization_pending_error()
                )
                return
            self._record_owner(member)
            growth = member.growth(self._principal, decoded_command)
            quota_error = member.quota_error(self._principal, decoded_command, growth)
            if quota_error is not None and replica.state.earlier_result(decoded_command) is None:
                self._link.reply_error(ident, quota_error)
                return
            if replica.state.authorization_revision and isinstance(decoded_command, Transact):
                audited_command = member.with_audit_line(
                    decoded_command, self._principal, self._link.peer_address
                )
                if audited_command is not decoded_command:
                    decoded_command, command = audited_command, encode_command(audited_command)

        def done(answer: CommandResult | DistributedLogError) -> None:
            if isinstance(answer, DistributedLogError):
                self._link.reply_error(ident, self._with_leader_address(member, answer))
            else:
                if isinstance(decoded_command, GrantLease):
                    member.leases.on_granted(answer.lease, self._link)
                    self._record_owner(member)
                self._reply_outcome(ident, member, answer)

        timeout_s = deadline_ms / 1000 if deadline_ms else NO_TIMEOUT_S
        last_index = replica.raft.log.last_index
        replica.request(command, decoded_command, done, requester=self._link, timeout_s=timeout_s)
        if replica.state.authorization_revision and replica.raft.log.last_index > last_index:
            member.on_accepted(self._request_owner, replica.raft.log.last_index, growth)

    def _record_owner(self, member: MemberNode) -> None:
        leases_of = member.replica.state.lease_count_by_owner
        member.principal_quotas.record_owner(self._request_owner, self._principal, leases_of)

    def _issue_capabilities(self, member: MemberNode, ident: int, body: memoryview) -> None:
        request = decode_request(body)

        def drawn(error: DistributedLogError | None) -> None:
            if error is None:
                error = TooBusy("the secrets of ledgers were just created. Retry")
            self._link.reply_error(ident, self._with_leader_address(member, error))

        def ready(error: DistributedLogError | None) -> None:
            if error is not None:
                self._link.reply_error(ident, self._with_leader_address(member, error))
                return
            if not self._check_credit(ident):
                return
            try:
                state = member.replica.state
                self._link.reply(
                    ident,
                    member.capability_issuer.answer(
                        state, request, self._principal, self._link.token
                    ),
                )
            except NotReady:
                member.secrets.rotate(drawn, only_first=True)
            except DistributedLogError as refusal:
                self._link.reply_error(ident, refusal)

        member.replica.read_linearizable(ready)

    def _command_error(
        self, member: MemberNode, decoded_command: ReplicatedCommand
    ) -> DistributedLogError | None:
        if not is_principal(self._principal) and self._principal != ANONYMOUS:
            return NotAllowed(
                f"the name of a principal, with its kind, must have at most {PRINCIPAL_CHARS_MAX} characters"
            )
        if isinstance(decoded_command, RevokeLease):
            return member.leases.why_not(decoded_command.lease, self._request_owner)
        if member.replica.state.authorization_revision:
            trust = member.authorizer.restricted_to_token(self._link.token)
            if isinstance(decoded_command, Transact):
                return trust.authorize_transaction(self._principal, decoded_command.transaction)
            return trust.authorize_operation(self._principal, AUTHENTICATED, "hold a lease")
        return None

    def _on_authorization_request(
        self, member: MemberNode, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        request = decode_authorization_request(body)
        if isinstance(request, TokenRequest):
            self._make_token(member, ident, deadline_ms, request)
            return
        if isinstance(request, VerifyRequest):
            self._verify_token(member, ident, request)
            return
        if isinstance(request, RotateRequest):
            self._rotate(member, ident, request)
            return
        if isinstance(request, AdminRecoveryRequest):
            self._recover_admin(member, ident, request)
            return
        if request.change is None:

            def ready(error: DistributedLogError | None) -> None:
                if error is not None:
                    self._link.reply_error(ident, self._with_leader_address(member, error))
                elif request.own_only or self._check_right(
                    member, ident, ADMIN | OPERATOR, "see the authorization report"
                ):
                    self._link.reply(
                        ident,
                        encode_authorization_report(
                            member.authorization_report(self._link, own_only=request.own_only)
                        ),
                    )

            member.replica.read_linearizable(ready)
            return

        def done(answer: CommandResult | DistributedLogError) -> None:
            if isinstance(answer, DistributedLogError):
                self._link.reply_error(ident, self._with_leader_address(member, answer))
            else:
                self._reply_outcome(ident, member, answer)

        client = qualified_client(self._request_owner, request.client)
        head = AuthorizationChange(client, request.request_number, request.base_index)
        try:
            change = member.compose_acl_change(head, request.change, self._principal, self._link)
        except DistributedLogError as error:
            replica = member.replica
            can_authorize = replica.can_authorize or not replica.is_leader
            reported_error = error if can_authorize else replica.authorization_pending_error()
            self._link.reply_error(ident, self._with_leader_address(member, reported_error))
            return
        timeout_s = deadline_ms / 1000 if deadline_ms else NO_TIMEOUT_S
        member.replica.request(
            encode_command(change), change, done, requester=self._link, timeout_s=timeout_s
        )

    def _make_token(
        self, member: MemberNode, ident: int, deadline_ms: int, request: TokenRequest
    ) -> None:
        # A separate request identity, because a repeated request makes a new token and the earlier one is
        # lost.
        client = qualified_client(
            self._request_owner, self._node.endpoint.host.secret_bytes(8).hex()
        )
        timeout_s = deadline_ms / 1000 if deadline_ms else NO_TIMEOUT_S
        _TokenIssue(member, self._link, ident, request, client, timeout_s).begin()

    def _verify_token(self, member: MemberNode, ident: int, request: VerifyRequest) -> None:
        """Verify a token for a proxy, which received it from its client."""

        def ready(error: DistributedLogError | None) -> None:
            try:
                if error is not None:
                    raise self._with_leader_address(member, error)
                trust, who = (
                    member.authorizer.restricted_to_token(self._link.token),
                    self._principal,
                )
                if not self._link.is_secret or not trust.cluster_rights(who) & (PROXY | OPERATOR):
                    raise NotAllowed(f"{who} may not verify tokens: only proxies over TLS may")
                try:
                    welcome = member.token_service.check_token(member.replica.state, request.proof)
                except NotReady:
                    # After a quorum round, the leader has all secrets. With `NotReady`, the proxy would
                    # search for another leader whenever clients present such tokens.
                    raise NotAuthenticated("a token that this cluster has not made") from None
            except DistributedLogError as refused:
                self._link.reply_error(ident, refused)
            else:
                self._link.reply(ident, encode_remaining(welcome.valid_s))

        member.replica.read_linearizable(ready)

    def _rotate(self, member: MemberNode, ident: int, request: RotateRequest) -> None:
        def done(error: DistributedLogError | None) -> None:
            state = member.replica.state
            if error is not None:
                self._link.reply_error(ident, self._with_leader_address(member, error))
            elif request.what == "tokens":
                self._link.reply(ident, encode_number(max(token_secrets_of(state))))
            else:
                self._link.reply(ident, encode_number(generations_of(state)[0].number))

        def ready(error: DistributedLogError | None) -> None:
            if error is not None:
                done(error)
                return
            trust = member.authorizer.restricted_to_token(self._link.token)
            if not trust.cluster_rights(self._principal) & ADMIN:
                done(NotAllowed(f"{self._principal} may not rotate secrets: it needs admin"))
                return
            if member.replica.state.authorization_revision:
                member.write_audit_line(
                    self._principal, self._link.peer_address, "rotate", request.what
                )
            if request.what == "tokens":
                member.secrets.rotate_tokens(done)
            else:
                member.secrets.rotate(done)

        member.replica.read_linearizable(ready)

    def _recover_admin(self, member: MemberNode, ident: int, request: AdminRecoveryRequest) -> None:
        def done(answer: AdminRecoveryResult) -> None:
            if isinstance(answer, DistributedLogError):
                self._link.reply_error(ident, self._with_leader_address(member, answer))
            else:
                self._link.reply(ident, encode_requesting_nodes(answer))

        member.recover_admin(self._principal, self._link.peer.node_id, request.user, done)

    def _renew_lease(self, member: MemberNode, ident: int, lease: int) -> None:
        def done(error: DistributedLogError | None) -> None:
            if error is None:
                self._record_owner(member)
                self._link.reply(ident, pack([]))
            else:
                self._link.reply_error(ident, self._with_leader_address(member, error))

        member.leases.renew(lease, self._link, done)

    def _bootstrap(self, ident: int, body: memoryview) -> None:
        if len(body):
            self._node.offer_bootstrap(
                Bootstrap.decode(body), lambda answer: self._link.reply(ident, answer.encode())
            )
        else:
            self._link.reply(ident, self._node.bootstrap_answer().encode())

    def _status(self, ident: int, body: memoryview) -> None:
        member = self._node.member
        if decode_message(body, STATUS_REQUEST, "META_STATUS") == ("self",):
            if self._check_credit(ident):
                self._link.reply(ident, encode_rows([self._node.status_row()]))
        elif member is None:
            self._link.reply(ident, encode_rows([self._node.status_row()]))
        elif not member.status_board.query_all(
            lambda rows: self._link.reply(ident, encode_rows(rows))
        ):
            self._link.reply_error(ident, TooBusy("too many requests for the status of all nodes"))

    def _members(self, ident: int, body: memoryview) -> None:
        request = MembersRequest.decode(body)
        member = self._node.member
        if request.kind == "show":
            if self._check_credit(ident):
                self._show_members(member, ident)
            return
        if member is None:
            self._link.reply_error(ident, NotReady(self._node.not_ready_reason))
            return

        def done(error: DistributedLogError | None) -> None:
            if error is None:
                self._show_members(member, ident)
            else:
                self._link.reply_error(ident, self._with_leader_address(member, error))

        if self._check_right(member, ident, OPERATOR, "change the members of the quorum"):
            if member.replica.state.authorization_revision and member.replica.is_leader:
                subject = f"{request.name} {request.address}".strip()
                member.write_audit_line(
                    self._principal, self._link.peer_address, f"{request.kind}-member", subject
                )
            member.membership_changes.submit(request, done)

    def _show_members(self, member: MemberNode | None, ident: int) -> None:
        reached = (
            member.status_board.reachable_members(self._link.listener) if member is not None else []
        )
        self._link.reply(ident, encode_members(reached))

    def _check_right(self, member: MemberNode, ident: int, rights: int, what: str) -> bool:
        """Whether this principal has one of the rights on the cluster. Otherwise the error is sent."""
        if not member.replica.state.authorization_revision:
            return True
        denial = member.authorizer.restricted_to_token(self._link.token).authorize_operation(
            self._principal, rights, what
        )
        if denial is not None:
            self._link.reply_error(ident, denial)
        return denial is None

    def _check_credit(self, ident: int) -> bool:
        """Whether a reply may be sent.

        Otherwise the peer receives `TooBusy`, because it has unread replies.
        """
        if self._node.endpoint.has_credit(self._link):
            return True
        self._link.reply_error(ident, TooBusy("this connection has unread replies"))
        return False

    def _reply_outcome(self, ident: int, member: MemberNode, answer: CommandResult) -> None:
        codes = bool(self._link.peer.features & FEATURE_ERROR_CODES)
        self._link.reply(ident, encode_outcome(member.replica.state.index, answer, codes=codes))

    def _refuse(self, op: int, ident: int, error: DistributedLogError) -> None:
        if op == Op.META_WATCH:
            self._watches.end(ident, error)
        elif ident:  # Raft messages have no ident and are repeated
            self._link.reply_error(ident, error)

    def _with_leader_address(
        self, member: MemberNode, error: DistributedLogError
    ) -> DistributedLogError:
        return member.status_board.with_leader_address(error, self._link.listener)

    def _watch(self, member: MemberNode, ident: int, body: memoryview) -> None:
        try:
            request = WatchRequest.decode(body)
        except (
            ProtocolError
            # A final error, because a client whose connection is closed would send the request again.
        ) as error:
            self._watches.end(ident, InvalidRequest(str(error)))
            return
        try:
            check_not_secret(request.start, request.end)
        except NotAllowed as refusal:
            self._watches.end(ident, refusal)
            return
        contact_error = member.quorum_contact.lost_error
        if contact_error is not None:
            self._watches.end(ident, contact_error)
            return
        state = member.replica.state
        if state.authorization_revision and state.revision < request.after_revision:
            # The client has received a later revision, which may contain the grant that allows this watch.
            self._watches.end(
                ident, NotReady("this metadata node has not applied that revision yet")
            )
            return
        visible_parts = member.may_read(self._link, request.start, request.end)
        quota_error = member.watch_quota_error(self._principal)
        if isinstance(visible_parts, NotAllowed):
            self._watches.end(ident, visible_parts)
        elif quota_error is not None:
            self._watches.end(ident, quota_error)
        else:
            self._watches.open(state, ident, request, visible_parts)


def _has_succeeded(earlier_result: CommandResult | None) -> bool:
    """Whether the command succeeded earlier. Then its result may be sent again to the requester.

    A command may have ended its own right: after the deletion of a log, its principal has no rights on it.
    A command that failed is authorized again, because the reply to a failed condition contains present
    keys.
    """
    if earlier_result is None or earlier_result.error is not None:
        return False
    return earlier_result.transaction is None or earlier_result.transaction.succeeded


class _TokenIssue:
    """The steps by which a leader issues one token.

    After a quorum round, it checks the requester, creates a token secret if there is none, writes the audit
    record if the token is for another user, and replies with the token. Any refusal ends these steps.
    """

    def __init__(
        self,
        member: MemberNode,
        link: Link,
        ident: int,
        request: TokenRequest,
        client: str,
        timeout_s: float,
    ) -> None:
        """``client`` is the client ID under which the audit record is written once."""
        self._member = member
        self._link = link
        self._ident = ident
        self._request = request
        self._client = client
        self._timeout_s = timeout_s

    def begin(self) -> None:
        """Start with a quorum round, so that no outdated rights are used."""
        self._member.replica.read_linearizable(self._check_requester)

    def _check_requester(self, error: DistributedLogError | None) -> None:
        link, member, request = self._link, self._member, self._request
        if error is None and not link.is_secret:
            error = NotAllowed("tokens are issued only over TLS")
        try:
            if error is None and not member.authorizer.is_active(link.principal, serial_of(link)):
                # In every mode, because the token could be used for a day after the mode becomes
                # "required".
                error = NotAuthenticated(f"{link.principal}, or its certificate, was disabled")
            if error is None:
                member.token_service.check_request(
                    link.principal, link.token, request.user, request.valid_s, request.token_scope
                )
        except DistributedLogError as refused:
            error = refused
        if error is not None:
            self._refuse(error)
        else:
            member.secrets.rotate_tokens(self._write_audit_line, only_first=True)

    def _write_audit_line(self, error: DistributedLogError | None) -> None:
        """Write the audit record if the token is for another user. A secret exists now."""
        member, request = self._member, self._request
        if error is not None:
            self._refuse(error)
            return
        if not request.user:
            self._make_token()
            return
        what = f"for {request.valid_s} s"
        if request.token_scope:
            what += ": " + ", ".join(f"{n}/{path}" for n, path, _ in request.token_scope)
        head = AuthorizationChange(self._client, 1, member.replica.state.index)
        try:
            change = member.compose_acl_change(
                head, ("token", request.user, what), self._link.principal, self._link
            )
        except DistributedLogError as refused:
            self._refuse(refused)
            return
        member.replica.request(
            encode_command(change),
            change,
            self._on_audit_line,
            requester=self._link,
            timeout_s=self._timeout_s,
        )
        member.replica.drain()

    def _on_audit_line(self, answer: CommandResult | DistributedLogError) -> None:
        error = answer if isinstance(answer, DistributedLogError) else answer.error
        if error is None:
            self._make_token()
        else:
            self._refuse(error)

    def _make_token(self) -> None:
        link, member, request = self._link, self._member, self._request
        user = request.user or link.principal.removeprefix("user/")
        presented_token = None if request.user else link.token
        try:
            token = member.token_service.make_token(
                member.replica.state, user, request.valid_s, request.token_scope, presented_token
            )
        except DistributedLogError as error:
            self._refuse(error)
        else:
            link.reply(self._ident, token)

    def _refuse(self, error: DistributedLogError) -> None:
        reported_error = self._member.status_board.with_leader_address(error, self._link.listener)
        self._link.reply_error(self._ident, reported_error)
