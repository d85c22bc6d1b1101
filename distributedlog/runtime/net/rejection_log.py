"""Who was turned away, and why: all counted, and told once for each address and reason.

One line is news, ten thousand are a way to fill a disk: an address and reason that was told is told again
after `AGAIN_S`, with how often it came meanwhile. What is remembered, and how many lines there are in all,
is bounded too, for addresses cost a liar nothing.
"""

import logging

import trio

from ..interfaces.errors import (
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    ProtocolError,
    TooBusy,
    UnsupportedFormat,
    WrongPeer,
)
from ..interfaces.log_lines import get_logger

AGAIN_S = 600.0
REMEMBERED_MAX = 1000
LINES_A_MINUTE_MAX = 60
WHY_CHARS_MAX = 300

MALFORMED = "malformed"
SILENT = "silent"
UNFINISHED = "unfinished frame"
CROWDED = "no place"
FAULT = "fault while serving"

log = get_logger("distributedlog.runtime.net.rejection_log")


class RejectionLog:
    """Of one endpoint. ``counts`` are by reason, since the start."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        self._minute = -float("inf")
        self._lines = 0

    def note(
        self,
        peer_address: str,
        reason: str,
        why: object,
        *,
        where: str = "",
        level: int = logging.WARNING,
    ) -> None:
        """Count it, and tell it if it is news. ``why``: an error of ours, or text without a peer's values.

        ``where``: the place in the code, where that is the news.
        """
        self.counts[reason] = self.counts.get(reason, 0) + 1
        host = host_of(peer_address)
        now = trio.current_time()
        told = self._told.get((host, reason))
        if told is not None and now - told[0] < AGAIN_S:
            self._told[host, reason] = (told[0], told[1] + 1)
            return
        if not self._may_tell(now):
            return
        self._told.pop((host, reason), None)
        self._told[host, reason] = (now, 0)
        while len(self._told) > REMEMBERED_MAX:
            del self._told[next(iter(self._told))]
        more = f" ({told[1]} more since it was told last)" if told is not None and told[1] else ""
        log.log(
            level,
            "refused %s: %s: %s%s%s",
            host,
            reason,
            printable(f"{why}"[:WHY_CHARS_MAX]),
            more,
            where and f"\n{where}",
            extra={"address": host, "reason": reason},
        )

    def _may_tell(self, now: float) -> bool:
        if now - self._minute >= 60.0:
            self._minute, self._lines = now, 0
        self._lines += 1
        return self._lines <= LINES_A_MINUTE_MAX


def printable(text: str) -> str:
    """On one line: what a peer says of itself must not look like a line of ours."""
    return "".join(c if c.isprintable() else "?" for c in text)


def reason_of(error: DistributedLogError) -> str:
    """In which words a link that ended so is counted; "" for the ordinary end of a connection."""
    if isinstance(error, ProtocolError):
        return MALFORMED
    if isinstance(error, TooBusy):
        return "too much at once"
    if isinstance(error, NotAuthenticated | NotAllowed):
        return "not authenticated"
    if isinstance(error, WrongPeer):
        return "wrong peer"
    if isinstance(error, UnsupportedFormat):
        return "another version"
    return ""


def host_of(peer_address: str) -> str:
    """The address without its port, which is another one with each connection."""
    return peer_address.rpartition(":")[0] or peer_address
