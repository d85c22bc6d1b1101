"""Errors of ours that come back through Spark, as what they were: one line, where Spark prints sixty.

Of what a Python process raises, the JVM hands on nothing but text. So whatever of ours Spark calls is `told`:
what it raises ends in ``[dlog {"code": 511, "detail": "3.0.1"}]``, the fields with which errors cross our own
wire too, and `cause` makes the error of it again.

In Spark's Python processes no program has configured logging, and Python prints only the text of a warning.
`speak` adds time, level and name, unless a handler is configured.
"""

import functools
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from ...runtime.interfaces.errors import BY_CODE, DistributedLogError, from_code

P = ParamSpec("P")
T = TypeVar("T")

MARK = "[dlog "
DETAIL_CHARS_MAX = 1024
_NAMED = re.compile(r"^\s*distributedlog\.(?:\w+\.)*errors\.(\w+): (.*)$", re.MULTILINE)
_JSON = json.JSONDecoder()
NAME = "distributedlog.spark"
FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


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
        ours = cause(error)
        if ours is None:
            raise
        raise ours from None


def cause(exception: BaseException) -> DistributedLogError | None:
    """The error of ours in what Spark raised: its class, message and fields; None for another's.

    For whoever cannot put `plain_errors` around it: ``query.exception()``, a listener, a job's log.
    """
    seen: set[int] = set()
    one: BaseException | None = exception
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        found = one if isinstance(one, DistributedLogError) else of_text(str(one))
        if found is not None:
            return _unmarked(found)
        one = one.__cause__ or one.__context__
    return None


def of_text(text: str) -> DistributedLogError | None:
    """The error of ours that a stack of Spark's ends in; None for another one."""
    kinds = {kind.__name__: kind for kind in BY_CODE.values()}
    for name, message in reversed(_NAMED.findall(text)):
        marked = _marked(message)
        if marked is not None:
            said, fields = marked
            return from_code(fields["code"], said, fields.get("detail", ""))
        if name in kinds:  # of a worker with an older program
            return kinds[name](message.strip())
    return None


def told(call: Callable[P, T]) -> Callable[P, T]:
    """A method that Spark calls: what it raises of ours says its fields at its end."""

    @functools.wraps(call)
    def telling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except DistributedLogError as error:
            raise _with_mark(error).with_traceback(error.__traceback__) from error.__cause__

    return telling


def told_rows(call: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """As `told`, of a method whose rows Spark takes one by one."""

    @functools.wraps(call)
    def telling(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from call(*args, **kwargs)
        except DistributedLogError as error:
            raise _with_mark(error).with_traceback(error.__traceback__) from error.__cause__

    return telling


def _with_mark(error: DistributedLogError) -> DistributedLogError:
    said = " ".join(str(error).splitlines())
    if _marked(said) is not None:
        return error  # it has come this way already
    fields = {"code": error.code, "detail": error.detail[:DETAIL_CHARS_MAX]}
    if not error.detail:
        del fields["detail"]
    return error.again(f"{said} {MARK}{json.dumps(fields)}]")


def _unmarked(error: DistributedLogError) -> DistributedLogError:
    marked = _marked(str(error))
    return error if marked is None else error.again(marked[0])


def _marked(message: str) -> tuple[str, dict[str, Any]] | None:
    """A message without its mark, and what the mark says; None where it has none."""
    said, mark, rest = message.rpartition(MARK)
    if not mark:
        return None
    try:
        fields, end = _JSON.raw_decode(rest)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(fields, dict) and type(fields.get("code")) is int
    if not sound or not isinstance(fields.get("detail", ""), str) or rest[end : end + 1] != "]":
        return None
    return said.strip(), fields


class Spoken(logging.Handler):
    """To standard error, from WARNING up, unless somebody else listens already."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(FORM))

    def emit(self, record: logging.LogRecord) -> None:
        """One line. Standard error is looked up now: Spark's workers replace it."""
        above = logging.getLogger("distributedlog").handlers or logging.getLogger().handlers
        if not above:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def speak() -> None:
    """Print warnings with time, level and name. Idempotent."""
    logger = logging.getLogger(NAME)
    if not any(isinstance(one, Spoken) for one in logger.handlers):
        logger.addHandler(Spoken())
