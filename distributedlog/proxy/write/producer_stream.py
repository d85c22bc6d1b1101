"""The frames of one producer's stream at the owner of its log, and their outcomes (pure).

Frames are accepted and answered in order. The first rejected frame ends the stream, and later frames are
dropped. The rejection is sent after all earlier frames are answered, so it is the last message of the
stream.
"""

from collections import deque
from collections.abc import Callable

from ...log.format.dlsn import DLSN
from ...runtime.interfaces.errors import DistributedLogError, EndOfStream, LogNotFound, Moved
from ..protocol.proxy_messages import ACK, ACK_NO_POSITION, ACK_STORED_BEFORE, Refusal

RECORD_BYTES = 64
"""The approximate memory of a record in addition to its bytes in the frame."""


def memory_bytes(records: int, size: int) -> int:
    """Return the memory of an unanswered frame in bytes. With ``size`` 0 the frame is not in memory."""
    return size and size + RECORD_BYTES * records


def client_error(error: DistributedLogError) -> DistributedLogError:
    """Convert a writer's error for a client: the log has ended, or has to be found again."""
    return error if isinstance(error, EndOfStream | LogNotFound) else Moved(str(error))


class ProducerStream:
    """One stream of a producer. The log reports the outcome of each frame to `on_done`."""

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
        """Create the stream.

        Args:
            number: The stream's number on its connection.
            window_bytes: The maximum bytes of unanswered frames.
            ack: Sends an acknowledgement to the client.
            refuse: Sends the refusal to the client.
            on_bytes: Receives changes of the memory in use. `unanswered_bytes` counts bytes of frames
                instead.
            producer: The producer's number; 0 for a plain producer.
            next_sequence: The sequence with which the next frame must start.
        """
        self.number = number
        """The stream's number on its connection."""
        self.window_bytes = window_bytes
        self.producer = producer
        """The producer's number; 0 for a plain producer."""
        self.next_sequence = next_sequence
        """The sequence with which the next frame must start."""
        self.unanswered_bytes = 0
        """Bytes of the frames that are not answered."""
        self.unanswered: deque[tuple[int, int, int]] = deque()
        """First sequence, records and bytes of each unanswered frame, in order."""
        self.error: DistributedLogError | None = None
        """Why the stream accepts no more frames."""
        self.retry_ms = 0
        self.unknown_from = -1
        self.refused_from = -1
        self._is_withheld = self._is_reported = False
        self._ack, self._refuse, self._on_bytes = ack, refuse, on_bytes

    def accept_frame(self, first: int, records: int, size: int) -> None:
        """Add an accepted frame, which is answered later."""
        self.next_sequence = first + records
        self.unanswered.append((first, records, size))
        self.unanswered_bytes += size
        self._on_bytes(size + RECORD_BYTES * records)  # as `memory_bytes`

    def expect_answer(self, first: int, records: int) -> None:
        """Add a frame of an earlier stream of the producer, to be answered on this one."""
        self.unanswered.append((first, records, 0))

    def on_done(
        self,
        first_dlsn: DLSN | None,
        first_txid: int,
        is_duplicate: bool,
        error: DistributedLogError | None,
    ) -> None:
        """Process the outcome of the oldest unanswered frame."""
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
        """Accept no more frames. Frames from ``first`` on are certainly not stored.

        Args:
            error: The reason.
            first: The first sequence that is not stored.
            retry_ms: When the client should retry.
            withhold: Send the refusal only at `report_withheld`.
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
        """Send the withheld refusal with this error."""
        if self._is_withheld:
            self._is_withheld, self.error = False, error
            self._report_if_done()

    def drop(self) -> None:
        """Send nothing more, because the connection has ended."""
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
