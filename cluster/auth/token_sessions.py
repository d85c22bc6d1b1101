"""Keep one cluster session per user token in a gateway or console, for all requests with that token.

A gateway and a console execute a user's requests with the user's rights, never with their own. For each token
they open a separate session with the cluster, with the token as credentials, and the cluster authorizes all
requests in it. So a token is trusted only after the cluster has accepted it, and the user receives the
cluster's error if it does not.

A session remains open while it is used and for `idle_s` afterwards. It ends at once if the cluster no longer
accepts its token. Sessions are stored by a digest of the token, so that the lookup time reveals nothing about
valid tokens.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from math import inf
from typing import Generic, TypeVar

import trio

from ...runtime.interfaces.errors import (
    DistributedLogError,
    InternalError,
    NotAuthenticated,
    TooBusy,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.tokens import read_token
from ...runtime.schedule.work_failures import WorkFailures
from .token_attempts import TokenAttempt, TokenAttempts

SESSIONS_PER_USER_MAX = 8
"""Sessions that one user may have at a time. Only this user's further tokens have to wait."""
REFUSED_S = 5.0
"""How long a rejected token is rejected again without a request to the cluster."""
REFUSED_MAX = 1000
SWEEP_S = 1.0

log = get_logger("distributedlog.cluster")

Resource = TypeVar("Resource")


class TokenSession(Generic[Resource]):
    """The session of one token. Each caller of `TokenSessions.acquire` calls `release` once."""

    def __init__(self, digest: bytes, token: bytes) -> None:
        self.user = read_token(token).user
        """The user name in the token, which the cluster has verified when `resource` is set."""
        self.digest = digest
        """The digest by which the session is found."""
        self._token = token
        self._resource: Resource | None = None
        self._error: DistributedLogError | None = None
        self._ready = trio.Event()
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._user_count = 0
        self._used_at = trio.current_time()
        self._ends_when_unused = False

    @property
    def resource(self) -> Resource:
        """The resource that was opened with the token."""
        assert self._resource is not None, "an acquired session has its resource"
        return self._resource

    @property
    def is_opening(self) -> bool:
        """Whether callers of `acquire` have to wait."""
        return not self._ready.is_set()

    @property
    def is_open(self) -> bool:
        """Whether the cluster has accepted the token, and the resource was opened."""
        return self._resource is not None

    @property
    def idle_since(self) -> float:
        """When the last use ended; infinite while the session is in use."""
        return inf if self._user_count else self._used_at

    @property
    def rejection(self) -> NotAuthenticated | None:
        """The error if the cluster rejected the token."""
        return self._error if isinstance(self._error, NotAuthenticated) else None

    async def acquire(self) -> None:
        """Begin the use of the session by one caller, and wait until it is open.

        Raises:
            DistributedLogError: It could not be opened, or has ended. The use has ended.
        """
        self._user_count += 1
        try:
            await self._ready.wait()
            if self._error is not None:
                raise self._error.again()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """End the use of the session by one caller."""
        self._user_count -= 1
        self._used_at = trio.current_time()
        if self._ends_when_unused and not self._user_count:
            self._ended.set()

    def end_when_unused(self) -> None:
        """End the session after its last use."""
        self._ends_when_unused = True
        if not self._user_count:
            self._ended.set()

    def end(self) -> None:
        """End the session; at once if it is still being opened."""
        self._ended.set()
        if self.is_opening:
            self._scope.cancel()

    async def run(
        self,
        open_: Callable[[bytes], AbstractAsyncContextManager[Resource]],
        on_accepted: Callable[[], TooBusy | None],
    ) -> None:
        """Open the resource, and keep it open until the session ends.

        Args:
            open_: See `TokenSessions`.
            on_accepted: Called when the cluster has accepted the token. Returns an error if the session must
                not open.
        """
        try:
            with self._scope:
                async with open_(self._token) as resource:
                    self._error = on_accepted()
                    if self._error is None:
                        self._resource = resource
                        self._scope.shield = True  # it now ends only in order, by `_ended`
                        self._ready.set()
                        await self._ended.wait()
        except DistributedLogError as error:
            self._error = error
        except Exception as error:
            log.exception("a user session failed")  # ends only this session
            self._error = InternalError(f"a session ended: {type(error).__name__}")
        finally:
            self._error = self._error or TooBusy("the session has just ended: retry")
            self._ready.set()


class TokenSessions(Generic[Resource]):
    """The sessions of one gateway or console. `run` must be running."""

    def __init__(
        self,
        open_: Callable[[bytes], AbstractAsyncContextManager[Resource]],
        *,
        sessions_max: int,
        waiting_max: int,
        idle_s: float,
    ) -> None:
        """Create the sessions.

        Args:
            open_: Opens a resource with a token as credentials, and raises the cluster's errors.
            sessions_max: The number of open sessions.
            waiting_max: The number of calls that wait for a session to open, without the first call of each
                token.
            idle_s: How long an unused session remains open, in seconds.
        """
        self._open = open_
        self._sessions_max = sessions_max
        self._waiting_max = waiting_max
        self._waiting = 0
        self._idle_s = idle_s
        self._sessions: dict[bytes, TokenSession[Resource]] = {}
        self._running_sessions: set[TokenSession[Resource]] = set()
        """All sessions that have not ended, including those that are no longer found by their token."""
        self._rejected_tokens: dict[bytes, tuple[float, DistributedLogError]] = {}
        """Recently rejected tokens: until when the error is repeated, and the error."""
        self._attempts = TokenAttempts()
        self._nursery: trio.Nursery | None = None
        self.rejected_count = 0
        """Tokens that the cluster rejected since the start."""

    def __len__(self) -> int:
        return len(self._sessions)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End unused sessions until cancelled; then end all sessions in order."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await WorkFailures().keep_running("the end of idle user sessions", self._end_idle)
            finally:
                for session in list(self._running_sessions):
                    self._discard(session)

    async def _end_idle(self) -> None:
        while True:
            await trio.sleep(SWEEP_S)
            idle_since = trio.current_time() - self._idle_s
            for session in list(self._sessions.values()):
                if session.idle_since <= idle_since:
                    self._discard(session)

    async def acquire(self, token: bytes, address: str) -> TokenSession[Resource]:
        """Return the session of a token, and open it if necessary.

        Args:
            token: The token.
            address: The address of the client that sent it.

        Raises:
            NotAuthenticated: The cluster rejected the token.
            TooBusy: A limit is reached; a later attempt may succeed.
            DistributedLogError: The session could not be opened.
        """
        digest = sha256(token).digest()
        session, added_waiters = self._sessions.get(digest), 0
        if session is None:
            session = self._start_session(digest, token, address)
        elif session.is_opening:
            # Each waiting call uses a slot of the server. Without a limit, one forged token could use all of
            # them while there is no quorum.
            if self._waiting >= self._waiting_max:
                raise TooBusy(
                    f"{self._waiting} requests wait until the cluster has verified their tokens"
                )
            added_waiters = 1
        self._waiting += added_waiters
        try:
            await session.acquire()
        finally:
            self._waiting -= added_waiters
        return session

    def revoke(self, session: TokenSession[Resource]) -> None:
        """Drop a session whose token the cluster no longer accepts.

        The next request with the token is verified again.
        """
        self._forget(session)
        session.end_when_unused()

    def _start_session(self, digest: bytes, token: bytes, address: str) -> TokenSession[Resource]:
        now = trio.current_time()
        rejected_until, error = self._rejected_tokens.get(digest, (0.0, None))
        if error is not None and now < rejected_until:
            raise error.again()
        session = TokenSession[Resource](digest, token)  # raises an error for an invalid format
        if self._nursery is None:
            raise TooBusy("the server is starting")
        attempt = self._attempts.begin(address, now)
        self._sessions[digest] = session
        self._running_sessions.add(session)
        self._nursery.start_soon(self._run_session, session, attempt)
        return session

    async def _run_session(self, session: TokenSession[Resource], attempt: TokenAttempt) -> None:
        is_accepted = False

        def on_accepted() -> TooBusy | None:
            nonlocal is_accepted
            is_accepted = True
            self._attempts.end(attempt, is_rejected=False)
            return self._make_space(session)

        try:
            await session.run(self._open, on_accepted)
        finally:
            if not is_accepted:
                rejection = session.rejection
                self._attempts.end(attempt, is_rejected=rejection is not None)
                if rejection is not None:
                    self._remember_rejection(session.digest, rejection)
            self._discard(session)
            self._running_sessions.discard(session)

    def _remember_rejection(self, digest: bytes, rejection: NotAuthenticated) -> None:
        self.rejected_count += 1
        self._rejected_tokens.pop(digest, None)
        self._rejected_tokens[digest] = trio.current_time() + REFUSED_S, rejection
        if len(self._rejected_tokens) > REFUSED_MAX:
            del self._rejected_tokens[next(iter(self._rejected_tokens))]

    def _make_space(self, session: TokenSession[Resource]) -> TooBusy | None:
        """Return an error if no further session can be opened. Only now the user of the token is verified."""
        open_sessions = [other for other in self._sessions.values() if other.is_open]
        user_sessions = [other for other in open_sessions if other.user == session.user]
        for sessions, sessions_max in (
            (user_sessions, SESSIONS_PER_USER_MAX),
            (open_sessions, self._sessions_max),
        ):
            if len(sessions) < sessions_max:
                continue
            idle = [other for other in sessions if other.idle_since < inf]
            if not idle:
                return TooBusy(f"{len(sessions)} tokens are in use already")
            self._discard(min(idle, key=lambda other: other.idle_since))
        return None

    def _discard(self, session: TokenSession[Resource]) -> None:
        self._forget(session)
        session.end()

    def _forget(self, session: TokenSession[Resource]) -> None:
        """Open another session for the next request with the token."""
        if self._sessions.get(session.digest) is session:
            del self._sessions[session.digest]
