"""Pages of records: the last ones across segments, searches, keys and headers."""

from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog import KeyedRecord
from distributedlog.console.record_browser import (
    HEADERS_SHOWN,
    KEY_SHOWN,
    RECORDS_MAX,
    RecordBrowser,
)
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.interfaces.errors import InvalidRequest, LogTruncated
from tests.log.conftest import World
from tests.log.read.test_log_view import fill


@asynccontextmanager
async def _namespace() -> AsyncIterator[Namespace]:
    async with trio.open_nursery() as nursery:
        async with World(nursery).process() as namespace:
            yield namespace
        nursery.cancel_scope.cancel()


async def _page(namespace: Namespace, start: str, at: str = "") -> dict[str, Any]:
    return await RecordBrowser(namespace, payloads=True).page("l", {"from": start, "at": at})


def _txids(page: dict[str, Any]) -> list[int]:
    return [int(row["txid"]) for row in page["records"]]


@pytest.mark.parametrize("has_writer", [False, True])
@pytest.mark.parametrize(
    "segments",
    [
        [[5_000], [10]],
        [[30], [30], [30], [], [30], []],
        [[7, 90], [1, 1, 1]],
        [[40]],
        [[200]],
        [[]],
    ],
)
async def test_the_last_records_cross_the_edges_of_segments(
    autojump_clock: MockClock, segments: list[list[int]], has_writer: bool
) -> None:
    """The page began in the last segment: 10 of 5,010 records were shown as all up to the end."""
    async with _namespace() as namespace, AsyncExitStack() as stack:
        await fill(namespace, *segments)
        total = sum(map(sum, segments))
        if has_writer:
            writer = await stack.enter_async_context(namespace.open_log("l").open_writer())
            await writer.write_bulk([KeyedRecord(total, b"x"), KeyedRecord(total + 1, b"x")])
            await writer.commit()
            total += 2
        page = await _page(namespace, "last")

        assert _txids(page) == list(range(max(0, total - RECORDS_MAX), total))
        assert page["ended"]


async def test_the_last_records_begin_after_the_truncation_point(autojump_clock: MockClock) -> None:
    async with _namespace() as namespace:
        await fill(namespace, [30], [30], [30])
        await namespace.open_log("l").truncate(DLSN(2, 0, 5))
        page = await _page(namespace, "last")

        assert (_txids(page)[0], page["ended"]) == (35, True)
        with pytest.raises(LogTruncated):
            await _page(namespace, "dlsn", "1.0.0")
        assert _txids(await _page(namespace, "sequence", "0"))[0] == 35


@pytest.mark.parametrize(
    ("start", "at", "first"),
    [
        ("txid", "45", 45),
        ("dlsn", "3.0.7", 67),
        ("sequence", "59", 59),
        ("sequence", "60", 60),
        ("time", "0", 0),
        ("txid", "500", None),
        ("sequence", "500", None),
        ("time", "9999999999999", None),
        ("dlsn", "9.0.0", None),
    ],
)
async def test_search_by_txid_time_position_and_number(
    autojump_clock: MockClock, start: str, at: str, first: int | None
) -> None:
    async with _namespace() as namespace:
        await fill(namespace, [30], [30], [30])
        page = await _page(namespace, start, at)

        assert _txids(page)[:1] == ([] if first is None else [first])
        assert page["ended"]


@pytest.mark.parametrize(("start", "at"), [("sequence", "-1"), ("sequence", "²"), ("x", "")])
async def test_a_position_that_is_none_is_refused(
    autojump_clock: MockClock, start: str, at: str
) -> None:
    async with _namespace() as namespace:
        await fill(namespace, [1])
        with pytest.raises(InvalidRequest):
            await _page(namespace, start, at)


async def test_keys_and_headers_are_shown_with_limits_and_hidden_with_payloads(
    autojump_clock: MockClock,
) -> None:
    headers = [(b"source", b"<b>shop</b>"), *[(b"n", b"v" * 999)] * 20]
    async with _namespace() as namespace:
        await namespace.create_log("l", config={"record_headers": True})
        async with namespace.open_log("l").open_writer() as writer:
            await writer.write(KeyedRecord(1, b"a", b"k" * 999, headers))
            await writer.write(KeyedRecord(2, b"b", b""))
            await writer.write(KeyedRecord(3, b"c"))
        first, second, third = (await _page(namespace, "first"))["records"]

        assert (len(b64decode(first["key"])), first["key_bytes"]) == (KEY_SHOWN, 999)
        name, value, size = first["headers"][0]
        assert (b64decode(name), b64decode(value), size) == (b"source", b"<b>shop</b>", 11)
        assert (len(first["headers"]), first["headers_left_out"]) == (HEADERS_SHOWN, 5)
        assert (second["key"], second["key_bytes"], "headers" in second) == ("", 0, False)
        assert "key" not in third
        hidden = await RecordBrowser(namespace, payloads=False).page("l", {"from": "first"})
        assert not {"payload", "key", "headers"} & set().union(*hidden["records"])
