"""Replace functions of the product while a `with` block runs, to inject bugs and to observe (decision 119).

If product code breaks one of its rules, the exception ends only one log, session or call. The next writer
would continue, and no checker would report the failure. Therefore a seed also fails if the product logs such
an exception (`unexpected_error_patches`).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature, getattr_static, isfunction, signature
from typing import Any

from ....runtime.interfaces.errors import DistributedLogError
from ....runtime.interfaces.log_lines import Logger
from ....runtime.schedule.work_failures import flatten_group

Patch = tuple[Any, str, Any]
"""A class or module, the name of one of its attributes, and the replacement."""


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Apply the patches for the `with` block, and restore the originals afterwards.

    Raises:
        TypeError: A replacement takes other arguments than the original; see `check_replacement`.
        AttributeError: The product has no such name any more.
    """
    for patch in patches:
        check_replacement(*patch)
    originals = [(owner, name, getattr_static(owner, name)) for owner, name, _ in patches]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def check_replacement(owner: Any, name: str, replacement: Any) -> None:
    """Check that a function can be called as the one that it replaces, by position and by its keywords.

    Otherwise a patch that does not match the product any more would end each seed with an unrelated error, or
    would observe nothing.

    Raises:
        TypeError: The replacement takes other arguments.
        AttributeError: The owner has no such name.
    """
    original = getattr_static(owner, name)
    if not isfunction(original) or not isfunction(replacement):
        return
    if not _fits(signature(original), signature(replacement)):
        raise TypeError(
            f"{getattr(owner, '__name__', owner)}.{name} takes {signature(original)}, its replacement "
            f"{signature(replacement)}"
        )


def _fits(original: Signature, replacement: Signature) -> bool:
    kinds = {parameter.kind for parameter in replacement.parameters.values()}
    if kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
        return True
    keywords = [
        {p.name for p in each.parameters.values() if p.kind is Parameter.KEYWORD_ONLY}
        for each in (original, replacement)
    ]
    return len(original.parameters) == len(replacement.parameters) and keywords[0] == keywords[1]


def first_cause(failures: Sequence[BaseException]) -> BaseException:
    """Return the first failure of a seed, taken out of its exception groups."""
    cause = failures[0]
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause


def describe_cause(failures: Sequence[BaseException]) -> str:
    """Return the type and the first line of a seed's first failure."""
    cause = first_cause(failures)
    return f"{type(cause).__name__}: {str(cause).splitlines()[0]}"


def first_seed(
    patches: Sequence[Patch],
    seeds: Iterable[int],
    failures_of: Callable[[int], Sequence[BaseException]],
) -> tuple[int, str] | None:
    """Run the seeds with the patches until one fails.

    Returns:
        The failing seed and its failure in one line, or None if no seed detects the bug.
    """
    with patched(patches):
        for seed in seeds:
            if failures := failures_of(seed):
                return seed, describe_cause(failures)
    return None


def table_of(
    names: Iterable[str],
    find: Callable[[str, int], tuple[int, str] | None],
    arguments: Sequence[str],
) -> int:
    """Print the table of `print_table` for the arguments of a command line.

    Args:
        names: The names of the injected bugs.
        find: Search for one bug with a number of seeds; see `print_table`.
        arguments: The number of seeds per bug (default 20), then a part of the names (default: all bugs).
    Returns:
        The exit code.
    """
    logging.disable(logging.CRITICAL)
    budget = int(arguments[0]) if arguments else 20
    name_part = arguments[1] if len(arguments) > 1 else ""
    return print_table(
        [name for name in names if name_part in name], lambda name: find(name, budget), budget
    )


def print_table(
    names: Iterable[str], find: Callable[[str], tuple[int, str] | None], budget: int
) -> int:
    """Print one row per injected bug: its name and the result of ``find``.

    Returns:
        The exit code: 1 if a bug was not found, otherwise 0.
    """
    survivors = 0
    for name in names:
        result = find(name)
        survivors += result is None
        cells = f"survives {budget} |" if result is None else f"{result[0]} | {result[1]:.110}"
        print(f"{name} | {cells}", flush=True)
    return 1 if survivors else 0


# --- unexpected exceptions in the product ----------------------------------------------------------

ENDS_NODE = {
    "Journal.run": "the journal",
    "FilePreallocator.run": "the journal's next file",
    "Preallocation.run": "the journal's zeroed blocks",
    "RaftReplica.persist": "the log of Raft and its hard state",
    "RaftStorage.zero_ahead": "the zeroed blocks of Raft's log",
    "RaftReplica.run_clock": "the core of Raft",
    "RaftReplica.raise_failure": "waits for an error of the core, and raises it",
}
"""Tasks that end their node on any exception, because nothing may be acknowledged after it. The keys are the
functions of the tasks, the values describe the work that fails."""


class Injected(Exception):
    """An exception that a seed throws into a task, as a bug would (`unexpected_errors.py`). Its text is the
    key of the task."""

    @property
    def ends_node(self) -> bool:
        """Whether the node must end because of it."""
        return str(self) in ENDS_NODE


def unexpected_error_patches(fail: Callable[[BaseException], None]) -> list[Patch]:
    """Return the patches that report unexpected exceptions of the product during a run.

    Args:
        fail: Receives each exception that is logged as an error with a traceback, whether logging is on or
            off.
            `DistributedLogError` and `Injected` are expected and not reported.
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
