"""Bugs put in from outside: a function of the product is replaced, for the length of a `with`.

A broken rule that the product contains ends one log, session or call alone. A seed in which one is logged
has failed (`heard`): the next writer would continue, and no report would show it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import getattr_static
from typing import Any

from ....runtime.interfaces.errors import DistributedLogError
from ....runtime.interfaces.log_lines import Logger
from ....runtime.schedule.work_failures import flatten_group

Patch = tuple[Any, str, Any]
"""A class or module, the name in it, and what stands there instead."""


@contextmanager
def planted(patches: Sequence[Patch]) -> Iterator[None]:
    """Put a bug in."""
    originals = [(owner, name, getattr_static(owner, name)) for owner, name, _ in patches]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def cause_of(failures: Sequence[BaseException]) -> BaseException:
    """What the first failure of a seed is, out of the groups that it came in."""
    cause = failures[0]
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause


def words_of(failures: Sequence[BaseException]) -> str:
    """The same, in one line."""
    cause = cause_of(failures)
    return f"{type(cause).__name__}: {str(cause).splitlines()[0]}"


def first_seed(
    patches: Sequence[Patch],
    seeds: Iterable[int],
    failures_of: Callable[[int], Sequence[BaseException]],
) -> tuple[int, str] | None:
    """The first of these seeds that finds a bug, and by what; None: it survives them."""
    with planted(patches):
        for seed in seeds:
            if failures := failures_of(seed):
                return seed, words_of(failures)
    return None


def table_of(
    names: Iterable[str],
    find: Callable[[str, int], tuple[int, str] | None],
    arguments: Sequence[str],
) -> int:
    """`print_table`, of a command's ``arguments``: how many seeds (20), a part of the names ("")."""
    logging.disable(logging.CRITICAL)
    budget = int(arguments[0]) if arguments else 20
    name_part = arguments[1] if len(arguments) > 1 else ""
    return print_table(
        [name for name in names if name_part in name], lambda name: find(name, budget), budget
    )


def print_table(
    names: Iterable[str], find: Callable[[str], tuple[int, str] | None], budget: int
) -> int:
    """A row a bug: its name, and what ``find`` says of it; 1 when one survived, else 0."""
    survivors = 0
    for name in names:
        result = find(name)
        survivors += result is None
        cells = f"survives {budget} |" if result is None else f"{result[0]} | {result[1]:.110}"
        print(f"{name} | {cells}", flush=True)
    return 1 if survivors else 0


# --- broken rules that the product contains --------------------------------------------------------

ENDS_NODE = {
    "Journal.run": "the journal",
    "FilePreallocator.run": "the journal's next file",
    "Preallocation.run": "the journal's zeroed blocks",
    "RaftReplica.persist": "the log of Raft and its hard state",
    "RaftStorage.zero_ahead": "the zeroed blocks of Raft's log",
    "RaftReplica.run_clock": "the core of Raft",
    "RaftReplica.raise_failure": "waits for an error of the core, and raises it",
}
"""Tasks that end their node with any exception, because nothing may be acknowledged after it. The keys are
the functions of the tasks."""


class Injected(Exception):
    """An exception that a seed throws into a task, like a bug (`unexpected_errors.py`). Its text names the
    task."""

    @property
    def ends_node(self) -> bool:
        """Must the node end by it?"""
        return str(self) in ENDS_NODE


def heard(fail: Callable[[BaseException], None]) -> list[Patch]:
    """Return the patches for a run: ``fail`` receives each exception, except `Injected`.

    Those are heard that are logged with a traceback, whether logging is on or off.
    """
    original = Logger._log

    def log(
        self: Logger,
        level: int,
        text: str,
        values: tuple[object, ...],
        error: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        for leaf in flatten_group(error) if error is not None and level >= logging.ERROR else ():
            if not isinstance(leaf, (DistributedLogError, Injected)):
                fail(leaf)
                break
        original(self, level, text, values, error, extra)

    return [(Logger, "_log", log)]
