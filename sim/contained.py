"""What the product contains, so that a broken rule ends one log, session or call alone, is heard here.

A seed in which it happens has failed: the next writer would go on, and nobody would know. Heard is what is
logged with a traceback and is no error of ours, whether logging is on or off.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any

from ..runtime.errors import DistributedLogError
from .planting import Patch


def heard(fail: Callable[[BaseException], None]) -> Patch:
    """To be planted for a run: ``fail`` is told of each."""
    original = logging.Logger.error

    def error(self: logging.Logger, message: object, *args: object, **options: Any) -> None:
        why = options.get("exc_info")
        found = why if isinstance(why, BaseException) else sys.exc_info()[1] if why else None
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is not None and not isinstance(found, DistributedLogError):
            fail(found)
        original(self, message, *args, **options)

    return logging.Logger, "error", error
