"""What a request is done with, and so with whose rights: the gateway's own, or those of the user who asks.

A gateway that serves users has no rights that it could lend: each token that is shown opens a namespace of
its own, as that user, and the cluster judges what is done in it (`cluster/auth/token_sessions.py`). A user
has at most half of what a gateway has for all: requests, tails, bytes.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import trio

from ..cluster.auth.token_sessions import TokenSession, TokenSessions
from ..log.namespace import Namespace
from ..runtime.interfaces.errors import TooBusy
from ..runtime.protocol.tokens import read_token
from .append_handler import AppendHandler
from .metrics import GatewayMeters
from .options import GatewayOptions
from .request_guard import Scope
from .user_share import UserShare


@dataclass(frozen=True, slots=True)
class RequestSession:
    """What requests are done with."""

    namespace: Namespace
    append_handler: AppendHandler
    share: UserShare | None = None
    """Of the user; None: all is done as the gateway itself."""


class GatewaySessions:
    """All requests are done with the gateway's own rights."""

    by_users = False

    def __init__(
        self, namespace: Namespace, options: GatewayOptions, meters: GatewayMeters
    ) -> None:
        self._session = RequestSession(namespace, AppendHandler(namespace, options, meters))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        task_status.started()
        await self._session.append_handler.run()

    async def acquire(self, scope: Scope) -> RequestSession:
        """For a request that the door let in."""
        return self._session

    def reject(self, scope: Scope) -> None:
        """Nobody else is asked who it is."""

    def release(self, scope: Scope) -> None:
        """Nothing is kept of a request."""

    def update_meters(self) -> None:
        """Nothing is counted but what requests do."""


class UserSessions:
    """Each request is done as the user whose token it shows."""

    by_users = True

    def __init__(
        self,
        open_namespace: Callable[[bytes], AbstractAsyncContextManager[Namespace]],
        options: GatewayOptions,
        meters: GatewayMeters,
    ) -> None:
        """``open_namespace``: with a token as credentials."""
        self._open_namespace = open_namespace
        self._options = options
        self._meters = meters
        self._shares: dict[str, UserShare] = {}
        self._sessions = TokenSessions(
            self._open,
            sessions_max=options.sessions_max,
            waiting_max=options.requests_max // 2,
            idle_s=options.session_idle_s,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        await self._sessions.run(task_status=task_status)

    async def acquire(self, scope: Scope) -> RequestSession:
        """For a request that the door let in. Raises what the cluster says of its token, and `TooBusy`."""
        address = (scope.get("client") or ("",))[0]
        with trio.move_on_after(self._options.read_s):
            session = await self._sessions.acquire(scope["dlog.token"], address)
            scope["dlog.session"] = session
            request_session = session.resource
            if request_session.share is not None:
                scope["dlog.place"].join(request_session.share)
            return request_session
        raise TooBusy("the cluster did not say in time whose this token is; nothing was done")

    def reject(self, scope: Scope) -> None:
        """The cluster takes the token of this request no more."""
        session: TokenSession[RequestSession] | None = scope.get("dlog.session")
        if session is not None:
            self._sessions.revoke(session)

    def release(self, scope: Scope) -> None:
        """The request is over, a tail too."""
        session: TokenSession[RequestSession] | None = scope.pop("dlog.session", None)
        if session is not None:
            session.release()

    def update_meters(self) -> None:
        """Have it counted how many there are."""
        self._meters.sessions = len(self._sessions)
        self._meters.tokens_refused = self._sessions.rejected_count

    @asynccontextmanager
    async def _open(self, token: bytes) -> AsyncIterator[RequestSession]:
        async with self._open_namespace(token) as namespace:
            user = read_token(token).user
            share = self._shares.setdefault(user, UserShare(user, self._options))
            share.sessions += 1
            try:
                append_handler = AppendHandler(
                    namespace, self._options, self._meters, producer_prefix=f"~{user}/", share=share
                )
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(append_handler.run)
                    yield RequestSession(namespace, append_handler, share)
                    nursery.cancel_scope.cancel()
            finally:
                share.sessions -= 1
                if not share.sessions:
                    del self._shares[user]
