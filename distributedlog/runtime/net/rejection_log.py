"""Count rejected connections and requests, and log each address and reason once.

Repeated lines could fill a disk. An address and reason is logged again only after `REPEAT_INTERVAL_S`,
together with the number of repetitions. An attacker can use any number of addresses, so the number of
remembered pairs and the number of lines per minute are limited, too.
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

REPEAT_INTERVAL_S = 600.0
REMEMBERED_PEERS_MAX = 1000
LINES_PER_MINUTE_MAX = 60
WHY_CHARS_MAX = 300

MALFORMED = "malformed"
SILENT = "silent"
UNFINISHED = "unfinished frame"
TOO_MANY_CONNECTIONS = "no place"
FAULT = "fault while serving"

log = get_logger("distributedlog.runtime.net.rejection_log")


class RejectionLog:
    """The rejections of one endpoint. ``counts_by_reason`` counts since the start."""

    def __init__(self) -> None:
        self.counts_by_reason: dict[str, int] = {}
        self._last_logged: dict[tuple[str, str], tuple[float, int]] = {}
        self._minute_start = -float("inf")
        self._lines_in_minute = 0

    def record(
        self,
        peer_address: str,
        reason: str,
        detail: object,
        *,
        code_location: str = "",
        level: int = logging.WARNING,
    ) -> None:
        """Count a rejection, and log it unless it was logged recently.

        Args:
            peer_address: The address of the peer, with its port.
            reason: The key in ``counts_by_reason``.
            detail: An error that this process raised, or a text without values of the peer.
            code_location: The place in the code, for an unexpected error.
            level: The level of the log line.
        """
        self.counts_by_reason[reason] = self.counts_by_reason.get(reason, 0) + 1
        host = host_of(peer_address)
        now = trio.current_time()
        last_logged = self._last_logged.get((host, reason))
        if last_logged is not None and now - last_logged[0] < REPEAT_INTERVAL_S:
            self._last_logged[host, reason] = (last_logged[0], last_logged[1] + 1)
            return
        if not self._may_log(now):
            return
        self._last_logged.pop((host, reason), None)
        self._last_logged[host, reason] = (now, 0)
        while len(self._last_logged) > REMEMBERED_PEERS_MAX:
            del self._last_logged[next(iter(self._last_logged))]
        repeat_text = (
            f" ({last_logged[1]} more since the last such line)"
            if last_logged is not None and last_logged[1]
            else ""
        )
        log.log(
            level,
            "refused %s: %s: %s%s%s",
            host,
            reason,
            printable(f"{detail}"[:WHY_CHARS_MAX]),
            repeat_text,
            code_location and f"\n{code_location}",
            extra={"address": host, "reason": reason},
        )

    def _may_log(self, now: float) -> bool:
        if now - self._minute_start >= 60.0:
            self._minute_start, self._lines_in_minute = now, 0
        self._lines_in_minute += 1
        return self._lines_in_minute <= LINES_PER_MINUTE_MAX


def printable(text: str) -> str:
    """Return a text with all unprintable characters replaced.

    A value that a peer sent then cannot look like a separate log line.
    """
    return "".join(character if character.isprintable() else "?" for character in text)


def rejection_reason(error: DistributedLogError) -> str:
    """Return the reason under which an error that ended a link is counted.

    The reason is "" for the normal end of a connection.
    """
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
    """Return an address without its port, which differs from connection to connection."""
    return peer_address.rpartition(":")[0] or peer_address
