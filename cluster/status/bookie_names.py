"""Bookies for people: by the name that their operator gave, where it is one bookie's alone.

An id is 32 letters that nobody can tell apart. What programs read (``--json``, keys, records) has ids; a name
may be given to a new bookie while the old one is still known, so ids stay what is unique.
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
"""Of an id beside a name that several bookies have: `leaving.find_bookie` takes that."""
_ID = re.compile(r"( ?\()?\b([0-9a-f]{32})\b(\))?")


class BookieNames:
    """What bookies are called, by their ids. ``labels``: the name that each was given; "": none."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._counts = Counter(labels.values())

    def name(self, bookie: str) -> str:
        """``b3``; ``b3 (7b0c1a52)`` where another one has that name; the id where there is no name."""
        label = self._labels.get(bookie, "")
        if not label:
            return bookie
        return label if self._counts[label] == 1 else f"{label} ({bookie[:ID_CHARS]})"

    def in_words(self, text: str) -> str:
        """A sentence, with the names instead of the ids."""
        return replace_bookie_ids(text, self.name)

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """The same in an `InvalidRequest` of the block."""
        try:
            yield
        except InvalidRequest as error:
            raise InvalidRequest(self.in_words(str(error))) from error


async def bookie_names(metadata: Metadata) -> BookieNames:
    """Of all bookies that were let in and not forgotten; one whose record cannot be read has none."""
    labels: dict[str, str] = {}
    async for item in Scan(metadata, keys.COOKIE_PREFIX):
        try:
            labels[keys.bookie_id_of(item.key)] = decode_cookie(item.key, item.value)["label"]
        except (CorruptData, UnsupportedFormat):
            continue  # `dlog status` names it
    return BookieNames(labels)


def replace_bookie_ids(text: str, name_of: Callable[[str], str]) -> str:
    """A sentence with each id as ``name`` says it; "bookie b1 (<id of b1>)" says it once."""

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
    """To sort by: b2 is before b10."""
    parts = re.split(r"([0-9]+)", label)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]
