"""What can be set about a bookie: each with its unit, its default, and why it is that."""

from dataclasses import dataclass, field, fields
from typing import Any

from ..runtime.errors import InvalidRequest

KIB = 1024
MIB = 1024 * KIB
BESIDE_BLOCK_BYTES = 80 * KIB
"""What a journal file holds at least beside one block of any size: its head, some control records, its end.
"""


def _option(default: Any, unit: str, reason: str) -> Any:
    return field(default=default, metadata={"unit": unit, "reason": reason})


@dataclass(frozen=True, slots=True)
class BookieOptions:
    """A bookie's settings. ``fields(BookieOptions)`` carry ``unit`` and ``reason`` as metadata."""

    journal_file_bytes: int = _option(
        256 * MIB, "bytes", "at most: rolls stay rare at full speed; `dlog local` takes 32 MiB"
    )
    journal_file_bytes_min: int = _option(
        16 * MIB,
        "bytes",
        "the first file and those of low rates: a bookie that holds little is small",
    )
    gather_bytes: int = _option(
        8 * MIB, "bytes", "one commit's block at most; an entry of 5 MiB must fit"
    )
    gather_buffers: int = _option(
        4, "buffers", "a ring of 32 MiB: what is gathered, and the newest bytes for tail readers"
    )
    unsynced_bytes_max: int = _option(
        16 * MIB, "bytes", "beyond it connections are not read on until a sync has finished"
    )
    deferred_bytes_max: int = _option(
        16 * MIB, "bytes", "what had been received when the ring was full; beyond it TooBusy"
    )
    checkpoint_runs: int = _option(50_000, "runs", "bounds the index in memory (H34)")
    checkpoint_bytes: int = _option(64 * MIB, "bytes", "bounds what a start has to replay")
    checkpoint_s: float = _option(5.0, "s", "bounds it for many small adds")
    idle_watermark_s: float = _option(
        0.02, "s", "after a sync: a block that proves it, so that its rot is seen (H3, H24)"
    )
    zero_ahead_bytes: int = _option(
        1 * MIB, "bytes", "zeros ahead of lone commits, whose sync they make cheaper; 0: none"
    )
    free_bytes_min: int = _option(
        1024 * MIB, "bytes", "below it read-only: fences and recovery adds still need space (H28)"
    )
    reply_bytes_max: int = _option(
        1 * MIB, "bytes", "of one reply, whatever was asked; a longer entry goes alone"
    )
    outgoing_bytes_max: int = _option(
        4 * MIB,
        "bytes",
        "of a connection: above it no reply is made, so a slow reader holds nothing",
    )
    outgoing_bytes_sum_max: int = _option(
        24 * MIB, "bytes", "of all connections: the fuller, the less credit each has (H16)"
    )
    cold_readers: int = _option(2, "tasks", "enough for a device; more would only compete")
    cold_read_bytes: int = _option(1 * MIB, "bytes", "an extent: seeks cost little beside it")
    reads_waiting_max: int = _option(256, "requests", "of a connection; beyond it TooBusy")
    waiters_max: int = _option(100_000, "requests", "long polls of a bookie; beyond it TooBusy")
    wait_ms_max: int = _option(60_000, "ms", "a long poll that nobody waits for any more ends")
    streams_max: int = _option(65_536, "streams", "of a connection; beyond it TooBusy")
    open_files_max: int = _option(256, "files", "journal files held open for reading")

    def __post_init__(self) -> None:
        for option in fields(self):
            if getattr(self, option.name) < 0:
                raise InvalidRequest(f"{option.name} is negative")
        if self.gather_buffers < 3:
            raise InvalidRequest("gather_buffers: one is synced, one is filled, one is spare")
        if self.journal_file_bytes % 4096 or self.gather_bytes % 4096:
            raise InvalidRequest("journal_file_bytes and gather_bytes are multiples of 4096")
        if self.journal_file_bytes_min % 4096:
            raise InvalidRequest("journal_file_bytes_min is a multiple of 4096")
        if self.journal_file_bytes < 64 * KIB or self.gather_bytes < 64 * KIB:
            raise InvalidRequest("journal_file_bytes and gather_bytes are at least 64 KiB")

    @property
    def block_bytes_max(self) -> int:
        """Padded length of a commit's block: it fits a gather buffer, and twice into a file."""
        return min(self.gather_bytes, self.journal_file_bytes // 2 // 4096 * 4096)

    @property
    def first_file_bytes(self) -> int:
        """The smallest journal file that is made while there is room: it takes a block of any size."""
        size = min(self.journal_file_bytes_min, self.journal_file_bytes)
        return max(size, self.block_bytes_max + BESIDE_BLOCK_BYTES)
