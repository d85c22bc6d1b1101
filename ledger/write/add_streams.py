"""The add streams of one ledger: one stream per slot, with the same records, and their acknowledgements.

This is the hot path of an entry in the client. `send` passes one record object to every stream whose slot
stores it, and an acknowledgement is one call that counts it in `PendingAdds`. There is no task, timer or
await. The owner of the `PendingAdds` decides how to handle a failed slot.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Buffer
from .pending_adds import PendingAdds, SlotStream


class AddSink(Protocol):
    """The used part of a bookie's add stream (`bookie/client/bookie_client.py`)."""

    has_lac_waiters: bool
    """Whether a reader waits for the ledger's LAC at this bookie."""

    def send(self, record: Buffer) -> None:
        """Queue one record, without waiting."""
        ...

    def shared_sender(self, streams: "Sequence[AddSink]") -> Callable[[Buffer], bool] | None:
        """Return a function that sends a record on all these streams.

        The function returns False if it did not send. None means that the streams share nothing.
        """
        ...

    def shared_lac_sender(self, streams: "Sequence[AddSink]") -> Callable[[int], bool] | None:
        """Return a function that sends a LAC on all these streams, as `shared_sender`."""
        ...

    def send_lac(self, lac: int) -> None:
        """Send the LAC to the bookie."""
        ...

    def call_when_processed(self, on_processed: Callable[[], None], timeout_s: float) -> None:
        """Call ``on_processed`` when the bookie has processed everything sent on the connection so far.

        It is never called if the connection ends first. The caller enforces the time limit.
        """
        ...

    def close(self) -> None:
        """Close the stream, which then reports nothing more."""
        ...


class AddTarget(Protocol):
    """The used part of a connection to a bookie."""

    def open_stream(
        self,
        ledger: int,
        key: bytes,
        *,
        recovery: bool,
        fragment_epoch: int,
        on_acked: Callable[[int], object],
        on_refused: Callable[[int, DistributedLogError], None],
        on_progress: Callable[[], None],
        on_broken: Callable[[Exception], None],
    ) -> AddSink:
        """Open a stream of adds."""
        ...


def _no_op() -> None:
    """The default of `AddStreamListener.on_progress`."""


@dataclass(frozen=True, slots=True)
class AddStreamListener:
    """Callbacks of the owner of a `PendingAdds` for reports of its streams."""

    on_acked: Callable[[SlotStream, int], object]
    """Counts acknowledgements of a stream and returns whether to call `on_progress`."""
    on_failed: Callable[[int, str, DistributedLogError], None]
    """Receives the slot, its bookie, and why the stream failed or the bookie rejected an add."""
    on_internal_error: Callable[[Exception], None]
    """Receives exceptions of these callbacks that are not caused by a bookie."""
    on_progress: Callable[[], None] = _no_op
    """Called after all acknowledgements in one message of a bookie are counted."""


class SlotStreams:
    """The streams of one `LedgerWriter`, or of a recovery's write-back."""

    __slots__ = (
        "_connection_of",
        "_key",
        "_ledger_id",
        "_listener",
        "_live_sinks",
        "_pending_adds",
        "_recovery",
        "_send_lac_shared",
        "_send_shared",
        "_sent_through",
        "_sinks",
        "_unstriped",
    )

    def __init__(
        self,
        pending_adds: PendingAdds,
        ledger_id: int,
        key: bytes,
        *,
        recovery: bool,
        connection_of: Callable[[str], AddTarget | None],
        listener: AddStreamListener,
    ) -> None:
        """Create the streams. ``connection_of`` returns the connection to a bookie, or None."""
        self._pending_adds = pending_adds
        self._ledger_id = ledger_id
        self._key = key
        self._recovery = recovery
        self._connection_of = connection_of
        self._listener = listener
        self._unstriped = pending_adds.striping.is_unstriped
        self._sinks: dict[int, AddSink] = {}
        self._live_sinks: tuple[AddSink, ...] = ()
        self._send_shared: Callable[[Buffer], bool] | None = None
        self._send_lac_shared: Callable[[int], bool] | None = None
        self._sent_through = (
            pending_adds.last_entry
        )  # every open stream has its entries up to this one

    def open(self, slot: int) -> bool:
        """Open a stream for ``slot`` and send all that its bookie lacks.

        If the stream fails or the bookie rejects an add, ``on_failed`` is called, possibly within this
        call.

        Returns:
            False if there is no connection to the bookie.
        """
        self.end(slot)
        self.send_unsent()  # so that one number describes what all streams have sent
        bookie = self._pending_adds.slots[slot].bookie
        connection = self._connection_of(bookie)
        if connection is None:
            return False
        stream = self._pending_adds.begin_stream(slot)

        def on_refused(position: int, error: DistributedLogError) -> None:
            if self._pending_adds.slots[slot].stream is not stream:
                return  # late: the slot has another stream or another bookie
            self.end(slot)
            self._listener.on_failed(slot, bookie, error)

        sink = connection.open_stream(
            self._ledger_id,
            self._key,
            recovery=self._recovery,
            fragment_epoch=stream.epoch,
            on_acked=partial(self._listener.on_acked, stream),
            on_refused=on_refused,
            on_progress=self._listener.on_progress,
            on_broken=self._listener.on_internal_error,
        )
        if self._pending_adds.slots[slot].stream is not stream:
            return True  # rejected within the call
        self._sinks[slot] = sink
        self._update_live_sinks()
        for record in self._pending_adds.initial_records(stream):
            sink.send(record)
        return True

    def is_open(self, slot: int) -> bool:
        """Whether the slot has an open stream."""
        return slot in self._sinks

    @property
    def all_open(self) -> bool:
        """Whether every slot has an open stream."""
        return len(self._live_sinks) == len(self._pending_adds.slots)

    def end(self, slot: int) -> None:
        """Close the slot's stream and ignore its later reports."""
        stream = self._pending_adds.slots[slot].stream
        if stream is not None:
            self._pending_adds.end_stream(stream)
        sink = self._sinks.pop(slot, None)
        if sink is not None:
            self._update_live_sinks()
            sink.close()

    def _update_live_sinks(self) -> None:
        live_sinks = self._live_sinks = tuple(self._sinks[n] for n in sorted(self._sinks))
        self._send_shared = (
            live_sinks[0].shared_sender(live_sinks) if live_sinks and self._unstriped else None
        )
        self._send_lac_shared = live_sinks[0].shared_lac_sender(live_sinks) if live_sinks else None

    def send(self, entry: int, record: Buffer) -> None:
        """Send the next entry on every open stream whose slot stores it."""
        self._sent_through = entry
        if self._unstriped:
            if self._send_shared is not None and self._send_shared(record):
                return
            for sink in self._live_sinks:
                sink.send(record)
            return
        for slot in self._pending_adds.striping.write_set(entry):
            if slot in self._sinks:
                self._sinks[slot].send(record)

    def send_unsent(self) -> None:
        """Send every entry that was added and not yet sent."""
        for entry in range(self._sent_through + 1, self._pending_adds.last_entry + 1):
            record = self._pending_adds.record(entry)
            assert record is not None, "an unsent entry is kept"
            self.send(entry, record)

    @property
    def has_lac_waiters(self) -> bool:
        """Whether a reader waits for the LAC at one of the bookies."""
        for sink in self._live_sinks:  # noqa: SIM110 (a generator for each confirmed entry)
            if sink.has_lac_waiters:
                return True
        return False

    def send_lac(self, lac: int, *, waiting_only: bool = False) -> None:
        """Send the LAC on all open streams, or only to bookies at which a reader waits for it."""
        if self._send_lac_shared is not None and not waiting_only and self._send_lac_shared(lac):
            return
        for sink in self._live_sinks:
            if sink.has_lac_waiters or not waiting_only:
                sink.send_lac(lac)

    def call_when_processed(self, on_processed: Callable[[int], None], timeout_s: float) -> None:
        """Call ``on_processed`` with each open slot when its bookie has processed everything sent to it."""
        for slot, sink in tuple(self._sinks.items()):
            sink.call_when_processed(partial(on_processed, slot), timeout_s)

    def end_all(self, slots: Iterable[int] | None = None) -> None:
        """Close the streams of these slots, or all of them."""
        for slot in list(self._sinks if slots is None else slots):
            self.end(slot)
