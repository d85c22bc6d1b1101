"""How options are described, checked and shown."""

from dataclasses import dataclass

import pytest

from distributedlog.runtime.declarations.options import (
    COUNT_LIMIT,
    DURATION_S_MAX,
    KIB,
    MIB,
    check,
    check_seconds,
    check_wait,
    check_whole,
    markdown_table,
    option,
    option_fields,
    parse_duration,
    parse_option,
    parse_value,
    replace_tables,
    with_overrides,
)
from distributedlog.runtime.interfaces.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class _Options:
    block_bytes: int = option(8 * MIB, "bytes", "of a block", at_least=64 * KIB, multiple_of=4096)
    share: float = option(0.5, "", "of all", at_least=0, at_most=1)
    rest_s: float = option(2.0, "s", "between two")
    hold_s: float = option(60.0, "s", "of a hold", at_least=60, infinite=float(DURATION_S_MAX))
    readers: int = option(2, "tasks", "at once")
    repair: bool = option(True, "", "may it?")
    owner: str = option("", "", "who it is")

    def __post_init__(self) -> None:
        check(self)


def test_given_options_replace_the_defaults() -> None:
    found = with_overrides(
        _Options(), {"block_bytes": 65536, "share": 1, "repair": False, "owner": "a"}
    )

    assert found == _Options(65536, 1, 2.0, 60.0, 2, False, "a")
    assert with_overrides(found, None) is found


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "block_bytes",
            4096,
            "4096 is not a whole number from 64 KiB to 1 EiB, a multiple of 4 KiB (bytes)",
        ),
        (
            "block_bytes",
            65537,
            "65537 is not a whole number from 64 KiB to 1 EiB, a multiple of 4 KiB (bytes)",
        ),
        ("block_bytes", 65536.0, "65536.0 is not a whole number"),
        ("share", 1.5, "1.5 is not a number from 0 to 1"),
        ("share", float("nan"), "nan is not a number from 0 to 1"),
        ("rest_s", 0, "0 is not a number from 0.001 to 10 years (s)"),
        ("rest_s", "2", "'2' is not a number from 0.001 to 10 years (s)"),
        ("rest_s", float("inf"), "inf is not a number from 0.001 to 10 years (s)"),
        ("rest_s", 1e306, "1e+306 is not a number from 0.001 to 10 years (s)"),
        ("hold_s", float("nan"), "nan is not a number from 60 to 10 years, or `inf` (s)"),
        ("hold_s", float("-inf"), "-inf is not a number from 60 to 10 years, or `inf` (s)"),
        ("readers", True, "True is not a whole number above 0 to 1,000,000,000,000 (tasks)"),
        ("readers", None, "None is not a whole number above 0 to 1,000,000,000,000 (tasks)"),
        ("readers", 10**4000, "a number of 13288 bits is not a whole number above 0 to"),
        ("repair", 1, "1 is not true or false"),
        ("owner", 7, "7 is not a text"),
        ("owner", ["x" * 1000], "x is not a text"),
    ],
)
def test_what_cannot_be_meant_is_named_with_what_would_be(
    name: str, value: object, said: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        with_overrides(_Options(), {name: value})

    assert said in str(caught.value)
    assert str(caught.value).startswith(f"option {name}: ")
    assert len(str(caught.value)) < 200


def test_an_unknown_option_is_told_the_known_ones() -> None:
    with pytest.raises(
        InvalidRequest, match="unknown option 'repairs'; known are block_bytes, share"
    ):
        with_overrides(_Options(), {"repairs": True})


def test_a_table_shows_sizes_as_people_write_them_without_the_limits_of_units() -> None:
    lines = markdown_table(_Options).splitlines()

    assert lines[2] == (
        "| `block_bytes` | 8 MiB | bytes | a whole number from 64 KiB, a multiple of 4 KiB | of a block |"
    )
    assert lines[7] == "| `repair` | true | – | true or false | may it? |"


def test_a_document_gets_its_tables_anew() -> None:
    before = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"

    after = replace_tables(before, {"x": "new"})

    assert after == "a\n<!-- x -->\nnew\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"
    assert replace_tables(after, {"x": "new"}) == after


INF, NAN = float("inf"), float("nan")


def test_infinity_becomes_the_value_that_an_option_defines_for_it() -> None:
    assert with_overrides(_Options(), {"hold_s": INF}).hold_s == DURATION_S_MAX


@pytest.mark.parametrize("value", [INF, -INF, NAN, 1e306, 10**400, -1, -1e-9, True, "5", b"5", [5]])
def test_a_wait_that_cannot_be_meant_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="wait_s is seconds from 0 to 10 years, or None: not"):
        check_wait(value)
    with pytest.raises(InvalidRequest, match="delay_s is seconds from 0 to 10 years, not"):
        check_seconds("delay_s", value)


@pytest.mark.parametrize("value", [INF, NAN, 10**400, -1, 0, 2.0, 1.5, True, None, "5"])
def test_a_count_that_cannot_be_meant_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"limit is a whole number from 1 to {COUNT_LIMIT}"):
        check_whole("limit", value, 1)


def test_waits_and_counts_at_their_limits_are_accepted() -> None:
    for value in (None, 0, 0.0, 1e-9, 5, DURATION_S_MAX):
        check_wait(value)
    for value in (0, 0.0, 1e-9, 5, DURATION_S_MAX):
        check_seconds("delay_s", value)
    check_seconds("claim_s", 1e-9, above_0=True)
    check_whole("limit", COUNT_LIMIT, 1)
    with pytest.raises(InvalidRequest, match="seconds above 0"):
        check_seconds("claim_s", 0, above_0=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("inf", INF),
        ("1e400", INF),
        ("1e400m", INF),
        ("9" * 400, INF),
        ("9" * 5000 + "d", INF),
        ("1e306GiB", INF),
        ("-1", -1),
        ("nan", "nan"),
        ("-inf", "-inf"),
    ],
)
def test_typed_numbers_beyond_every_limit_are_read_and_not_a_failure(
    text: str, value: object
) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rest_s", "1.5h", 5400), ("rest_s", "64MiB", None), ("block_bytes", "64MiB", 64 * MIB),
        ("block_bytes", "10m", None), ("readers", "10m", None), ("readers", "10", 10),
        ("share", "1GiB", None), ("repair", "true", True), ("rest_s", "soon", "soon"),
    ],
)  # fmt: skip
def test_a_value_with_a_unit_of_another_kind_is_refused(
    name: str, text: str, value: object
) -> None:
    (found,) = [one for one in option_fields(_Options) if one.name == name]
    if value is None:
        with pytest.raises(InvalidRequest, match=f"option {name}: '{text}' is not a "):
            parse_option(found, text)
    else:
        assert parse_option(found, text) == value


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("1.5m", 90), ("250ms", 0.25), ("10 s", 10), ("-1d", -86400)],
)
def test_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["20260131", "90", "1.5", "64MiB", "inf", "true", "soon", ""])
def test_number_without_a_unit_of_time_is_no_duration(text: str) -> None:
    """A date without dashes, a year or a size would otherwise be a number of seconds."""
    assert parse_duration(text) is None
