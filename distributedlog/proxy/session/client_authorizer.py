"""What a proxy's clients may do: each thing is done with the rights of who asked, never with the proxy's own.

The proxy follows what the metadata say of users, by a watch. Whoever opens something is looked at there, and
once in `ANSWER_VALID_S` by a linearizable question besides: so a grant counts as soon as it is answered, and
where no quorum answers nothing is opened. What was let in is looked at again at each change that concerns its
user: it ends in the very call that hears of a revocation. Nothing is judged while the mode is open; in
`report` all is done, and what would be refused is counted and told.

Who comes by a token may do what its user may, and its narrowing too, at each use. The metadata say once, by a
linearizable question, whose it is and how long it is good; what revokes it is in its user's record.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from ...log.model.log_keys import decode_log_id, incarnation_id, name_key, state_key
from ...log.model.log_state import LogState
from ...metadata.auth.acl_cache import ALL_USERS, REQUIRED, AclCache
from ...metadata.client.range_watch import follow_range
from ...metadata.model.acl_records import (
    ACL_PREFIX,
    REPORTED_DENIALS_MAX,
    grants_prefix,
    printable_text,
    user_key,
)
from ...metadata.model.interface import Metadata, Scan, WatchBatch, prefix_end
from ...metadata.model.rights import (
    CONSUME,
    MANAGE,
    OPERATOR,
    PRODUCE,
    READ,
    WRITE,
    describe_rights,
)
from ...runtime.declarations.health_conditions import Code, HealthCondition, condition
from ...runtime.interfaces.errors import (
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    OutcomeUnknown,
    TooBusy,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.interfaces.principals import ANONYMOUS, PROXY, USER, HandshakeContext, Welcome
from ...runtime.net.link import Link
from ...runtime.protocol.tokens import allowed_by, read_token, restrict_to_scope
from ..declarations.events import REFUSED

WRITING_RIGHTS = PRODUCE | WRITE
READING_RIGHTS = CONSUME | READ
"""Any one of these lets somebody write a log here, or read it."""
ANSWER_VALID_S = 10.0
"""An answer of the metadata about a user is good for so long; what ends it is heard at once."""
WATCH_LAG_MAX_S = 5.0
"""So long the watch may be behind an answer before who asked is told to come again."""
TOKEN_WATCH_LAG_MAX_S = 2.0
"""The same of who shows a token: his handshake has a deadline."""
TOKEN_CHECKS_MAX = 64
TOKEN_CHECKS_PER_HOST = 8
"""Whoever shows a token is a stranger until the leader has looked at it: so many looks at once, no more."""
RETRY_S = 0.5
NAME_CHARS_SHOWN = 80
REASON_CHARS_SHOWN = 1000

log = get_logger("distributedlog.proxy")

OnRevoked = Callable[[DistributedLogError], object]


@dataclass(slots=True)
class _AdmittedOperation:
    """Something that was let in."""

    needed_rights: int
    path: str
    current_name: Callable[[], str]
    """Of the log, as it is called now."""
    on_revoked: OnRevoked


@dataclass(slots=True)
class _ConnectedPrincipal:
    """One of those who are connected."""

    clients: dict["ClientSession", None] = field(default_factory=dict)
    queries_started: int = 0
    """Put so far; one at a time."""
    latest_answered: int = 0
    """The newest of them that has an answer, and when it was put."""
    answer_started_at: float = float("-inf")
    query_lock: trio.Lock = field(default_factory=trio.Lock)
    """Of who asks: the others use that answer, if they came before the question."""
    cached_acl: AclCache = field(default_factory=AclCache)


class ClientAuthorizer:
    """Of one proxy, for all its connections. `run` serves it; before that nobody has any right."""

    def __init__(self, metadata: Metadata, acl: AclCache | None = None) -> None:
        """``table``: what is known before `run` has begun (default: nothing is, and so nobody is let in)."""
        self.metadata = metadata
        self.acl = AclCache(REQUIRED) if acl is None else acl
        self.denial_count = 0
        """Times that somebody was refused since the start, or would have been."""
        self.revoked_count = 0
        """What was let in and has ended because its right was taken away."""
        self.reported_denials: dict[tuple[str, str], int] = {}
        """In mode ``report``: principal and what it lacked, how often."""
        self._acl_error: NotAllowed | None = None
        """Why nothing is known of anybody."""
        self._principals: dict[str, _ConnectedPrincipal] = {}
        self._change_event = trio.Event()
        self._token_checks_by_host: Counter[str] = Counter()
        """Tokens that are looked at now, by the host that shows them."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow who may do what, until cancelled. Started when it was listed once.

        Raises `NotAllowed` where that is not for this process, and `DistributedLogError` that keeps the
        metadata from answering at first; later on it goes by what it knows until they do.
        """
        await follow_range(
            self.metadata,
            ACL_PREFIX,
            prefix_end(ACL_PREFIX),
            load=self._load,
            apply=self._apply_batch,
            on_error=self._on_watch_error,
            retry_s=RETRY_S,
            after_revision=await self._load(),
            task_status=task_status,
        )

    async def _load(self) -> int:
        acl, scan = AclCache(), Scan(self.metadata, ACL_PREFIX)
        async for item in scan:
            acl.update(item.key, item.value)
        self.acl, self._acl_error = acl, None
        self._apply_changes({ALL_USERS})
        return scan.revision

    def _apply_batch(self, batch: WatchBatch) -> None:
        self._apply_changes(
            {
                self.acl.update(event.item.key, event.item.value if event.kind == "put" else None)
                for event in batch.events
            }
        )

    def _on_watch_error(self, error: DistributedLogError) -> None:
        if isinstance(error, NotAllowed):
            self._lose_acl(error)
        else:
            log.warning("the rights of users cannot be read: %s", error)

    def _lose_acl(self, error: NotAllowed) -> None:
        """This process may not know who may do what: it lets nobody do anything (unknown is not "yes")."""
        if self._acl_error is None:
            log.error("this proxy serves no client: %s", error)
        self.acl, self._acl_error = AclCache(REQUIRED), error
        self._apply_changes({ALL_USERS})

    def info(self) -> dict[str, object]:
        """For `Op.INFO`: numbers, and no name of anybody or of a log."""
        return {
            "trust_mode": self.acl.mode,
            "rights_refused": self.denial_count,
            "rights_ended": self.revoked_count,
        }

    def condition(self) -> HealthCondition | None:
        """Return a condition while this proxy serves no client."""
        if self._acl_error is None:
            return None
        return condition(Code.RIGHTS_UNKNOWN, error=str(self._acl_error))

    def _apply_changes(self, changed_users: set[str | None]) -> None:
        """Something has changed for these users. Whoever lost something loses it here and now."""
        for principal, connected in list(self._principals.items()):
            if ALL_USERS in changed_users or principal.partition("/")[2] in changed_users:
                for client in list(connected.clients):
                    client.recheck()
        self._change_event.set()
        self._change_event = trio.Event()

    # --- connections ------------------------------------------------------------------------------

    async def verify_token(
        self,
        query_welcome: Callable[[bytes], Awaitable[Welcome]],
        meeting: HandshakeContext,
        proof: bytes,
    ) -> Welcome:
        """The method ``token`` of `Endpoint.remote_methods`. ``ask``: of the metadata, whose it is.

        Raises `NotAuthenticated`, what keeps the metadata from answering, and `TooBusy` where the watch is
        behind their answer.
        """
        if not meeting.is_secret:
            raise NotAuthenticated(f"a token is not taken in clear, and {meeting.peer_address} is")
        token = read_token(proof)  # what is none at all costs the quorum nothing
        host = meeting.peer_address.rpartition(":")[0]
        if (
            self._token_checks_by_host.total() >= TOKEN_CHECKS_MAX
            or self._token_checks_by_host[host] >= TOKEN_CHECKS_PER_HOST
        ):
            raise TooBusy(
                f"{self._token_checks_by_host.total()} tokens are just looked at here: come again"
            )
        self._token_checks_by_host[host] += 1
        try:
            welcome = await query_welcome(proof)
        finally:
            self._token_checks_by_host[host] -= 1
            if not self._token_checks_by_host[host]:
                del self._token_checks_by_host[host]
        with trio.move_on_after(TOKEN_WATCH_LAG_MAX_S):
            while not self.lacks_acl and self.acl.why_no_token(token) is not None:
                await self.wait_changed()
            return welcome
        raise TooBusy(f"what {token.principal} may do is just changing: ask again")

    def admit(self, link: Link) -> "ClientSession":
        """Who speaks on a new connection; `ClientSession.finish` when it is over.

        Raises `NotAuthenticated` for who is no user any more.
        """
        client = ClientSession(self, link)
        reason = client.disconnect_reason()
        if reason is not None:
            raise reason
        self._principals.setdefault(client.principal, _ConnectedPrincipal()).clients[client] = None
        return client

    def remove(self, client: "ClientSession") -> None:
        """Its connection is over. Idempotent."""
        connected = self._principals.get(client.principal)
        if connected is not None:
            connected.clients.pop(client, None)
            if not connected.clients:
                del self._principals[client.principal]

    # --- questions --------------------------------------------------------------------------------

    async def query_now(self, principal: str) -> AclCache | None:
        """What the metadata say of a user, to a question that was put after this call.

        None: it is no user, or none that is connected. Raises what keeps them from answering.
        """
        kind, _, user = principal.partition("/")
        connected = self._principals.get(principal)
        if kind != USER or connected is None:
            return None
        queries_before = connected.queries_started
        async with connected.query_lock:
            if connected.latest_answered <= queries_before:
                connected.queries_started += 1
                query_number, acl_answer = connected.queries_started, AclCache(REQUIRED)
                asked_at = trio.current_time()
                for start, end in (
                    (user_key(user), user_key(user) + b"\0"),
                    (grants_prefix(user), prefix_end(grants_prefix(user))),
                ):
                    async for item in Scan(self.metadata, start, end):
                        acl_answer.update(item.key, item.value)
                connected.latest_answered, connected.answer_started_at, connected.cached_acl = (
                    query_number,
                    asked_at,
                    acl_answer,
                )
            return connected.cached_acl

    def cached_answer(self, principal: str) -> AclCache | None:
        """What they said of it last, while that is good."""
        connected = self._principals.get(principal)
        if connected is None or trio.current_time() - connected.answer_started_at >= ANSWER_VALID_S:
            return None
        return connected.cached_acl

    async def wait_changed(self) -> None:
        """Wait until something else is heard."""
        await self._change_event.wait()

    @property
    def lacks_acl(self) -> bool:
        """May it not know who may do what?"""
        return self._acl_error is not None

    def denial_error(self, principal: str, action: str, needed_rights: int) -> NotAllowed:
        """In words; the same for what is absent and what is forbidden."""
        if self._acl_error is not None:
            return NotAllowed(f"this proxy may not know who may do what: {self._acl_error}")
        return NotAllowed(
            f"{principal} may not {action}: it needs {describe_rights(needed_rights)}"
        )

    def record_denial(self, principal: str, denial: NotAllowed) -> NotAllowed | None:
        """What comes of a refusal in this mode: in ``report`` it is counted, and done all the same."""
        only_reported, self.denial_count = self.acl.mode != REQUIRED, self.denial_count + 1
        reason = str(denial)
        if only_reported:
            denial_key = (principal, reason)
            if (
                denial_key in self.reported_denials
                or len(self.reported_denials) < REPORTED_DENIALS_MAX
            ):
                self.reported_denials[denial_key] = self.reported_denials.get(denial_key, 0) + 1
        REFUSED.emit(log, "%s", reason, principal=principal, reason=reason, would=only_reported)
        return None if only_reported else denial


class ClientSession:
    """Who speaks on one connection, what it may do, and what of it was let in."""

    def __init__(self, authorizer: ClientAuthorizer, link: Link) -> None:
        self.principal = link.principal
        self._authorizer = authorizer
        self._link = link
        identity = link.identity
        self._serial = identity.serial if identity is not None else ""
        self._token = link.token
        self._admitted: dict[int, _AdmittedOperation] = {}
        self._last_operation = 0

    @property
    def is_authorized(self) -> bool:
        """Does it matter who it is?"""
        return self._authorizer.acl.mode != "open"

    # --- questions --------------------------------------------------------------------------------

    def has_right(self, needed_rights: int, path: str, name: str) -> bool:
        """Any one of these rights on the log of that name, there or not, by what is known now?

        While nothing is judged everybody has all.
        """
        return not self.is_authorized or self._is_allowed(
            self._authorizer.acl, needed_rights, path, name
        )

    def visible_paths(self, path: str) -> dict[str, int] | None:
        """The paths of a namespace that it may see names below; None: all names."""
        authorizer = self._authorizer
        if not self.is_authorized or authorizer.acl.mode != REQUIRED:
            return None
        paths = authorizer.acl.paths(self.principal, path)
        if self._token is None or not self._token.token_scope:
            return paths
        restricted: dict[str, int] = {}
        granted = (
            (path, subpath, with_proxy_rights(path_rights))
            for subpath, path_rights in paths.items()
        )
        for _, subpath, path_rights in restrict_to_scope(granted, self._token.token_scope):
            restricted[subpath] = restricted.get(subpath, 0) | path_rights
        return restricted

    def disconnect_reason(self) -> NotAuthenticated | None:
        """Why its connection ends: its token is taken no more, or, where rights are refused, it is nobody
        here any more."""
        acl = self._authorizer.acl
        if self._token is not None:
            # Whoever is blind knows nothing of tokens; nobody does anything there.
            return None if self._authorizer.lacks_acl else acl.why_no_token(self._token)
        if acl.mode != REQUIRED or self.principal == ANONYMOUS:
            return None
        if acl.is_active(self.principal, self._serial):
            return None
        return NotAuthenticated(
            f"{self.principal}, or the certificate that it comes with, was disabled"
        )

    async def check(
        self, needed_rights: int, path: str, name: str, *, shown_name: str = ""
    ) -> None:
        """Raise `NotAllowed` where it has none of these rights on the log of that name.

        ``asked``: what the client called it, if that is another word: it is told of none but its own.
        Raises `TooBusy` where that is just changing, and what keeps the metadata from answering.
        """
        authorizer, action = self._authorizer, _action_text(needed_rights, path, shown_name or name)
        if not self.is_authorized:
            return
        if authorizer.acl.mode != REQUIRED:
            if not self.has_right(needed_rights, path, name):
                authorizer.record_denial(
                    self.principal, authorizer.denial_error(self.principal, action, needed_rights)
                )
            return
        answer = authorizer.cached_answer(self.principal)
        if not (
            answer
            and self.has_right(needed_rights, path, name)
            and self._is_allowed(answer, needed_rights, path, name)
        ):
            answer = None if authorizer.lacks_acl else await authorizer.query_now(self.principal)
            if answer is None or not self._is_allowed(answer, needed_rights, path, name):
                denial = authorizer.denial_error(self.principal, action, needed_rights)
                error = authorizer.record_denial(self.principal, denial)
                if error is not None:
                    raise error
                return
        with trio.move_on_after(WATCH_LAG_MAX_S):
            while not self.has_right(needed_rights, path, name):
                await authorizer.wait_changed()
            return
        raise TooBusy(f"what {self.principal} may do is just changing: ask again")

    async def may_create(self, path: str, name: str) -> bool:
        """May an opening of the log make it, where it is not there? In ``report`` it may, and is counted."""
        if self.has_right(MANAGE, path, name):
            return True
        authorizer = self._authorizer
        if authorizer.acl.mode == REQUIRED:
            return False
        if await authorizer.metadata.get(name_key(path, name)) is None:
            action = _action_text(MANAGE, path, name)
            authorizer.record_denial(
                self.principal, authorizer.denial_error(self.principal, action, MANAGE)
            )
        return True

    async def check_log(self, needed_rights: int, path: str, name: str, incarnation: str) -> None:
        """As `check`, where a log is named by its incarnation: that one's name is what counts.

        An id is no secret and protects nothing: whoever may do that with one log must not do it, or hear
        of it, with another one whose id he has.
        """
        if not self.is_authorized:
            return
        log_id = incarnation_id(incarnation) if incarnation else -1
        for _ in range(2):  # it may be renamed or deleted between the two questions
            stored_state = (
                None if log_id < 0 else await self._authorizer.metadata.get(state_key(log_id))
            )
            if stored_state is None:
                await self.check(
                    needed_rights, path, name
                )  # what is gone is told by its name alone
                return
            current_name = LogState.decode(stored_state.value).name
            stored_name = await self._authorizer.metadata.get(name_key(path, current_name))
            if stored_name is not None and decode_log_id(stored_name.value) == log_id:
                await self.check(needed_rights, path, current_name, shown_name=name)
                return
        authorizer = self._authorizer
        denial = authorizer.denial_error(
            self.principal, _action_text(needed_rights, path, name), needed_rights
        )
        error = authorizer.record_denial(self.principal, denial)  # it is of another namespace
        if error is not None:
            raise error

    def check_producer(self, name: str) -> None:
        """Raise `NotAllowed` where a producer's name begins with ``~USER/`` of somebody else."""
        owner, slash, _ = name[1:].partition("/")
        if (
            not (self.is_authorized and slash and name[0] == "~")
            or self.principal == f"{USER}/{owner}"
        ):
            return
        owner_text = printable_text(owner, NAME_CHARS_SHOWN)
        denial = NotAllowed(
            f"{self.principal} may not open producers ~{owner_text}/…: they are user {owner_text}'s own"
        )
        error = self._authorizer.record_denial(self.principal, denial)
        if error is not None:
            raise error

    def check_cluster(self, action: str) -> None:
        """Raise `NotAllowed` where it does not run the cluster."""
        authorizer = self._authorizer
        is_narrowed = self._token is not None and self._token.token_scope
        cluster_rights = 0 if is_narrowed else authorizer.acl.cluster_rights(self.principal)
        if self.is_authorized and not cluster_rights & OPERATOR:
            error = authorizer.record_denial(
                self.principal, authorizer.denial_error(self.principal, action, OPERATOR)
            )
            if error is not None:
                raise error

    def check_proxy(self, action: str) -> None:
        """Raise `NotAllowed` where it is no proxy, and does not run the cluster either."""
        if not self.principal.startswith(f"{PROXY}/"):
            self.check_cluster(action)

    def report_denials(self) -> list[tuple[str, str, int]]:
        """Whom this proxy would have refused since it started, what each lacked, how often; most often first.

        Raises `NotAllowed` for who does not run the cluster.
        """
        self.check_cluster("hear whom a proxy would refuse")
        counts = self._authorizer.reported_denials.items()
        denials = [
            (who, printable_text(reason, REASON_CHARS_SHOWN), times)
            for (who, reason), times in counts
        ]
        return sorted(denials, key=lambda denial: -denial[2])

    # --- what was let in --------------------------------------------------------------------------

    def admit(
        self, needed_rights: int, path: str, current_name: Callable[[], str], on_revoked: OnRevoked
    ) -> int:
        """Begin something, after `check`; what to `finish` by. Raises `NotAllowed` where it is just over.

        ``end`` is called with the reason, once, when none of these rights is left; nothing is to be done
        with them after it.
        """
        operation = _AdmittedOperation(needed_rights, path, current_name, on_revoked)
        denial = self._denial_of(operation)
        if denial is not None:
            raise denial
        self._last_operation += 1
        self._admitted[self._last_operation] = operation
        return self._last_operation

    def finish(self, number: int) -> None:
        """It is over. Idempotent."""
        self._admitted.pop(number, None)

    @contextmanager
    def admitted(
        self, needed_rights: int, path: str, name: str, *, unknown_outcome: str = ""
    ) -> Iterator[None]:
        """The body is given up where none of these rights is left meanwhile; then `NotAllowed` is raised.

        ``unknown``: what is not known then; `OutcomeUnknown` says so (G7).
        """
        errors: list[DistributedLogError] = []
        with trio.CancelScope() as scope:

            def end(error: DistributedLogError) -> None:
                errors.append(error)
                scope.cancel()

            number = self.admit(needed_rights, path, lambda: name, end)
            try:
                yield
            finally:
                self.finish(number)
        if scope.cancelled_caught:
            raise (
                OutcomeUnknown(f"{errors[0]}; {unknown_outcome}") if unknown_outcome else errors[0]
            )

    def recheck(self) -> None:
        """What is known has changed: end what it may do no more, and the connection of who is out."""
        disconnect_error = self.disconnect_reason()
        for number, operation in list(self._admitted.items()):
            denial = disconnect_error or self._denial_of(operation)
            if denial is not None and self._admitted.pop(number, None) is not None:
                self._authorizer.revoked_count += 1
                operation.on_revoked(denial)
        if disconnect_error is not None:
            self._link.refuse(disconnect_error)

    def disconnect(self) -> None:
        """Its connection is over. Idempotent."""
        self._admitted.clear()
        self._authorizer.remove(self)

    def _denial_of(self, operation: _AdmittedOperation) -> NotAllowed | None:
        authorizer, name = self._authorizer, operation.current_name()
        if authorizer.acl.mode != REQUIRED or self.has_right(
            operation.needed_rights, operation.path, name
        ):
            return None
        action = _action_text(operation.needed_rights, operation.path, name)
        return authorizer.denial_error(self.principal, action, operation.needed_rights)

    def _is_allowed(self, acl: AclCache, needed_rights: int, path: str, name: str) -> bool:
        if not acl.is_active(self.principal, self._serial):
            return False
        if self._token is not None:
            if acl.why_no_token(self._token) is not None:
                return False
            needed_rights &= allowed_by(self._token.token_scope, path, name)
        return bool(needed_rights & with_proxy_rights(acl.rights(self.principal, path, name)))


def with_proxy_rights(rights: int) -> int:
    """With what they are worth here: who may write a log may produce, who may read it may consume.

    So a token that was narrowed to ``producer`` has that of its user's ``writer``.
    """
    return rights | (PRODUCE if rights & WRITE else 0) | (CONSUME if rights & READ else 0)


_VERBS = {WRITING_RIGHTS: "write", READING_RIGHTS: "read", MANAGE: "change"}


def _action_text(needed_rights: int, path: str, name: str) -> str:
    verb = _VERBS.get(needed_rights, "look at")
    name_text, path_text = (printable_text(part, NAME_CHARS_SHOWN) for part in (name, path))
    return f'{verb} log "{name_text}" of {path_text} here'
