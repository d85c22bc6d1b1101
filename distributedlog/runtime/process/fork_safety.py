"""What a forked child must not touch: the descriptors and threads of its parent (H15).

A child of ``fork()`` (a prefork server, multiprocessing before 3.14) holds copies of its parent's sockets
and files. Both would write on one stream, or hold one lock. So in the child everything that was open
is closed and says what happened when it is used; the parent notices nothing.

One thing is beyond us: who forks *inside* a trio task must end the child by ``os._exit`` (as
multiprocessing does) or ``exec``. A child that unwinds its copy of the loop takes entries out of the
epoll set that it shares with its parent.
"""

import contextlib
import os
import weakref
from typing import Protocol


class ForkResource(Protocol):
    """Something that holds descriptors or threads."""

    def on_forked(self) -> None:
        """Runs in the child: close the descriptors, mark it dead. Must not raise, lock or wait."""
        ...


_watched: "weakref.WeakSet[ForkResource]" = weakref.WeakSet()


def watch_forks(resource: ForkResource) -> None:
    """Have ``thing.on_forked`` called in every child forked from now on, while it lives."""
    _watched.add(resource)


def forked_message(what: str) -> str:
    """What a handle left behind by a fork says."""
    return (
        f"{what} belongs to the process that forked this one: open your own after the fork,"
        " or start children by spawning"
    )


def close_descriptor(descriptor: int) -> None:
    """Close the child's copy; whatever is wrong with it is no concern of the child."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _notify_in_child() -> None:
    resources = list(_watched)
    _watched.clear()
    for resource in resources:
        resource.on_forked()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_notify_in_child)
