"""How many files and connections this process may have open, and who gets them.

A lack of descriptors must never meet a journal that rolls: its node would have to end. So a server takes
fewer peers than there are descriptors (`connections_max`), and a listener hangs up at once on a connection
whose descriptor is one of the last `RESERVED_DESCRIPTORS`: the lowest free number is given out first, so that
tells how many are in use, whoever uses them, also where several nodes are in one process.
"""

import contextlib

with contextlib.suppress(ImportError):  # not on Windows, where only clients run
    import resource

WANTED_DESCRIPTORS = 65_536
CONNECTION_BYTES = 64 * 1024
"""Of memory, what a peer with TLS costs a server that asks and is answered little: somewhat less, as measured
by `python -m tests.cluster.tls_clients_story`. What is sent and received has bounds of its own, for all."""
CONNECTIONS_BYTES_MAX = 128 * 1024 * 1024
CONNECTIONS_MAX = CONNECTIONS_BYTES_MAX // CONNECTION_BYTES
FILE_DESCRIPTORS = 256
"""Of journals, indexes, directories, threads, and of connections that this process dials itself."""
RESERVED_DESCRIPTORS = 128
"""For files alone."""


def raise_limit() -> int:
    """Take what the system allows without more rights; how many descriptors there may be now. Of nodes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_soft_limit = (
        WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    )
    if soft != resource.RLIM_INFINITY and soft < new_soft_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_soft_limit, hard))
    return limit()


def limit() -> int:
    """How many descriptors this process may have now."""
    if "resource" not in globals():
        return WANTED_DESCRIPTORS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def connections_max(upper_limit: int = CONNECTIONS_MAX) -> int:
    """Peers of one server: ``most``, or as many as leave the others theirs."""
    return min(upper_limit, max(RESERVED_DESCRIPTORS // 2, limit() - FILE_DESCRIPTORS))


def first_kept() -> int:
    """No connection that came in has this descriptor or a higher one."""
    return max(RESERVED_DESCRIPTORS // 2, limit() - RESERVED_DESCRIPTORS)
