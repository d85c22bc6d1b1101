"""Writers that take over from each other, are killed, lose answers and ledgers; readers that tail.

Seeded, in virtual time, over the model ledger; what is checked are the guarantees, not the steps.
"""

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.write.entry_batch import PendingWrite
from distributedlog.metadata.model.transaction import Transaction, TransactionReply
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    OutcomeUnknown,
    QuorumUnreachable,
    WriteFailed,
)
from tests.examples import few
from tests.log.conftest import World

CHAOS_S = 30.0
SEEDS = 12


class Chaos:
    """The faults of one seed, within what the log promises to survive."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.over = False
        self._transact = world.metadata.transact
        world.metadata.transact = self.transact  # type: ignore[method-assign]

    async def transact(self, transaction: Transaction) -> TransactionReply:
        draw = 1.0 if self.over else self.chance.random()
        if draw < 0.05:
            raise QuorumUnreachable("nobody leads")
        if draw < 0.10:
            raise OutcomeUnknown("was not done")
        if draw < 0.15:
            await self._transact(transaction)
            raise OutcomeUnknown("was done")
        return await self._transact(transaction)

    async def run(self) -> None:
        ledgers = self.world.ledgers
        while True:
            await trio.sleep(self.chance.expovariate(1.0))
            fault = self.chance.randrange(4)
            ledgers.keep_in_flight = self.chance.randrange(6)
            if fault == 0:
                ledgers.held = True
                await trio.sleep(self.chance.random())
                ledgers.release()
            elif fault == 1:
                ledgers.away = True
                await trio.sleep(3 * self.chance.random())
                ledgers.away = False
            elif fault == 2:
                ledgers.held = True  # so that something is in flight when it fails
                await trio.sleep(0.3 * self.chance.random())
                living = [w for w in ledgers.writers if w.error is None]
                for writer in self.chance.sample(living, min(1, len(living))):
                    writer.fail(WriteFailed("no acks"))
                await trio.sleep(0.01)
                ledgers.release()
            else:
                living = [w for w in ledgers.writers if w.error is None]
                for writer in living:
                    writer.needs_roll = self.chance.random() < 0.5

    def heal(self) -> None:
        self.over = True
        self.world.ledgers.away = False
        self.world.ledgers.release()


class History:
    """What clients saw."""

    def __init__(self) -> None:
        self.submitted: dict[int, list[bytes]] = {}
        self.acknowledged: dict[bytes, DLSN] = {}
        self.tailed: list[list[tuple[DLSN, int, bytes]]] = []


async def write(world: World, chance: random.Random, history: History, name: int) -> None:
    """One process after another, each with one writer until it fails, is killed or leaves."""
    number = 0
    while True:
        await trio.sleep(3 * chance.random())
        async with world.process(
            f"p{name}", segment_bytes_max=1500, entry_bytes_max=300, in_flight_bytes_max=2000,
            recover_timeout_s=5, close_timeout_s=5, max_txid_check=False,
        ) as ns:  # fmt: skip
            life = chance.expovariate(1 / 4)
            with trio.move_on_after(life) as killed:
                try:
                    log = ns.open_log("l")
                    async with log.open_writer(
                        takeover=chance.random() < 0.7, wait_s=2 * chance.random()
                    ) as writer:
                        mine = history.submitted.setdefault(len(history.submitted), [])
                        until = trio.current_time() + 6 * chance.random()
                        while trio.current_time() < until:
                            pending: list[tuple[bytes, PendingWrite]] = []
                            for _ in range(chance.randrange(1, 12)):
                                payload = b"%d.%d" % (name, number)
                                number += 1
                                mine.append(payload)
                                record = LogRecord(1, payload + bytes(chance.randrange(60)))
                                pending.append((payload, await writer.submit(record)))
                            if chance.random() < 0.7:
                                await trio.sleep(0.2 * chance.random())
                            for payload, one in pending:
                                history.acknowledged[payload] = await one
                except DistributedLogError:
                    pass
            del killed


async def tail(world: World, chance: random.Random, history: History) -> None:
    while True:
        seen: list[tuple[DLSN, int, bytes]] = []
        history.tailed.append(seen)
        async with world.process("tail") as ns:
            try:
                async with ns.open_log("l").open_reader() as reader:
                    until = trio.current_time() + 20 * chance.random()
                    while trio.current_time() < until:
                        for record in await reader.read_bulk(20, wait_s=0.5):
                            payload = record.payload.rstrip(b"\0")
                            seen.append((record.dlsn, record.sequence_id, payload))
            except DistributedLogError:
                await trio.sleep(0.1)


@pytest.mark.parametrize("seed", few(range(SEEDS), 2))
async def test_the_guarantees_hold_under_faults(
    world: World, autojump_clock: MockClock, seed: int
) -> None:
    """G1, G2, G4, G5, G7; H11, H12: the checks at the end name what they check."""
    chance = random.Random(seed)
    history = History()
    chaos = Chaos(world, chance)
    async with world.process("first") as ns:
        while True:
            try:
                await ns.create_log("l")
                break
            except DistributedLogError:
                if await ns.log_exists("l"):
                    break

    async with trio.open_nursery() as nursery:
        tasks: list[Callable[[], Awaitable[None]]] = [chaos.run]
        tasks += [lambda n=n: write(world, chance, history, n) for n in range(3)]  # type: ignore[misc]
        tasks += [lambda: tail(world, chance, history)] * 2
        for task in tasks:
            nursery.start_soon(task)
        await trio.sleep(CHAOS_S)
        nursery.cancel_scope.cancel()

    chaos.heal()
    final: list[tuple[DLSN, int, bytes]] = []
    with trio.fail_after(60):  # liveness: after healing a writer opens, writes and leaves
        async with world.process("last") as ns:
            log = ns.open_log("l")
            async with log.open_writer(takeover=True) as writer:
                await writer.write(LogRecord(1, b"last"))
            async with log.open_reader(to="end") as reader:
                async for record in reader:
                    payload = record.payload.rstrip(b"\0")
                    final.append((record.dlsn, record.sequence_id, payload))
            shown = await log.describe()

    assert len(history.acknowledged) > 100, "the run was worth it"
    place = {payload: dlsn for dlsn, _, payload in final}
    assert len(place) == len(final), "each record is there at most once"
    assert [dlsn for dlsn, _, _ in final] == sorted(dlsn for dlsn, _, _ in final), "G1"
    assert [number for _, number, _ in final] == list(range(len(final))), "no gap in sequence ids"
    for payload, dlsn in history.acknowledged.items():
        assert place.get(payload) == dlsn, f"G2: {payload!r} was acknowledged at {dlsn}"
    order = {payload: at for at, (_, _, payload) in enumerate(final)}
    for mine in history.submitted.values():
        found = [order[payload] for payload in mine if payload in order]
        assert found == sorted(found), "G1: one writer's records keep their order"
        assert found == [order[p] for p in mine[: len(found)]], "H11: a prefix of each writer's"
        assert not found or found[-1] - found[0] == len(found) - 1, "G4: nobody writes between"
    for seen in history.tailed:
        assert seen == final[: len(seen)], "G5: what was read stays where it was"
    assert shown.records == len(final)
    assert all(segment.closed for segment in shown.segments)
