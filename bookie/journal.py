"""The journal: numbered files, one block a commit, one sync a block. The journal is the store.

The only task that writes is `Journal.run`: it takes the oldest gathered block, seals its header, writes and
syncs it, and tells the store; meanwhile the next block gathers. Files are preallocated ahead, off the hot
path, and rolled before a block that would not fit; every file begins with the state of all ledgers and a
sealed one ends in a footer of its runs. Nothing is ever overwritten, files are unlinked, never used again
(H16, H32). What fails to be written or synced ends the node: nothing was acknowledged for it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ..runtime import blocks
from ..runtime.errors import DiskFull
from ..runtime.host import Disk, File
from . import journal_blocks as jb
from .gather import GatheringBlock, GatherRing
from .options import BookieOptions
from .zero_ahead import ZeroAhead

AHEAD = 2
"""Files made ahead: the next one, and the reserve for fences and recovery adds on a full disk (H28)."""
SERVICE_BYTES = 1024 * 1024
STATE_BYTES_MAX = 512 * 1024
RETRY_SPACE_S = 1.0
PREFIX = "journal-"
FILE_NUMBER_MAX = 2**31 - 1
"""No bookie makes so many files: such a name is somebody else's."""


def file_name(number: int) -> str:
    """The name of journal file ``number``, which counts from 1."""
    return f"{PREFIX}{number:012d}"


def file_number(name: str) -> int | None:
    """The number in a journal file's name; None for a name that no bookie gives."""
    digits = name.removeprefix(PREFIX)
    if digits == name or len(digits) > 12 or not (digits.isascii() and digits.isdecimal()):
        return None
    number = int(digits)
    return number if 0 < number <= FILE_NUMBER_MAX and file_name(number) == name else None


@dataclass(frozen=True, slots=True)
class Position:
    """How far the journal is applied: the next block's sequence, and where it would begin."""

    sequence: int
    file_number: int
    offset: int
    first_sequence: int
    """Of the file's first block."""
    last_offset: int = -1
    """Where the last block before begins; -1: there is none."""


class Journal:
    """The journal of one bookie, from its opening in `start` on."""

    def __init__(
        self,
        disk: Disk,
        ring: GatherRing,
        options: BookieOptions,
        *,
        bookie_id: str,
        seed: int,
        states: Callable[[], list[bytes]],
        limbo_below: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._ring = ring
        self._options = options
        self._bookie_id = bookie_id
        self._seed = seed
        self._states = states
        self._limbo_below = limbo_below
        self._service = disk.aligned_buffer(SERVICE_BYTES)
        self._wake = trio.Event()
        self._ahead: deque[tuple[int, File]] = deque()
        self._ahead_changed = trio.Event()
        self._file: File | None = None
        self._offset = 0
        self._last_offset = -1
        self._limit = 0
        self._first_sequence = 0
        self._footer: list[bytes] = []
        self._watermark_held = False
        self.zeros = ZeroAhead(options.zero_ahead_bytes, seed)
        self.number = 0
        self.next_number = 1
        self.start_count = 0
        self.sequence = 1
        """Of the next block."""
        self.durable_to = 0
        self.sealed: dict[int, tuple[int, int]] = {}
        """Files before the current one that are still there: first and last sequence."""
        self.unproven = False
        """The last block that matters has no block behind it that says it was synced."""
        self.space_low = False
        """There was no room for another file."""
        self.last_sync_at = 0.0
        self.syncs = 0
        self.commits = 0
        self.device_bytes = 0
        self.rolls = 0

    # --- opening ----------------------------------------------------------------------------------

    async def start(
        self,
        *,
        start_count: int,
        sequence: int,
        durable_to: int,
        number: int,
        predecessor: int,
        predecessor_end: int,
        sealed: dict[int, tuple[int, int]],
    ) -> None:
        """Open a new file behind what was replayed (H4).

        Until `prove_survivors` no block says that anything behind ``durable_to`` was synced.
        """
        self.start_count = start_count
        self.sequence = sequence
        self.durable_to = durable_to
        self.sealed = sealed
        self._watermark_held = True
        file = await self._create(number)
        self.next_number = number + 1
        await self._begin_file(number, file, predecessor, predecessor_end, 0)

    def prove_survivors(self) -> None:
        """All that was replayed and not known synced has been written again and synced."""
        self._watermark_held = False
        self.durable_to = self.sequence - 1
        self.unproven = True

    async def flush(self, on_synced: Callable[[GatheringBlock, int, int], None]) -> None:
        """Commit all that has gathered; for the time before `run`."""
        while self._ring.has_work:
            await self._commit_one(on_synced)

    # --- serving ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has gathered."""
        self._wake.set()

    async def run(
        self, before_take: Callable[[], None], on_synced: Callable[[GatheringBlock, int, int], None]
    ) -> None:
        """Commit what gathers, one block and one sync at a time, until cancelled.

        ``on_synced`` gets a durable block, its file's number and what to add to a position in its buffer
        to get the place in the file. Raises `DiskFailed`.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_ahead)
            nursery.start_soon(self.zeros.run)
            while True:
                if not self._ring.has_work:
                    self._wake = trio.Event()
                    await self._wake.wait()
                    continue
                before_take()
                await self._commit_one(on_synced)
                if self._ring.has_work:  # on a loop that syncs inline nobody else had a turn
                    await trio.lowlevel.checkpoint()

    async def _commit_one(self, on_synced: Callable[[GatheringBlock, int, int], None]) -> None:
        block = self._ring.take()
        shift = 0
        if block.padded_length:
            shift = await self._write(block)
        else:
            await trio.lowlevel.checkpoint()
        self._ring.synced(block)
        self.commits += 1
        on_synced(block, self.number, shift)

    async def _write(self, block: GatheringBlock) -> int:
        length = block.padded_length
        footer = _footer_bytes(len(self._footer) + len(block.notes))
        if self._offset + length + footer + jb.TRAILER_SPACE > self._limit:
            await self._roll()
        assert self._file is not None, "started"
        view = block.buffer.view
        offset = self._offset
        blocks.header_into(
            view,
            block.start,
            kind=jb.COMMIT,
            payload_bytes=self._ring.payload_bytes(block),
            start_count=self.start_count,
            sequence=self.sequence,
            durable_to=self.durable_to,
            file_number=self.number,
            file_offset=offset,
            seed=self._seed,
        )
        self._ring.placed(block, self.number, offset)
        if not self.zeros.take(offset, offset + length):
            await self.zeros.free(offset, offset + length)
        await self._file.write_synced(offset, view[block.start : block.start + length])
        self.zeros.committed(length)
        shift = offset - block.start
        for note in block.notes:
            run = jb.Run(note.ledger.id, note.first, note.count, note.position + shift, note.length)
            self._footer.append(jb.pack_run(run))
        self._moved_on(length)
        self._written(length)
        self.unproven = bool(block.notes or block.controls)
        return shift

    def _moved_on(self, length: int) -> None:
        self._last_offset = self._offset
        self._offset += length

    def _written(self, length: int) -> None:
        if not self._watermark_held:
            self.durable_to = self.sequence
        self.sequence += 1
        self.device_bytes += length
        self.syncs += 1
        self.last_sync_at = trio.current_time()

    def position(self) -> Position:
        """Behind the last block that was written; what is not yet synced counts as not written."""
        return Position(
            self.sequence, self.number, self._offset, self._first_sequence, self._last_offset
        )

    # --- files ------------------------------------------------------------------------------------

    async def _create(self, number: int) -> File:
        return await self._disk.create(
            file_name(number), size=self._options.journal_file_bytes, direct=True
        )

    async def _keep_ahead(self) -> None:
        """Make files ahead, off the path of commits, so that a roll does not wait for it (H32)."""
        while True:
            while len(self._ahead) < AHEAD:
                number, self.next_number = self.next_number, self.next_number + 1
                try:
                    file = await self._create(number)
                except DiskFull:
                    self.space_low = True
                    self.next_number = number
                    if file_name(number) in self._disk.list():
                        await self._disk.delete(file_name(number))
                    await trio.sleep(RETRY_SPACE_S)
                    continue
                self._ahead.append((number, file))
                self.space_low = False
                self._ahead_changed.set()
                self._ahead_changed = trio.Event()
            await self._ahead_changed.wait()

    async def _take_ahead(self) -> tuple[int, File]:
        while not self._ahead:
            if self.space_low:
                raise DiskFull("no room for another journal file, and the reserve is used up")
            await self._ahead_changed.wait()
        taken = self._ahead.popleft()
        self._ahead_changed.set()
        self._ahead_changed = trio.Event()
        return taken

    async def _roll(self) -> None:
        """Begin the next file, then seal this one: what seals it proves that there is a next one (H80)."""
        assert self._file is not None, "started"
        await self.zeros.leave()
        sealing = _Sealing(
            self._file, self.number, self._offset, self._limit, self._first_sequence, self._footer
        )
        number, file = await self._take_ahead()
        self.sealed[sealing.number] = (self._first_sequence, self.sequence - 1)
        self.rolls += 1
        await self._begin_file(number, file, sealing.number, sealing.end, sealing.blocks)
        await self._seal(sealing)

    async def _begin_file(
        self, number: int, file: File, predecessor: int, end: int, sealing_blocks: int
    ) -> None:
        self.number, self._file = number, file
        self.zeros.begin(file, self._options.journal_file_bytes - jb.TRAILER_SPACE)
        self._offset = 0
        self._last_offset = -1
        self._first_sequence = self.sequence
        self._footer = []
        states = jb.state_payloads(self._states(), STATE_BYTES_MAX)
        head = jb.Head(
            self._bookie_id,
            self.start_count,
            predecessor,
            end,
            self._limbo_below(),
            tuple((file, first, last) for file, (first, last) in sorted(self.sealed.items())),
            len(states),
            sealing_blocks,
        )
        await self._write_service(jb.HEAD, head.encode())
        for payload in states:
            await self._write_service(jb.COMMIT, payload)
            # The file may grow beyond its preallocation where the states alone nearly fill it.
        room = self._offset + self._options.block_bytes_max + 16 * blocks.ALIGN
        self._limit = max(self._options.journal_file_bytes, room // blocks.ALIGN * blocks.ALIGN)

    async def _seal(self, sealing: "_Sealing") -> None:
        """Footers and trailer of a file that was left; nothing of it is being zeroed any more."""
        offset = sealing.end
        runs = sealing.footer
        for start in range(0, len(runs), jb.FOOTER_RUNS_MAX):
            payload = b"".join(runs[start : start + jb.FOOTER_RUNS_MAX])
            offset += await self._write_own(
                sealing.file, sealing.number, offset, jb.FOOTER, payload
            )
        trailer = jb.Trailer(
            sealing.end, sealing.blocks - 1, sealing.first_sequence, self.sequence - 1
        )
        offset = sealing.limit - jb.TRAILER_SPACE
        await self._write_own(sealing.file, sealing.number, offset, jb.TRAILER, trailer.encode())
        sealing.file.close()

    async def _write_service(self, kind: int, payload: bytes) -> None:
        """A block of the journal's own at the end of the current file."""
        assert self._file is not None, "started"
        await self.zeros.free(self._offset, self._offset + blocks.padded(len(payload)))
        self._moved_on(await self._write_own(self._file, self.number, self._offset, kind, payload))

    async def _write_own(
        self, file: File, number: int, offset: int, kind: int, payload: bytes
    ) -> int:
        """Write and sync a block before anything goes behind it; return its padded length."""
        start = blocks.HEADER_BYTES
        self._service[start : start + len(payload)] = payload
        length = blocks.header_into(
            self._service,
            0,
            kind=kind,
            payload_bytes=len(payload),
            start_count=self.start_count,
            sequence=self.sequence,
            durable_to=self.durable_to,
            file_number=number,
            file_offset=offset,
            seed=self._seed,
        )
        await file.write_synced(offset, self._service[:length])
        self._written(length)
        return length

    async def delete(self, *numbers: int) -> None:
        """Remove files of which nothing is needed; that they are gone is in the journal already."""
        await self._disk.delete(*map(file_name, numbers))

    def close(self) -> None:
        """Close the files that are open for writing."""
        if self._file is not None:
            self._file.close()
        for _, file in self._ahead:
            file.close()


@dataclass(frozen=True, slots=True)
class _Sealing:
    """A file that was left and is to be sealed."""

    file: File
    number: int
    end: int
    """Of its commits, bytes."""
    limit: int
    first_sequence: int
    footer: list[bytes]
    """Its runs, packed."""

    @property
    def blocks(self) -> int:
        """How many sequences it takes: the footers and the trailer."""
        return -(-len(self.footer) // jb.FOOTER_RUNS_MAX) + 1


def _footer_bytes(runs: int) -> int:
    """Space for a footer of so many runs, bytes, never too little."""
    footers = runs // jb.FOOTER_RUNS_MAX + 1
    return runs * jb.RUN_BYTES + footers * (blocks.ALIGN + blocks.HEADER_BYTES) + blocks.ALIGN
