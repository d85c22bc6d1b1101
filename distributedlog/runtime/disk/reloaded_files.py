"""Reload files of a directory after they were replaced, such as certificates.

Several files, such as a certificate and its key, cannot be replaced atomically. So files are used only after
they have not changed for `SETTLED_S`. Invalid files are not used and are logged once, and the previous
content stays in use (H226). The check runs on access, without a task.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ..interfaces.errors import InvalidRequest, NotAuthenticated
from ..interfaces.log_lines import get_logger

SETTLED_S = 2.0
"""Files that changed less than this time ago may still be changing."""
RETRY_INTERVAL_S = 10.0
"""Rejected files are loaded again after this time: a chmod, or free descriptors, do not change their time
stamps."""

Loaded = TypeVar("Loaded")
FileStamps = tuple[tuple[str, int, int, int], ...]
"""For each existing file its name, inode number, size and modification time."""

log = get_logger("distributedlog.runtime.disk.reloaded_files")


class SettledFiles(Generic[Loaded]):
    """The existing files among ``names`` of a directory, and the value that was loaded from them."""

    def __init__(
        self, directory: Path, names: Sequence[str], load: Callable[[Loaded | None], Loaded]
    ) -> None:
        """``load`` receives the value in use, or None at first.

        Like this constructor, it raises `InvalidRequest` or `NotAuthenticated` that names the file.
        """
        self._directory = directory
        self._names = names
        self._load = load
        self._loaded_stamps = self._rejected_stamps = self._read_stamps()
        self._retry_at_s = 0.0
        self.loaded = load(None)
        """The value as of the last check."""

    def reload_if_changed(self) -> Loaded:
        """Load the files again if they have changed, and return the value in use."""
        stamps, now_s = self._read_stamps(), time.monotonic()
        if stamps == self._loaded_stamps or (
            stamps == self._rejected_stamps and now_s < self._retry_at_s
        ):
            return self.loaded
        now_ns = time.time_ns()
        if any(abs(now_ns - changed_ns) < SETTLED_S * 1e9 for *_, changed_ns in stamps):
            return self.loaded
        try:
            self.loaded = self._load(self.loaded)
        except (InvalidRequest, NotAuthenticated) as error:
            self._rejected_stamps, self._retry_at_s = stamps, now_s + RETRY_INTERVAL_S
            log.error("new certificates are invalid, the previous ones stay in use: %s", error)
            return self.loaded
        self._loaded_stamps = stamps
        log.info("new certificates are in use: %s", self._directory)
        return self.loaded

    def _read_stamps(self) -> FileStamps:
        stamps: list[tuple[str, int, int, int]] = []
        for name in self._names:
            try:
                file_status = (self._directory / name).stat()
            except OSError:
                continue
            stamps.append((name, file_status.st_ino, file_status.st_size, file_status.st_mtime_ns))
        return tuple(stamps)
