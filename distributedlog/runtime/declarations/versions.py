"""The version of this software, and the versions that formats need (pure).

A node states its version as text, such as ``0.2.0``, where others see it: in its registration, in the status
of a metadata node, in the answer to `Op.INFO`. Builds up to 0.1 state none. Programs compare major and minor
number only, because neighboring patch versions have the same formats. For the same reason a pre-release, such
as ``1.0rc1`` or ``0.2.0.dev0``, counts as its release.

A cluster is *finalized* for a version (`cluster_version.py`). Until it is finalized for the version that a
format needs, no client writes that format, so each node and client can be replaced by the older version.
"""

import enum
import re
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


_VERSION = re.compile(
    r"([0-9]{1,9})\.([0-9]{1,9})(?:\.[0-9]+)*"
    r"(?:[-_.]?(?:alpha|a|beta|b|preview|pre|c|rc|post|rev|r|dev)[-_.]?[0-9]*|-[0-9]+)*+"
    r"(?:\+[0-9a-z._-]+)?",
    re.ASCII | re.IGNORECASE,
)
"""A version as Python packages have it (PEP 440), without an epoch, and with a minor number.

A peer may state any text, and suffixes can be split in many ways: "rc" is also "r" and "c". The possessive
quantifier ``*+`` tries only the first way, with the longest words. No other way matches more.
"""


def stated_version(host_version: str | None) -> str:
    """Return the version that programs of a host state. ``host_version`` is `Host.version`."""
    return VERSION if host_version is None else host_version


def version_in(text: str) -> Version | None:
    """Return major and minor number of a version, or None if the text is no version."""
    match = _VERSION.fullmatch(text[: VERSION_CHARS_MAX + 1])
    return None if match is None else Version(int(match[1]), int(match[2]))


def parse_version(text: str) -> Version:
    """Return major and minor number of the version that a node states.

    Text that is no version, and "", are those of a build that states none.
    """
    return version_in(text) or UNREPORTED


def shown_version(text: str) -> str:
    """Return the version of a node for people."""
    return text or UNREPORTED_TEXT


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
