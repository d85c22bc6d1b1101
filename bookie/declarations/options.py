"""What can be set about a bookie's store."""

from dataclasses import dataclass

from ...runtime.declarations.options import KIB, MIB, check, option
from ...runtime.disk.checksummed_blocks import BLOCK_BYTES_MAX

PAGE_BYTES = 4 * KIB
BESIDE_BLOCK_BYTES = 80 * KIB
"""What a journal file holds at least beside one block of any size: its head, some control records, its end.
"""


@dataclass(frozen=True, slots=True)
class BookieOptions:
    """A bookie's settings."""

    journal_file_bytes: int = option(
        256 * MIB,
        "bytes",
        "at most: rolls stay rare at full speed; `dlog local` takes 32 MiB",
        at_least=64 * KIB,
        at_most=4096 * MIB,
        multiple_of=PAGE_BYTES,
    )
    journal_file_bytes_min: int = option(
        16 * MIB,
        "bytes",
        "the first file and those of low rates: a bookie that holds little is small",
        at_least=0,
        at_most=4096 * MIB,
        multiple_of=PAGE_BYTES,
    )
    gather_bytes: int = option(
        8 * MIB,
        "bytes",
        "one commit's block at most; an entry of 5 MiB must fit",
        at_least=64 * KIB,
        at_most=BLOCK_BYTES_MAX,
        multiple_of=PAGE_BYTES,
    )
    gather_buffers: int = option(
        4,
        "buffers",
        "a ring of 32 MiB: one is synced, one filled, one spare, and the newest bytes for tail readers",
        at_least=3,
        at_most=256,
    )
    unsynced_bytes_max: int = option(
        16 * MIB, "bytes", "beyond it connections are not read on until a sync has finished"
    )
    deferred_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "what had been received when the ring was full; beyond it TooBusy",
        at_least=0,
    )
    checkpoint_runs: int = option(50_000, "runs", "bounds the index in memory (H34)")
    checkpoint_bytes: int = option(64 * MIB, "bytes", "bounds what a start has to replay")
    checkpoint_s: float = option(5.0, "s", "bounds it for many small adds")
    zero_ahead_bytes: int = option(
        1 * MIB,
        "bytes",
        "zeros ahead of lone commits, whose sync they make cheaper; 0: none",
        at_least=0,
        at_most=1024 * MIB,
    )
    compaction_s: float = option(
        10.0,
        "s",
        "between two looks for files of which much is dead; 0: none is rewritten",
        at_least=0,
    )
    free_bytes_min: int = option(
        1024 * MIB,
        "bytes",
        "below it read-only: fences and recovery adds still need space (H28)",
        at_least=0,
    )
    reply_bytes_max: int = option(
        2 * MIB,
        "bytes",
        "of one reply, whatever was asked; a longer entry is sent alone",
        at_most=4 * MIB,
    )
    outgoing_bytes_max: int = option(
        4 * MIB,
        "bytes",
        "of a connection: above it no reply is made, so a slow reader holds nothing",
    )
    outgoing_bytes_sum_max: int = option(
        24 * MIB, "bytes", "of all connections: the fuller, the less credit each has (H16)"
    )
    cold_readers: int = option(
        2, "tasks", "enough for a device; more would only compete", at_most=256
    )
    cold_read_bytes: int = option(
        1 * MIB, "bytes", "an extent: seeks cost little compared with it", at_most=64 * MIB
    )
    ledgers_in_memory_max: int = option(
        20_000,
        "ledgers",
        "kept though nobody uses them, some 600 bytes each; others are read from the index when asked for",
        at_least=2,
    )
    scrub_s: float = option(
        14 * 24 * 3600.0,
        "s",
        "each live byte is read once in this, so that rot is found in time; 1 MiB/s at least",
        at_least=60,
    )
    reads_waiting_max: int = option(
        256, "requests", "of a connection; beyond it TooBusy", at_least=0
    )
    waiters_max: int = option(
        100_000, "requests", "long polls of a bookie; beyond it TooBusy", at_least=0
    )
    streams_max: int = option(65_536, "streams", "of a connection; beyond it TooBusy")
    trust_silence_s: float = option(
        86_400.0,
        "s",
        "where grants are required: not heard of the quorum for so long, it serves other nodes alone",
        at_least=120.0,
    )
    open_files_max: int = option(256, "files", "journal files held open for reading")

    def __post_init__(self) -> None:
        check(self)

    @property
    def block_bytes_max(self) -> int:
        """Padded length of a commit's block: it fits a gather buffer, and twice into a file."""
        return min(self.gather_bytes, self.journal_file_bytes // 2 // PAGE_BYTES * PAGE_BYTES)

    @property
    def first_file_bytes(self) -> int:
        """The smallest journal file that is made while there is room: it takes a block of any size."""
        size = min(self.journal_file_bytes_min, self.journal_file_bytes)
        return max(size, self.block_bytes_max + BESIDE_BLOCK_BYTES)
