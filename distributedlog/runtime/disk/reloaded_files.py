"""What was loaded from files of a directory, and is loaded again when they were replaced.

Whoever replaces several files, a certificate and its key, cannot do it at one moment. So files are used once
they have been still for `SETTLED_S`; what is no good is not used, and told once, and what was loaded before
stays (H226). It is looked at when somebody asks: there is no task.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ..interfaces.errors import InvalidRequest, NotAuthenticated
from ..interfaces.log_lines import get_logger

SETTLED_S = 2.0
"""Files that changed later than this before may still be changing."""
RETRY_INTERVAL_S = 10.0
"""Files that were no good are tried again after: a chmod, or free descriptors, do not change their times."""

Loaded = TypeVar("Loaded")
FileStamps = tuple[tuple[str, int, int, int], ...]
"""Of each file that is there: its name, its number, its size, and when it changed."""

log = get_logger("distributedlog.runtime.disk.reloaded_files")


class SettledFiles(Generic[Loaded]):
    """The files ``names`` of a directory, those that are there, and what they are good for."""

    def __init__(
        self, directory: Path, names: Sequence[str], load: Callable[[Loaded | None], Loaded]
    ) -> None:
        """``load``: is told what is used so far. Raises `InvalidRequest` or `NotAuthenticated` that names the
        file, as this does."""
        self._directory = directory
        self._names = names
        self._load = load
        self._loaded_stamps = self._rejected_stamps = self._read_stamps()
        self._retry_at_s = 0.0
        self.loaded = load(None)
        """As it was looked at last."""

    def reload_if_changed(self) -> Loaded:
        """By the files as they are now, if they are still and good."""
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
            log.error("new certificates are not used, those of before are: %s", error)
            return self.loaded
        self._loaded_stamps = stamps
        log.info("new certificates are used from now on: %s", self._directory)
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
