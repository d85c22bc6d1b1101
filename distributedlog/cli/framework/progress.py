"""Show one line of progress on stderr while a command runs for long.

On a terminal the line is rewritten once per second. It is removed before other output, so that the two are
never on one line. Nothing is shown with --quiet or --json, or if stderr is no terminal. Lines can be nested:
the innermost one is shown.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from .errors import print_stderr
from .options import Settings
from .output import terminal_width, visible

TICK_S = 1.0
REMOVE = "\r\033[K"


class ProgressLine:
    """The last line of a terminal. Threads may use it at the same time."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _lines: ClassVar[list["ProgressLine"]] = []
    """The lines that were shown and not removed; only the last one is on the terminal."""

    def __init__(self, settings: Settings) -> None:
        self.is_shown = sys.stderr.isatty() and not settings.quiet and not settings.json
        """Whether the line is shown: stderr is a terminal, and neither --quiet nor --json is set."""
        self._settings = settings

    def show(self, text: str) -> None:
        """Replace the line, unless a line that was shown later is on the terminal."""
        if not self.is_shown:
            return
        width = terminal_width(sys.stderr)
        with self._lock:
            if self not in self._lines:
                self._lines.append(self)
            if self._lines[-1] is not self:
                return
            # A line as wide as the terminal would wrap, and its first half would stay.
            print_stderr(f"\r{visible(text)[: None if width is None else width - 1]}\033[K")

    def remove(self) -> None:
        """Remove the line, if there is one. Idempotent."""
        with self._lock:
            if self in self._lines:
                self._lines.remove(self)
                print_stderr(REMOVE)

    def note(self, text: str) -> None:
        """Remove the line and print a note; see `Settings.note`."""
        self.remove()
        self._settings.note(text)


@contextmanager
def show_progress(
    settings: Settings, text: Callable[[float], str], *, every_s: float = TICK_S
) -> Iterator[ProgressLine]:
    """Show a progress line once per second while the block runs.

    A thread prints it, because the block may be a call that does not return to an event loop.

    Args:
        settings: The options of the command.
        text: Returns the line, from the seconds since the start of the block.
        every_s: Interval in seconds.
    """
    line = ProgressLine(settings)
    if not line.is_shown:
        yield line
        return
    stopped = threading.Event()
    started_at = time.monotonic()

    def run() -> None:
        while not stopped.wait(every_s):
            line.show(text(time.monotonic() - started_at))

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield line
    finally:
        stopped.set()
        thread.join()
        line.remove()
