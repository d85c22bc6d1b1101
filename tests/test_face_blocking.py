"""The blocking face: buffering, waiting, errors, threads. Over a model of the ledger part."""

import sys
import threading
from collections.abc import Iterator

import pytest

from distributedlog import blocking
from distributedlog.blocking import Namespace, open_namespace
from distributedlog.log.dlsn import DLSN
from distributedlog.log.record import RECORD_BYTES_MAX, LogRecord
from distributedlog.runtime.errors import (
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
    WriteFailed,
    WriterFenced,
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
        pending = writer.write(LogRecord(txid=1, payload=b"first"))
        writer.commit()
        assert pending.done()
        assert pending.result() == DLSN(1, 0, 0)
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


def test_many_records_in_order_and_all_there(namespace: Namespace) -> None:
    """G1: through buffers, chunks and bounds, each record once, in its order."""
    log = namespace.open_log("l")
    with log.open_writer() as writer:
        pending = [writer.write(rec(i, b"%06d" % i * 20)) for i in range(60_000)]
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
        pending = writer.write(rec(1))
        with pytest.raises(RequestTimeout, match="may still"):
            pending.result(timeout_s=0.05)
        assert not pending.done()
        writer._background.post(ledgers.release)  # type: ignore[attr-defined]
        assert pending.result(timeout_s=5) == DLSN(1, 0, 0)


def test_errors_come_from_the_call_and_the_writer_goes_on(namespace: Namespace) -> None:
    with namespace.open_log("l").open_writer() as writer:
        writer.write(rec(5))
        with pytest.raises(TransactionIdOutOfOrder):
            writer.write(rec(4))
        with pytest.raises(RecordTooLarge):
            writer.write(rec(6, bytes(RECORD_BYTES_MAX + 1)))
        with pytest.raises(InvalidRequest):
            writer.write(rec(6, "text"))  # type: ignore[arg-type]
        assert writer.write_bulk([rec(6), rec(7)])[-1] == writer.commit()
        assert writer.last_txid == 7


def test_a_second_writer_is_refused_and_a_takeover_fences(namespace: Namespace) -> None:
    """G4, in this face."""
    log = namespace.open_log("l")
    first = log.open_writer()
    first.write(rec(1)).result()
    with pytest.raises(OwnershipAcquireFailed) as caught:
        log.open_writer(wait_s=0)
    assert caught.value.owner == "alpha"
    with log.open_writer(takeover=True) as second:
        second.write(rec(2)).result()
        with pytest.raises(WriterFenced):
            first.write(rec(3)).result()
        with pytest.raises(WriterFenced):
            first.write(rec(4))
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
                writer.write(rec(thread, b"%d" % i))

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
        writer.write(rec(1)).result()
        raise ValueError("mine")
    with pytest.raises(AlreadyClosed):
        writer.write(rec(1))
    with log.open_writer(wait_s=0) as writer:
        writer.write(rec(1))


def test_use_after_the_end(namespace: Namespace) -> None:
    log = namespace.open_log("l")
    with log.open_writer() as writer:
        writer.write(rec(1))
    with pytest.raises(AlreadyClosed):
        writer.write(rec(2))
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
    for call in (lambda: writer.write(rec(1)), lambda: namespace.create_log("x"), log.describe):
        with pytest.raises(AlreadyClosed):
            call()
    with pytest.raises(InvalidRequest):
        opened.__enter__()
    assert sys.getswitchinterval() <= 0.0005


def test_a_bad_uri_fails_at_once() -> None:
    with pytest.raises(InvalidUri, match="distributedlog-bk"):
        open_namespace("kafka://a:1/x")
    with pytest.raises(InvalidRequest, match="not in this version"):
        open_namespace("distributedlog+proxy://a:1/x")


def test_a_write_buffer_that_breaks_ends_its_writer_alone(namespace: Namespace) -> None:
    """Docs: one log's broken rule is one log's error; what was on its way is unknown."""
    with namespace.open_log("whole").open_writer() as whole:
        writer = namespace.open_log("broken").open_writer()

        async def breaks(*_: object) -> None:
            raise AssertionError("planted")

        writer._buffer.writer.submit_columns = breaks  # type: ignore[assignment,method-assign]
        pending = writer.write(rec(1))
        with pytest.raises(WriteFailed, match="may be stored"):
            pending.result(5)
        with pytest.raises(InternalError, match="planted"):
            writer.commit()
        writer.abort()
        whole.write(rec(1)).result(5)
        with namespace.open_log("broken").open_writer(wait_s=2):
            pass
