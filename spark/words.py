"""Errors of ours that come back through Spark, as what they were."""

import re
from collections.abc import Callable
from typing import TypeVar

from ..runtime.errors import BY_CODE, DistributedLogError

Result = TypeVar("Result")


def in_words(call: Callable[[], Result]) -> Result:
    """What Spark wraps in sixty lines, as the error of ours that it was. Other errors stay as they are."""
    try:
        return call()
    except Exception as error:
        ours = of_text(str(error))
        if ours is None:
            raise
        raise ours from error


def of_text(text: str) -> DistributedLogError | None:
    """The error of ours that a stack of Spark's ends in; None for another one."""
    found = re.findall(r"^\s*distributedlog\.runtime\.errors\.(\w+): (.*)$", text, re.MULTILINE)
    kinds = {kind.__name__: kind for kind in BY_CODE.values()}
    for name, message in reversed(found):
        if name in kinds:
            return kinds[name](message.strip())
    return None
