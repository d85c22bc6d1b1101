"""The options of source and sink: what is legal, and what is said about what is not (S23)."""

from dataclasses import fields

import pytest

from distributedlog.runtime.interfaces.errors import InvalidRequest
from distributedlog.spark.options.options import SinkOptions, SourceOptions

URI = "distributedlog://h:1/ns"


def refusal(given: dict[str, str], where: str = "batch", cls: type = SourceOptions) -> str:
    with pytest.raises(InvalidRequest) as caught:
        cls.parse(given, where)  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_are_case_insensitive_and_sparks_own_are_left_alone() -> None:
    options = SourceOptions.parse(
        {"URI": URI, "LOG": "a", "checkpointlocation": "/x", "maxbytesperpartition": "64 MiB"},
        "batch",
    )

    assert (options.uri, options.names, options.max_bytes_per_partition) == (URI, ("a",), 64 << 20)


def test_load_gives_the_uri() -> None:
    assert SourceOptions.parse({"path": URI, "log": "a"}, "batch").uri == URI
    assert "use only one of them" in refusal(
        {"path": URI, "uri": "distributedlog://h:2/ns", "log": "a"}
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, '"uri" is missing'),
        ({"uri": URI}, "exactly one of the options log, logs, logPattern: none is given"),
        ({"uri": URI, "log": "a", "logs": "b"}, "log and logs are"),
        ({"uri": URI, "lug": "a"}, 'unknown option "lug"; did you mean log'),
        ({"uri": URI, "log": "a", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"uri": URI, "log": "a", "batchBytes": "0"}, "a size from 1 byte up"),
        ({"uri": URI, "log": "a", "txidUnit": "ns"}, "s or ms or us"),
        ({"uri": URI, "log": "a", "startingPosition": "{"}, "invalid JSON"),
        ({"uri": URI, "log": "a", "startingPosition": "newest"}, "earliest, latest, or JSON"),
        ({"uri": URI, "log": "a", "startingTxid": "-1"}, "from 0 to"),
        (
            {"uri": URI, "log": "a", "startingTxid": "1", "startingPosition": "latest"},
            "startingPosition and startingTxid exclude each other",
        ),
        (
            {"uri": URI, "log": "a", "maxRecordsPerTrigger": "1", "maxBytesPerTrigger": "1"},
            "exclude each other",
        ),
        ({"uri": URI, "log": "a", "subscriber": "s"}, "only for spark.readStream"),
        ({"uri": URI, "log": "a", "maxRecordsPerTrigger": "5"}, "can shorten"),
        ({"uri": URI, "subscribe": "a"}, 'unknown option "subscribe"; did you mean logs?'),
        ({"uri": URI, "topic": "a"}, 'unknown option "topic" (known: uri, log'),
        (
            {"uri": URI, "log": "a", "startingTxid": "5", "endingTxid": "3"},
            'option "endingTxid" is before "startingTxid"',
        ),
        (
            {
                "uri": URI,
                "log": "a",
                "startingPosition": '{"a": "2.0.0"}',
                "endingPosition": '{"a": "1.9.0"}',
            },
            'option "endingPosition" is 1.9.0 for log "a", before "startingPosition", 2.0.0',
        ),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_line_that_names_it(given: dict[str, str], said: str) -> None:
    """S23."""
    assert said in refusal(given)


def test_a_stream_has_no_end() -> None:
    given = {"uri": URI, "log": "a", "endingPosition": "latest"}

    assert "availableNow" in refusal(given, "stream")
    assert SourceOptions.parse(given, "batch").end.position == "latest"


def test_a_time_is_a_txid_rounded_up() -> None:
    given = {"uri": URI, "log": "a", "txidUnit": "s", "startingTimestamp": "1970-01-01T00:00:01.5Z"}

    assert SourceOptions.parse(given, "batch").start.txid == 2


def test_a_time_without_a_unit_is_log_time_rounded_up() -> None:
    given = {"uri": URI, "log": "a", "startingTimestamp": "1970-01-01T00:00:01.0005Z"}

    start = SourceOptions.parse(given, "batch").start
    assert (start.txid, start.time_ms) == (None, 1_001)


def test_the_sink_wants_app_and_version_together() -> None:
    """S28."""
    given = {"uri": URI, "log": "a", "txnAppId": "etl"}

    assert "require each other" in refusal(given, cls=SinkOptions)
    assert SinkOptions.parse(given, "stream").txn_app_id == "etl"
    assert SinkOptions.parse({**given, "txnVersion": "3"}, "batch").txn_version == 3
    assert "at least once" in refusal(
        {**given, "txnVersion": "3", "mode": "append"}, cls=SinkOptions
    )


SOURCE_WRONG: dict[str, dict[str, str]] = {
    "uri": {
        "": "uri",
        "h:1/ns": "form is distributedlog://",
        "kafka://h:1/ns": "unknown scheme 'kafka'",
        "distributedlog://h:1": "names no namespace",
        "distributedlog://h/ns": "'h' in 'distributedlog://h/ns' is not HOST:PORT",
    },
    "log": {"": "expected some text", "/a": "begins or ends with '/'", "a, b": 'option "logs"'},
    "logs": {",": "separated by commas", "a,/b": "not a log name: '/b'"},
    "logPattern": {" ": "expected some text"},
    "startingPosition": {
        "": "expected earliest, latest, or JSON",
        "1.2.3": 'such as {"orders": "1.12.3"}',
        "[]": "earliest, latest, or JSON",
        '{"a": "1.2"}': "log 'a': not a DLSN: '1.2'",
        '{"a": "0.0.0"}': "segments count from 1",
        '{"a": null}': "not a DLSN: 'None'",
        '{"v": 1}': 'positions by log under "logs"',
    },
    "startingTxid": {"x": "a whole number from 0", "9223372036854775807": "to 2^63 - 2"},
    "startingTimestamp": {"yesterday": "ISO 8601 time, such as", "1700000000": "ISO 8601 time"},
    "endingPosition": {"newest": "earliest, latest, or JSON", '{"a": 3}': "not a DLSN: '3'"},
    "endingTxid": {"-1": "a whole number from 0", "1e3": "a whole number from 0"},
    "endingTimestamp": {"2026-13-01": "ISO 8601 time, such as"},
    "newLogs": {"none": "earliest or latest or ignore", "": "earliest or latest or ignore"},
    "failOnDataLoss": {"0": "true or false"},
    "maxRecordsPerTrigger": {"0": "a whole number from 1 up", "1k": "a whole number from 1 up"},
    "maxBytesPerTrigger": {"1.5g": "a size from 1 byte up, whole", "9999999t": "a size from 1"},
    "minRecordsPerTrigger": {"1.5": "a whole number from 1 up"},
    "maxTriggerDelay": {"soon": "such as 5s, 500ms, 15min or 24h", "1w": "such as 5s"},
    "maxBytesPerPartition": {"0": "a size from 1 byte up", "lots": "a size from 1 byte up"},
    "minPartitions": {"0": "a whole number from 1 up"},
    "batchBytes": {"-1": "a size from 1 byte up"},
    "pushdown": {"1": "true or false"},
    "includeHeaders": {"1": "true or false"},
    "txidUnit": {"ns": "s or ms or us", "seconds": "s or ms or us"},
    "subscriber": {"": "expected some text", "x" * 300: "printable text of 1 to 255 bytes"},
    "discoveryInterval": {"-1s": "a duration"},
    "credentials": {"dlog1_AA": "that is not the name of credentials, file:PATH", "": "expected"},
    "requestTimeout": {"0": "a duration above 0", "x": "a duration"},
    "readTimeout": {"0s": "a duration above 0"},
}
SINK_WRONG: dict[str, dict[str, str]] = {
    "uri": {"kafka://h:1/ns": "unknown scheme 'kafka'"},
    "log": {"/a": "begins or ends with '/'"},
    "mode": {"overwrite": "segments or append", "": "segments or append"},
    "txnAppId": {"": "expected some text", "x" * 300: "has 300 bytes: at most 255"},
    "txnVersion": {"one": "a whole number from 0", "-1": "a whole number from 0"},
    "entryBytes": {"1100000": "at most 1000000 bytes, not 1100000", "big": "a size from 1 byte up"},
    "segmentBytes": {"0": "a size from 1 byte up"},
    "orphanTtl": {"forever": "such as 5s, 500ms, 15min or 24h"},
    "createLogs": {"yes": "true or false"},
    "takeover": {"1": "true or false"},
    "credentials": {"dlog1_AA": "that is not the name of credentials, file:PATH", "": "expected"},
    "requestTimeout": {"0": "a duration above 0"},
    "readTimeout": {"0s": "a duration above 0"},
}


@pytest.mark.parametrize(
    ("cls", "table"), [(SourceOptions, SOURCE_WRONG), (SinkOptions, SINK_WRONG)]
)
def test_every_option_refuses_what_it_cannot_mean(
    cls: type, table: dict[str, dict[str, str]]
) -> None:
    """S23: option by option, one line that names it and what would be legal; a new one needs a row."""
    assert set(table) == {one.metadata["name"] for one in fields(cls)}
    for name, values in table.items():
        for value, said in values.items():
            given = {"uri": URI} | ({} if name in ("logs", "logPattern") else {"log": "a"})
            if name.startswith("txn"):
                given |= {"txnAppId": "a", "txnVersion": "1"}
            where = "stream" if name == "subscriber" else "batch"

            line = refusal({**given, name: value}, where, cls)

            assert said in line, (name, value, line)
            assert name == "uri" or f'option "{name}"' in line, (name, value, line)
            assert len(line) < 300, line


def test_a_minimum_above_the_maximum() -> None:
    given = {"uri": URI, "log": "a", "maxRecordsPerTrigger": "10", "minRecordsPerTrigger": "11"}

    assert "(11) is above" in refusal(given, "stream")


def test_positions_of_logs_that_are_not_read_any_more_are_left_to_the_plan() -> None:
    """A query that goes on from its checkpoint keeps its options, also when a log was taken from ``logs``."""
    given = {"uri": URI, "log": "a", "startingPosition": '{"a": "1.0.0", "b": "latest"}'}

    assert SourceOptions.parse(given, "stream").names == ("a",)
