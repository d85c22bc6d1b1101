"""A producer's stream at the owner of its log: which frames it has sent, and what is known of them (pure).

It takes frames in their order and answers them in it. The first frame that is refused ends it: whatever comes
after is dropped, and the refusal is told when all before it is answered, so it is a stream's last word.
"""

from collections import deque
from collections.abc import Callable

from ...log.format.dlsn import DLSN
from ...runtime.interfaces.errors import DistributedLogError, EndOfStream, LogNotFound, Moved
from ..protocol.proxy_messages import ACK, ACK_NO_POSITION, ACK_STORED_BEFORE, Refusal

RECORD_BYTES = 64
"""What a record takes in memory beside its bytes in the frame, about."""


def memory_bytes(records: int, size: int) -> int:
    """What a frame takes while it is not answered, bytes; ``size`` 0: it is not here."""
    return size and size + RECORD_BYTES * records


def client_error(error: DistributedLogError) -> DistributedLogError:
    """What a client learns of the end of a writer: that the log has ended, or to ask again who has it."""
    return error if isinstance(error, EndOfStream | LogNotFound) else Moved(str(error))


class ProducerStream:
    """See the module. `on_done` is what a frame of it is given to the log with."""

    __slots__ = (
        "_ack",
        "_is_reported",
        "_is_withheld",
        "_on_bytes",
        "_refuse",
        "error",
        "next_sequence",
        "number",
        "producer",
        "refused_from",
        "retry_ms",
        "unanswered",
        "unanswered_bytes",
        "unknown_from",
        "window_bytes",
    )

    def __init__(
        self,
        number: int,
        window_bytes: int,
        *,
        ack: Callable[[bytes], None],
        refuse: Callable[[int, Refusal], None],
        on_bytes: Callable[[int], None],
        producer: int = 0,
        next_sequence: int = 0,
    ) -> None:
        """``ack`` and ``refuse`` tell the peer; ``on_bytes`` hears how many bytes more are held, or fewer:
        of memory, while `held_bytes` are those of frames."""
        self.number = number
        """Of the stream, on its connection."""
        self.window_bytes = window_bytes
        self.producer = producer
        """The number of who sends; 0: a plain one."""
        self.next_sequence = next_sequence
        """The sequence that the next frame begins with."""
        self.unanswered_bytes = 0
        """Of frames that are not answered."""
        self.unanswered: deque[tuple[int, int, int]] = deque()
        """First sequence, records, bytes of each, in order."""
        self.error: DistributedLogError | None = None
        """Why it takes nothing more."""
        self.retry_ms = 0
        self.unknown_from = -1
        self.refused_from = -1
        self._is_withheld = self._is_reported = False
        self._ack, self._refuse, self._on_bytes = ack, refuse, on_bytes

    def accept_frame(self, first: int, records: int, size: int) -> None:
        """A frame was accepted: it is answered, later."""
        self.next_sequence = first + records
        self.unanswered.append((first, records, size))
        self.unanswered_bytes += size
        self._on_bytes(size + RECORD_BYTES * records)  # as `memory_bytes`

    def expect_answer(self, first: int, records: int) -> None:
        """A frame that came on an earlier stream of the producer is answered on this one."""
        self.unanswered.append((first, records, 0))

    def on_done(
        self,
        first_dlsn: DLSN | None,
        first_txid: int,
        is_duplicate: bool,
        error: DistributedLogError | None,
    ) -> None:
        """The outcome of the oldest frame that is not answered."""
        first, records, size = self.unanswered.popleft()
        if size:
            self.unanswered_bytes -= size
            self._on_bytes(-size - RECORD_BYTES * records)
        if error is None:
            segment, entry, slot = first_dlsn or (0, 0, 0)
            flags = (ACK_STORED_BEFORE if is_duplicate else 0) | (
                ACK_NO_POSITION if first_dlsn is None else 0
            )
            self._ack(
                ACK.pack(self.number, records, first, segment, entry, slot, flags, first_txid)
            )
        else:
            if self.unknown_from < 0:
                self.unknown_from = first
            if error.definite and not 0 <= self.refused_from <= first:
                self.refused_from = first
            self.error = self.error or client_error(error)
        self._report_if_done()

    def refuse(
        self, error: DistributedLogError, first: int, *, retry_ms: int = 0, withhold: bool = False
    ) -> None:
        """Take nothing more; frames from ``first`` on are certainly not stored.

        ``withhold``: it is told at `report_withheld`, not before.
        """
        if self.error is None:
            self.error, self.retry_ms, self._is_withheld = error, retry_ms, withhold
        if not 0 <= self.refused_from <= first:
            self.refused_from = first
        while self.unanswered and self.unanswered[-1][0] >= first:
            _, records, size = self.unanswered.pop()
            self.unanswered_bytes -= size
            self._on_bytes(-memory_bytes(records, size))
        self._report_if_done()

    def report_withheld(self, error: DistributedLogError) -> None:
        """Tell what was withheld, in these words."""
        if self._is_withheld:
            self._is_withheld, self.error = False, error
            self._report_if_done()

    def drop(self) -> None:
        """Nobody listens any more: what is in the log is answered to nobody."""
        self._is_reported = True
        if self.error is None:
            self.error = Moved("the connection has ended")

    def _report_if_done(self) -> None:
        if self.error is None or self._is_withheld or self._is_reported or self.unanswered:
            return
        self._is_reported = True
        refused_from = self.next_sequence if self.refused_from < 0 else self.refused_from
        unknown_from = refused_from if self.unknown_from < 0 else self.unknown_from
        self._refuse(
            self.number,
            Refusal(self.error, min(unknown_from, refused_from), refused_from, self.retry_ms),
        )
