"""Bugs put in from outside: a function of the product is replaced, for the length of a `with`."""

from collections.abc import Iterator, Sequence
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
