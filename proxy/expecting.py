"""Records of a plain writer that are to come directly after another one: a stream beside its own (G10).

A stream ends with the first frame that it refuses, and here a refusal is an answer like any other. So these
records have a stream of their own, opened for the first of them, and again after each refusal; what else the
writer has goes on. One at a time: what is not answered when the log's owner is lost may be stored, and a
second one behind it could not say what it comes after.
"""

from collections.abc import Callable

import trio

from ..log.dlsn import DLSN
from ..runtime.errors import DistributedLogError, Moved, ProtocolError, WriteFailed
from ..runtime.frames import Op
from .client import OpenStream, ProxyClient
from .heard import PAUSE_S, Heard
from .wire import ACK_NO_POSITION, Ack, ProduceOpen, Refusal, about_stream, produce_frame


class ExpectingStream:
    """See the module. For any number of tasks, which take turns."""

    def __init__(
        self,
        client: ProxyClient,
        path: str,
        log: str,
        *,
        incarnation: str,
        open_s: float,
        check: Callable[[], None],
    ) -> None:
        """``open_s``: for so long it is tried to open a stream. ``check`` raises where the writer is over."""
        self._client = client
        self._path, self._log = path, log
        self._incarnation = incarnation
        self._open_s = open_s
        self._check = check
        self._stream: OpenStream | None = None
        self._heard = Heard()
        self._next = 0
        """The sequence of the stream's next record."""
        self._over = False
        self._turn = trio.Lock()

    async def append(self, expect: DLSN, payload: bytes, txid: int | None) -> DLSN:
        """Have one record stored directly after the one there, or not at all.

        Raises `WriteFailed` where it was sent and may be stored; all else says that nothing was:
        `PositionConflict`, what the record is refused for, what keeps a stream from being opened.
        """
        async with self._turn:
            while True:
                self._check()
                stream = await self._have_stream()
                try:
                    found = await self._send(stream, expect, payload, txid)
                except BaseException:
                    self._leave()  # what it will answer is nobody's any more
                    raise
                if found is not None:
                    return found

    @property
    def stream(self) -> OpenStream | None:
        """The open stream to the log's owner; None if there is none now."""
        return None if self._stream is None or self._stream.ended else self._stream

    def publish(self) -> None:
        """Make what is stored readable."""
        if self._stream is not None and not self._stream.ended:
            frame = about_stream(Op.PRODUCE_PUBLISH, self._stream.number)
            self._stream.proxy.link.send(frame)

    async def close(self) -> None:
        """Leave the stream when what is under way is answered."""
        async with self._turn:
            self._leave()

    def abort(self) -> None:
        """Wait for no answer any more. Synchronous and idempotent."""
        self._over = True
        self._leave()
        self._heard.news.set()

    def _leave(self) -> None:
        if self._stream is not None:
            if not self._stream.ended:
                self._stream.close()
            self._stream = None

    # --- streams ----------------------------------------------------------------------------------

    def _request(self, stream: int, suspect: str) -> ProduceOpen:
        return ProduceOpen(
            stream,
            self._path,
            self._log,
            self._incarnation,
            "",
            0,
            0,
            suspect=suspect,
            create=False,
        )

    async def _have_stream(self) -> OpenStream:
        stream = self._stream
        while stream is None or stream.ended:
            heard = Heard()
            deadline = trio.current_time() + self._open_s
            stream = await self._client.open_stream(
                self._request, self._path, self._log, heard.end, deadline=deadline
            )
            self._stream, self._heard, self._next = stream, heard, 0
            if self._over:
                self._leave()
                self._check()
        return stream

    async def _send(
        self, stream: OpenStream, expect: DLSN, payload: bytes, txid: int | None
    ) -> DLSN | None:
        """Where it is stored; None: it certainly is not, and is to be tried again."""
        heard, first = self._heard, self._next
        txids = None if txid is None else [txid]
        frame = produce_frame(stream.number, first, first, txids, [payload], expect=expect)
        self._next += 1
        heard.since = trio.current_time()
        stream.proxy.link.send(frame)
        while True:
            if heard.acks:
                heard.since = float("inf")
                return self._stored(stream, heard.acks.popleft(), first, expect)
            if heard.refusal is not None:
                await self._refused(heard.refusal, first, expect)
                return None
            if heard.lost is not None:
                raise self._unknown(expect, heard.lost)
            if self._over:
                raise self._unknown(expect, "the writer has ended")
            if heard.late:
                heard.late = False
                await self._ask_another(stream, expect)
            else:
                await heard.wait()

    def _stored(self, stream: OpenStream, ack: Ack, first: int, expect: DLSN) -> DLSN:
        if (ack.first, ack.records) != (first, 1) or ack.flags & ACK_NO_POSITION:
            error = ProtocolError(
                f"log {self._log}: {ack.records} records from {ack.first} on are acknowledged, waited is for "
                f"record {first}"
            )
            stream.proxy.link.close(error)
            raise self._unknown(expect, error)
        return DLSN(ack.segment, ack.entry, ack.slot)

    async def _refused(self, refusal: Refusal, first: int, expect: DLSN) -> None:
        """Raise, unless it may be tried again; then when it may."""
        self._stream = None
        error = refusal.error
        if isinstance(error, Moved):
            self._client.note_owner(self._path, self._log, error.detail)
        if first < refusal.refused_from:
            raise self._unknown(expect, error)
        if not (isinstance(error, Moved) or error.retryable):
            raise error
        await trio.sleep(max(PAUSE_S, refusal.retry_ms / 1000))

    async def _ask_another(self, stream: OpenStream, expect: DLSN) -> None:
        """The owner does not answer: raise where another one has found that it is gone, and has the log."""
        found = await self._client.probe(
            self._request, self._path, self._log, Heard().end, stream.proxy.proxy_id
        )
        if found is not None:
            found.close()
            raise self._unknown(expect, f"{stream.proxy.link.peer_address} has lost the log")

    def _unknown(self, expect: DLSN, why: DistributedLogError | str) -> WriteFailed:
        return WriteFailed(
            f'log "{self._log}": {why}; the record that was to come after {expect} was sent and may be stored'
        )
