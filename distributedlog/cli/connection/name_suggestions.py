"""Suggest logs with names similar to a missing one. Of very many logs only a part is compared."""

import difflib
from typing import Any

import trio

from ...runtime.interfaces.errors import DistributedLogError, LogNotFound
from ..framework.errors import innermost, missing_log

NAMES_MAX = 1000
"""Names per request. One request is for names with the same beginning, one for all. Comparing takes 20 ms."""
NEAR_MAX = 3
CUTOFF = 0.75
"""Minimum similarity of two names, from 0 to 1, as `difflib` computes it."""
WAIT_S = 2.0
"""Maximum time for both requests, in seconds. The error itself is already known."""


async def near_names(logs: Any, wanted: str) -> list[str]:
    """Return the most similar names, best first; none if no name is similar or no answer arrives."""
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
    """Add similar names to an error about a missing log."""
    cause = innermost(error)
    wanted = missing_log(cause) if isinstance(cause, LogNotFound) else ""
    if wanted and (near := await near_names(logs, wanted)):
        cause.add_note(" or ".join(f'"{name}"' for name in near))
