"""Send new records of a log as server-sent events.

The ID of each event is the position of its record. A client that reconnects with it (Last-Event-ID) continues
after this record, at this gateway or another one, without gaps and duplicates.

For a client that does not read, a tail holds the data that one reader fetches ahead. The client is
disconnected after `write_s`.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from ..log.format.dlsn import DLSN
from ..log.read.log_reader import LogReader
from ..runtime.interfaces.errors import DistributedLogError, EndOfStream
from .error_responses import error_response
from .metrics import GatewayMeters
from .request_format import EVENTS, named_event, record_event
from .request_guard import Receive, Scope, Send
from .user_share import UserShare

RECONNECT_MS = 2000
"""A browser reconnects after this time to a stream that ended."""
SEND_BYTES = 64 * 1024
"""The approximate number of bytes per write."""
BATCH_RECORDS_MAX = 500
"""The number of records that are formatted together."""


class Tail:
    """The answer to a tail request, which is an ASGI application.

    It ends when the client disconnects or the log ends.
    """

    def __init__(
        self,
        reader: LogReader,
        meters: GatewayMeters,
        *,
        quiet_s: float,
        where: str,
        share: UserShare | None = None,
        by_users: bool = False,
        last: DLSN | None = None,
        end: Callable[[], Awaitable[DLSN]],
    ) -> None:
        """Create the answer, which owns ``reader`` and its place among the counted tails.

        Args:
            quiet_s: The interval of keep-alive messages in seconds.
            where: The method and path of the request, for errors.
            share: The share of the user, which counts the tail too.
            by_users: See `error_response`.
            last: The last record before the tail, if the tail starts at the end of the log. A client that is
                disconnected before the first event reconnects with it.
            end: Returns the log's last position.
        """
        self._starts_after = last
        self._get_last_dlsn = end
        self._share = share
        self._by_users = by_users
        self._reader = reader
        self._meters = meters
        self._quiet_s = quiet_s
        self._where = where

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end."""
        scope["dlog.slot"].release()  # it has no end, and is counted as a tail
        try:
            async with self._reader, trio.open_nursery() as nursery:
                nursery.start_soon(cancel_on_disconnect, receive, nursery.cancel_scope)
                await self._send_events(send)
                nursery.cancel_scope.cancel()
        finally:
            self._meters.tails -= 1
            if self._share is not None:
                self._share.end_tail()

    async def _send_events(self, send: Send) -> None:
        headers = [(b"content-type", EVENTS.encode()), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        start_id = (
            b"" if self._starts_after is None else b"id: %s\n" % str(self._starts_after).encode()
        )
        await _send_part(send, b"retry: %d\n%s\n" % (RECONNECT_MS, start_id))
        try:
            await self._send_records(send)
        except EndOfStream:
            # A browser that returns with this id receives 204, and does not return again.
            end_dlsn = None
            with suppress(DistributedLogError):
                end_dlsn = await self._get_last_dlsn()
            await _send_part(send, named_event("end", {"sealed": True}, end_dlsn))
        except DistributedLogError as error:
            _, error_body = error_response(
                error, self._where, is_write=False, by_users=self._by_users
            )
            await _send_part(send, named_event("error", error_body))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_records(self, send: Send) -> None:
        """Send the records of the reader, then raise its error."""
        reader, meters = self._reader, self._meters
        while True:
            first = await reader.read_next(wait_s=self._quiet_s)
            if first is None:
                await _send_part(send, b":\n\n")
                continue
            records = [first]
            with suppress(
                DistributedLogError
            ):  # the next read raises it again, after these records
                records += await reader.read_bulk(BATCH_RECORDS_MAX, wait_s=0)
            part = b""
            for record in records:
                part += record_event(record)
                meters.records_read += 1
                meters.bytes_read += len(record.payload)
                if len(part) >= SEND_BYTES:
                    await _send_part(send, part)
                    part = b""
            await _send_part(send, part)


async def _send_part(send: Send, data: bytes) -> None:
    if data:
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def cancel_on_disconnect(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancel a scope when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
