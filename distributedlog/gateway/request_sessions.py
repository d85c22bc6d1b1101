"""The session of a request, and with it its rights: those of the gateway, or those of the user.

A gateway that serves users has no rights. Each token opens a separate namespace with the rights of
its user, and the cluster authorizes the requests in it (`cluster/auth/token_sessions.py`). A user can use at
most half of each limit of the gateway: requests, tails, bytes.
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
    """The namespace and the writers that requests use."""

    namespace: Namespace
    append_handler: AppendHandler
    share: UserShare | None = None
    """The share of the user; None if the gateway's own rights are used."""


class GatewaySessions:
    """Run all requests with the gateway's own rights."""

    by_users = False

    def __init__(
        self, namespace: Namespace, options: GatewayOptions, meters: GatewayMeters
    ) -> None:
        self._session = RequestSession(namespace, AppendHandler(namespace, options, meters))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        task_status.started()
        await self._session.append_handler.run()

    async def acquire(self, scope: Scope) -> RequestSession:
        """Return the session for an accepted request."""
        return self._session

    def reject(self, scope: Scope) -> None:
        """Do nothing, because requests have no tokens of users."""

    def release(self, scope: Scope) -> None:
        """Do nothing, because nothing is stored per request."""

    def update_meters(self) -> None:
        """Do nothing, because there are no further counters."""


class UserSessions:
    """Run each request with the rights of the user whose token it has."""

    by_users = True

    def __init__(
        self,
        open_namespace: Callable[[bytes], AbstractAsyncContextManager[Namespace]],
        options: GatewayOptions,
        meters: GatewayMeters,
    ) -> None:
        """``open_namespace`` opens a namespace with a token as credentials."""
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
        """Run until cancelled."""
        await self._sessions.run(task_status=task_status)

    async def acquire(self, scope: Scope) -> RequestSession:
        """Return the session for an accepted request.

        Raises:
            NotAuthenticated: The cluster rejected the token.
            TooBusy: A limit is reached, or the cluster did not answer in time.
        """
        address = (scope.get("client") or ("",))[0]
        with trio.move_on_after(self._options.read_s):
            session = await self._sessions.acquire(scope["dlog.token"], address)
            scope["dlog.session"] = session
            request_session = session.resource
            if request_session.share is not None:
                scope["dlog.slot"].join(request_session.share)
            return request_session
        raise TooBusy("the cluster did not verify the token in time; nothing was done")

    def reject(self, scope: Scope) -> None:
        """Revoke the session of a request whose token the cluster no longer accepts."""
        session: TokenSession[RequestSession] | None = scope.get("dlog.session")
        if session is not None:
            self._sessions.revoke(session)

    def release(self, scope: Scope) -> None:
        """Release the session of a request or tail that ended."""
        session: TokenSession[RequestSession] | None = scope.pop("dlog.session", None)
        if session is not None:
            session.release()

    def update_meters(self) -> None:
        """Update the gauges of sessions and rejected tokens."""
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
