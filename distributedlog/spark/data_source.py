"""The data source ``distributedlog``: the object that Spark creates first for every read and write."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from ..runtime.interfaces.errors import InvalidRequest
from .client.spark_errors import marks_errors
from .client.worker_heap import freeze_worker_heap
from .options.option_rules import Where
from .options.options import SinkOptions, SourceOptions
from .read.table_schema import ddl, projection_of_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .read.batch_reader import BatchReader
    from .read.stream_reader import StreamReader
    from .sink.spark_sink import BatchWriter, StreamWriter


class DistributedLogSource(DataSource):
    """The source ``format("distributedlog")``. It checks options and schema before any task starts."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        freeze_worker_heap()  # Spark's planner collects garbage after each read or write

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "distributedlog"

    @marks_errors
    def schema(self) -> str:
        """Return the columns of a frame without a user schema, as DDL."""
        # The reader rejects invalid values.
        given = self.options.get("includeHeaders", "false")
        return ddl(include_headers=given.strip().lower() == "true")

    @marks_errors
    def reader(self, schema: "StructType") -> "BatchReader":
        """Return the reader for ``spark.read``."""
        from .read.batch_reader import BatchReader

        options = SourceOptions.parse(self._options_dict(), "batch")
        return BatchReader(options, projection_of_schema(schema, options.txid_unit))

    @marks_errors
    def streamReader(self, schema: "StructType") -> "StreamReader":
        """Return the reader for ``spark.readStream``."""
        from .read.stream_reader import StreamReader

        options = SourceOptions.parse(self._options_dict(), "stream")
        return StreamReader(options, projection_of_schema(schema, options.txid_unit))

    @marks_errors
    def writer(self, schema: "StructType", overwrite: bool) -> "BatchWriter":
        """Return the writer for ``df.write``."""
        from .sink.spark_sink import BatchWriter

        options = self._sink(schema, "batch")
        if overwrite and options.mode == "append":
            raise InvalidRequest(
                'save mode "overwrite" requires "mode"="segments", because it truncates the log at the link'
            )
        batch_writer = BatchWriter(options, overwrite=overwrite)
        batch_writer.check()
        return batch_writer

    @marks_errors
    def streamWriter(self, schema: "StructType", overwrite: bool) -> "StreamWriter":
        """Return the writer for ``df.writeStream``. Spark calls it once per micro-batch and per commit."""
        from .sink.spark_sink import StreamWriter

        if overwrite:
            raise InvalidRequest(
                'outputMode("complete") is not supported: it would append the whole result again with every '
                'micro-batch. Use "append" (an aggregation then needs withWatermark), or foreachBatch with '
                'frame.write, whose save mode "overwrite" replaces the previous result'
            )
        stream_writer = StreamWriter(self._sink(schema, "stream"), overwrite=False)
        stream_writer.check()
        return stream_writer

    def _sink(self, schema: "StructType", where: Where) -> SinkOptions:
        from .sink.sink_columns import check_schema

        options = SinkOptions.parse(self._options_dict(), where)
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_schema(fields, log_given=options.log is not None)
        return options

    def _options_dict(self) -> dict[str, Any]:
        return dict(self.options.items())
