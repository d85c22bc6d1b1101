"""Authorize the clients of a proxy: it acts with the rights of each client, never with its own.

The proxy watches the users and grants in the metadata. A request is checked against this watch, and also by
a linearizable query once per `ANSWER_VALID_S`. A new grant therefore applies once it is acknowledged.
Without a metadata quorum, nothing is opened.

Each admitted operation is checked again at every change that concerns its user. If a right is revoked, the
operation ends in the call that receives the change. In authorization mode off, nothing is checked. In mode
report, all requests are executed, and those that would be refused are counted and logged.

A client with a token has the rights of its user, restricted to the scope of the token, at each use. A
linearizable query of the metadata returns the token's user and lifetime once. Its revocation is part of the
user's record.
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
"""Any of these rights allows a client to write or read a log at this proxy."""
ANSWER_VALID_S = 10.0
"""How long an answer of the metadata about a user's grants is valid. Revocations apply at once."""
WATCH_LAG_MAX_S = 5.0
"""How long a request waits for the watch to reach the state of an answer."""
TOKEN_WATCH_LAG_MAX_S = 2.0
"""The same limit for a handshake with a token, which has a deadline."""
TOKEN_CHECKS_MAX = 64
TOKEN_CHECKS_PER_HOST = 8
"""A client with a token is unauthenticated until the leader has verified it, so concurrent checks are
limited."""
RETRY_S = 0.5
NAME_CHARS_SHOWN = 80
REASON_CHARS_SHOWN = 1000

log = get_logger("distributedlog.proxy")

OnRevoked = Callable[[DistributedLogError], object]


@dataclass(slots=True)
class _AdmittedOperation:
    """An operation that was admitted and has not ended."""

    needed_rights: int
    path: str
    current_name: Callable[[], str]
    """Returns the present name of the log."""
    on_revoked: OnRevoked


@dataclass(slots=True)
class _ConnectedPrincipal:
    """A principal with at least one connection."""

    clients: dict["ClientSession", None] = field(default_factory=dict)
    queries_started: int = 0
    """The number of queries started. Only one runs at a time."""
    latest_answered: int = 0
    """The number of the newest answered query, which started at ``answer_started_at``."""
    answer_started_at: float = float("-inf")
    query_lock: trio.Lock = field(default_factory=trio.Lock)
    """Held by the task that queries. Other tasks use its answer if they arrived before it started."""
    cached_acl: AclCache = field(default_factory=AclCache)


class ClientAuthorizer:
    """Authorizes all clients of one proxy. Until `run` has started, no client has any right."""

    def __init__(self, metadata: Metadata, acl: AclCache | None = None) -> None:
        """Create the authorizer. ``acl`` contains the initial rights; by default, no client has any."""
        self.metadata = metadata
        self.acl = AclCache(REQUIRED) if acl is None else acl
        self.denial_count = 0
        """The number of requests that were refused, or would have been, since the start."""
        self.revoked_count = 0
        """The number of admitted operations that ended because of a revoked right."""
        self.reported_denials: dict[tuple[str, str], int] = {}
        """In mode report: how often each principal lacked each right."""
        self._acl_error: NotAllowed | None = None
        """Why this proxy cannot read the rights; None if it can."""
        self._principals: dict[str, _ConnectedPrincipal] = {}
        self._change_event = trio.Event()
        self._token_checks_by_host: Counter[str] = Counter()
        """Tokens that are being verified, by client host."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow users and grants until cancelled. The task has started when they were read once.

        After that, the last known rights apply while the metadata does not answer.

        Raises:
            NotAllowed: This process may not read the rights.
            DistributedLogError: The metadata did not answer the first read.
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
        """Reject all requests, because this process may not read the rights."""
        if self._acl_error is None:
            log.error("this proxy serves no client: %s", error)
        self.acl, self._acl_error = AclCache(REQUIRED), error
        self._apply_changes({ALL_USERS})

    def info(self) -> dict[str, object]:
        """Return counters for `Op.INFO`, without names of users or logs."""
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
        """Check the operations of these users again, and end those whose right was revoked."""
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
        context: HandshakeContext,
        proof: bytes,
    ) -> Welcome:
        """Verify a token, as the method ``token`` of `Endpoint.remote_methods`.

        Args:
            query_welcome: Queries the metadata for the user of a token.
            context: The handshake.
            proof: The token.

        Raises:
            NotAuthenticated: The token is invalid, or the connection is not encrypted.
            TooBusy: Too many tokens are being verified, or the watch is behind the answer.
            DistributedLogError: The metadata did not answer.
        """
        if not context.is_secret:
            raise NotAuthenticated(
                f"a token is not accepted in clear text, and {context.peer_address} is not encrypted"
            )
        token = read_token(proof)  # reject invalid tokens without a request to the quorum
        host = context.peer_address.rpartition(":")[0]
        if (
            self._token_checks_by_host.total() >= TOKEN_CHECKS_MAX
            or self._token_checks_by_host[host] >= TOKEN_CHECKS_PER_HOST
        ):
            raise TooBusy(
                f"this proxy verifies {self._token_checks_by_host.total()} tokens now; retry later"
            )
        self._token_checks_by_host[host] += 1
        try:
            welcome = await query_welcome(proof)
        finally:
            self._token_checks_by_host[host] -= 1
            if not self._token_checks_by_host[host]:
                del self._token_checks_by_host[host]
        with trio.move_on_after(TOKEN_WATCH_LAG_MAX_S):
            while not self.lacks_acl and self.acl.token_error(token) is not None:
                await self.wait_changed()
            return welcome
        raise TooBusy(f"the rights of {token.principal} are changing; retry")

    def admit(self, link: Link) -> "ClientSession":
        """Return the session of the client of a new connection. Call `ClientSession.disconnect` at its end.

        Raises:
            NotAuthenticated: The user, certificate or token is disabled or expired.
        """
        client = ClientSession(self, link)
        reason = client.disconnect_reason()
        if reason is not None:
            raise reason
        self._principals.setdefault(client.principal, _ConnectedPrincipal()).clients[client] = None
        return client

    def remove(self, client: "ClientSession") -> None:
        """Remove the session of a closed connection. Idempotent."""
        connected = self._principals.get(client.principal)
        if connected is not None:
            connected.clients.pop(client, None)
            if not connected.clients:
                del self._principals[client.principal]

    # --- questions --------------------------------------------------------------------------------

    async def query_now(self, principal: str) -> AclCache | None:
        """Query the rights of a user. The query starts after this call.

        Returns:
            The rights, or None if the principal is not a connected user.

        Raises:
            DistributedLogError: The metadata did not answer.
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
        """Return the last queried rights of a principal while they are valid, otherwise None."""
        connected = self._principals.get(principal)
        if connected is None or trio.current_time() - connected.answer_started_at >= ANSWER_VALID_S:
            return None
        return connected.cached_acl

    async def wait_changed(self) -> None:
        """Wait until the watch receives a change."""
        await self._change_event.wait()

    @property
    def lacks_acl(self) -> bool:
        """Whether this process may not read the rights."""
        return self._acl_error is not None

    def denial_error(self, principal: str, action: str, needed_rights: int) -> NotAllowed:
        """Return the error for a missing right. It is the same for absent and for forbidden logs."""
        if self._acl_error is not None:
            return NotAllowed(f"this proxy may not read the rights of users: {self._acl_error}")
        return NotAllowed(
            f"{principal} may not {action}: it needs {describe_rights(needed_rights)}"
        )

    def record_denial(self, principal: str, denial: NotAllowed) -> NotAllowed | None:
        """Record a denial and return it; None in mode report, in which the request is executed anyway."""
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
    """The client of one connection, its rights, and its admitted operations."""

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
    def authorization_enabled(self) -> bool:
        """Whether authorization is enabled (the mode is not off)."""
        return self._authorizer.acl.mode != "open"

    # --- questions --------------------------------------------------------------------------------

    def has_right(self, needed_rights: int, path: str, name: str) -> bool:
        """Whether the watched rights include any of these on the log of this name, which need not exist.

        With authorization off, clients have all rights.
        """
        return not self.authorization_enabled or self._is_allowed(
            self._authorizer.acl, needed_rights, path, name
        )

    def visible_paths(self, path: str) -> dict[str, int] | None:
        """Return the paths of a namespace below which the client may see names; None for all names."""
        authorizer = self._authorizer
        if not self.authorization_enabled or authorizer.acl.mode != REQUIRED:
            return None
        paths = authorizer.acl.paths(self.principal, path)
        if self._token is None or not self._token.token_scope:
            return paths
        restricted: dict[str, int] = {}
        granted = (
            (path, granted_path, with_proxy_rights(path_rights))
            for granted_path, path_rights in paths.items()
        )
        for _, subpath, path_rights in restrict_to_scope(granted, self._token.token_scope):
            restricted[subpath] = restricted.get(subpath, 0) | path_rights
        return restricted

    def disconnect_reason(self) -> NotAuthenticated | None:
        """Return why the connection must end, or None.

        Its token is invalid or, in mode enforce, its user or certificate is disabled.
        """
        acl = self._authorizer.acl
        if self._token is not None:
            # Without rights nothing is known about tokens, but no request is executed either.
            return None if self._authorizer.lacks_acl else acl.token_error(self._token)
        if acl.mode != REQUIRED or self.principal == ANONYMOUS:
            return None
        if acl.is_active(self.principal, self._serial):
            return None
        return NotAuthenticated(f"{self.principal}, or its certificate, was disabled")

    async def check(
        self, needed_rights: int, path: str, name: str, *, shown_name: str = ""
    ) -> None:
        """Check that the client has any of these rights on the log of this name.

        Args:
            needed_rights: The rights, any of which is sufficient.
            path: Path of the namespace.
            name: The log's present name.
            shown_name: The name that the client used, if different. Errors contain no other name.

        Raises:
            NotAllowed: It has none of the rights.
            TooBusy: The rights are changing.
            DistributedLogError: The metadata did not answer.
        """
        authorizer, action = self._authorizer, _action_text(needed_rights, path, shown_name or name)
        if not self.authorization_enabled:
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
        raise TooBusy(f"the rights of {self.principal} are changing; retry")

    async def may_create(self, path: str, name: str) -> bool:
        """Whether opening a missing log may create it.

        In mode report it may, and a missing right is counted.
        """
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
        """As `check`, for a log that is identified by its incarnation. The present name of that log counts.

        A log ID is not a secret and protects nothing. A client with a right on one log must not use or
        discover another log by its ID.
        """
        if not self.authorization_enabled:
            return
        log_id = incarnation_id(incarnation) if incarnation else -1
        for _ in range(2):  # the log may be renamed or deleted between the two queries
            stored_state = (
                None if log_id < 0 else await self._authorizer.metadata.get(state_key(log_id))
            )
            if stored_state is None:
                await self.check(
                    needed_rights, path, name
                )  # for a deleted log, only its name can be checked
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
        # the log belongs to another namespace
        error = authorizer.record_denial(self.principal, denial)
        if error is not None:
            raise error

    def check_producer(self, name: str) -> None:
        """Check that a producer's name does not start with ``~USER/`` of another user.

        Raises:
            NotAllowed: The name is reserved for another user.
        """
        owner, slash, _ = name[1:].partition("/")
        if (
            not (self.authorization_enabled and slash and name[0] == "~")
            or self.principal == f"{USER}/{owner}"
        ):
            return
        owner_text = printable_text(owner, NAME_CHARS_SHOWN)
        denial = NotAllowed(
            f"{self.principal} may not open producers ~{owner_text}/…:"
            f" they are reserved for user {owner_text}"
        )
        error = self._authorizer.record_denial(self.principal, denial)
        if error is not None:
            raise error

    def check_cluster(self, action: str) -> None:
        """Check that the client is an operator of the cluster.

        Raises:
            NotAllowed: It is not.
        """
        authorizer = self._authorizer
        is_narrowed = self._token is not None and self._token.token_scope
        cluster_rights = 0 if is_narrowed else authorizer.acl.cluster_rights(self.principal)
        if self.authorization_enabled and not cluster_rights & OPERATOR:
            error = authorizer.record_denial(
                self.principal, authorizer.denial_error(self.principal, action, OPERATOR)
            )
            if error is not None:
                raise error

    def check_proxy(self, action: str) -> None:
        """Check that the client is a proxy or an operator.

        Raises:
            NotAllowed: It is neither.
        """
        if not self.principal.startswith(f"{PROXY}/"):
            self.check_cluster(action)

    def report_denials(self) -> list[tuple[str, str, int]]:
        """Return the requests that mode enforce would have refused since the start, most frequent first.

        Returns:
            Principal, reason and count of each.

        Raises:
            NotAllowed: The client is not an operator.
        """
        self.check_cluster("list the denials of a proxy")
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
        """Admit an operation, after `check`.

        Args:
            needed_rights: The rights, any of which is sufficient.
            path: Path of the namespace.
            current_name: Returns the present name of the log.
            on_revoked: Called once, with the reason, when none of the rights is left. The operation must
                then stop.

        Returns:
            The number to pass to `finish`.

        Raises:
            NotAllowed: The rights were revoked in the meantime.
        """
        operation = _AdmittedOperation(needed_rights, path, current_name, on_revoked)
        denial = self._denial_of(operation)
        if denial is not None:
            raise denial
        self._last_operation += 1
        self._admitted[self._last_operation] = operation
        return self._last_operation

    def finish(self, number: int) -> None:
        """End an admitted operation. Idempotent."""
        self._admitted.pop(number, None)

    @contextmanager
    def admitted(
        self, needed_rights: int, path: str, name: str, *, unknown_outcome: str = ""
    ) -> Iterator[None]:
        """Admit an operation while the body runs. If the rights are revoked, cancel the body and raise.

        Args:
            needed_rights: The rights, any of which is sufficient.
            path: Path of the namespace.
            name: The log's name.
            unknown_outcome: If not empty, a text about the unknown outcome after a cancellation (G7).

        Raises:
            NotAllowed: The rights were revoked.
            OutcomeUnknown: The rights were revoked and ``unknown_outcome`` is given.
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
        """End operations whose rights were revoked, and the connection if its user or token is disabled."""
        disconnect_error = self.disconnect_reason()
        for number, operation in list(self._admitted.items()):
            denial = disconnect_error or self._denial_of(operation)
            if denial is not None and self._admitted.pop(number, None) is not None:
                self._authorizer.revoked_count += 1
                operation.on_revoked(denial)
        if disconnect_error is not None:
            self._link.refuse(disconnect_error)

    def disconnect(self) -> None:
        """Remove the session after its connection has ended. Idempotent."""
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
            if acl.token_error(self._token) is not None:
                return False
            needed_rights &= allowed_by(self._token.token_scope, path, name)
        return bool(needed_rights & with_proxy_rights(acl.rights(self.principal, path, name)))


def with_proxy_rights(rights: int) -> int:
    """Return the rights with those that they imply at a proxy: WRITE implies PRODUCE, READ implies CONSUME.

    A token that is restricted to ``producer`` therefore has this right of a user who is a ``writer``.
    """
    return rights | (PRODUCE if rights & WRITE else 0) | (CONSUME if rights & READ else 0)


_VERBS = {WRITING_RIGHTS: "write", READING_RIGHTS: "read", MANAGE: "change"}


def _action_text(needed_rights: int, path: str, name: str) -> str:
    verb = _VERBS.get(needed_rights, "view")
    name_text, path_text = (printable_text(part, NAME_CHARS_SHOWN) for part in (name, path))
    return f'{verb} log "{name_text}" of {path_text} here'
