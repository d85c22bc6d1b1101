"""Bugs put in from outside: a function of the product is replaced, for the length of a `with`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import getattr_static
from typing import Any

Patch = tuple[Any, str, Any]
"""A class or module, the name in it, and what stands there instead."""


@contextmanager
def planted(patches: Sequence[Patch]) -> Iterator[None]:
    """Put a bug in."""
    before = [(owner, name, getattr_static(owner, name)) for owner, name, _ in patches]
    for owner, name, instead in patches:
        setattr(owner, name, instead)
    try:
        yield
    finally:
        for owner, name, was in before:
            setattr(owner, name, was)


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


def print_table(
    names: Iterable[str], find: Callable[[str], tuple[int, str] | None], budget: int
) -> int:
    """A row a bug: its name, and what ``find`` says of it; 1 when one survived, else 0."""
    survivors = 0
    for name in names:
        found = find(name)
        survivors += found is None
        said = f"survives {budget} |" if found is None else f"{found[0]} | {found[1]:.110}"
        print(f"{name} | {said}", flush=True)
    return 1 if survivors else 0
