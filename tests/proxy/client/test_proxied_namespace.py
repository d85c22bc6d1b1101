"""The same classes behind proxies: writers that find the owner, go where it goes, and say what is unknown."""

from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel

from distributedlog import DLSN, LogRecord, open_namespace
from distributedlog.cluster.status.proxy_overview import (
    drain_proxy,
    hosted_logs,
    move_log,
    proxy_rows,
)
from distributedlog.log.log import Log
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.proxy.client.proxied_namespace import ProxiedNamespace
from distributedlog.proxy.client.proxy_client import ProxyClient
from distributedlog.proxy.protocol.proxy_messages import ProduceOpen
from distributedlog.proxy.session import log_calls
from distributedlog.proxy.write.hosted_log import HostedLog
from distributedlog.proxy.write.log_manager import LogManager
from distributedlog.proxy.write.produce_session import ProduceSession
from distributedlog.runtime.declarations.options import KIB
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    EndOfStream,
    InvalidRequest,
    LogExists,
    LogNotFound,
    Moved,
    OwnershipAcquireFailed,
    PositionConflict,
    QuorumUnreachable,
    TransactionIdOutOfOrder,
    WriteFailed,
)
from distributedlog.runtime.protocol.frames import CONTROL_BYTES_MAX, pack
from distributedlog.uri import format_address

from ..proxy_world import world


def uri_of(*addresses: tuple[str, int]) -> str:
    return f"distributedlog+proxy://{';'.join(map(format_address, addresses))}/default"


async def test_where_no_proxy_answers_it_is_said_which_were_asked() -> None:
    """As one error, and no group of errors that its caller does not look for."""
    with pytest.raises(QuorumUnreachable, match=r"127\.0\.0\.1:1"):
        async with open_namespace(uri_of(("127.0.0.1", 1)), config={"metadata_timeout_s": 0.1}):
            pass


async def test_a_namespace_behind_proxies_is_one_like_any_other() -> None:
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            await namespace.create_log("orders", txids="count")
            with pytest.raises(LogExists):
                await namespace.create_log("orders")
            assert await namespace.log_exists("orders")
            assert [name async for name in namespace.logs()] == ["orders"]
            log = namespace.open_log("orders")
            with pytest.raises(InvalidRequest, match="stored with a log"):
                namespace.open_log("orders", config={"ack_quorum": 1})

            async with log.open_writer() as writer, log.open_writer() as other:
                assert await writer.write(b"first") == DLSN(1, 0, 0)
                pending = [await writer.submit(b"%d" % n) for n in range(100)]
                bulk = await other.submit_bulk([b"others"] * 50)
                await writer.commit()
                await other.commit()
                dlsns = [one.result() for one in pending]
                assert sorted(dlsns) == dlsns
                assert len({*dlsns, *bulk.result()}) == 150

            stored = await it.stored("orders")
            assert [one for one in stored if one != b"others"][1:] == [
                b"%d" % n for n in range(100)
            ]
            assert stored.count(b"others") == 50
            assert (await log.describe()).last_dlsn == await log.last_dlsn()
            assert await log.count() == 151
            assert await log.truncate(dlsns[50]) == dlsns[50]
            assert (await log.set({"codec": "lz4"})).settings == {"codec": "lz4"}
            with pytest.raises(InvalidRequest, match="distributedlog://"):
                await log.snapshot()
            with pytest.raises(LogNotFound):
                await namespace.open_log("none", config={"create_if_missing": False}).open_writer()
            assert await log.seal()
            with pytest.raises(EndOfStream):
                await log.open_writer()
            await namespace.delete_log("orders")


async def test_the_first_records_of_several_tasks_are_taken() -> None:
    async with world() as it:
        node = await it.proxy("w1")
        async with (
            open_namespace(uri_of(node.address)) as namespace,
            namespace.open_log("orders").open_writer() as writer,
            trio.open_nursery() as nursery,
        ):
            for payload in (b"x", b"y", b"z"):
                nursery.start_soon(writer.write, payload)
        assert sorted(await it.stored("orders")) == [b"x", b"y", b"z"]


async def read_sets(log: Log) -> list[list[tuple[int, bytes]]]:
    """Txid and payload of each record, set by set."""
    found = []
    async with log.open_reader(to="end") as reader:
        while one := await reader.read_set():
            found.append([(record.txid, bytes(record.payload)) for record in one])
    return found


@pytest.mark.parametrize("producer", [None, "p"])
async def test_sets_are_there_whole_in_one_entry(producer: str | None) -> None:
    """Two producers' sets, and single records between them, given to the owner in frames of many."""
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            await namespace.create_log("counted", txids="count")
            log = namespace.open_log("counted")
            async with log.open_writer(producer=producer) as one, log.open_writer() as other:
                await one.submit(b"a")
                pending = await one.submit_set([b"b", b"c", b"d"])
                await one.submit(b"e")
                await one.submit_set([b"f"])
                await other.submit_set([b"1", b"2"])
                await one.commit()
                assert len({dlsn[:2] for dlsn in await pending}) == 1
                await other.commit()
            given = namespace.open_log("given")
            async with given.open_writer(producer=producer) as one:
                await one.write_set([LogRecord(7, b"x"), LogRecord(7, b"y")])
                with pytest.raises(InvalidRequest, match="the same txid"):
                    await one.submit_set([LogRecord(8, b"x"), LogRecord(9, b"y")])
            await namespace.create_log("stream", txids="bytes")
            async with namespace.open_log("stream").open_writer(producer=producer) as one:
                with pytest.raises(InvalidRequest, match="no record sets"):
                    await one.submit_set([b"x", b"y"])
                await one.write(b"goes on")

        sets = await read_sets(it.namespace.open_log("counted"))
        assert [[payload for _, payload in one] for one in sets if one[0][1] != b"1"] == [
            [b"a"],
            [b"b", b"c", b"d"],
            [b"e"],
            [b"f"],
        ]
        assert [b"1", b"2"] in [[payload for _, payload in one] for one in sets]
        assert [{txid for txid, _ in one} for one in sets] == [{n} for n in range(5)]
        assert await read_sets(it.namespace.open_log("given")) == [[(7, b"x"), (7, b"y")]]


async def test_a_strict_log_is_strict_at_the_owner() -> None:
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            await namespace.create_log("strict", txids="strict")
            log = namespace.open_log("strict")
            async with log.open_writer() as one, log.open_writer() as other:
                await one.write(LogRecord(10, b"ten"))
                await other.write(LogRecord(20, b"twenty"))
                late = await one.submit(LogRecord(15, b"too late"))
                with pytest.raises(WriteFailed):
                    await late
                with pytest.raises(TransactionIdOutOfOrder):
                    await one.write(LogRecord(30, b"the first error sticks"))
                await one.abort()
                await other.write(LogRecord(30, b"thirty"))
        assert await it.stored("strict") == [b"ten", b"twenty", b"thirty"]


async def test_writers_of_one_log_mix_given_txids_and_none() -> None:
    """An entry's records go to the owner with txids, or without; the owner fills them in, and notes what goes
    back."""
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            log = namespace.open_log("mixed")
            async with log.open_writer() as one, log.open_writer(producer="p") as other:
                pending = []
                for n in range(20):
                    pending.append(await one.submit(LogRecord(n, b"given")))
                    pending.append(await one.submit(b"filled"))
                    pending.append(await other.submit(b"filled"))
                    pending.append(await other.submit(LogRecord(n, b"given")))
                bulk = await one.submit_columns([5, None, 6], [b"given", b"filled", b"given"])
                for write in pending:
                    await write
                await bulk
                newest = [last for last in (await one.commit(), await other.commit()) if last]
                await other.write(b"filled", expect=max(newest))
            assert await log.find(txid=19) is not None
        async with it.namespace.open_log("mixed").open_reader(to="end") as reader:
            found = [(record.txid, record.payload) async for record in reader]
        assert sorted(txid for txid, payload in found if payload == b"given") == sorted(
            [*range(20), *range(20), 5, 6]
        )
        filled = [txid for txid, payload in found if payload == b"filled"]
        assert len(filled) == 42
        assert min(filled) > 1_600_000_000_000
        assert filled == sorted(set(filled))


async def test_a_writer_that_fills_its_window_goes_on() -> None:
    """H185: who has room left sends one frame more, of any size, and keeps its connection."""
    async with world() as it:
        node = await it.proxy("w1", window_bytes=64 * KIB)
        async with (
            open_namespace(uri_of(node.address)) as namespace,
            namespace.open_log("orders").open_writer() as writer,
        ):
            for _ in range(20):
                await writer.submit(bytes(40 * KIB))
                await writer.flush()
            await writer.commit()

        assert len(await it.stored("orders")) == 20


async def test_a_writer_goes_where_its_log_goes() -> None:
    """Scenarios 29 and 30: a plain producer sees a healthy move, and a drain, as a pause."""
    async with world() as it:
        nodes = {name: await it.proxy(name) for name in ("w1", "w2", "w3")}
        addresses = [node.address for node in nodes.values()]
        written: list[bytes] = []
        send, told = trio.open_memory_channel[int](100_000)

        async with open_namespace(uri_of(*addresses)) as namespace, trio.open_nursery() as nursery:
            stop = trio.Event()

            async def write() -> None:
                async with namespace.open_log("orders").open_writer() as writer:
                    while not stop.is_set():
                        written.append(b"%d" % len(written))
                        await writer.write(written[-1])
                        send.send_nowait(len(written))

            async def twenty_more() -> None:
                until = len(written) + 20
                while await told.receive() < until:
                    pass

            nursery.start_soon(write)
            for name in ("w1", "w2"):
                await twenty_more()
                it.scopes[name].cancel()
            await twenty_more()
            stop.set()

        assert await it.stored("orders") == written


async def test_a_stream_that_is_refused_as_it_opens_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log moves at that moment: the refusal is there before the writer has looked at the answer."""
    join, left = ProduceSession._add_stream, 0

    def join_and_refuse(self: ProduceSession, ident: int, request: ProduceOpen, *more: Any) -> None:
        nonlocal left
        join(self, ident, request, *more)
        if left:
            left -= 1
            stream, _ = self._streams[request.stream]
            stream.refuse(Moved("it moves"), stream.next_sequence)

    monkeypatch.setattr(ProduceSession, "_add_stream", join_and_refuse)
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            for producer in (None, "source"):
                left = 2
                with trio.fail_after(20):
                    async with namespace.open_log("orders").open_writer(producer=producer) as one:
                        await one.write(b"x")
                assert not left
        assert await it.stored("orders") == [b"x", b"x"]


async def test_an_opening_that_nobody_waits_for_leaves_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a proxy gives to streams is bounded: nothing of it stays with one whose answer came too late."""
    take, go, owners = LogManager.find_or_open, trio.Event(), list[LogManager]()

    async def take_late(self: LogManager, request: ProduceOpen) -> HostedLog:
        owners.append(self)
        await go.wait()
        return await take(self, request)

    monkeypatch.setattr(LogManager, "find_or_open", take_late)
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            log = namespace.open_log("orders")
            with trio.move_on_after(1):
                await log.open_writer()
            assert len(owners) == 1
            go.set()
            async with log.open_writer() as one:
                await one.write(b"x")
                assert owners[0].stats.streams == 1


async def test_what_is_not_known_is_said() -> None:
    """G7: the connection breaks under a plain writer's frames, and its writer ends with that."""
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            writer = await namespace.open_log("orders").open_writer()
            await writer.write(b"first")
            assert isinstance(namespace, ProxiedNamespace)
            client = namespace.client
            broken(client)
            assert await writer.write(b"nothing was on its way") is not None
            pending = await writer.submit(b"perhaps")
            await writer.flush()
            broken(client)

            with pytest.raises(WriteFailed, match="may be stored"):
                await pending
            with pytest.raises(WriteFailed):
                await writer.write(b"no more")
            await writer.abort()


def broken(client: ProxyClient) -> None:
    for proxy in client._links.values():
        proxy.link.close(ConnectionLost("the test wants it"))


async def test_of_counters_by_compare_and_append_no_step_is_lost() -> None:
    """G10, H75: tasks of two writers, other records between, the log moved and its connections broken."""
    async with world() as it:
        nodes = [await it.proxy(name) for name in ("w1", "w2")]
        metadata = it.namespace.metadata
        assert isinstance(metadata, MetadataClient)
        won: dict[DLSN, int] = {}

        async with open_namespace(uri_of(*(one.address for one in nodes))) as namespace:
            log = namespace.open_log("counter")

            async def count(writer: LogWriter) -> None:
                last, value = DLSN.NONE, 0
                while len(won) < 60:
                    try:
                        last = await writer.write(b"%d" % (value + 1), expect=last)
                    except PositionConflict as error:
                        last = DLSN.parse(error.last)
                        async with it.namespace.open_log("counter").open_reader(dlsn=last) as one:
                            found = await one.read_next()
                        assert found is not None
                        value = int(found.payload)
                    else:
                        value += 1
                        won[last] = value

            async with (
                trio.open_nursery() as nursery,
                log.open_writer(producer="one") as one,
                log.open_writer(producer="other") as other,
            ):
                async with trio.open_nursery() as counting:
                    for writer in (one, one, one, other):
                        counting.start_soon(count, writer)
                    for _ in range(3):
                        before = len(won)
                        while len(won) < before + 8:  # noqa: ASYNC110
                            await trio.sleep(0.005)
                        [row] = await hosted_logs(metadata)
                        target = {"w1": "w2", "w2": "w1"}[row["proxy"]]
                        await move_log(metadata, "default", "counter", target)
                        assert isinstance(namespace, ProxiedNamespace)
                        broken(namespace.client)
                nursery.cancel_scope.cancel()

        assert [value for _, value in sorted(won.items())] == list(range(1, len(won) + 1))
        assert await it.stored("counter") == [b"%d" % n for n in range(1, len(won) + 1)]


async def test_conditional_append_of_a_producer_continues_over_a_lost_connection() -> None:
    """G9, G10: the frame is sent again on the next connection, and is stored once."""
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            assert isinstance(namespace, ProxiedNamespace)
            client = namespace.client
            async with namespace.open_log("orders").open_writer(producer="p") as writer:
                last = await writer.write(b"0", expect=DLSN.NONE)
                broken(client)
                last = await writer.write(b"1", expect=last)
                found: list[DLSN] = []

                async def write() -> None:
                    found.append(await writer.write(b"2", expect=last))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(write)
                    sink: Any = writer.send_queue.sink
                    while not sink._unacked:
                        await trio.lowlevel.checkpoint()
                    broken(client)
                assert found[0] > last
                assert await writer.write(b"3") > found[0]
        assert await it.stored("orders") == [b"0", b"1", b"2", b"3"]


async def test_cancelled_conditional_append_is_answered_before_the_next_record() -> None:
    """H63: its answer is not taken for the answer to a later record."""
    async with world() as it:
        node = await it.proxy("w1")
        async with (
            open_namespace(uri_of(node.address)) as namespace,
            namespace.open_log("orders").open_writer(producer="p") as writer,
        ):
            last = await writer.write(b"0", expect=DLSN.NONE)
            sink: Any = writer.send_queue.sink
            for number in range(1, 4):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partial(writer.write, b"cancelled", expect=last))
                    while not sink._unacked:
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
                while True:
                    try:
                        last = await writer.write(b"%d" % number, expect=last)
                        break
                    except PositionConflict as conflict:
                        last = DLSN.parse(conflict.last)
        stored = [one for one in await it.stored("orders") if one != b"cancelled"]
        assert stored == [b"0", b"1", b"2", b"3"]


async def test_conditional_append_through_proxies_requires_a_producer() -> None:
    async with world() as it:
        node = await it.proxy("w1")
        async with (
            open_namespace(uri_of(node.address)) as namespace,
            namespace.open_log("orders").open_writer() as writer,
        ):
            with pytest.raises(InvalidRequest, match="producer="):
                await writer.write(b"x", expect=DLSN.NONE)
            await writer.write(b"goes on")
        assert await it.stored("orders") == [b"goes on"]


async def test_a_producer_behind_proxies_makes_no_frames_by_hand() -> None:
    async with world() as it:
        node = await it.proxy("w1")
        async with (
            open_namespace(uri_of(node.address)) as namespace,
            namespace.open_log("orders").open_writer(producer="p") as writer,
        ):
            for wrong in (
                writer.write_frame(0, [b"x"], expect=DLSN.NONE),
                writer.write_frame(0, [b"x"]),
            ):
                with pytest.raises(InvalidRequest, match="prox"):
                    await wrong
            await writer.write(b"goes on")
        assert await it.stored("orders") == [b"goes on"]


async def test_a_log_is_moved_and_a_proxy_drained_by_hand() -> None:
    """What `dlog proxy` does: its producers see a pause."""
    async with world() as it:
        first, second = await it.proxy("w1"), await it.proxy("w2")
        metadata = it.namespace.metadata
        assert isinstance(metadata, MetadataClient)
        async with (
            open_namespace(uri_of(first.address, second.address)) as namespace,
            namespace.open_log("orders").open_writer() as writer,
        ):
            await writer.write(b"one")
            [row] = await hosted_logs(metadata)
            assert (row["log"], row["producers"]) == ("orders", 1)
            other = {"w1": "w2", "w2": "w1"}[row["proxy"]]

            assert await move_log(metadata, "default", "orders", other) == row["proxy"]
            await writer.write(b"two")
            assert [one["proxy"] for one in await hosted_logs(metadata)] == [other]
            with pytest.raises(InvalidRequest, match="already"):
                await move_log(metadata, "default", "orders", other)
            with pytest.raises(
                InvalidRequest, match="no write proxy has the name nobody; there are: w"
            ):
                await hosted_logs(metadata, "nobody")

            assert await drain_proxy(metadata, other) == other
            await writer.write(b"three")
            assert await hosted_logs(metadata, other) == []
            with trio.fail_after(30):  # it says so at its next renewal
                while True:
                    if "draining" in {one["state"] for one in await proxy_rows(metadata)}:
                        break
                    await trio.sleep(0.1)
            with pytest.raises(InvalidRequest, match=f"{other} is draining"):
                await move_log(metadata, "default", "orders", other)
        assert await it.stored("orders") == [b"one", b"two", b"three"]
        states = {one["name"]: one["kind"] for one in await proxy_rows(metadata)}
        assert states == {"w1": "write-proxy", "w2": "write-proxy"}


async def test_calls_that_need_a_log_without_writer_fail_once_at_its_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were repeated for 30 s, and could end with `Moved`, which is for clients of proxies only."""
    asked: list[str] = []
    release = LogManager.release_unused

    async def counted(manager: LogManager, path: str, name: str) -> None:
        asked.append(manager.id)
        await release(manager, path, name)

    monkeypatch.setattr(LogManager, "release_unused", counted)
    async with world() as it:
        nodes = [await it.proxy(name) for name in ("w1", "w2")]
        async with open_namespace(uri_of(*(node.address for node in nodes))) as namespace:
            log = namespace.open_log("orders")
            async with log.open_writer() as writer:
                await writer.write(b"x")
                for call in (
                    partial(log.seal, wait_s=0),
                    partial(namespace.delete_log, "orders"),
                    partial(namespace.rename_log, "orders", "renamed"),
                ):
                    asked.clear()
                    with pytest.raises(OwnershipAcquireFailed) as failed:
                        await call()
                    assert failed.value.owner.startswith("proxy ")
                    assert len(asked) <= 2  # the owner, and a proxy that names it
            await log.seal(wait_s=0)
            await namespace.delete_log("orders")


async def test_call_waits_for_producers_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trio.Event()
    release = LogManager.release_unused

    async def told(manager: LogManager, path: str, name: str) -> None:
        asked.set()
        await release(manager, path, name)

    monkeypatch.setattr(LogManager, "release_unused", told)
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            log = namespace.open_log("orders")
            writer = await log.open_writer()
            await writer.write(b"x")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(log.seal, wait_s=20))
                await asked.wait()
                await writer.aclose()
            with pytest.raises(EndOfStream):
                await log.open_writer()


@pytest.mark.parametrize("chosen", [{"logs": ["orders"]}, {"pattern": "o*"}])
async def test_combined_reader_through_proxies_is_refused_at_once(chosen: dict[str, Any]) -> None:
    """It opened, and returned the refusal as an event of each log."""
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            await namespace.create_log("orders")
            with pytest.raises(InvalidRequest, match="direct access"):
                namespace.open_reader(**chosen)


async def test_the_end_of_a_proxy_that_was_only_asked_ends_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner is slow, another proxy is asked, and is killed meanwhile: the owner answers yet."""
    take, asked = LogManager.find_or_open, trio.Event()

    async def take_never(self: LogManager, request: ProduceOpen) -> HostedLog:
        if not request.suspect_proxy_id:
            return await take(self, request)
        asked.set()
        return await trio.sleep_forever()

    monkeypatch.setattr(LogManager, "find_or_open", take_never)
    async with world() as it:
        nodes = {name: await it.proxy(name) for name in ("w1", "w2")}
        names = {node.node_id: name for name, node in nodes.items()}
        async with (
            open_namespace(uri_of(*(one.address for one in nodes.values()))) as namespace,
            namespace.open_log("orders").open_writer() as writer,
        ):
            sink: Any = writer.send_queue.sink
            stream = sink._stream
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sink._probe_other_proxy, stream)
                with trio.fail_after(10):
                    await asked.wait()
                (other,) = [name for one, name in names.items() if one != stream.proxy.proxy_id]
                it.scopes[other].cancel()
            assert sink._stream is stream
            await writer.write(b"x")


async def test_a_page_of_the_longest_names_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked for: what does not fit is on the next page."""
    most = log_calls.PAGE_LOGS_MAX
    assert len(pack([["n" * 255] * most, ["f" * 16] * most, "n" * 255])) <= CONTROL_BYTES_MAX
    monkeypatch.setattr(log_calls, "PAGE_LOGS_MAX", 2)
    async with world() as it:
        node = await it.proxy("w1")
        async with open_namespace(uri_of(node.address)) as namespace:
            for name in "abc":
                await namespace.create_log(name)
            page = await namespace.log_page(limit=10_000)
            assert list(page.names) == ["a", "b"]
            assert list((await namespace.log_page(after=page.next or "")).names) == ["c"]
