"""A node whose wall clock can be moved from outside: ``python -m distributedlog.chaos.node serve …``.

The same command line as `dlog`; only the seam's wall clock is another one, which adds the number of
seconds that the file named by DLOG_CHAOS_CLOCK holds. Nothing else of a node knows the wall clock.
"""

import os
import runpy
import time

from ..runtime import machine

CLOCK = "DLOG_CHAOS_CLOCK"
LOOK_S = 0.05
"""The file is looked at this often at most."""


class MovedClock:
    """Wall time in ms, off by what the file says."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._looked = 0.0
        self._offset_ms = 0

    def __call__(self) -> int:
        """Now, as this node believes."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            try:
                with open(self._path) as file:
                    self._offset_ms = int(float(file.read() or 0) * 1000)
            except FileNotFoundError:
                self._offset_ms = 0
        return time.time_ns() // 1_000_000 + self._offset_ms


def main() -> None:
    """Run `dlog` with the moved clock."""
    path = os.environ.get(CLOCK)
    if path:
        assert hasattr(machine, "_wall_ms"), "the wall clock's place has moved"
        machine._wall_ms = MovedClock(path)
    runpy.run_module("distributedlog.cli.main", run_name="__main__")


if __name__ == "__main__":
    main()
