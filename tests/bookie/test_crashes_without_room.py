"""Power cuts at any step, on disks that fill and are freed, with rests between: never taken for a loss."""

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
import trio
import trio.testing

from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.interfaces.errors import DiskFull, NoSuchLedger, TooBusy
from tests.examples import few

from .kit import KEY, SMALL, Adder, CutDisk, PowerCut, fence, host_of, read_all, record

Clock = trio.testing.MockClock
OPTIONS = replace(
    SMALL,
    journal_file_bytes=512 << 10,
    journal_file_bytes_min=64 << 10,
    free_bytes_min=256 << 10,
    checkpoint_s=1.0,
)
BALLAST = "ballast"
STEPS = ("add", "add", "add", "fence", "delete", "full", "no room for the index", "free", "rest")
LIVES = 7


@dataclass
class _Crashes:
    """One seed: a bookie of several lives, and what it has said."""

    chance: random.Random
    journal: CutDisk = field(default_factory=lambda: CutDisk(bytes_max=3 << 20))
    index: CutDisk = field(default_factory=CutDisk)
    acked: dict[int, list[bytes]] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    witnessed: int = 0
    ledger: int = 0

    async def live(self) -> None:
        """Start, do this and that, lose power."""
        if self.chance.random() < 0.5:
            disk = self.journal if self.chance.random() < 0.7 else self.index
            disk.fuse = self.chance.randrange(60)
        with suppress(DiskFull):  # no room to start: the next life is told the same, or finds some
            store = await self.open()
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(store.run)
                    for _ in range(self.chance.randrange(14)):
                        await self.step(store, self.chance.choice(STEPS))
                        await trio.sleep(self.chance.random())
                    nursery.cancel_scope.cancel()
            finally:
                self.witnessed = max(self.witnessed, store.durable_to)

    def cut(self) -> None:
        """The power goes off, and comes back."""
        survive = self.chance.choice((0.0, 0.5, 1.0))
        self.journal = self.journal.cut(self.chance, survive)
        self.index = self.index.cut(self.chance, survive)

    async def open(self) -> BookieStore:
        """A start that misses nothing."""
        host = host_of(self.journal, self.index)
        store = await open_store(host, OPTIONS, bookie_id="b1", recorded_sequence=self.witnessed)
        assert not store.limbo.any_limbo
        self.witnessed = max(self.witnessed, store.durable_to)
        return store

    async def step(self, store: BookieStore, what: str) -> None:
        """What may wait for room is given up after a while."""
        self.ledger += 1
        with trio.move_on_after(2), suppress(TooBusy):
            if what == "add":
                await self._add(store)
            elif what == "fence":
                await fence(store, self.ledger)
                self.fenced.add(self.ledger)
            elif what == "delete" and self.acked:
                ledger = self.chance.choice(list(self.acked))
                del self.acked[ledger]
                await store.delete_ledger(ledger)
                self.deleted.add(ledger)
        if what == "full" and BALLAST not in self.journal.list():
            left = self.chance.choice((0, 0, 4096, 70_000, 200_000))
            with suppress(DiskFull):  # the bookie was quicker
                free = self.journal.free_bytes()
                await self.journal.create(BALLAST, size=max(0, free - left))
        elif what == "no room for the index":
            self.index.full_maps = True
        elif what == "free":
            await self.free()
        elif what == "rest":
            await trio.sleep(150)

    async def free(self) -> None:
        """There is room again."""
        self.index.full_maps = False
        if BALLAST in self.journal.list():
            await self.journal.delete(BALLAST)

    async def _add(self, store: BookieStore) -> None:
        adder = Adder(store, self.ledger)
        try:
            for n in range(self.chance.randrange(1, 20)):
                adder.send(record(self.ledger, n, bytes(self.chance.choice((30, 3000, 20_000)))))
                if self.chance.random() < 0.5:
                    await trio.sleep(0.001)
            while adder.acked < len(adder.sent) and not adder.refused:
                await adder.changed.wait()
        finally:
            if adder.acked:
                self.acked[self.ledger] = adder.sent[: adder.acked]

    async def judge(self) -> None:
        """With room: all is there, and it takes entries again."""
        await self.free()
        store = await self.open()
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            for ledger, records in self.acked.items():
                found = await read_all(store, ledger)
                assert [found.get(n) for n in range(len(records))] == records
            assert all(store.ledgers.get_known(ledger, KEY).fenced for ledger in self.fenced)
            for ledger in self.deleted:
                with pytest.raises(NoSuchLedger):
                    store.ledgers.get_known(ledger, KEY)
            await trio.sleep(30)
            assert store.space.conditions == ()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", few(range(12), 2))
async def test_no_crash_on_disks_that_fill_is_taken_for_a_loss(
    autojump_clock: Clock, seed: int
) -> None:
    """H28, H82: nothing acknowledged is lost or denied, no limbo, and with room it is writable again."""
    crashes = _Crashes(random.Random(seed))
    for _ in range(LIVES):
        try:
            await crashes.live()
        except* PowerCut:
            pass
        crashes.cut()

    await crashes.judge()
