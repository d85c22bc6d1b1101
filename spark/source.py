"""The data source ``distributedlog``: what Spark makes first, on the driver, for every read and write."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from .options import SourceOptions
from .schema import ddl, of_spark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .read import BatchReader


class DistributedLogSource(DataSource):
    """``format("distributedlog")``. Checks options and schema before any task starts; holds nothing else."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The word for ``format``."""
        return "distributedlog"

    def schema(self) -> str:
        """The columns of a frame without a schema of the user's."""
        unit = next((v for k, v in self._given().items() if k.lower() == "txidunit"), None)
        return ddl(unit)

    def reader(self, schema: "StructType") -> "BatchReader":
        """For ``spark.read``."""
        from .read import BatchReader

        options = SourceOptions.parse(self._given(), "batch")
        return BatchReader(options, of_spark(schema, options.txid_unit))

    def _given(self) -> dict[str, Any]:
        return dict(self.options.items())
