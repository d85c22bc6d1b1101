"""Where a read begins, asked without Spark: real metadata and bookies in this process, in memory."""

import json

import pytest

from distributedlog import DLSN
from distributedlog.runtime.interfaces.errors import LogRecreated, LogTruncated
from distributedlog.spark.options.options import SourceOptions
from distributedlog.spark.read.offsets import Offset
from distributedlog.spark.read.source_logs import SourceLogs
from tests.spark.read.test_stream_progress import fill, namespace_in_memory


async def test_a_position_that_truncation_only_moved_is_no_loss() -> None:
    """The position after a segment's last record is gone with the segment; no record is."""
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
            logs = SourceLogs(namespace, SourceOptions.parse(given, "batch"))
            try:
                return (await logs.starts(await logs.discover(), "earliest"))["a"]
            finally:
                logs.close()

        assert await start(offset) == DLSN(2, 0, 0)
        with pytest.raises(LogTruncated, match="1 record is lost"):
            await start(lossy)


@pytest.mark.parametrize("fail", ["true", "false"])
async def test_positions_of_a_log_that_was_made_again_are_refused_with_a_remedy_that_helps(
    fail: str,
) -> None:
    """It advised `failOnDataLoss=false`, which changes nothing for positions that were given."""
    async with namespace_in_memory() as namespace:
        await namespace.create_log("a")
        old = Offset({"a": DLSN(1, 0, 0)}, {"a": f"{7:016x}"})
        given = {"uri": "distributedlog://h:1/n", "log": "a", "failOnDataLoss": fail}
        given["startingPosition"] = json.dumps(old.to_json())
        logs = SourceLogs(namespace, SourceOptions.parse(given, "batch"))

        with pytest.raises(LogRecreated, match="Omit it, or use positions") as caught:
            await logs.starts(await logs.discover(), "earliest")
        assert "failOnDataLoss" not in str(caught.value)
        logs.close()
