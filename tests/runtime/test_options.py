"""How options are described, checked and shown."""

from dataclasses import dataclass

import pytest

from distributedlog.runtime.errors import InvalidRequest
from distributedlog.runtime.options import KIB, MIB, check, option, overlaid, table, with_tables


@dataclass(frozen=True, slots=True)
class _Options:
    block_bytes: int = option(8 * MIB, "bytes", "of a block", at_least=64 * KIB, multiple_of=4096)
    share: float = option(0.5, "", "of all", at_least=0, at_most=1)
    rest_s: float = option(2.0, "s", "between two")
    readers: int = option(2, "tasks", "at once")
    repair: bool = option(True, "", "may it?")
    owner: str = option("", "", "who it is")

    def __post_init__(self) -> None:
        check(self)


def test_given_options_replace_the_defaults() -> None:
    found = overlaid(_Options(), {"block_bytes": 65536, "share": 1, "repair": False, "owner": "a"})

    assert found == _Options(65536, 1, 2.0, 2, False, "a")
    assert overlaid(found, None) is found


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "block_bytes",
            4096,
            "4096 is not a whole number from 64 KiB, a multiple of 4 KiB (bytes)",
        ),
        (
            "block_bytes",
            65537,
            "65537 is not a whole number from 64 KiB, a multiple of 4 KiB (bytes)",
        ),
        ("block_bytes", 65536.0, "65536.0 is not a whole number"),
        ("share", 1.5, "1.5 is not a number from 0 to 1"),
        ("share", float("nan"), "nan is not a number from 0 to 1"),
        ("rest_s", 0, "0 is not a number above 0 (s)"),
        ("rest_s", "2", "'2' is not a number above 0 (s)"),
        ("readers", True, "True is not a whole number above 0 (tasks)"),
        ("readers", None, "None is not a whole number above 0 (tasks)"),
        ("repair", 1, "1 is not true or false"),
        ("owner", 7, "7 is not a text"),
        ("owner", ["x" * 1000], "x is not a text"),
    ],
)
def test_what_cannot_be_meant_is_named_with_what_would_be(
    name: str, value: object, said: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        overlaid(_Options(), {name: value})

    assert said in str(caught.value)
    assert str(caught.value).startswith(f"option {name}: ")
    assert len(str(caught.value)) < 200


def test_an_unknown_option_is_told_the_known_ones() -> None:
    with pytest.raises(
        InvalidRequest, match="unknown option 'repairs'; known are block_bytes, share"
    ):
        overlaid(_Options(), {"repairs": True})


def test_a_table_shows_sizes_as_people_write_them() -> None:
    lines = table(_Options).splitlines()

    assert lines[2] == (
        "| `block_bytes` | 8 MiB | bytes | a whole number from 64 KiB, a multiple of 4 KiB | of a block |"
    )
    assert lines[6] == "| `repair` | true | – | true or false | may it? |"


def test_a_document_gets_its_tables_anew() -> None:
    before = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"

    after = with_tables(before, {"x": "new"})

    assert after == "a\n<!-- x -->\nnew\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"
    assert with_tables(after, {"x": "new"}) == after
