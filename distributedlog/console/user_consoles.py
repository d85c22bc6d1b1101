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
ASKS = {"error": "give a token of dlog user token", "asks": "token"}


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

    async def answer(self, request: Request) -> ConsolePage | EventStreamResponse:
        """Any request. Raises nothing that a request can cause."""
        refused = self._guard.refusal(request, self._static)
        if refused is not None:
            return as_page(401, ASKS) if refused.status == 401 else refused
        if request.path in self._static and request.method in ("GET", "HEAD"):
            return self._static[request.path]
        try:
            if request.method == "POST" and request.path == "/session":
                return await self._let_in(request)
            token = self._guard.shown(request)
            if token is None:
                return as_page(401, ASKS)
            return await self._answer(request, token)
        except NotAuthenticated as error:
            return as_page(401, {**ASKS, "error": cut(str(error))})
        except DistributedLogError as error:
            return as_page(503, {"error": cut(f"{type(error).__name__}: {error}")})

    async def _let_in(self, request: Request) -> ConsolePage:
        given = self._guard.given(request)
        if isinstance(given, ConsolePage):
            return given
        token = given.strip().encode("utf-8", "replace")
        (await self._sessions.enter(token, host_of(request.peer))).leave()
        return self._guard.admit(token)

    async def _answer(self, request: Request, token: bytes) -> ConsolePage | EventStreamResponse:
        session = await self._sessions.enter(token, host_of(request.peer))
        try:
            found = await session.opened.answer(request)
        finally:
            session.leave()
        if isinstance(found, ConsolePage):
            return found
        stream = found

        async def run(send: Send) -> None:
            # Who has hung up before it begins has entered nothing.
            again = await self._sessions.enter(token, host_of(request.peer))
            try:
                if again is session:  # else the browser comes back
                    await stream.run(send)
            finally:
                again.leave()

        return EventStreamResponse(run, stream.kind)
