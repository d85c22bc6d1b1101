"""Errors of ours that come back through Spark, as what they were: one line, where Spark prints sixty."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..runtime.errors import BY_CODE, DistributedLogError


@contextmanager
def plain_errors() -> Iterator[None]:
    """What is raised inside by Spark for an error of ours is raised as that error, with its own message.

    Also as a decorator: ``@plain_errors()``.

    Its class can be caught (``except LogTruncated``); Spark's own text stays as its ``__context__``. Errors
    of others stay as they are. In Python's driver process alone; what the JVM logs is not changed.
    """
    try:
        yield
    except Exception as error:
        ours = of_text(str(error))
        if ours is None:
            raise
        raise ours from None


def of_text(text: str) -> DistributedLogError | None:
    """The error of ours that a stack of Spark's ends in; None for another one."""
    found = re.findall(r"^\s*distributedlog\.runtime\.errors\.(\w+): (.*)$", text, re.MULTILINE)
    kinds = {kind.__name__: kind for kind in BY_CODE.values()}
    for name, message in reversed(found):
        if name in kinds:
            return kinds[name](message.strip())
    return None
