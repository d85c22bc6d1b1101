"""Serve one console per user token, with the rights of that user.

The guard checks all requests first. A cookie belongs to the token for which it was issued. Requests with it
are answered with the rights of that user, in a separate session to the cluster
(`cluster/auth/token_sessions.py`).
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio

from ..cluster.auth.token_sessions import TokenSessions
from ..runtime.declarations.http_statuses import http_status
from ..runtime.interfaces.errors import DistributedLogError, NotAuthenticated
from ..runtime.net.rejection_log import host_of
from .access_guard import AccessGuard
from .cluster_state import cut
from .http import ConsolePage, EventStreamResponse, Request, Send, as_page
from .server import Console, error_values, for_people, static_pages

USERS_MAX = 32
"""Maximum number of tokens in use at a time."""
WAITING_MAX = 32
"""Maximum number of requests that wait while the cluster verifies their token."""
IDLE_S = 60.0
"""Seconds after which the unused session of a token is closed."""
TOKEN_REQUEST = {"error": "enter a token of dlog user token", "asks": "token"}


class UserConsoles:
    """Answers requests (`http.py`) with the console of the user. `run` must be running."""

    def __init__(
        self,
        open_console: Callable[[bytes], AbstractAsyncContextManager[Console]],
        guard: AccessGuard,
    ) -> None:
        """``open_console`` opens a console that reads with a token."""
        self._guard = guard
        self._sessions = TokenSessions(
            open_console, sessions_max=USERS_MAX, waiting_max=WAITING_MAX, idle_s=IDLE_S
        )
        self._static = static_pages()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the sessions until cancelled."""
        await self._sessions.run(task_status=task_status)

    async def handle(self, request: Request) -> ConsolePage | EventStreamResponse:
        """Answer a request. No request can cause an exception."""
        rejection = self._guard.check(request, self._static)
        if rejection is not None:
            if rejection.status == 401:
                rejection = as_page(401, TOKEN_REQUEST)
            return for_people(request, rejection, self._static)
        if request.path in self._static and request.method in ("GET", "HEAD"):
            return self._static[request.path]
        try:
            if request.method == "POST" and request.path == "/session":
                return await self._open_session(request)
            token = self._guard.presented_token(request)
            if token is None:
                return as_page(401, TOKEN_REQUEST)
            return await self._handle_as_user(request, token)
        except NotAuthenticated as error:
            return as_page(401, {**TOKEN_REQUEST, "error": cut(str(error))})
        except DistributedLogError as error:
            status = http_status(error, is_write=False, by_users=True)
            return as_page(status, error_values(error))

    async def _open_session(self, request: Request) -> ConsolePage:
        text = self._guard.token_of(request)
        if isinstance(text, ConsolePage):
            return text
        token = text.strip().encode("utf-8", "replace")
        (await self._sessions.acquire(token, host_of(request.peer))).release()
        return self._guard.admit(token)

    async def _handle_as_user(
        self, request: Request, token: bytes
    ) -> ConsolePage | EventStreamResponse:
        session = await self._sessions.acquire(token, host_of(request.peer))
        try:
            response = await session.resource.handle(request)
        finally:
            session.release()
        if isinstance(response, ConsolePage):
            return response
        stream = response

        async def run(send: Send) -> None:
            # If the browser disconnects before this, no session is held.
            stream_session = await self._sessions.acquire(token, host_of(request.peer))
            try:
                if stream_session is session:  # otherwise the browser reconnects
                    await stream.run(send)
            finally:
                stream_session.release()

        return EventStreamResponse(run, stream.content_type)
