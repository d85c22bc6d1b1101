"""Whom a proxy serves while the cluster requires rights: those whose cluster it is, and nobody else.

At the metadata and the bookies a proxy has its own rights, on all logs. It does not judge the users that ask
it yet: where rights are required it would lend them to everybody who has any certificate. So it refuses
what they ask for there, in words; who it is and which proxies there are it goes on saying.
"""

from collections.abc import Callable

import trio

from ..metadata.interface import Metadata
from ..metadata.trust_records import MODE_KEY, mode_in
from ..runtime.errors import NotAllowed
from ..runtime.frames import Op
from ..runtime.link import Link, Session
from ..runtime.principals import LOCAL
from .watching import at_each_change

EVERY_S = 60.0
OPEN_OPS = frozenset({Op.INFO, Op.MEMBERS})
REQUIRED = "required"


class ProxyGate:
    """Of one proxy, for all its connections."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.mode = "open"
        self._guarded: dict[_Guarded, None] = {}

    async def look(self) -> None:
        """Read the mode. Raises what keeps the metadata from answering."""
        self.hear(mode_in(await self._metadata.get(MODE_KEY)))

    def hear(self, mode: str) -> None:
        """This is the mode from now on; connections that are not served any more end."""
        self.mode = mode
        if mode == REQUIRED:
            for guarded in list(self._guarded):
                guarded.end()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the mode, until cancelled; started once it is known."""
        await self.look()
        task_status.started()
        await at_each_change(self._metadata, (MODE_KEY,), self.look, every_s=EVERY_S)

    def guard(self, link: Link, session: Session) -> Session:
        """What serves the connection. It costs one whose cluster it is nothing."""
        if link.principal == LOCAL:
            return session
        guarded = _Guarded(self, link, session)
        self._guarded[guarded] = None
        return guarded

    def leave(self, guarded: "_Guarded") -> None:
        """That connection is over."""
        self._guarded.pop(guarded, None)


class _Guarded:
    """A session whose frames are looked at first. A `Session`."""

    def __init__(self, gate: ProxyGate, link: Link, session: Session) -> None:
        self._gate = gate
        self._link = link
        self.on_batch_end: Callable[[], None] = session.on_batch_end
        self._session = session

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        """Take one frame. Raises `ProtocolError`, which ends the connection."""
        if self._gate.mode == REQUIRED and op not in OPEN_OPS:
            self._link.reply_error(ident, self._why())
            return
        self._session.on_frame(op, flags, status, ident, deadline_ms, body)

    def on_closed(self) -> None:
        """The connection has ended."""
        self._gate.leave(self)
        self._session.on_closed()

    def end(self) -> None:
        """What it was given before ends too; who comes back is told why."""
        self._link.close(self._why())

    def _why(self) -> NotAllowed:
        return NotAllowed(
            f"this proxy does not judge yet what {self._link.principal} may do, and this cluster requires"
            " that: go to it directly (distributedlog://)"
        )
