"""Limit the connections of a process by its limit of open file descriptors.

A journal that starts a new file must always get a descriptor; otherwise, its node would have to stop. So a
server accepts fewer peers than there are descriptors (`connections_max`). A listener closes a connection at
once if its descriptor is one of the last `RESERVED_DESCRIPTORS`. The system assigns the lowest free number
first, so the number shows how many are in use by all users, even with several nodes in one process.
"""

import contextlib

with contextlib.suppress(ImportError):  # not on Windows, where only clients run
    import resource

WANTED_DESCRIPTORS = 65_536
CONNECTION_BYTES = 64 * 1024
"""The memory in bytes that a mostly idle peer with TLS costs a server, rounded up.

It was measured by `tests.cluster.tls_clients_story`. Sent and received data has separate limits for all
peers.
"""
CONNECTIONS_BYTES_MAX = 128 * 1024 * 1024
CONNECTIONS_MAX = CONNECTIONS_BYTES_MAX // CONNECTION_BYTES
FILE_DESCRIPTORS = 256
"""For journals, indexes, directories, threads, and connections that this process dials."""
RESERVED_DESCRIPTORS = 128
"""For files only."""


def raise_limit() -> int:
    """Raise the descriptor limit of a node as far as the system allows without privileges, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_soft_limit = (
        WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    )
    if soft != resource.RLIM_INFINITY and soft < new_soft_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_soft_limit, hard))
    return limit()


def limit() -> int:
    """Return how many descriptors this process can have now."""
    if "resource" not in globals():
        return WANTED_DESCRIPTORS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connections_max(upper_limit: int = CONNECTIONS_MAX) -> int:
    """Return the number of peers of one server.

    It is ``upper_limit``, or fewer if other uses need the descriptors.
    """
    return min(upper_limit, max(RESERVED_DESCRIPTORS // 2, limit() - FILE_DESCRIPTORS))


def first_reserved() -> int:
    """Return the lowest descriptor that no accepted connection can have."""
    return max(RESERVED_DESCRIPTORS // 2, limit() - RESERVED_DESCRIPTORS)
