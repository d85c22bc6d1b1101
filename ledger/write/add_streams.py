"""The add streams of one window: a stream a slot, the same record to each, acks back into the window.

The hot path of an entry on the client: `send` hands one record object to every stream whose slot holds it,
and an acknowledgement is one call into the window, which counts it. No task, no time, nothing awaited: who
owns the window decides what to do about a slot that failed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Buffer
from .pending_adds import PendingAdds, SlotStream


class AddSink(Protocol):
    """What is used of a bookie's add stream (`bookie/client/bookie_client.py`)."""

    has_lac_waiters: bool
    """Does somebody wait for the ledger's LAC there?"""

    def send(self, record: Buffer) -> None:
        """Queue one record; nothing is awaited."""
        ...

    def shared_sender(self, streams: "Sequence[AddSink]") -> Callable[[Buffer], bool] | None:
        """What sends a record on all of these, or says false; None: they share nothing."""
        ...

    def shared_lac_sender(self, streams: "Sequence[AddSink]") -> Callable[[int], bool] | None:
        """As `together`, of what `send_lac` tells."""
        ...

    def send_lac(self, lac: int) -> None:
        """Tell the bookie how far the ledger is confirmed."""
        ...

    def call_when_processed(self, on_processed: Callable[[], None], timeout_s: float) -> None:
        """Call ``done`` once the bookie has processed everything that was sent on the connection so far.

        Never called if the connection ends first. The caller keeps the deadline.
        """
        ...

    def close(self) -> None:
        """Forget the stream: nothing is reported any more."""
        ...


class AddTarget(Protocol):
    """What is used of a connection to a bookie."""

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
        """Begin a stream of adds."""
        ...


def _no_op() -> None:
    """Where `acked` tells all that there is."""


@dataclass(frozen=True, slots=True)
class AddStreamListener:
    """Calls of the owner of a window, for reports of its streams."""

    on_acked: Callable[[SlotStream, int], object]
    """Counts acknowledgements of a stream, and returns whether to call `progressed`."""
    on_failed: Callable[[int, str, DistributedLogError], None]
    """Gets the slot, its bookie, and why the stream broke or the bookie refused an add."""
    on_internal_error: Callable[[Exception], None]
    """Gets what these raise in a call of a connection that is no bookie's fault."""
    on_progress: Callable[[], None] = _no_op
    """Called when all that a bookie reported together was counted."""


class SlotStreams:
    """See the module. One a `LedgerWriter`, one a recovery's write-back."""

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
        """``target`` returns the connection to a bookie, or None."""
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
        )  # every open stream was given all it holds up to this entry

    def open(self, slot: int) -> bool:
        """A new stream for ``slot``, with all that its bookie lacks. False: not connected to it.

        ``failed`` is called, maybe from within, when the stream breaks or the bookie refuses an add.
        """
        self.end(slot)
        self.send_unsent()  # so that one number says what all of them were given
        bookie = self._pending_adds.slots[slot].bookie
        connection = self._connection_of(bookie)
        if connection is None:
            return False
        stream = self._pending_adds.begin_stream(slot)

        def on_refused(position: int, error: DistributedLogError) -> None:
            if self._pending_adds.slots[slot].stream is not stream:
                return  # late: the slot has another stream, or another bookie
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
            return True  # refused from within
        self._sinks[slot] = sink
        self._update_live_sinks()
        for record in self._pending_adds.unsent(stream):
            sink.send(record)
        return True

    def is_open(self, slot: int) -> bool:
        """Has the slot a live stream?"""
        return slot in self._sinks

    @property
    def all_open(self) -> bool:
        """Has every slot a live stream?"""
        return len(self._live_sinks) == len(self._pending_adds.slots)

    def end(self, slot: int) -> None:
        """Drop the slot's stream; what it would still say counts no more."""
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
        """The next entry, to every open stream whose slot holds it."""
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
        """Every entry that was pushed and not yet sent."""
        for entry in range(self._sent_through + 1, self._pending_adds.last_entry + 1):
            record = self._pending_adds.record(entry)
            assert record is not None, "what was never sent is kept"
            self.send(entry, record)

    @property
    def has_lac_waiters(self) -> bool:
        """Does somebody wait for the LAC at one of the bookies?"""
        for sink in self._live_sinks:  # noqa: SIM110 (a generator for each confirmed entry)
            if sink.has_lac_waiters:
                return True
        return False

    def send_lac(self, lac: int, *, waiting_only: bool = False) -> None:
        """Tell the bookies of all open streams, or those at which somebody waits for it."""
        if self._send_lac_shared is not None and not waiting_only and self._send_lac_shared(lac):
            return
        for sink in self._live_sinks:
            if sink.has_lac_waiters or not waiting_only:
                sink.send_lac(lac)

    def call_when_processed(self, on_processed: Callable[[int], None], timeout_s: float) -> None:
        """Call ``done`` with each open slot whose bookie has processed everything that was sent to it."""
        for slot, sink in tuple(self._sinks.items()):
            sink.call_when_processed(partial(on_processed, slot), timeout_s)

    def end_all(self, slots: Iterable[int] | None = None) -> None:
        """Drop the streams of these slots, or of all."""
        for slot in list(self._sinks if slots is None else slots):
            self.end(slot)
