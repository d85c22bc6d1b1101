"""The options of source and sink: what is legal, and what is said about what is not (S23)."""

import pytest

from distributedlog.runtime.errors import InvalidRequest
from distributedlog.spark.options import SinkOptions, SourceOptions

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
    assert "give one of them" in refusal(
        {"path": URI, "uri": "distributedlog://h:2/ns", "log": "a"}
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, '"uri" is missing'),
        ({"uri": URI}, "exactly one of the options log, logs, logPattern; none is given"),
        ({"uri": URI, "log": "a", "logs": "b"}, "log and logs are"),
        ({"uri": URI, "lug": "a"}, 'unknown option "lug"; did you mean log'),
        ({"uri": URI, "log": "a", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"uri": URI, "log": "a", "batchBytes": "0"}, "a size from 1 byte up"),
        ({"uri": URI, "log": "a", "txidUnit": "ns"}, "s or ms or us"),
        ({"uri": URI, "log": "a", "startingPosition": "{"}, "this is no JSON"),
        ({"uri": URI, "log": "a", "startingPosition": "newest"}, "earliest, latest, or JSON"),
        ({"uri": URI, "log": "a", "startingTxid": "-1"}, "from 0 to"),
        ({"uri": URI, "log": "a", "startingTimestamp": "2026-01-01"}, 'needs "txidUnit"'),
        (
            {"uri": URI, "log": "a", "startingTxid": "1", "startingPosition": "latest"},
            "startingPosition and startingTxid contradict",
        ),
        (
            {"uri": URI, "log": "a", "maxRecordsPerTrigger": "1", "maxBytesPerTrigger": "1"},
            "contradict",
        ),
        ({"uri": URI, "log": "a", "subscriber": "s"}, "spark.readStream alone"),
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


def test_the_sink_wants_app_and_version_together() -> None:
    """S28."""
    given = {"uri": URI, "log": "a", "txnAppId": "etl"}

    assert "go together" in refusal(given, cls=SinkOptions)
    assert SinkOptions.parse(given, "stream").txn_app_id == "etl"
    assert SinkOptions.parse({**given, "txnVersion": "3"}, "batch").txn_version == 3
    assert "at least once" in refusal(
        {**given, "txnVersion": "3", "mode": "append"}, cls=SinkOptions
    )
