"""The blocking face: buffering, waiting, errors, threads. Over a model of the ledger part."""

import gc
import io
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import as_completed, wait
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from distributedlog import blocking
from distributedlog.blocking import Namespace, PendingWrite, open_namespace
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import RECORD_BYTES_MAX, LogRecord
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    InternalError,
    InvalidRequest,
    InvalidUri,
    LogExists,
    LogNotFound,
    OwnershipAcquireFailed,
    RecordTooLarge,
    RequestTimeout,
    TransactionIdOutOfOrder,
    WriteCancelled,
    WriteFailed,
    WriterFenced,
)
from distributedlog.write_buffer import (
    BUFFER_BYTES_MAX,
    WAITED_WRITES_PER_S_MAX,
    WaitedWriteCounter,
)
from tests.face_world import model_namespace


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with blocking._Opened(model_namespace("alpha"), "test", Namespace) as opened:
        yield opened


def rec(txid: int, payload: bytes = b"x") -> LogRecord:
    return LogRecord(txid, payload)


def test_the_first_program(namespace: Namespace) -> None:
    """README's first program, but for its cluster."""
    namespace.create_log("orders")
    orders = namespace.open_log("orders")
    with orders.open_writer() as writer:
        assert writer.write(LogRecord(txid=1, payload=b"first")) == DLSN(1, 0, 0)
        writer.commit()
    with orders.open_reader() as reader:
        record = reader.read_next()
        assert record is not None
        assert (str(record.dlsn), record.txid, bytes(record.payload)) == ("1.0.0", 1, b"first")
        assert reader.read_next(wait_s=0.01) is None


def test_names(namespace: Namespace) -> None:
    namespace.create_log("b")
    namespace.create_log("a/1")
    with pytest.raises(LogExists):
        namespace.create_log("b")
    assert list(namespace.logs()) == ["a/1", "b"]
    assert namespace.log_exists("b")
    namespace.delete_log("b")
    assert not namespace.log_exists("b")
    with pytest.raises(LogNotFound):
        namespace.open_log("b").open_reader()
    with pytest.raises(LogNotFound):
        namespace.open_log("b").describe()


def test_names_are_read_page_by_page(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole list is in nobody's memory."""
    for name in ("a", "b", "c", "d"):
        namespace.create_log(name)
    asked: list[str] = []
    log_page = Namespace.log_page

    def two(self: Namespace, prefix: str = "", after: str = "", limit: int = 2) -> Any:
        asked.append(after)
        return log_page(self, prefix, after, limit)

    monkeypatch.setattr(Namespace, "log_page", two)
    names = namespace.logs()

    assert asked == []
    assert [next(names), next(names)] == ["a", "b"]
    assert asked == [""]
    assert list(names) == ["c", "d"]


def test_many_records_in_order_and_all_there(namespace: Namespace) -> None:
    """G1: through buffers, chunks and bounds, each record once, in its order."""
    log = namespace.open_log("l")
    with log.open_writer() as writer:
        pending = [writer.submit(rec(i, b"%06d" % i * 20)) for i in range(60_000)]
        last = writer.commit()
        assert all(p.done() for p in pending)
        assert pending[-1].result() == last == log.last_dlsn()
    dlsns = [p.result() for p in pending]
    assert dlsns == sorted(set(dlsns))
    with log.open_reader(to="end") as reader:
        for i, record in enumerate(reader):
            assert (record.txid, record.sequence_id) == (i, i)
            assert record.payload == b"%06d" % i * 20
        assert i == 59_999
    with log.open_reader(to="end") as reader:
        assert len(reader.read_bulk(50_000, wait_s=5)) == 50_000
        columns = reader.read_columns()
        assert columns is not None
        assert columns.first_sequence_id == 50_000


def test_a_wait_has_an_end_and_the_write_goes_on(namespace: Namespace) -> None:
    """G7, H31: giving up a wait withdraws nothing."""
    ledgers = namespace._namespace.ledgers
    with namespace.open_log("l").open_writer() as writer:
        ledgers.held = True  # type: ignore[attr-defined]
        pending = writer.submit(rec(1))
        with pytest.raises(RequestTimeout, match="may still"):
            pending.result(timeout_s=0.05)
        assert not pending.done()
        writer._background.post(ledgers.release)  # type: ignore[attr-defined]
        assert pending.result(timeout_s=5) == DLSN(1, 0, 0)


def test_a_write_returns_when_it_is_durable(namespace: Namespace) -> None:
    """G2, H146: the same promise as in the other faces."""
    ledgers: Any = namespace._namespace.ledgers
    with namespace.open_log("l").open_writer() as writer:
        ledgers.held = True
        done: list[object] = []
        calls = [lambda: writer.write(rec(1)), lambda: writer.write_bulk([rec(1), rec(1)])]
        threads = [threading.Thread(target=lambda c=c: done.append(c())) for c in calls]
        for thread in threads:
            thread.start()
        threads[0].join(0.05)
        assert done == []
        writer._background.post(ledgers.release)
        for thread in threads:
            thread.join(10)
        assert len(done) == 2


def test_a_loop_of_lone_writes_is_told_of_submit(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H146: a program that relied on a buffered `write` does not become slower without a word."""
    monkeypatch.setattr("distributedlog.write_buffer.WAITED_WRITES_PER_S_MAX", 20)
    monkeypatch.setattr("distributedlog.blocking.time", SimpleNamespace(monotonic=lambda: 7.0))
    with namespace.open_log("l").open_writer() as writer:
        for _ in range(20):
            writer.write(rec(1))
        with pytest.warns(RuntimeWarning, match=r'log "l".*Use submit\(\)'):
            writer.write(rec(1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(40):
                writer.write(rec(1))


def test_writes_are_counted_by_the_second() -> None:
    lone = WaitedWriteCounter()

    slow = [
        lone.record_write(number / WAITED_WRITES_PER_S_MAX)
        for number in range(5 * WAITED_WRITES_PER_S_MAX)
    ]
    fast = [lone.record_write(9 + number / (WAITED_WRITES_PER_S_MAX + 1)) for number in range(1001)]

    assert not any(slow)
    assert fast.index(True) == WAITED_WRITES_PER_S_MAX
    assert sum(fast) == 1


def test_a_pending_write_is_as_a_future(namespace: Namespace) -> None:
    ledgers: Any = namespace._namespace.ledgers
    with namespace.open_log("l").open_writer() as writer:
        ledgers.held = True
        pending = writer.submit(rec(1))
        called: SimpleQueue[tuple[object, str]] = SimpleQueue()

        def call(one: PendingWrite) -> None:
            called.put((one, threading.current_thread().name))
            raise ValueError("a callback's own")

        pending.add_done_callback(call)
        futures = [pending.future(), writer.submit(rec(2)).future()]
        assert (pending.done(), pending.running(), pending.cancelled()) == (False, True, False)
        assert pending.cancel() is False
        assert repr(pending) == "PendingWrite(pending)"
        assert all(future.running() for future in futures)
        assert futures[0].cancel() is False
        for call_it in (pending.exception, pending.result):
            with pytest.raises(RequestTimeout):
                call_it(0.01)
        assert wait(futures, timeout=0.01).not_done == set(futures)
        writer._background.post(ledgers.release)
        assert wait(futures, timeout=10).not_done == set()
        assert futures[0].result() == pending.result() == DLSN(1, 0, 0)
        assert [one for one in as_completed(futures, timeout=1) if one.exception()] == []
        assert called.get(timeout=5) == (pending, "test: callbacks")
        pending.add_done_callback(call)  # known: at once, here
        assert called.get(block=False) == (pending, threading.current_thread().name)
        assert (pending.done(), pending.running(), pending.exception()) == (True, False, None)
        assert repr(pending) == "PendingWrite(1.0.0)"
        writer.abort()
        with pytest.raises(AlreadyClosed):
            writer.submit(rec(3))


def test_the_outcome_of_a_write_that_fails_is_told_everywhere(namespace: Namespace) -> None:
    ledgers: Any = namespace._namespace.ledgers
    writer = namespace.open_log("l").open_writer()
    ledgers.held = True
    bulk = writer.submit_bulk([rec(1), rec(2)])
    pending = writer.submit(rec(3))
    called: SimpleQueue[Any] = SimpleQueue()
    for one in (pending, bulk[0]):
        one.add_done_callback(called.put)
    future = pending.future()
    with pytest.raises(RequestTimeout):
        bulk.result(0.2)  # long enough for the loop to take all three

    writer.abort()

    assert len([called.get(timeout=5) for _ in range(2)]) == 2
    assert isinstance(pending.exception(5), WriteFailed)
    assert isinstance(future.exception(5), WriteFailed)
    assert [type(one) for one in bulk.outcomes(5)] == [WriteFailed, WriteFailed]
    assert "WriteFailed: " in repr(pending)


def test_a_callback_may_wait_and_holds_no_other_log_up(namespace: Namespace) -> None:
    """It runs beside the loop: one that writes and waits there is served."""
    log = namespace.open_log("l")
    with log.open_writer() as writer:
        answers: SimpleQueue[DLSN] = SimpleQueue()
        ledgers: Any = namespace._namespace.ledgers
        ledgers.held = True
        pending = writer.submit(rec(1))
        pending.add_done_callback(lambda _: answers.put(writer.write(rec(2))))
        writer._background.post(ledgers.release)
        assert answers.get(timeout=10) > pending.result()


def test_callbacks_and_waits_end_with_the_namespace() -> None:
    """H142: whoever waits for an outcome is told when the loop ends, in whatever state the record was."""
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        ledgers: Any = namespace._namespace.ledgers
        writer = namespace.open_log("l").open_writer()
        ledgers.held = True
        pendings = [writer.submit(rec(number)) for number in range(3)]
        called: SimpleQueue[object] = SimpleQueue()
        pendings[0].add_done_callback(called.put)
        waits = [threading.Thread(target=one.exception) for one in pendings]
        for thread in waits:
            thread.start()
    for thread in waits:
        thread.join(10)
        assert not thread.is_alive()
    assert called.get(timeout=5) is pendings[0]
    assert [one.done() for one in pendings] == [True] * 3


def test_a_bulk_is_taken_in_order_and_a_bad_record_is_its_own_outcome(namespace: Namespace) -> None:
    namespace.create_log("l", txids="strict")
    log = namespace.open_log("l")
    with log.open_writer() as writer:
        before = writer.submit(rec(1))
        bulk = writer.submit_bulk([rec(2), rec(3), rec(2), rec(4)])
        after = writer.submit(rec(3))
        outcomes = bulk.outcomes(10)
        assert [type(one) for one in outcomes] == [
            DLSN, DLSN, TransactionIdOutOfOrder, WriteCancelled,
        ]  # fmt: skip
        assert before.result() < bulk[0].result() < bulk[1].result() < after.result()
        assert [type(bulk[at].exception()) for at in (2, 3, -1)] == [
            TransactionIdOutOfOrder, WriteCancelled, WriteCancelled,
        ]  # fmt: skip
        with pytest.raises(TransactionIdOutOfOrder):
            bulk.result()
        with pytest.raises(TransactionIdOutOfOrder):
            writer.write_bulk([rec(1)])
        assert writer.write_bulk([]) == []
        with pytest.raises(IndexError):
            bulk[4]
    with log.open_reader(to="end") as reader:
        assert [r.txid for r in reader] == [1, 2, 3, 3]


def test_a_bulk_larger_than_the_buffer_goes_in_part_by_part(namespace: Namespace) -> None:
    log = namespace.open_log("l")
    number = 3 * BUFFER_BYTES_MAX // 500_000
    with log.open_writer() as writer:
        lone = writer.submit(rec(0))
        dlsns = writer.submit_columns(list(range(number)), [bytes(500_000)] * number).result(30)
    assert dlsns == sorted(set(dlsns))
    assert len(dlsns) == number
    assert lone.result() < dlsns[0]


def test_a_log_of_bytes_is_a_file_for_whatever_takes_one(namespace: Namespace) -> None:
    """Buffers, text, copies: all that ``io`` and ``shutil`` have above a raw file."""
    namespace.create_log("l", txids="bytes")
    log = namespace.open_log("l")
    lines = [f"line {number}\n" for number in range(10_000)]
    with io.TextIOWrapper(io.BufferedWriter(log.open_byte_writer(), 50_000)) as text:
        text.writelines(lines)
    with io.TextIOWrapper(io.BufferedReader(log.open_byte_reader())) as text:
        assert list(text) == lines
    raw = log.open_byte_reader(offset=5)
    copy = io.BytesIO()
    with io.BufferedReader(raw) as source:
        shutil.copyfileobj(source, copy)
    assert copy.getvalue() == "".join(lines).encode()[5:]
    assert raw.closed
    with pytest.raises(AlreadyClosed):
        raw.read()
    with log.open_byte_writer() as stream:
        assert (stream.writable(), stream.readable(), stream.seekable()) == (True, False, False)
        stream.write(b"more")
    stream.close()
    assert stream.closed
    lost = log.open_byte_writer()
    lost.write(b"lost")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        del lost
        gc.collect()
    assert any("dropped" in str(one.message) for one in said)
    with log.open_byte_writer(wait_s=5) as stream:  # it was given up, and its lock is free
        assert stream.tell() in (len("".join(lines)) + 4, len("".join(lines)) + 8)


def test_bulks_and_lone_writes_of_threads_keep_each_ones_order(namespace: Namespace) -> None:
    """G1: outcomes and records of many callers, each in its own order."""
    log = namespace.open_log("l", config={"max_txid_check": False})
    with log.open_writer() as writer:
        places: dict[int, list[DLSN]] = {}

        def produce(thread: int) -> None:
            pendings: list[Any] = []
            for at in range(0, 600, 6):
                pendings.append(writer.submit(rec(thread, b"%d" % at)))
                pendings.append(
                    writer.submit_bulk([rec(thread, b"%d" % n) for n in range(at + 1, at + 6)])
                )
            found: list[DLSN] = []
            for one in pendings:
                value = one.result(30)
                found += value if isinstance(value, list) else [value]
            places[thread] = found

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with log.open_reader(to="end") as reader:
        found = list(reader)
    for number in range(4):
        mine = [r for r in found if r.txid == number]
        assert [int(r.payload) for r in mine] == list(range(600))
        assert [r.dlsn for r in mine] == places[number]


def test_errors_come_from_the_call_and_the_writer_goes_on(namespace: Namespace) -> None:
    namespace.create_log("l", txids="strict")
    with namespace.open_log("l").open_writer() as writer:
        writer.submit(rec(5))
        with pytest.raises(TransactionIdOutOfOrder):
            writer.submit(rec(4))
        with pytest.raises(RecordTooLarge):
            writer.submit(rec(6, bytes(RECORD_BYTES_MAX + 1)))
        with pytest.raises(InvalidRequest):
            writer.submit(rec(6, "text"))  # type: ignore[arg-type]
        assert writer.write_bulk([rec(6), rec(7)])[-1] == writer.commit()
        assert writer.last_txid == 7


def test_a_second_writer_is_refused_and_a_takeover_fences(namespace: Namespace) -> None:
    """G4, in this face."""
    log = namespace.open_log("l")
    first = log.open_writer()
    first.submit(rec(1)).result()
    with pytest.raises(OwnershipAcquireFailed) as caught:
        log.open_writer(wait_s=0)
    assert caught.value.owner == "alpha"
    with log.open_writer(takeover=True) as second:
        second.submit(rec(2)).result()
        with pytest.raises(WriterFenced):
            first.submit(rec(3)).result()
        with pytest.raises(WriterFenced):
            first.submit(rec(4))
        with pytest.raises(WriterFenced):
            first.commit()
    first.abort()
    with log.open_reader(to="end") as reader:
        assert [r.txid for r in reader] == [1, 2]


def test_threads_share_a_writer(namespace: Namespace) -> None:
    log = namespace.open_log("l", config={"max_txid_check": False})
    with log.open_writer() as writer:

        def produce(thread: int) -> None:
            for i in range(2000):
                writer.submit(rec(thread, b"%d" % i))

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with log.open_reader(to="end") as reader:
        found = list(reader)
    for number in range(4):
        assert [int(r.payload) for r in found if r.txid == number] == list(range(2000))


def test_an_exception_aborts(namespace: Namespace) -> None:
    log = namespace.open_log("l")
    with pytest.raises(ValueError, match="mine"), log.open_writer() as writer:  # noqa: PT012
        writer.submit(rec(1)).result()
        raise ValueError("mine")
    with pytest.raises(AlreadyClosed):
        writer.submit(rec(1))
    with log.open_writer(wait_s=0) as writer:
        writer.submit(rec(1))


def test_use_after_the_end(namespace: Namespace) -> None:
    log = namespace.open_log("l")
    with log.open_writer() as writer:
        writer.submit(rec(1))
    with pytest.raises(AlreadyClosed):
        writer.submit(rec(2))
    writer.close()
    reader = log.open_reader()
    reader.close()
    reader.close()
    for call in (reader.read_next, reader.read_columns, lambda: reader.read_bulk(1)):
        with pytest.raises(AlreadyClosed):
            call()


def test_a_namespace_that_was_left() -> None:
    opened = blocking._Opened(model_namespace(), "test", Namespace)
    with opened as namespace:
        log = namespace.open_log("l")
        writer = log.open_writer()
    for call in (lambda: writer.submit(rec(1)), lambda: namespace.create_log("x"), log.describe):
        with pytest.raises(AlreadyClosed):
            call()
    with pytest.raises(InvalidRequest):
        opened.__enter__()
    assert sys.getswitchinterval() <= 0.0005


def test_readers_and_watches_are_closed_also_after_their_namespace() -> None:
    """It closed them: an ``ExitStack``, a ``finally`` or a framework may come in either order."""
    with blocking._Opened(model_namespace("alpha"), "test", Namespace) as namespace:
        log = namespace.open_log("l")
        with log.open_writer() as writer:
            writer.write(rec(1))
        several = namespace.open_reader(logs=["l"])
        opened = [
            log.open_reader(),
            log.open_ranges([]),
            several,
            namespace.watch_logs(),
            log.watch_segments(),
        ]
        assert several.next(5) is not None
        while several.next(1) is not None:
            pass

    for one in opened:
        one.close()
        one.close()


def test_what_was_fetched_is_not_given_after_the_close(namespace: Namespace) -> None:
    """As in the trio face: a reader of several logs that is closed gives nothing more."""
    with namespace.open_log("l").open_writer() as writer:
        writer.write(rec(1))
    several = namespace.open_reader(logs=["l"], to="end")
    assert several.next(5) is not None
    several.close()

    with pytest.raises(AlreadyClosed):
        several.next(0)


def test_a_bad_uri_fails_at_once() -> None:
    with pytest.raises(InvalidUri, match="distributedlog-bk"):
        open_namespace("kafka://a:1/x")


def test_a_write_buffer_that_breaks_ends_its_writer_alone(namespace: Namespace) -> None:
    """Docs: one log's broken rule is one log's error; what was on its way is unknown."""
    with namespace.open_log("whole").open_writer() as whole:
        writer = namespace.open_log("broken").open_writer()

        async def breaks(*_: object) -> None:
            raise AssertionError("planted")

        writer._buffer.writer.submit_columns = breaks  # type: ignore[assignment,method-assign]
        pending = writer.submit(rec(1))
        with pytest.raises(WriteFailed, match="may be stored"):
            pending.result(5)
        with pytest.raises(InternalError, match="planted"):
            writer.commit()
        writer.abort()
        whole.submit(rec(1)).result(5)
        with namespace.open_log("broken").open_writer(wait_s=2):
            pass
