"""Close the descriptors and threads that a forked child inherits from its parent (H15).

A child of ``fork()`` (a prefork server, multiprocessing before 3.14) has copies of its parent's sockets and
files. Both processes would write to one stream, or hold one lock. So the child closes everything that was
open, and later uses raise an error that explains this. The parent is not affected.

One limit remains: a process that forks inside a trio task must end the child by ``os._exit`` (as
multiprocessing does) or ``exec``. If the child unwinds its copy of the event loop, it removes entries from
the epoll set that it shares with its parent.
"""

import contextlib
import os
import weakref
from typing import Protocol


class ForkResource(Protocol):
    """An object that holds descriptors or threads."""

    def on_forked(self) -> None:
        """Run in the child: close the descriptors and mark the object as dead. Must not raise or block."""
        ...


_watched: "weakref.WeakSet[ForkResource]" = weakref.WeakSet()


def watch_forks(resource: ForkResource) -> None:
    """Call ``resource.on_forked`` in every child that is forked from now on, while the object is alive."""
    _watched.add(resource)


def forked_message(what: str) -> str:
    """Return the error message of an object that was inherited by a fork."""
    return (
        f"{what} belongs to the process that forked this one: open your own after the fork,"
        " or start children by spawning"
    )


def close_descriptor(descriptor: int) -> None:
    """Close the child's copy of a descriptor, and ignore errors."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _notify_in_child() -> None:
    resources = list(_watched)
    _watched.clear()
    for resource in resources:
        resource.on_forked()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_notify_in_child)
