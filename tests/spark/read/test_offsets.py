"""Offsets: one spelling, and a checkpoint of something else is refused (S20)."""

import json

import pytest

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import incarnation_text
from distributedlog.runtime.interfaces.errors import InvalidRequest, UnsupportedFormat
from distributedlog.spark.read.offsets import Offset, RequestedPosition, requested_positions


def test_one_position_has_one_spelling() -> None:
    one = Offset({"b": DLSN(1, 2, 0), "a": DLSN(3, 0, 1)}, {"b": "x", "a": "y"})
    other = Offset({"a": DLSN(3, 0, 1), "b": DLSN(1, 2, 0)}, {"a": "y", "b": "x"})

    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert json.dumps(one.to_json()) == (
        '{"ids": {"a": "y", "b": "x"}, "logs": {"a": "3.0.1", "b": "1.2.0"}, "sequence_ids": {}, "v": 1}'
    )
    one.put("c", DLSN(1, 0, 0), "z", 12)
    assert Offset.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_foreign_checkpoint_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="another source"):
        Offset.from_json({"topic": {"0": 12}})
    with pytest.raises(UnsupportedFormat, match="newer version"):
        Offset.from_json({"v": 2, "logs": {}, "ids": {}})
    with pytest.raises(InvalidRequest, match="without logs and ids"):
        Offset.from_json({"v": 1, "logs": {"a": "1.0.0"}, "ids": {}})


@pytest.mark.parametrize(
    "part", [{"logs": {"a": "1.0"}}, {"sequence_ids": {"a": "x"}}, {"sequence_ids": 7}]
)
def test_a_damaged_offset_is_one_line(part: dict[str, object]) -> None:
    whole = {"v": 1, "logs": {"a": "1.0.0"}, "ids": {"a": "x"}}

    with pytest.raises(InvalidRequest, match=r"^a damaged offset of distributedlog: ") as caught:
        Offset.from_json({**whole, **part})

    assert "\n" not in str(caught.value)


def test_positions_of_another_format_name_the_option() -> None:
    given = {"v": 2, "logs": {"a": "1.0.0"}, "ids": {"a": "x"}}

    with pytest.raises(UnsupportedFormat, match=r'^option "endingPosition": offset has format 2'):
        requested_positions(given, ["a"], "endingPosition", "latest")


def test_positions_by_word_by_json_and_by_an_offset() -> None:
    offset = Offset({"a": DLSN(1, 2, 0)}, {"a": incarnation_text(7)})

    assert requested_positions(None, ["a"], "startingPosition", "latest") == {
        "a": RequestedPosition("latest")
    }
    assert requested_positions({"a": "1.2.0"}, ["a", "b"], "startingPosition", "earliest") == {
        "a": RequestedPosition(dlsn=DLSN(1, 2, 0)),
        "b": RequestedPosition("earliest"),
    }
    assert requested_positions(offset.to_json(), ["a"], "startingPosition", "earliest") == {
        "a": RequestedPosition(dlsn=DLSN(1, 2, 0), identity="0000000000000007")
    }


def test_a_position_of_a_log_that_is_not_read_is_a_mistake() -> None:
    with pytest.raises(InvalidRequest, match="'c', which is not among"):
        requested_positions({"c": "earliest"}, ["a"], "startingPosition", "latest")
    with pytest.raises(InvalidRequest, match="option \"endingPosition\", log 'a': not a DLSN"):
        requested_positions({"a": "1.2"}, ["a"], "endingPosition", "latest")
