"""Names of bookies for output to people: the names that operators gave, if they are unique.

An ID has 32 hexadecimal digits, which people cannot distinguish. Output for programs (``--json``, keys,
records) has IDs, because only they are unique: a new bookie may have the name of an old one that still has a
cookie.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ...ledger.model import ledger_keys as keys
from ...metadata.model.interface import Metadata, Scan
from ...runtime.interfaces.errors import CorruptData, InvalidRequest, UnsupportedFormat
from ..coordination.cookie import decode_cookie

ID_CHARS = 8
"""The length of an ID prefix after a name that several bookies have.

`decommission.find_bookie` accepts it.
"""
_ID = re.compile(r"( ?\()?\b([0-9a-f]{32})\b(\))?")


class BookieNames:
    """The names of bookies, by their IDs. ``labels`` has the name that each was given, "" for none."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._counts = Counter(labels.values())

    def name(self, bookie: str) -> str:
        """Return the name of a bookie, such as ``b3``.

        If several bookies have the name, it is ``b3 (7b0c1a52)``. If there is no name, it is the ID.
        """
        label = self._labels.get(bookie, "")
        if not label:
            return bookie
        return label if self._counts[label] == 1 else f"{label} ({bookie[:ID_CHARS]})"

    def with_names(self, text: str) -> str:
        """Return a sentence with names in place of IDs."""
        return replace_bookie_ids(text, self.name)

    @contextmanager
    def names_in_errors(self) -> Iterator[None]:
        """Replace the IDs in the text of an `InvalidRequest` that the block raises."""
        try:
            yield
        except InvalidRequest as error:
            raise InvalidRequest(self.with_names(str(error))) from error


async def bookie_names(metadata: Metadata) -> BookieNames:
    """Return the names of all bookies with a cookie. A bookie with an unreadable record has no name."""
    labels: dict[str, str] = {}
    async for item in Scan(metadata, keys.COOKIE_PREFIX):
        try:
            labels[keys.bookie_id_of(item.key)] = decode_cookie(item.key, item.value)["label"]
        except (CorruptData, UnsupportedFormat):
            continue  # `dlog status` lists the record
    return BookieNames(labels)


def replace_bookie_ids(text: str, name_of: Callable[[str], str]) -> str:
    """Return a sentence with ``name_of`` of each ID in place of it.

    In "bookie b1 (<ID of b1>)", the name would occur twice, so the part in parentheses is left out.
    """

    def said(match: re.Match[str]) -> str:
        opening, bookie, closing = match.groups()
        bookie_name = name_of(bookie)
        if opening and closing:
            before = text[: match.start()]
            label = bookie_name.partition(" (")[0]
            for repeated in (bookie_name, label):
                if before.endswith(repeated):
                    return bookie_name[len(repeated) :]
        return f"{opening or ''}{bookie_name}{closing or ''}"

    return _ID.sub(said, text)


def name_order(label: str) -> list[int | str]:
    """Return a sort key by which b2 is before b10."""
    parts = re.split(r"([0-9]+)", label)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]
