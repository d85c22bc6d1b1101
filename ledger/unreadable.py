"""Listings of the store pass over a record that cannot be read, and name it: one bad key stops nobody."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import trio

from ..metadata.transaction import KeyValue
from ..runtime.errors import CorruptData, DistributedLogError, UnsupportedFormat
from ..runtime.log_lines import get_logger
from .keys import shown

AGAIN_S = 600.0
NAMED_MAX = 1000

T = TypeVar("T")

log = get_logger("distributedlog.ledger")


class Unreadable:
    """The records that one listing has passed over, as far as they are remembered."""

    def __init__(self) -> None:
        self._named: dict[bytes, float] = {}

    def note(self, key: bytes, error: DistributedLogError) -> None:
        """The record of this key cannot be read; it is named once in ten minutes."""
        now = trio.current_time()
        if now - self._named.get(key, -AGAIN_S) < AGAIN_S:
            return
        self._named.pop(key, None)
        self._named[key] = now
        while len(self._named) > NAMED_MAX:
            del self._named[next(iter(self._named))]
        log.warning("the record %s is passed over: %s", shown(key), error)

    def readable(
        self, items: Iterable[KeyValue], decode: Callable[[KeyValue], T]
    ) -> Iterator[tuple[KeyValue, T]]:
        """Those of ``items`` that can be read, with what they say."""
        for item in items:
            try:
                found = decode(item)
            except (CorruptData, UnsupportedFormat) as error:
                self.note(item.key, error)
            else:
                yield item, found
