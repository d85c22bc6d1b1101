"""The options of a bookie's store."""

from dataclasses import dataclass

from ...runtime.declarations.options import KIB, MIB, check, option
from ...runtime.disk.checksummed_blocks import BLOCK_BYTES_MAX

PAGE_BYTES = 4 * KIB
FILE_OVERHEAD_BYTES = 80 * KIB
"""The minimum space in a journal file in addition to one block: for its head, some control records and its
end."""


@dataclass(frozen=True, slots=True)
class BookieOptions:
    """A bookie's settings."""

    journal_file_bytes: int = option(
        256 * MIB,
        "bytes",
        "maximum size of a journal file; large files keep rolls rare. `dlog local` uses 32 MiB",
        at_least=64 * KIB,
        at_most=4096 * MIB,
        multiple_of=PAGE_BYTES,
    )
    journal_file_bytes_min: int = option(
        16 * MIB,
        "bytes",
        "size of the first file and of files at low rates, so that small bookies use little space",
        at_least=0,
        at_most=4096 * MIB,
        multiple_of=PAGE_BYTES,
    )
    gather_bytes: int = option(
        8 * MIB,
        "bytes",
        "maximum block size of one commit; an entry of 5 MiB must fit",
        at_least=64 * KIB,
        at_most=BLOCK_BYTES_MAX,
        multiple_of=PAGE_BYTES,
    )
    gather_buffers: int = option(
        4,
        "buffers",
        "ring of commit buffers: one in sync, one being filled, one spare, one with recent "
        "data for tail readers",
        at_least=3,
        at_most=256,
    )
    unsynced_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "with more unsynced data, the bookie stops reading from connections until a sync completes",
    )
    deferred_bytes_max: int = option(
        16 * MIB,
        "bytes",
        "adds received while the ring is full; further adds get `TooBusy`",
        at_least=0,
    )
    checkpoint_runs: int = option(
        50_000, "runs", "checkpoint after this number of extents; limits the index in memory"
    )
    checkpoint_bytes: int = option(
        64 * MIB, "bytes", "checkpoint after this amount of data; limits the replay at startup"
    )
    checkpoint_s: float = option(
        5.0, "s", "checkpoint after this time; limits the replay after many small adds"
    )
    zero_ahead_bytes: int = option(
        1 * MIB,
        "bytes",
        "preallocated zeroed blocks for unbatched commits, which makes their syncs cheaper (0: "
        "none)",
        at_least=0,
        at_most=1024 * MIB,
    )
    compaction_s: float = option(
        10.0,
        "s",
        "interval between two checks for mostly deleted files (0: no compaction)",
        at_least=0,
    )
    free_bytes_min: int = option(
        1024 * MIB,
        "bytes",
        "with less free space the bookie is read-only; fences and recovery adds still need space",
        at_least=0,
    )
    reply_bytes_max: int = option(
        2 * MIB,
        "bytes",
        "maximum size of one reply; a longer entry is sent alone",
        at_most=4 * MIB,
    )
    outgoing_bytes_max: int = option(
        4 * MIB,
        "bytes",
        "unsent replies per connection; at the limit, the bookie prepares no further reply",
    )
    outgoing_bytes_sum_max: int = option(
        24 * MIB,
        "bytes",
        "unsent replies over all connections; the fuller the buffer, the lower the credit per "
        "connection",
    )
    cold_readers: int = option(
        2, "tasks", "concurrent reads from disk; more would compete for one device", at_most=256
    )
    cold_read_bytes: int = option(
        1 * MIB,
        "bytes",
        "size of one read from disk; large reads make seek time negligible",
        at_most=64 * MIB,
    )
    ledgers_in_memory_max: int = option(
        20_000,
        "ledgers",
        "inactive ledgers cached in memory, about 600 bytes each; others are read from the "
        "index on demand",
        at_least=2,
    )
    scrub_s: float = option(
        14 * 24 * 3600.0,
        "s",
        "the scrub reads all live data once in this time, at 1 MiB/s or more",
        at_least=60,
    )
    reads_waiting_max: int = option(
        256, "requests", "pending reads per connection; further reads get `TooBusy`", at_least=0
    )
    waiters_max: int = option(
        100_000,
        "requests",
        "pending long polls of the bookie; further ones get `TooBusy`",
        at_least=0,
    )
    streams_max: int = option(
        65_536, "streams", "streams per connection; further ones get `TooBusy`"
    )
    trust_silence_s: float = option(
        86_400.0,
        "s",
        "in mode `enforce`, a bookie without contact to the quorum for this time serves only "
        "other nodes",
        at_least=120.0,
    )
    open_files_max: int = option(256, "files", "journal files kept open for reads")

    def __post_init__(self) -> None:
        check(self)

    @property
    def block_bytes_max(self) -> int:
        """The maximum padded length of a commit's block.

        A collection buffer holds one, and a file at least two.
        """
        return min(self.gather_bytes, self.journal_file_bytes // 2 // PAGE_BYTES * PAGE_BYTES)

    @property
    def first_file_bytes(self) -> int:
        """The size of the smallest journal file, which has space for a block of any size.

        Used while there is space.
        """
        size = min(self.journal_file_bytes_min, self.journal_file_bytes)
        return max(size, self.block_bytes_max + FILE_OVERHEAD_BYTES)
