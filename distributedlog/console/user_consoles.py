"""A console where each reads with his own rights: who gives the page a user's token has one of that user.

The guard stands before all of them. A cookie stands for the token that was given for it, and what is asked
with it is read as that user, in a session of its own to the cluster (`cluster/auth/token_sessions.py`).
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio

from ..cluster.auth.token_sessions import TokenSessions
from ..runtime.interfaces.errors import DistributedLogError, NotAuthenticated
from ..runtime.net.rejection_log import host_of
from .access_guard import AccessGuard
from .cluster_state import cut
from .http import ConsolePage, EventStreamResponse, Request, Send, as_page
from .server import Console, static_pages

USERS_MAX = 32
"""Tokens that are in use at a time."""
WAITING_MAX = 32
"""Requests that wait for what the cluster says of their token."""
IDLE_S = 60.0
"""A token's session that nobody looks through ends after."""
TOKEN_REQUEST = {"error": "give a token of dlog user token", "asks": "token"}


class UserConsoles:
    """Answers requests (`http.py`), each by the console of who asks. `run` must be running."""

    def __init__(
        self,
        open_console: Callable[[bytes], AbstractAsyncContextManager[Console]],
        guard: AccessGuard,
    ) -> None:
        """``open_console``: one that reads with that token."""
        self._guard = guard
        self._sessions = TokenSessions(
            open_console, sessions_max=USERS_MAX, waiting_max=WAITING_MAX, idle_s=IDLE_S
        )
        self._static = static_pages()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        await self._sessions.run(task_status=task_status)

    async def handle(self, request: Request) -> ConsolePage | EventStreamResponse:
        """Any request. Raises nothing that a request can cause."""
        rejection = self._guard.check(request, self._static)
        if rejection is not None:
            return as_page(401, TOKEN_REQUEST) if rejection.status == 401 else rejection
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
            return as_page(503, {"error": cut(f"{type(error).__name__}: {error}")})

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
            # Who has hung up before it begins has entered nothing.
            stream_session = await self._sessions.acquire(token, host_of(request.peer))
            try:
                if stream_session is session:  # else the browser comes back
                    await stream.run(send)
            finally:
                stream_session.release()

        return EventStreamResponse(run, stream.content_type)
