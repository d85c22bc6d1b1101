"""What the product contains, so that a broken rule ends one log, session or call alone, is heard here.

A seed in which it happens has failed: the next writer would go on, and nobody would know. Heard is what is
logged with a traceback and is no error of ours, whether logging is on or off.
"""

import logging
from collections.abc import Callable, Mapping

from ..runtime.errors import DistributedLogError
from ..runtime.log_lines import Logger
from ..runtime.work_failures import leaves_of
from .planting import Patch

ENDS_NODE = {
    "Journal.run": "the journal",
    "Journal._keep_ahead": "the journal's next file",
    "ZeroAhead.run": "the journal's zeroed blocks",
    "Replica.persist": "the log of Raft and its hard state",
    "RaftStorage.zero_ahead": "the zeroed blocks of Raft's log",
    "Replica.run_clock": "the core of Raft",
    "Replica.end_if_must": "waits for an error of the core, and raises it",
}
"""Tasks that end their node with any exception, because nothing may be acknowledged after it. The keys are
the functions of the tasks."""


class Injected(Exception):
    """An exception that a seed throws into a task, like a bug (`unexpected.py`). Its text names the task."""

    @property
    def ends_node(self) -> bool:
        """Must the node end by it?"""
        return str(self) in ENDS_NODE


def heard(fail: Callable[[BaseException], None]) -> list[Patch]:
    """Return the patches for a run: ``fail`` receives each exception, except `Injected`."""
    original = Logger._log

    def log(
        self: Logger,
        level: int,
        text: str,
        values: tuple[object, ...],
        error: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        for leaf in leaves_of(error) if error is not None and level >= logging.ERROR else ():
            if not isinstance(leaf, (DistributedLogError, Injected)):
                fail(leaf)
                break
        original(self, level, text, values, error, extra)

    return [(Logger, "_log", log)]
