"""The log on a disk that loses power at any moment, and keeps any of the sectors that were not synced."""

import random
from contextlib import suppress
from functools import partial

import pytest
import trio

from distributedlog.metadata.raft.raft_log import RaftLog
from distributedlog.metadata.raft.raft_messages import Entry
from distributedlog.metadata.raft.ready import HardState, Ready, Snapshot
from distributedlog.metadata.storage.member_identity import (
    MemberIdentity,
    load_member_identity,
    store_member_identity,
)
from distributedlog.metadata.storage.raft_storage import LoadedRaftState, RaftStorage
from distributedlog.runtime.interfaces.errors import DiskFull
from distributedlog.testing.sim.world.disk import DiskFaults, SimDisk
from distributedlog.testing.sim.world.disk_handle import DiskHandle
from distributedlog.testing.sim.world.machine_state import HostDown
from tests.examples import examples, few

from ..runtime.sim_sides import Unwalled, running
from .storage.test_raft_storage import ready

State = tuple[HardState, int, int, tuple[Entry, ...]]
LIVES = 6


def state_of(hard_state: HardState, log: RaftLog) -> State:
    return hard_state, log.base_index, log.base_term, log.entries_from(log.base_index + 1)


class Writer:
    """Does to a `RaftStorage` what a replica may, and knows what it may find after a power cut."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.hard_state = HardState()
        self.log = RaftLog()
        self.committed = 0
        """No entry up to here is ever truncated: a snapshot was taken of it."""
        self.is_durable = True
        """The last thing that was saved was."""
        self.allowed: list[State] = []
        """What may be found: the last state that was durable, and those that were on their way."""

    def take(self, loaded: LoadedRaftState) -> None:
        """A start found one of the allowed states."""
        found = state_of(loaded.hard_state, loaded.log)
        assert loaded.damage == "", "a power cut is no damage (H3)"
        assert any(map(partial(_fits, found), self.allowed)), (
            f"found {found}, allowed {self.allowed}"
        )
        if loaded.log.base_index:
            assert loaded.snapshot is not None
            assert loaded.snapshot.index >= loaded.log.base_index
        self.hard_state, self.log = loaded.hard_state, loaded.log
        self.allowed = [found]

    async def run(self, storage: RaftStorage) -> None:
        """Until the power goes."""
        while True:
            step = self.chance.randrange(10)
            # A snapshot is of what was applied, and that is durable.
            if step == 0 and self.is_durable and self.log.last_index > self.log.base_index:
                await self._compact(storage)
            elif step == 1:
                await storage.write_watermark()
                await trio.sleep(0.02)
            else:
                await self._save(storage)

    async def _save(self, storage: RaftStorage) -> None:
        readies = [self._ready() for _ in range(self.chance.randint(1, 3))]
        self.allowed.append(state_of(self.hard_state, self.log))
        self.is_durable = False
        with suppress(DiskFull):
            await storage.save(readies)
            del self.allowed[:-1]
            self.is_durable = True

    async def _compact(self, storage: RaftStorage) -> None:
        index = self.chance.randint(self.log.base_index + 1, self.log.last_index)
        term = self.log.term_at(index)
        assert term is not None
        snapshot = Snapshot(index, term)
        self.committed = max(self.committed, index)  # whether the snapshot gets its name or not
        try:
            await storage.snapshots.save(snapshot, [bytes(5000), bytes(300)])
        except DiskFull:
            return
        self.log.compact(index)
        self.allowed.append(state_of(self.hard_state, self.log))
        await storage.compact(snapshot)
        if self.is_durable:
            del self.allowed[:-1]

    def _ready(self) -> Ready:
        chance, log = self.chance, self.log
        term = max(self.hard_state.term, log.last_term, 1)
        truncate_from = None
        if chance.random() < 0.2:
            term += 1
            self.hard_state = HardState(term, chance.choice("abc"))
            if log.last_index > max(log.base_index, self.committed):
                lowest = max(log.base_index, self.committed) + 1
                truncate_from = chance.randint(lowest, log.last_index)
                log.truncate(truncate_from)
        first = log.last_index + 1
        sizes = [chance.choice((0, 10, 5000)) for _ in range(chance.randint(1, 4))]
        entries = tuple(
            Entry(first + n, term, b"\0" + chance.randbytes(s)) for n, s in enumerate(sizes)
        )
        log.append(entries)
        return ready(hard_state=self.hard_state, truncate_from=truncate_from, append=entries)


def _fits(found: State, allowed: State) -> bool:
    """Equal, but for entries that are no longer needed: a full disk may keep their file."""
    hard_state, base, _, tail = allowed
    return (
        (found[0], found[1] + len(found[3])) == (hard_state, base + len(tail))
        and found[1] <= base
        and found[3][base - found[1] :] == tail
    )


@pytest.mark.parametrize("seed", few(range(examples(20)), 3))
async def test_what_was_durable_is_there_after_a_power_cut(
    seed: int, autojump_clock: object
) -> None:
    """M4, H3, H4: one of two states is found, never damage; also when starts are cut short."""
    await live_through_power_cuts(seed)


@pytest.mark.parametrize("seed", few(range(examples(20)), 3))
async def test_what_was_durable_is_there_after_a_power_cut_on_a_full_disk(
    seed: int, autojump_clock: object
) -> None:
    """The same where room comes and goes: what a full disk did not take may be there, or not, as a whole."""
    await live_through_power_cuts(seed, fills=True)


async def live_through_power_cuts(seed: int, *, fills: bool = False) -> None:
    simulation, chance = Unwalled(), random.Random(seed)
    machine = running("m1")
    disk = SimDisk(simulation, machine, "metadata", DiskFaults(slow_chance=0.0))
    disk.rng = random.Random(seed + 1)
    writer = Writer(chance)
    first = RaftStorage(DiskHandle(disk), seed)
    await first.create_log()
    await store_member_identity(DiskHandle(disk), MemberIdentity("c", {"m1": "id"}, True, seed))
    writer.allowed = [state_of(HardState(), RaftLog())]

    async def live() -> None:
        try:
            members = await load_member_identity(DiskHandle(disk))
            assert members is not None
            storage = RaftStorage(DiskHandle(disk), members.seed)
            loaded, members = await storage.load(members)
            assert members.may_vote, loaded.damage
            writer.take(loaded)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(storage.zero_ahead)
                await writer.run(storage)
        except* HostDown:
            pass  # the power went

    async def fill() -> None:
        while fills:
            disk.faults.bytes_max = disk.used_bytes() + chance.choice((0, 4096, 20_000, 1 << 30))
            await trio.sleep(chance.choice((0.002, 0.02)))

    for _ in range(LIVES):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live)
            nursery.start_soon(fill)
            await trio.sleep(chance.choice((0.005, 0.02, 0.2)) * (1 + chance.random()))
            machine.incarnation += 1  # the process is gone
            disk.on_power_cut()
            nursery.cancel_scope.cancel()
