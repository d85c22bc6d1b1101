"""`dlog log read`: records out, as fast as whoever reads our stdout takes them."""

import sys
from contextlib import AsyncExitStack
from typing import Any

import trio

from ...log.format.dlsn import DLSN
from ...log.format.record import Columns
from ...log.read.log_reader import LogReader
from ...runtime.interfaces.errors import EndOfStream, RequestTimeout
from ..connection.cluster_connection import namespace, notice_when_slow
from ..framework.options import Settings
from ..framework.standard_streams import write_stdout
from .record_formats import WRITERS

OUT_BYTES = 1024 * 1024


async def read_stream(
    settings: Settings,
    *,
    name: str,
    start: str,
    from_txid: int | None,
    to: str | None,
    limit: int | None,
    follow: bool,
    format_name: str,
) -> None:
    """Read and print. Raises `RequestTimeout` when the cluster gives nothing for the timeout."""
    reader_options: dict[str, Any] = {}
    if from_txid is not None:
        reader_options["txid"] = from_txid
    elif start in ("earliest", "latest"):
        reader_options["at"] = start
    else:
        reader_options["dlsn"] = DLSN.parse(start)
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
            await out.put(encode(columns))
    await out.flush()


async def _next_columns(
    settings: Settings, reader: LogReader, follow: bool, out: "_BufferedOutput"
) -> Columns | None:
    """The next entry's records; None at the end. What is printed goes out before a wait."""
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
    raise RequestTimeout(f"no record came for {settings.timeout_s:g} s, and the end is not reached")


class _BufferedOutput:
    """Gathers what is printed; writes in a thread, so that a slow reader of ours stalls no connection."""

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
