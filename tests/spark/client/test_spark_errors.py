"""Errors of ours through Spark: their class, message and fields, out of whatever text comes back."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distributedlog.runtime.interfaces.errors import (
    BY_CODE,
    DistributedLogError,
    LogTruncated,
    OwnershipAcquireFailed,
    QuorumUnreachable,
)
from distributedlog.spark import cause, plain_errors
from distributedlog.spark.client.spark_errors import marks_errors, marks_errors_of_rows
from tests.examples import examples


def raised(error: DistributedLogError) -> DistributedLogError:
    """What a method that Spark calls raises."""

    @marks_errors
    def call() -> None:
        raise error

    with pytest.raises(DistributedLogError) as caught:
        call()
    return caught.value


def through_spark(error: DistributedLogError) -> str:
    """As the JVM hands it on: a Python traceback in the middle of its own text."""
    return (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] "
        'Failed when ... \nTraceback (most recent call last):\n  File "x.py", line 7, in partitions\n'
        f"distributedlog.{type(error).__name__}: {error}\n\n"
        "\tat org.apache.spark.sql.execution\n SQLSTATE: 38000\n=== Streaming Query ===\n"
    )


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_error_comes_back_with_its_fields(code: int) -> None:
    """Not only its class and words: the position that is left, the owner, whatever its class calls it."""
    error = BY_CODE[code]('log "a": no {such} thing [of 3]', 'x"y\\z]} é')

    found = cause(RuntimeError(through_spark(raised(error))))

    assert type(found) is type(error)
    assert (str(found), found.detail) == (str(error), error.detail)


def test_what_is_told_ends_in_one_line_that_says_its_fields() -> None:
    assert str(raised(LogTruncated("cut\nhere", "3.0.1"))) == (
        'cut here [dlog {"code": 511, "detail": "3.0.1"}]'
    )
    assert str(raised(QuorumUnreachable("away"))) == 'away [dlog {"code": 503}]'
    again = raised(raised(QuorumUnreachable("away")))
    assert str(again) == 'away [dlog {"code": 503}]'


def test_the_line_where_it_was_raised_is_not_lost() -> None:
    error = raised(LogTruncated("cut", "3.0.1"))

    names = []
    traceback = error.__traceback__
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert names[-1] == "call"


def test_rows_that_end_in_an_error_are_told_too() -> None:
    @marks_errors_of_rows
    def rows():  # type: ignore[no-untyped-def]
        yield 1
        raise LogTruncated("cut", "3.0.1")

    found = rows()
    assert next(found) == 1
    with pytest.raises(LogTruncated, match=r'cut \[dlog \{"code": 511'):
        next(found)


def test_a_cause_is_found_below_other_exceptions_and_by_what_older_programs_said() -> None:
    try:
        try:
            raise RuntimeError(through_spark(raised(OwnershipAcquireFailed("held", "w-1"))))
        except RuntimeError as error:
            raise ValueError("their own") from error
    except ValueError as outer:
        found = cause(outer)
    assert isinstance(found, OwnershipAcquireFailed)
    assert found.owner == "w-1"
    old = cause(RuntimeError(through_spark(LogTruncated("cut [dlog is no mark]"))))
    assert (type(old), str(old)) == (LogTruncated, "cut [dlog is no mark]")
    assert cause(ValueError("nothing of ours")) is None
    with pytest.raises(LogTruncated) as plain, plain_errors():
        raise raised(LogTruncated("cut", "3.0.1"))
    assert (str(plain.value), plain.value.first) == ("cut", "3.0.1")


@settings(max_examples=examples(100))
@given(
    st.text(max_size=40), st.text(max_size=40), st.sampled_from(["", "[dlog ", '[dlog {"code": '])
)
@example("", "1e400}]", '[dlog {"code": ')
@example("", "[" * 100_000, "[dlog ")
def test_whatever_stands_in_a_text_is_an_error_of_ours_or_none(
    before: str, after: str, mark: str
) -> None:
    """It comes back through a JVM, and anybody may have written a part of it."""
    text = f"distributedlog.LogTruncated: {before}{mark}{after}"

    found = cause(RuntimeError(text))

    assert found is None or isinstance(found, DistributedLogError)


@pytest.mark.extra
def test_whatever_spark_calls_is_told() -> None:
    """A method that a new version adds, or that is added here, would raise what nobody can rebuild."""
    pytest.importorskip("pyspark")
    from pyspark.sql import datasource
    from pyspark.sql.streaming import datasource as streaming

    from distributedlog.spark import data_source as source
    from distributedlog.spark.archive import archive_source as archive
    from distributedlog.spark.read import batch_reader as read
    from distributedlog.spark.read import stream_reader as stream
    from distributedlog.spark.sink import spark_sink as sink

    theirs = {
        name
        for module in (datasource, streaming)
        for kind in vars(module).values()
        if isinstance(kind, type)
        for name, call in vars(kind).items()
        if callable(call) and not name.startswith("_")
    }
    untold = [
        f"{kind.__name__}.{name}"
        for module in (read, sink, source, stream, archive)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
        for name, call in vars(kind).items()
        if name in theirs and callable(call) and name != "name" and not hasattr(call, "__wrapped__")
    ]

    assert untold == []
