"""Which ledgers a bookie asks the metadata for, how many at once, and what it does then (H21)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain

import pytest
import trio
import trio.testing

from distributedlog.bookie.format.journal_format import DELETED
from distributedlog.bookie.server import CHECKED_LEDGERS_MAX, NewLedgerCheck
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.interfaces.errors import QuorumUnreachable

from .kit import OPTIONS, CutDisk, flags_by_id, running

Clock = trio.testing.MockClock
MANY = 12_000


class _Catalogue:
    """What the metadata answers, and when."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.missing: set[int] = set()
        self.open = trio.Event()
        self.failures = 0

    async def missing_ledgers(self, ledgers: Sequence[int]) -> set[int]:
        self.asked.append([*ledgers])
        await self.open.wait()
        if self.failures:
            self.failures -= 1
            raise QuorumUnreachable("nobody answered (test)")
        return self.missing & set(ledgers)


@asynccontextmanager
async def _checked(catalogue: _Catalogue) -> AsyncIterator[BookieStore]:
    async with running(CutDisk(), OPTIONS) as store, trio.open_nursery() as nursery:
        nursery.start_soon(NewLedgerCheck(store, catalogue.missing_ledgers).run)
        yield store
        nursery.cancel_scope.cancel()


def _make_known(store: BookieStore, ledgers: Sequence[int]) -> None:
    for ledger in ledgers:
        store.add_handler.notify_ledger_created(store.ledgers.get_or_make(ledger))


async def test_each_is_asked_for_once_however_many_wait_for_an_answer(
    autojump_clock: Clock,
) -> None:
    """The first question is under way while thousands of ledgers come."""
    catalogue = _Catalogue()
    async with _checked(catalogue) as store:
        _make_known(store, range(100))
        await trio.sleep(1)
        assert len(catalogue.asked) == 1

        _make_known(store, range(100, MANY))
        catalogue.open.set()
        await trio.sleep(10)

        assert sorted(chain.from_iterable(catalogue.asked)) == [*range(MANY)]


async def test_hundreds_that_come_together_are_asked_for_together(autojump_clock: Clock) -> None:
    catalogue = _Catalogue()
    catalogue.open.set()
    async with _checked(catalogue) as store:
        for first in range(0, 1000, 10):  # a thousand in a second
            _make_known(store, range(first, first + 10))
            await trio.sleep(0.01)
        await trio.sleep(1)

        assert sum(map(len, catalogue.asked)) == 1000
        assert len(catalogue.asked) <= 4
        assert all(len(ledgers) <= CHECKED_LEDGERS_MAX for ledgers in catalogue.asked)


@pytest.mark.parametrize("failures", [0, 3])
async def test_only_what_is_known_to_be_missing_is_removed(
    autojump_clock: Clock, failures: int
) -> None:
    """Unknown is never "no"; those that came meanwhile are judged by an answer of their own."""
    catalogue = _Catalogue()
    catalogue.missing, catalogue.failures = {3, 4, 2000}, failures
    async with _checked(catalogue) as store:
        _make_known(store, range(10))
        await trio.sleep(1)
        _make_known(store, [2000, 2001])
        assert not await flags_by_id(store)

        catalogue.open.set()
        await trio.sleep(10)

        assert await flags_by_id(store) == dict.fromkeys((3, 4, 2000), DELETED)
