"""A planted bug, from outside: bookies acknowledge before the sync (G2).

Run as a node's module, ``dlog chaos run power-all --node-module tests.chaos.planted_sync``: what fdatasync
should make durable stays in the page cache until the system writes it back, as with "sync every now and
then" of other systems. Only journals are lied about; metadata nodes are as they are.
"""

from typing import Any

from distributedlog.cli.main import main
from distributedlog.runtime.directory_file import DirectoryFile


def plant() -> None:
    """Journal files say that they are synced, and are not."""
    for name in ("_sync", "_durably"):
        assert hasattr(DirectoryFile, name), "the sync has moved: the bug is to be planted anew"
    honest = DirectoryFile._sync

    def lie(self: Any) -> None:
        if not self.name.startswith("journal-"):
            honest(self)

    DirectoryFile._sync = lie  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    main()
