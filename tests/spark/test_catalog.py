"""Where a read begins, asked without Spark: real metadata and bookies in this process, in memory."""

import json

import pytest

from distributedlog import DLSN
from distributedlog.runtime.errors import LogTruncated
from distributedlog.spark.catalog import Catalog
from distributedlog.spark.offsets import Offset
from distributedlog.spark.options import SourceOptions
from tests.spark.test_progress import fill, namespace_in_memory


async def test_a_position_that_truncation_only_moved_is_no_loss() -> None:
    """The position behind a segment's last record is gone with the segment; no record is."""
    async with namespace_in_memory() as namespace:
        await fill(namespace, "a", range(20))
        await fill(namespace, "a", range(20, 40))
        log = namespace.open_log("a")
        offset = Offset()
        offset.put("a", DLSN(1, 2, 0), (await log.snapshot()).incarnation, 20)
        lossy = Offset()
        lossy.put("a", DLSN(1, 1, 9), offset.ids["a"], 19)
        await log.truncate(DLSN(2, 0, 0))

        async def start(offset: Offset) -> DLSN:
            given = {"uri": "distributedlog://h:1/n", "log": "a"}
            given["startingPosition"] = json.dumps(offset.to_json())
            catalog = Catalog(namespace, SourceOptions.parse(given, "batch"))
            try:
                return (await catalog.starts(await catalog.discover(), "earliest"))["a"]
            finally:
                catalog.close()

        assert await start(offset) == DLSN(2, 0, 0)
        with pytest.raises(LogTruncated, match="1 record is lost"):
            await start(lossy)
