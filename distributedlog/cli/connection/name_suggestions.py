"""Logs that are called almost as one that is not there; of very many logs some are looked at."""

import difflib
from typing import Any

import trio

from ...runtime.interfaces.errors import DistributedLogError, LogNotFound
from ..framework.errors import innermost, missing_log

NAMES_MAX = 1000
"""Of those that begin alike, and of all: two questions, and some 20 ms of comparing at most."""
NEAR_MAX = 3
CUTOFF = 0.75
"""Of 1: how much of both names is the same, as difflib counts."""
WAIT_S = 2.0
"""For both answers: the error itself is known already."""


async def near_names(logs: Any, wanted: str) -> list[str]:
    """The nearest first; none where none is near, or nobody answers."""
    matches: list[str] = []
    with trio.move_on_after(WAIT_S):
        for prefix in dict.fromkeys((wanted[: len(wanted) // 2], "")):
            try:
                page = await logs.log_page(prefix, limit=NAMES_MAX)
            except DistributedLogError:
                break
            matches = difflib.get_close_matches(wanted, page.names, NEAR_MAX, CUTOFF)
            if matches:
                break
    return matches


async def name_near(logs: Any, error: Exception) -> None:
    """Where a log is missed: have the error say which ones are called almost so."""
    cause = innermost(error)
    wanted = missing_log(cause) if isinstance(cause, LogNotFound) else ""
    if wanted and (near := await near_names(logs, wanted)):
        cause.add_note(" or ".join(f'"{name}"' for name in near))
