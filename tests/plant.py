"""Another call in the place of one object's own, where its class has slots and takes none."""

from collections.abc import Callable
from typing import Any


def plant(thing: Any, name: str, call: Callable[..., object]) -> None:
    """From now on ``thing.name(...)`` is ``call(...)``; other objects of its class stay as they are."""
    own = type(thing)
    thing.__class__ = type(own.__name__, (own,), {"__slots__": (), name: staticmethod(call)})
