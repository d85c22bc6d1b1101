"""Records with keys and headers through write and read proxies: kept, refused as a whole, never stripped."""

from typing import Any

import pytest
import trio

from distributedlog import DLSN, KeyedRecord, LogRecord, aio, blocking, open_namespace
from distributedlog.cluster.declarations.options import READ_PROXY
from distributedlog.log.format.record_headers import KeyedContent
from distributedlog.log.model.log_state import WITH_RECORD_HEADERS, WRITER_FORMAT_PLAIN
from distributedlog.proxy.client import producer_sink
from distributedlog.proxy.client.batch_sender import BatchSender
from distributedlog.proxy.protocol import proxy_messages as wire
from distributedlog.runtime.interfaces.errors import (
    InvalidRequest,
    UnsupportedFormat,
    WriteCancelled,
)
from distributedlog.uri import format_address

from .proxy_world import ONE, World, world

NAMED = ((b"trace", b"\x00\xff"), (b"trace", b""))
KEYED: list[LogRecord] = [
    KeyedRecord(1, b"both", b"key", NAMED),
    LogRecord(2, b"plain"),
    KeyedRecord(3, b"", None, NAMED),
]


async def proxied(it: World) -> str:
    """The URI of a write and a read proxy."""
    nodes = [await it.proxy("w1"), await it.proxy("r1", READ_PROXY)]
    places = ";".join(format_address(node.address) for node in nodes)
    return f"distributedlog+proxy://{places}/default"


async def read(namespace: Any, log: str) -> list[LogRecord]:
    async with namespace.open_log(log).open_reader(to="end") as reader:
        return [record async for record in reader]


@pytest.mark.parametrize("producer", [None, "p"])
async def test_proxies_keep_keys_and_headers(producer: str | None) -> None:
    async with world() as it, open_namespace(await proxied(it)) as ns:
        await it.namespace.create_log("l", config={"record_headers": True})
        async with ns.open_log("l").open_writer(producer=producer) as writer:
            for record in KEYED:
                await writer.write(record)
            await writer.write_bulk(KEYED[2:])
            await writer.write_set([KeyedRecord(4, b"s", b"1"), LogRecord(4, b"t")])
            offsets = bytes(4) + b"\x01\x00\x00\x00"
            packed = await writer.submit_packed(
                (5).to_bytes(8, "little"), offsets, b"p", keys=[b"k"]
            )
            (last,) = await packed
            written = [*KEYED, KEYED[2], KeyedRecord(4, b"s", b"1"), LogRecord(4, b"t")]
            written.append(KeyedRecord(5, b"p", b"k"))
            if producer is not None:
                await writer.write(KeyedRecord(6, b"c", b"k", NAMED), expect=last)
                written.append(KeyedRecord(6, b"c", b"k", NAMED))
            await writer.commit()

        assert await read(ns, "l") == written
        assert await read(it.namespace, "l") == written
        state = (await ns.open_log("l").describe()).state
        assert (state.writer_format - WRITER_FORMAT_PLAIN) & WITH_RECORD_HEADERS


async def test_other_api_variants_keep_them_through_proxies_and_directly() -> None:
    async with world() as it:
        proxy_uri = await proxied(it)
        await it.namespace.set({"record_headers": True})

        def write_and_read(uri: str) -> list[LogRecord]:
            with blocking.open_namespace(uri, config=ONE if uri == it.uri else None) as namespace:
                log = namespace.open_log(f"blocking{len(uri)}")
                with log.open_writer() as writer:
                    writer.submit(KEYED[0])
                    writer.submit_bulk(KEYED[1:])
                    writer.write_set([KeyedRecord(4, b"s", b"1"), LogRecord(4, b"t")])
                    writer.write(KEYED[0])
                with log.open_reader(to="end") as reader:
                    return list(reader)

        async def write_and_read_async(uri: str) -> list[LogRecord]:
            async with aio.open_namespace(uri, config=ONE if uri == it.uri else None) as namespace:
                log = namespace.open_log(f"aio{len(uri)}")
                async with log.open_writer() as writer:
                    await writer.submit(KEYED[0])
                    await writer.write_bulk(KEYED[1:])
                    await writer.write(KeyedRecord(4, bytes(900_000), b"k", NAMED))
                async with log.open_reader(to="end") as reader:
                    return [record async for record in reader]

        import asyncio

        for uri in (it.uri, proxy_uri):
            found = await trio.to_thread.run_sync(write_and_read, uri)
            assert found == [*KEYED, KeyedRecord(4, b"s", b"1"), LogRecord(4, b"t"), KEYED[0]]
            found = await trio.to_thread.run_sync(asyncio.run, write_and_read_async(uri))
            assert found == [*KEYED, KeyedRecord(4, bytes(900_000), b"k", NAMED)]


async def test_a_log_that_does_not_permit_them_refuses_them_and_the_writer_goes_on() -> None:
    async with world() as it, open_namespace(await proxied(it)) as ns:
        await it.namespace.create_log("l", config={"record_headers": False})
        async with ns.open_log("l").open_writer() as writer:
            with pytest.raises(InvalidRequest, match="record_headers"):
                await writer.write(KEYED[0])
            bulk = await writer.submit_bulk([LogRecord(1, b"a"), KEYED[0], LogRecord(1, b"b")])
            outcomes = await bulk.outcomes()
            assert isinstance(outcomes[0], DLSN)
            assert [type(one) for one in outcomes[1:]] == [InvalidRequest, WriteCancelled]
            await writer.write(LogRecord(2, b"c"))
        assert [one.payload for one in await read(it.namespace, "l")] == [b"a", b"c"]


async def test_an_owner_refuses_the_frame_of_a_client_that_did_not_ask() -> None:
    """The frame's stream ends; other streams of the connection go on, and nothing of it is stored."""
    async with world() as it:
        await it.namespace.create_log("l", config={"record_headers": False})
        producer = await it.producer(await it.proxy("w1"))
        await producer.open(1, "l")
        await producer.open(2, "l")
        content: Any = KeyedContent(b"x", b"k", ())
        producer.link.send(wire.encode_produce(1, 0, 0, None, [content], has_keyed=True))
        refusal = await producer.refused(1)
        assert isinstance(refusal.error, InvalidRequest)
        producer.send(2, 0, b"plain")
        await producer.acked(1)
        await producer.commit(2)
        assert await it.stored("l") == [b"plain"]


async def test_a_client_refuses_them_before_an_older_proxy_receives_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as it, open_namespace(await proxied(it)) as ns:
        await it.namespace.create_log("l", config={"record_headers": True})
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            monkeypatch.setattr(producer_sink, "FEATURE_RECORD_HEADERS", 1 << 30)
            with pytest.raises(UnsupportedFormat, match="older version"):
                await writer.write(KEYED[0])
            await writer.write(KEYED[1])
            monkeypatch.undo()
            await writer.write(KEYED[0])
            await writer.commit()
            # The log has moved to an older proxy since.
            monkeypatch.setattr(producer_sink, "FEATURE_RECORD_HEADERS", 1 << 30)
            with pytest.raises(UnsupportedFormat, match="older version"):
                await writer.write(KEYED[2])
            monkeypatch.undo()
            with pytest.raises(UnsupportedFormat):
                await writer.write(KEYED[1])
            await writer.abort()
        assert await read(it.namespace, "l") == [KEYED[1], KEYED[0]]


async def test_a_frame_sender_sends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as it, open_namespace(await proxied(it)) as ns:
        await it.namespace.create_log("l", config={"record_headers": True})
        proxied_ns: Any = ns
        sender = BatchSender(proxied_ns.client, "default", "l", "p")
        deadline = trio.current_time() + 30
        await sender.open(deadline)
        contents: list[Any] = [KeyedContent(b"a", b"k", NAMED), b"b"]
        await sender.send(0, contents, txids=[1, 2], deadline=deadline)
        sender.close()
        async with it.namespace.open_log("l").open_reader() as reader:
            found = [await reader.read_next(wait_s=10) for _ in contents]
        assert found == [KeyedRecord(1, b"a", b"k", NAMED), LogRecord(2, b"b")]


@pytest.mark.parametrize("through_proxies", [False, True])
async def test_a_refused_key_cancels_no_record_of_other_calls(through_proxies: bool) -> None:
    """The buffer of the other API variants sends records of many calls together."""
    async with world() as it:
        uri = await proxied(it) if through_proxies else it.uri
        await it.namespace.create_log("l", config={"record_headers": False})

        def write() -> list[str]:
            with blocking.open_namespace(uri, config=None if through_proxies else ONE) as namespace:
                outcomes = []
                with namespace.open_log("l").open_writer() as writer:
                    plain = []
                    for _ in range(20):
                        plain.append(writer.submit(b"plain"))
                        try:
                            writer.submit(KeyedRecord(payload=b"x", key=b"k"))
                        except InvalidRequest as error:
                            outcomes.append(str(error))
                        bulk = writer.submit_bulk(
                            [LogRecord(payload=b"plain"), KeyedRecord(payload=b"x", key=b"k")]
                        )
                        plain.append(bulk[0])
                        assert isinstance(bulk[1].exception(), InvalidRequest)
                    for pending in plain:
                        pending.result()
                return outcomes

        outcomes = await trio.to_thread.run_sync(write)

        assert len(outcomes) == 20
        assert "record_headers" in outcomes[0]
        assert [one.payload for one in await read(it.namespace, "l")] == [b"plain"] * 40
