"""`dlog log read`: print records as fast as the reader of stdout accepts them."""

import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import trio

from ...log.format.dlsn import DLSN
from ...log.format.record import Columns
from ...log.read.log_reader import LogReader
from ...runtime.interfaces.errors import EndOfStream, InvalidRequest, RequestTimeout
from ..connection.cluster_connection import namespace, notice_when_slow
from ..framework.options import Settings
from ..framework.standard_streams import write_stdout
from .record_formats import WRITERS, encodable_count

OUT_BYTES = 1024 * 1024


async def read_stream(
    settings: Settings,
    *,
    name: str,
    start: Mapping[str, Any],
    to: str | None,
    limit: int | None,
    follow: bool,
    format_name: str,
) -> None:
    """Read and print records.

    Args:
        settings: The common options.
        name: The log.
        start: The start, as arguments of `Log.open_reader`.
        to: The last DLSN, inclusive; None for the current end or, with ``follow``, no end.
        limit: Maximum number of records.
        follow: Whether to wait for new records.
        format_name: One of `FORMATS`.

    Raises:
        InvalidRequest: A record has a key or headers, which the format does not contain. The records before
            it are printed.
        RequestTimeout: No record arrived within the timeout, and the end is not reached.
    """
    reader_options = dict(start)
    if to is not None:
        reader_options["to"] = DLSN.parse(to)
    elif not follow:
        reader_options["to"] = "end"
    if limit == 0:
        return
    encode = WRITERS[format_name]
    out = _BufferedOutput()
    remaining = limit if limit is not None else sys.maxsize
    async with namespace(settings) as logs, AsyncExitStack() as stack:
        with notice_when_slow(settings, f"opening {name}"):
            reader = await stack.enter_async_context(
                logs.open_log(name).open_reader(**reader_options)
            )
        while remaining > 0:
            columns = await _next_columns(settings, reader, follow, out)
            if columns is None:
                break
            columns = columns.cut(0, min(columns.count, remaining))
            remaining -= columns.count
            encodable = encodable_count(format_name, columns)
            if encodable < columns.count:
                if encodable:
                    await out.put(encode(columns.cut(0, encodable)))
                await out.flush()
                origin, slot = columns.origin, columns.first_slot + encodable
                raise InvalidRequest(
                    f"record {DLSN(origin.segment, origin.entry, slot)} has a key or headers, which the "
                    f'format "{format_name}" does not contain. Use --format jsonl'
                )
            await out.put(encode(columns))
    await out.flush()


async def _next_columns(
    settings: Settings, reader: LogReader, follow: bool, out: "_BufferedOutput"
) -> Columns | None:
    """Return the records of the next entry, or None at the end. Buffered output is written before a wait."""
    try:
        columns = await reader.read_columns(wait_s=0)
        if columns is not None:
            return columns
        await out.flush()
        if follow:
            return await reader.read_columns()
        with trio.move_on_after(settings.timeout_s):
            return await reader.read_columns()
    except EndOfStream:
        return None
    raise RequestTimeout(
        f"no record arrived for {settings.timeout_s:g} s before the end of the range"
    )


class _BufferedOutput:
    """Buffers output and writes it in a thread, so that a slow reader of stdout stalls no connection."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0

    async def put(self, data: bytes) -> None:
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= OUT_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if not self._parts:
            return
        data, self._parts, self._bytes = b"".join(self._parts), [], 0
        await trio.to_thread.run_sync(write_stdout, data, abandon_on_cancel=True)
