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

SESSIONS_OF_A_USER = 8
"""Tokens of one user that are kept at a time: its others wait, and nobody else."""
REFUSED_S = 5.0
"""So long a token that was refused is refused without another question."""
REFUSED_MAX = 1000
SWEEP_S = 1.0

log = get_logger("distributedlog.cluster")

Opened = TypeVar("Opened")


class TokenSession(Generic[Opened]):
    """Of one token. Whoever entered it leaves it."""

    def __init__(self, digest: bytes, token: bytes) -> None:
        self.user = read_token(token).user
        """As the cluster has said, once it is `opened`."""
        self._digest = digest
        self._token = token
        self._opened: Opened | None = None
        self._error: DistributedLogError | None = None
        self._ready = trio.Event()
        self._over = trio.Event()
        self._scope = trio.CancelScope()
        self._users = 0
        self._used_at = trio.current_time()
        self._dropped = False

    @property
    def opened(self) -> Opened:
        """What was opened for it."""
        assert self._opened is not None, "who has entered it has it"
        return self._opened

    def leave(self) -> None:
        """Nothing is done in it any more by who entered it."""
        self._users -= 1
        self._used_at = trio.current_time()
        if self._dropped and not self._users:
            self._over.set()

    def _end(self) -> None:
        """It ends; while it is being opened, at once."""
        self._over.set()
        if not self._ready.is_set():
            self._scope.cancel()


class TokenSessions(Generic[Opened]):
    """Those of one door. `run` must be running."""

    def __init__(
        self,
        open_: Callable[[bytes], AbstractAsyncContextManager[Opened]],
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
        self._found: dict[bytes, TokenSession[Opened]] = {}
        self._serving: set[TokenSession[Opened]] = set()
        """Those, and those that are not found any more and have not ended."""
        self._refused: dict[bytes, tuple[float, DistributedLogError]] = {}
        """Of tokens that were refused lately: until when that is said again, and what."""
        self._attempts = TokenAttempts()
        self._nursery: trio.Nursery | None = None
        self.refused = 0
        """Tokens that the cluster did not take, since the start."""

    def __len__(self) -> int:
        return len(self._found)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End what nobody uses, until cancelled; then all, in order."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await WorkFailures().keep("the end of idle sessions of users", self._sweep)
            finally:
                for session in list(self._serving):
                    self._forget(session)

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_S)
            since = trio.current_time() - self._idle_s
            for session in list(self._found.values()):
                if not session._users and session._used_at <= since:
                    self._forget(session)

    async def enter(self, token: bytes, address: str) -> TokenSession[Opened]:
        """The session of a token that somebody at that address has shown.

        Raises `NotAuthenticated` and what else keeps it from being opened, and `TooBusy`: later, perhaps.
        """
        digest = sha256(token).digest()
        session, waits = self._found.get(digest), 0
        if session is None:
            session = self._begin(digest, token, address)
        elif not session._ready.is_set():
            # Each has a place of the door: while a quorum is away, one forged token could have them all.
            if self._waiting >= self._waiting_max:
                raise TooBusy(
                    f"{self._waiting} wait here for what the cluster says of their tokens"
                )
            waits = 1
        session._users += 1
        self._waiting += waits
        try:
            await session._ready.wait()
            if session._error is not None:
                raise session._error.again()
        except BaseException:
            session.leave()
            raise
        finally:
            self._waiting -= waits
        return session

    def drop(self, session: TokenSession[Opened]) -> None:
        """The cluster takes its token no more: who comes with it next is looked at anew."""
        session._dropped = True
        if self._found.get(session._digest) is session:
            del self._found[session._digest]
        if not session._users:
            session._over.set()

    def _begin(self, digest: bytes, token: bytes, address: str) -> TokenSession[Opened]:
        now = trio.current_time()
        until, error = self._refused.get(digest, (0.0, None))
        if error is not None and now < until:
            raise error.again()
        session = TokenSession[Opened](digest, token)  # what is no token ends here
        if self._nursery is None:
            raise TooBusy("it is just starting")
        attempt = self._attempts.begin(address, now)
        self._found[digest] = session
        self._serving.add(session)
        self._nursery.start_soon(self._serve, session, attempt)
        return session

    async def _serve(self, session: TokenSession[Opened], attempt: TokenAttempt) -> None:
        tried = True
        try:
            with session._scope:
                async with self._open(session._token) as opened:
                    self._attempts.end(attempt, refused=False)
                    tried = False
                    session._error = self._crowded(session)
                    if session._error is None:
                        session._opened = opened
                        session._scope.shield = True  # from now on it ends when told, and in order
                        session._ready.set()
                        await session._over.wait()
        except DistributedLogError as error:
            session._error = error
        except Exception as error:
            log.exception("a session of a user")  # is this one's end, and not the door's
            session._error = InternalError(f"a session ended: {type(error).__name__}")
        finally:
            refused = isinstance(session._error, NotAuthenticated)
            if tried:
                self._attempts.end(attempt, refused=refused)
                self._note(session, refused)
            session._error = session._error or TooBusy("the session has just ended: ask again")
            self._forget(session)
            self._serving.discard(session)
            session._ready.set()

    def _note(self, session: TokenSession[Opened], refused: bool) -> None:
        if not refused:
            return
        assert session._error is not None, "it was refused by something"
        self.refused += 1
        self._refused.pop(session._digest, None)
        self._refused[session._digest] = trio.current_time() + REFUSED_S, session._error
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def _crowded(self, session: TokenSession[Opened]) -> TooBusy | None:
        """Is there no room for one more, whose token was taken? Only now is it known whose it is."""
        there = [one for one in self._found.values() if one._opened is not None]
        own = [one for one in there if one.user == session.user]
        for crowd, most in ((own, SESSIONS_OF_A_USER), (there, self._sessions_max)):
            if len(crowd) < most:
                continue
            idle = [one for one in crowd if not one._users]
            if not idle:
                return TooBusy(f"{len(crowd)} tokens are in use here already")
            self._forget(min(idle, key=lambda one: one._used_at))
        return None

    def _forget(self, session: TokenSession[Opened]) -> None:
        if self._found.get(session._digest) is session:
            del self._found[session._digest]
        session._end()
