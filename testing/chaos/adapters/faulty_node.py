"""A node whose wall clock and memory can be wrong.

It is started as ``python -m distributedlog.testing.chaos.adapters.faulty_node serve …``, with the command
line of `dlog`. The wall clock of the platform layer adds the number of seconds in the file named by
DLOG_CHAOS_CLOCK. No other part of a node reads the wall clock. If the file named by DLOG_CHAOS_MEMORY exists,
a metadata node stores one name of a log with a flipped bit, and deletes the file (H105).
"""

import os
import runpy
import time
from pathlib import Path
from typing import Any

from ....metadata.state.kv_state import VALUE_HEADER, KeyValueState
from ....runtime import machine

CLOCK = "DLOG_CHAOS_CLOCK"
MEMORY = "DLOG_CHAOS_MEMORY"
CHECK_INTERVAL_S = 0.05
"""The file is read at most this often."""


class MovedClock:
    """Wall time in ms, with the offset in a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read_at = 0.0
        self._offset_ms = 0

    def __call__(self) -> int:
        """Return the node's wrong time."""
        now = time.monotonic()
        if now - self._read_at >= CHECK_INTERVAL_S:
            self._read_at = now
            try:
                with open(self._path) as file:
                    self._offset_ms = int(float(file.read() or 0) * 1000)
            except FileNotFoundError:
                self._offset_ms = 0
        return time.time_ns() // 1_000_000 + self._offset_ms


def flip_when_told(trigger_file: Path) -> None:
    """Flip a bit in the next log name that a state stores, once, as soon as ``trigger_file`` exists."""
    assert hasattr(KeyValueState, "_set_stored"), "values are entered elsewhere"
    original_enter = KeyValueState._set_stored

    def flipped(self: Any, key: bytes, lease_id: int, stored: bytes) -> None:
        # A name is never written again. Other values are, which would correct them soon.
        if key.startswith(b"name/") and len(stored) > VALUE_HEADER.size and trigger_file.exists():
            trigger_file.unlink()
            stored = stored[:-1] + bytes([stored[-1] ^ 1])
        original_enter(self, key, lease_id, stored)

    KeyValueState._set_stored = flipped  # type: ignore[method-assign]


def main() -> None:
    """Run `dlog` with the wrong clock and memory."""
    path = os.environ.get(CLOCK)
    if path:
        assert hasattr(machine, "_clock_ms"), "the wall clock's place has moved"
        machine._clock_ms = MovedClock(path)
    if trigger_path := os.environ.get(MEMORY):
        flip_when_told(Path(trigger_path))
    runpy.run_module("distributedlog.cli.main", run_name="__main__")


if __name__ == "__main__":
    main()
