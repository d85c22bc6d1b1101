"""The data source ``distributedlog``: what Spark makes first, on the driver, for every read and write."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from ..runtime.interfaces.errors import InvalidRequest
from .client.spark_errors import told
from .client.worker_heap import settle
from .options.option_rules import Where
from .options.options import SinkOptions, SourceOptions
from .read.table_schema import ddl, of_spark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .read.batch_reader import BatchReader
    from .read.stream_reader import StreamReader
    from .sink.spark_sink import BatchWriter, StreamWriter


class DistributedLogSource(DataSource):
    """``format("distributedlog")``. Checks options and schema before any task starts; holds nothing else."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        settle()  # its maker looks at the heap after each read or write that it plans

    @classmethod
    def name(cls) -> str:
        """The word for ``format``."""
        return "distributedlog"

    @told
    def schema(self) -> str:
        """The columns of a frame without a schema of the user's."""
        return ddl()

    @told
    def reader(self, schema: "StructType") -> "BatchReader":
        """For ``spark.read``."""
        from .read.batch_reader import BatchReader

        options = SourceOptions.parse(self._given(), "batch")
        return BatchReader(options, of_spark(schema, options.txid_unit))

    @told
    def streamReader(self, schema: "StructType") -> "StreamReader":
        """For ``spark.readStream``."""
        from .read.stream_reader import StreamReader

        options = SourceOptions.parse(self._given(), "stream")
        return StreamReader(options, of_spark(schema, options.txid_unit))

    @told
    def writer(self, schema: "StructType", overwrite: bool) -> "BatchWriter":
        """For ``df.write``."""
        from .sink.spark_sink import BatchWriter

        options = self._sink(schema, "batch")
        if overwrite and options.mode == "append":
            raise InvalidRequest(
                'save mode "overwrite" truncates where it links: it needs the option "mode"="segments"'
            )
        made = BatchWriter(options, overwrite=overwrite)
        made.check()
        return made

    @told
    def streamWriter(self, schema: "StructType", overwrite: bool) -> "StreamWriter":
        """For ``df.writeStream``; Spark asks once a micro-batch, and once a commit."""
        from .sink.spark_sink import StreamWriter

        if overwrite:
            raise InvalidRequest(
                'outputMode("complete") would write the whole result anew with every micro-batch, and a log '
                'is only appended to: use "append" (an aggregation needs withWatermark for that), or '
                'foreachBatch with frame.write, whose save mode "overwrite" replaces the result before'
            )
        made = StreamWriter(self._sink(schema, "stream"), overwrite=False)
        made.check()
        return made

    def _sink(self, schema: "StructType", where: Where) -> SinkOptions:
        from .sink.sink_columns import check_schema

        options = SinkOptions.parse(self._given(), where)
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_schema(fields, log_given=options.log is not None)
        return options

    def _given(self) -> dict[str, Any]:
        return dict(self.options.items())
