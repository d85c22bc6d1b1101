"""What a door opens for a token, once, and keeps for all that comes with it.

A gateway and a console do what a user asks with that one's rights, never with their own: for each token they
open a session of its own to the cluster, with the token as credentials, and the cluster judges all that is
done in it. So nothing here is believed of a token before the cluster has taken it, and what that says when it
does not is what the user hears.

A session stays while it is used and for `idle_s` after, and goes at once when the cluster takes its token no
more. Tokens are known by their digests: to look one up tells nobody how much of it is right.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
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
"""Tokens of one user that are kept at a time: its others wait, and nobody else."""
REFUSED_S = 5.0
"""So long a token that was refused is refused without another question."""
REFUSED_MAX = 1000
SWEEP_S = 1.0

log = get_logger("distributedlog.cluster")

Resource = TypeVar("Resource")


class TokenSession(Generic[Resource]):
    """Of one token. Whoever entered it leaves it."""

    def __init__(self, digest: bytes, token: bytes) -> None:
        self.user = read_token(token).user
        """As the cluster has said, once it is `resource`."""
        self._digest = digest
        self._token = token
        self._resource: Resource | None = None
        self._error: DistributedLogError | None = None
        self._ready = trio.Event()
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._user_count = 0
        self._used_at = trio.current_time()
        self._is_dropped = False

    @property
    def resource(self) -> Resource:
        """What was opened for it."""
        assert self._resource is not None, "who has entered it has it"
        return self._resource

    def release(self) -> None:
        """Nothing is done in it any more by who entered it."""
        self._user_count -= 1
        self._used_at = trio.current_time()
        if self._is_dropped and not self._user_count:
            self._ended.set()

    def _end(self) -> None:
        """It ends; while it is being opened, at once."""
        self._ended.set()
        if not self._ready.is_set():
            self._scope.cancel()


class TokenSessions(Generic[Resource]):
    """Those of one door. `run` must be running."""

    def __init__(
        self,
        open_: Callable[[bytes], AbstractAsyncContextManager[Resource]],
        *,
        sessions_max: int,
        waiting_max: int,
        idle_s: float,
    ) -> None:
        """``open_``: with a token as credentials; raises what the cluster says.

        ``waiting_max``: calls that wait for that, beside the one of each token that has it asked.
        """
        self._open = open_
        self._sessions_max = sessions_max
        self._waiting_max = waiting_max
        self._waiting = 0
        self._idle_s = idle_s
        self._sessions: dict[bytes, TokenSession[Resource]] = {}
        self._running_sessions: set[TokenSession[Resource]] = set()
        """Those, and those that are not found any more and have not ended."""
        self._rejected_tokens: dict[bytes, tuple[float, DistributedLogError]] = {}
        """Of tokens that were refused lately: until when that is said again, and what."""
        self._attempts = TokenAttempts()
        self._nursery: trio.Nursery | None = None
        self.rejected_count = 0
        """Tokens that the cluster did not take, since the start."""

    def __len__(self) -> int:
        return len(self._sessions)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End what nobody uses, until cancelled; then all, in order."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await WorkFailures().keep_running(
                    "the end of idle sessions of users", self._end_idle
                )
            finally:
                for session in list(self._running_sessions):
                    self._discard(session)

    async def _end_idle(self) -> None:
        while True:
            await trio.sleep(SWEEP_S)
            idle_since = trio.current_time() - self._idle_s
            for session in list(self._sessions.values()):
                if not session._user_count and session._used_at <= idle_since:
                    self._discard(session)

    async def acquire(self, token: bytes, address: str) -> TokenSession[Resource]:
        """The session of a token that somebody at that address has shown.

        Raises `NotAuthenticated` and what else keeps it from being opened, and `TooBusy`: later, perhaps.
        """
        digest = sha256(token).digest()
        session, added_waiters = self._sessions.get(digest), 0
        if session is None:
            session = self._start_session(digest, token, address)
        elif not session._ready.is_set():
            # Each has a place of the door: while a quorum is away, one forged token could have them all.
            if self._waiting >= self._waiting_max:
                raise TooBusy(
                    f"{self._waiting} wait here for what the cluster says of their tokens"
                )
            added_waiters = 1
        session._user_count += 1
        self._waiting += added_waiters
        try:
            await session._ready.wait()
            if session._error is not None:
                raise session._error.again()
        except BaseException:
            session.release()
            raise
        finally:
            self._waiting -= added_waiters
        return session

    def revoke(self, session: TokenSession[Resource]) -> None:
        """The cluster takes its token no more: who comes with it next is looked at anew."""
        session._is_dropped = True
        if self._sessions.get(session._digest) is session:
            del self._sessions[session._digest]
        if not session._user_count:
            session._ended.set()

    def _start_session(self, digest: bytes, token: bytes, address: str) -> TokenSession[Resource]:
        now = trio.current_time()
        rejected_until, error = self._rejected_tokens.get(digest, (0.0, None))
        if error is not None and now < rejected_until:
            raise error.again()
        session = TokenSession[Resource](digest, token)  # what is no token ends here
        if self._nursery is None:
            raise TooBusy("it is just starting")
        attempt = self._attempts.begin(address, now)
        self._sessions[digest] = session
        self._running_sessions.add(session)
        self._nursery.start_soon(self._run_session, session, attempt)
        return session

    async def _run_session(self, session: TokenSession[Resource], attempt: TokenAttempt) -> None:
        is_attempt_open = True
        try:
            with session._scope:
                async with self._open(session._token) as resource:
                    self._attempts.end(attempt, is_rejected=False)
                    is_attempt_open = False
                    session._error = self._make_space(session)
                    if session._error is None:
                        session._resource = resource
                        session._scope.shield = True  # from now on it ends when told, and in order
                        session._ready.set()
                        await session._ended.wait()
        except DistributedLogError as error:
            session._error = error
        except Exception as error:
            log.exception("a session of a user")  # is this one's end, and not the door's
            session._error = InternalError(f"a session ended: {type(error).__name__}")
        finally:
            is_rejected = isinstance(session._error, NotAuthenticated)
            if is_attempt_open:
                self._attempts.end(attempt, is_rejected=is_rejected)
                self._remember_rejection(session, is_rejected)
            session._error = session._error or TooBusy("the session has just ended: ask again")
            self._discard(session)
            self._running_sessions.discard(session)
            session._ready.set()

    def _remember_rejection(self, session: TokenSession[Resource], is_rejected: bool) -> None:
        if not is_rejected:
            return
        assert session._error is not None, "it was refused by something"
        self.rejected_count += 1
        self._rejected_tokens.pop(session._digest, None)
        self._rejected_tokens[session._digest] = trio.current_time() + REFUSED_S, session._error
        if len(self._rejected_tokens) > REFUSED_MAX:
            del self._rejected_tokens[next(iter(self._rejected_tokens))]

    def _make_space(self, session: TokenSession[Resource]) -> TooBusy | None:
        """Is there no room for one more, whose token was taken? Only now is it known whose it is."""
        open_sessions = [other for other in self._sessions.values() if other._resource is not None]
        user_sessions = [other for other in open_sessions if other.user == session.user]
        for sessions, sessions_max in (
            (user_sessions, SESSIONS_PER_USER_MAX),
            (open_sessions, self._sessions_max),
        ):
            if len(sessions) < sessions_max:
                continue
            idle = [other for other in sessions if not other._user_count]
            if not idle:
                return TooBusy(f"{len(sessions)} tokens are in use here already")
            self._discard(min(idle, key=lambda other: other._used_at))
        return None

    def _discard(self, session: TokenSession[Resource]) -> None:
        if self._sessions.get(session._digest) is session:
            del self._sessions[session._digest]
        session._end()
