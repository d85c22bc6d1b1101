"""A planted bug, from outside: bookies acknowledge before the sync (G2).

Run as a node's module, ``dlog chaos run power-all --node-module tests.chaos.planted_sync``: what fdatasync
should make durable stays in the page cache for up to `EVERY_S`, as with "sync every now and then" of other
systems. Only journals are lied about; metadata nodes are as they are. Journals are written through the cache
for it: a direct write into blocks that are allocated reaches the loop device at once, which has no volatile
cache of its own that a power cut could empty.
"""

import time
from collections.abc import Sequence
from typing import Any

from distributedlog.cli.main import main
from distributedlog.runtime.disk.directory_file import DirectoryFile

EVERY_S = 1.0


def plant() -> None:
    """Journal files say that they are synced, and are not."""
    for name in ("_fdatasync", "_write"):
        assert hasattr(DirectoryFile, name), "the sync has moved: the bug is to be planted anew"
    sync, write = DirectoryFile._fdatasync, DirectoryFile._write

    def lie(self: Any, descriptor: int) -> None:
        # Also of the zeros ahead: a sync by whatever descriptor takes all pages of the file along.
        now = time.monotonic()
        journal = self.name.startswith("journal-")
        if not journal or now - getattr(self, "synced_at", 0.0) >= EVERY_S:
            self.synced_at = now
            sync(self, descriptor)

    def into_the_cache(self: Any, offset: int, buffers: Sequence[Any]) -> None:
        direct, self._direct_fd = self._direct_fd, None
        try:
            write(self, offset, buffers)
        finally:
            self._direct_fd = direct

    DirectoryFile._fdatasync = lie  # type: ignore[method-assign]
    DirectoryFile._write = into_the_cache  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    main()
