"""The columns of a log in Spark: the user's schema is checked, small entries share a batch."""

import pytest

from tests.extras import INSTALL

pa = pytest.importorskip("pyarrow", reason=INSTALL)

from distributedlog.log.arrow.arrow_columns import choose_columns  # noqa: E402
from distributedlog.runtime.interfaces.errors import InvalidRequest  # noqa: E402
from distributedlog.spark.options.options import SourceOptions  # noqa: E402
from distributedlog.spark.read.table_schema import (  # noqa: E402
    COLUMNS,
    DLSN_TYPES,
    KEYED_COLUMNS,
    projection,
)

pytestmark = pytest.mark.extra


def test_a_column_that_is_not_there_is_refused_with_the_list() -> None:
    """S24."""
    with pytest.raises(
        InvalidRequest, match='unknown column "value": a log has log string, segment bigint'
    ):
        projection([("value", "binary")], pa.schema([]), None)
    with pytest.raises(InvalidRequest, match='"txid" must be bigint, not int'):
        projection([("txid", "int")], pa.schema([]), None)


def test_spark_and_arrow_have_the_same_columns() -> None:
    """A query that moves from one to the other needs no other names and no other types."""
    names = {
        pa.string(): "string",
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.binary(): "binary",
        pa.timestamp("us", tz="UTC"): "timestamp",
        pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())])): KEYED_COLUMNS[
            "headers"
        ],
    }
    spark_columns = {**COLUMNS, **KEYED_COLUMNS, "dlsn": DLSN_TYPES[0]}

    schema = choose_columns([*spark_columns]).arrow

    assert {field.name: names[field.type] for field in schema} == spark_columns


def test_batches_of_spark_gather_several_large_entries() -> None:
    """A batch of its own costs Spark more than a copy of 100 kB does."""
    options = SourceOptions.parse({"uri": "distributedlog://h:1/n", "log": "a"}, "batch")

    assert options.batch_bytes >= 20 * 100_000
