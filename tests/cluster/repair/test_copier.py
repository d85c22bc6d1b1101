"""Copies on their way: verified, from whoever has them, no faster than allowed. Bookies without sockets."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.bookie.client.bookie_client import EntryList, ReadResponse
from distributedlog.bookie.format.entry import encode, records
from distributedlog.bookie.session.session_reads import LIST_RANGES_MAX
from distributedlog.cluster.repair.copier import (
    Copier,
    EntryRange,
    consecutive_records,
    lacking_ranges,
)
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.runtime.interfaces.errors import (
    BookieReadOnly,
    ConnectionLost,
    DistributedLogError,
    LedgerStateUnknown,
    RequestTimeout,
)

LEDGER = LedgerMetadata(
    7, 3, 3, 2, (Fragment(0, ("b1", "b2", "b3"), 0),), bytes(16)
).close_by_writer(49, 500)


def _record(entry: int) -> bytes:
    return bytes(encode(7, entry, 10 * (entry + 1), entry - 1, (b"x" * 8,), 8))


@dataclass
class _Shelf:
    """A bookie's answers, from a dict."""

    held: dict[int, bytes] = field(default_factory=dict)
    limbo: bool = False
    in_flight_max: int = 0

    async def wait_for_capability(self, *_: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def list_entries(self, ledger: int, key: bytes, timeout_s: float) -> EntryList:
        await trio.lowlevel.checkpoint()
        return EntryList([(entry, 1) for entry in sorted(self.held)], proves_absence=not self.limbo)

    async def read(self, ledger: int, key: bytes, first: int, last: int, *_: Any, **__: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if self.limbo and first not in self.held:
            raise LedgerStateUnknown("limbo")
        body = b"".join(self.held[e] for e in range(first, last + 1) if e in self.held)
        return ReadResponse(last, -1, True, memoryview(body))

    def open_stream(self, *_: Any, on_acked: Callable[[int], None], **__: Any) -> "_Stream":
        return _Stream(self, on_acked)


@dataclass
class _Stream:
    shelf: _Shelf
    on_acked: Callable[[int], None]
    sent: int = 0

    def send(self, raw: bytes) -> None:
        record = next(records(raw))
        self.shelf.held[record.entry] = bytes(raw)
        self.sent += 1
        self.on_acked(self.sent)

    def close(self) -> None:
        pass


class _Shelves(dict[str, _Shelf]):
    """A pool."""


def _shelf(entries: Iterable[int]) -> _Shelf:
    return _Shelf({entry: _record(entry) for entry in entries})


async def _copy(pool: Any, **options: Any) -> int:
    return await Copier(pool, **options).copy(LEDGER, [EntryRange(0, 49)], "b3", pool["b3"])


async def test_copies_keep_to_their_rate(autojump_clock: trio.testing.MockClock) -> None:
    """H42b: whoever repairs leaves the bookies to those who write."""
    pool = _Shelves(b1=_shelf(range(50)), b3=_Shelf())
    size = sum(map(len, pool["b1"].held.values()))
    began = trio.current_time()

    assert await _copy(pool, bytes_per_s=size // 10) == 50

    assert trio.current_time() - began == pytest.approx(10, rel=0.01)


@dataclass
class _Slow:
    """A bookie that acknowledges when it is told to."""

    sent: int = 0
    on_acked: Callable[[int], None] = lambda count: None
    on_refused: Callable[[int, DistributedLogError], None] = lambda position, error: None

    async def wait_for_capability(self, *_: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def list_entries(self, ledger: int, key: bytes, timeout_s: float) -> EntryList:
        await trio.lowlevel.checkpoint()
        return EntryList([], proves_absence=True)

    def open_stream(self, *_: Any, on_acked: Any, on_refused: Any, **__: Any) -> "_Slow":
        self.on_acked, self.on_refused = on_acked, on_refused
        return self

    def send(self, raw: bytes) -> None:
        self.sent += 1

    def close(self) -> None:
        pass


async def test_a_batch_is_copied_when_all_of_it_is_acknowledged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Inv. 28: a swap that follows a part of the copies would leave the rest on nobody."""
    target = _Slow()
    pool: Any = {"b1": _shelf(range(50)), "b3": target}
    copied: list[int] = []

    async def copy() -> None:
        copied.append(await _copy(pool))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy)
        await trio.sleep(1)
        assert target.sent == 50
        for count in (1, 49):
            target.on_acked(count)
            await trio.sleep(1)
            assert copied == []
        target.on_acked(50)

    assert copied == [50]


async def test_a_batch_that_is_acknowledged_in_part_is_not_copied(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What comes after a part of it ends the copy: a refusal, or silence."""
    for refusal in (BookieReadOnly("full"), None):
        target = _Slow()
        pool: Any = {"b1": _shelf(range(50)), "b3": target}

        async def answer(target: _Slow = target, refusal: Any = refusal) -> None:
            await trio.sleep(1)
            target.on_acked(49)
            if refusal is not None:
                target.on_refused(49, refusal)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(BookieReadOnly if refusal else RequestTimeout):
                await _copy(pool)


async def test_a_damaged_copy_is_passed_over_where_the_damage_begins() -> None:
    """Inv. 28: what was sound before it counts, the rest comes from another replica."""
    pool = _Shelves(b1=_shelf(range(50)), b2=_shelf(range(50)), b3=_Shelf())
    damaged = bytearray(pool["b1"].held[20])
    damaged[60] ^= 1
    pool["b1"].held[20] = bytes(damaged)

    assert await _copy(pool) == 50

    assert pool["b3"].held == pool["b2"].held


async def test_without_any_sound_copy_it_says_who_said_what() -> None:
    pool = _Shelves(b1=_Shelf(limbo=True), b2=_shelf(range(1, 50)), b3=_Shelf())

    with pytest.raises(ConnectionLost, match="b1: limbo; b2: does not have it"):
        await _copy(pool)


async def test_what_cannot_be_read_back_is_named() -> None:
    pool = _Shelves(b3=_shelf(range(50)))
    copier = Copier(pool)  # type: ignore[arg-type]
    whole = [EntryRange(0, 49)]

    assert await copier.verify(LEDGER, whole, pool["b3"]) is None  # type: ignore[arg-type]
    damaged = bytearray(pool["b3"].held[30])
    damaged[60] ^= 1
    pool["b3"].held[30] = bytes(damaged)
    found = await copier.verify(LEDGER, whole, pool["b3"])  # type: ignore[arg-type]

    assert found == EntryRange(30, 49)


def test_records_of_another_ledger_or_out_of_order_do_not_count() -> None:
    other = bytes(encode(8, 1, 10, 0, (b"x",), 1))

    assert [r.entry for r in consecutive_records(_record(0) + other, 7, 0)] == [0]
    assert consecutive_records(_record(1), 7, 0) == []
    assert [r.entry for r in consecutive_records(_record(0) + _record(2), 7, 0)] == [0]


def test_a_list_that_was_cut_says_nothing_of_what_lies_after_it() -> None:
    """Else each audit would copy the rest of a huge ledger again."""
    cut = EntryList([(0, 1)] * (LIST_RANGES_MAX - 1) + [(30, 1)], proves_absence=False)
    limbo = EntryList([(0, 30)], proves_absence=False)

    assert list(lacking_ranges(LEDGER, "b1", EntryList([(0, 30)], proves_absence=True))) == [
        EntryRange(30, 49)
    ]
    assert list(lacking_ranges(LEDGER, "b1", limbo)) == [EntryRange(30, 49)]
    assert list(lacking_ranges(LEDGER, "b1", cut)) == [EntryRange(1, 29)]
