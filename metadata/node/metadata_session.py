"""The server's side of one connection to a metadata node: a client's requests, a peer's messages.

Synchronous: a frame is decoded and handed on; its answer is sent when the state has it. No task a request.
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
from ...runtime.protocol.capability_messages import decode_question
from ...runtime.protocol.frames import Op, pack
from ...runtime.protocol.handshake import FEATURE_CODES
from ...runtime.protocol.schema import message
from ..auth.capability_issuer import generations_of
from ..auth.namespace_quotas import NOTHING
from ..auth.quorum_secrets import check_no_secrets, check_not_secret
from ..auth.token_service import token_secrets_of
from ..model.command_results import CommandResult
from ..model.commands import (
    Grant,
    ReplicatedCommand,
    Revoke,
    Transact,
    TrustChange,
    decode_command,
    encode_command,
)
from ..model.interface import RangePage
from ..model.request_identity import PRINCIPAL_CHARS_MAX, client_of, is_principal, request_identity
from ..model.rights import ADMIN, KNOWN, OPERATOR, PROXY
from ..peers.bootstrap import Bootstrap
from ..peers.hard_state_recovery import VoterReport
from ..protocol.client_messages import (
    STATUS_QUESTION,
    MembersRequest,
    RangeRequest,
    WatchRequest,
    decode_digest,
    decode_lease,
    encode_item,
    encode_members,
    encode_outcome,
    encode_page,
    encode_rows,
    encode_trust,
)
from ..protocol.token_messages import (
    RescueRequest,
    RotateRequest,
    TokenRequest,
    VerifyRequest,
    decode_trust_question,
    encode_by,
    encode_left,
    encode_number,
)
from ..raft.raft_messages import SnapshotChunk, SnapshotChunkReply, decode
from ..raft.recovered_hard_state import RaftEntryId
from ..replica.admission_control import NEVER_S
from ..storage.backup_format import (
    BackupHeader,
    SaveGivenOut,
    SaveRequest,
    backup_chunks,
    encode_begun,
    encode_chunk,
)
from .metadata_node import MetadataNode
from .quorum_member import MemberNode, Rescued
from .watch_server import ServedWatches, serial_of

FROM_CLIENTS = (Transact, Grant, Revoke)


class MetadataSession:
    """One connection."""

    def __init__(self, node: MetadataNode, link: Link) -> None:
        member = node.member
        if member is not None and member.replica.state.trust_revision:
            why = member.trust.why_out(link.principal, serial_of(link), link.token)
            if why is not None:
                raise why
        self._node = node
        self._link = link
        self._principal = link.principal
        self._owner = request_identity(link.principal, link.token)
        self._watches = ServedWatches(link)
        node.watches[self._watches] = None
        self._save: SaveGivenOut | None = None
        """The one that is fetched on this connection; another beginning ends it."""
        self._saves = 0

    # --- runtime.link.Session ---------------------------------------------------------------------

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """See `link.Session`."""
        member = self._node.member
        if op == Op.META_FORM:
            self._form(ident, body)
        elif op == Op.META_STATUS:
            self._status(ident, body)
        elif op == Op.META_MEMBERS:
            self._members(ident, body)
        elif member is None:
            self._refuse(op, ident, NotReady(self._node.waiting_because))
        elif op == Op.META_RAFT:
            self._raft(member, ident, body)
        elif op == Op.META_READ:
            self._read(member, ident, body)
        elif op == Op.META_TRANSACT:
            self._transact(member, ident, deadline_ms, body)
        elif op == Op.META_TRUST:
            self._trust(member, ident, deadline_ms, body)
        elif op == Op.META_LEASE:
            self._renew(member, ident, decode_lease(body))
        elif op == Op.META_WATCH:
            self._watch(member, ident, body)
        elif op == Op.META_DIFFERS:
            self._differs(member, body)
        elif op == Op.META_RECALL:
            self._testify(member, ident)
        elif op == Op.META_SAVE:
            self._give_save(member, ident, SaveRequest.decode(body))
        elif op == Op.META_CAPS:
            self._caps(member, ident, body)
        elif op == Op.META_WATCH_CANCEL:
            self._watches.cancel(ident)
        elif op == Op.INFO:
            if self._has_credit(ident):
                self._link.reply(ident, pack(member.info()))
        else:
            raise ProtocolError(
                f"{self._link.peer_address} asked a metadata node for operation {op}"
            )

    def on_batch_end(self) -> None:
        """See `link.Session`."""
        if self._node.member is not None:
            self._node.member.replica.drain()

    def on_closed(self) -> None:
        """See `link.Session`."""
        del self._node.watches[self._watches]
        self._save = None
        if self._node.member is not None:
            self._node.member.leases.on_closed(self._link)

    # --- requests ---------------------------------------------------------------------------------

    def _raft(self, member: MemberNode, ident: int, body: memoryview) -> None:
        peer = self._link.peer
        if peer.kind != "metadata" or peer.cluster_id != self._node.cluster_id:
            raise WrongPeer(f"{self._link.peer_address} is no metadata node of this cluster")
        said = decode(body)
        if said.sender != peer.node_id:
            raise ProtocolError(f"{self._link.peer_address} speaks for {said.sender}")
        if isinstance(said, SnapshotChunkReply):
            raise ProtocolError("a snapshot's progress is a reply, not a message")
        if not member.peers.strangers.may_speak(peer.node_id, self._link.peer_address):
            return  # said again, when it is known that it is a member
        if isinstance(said, SnapshotChunk):
            member.receiver.take(said, lambda offset: self._link.reply(ident, pack([offset])))
        else:
            member.peers.on_heard(peer.node_id, self._link)
            member.replica.on_message(said)

    def _read(self, member: MemberNode, ident: int, body: memoryview) -> None:
        request = RangeRequest.decode(body)
        try:
            check_not_secret(request.start, request.end)
        except NotAllowed as refusal:
            self._link.reply_error(ident, refusal)
            return

        def ready(error: DistributedLogError | None) -> None:
            state = member.replica.state
            if error is not None:
                self._link.reply_error(ident, self._led_from_here(member, error))
                return
            if not self._has_credit(ident):
                return
            part = (
                member.may_read(self._link, request.start, request.end)
                if state.trust_revision
                else None
            )
            if isinstance(part, NotAllowed):
                self._link.reply_error(ident, part)
            elif request.end is None:
                item = state.get(request.start)
                self._link.reply(ident, encode_item(state.index, state.revision, item))
            else:
                if part is None or callable(part):
                    page = state.range(request.start, request.end, request.limit)
                else:
                    page = state.range_of(part, request.limit)
                if callable(part):
                    shown = tuple(item for item in page.items if part(item.key))
                    # A page is gone on from its last key: one that shows none is the last.
                    page = RangePage(shown, page.revision, page.more and bool(shown))
                self._link.reply(ident, encode_page(state.index, page))

        member.replica.read(ready)

    def _differs(self, member: MemberNode, body: memoryview) -> None:
        peer = self._link.peer
        if peer.kind != "metadata" or peer.cluster_id != self._node.cluster_id:
            raise WrongPeer(f"{self._link.peer_address} is no metadata node of this cluster")
        member.replica.on_differs(peer.node_id, *decode_digest(body))

    def _testify(self, member: MemberNode, ident: int) -> None:
        raft = member.replica.raft
        last = RaftEntryId(raft.log.last_term, raft.log.last_index)
        if raft.ghost is not None:
            last = max(last, raft.ghost)
        said = VoterReport(raft.node_id, raft.term, last, raft.configuration)
        self._link.reply(ident, said.encode())

    def _give_save(self, member: MemberNode, ident: int, request: SaveRequest) -> None:
        if request.number:
            if not self._allowed(member, ident, ADMIN, "have a save") or not self._has_credit(
                ident
            ):
                return  # also where that ended since it was begun
            given = self._save
            try:
                if given is None or given.number != request.number:
                    raise InvalidRequest("this save is not given out here any more: begin again")
                self._link.reply(ident, encode_chunk(given.chunk(request.chunk)))
            except InvalidRequest as error:
                self._link.reply_error(ident, error)
            return

        def ready(error: DistributedLogError | None) -> None:
            replica = member.replica
            if error is not None:
                self._link.reply_error(ident, self._led_from_here(member, error))
                return
            if not self._allowed(member, ident, ADMIN, "have a save"):
                return
            index, log = replica.state.index, replica.raft.log
            term = log.term_at(index) or log.base_term
            head = BackupHeader(self._node.cluster_id, index, term, log.configuration_at(index))
            self._saves += 1
            self._save = SaveGivenOut(self._saves, backup_chunks(head, replica.state))
            self._link.reply(ident, encode_begun(self._saves, self._save.chunk(0)))

        member.replica.read(ready)  # after all that was acknowledged before

    def _transact(self, member: MemberNode, ident: int, deadline_ms: int, body: memoryview) -> None:
        command = bytes(body)
        try:
            meant = decode_command(command)
        except DistributedLogError as error:
            self._link.reply_error(ident, error)
            return
        if type(meant) not in FROM_CLIENTS or not meant.client or "/" in meant.client:
            raise ProtocolError(f"{self._link.peer_address} sent a command that is not a client's")
        if isinstance(meant, Transact):
            try:
                check_no_secrets(meant.transaction)
            except NotAllowed as refusal:
                self._link.reply_error(ident, refusal)
                return
        if self._principal != ANONYMOUS:
            meant.client = client_of(self._owner, meant.client)
            command = encode_command(meant)
        replica, growth = member.replica, NOTHING
        # One that is under way was judged, and will be done: a refusal now would be a lie soon.
        if replica.leads and not replica.is_under_way(meant):
            refused = self._why_not(member, meant)
            if refused is not None and not _is_done(replica.state.answered(meant)):
                known = replica.may_refuse
                self._link.reply_error(ident, refused if known else replica.not_judged_yet())
                return
            self._tell_owner(member)
            growth = member.growth(self._principal, meant)
            over = member.over_quota(self._principal, meant, growth)
            if over is not None and replica.state.answered(meant) is None:
                self._link.reply_error(ident, over)
                return
            if replica.state.trust_revision and isinstance(meant, Transact):
                told = member.with_line(meant, self._principal, self._link.peer_address)
                if told is not meant:
                    meant, command = told, encode_command(told)

        def done(answer: CommandResult | DistributedLogError) -> None:
            if isinstance(answer, DistributedLogError):
                self._link.reply_error(ident, self._led_from_here(member, answer))
            else:
                if isinstance(meant, Grant):
                    member.leases.on_granted(answer.lease, self._link)
                    self._tell_owner(member)
                self._reply_outcome(ident, member, answer)

        within_s = deadline_ms / 1000 if deadline_ms else NEVER_S
        last = replica.raft.log.last_index
        replica.request(command, meant, done, asker=self._link, within_s=within_s)
        if replica.state.trust_revision and replica.raft.log.last_index > last:
            member.on_taken(self._owner, replica.raft.log.last_index, growth)

    def _tell_owner(self, member: MemberNode) -> None:
        leases_of = member.replica.state.leases_of
        member.quotas.on_owner(self._owner, self._principal, leases_of)

    def _caps(self, member: MemberNode, ident: int, body: memoryview) -> None:
        question = decode_question(body)

        def drawn(error: DistributedLogError | None) -> None:
            if error is None:
                error = TooBusy("the secrets of ledgers were just drawn: ask again")
            self._link.reply_error(ident, self._led_from_here(member, error))

        def ready(error: DistributedLogError | None) -> None:
            if error is not None:
                self._link.reply_error(ident, self._led_from_here(member, error))
                return
            if not self._has_credit(ident):
                return
            try:
                state = member.replica.state
                self._link.reply(
                    ident, member.desk.answer(state, question, self._principal, self._link.token)
                )
            except NotReady:
                member.secrets.rotate(drawn, first=True)
            except DistributedLogError as refusal:
                self._link.reply_error(ident, refusal)

        member.replica.read(ready)

    def _why_not(self, member: MemberNode, meant: ReplicatedCommand) -> DistributedLogError | None:
        """Why this client's command is not proposed."""
        if not is_principal(self._principal) and self._principal != ANONYMOUS:
            return NotAllowed(
                f"the name of a principal has at most {PRINCIPAL_CHARS_MAX} characters, with its kind"
            )
        if isinstance(meant, Revoke):
            return member.leases.why_not(meant.lease, self._owner)
        if member.replica.state.trust_revision:
            trust = member.trust.narrowed(self._link.token)
            if isinstance(meant, Transact):
                return trust.transact(self._principal, meant.transaction)
            return trust.op(self._principal, KNOWN, "hold a lease")
        return None

    def _trust(self, member: MemberNode, ident: int, deadline_ms: int, body: memoryview) -> None:
        request = decode_trust_question(body)
        if isinstance(request, TokenRequest):
            self._make_token(member, ident, deadline_ms, request)
            return
        if isinstance(request, VerifyRequest):
            self._verify_token(member, ident, request)
            return
        if isinstance(request, RotateRequest):
            self._rotate(member, ident, request)
            return
        if isinstance(request, RescueRequest):
            self._rescue(member, ident, request)
            return
        if request.change is None:

            def ready(error: DistributedLogError | None) -> None:
                if error is not None:
                    self._link.reply_error(ident, self._led_from_here(member, error))
                elif request.own or self._allowed(
                    member, ident, ADMIN | OPERATOR, "see who is refused"
                ):
                    self._link.reply(
                        ident, encode_trust(member.trust_report(self._link, own=request.own))
                    )

            member.replica.read(ready)
            return

        def done(answer: CommandResult | DistributedLogError) -> None:
            if isinstance(answer, DistributedLogError):
                self._link.reply_error(ident, self._led_from_here(member, answer))
            else:
                self._reply_outcome(ident, member, answer)

        client = client_of(self._owner, request.client)
        head = TrustChange(client, request.request, request.base_index)
        try:
            change = member.change_of_trust(head, request.change, self._principal, self._link)
        except DistributedLogError as error:
            replica = member.replica
            known = replica.may_refuse or not replica.leads
            said = error if known else replica.not_judged_yet()
            self._link.reply_error(ident, self._led_from_here(member, said))
            return
        within_s = deadline_ms / 1000 if deadline_ms else NEVER_S
        member.replica.request(
            encode_command(change), change, done, asker=self._link, within_s=within_s
        )

    def _make_token(
        self, member: MemberNode, ident: int, deadline_ms: int, request: TokenRequest
    ) -> None:
        # A request of its own: asked again, another token is made, and nobody has the one before.
        client = client_of(self._owner, self._node.endpoint.host.secret_bytes(8).hex())
        within_s = deadline_ms / 1000 if deadline_ms else NEVER_S
        _TokenIssue(member, self._link, ident, request, client, within_s).begin()

    def _verify_token(self, member: MemberNode, ident: int, request: VerifyRequest) -> None:
        """For a proxy, which took it from its client."""

        def ready(error: DistributedLogError | None) -> None:
            try:
                if error is not None:
                    raise self._led_from_here(member, error)
                trust, who = member.trust.narrowed(self._link.token), self._principal
                if not self._link.is_secret or not trust.cluster_rights(who) & (PROXY | OPERATOR):
                    raise NotAllowed(f"{who} looks at nobody's tokens: proxies do, by TLS")
                try:
                    welcome = member.tokens.welcome(member.replica.state, request.proof)
                except NotReady:
                    # The leader, asked so, knows all that there is. "Not ready" would have the proxy look
                    # for another one, for as long as strangers show it such tokens.
                    raise NotAuthenticated("a token that this cluster has not made") from None
            except DistributedLogError as refused:
                self._link.reply_error(ident, refused)
            else:
                self._link.reply(ident, encode_left(welcome.left_s))

        member.replica.read(ready)

    def _rotate(self, member: MemberNode, ident: int, request: RotateRequest) -> None:
        def done(error: DistributedLogError | None) -> None:
            state = member.replica.state
            if error is not None:
                self._link.reply_error(ident, self._led_from_here(member, error))
            elif request.what == "tokens":
                self._link.reply(ident, encode_number(max(token_secrets_of(state))))
            else:
                self._link.reply(ident, encode_number(generations_of(state)[0].number))

        def ready(error: DistributedLogError | None) -> None:
            if error is not None:
                done(error)
                return
            trust = member.trust.narrowed(self._link.token)
            if not trust.cluster_rights(self._principal) & ADMIN:
                done(NotAllowed(f"{self._principal} may not rotate secrets: it needs admin"))
                return
            if member.replica.state.trust_revision:
                member.tell(self._principal, self._link.peer_address, "rotate", request.what)
            if request.what == "tokens":
                member.secrets.rotate_tokens(done)
            else:
                member.secrets.rotate(done)

        member.replica.read(ready)

    def _rescue(self, member: MemberNode, ident: int, request: RescueRequest) -> None:
        def done(answer: Rescued) -> None:
            if isinstance(answer, DistributedLogError):
                self._link.reply_error(ident, self._led_from_here(member, answer))
            else:
                self._link.reply(ident, encode_by(answer))

        member.rescue(self._principal, self._link.peer.node_id, request.user, done)

    def _renew(self, member: MemberNode, ident: int, lease: int) -> None:
        def done(error: DistributedLogError | None) -> None:
            if error is None:
                self._tell_owner(member)
                self._link.reply(ident, pack([]))
            else:
                self._link.reply_error(ident, self._led_from_here(member, error))

        member.leases.renew(lease, self._link, done)

    def _form(self, ident: int, body: memoryview) -> None:
        if len(body):
            self._node.offer(
                Bootstrap.decode(body), lambda answer: self._link.reply(ident, answer.encode())
            )
        else:
            self._link.reply(ident, self._node.form_answer().encode())

    def _status(self, ident: int, body: memoryview) -> None:
        member = self._node.member
        if message(body, STATUS_QUESTION, "META_STATUS") == ("self",):
            if self._has_credit(ident):
                self._link.reply(ident, encode_rows([self._node.row()]))
        elif member is None:
            self._link.reply(ident, encode_rows([self._node.row()]))
        elif not member.board.ask_all(lambda rows: self._link.reply(ident, encode_rows(rows))):
            self._link.reply_error(ident, TooBusy("too many ask for the status of all nodes"))

    def _members(self, ident: int, body: memoryview) -> None:
        request = MembersRequest.decode(body)
        member = self._node.member
        if request.kind == "show":
            if self._has_credit(ident):
                self._show_members(member, ident)
            return
        if member is None:
            self._link.reply_error(ident, NotReady(self._node.waiting_because))
            return

        def done(error: DistributedLogError | None) -> None:
            if error is None:
                self._show_members(member, ident)
            else:
                self._link.reply_error(ident, self._led_from_here(member, error))

        if self._allowed(member, ident, OPERATOR, "change the members of the quorum"):
            if member.replica.state.trust_revision and member.replica.leads:
                subject = f"{request.name} {request.address}".strip()
                member.tell(
                    self._principal, self._link.peer_address, f"{request.kind}-member", subject
                )
            member.admission.ask(request, done)

    def _show_members(self, member: MemberNode | None, ident: int) -> None:
        reached = member.board.reach(self._link.listener) if member is not None else []
        self._link.reply(ident, encode_members(reached))

    def _allowed(self, member: MemberNode, ident: int, rights: int, what: str) -> bool:
        """May this principal have that of the cluster? Else it is told."""
        if not member.replica.state.trust_revision:
            return True
        refused = member.trust.narrowed(self._link.token).op(self._principal, rights, what)
        if refused is not None:
            self._link.reply_error(ident, refused)
        return refused is None

    def _has_credit(self, ident: int) -> bool:
        """May it be answered? Else the peer is told to read what it was sent, and to come again."""
        if self._node.endpoint.has_credit(self._link):
            return True
        self._link.reply_error(ident, TooBusy("answers wait here that are not read"))
        return False

    def _reply_outcome(self, ident: int, member: MemberNode, answer: CommandResult) -> None:
        codes = bool(self._link.peer.features & FEATURE_CODES)
        self._link.reply(ident, encode_outcome(member.replica.state.index, answer, codes=codes))

    def _refuse(self, op: int, ident: int, error: DistributedLogError) -> None:
        if op == Op.META_WATCH:
            self._watches.end(ident, error)
        elif ident:  # Raft's messages have none, and are sent again
            self._link.reply_error(ident, error)

    def _led_from_here(self, member: MemberNode, error: DistributedLogError) -> DistributedLogError:
        return member.board.for_listener(error, self._link.listener)

    def _watch(self, member: MemberNode, ident: int, body: memoryview) -> None:
        try:
            request = WatchRequest.decode(body)
        except (
            ProtocolError
        ) as error:  # for good: a client whose connection ended would send it again
            self._watches.end(ident, InvalidRequest(str(error)))
            return
        try:
            check_not_secret(request.start, request.end)
        except NotAllowed as refusal:
            self._watches.end(ident, refusal)
            return
        lost = member.quorum_contact.lost
        if lost is not None:
            self._watches.end(ident, lost)
            return
        state = member.replica.state
        if state.trust_revision and state.revision < request.after_revision:
            # It knows of more than this node: perhaps of the very grant that it comes for.
            self._watches.end(ident, NotReady("this metadata node is not so far yet"))
            return
        part = member.may_read(self._link, request.start, request.end)
        over = member.over_watches(self._principal)
        if isinstance(part, NotAllowed):
            self._watches.end(ident, part)
        elif over is not None:
            self._watches.end(ident, over)
        else:
            self._watches.open(state, ident, request, part)


def _is_done(known: CommandResult | None) -> bool:
    """Was it done when it was sent before? Then it may be said again to whoever asked for it.

    What it did may have ended its own right: who deletes a log has none on it after that. What was not done
    is judged as new: the answer to a condition that does not hold shows what is there now.
    """
    if known is None or known.error is not None:
        return False
    return known.transaction is None or known.transaction.succeeded


class _TokenIssue:
    """The steps by which a leader makes one token.

    After a quorum round it checks the asker, has a secret for tokens, writes the audit line if the token is
    for another user, and replies with the token. Any refusal ends it.
    """

    def __init__(
        self,
        member: MemberNode,
        link: Link,
        ident: int,
        request: TokenRequest,
        client: str,
        within_s: float,
    ) -> None:
        """``client``: the name under which the audit line is written, once."""
        self._member = member
        self._link = link
        self._ident = ident
        self._request = request
        self._client = client
        self._within_s = within_s

    def begin(self) -> None:
        """Start with a quorum round, so that no rights of before are used."""
        self._member.replica.read(self._check)

    def _check(self, error: DistributedLogError | None) -> None:
        link, member, request = self._link, self._member, self._request
        if error is None and not link.is_secret:
            error = NotAllowed("a token is not said in clear: connect by TLS")
        try:
            if error is None and not member.trust.is_live(link.principal, serial_of(link)):
                # In no mode: a token would be good for a day in the one that refuses.
                error = NotAuthenticated(f"{link.principal}, or its certificate, was disabled")
            if error is None:
                member.tokens.check_asked(
                    link.principal, link.token, request.user, request.valid_s, request.narrowing
                )
        except DistributedLogError as refused:
            error = refused
        if error is not None:
            self._refuse(error)
        else:
            member.secrets.rotate_tokens(self._write_line, first=True)

    def _write_line(self, error: DistributedLogError | None) -> None:
        """There is a secret: write the audit line, if the token is for another user."""
        member, request = self._member, self._request
        if error is not None:
            self._refuse(error)
            return
        if not request.user:
            self._make()
            return
        what = f"for {request.valid_s} s"
        if request.narrowing:
            what += ": " + ", ".join(f"{n}/{path}" for n, path, _ in request.narrowing)
        head = TrustChange(self._client, 1, member.replica.state.index)
        try:
            change = member.change_of_trust(
                head, ("token", request.user, what), self._link.principal, self._link
            )
        except DistributedLogError as refused:
            self._refuse(refused)
            return
        member.replica.request(
            encode_command(change),
            change,
            self._on_line,
            asker=self._link,
            within_s=self._within_s,
        )
        member.replica.drain()

    def _on_line(self, answer: CommandResult | DistributedLogError) -> None:
        error = answer if isinstance(answer, DistributedLogError) else answer.error
        if error is None:
            self._make()
        else:
            self._refuse(error)

    def _make(self) -> None:
        link, member, request = self._link, self._member, self._request
        user = request.user or link.principal.removeprefix("user/")
        came_by = None if request.user else link.token
        try:
            token = member.tokens.make(
                member.replica.state, user, request.valid_s, request.narrowing, came_by
            )
        except DistributedLogError as error:
            self._refuse(error)
        else:
            link.reply(self._ident, token)

    def _refuse(self, error: DistributedLogError) -> None:
        told = self._member.board.for_listener(error, self._link.listener)
        self._link.reply_error(self._ident, told)
