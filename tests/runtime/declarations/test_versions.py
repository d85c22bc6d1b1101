"""Versions that nodes state, and the formats that need one."""

import tomllib
from pathlib import Path

import pytest

from distributedlog.runtime.declarations.versions import (
    CURRENT,
    UNREPORTED,
    UNREPORTED_TEXT,
    VERSION,
    VERSION_CHARS_MAX,
    GatedFormat,
    Version,
    parse_version,
    shown_version,
)

ROOT = Path(__file__).resolve().parents[3]
PEP_440_SUFFIXES = (
    *("rc1", ".rc1", "-rc.1", "a1", "ALPHA2", "b3", "c4", "pre5", "preview6", ".dev0", "rc1.dev2"),
    *(".post1", "-rev2", "r3", ".3.4rc1.post2.dev3", "+local.7", ".0rc1+abc-1"),
    *("-1", ".0-1", "rc1-2", ".0-1.dev3", ".0_post_1", "rc-1", "previewrevalphabeta"),
)
"""A pre-release or post-release has the formats of its release, so it counts as that release."""


def test_version_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert Version(0, 1) < CURRENT == parse_version(VERSION)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.2.0.dev0", (0, 2)),
        ("1.12", (1, 12)),
        ("10.0.1rc1", (10, 0)),
        *[(f"1.2{suffix}", (1, 2)) for suffix in PEP_440_SUFFIXES],
        *[(text, UNREPORTED) for text in ("", "1", "x.2", "1.x", "-1.2", "1.²", "9" * 20 + ".1")],
        *[(text, UNREPORTED) for text in ("1.2x", "1!2.3", "1.2 rc1", "1.2rc1 or older", "1.2+")],
        (UNREPORTED_TEXT, UNREPORTED),
    ],
)
def test_stated_version_is_compared_by_major_and_minor_number(
    text: str, version: tuple[int, int]
) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("repeated", ["rc", ".a", "rev", ".preview", "-1", ".1", "+a", "_"])
def test_long_text_that_is_almost_a_version_is_rejected_without_backtracking(repeated: str) -> None:
    """A program with exponential backtracking does not return."""
    text = "0.1" + repeated * 30
    assert parse_version(text[: VERSION_CHARS_MAX - 1] + "!") == UNREPORTED


def test_build_that_states_no_version_is_shown_as_the_oldest() -> None:
    assert shown_version("") == UNREPORTED_TEXT
    assert shown_version("0.3.1") == "0.3.1"
    assert str(Version(0, 2)) == "0.2"


def test_every_gated_format_is_written_by_this_version_and_refused_by_the_oldest() -> None:
    for gated in GatedFormat:
        assert not gated.is_permitted(UNREPORTED)
        assert gated.is_permitted(gated.needs)
        assert gated.is_permitted(CURRENT)
    assert len({gated.title for gated in GatedFormat}) == len(GatedFormat)
