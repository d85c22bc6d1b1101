"""The version of this software, and the versions that formats need (pure).

A node states its version as text, such as ``0.2.0``, where others see it: in its registration, in the status
of a metadata node, in the answer to `Op.INFO`. Builds up to 0.1 state none. Programs compare major and minor
number only, because neighboring patch versions have the same formats.

A cluster is *finalized* for a version (`cluster_version.py`). Until it is finalized for the version that a
format needs, no client writes that format, so each node and client can be replaced by the older version.
"""

import enum
from typing import NamedTuple

VERSION = "0.2.0.dev0"
"""The version of this software. pyproject.toml has the same."""
VERSION_CHARS_MAX = 64


class Version(NamedTuple):
    """Major and minor number of a version."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


UNREPORTED = Version(0, 1)
"""Stands for a build that states no version. It reads the formats of 0.1."""
UNREPORTED_TEXT = "0.1 or older"


def parse_version(text: str) -> Version:
    """Return major and minor number of the version that a node states.

    Text that is no version, and "", are those of a build that states none.
    """
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (_is_number(major) and _is_number(minor)):
        return UNREPORTED
    return Version(int(major), int(minor))


def shown_version(text: str) -> str:
    """Return the version of a node for people."""
    return text or UNREPORTED_TEXT


def _is_number(digits: str) -> bool:
    return digits.isascii() and digits.isdecimal() and len(digits) < 10


CURRENT = parse_version(VERSION)


class GatedFormat(enum.Enum):
    """A format that an older version refuses, and that a program would otherwise write without an operator.

    Formats that are not in this list are read by every version since 0.1, or are sent only to a peer that
    announces them (docs/reference/formats.md, "Formats of version 0.2").
    """

    RECORD_HEADERS = "keys and headers", Version(0, 2)
    """Entries with keys or headers, and the log state that requires them."""
    DECREASING_TXIDS = "decreasing transaction IDs", Version(0, 2)
    """The log state that keeps such a log searchable, and by which older versions cannot write to it."""

    def __init__(self, title: str, needs: Version) -> None:
        self.title = title
        """Its name in messages."""
        self.needs = needs
        """The version for which the cluster must be finalized."""

    def is_permitted(self, finalized: Version) -> bool:
        """Return whether programs may write the format in a cluster that is finalized for this version."""
        return finalized >= self.needs
