"""A writer that stops between any two of its steps, while another takes the log over; then it goes on.

The real log and ledger parts over model bookies: fences, recoveries and shares of transactions are the
product's own. H12: the order of a takeover is what keeps a zombie from being believed.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from distributedlog.ledger.declarations.options import LedgerOptions
from distributedlog.ledger.ledger_client import LedgerClient
from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.format.record import LogRecord
from distributedlog.log.model.log_state import LogState
from distributedlog.log.namespace import Namespace
from distributedlog.log.takeover.log_lock import acquire_log_lock
from distributedlog.metadata.model.transaction import KeyValue, Transaction, TransactionReply
from distributedlog.runtime.declarations.options import with_overrides
from distributedlog.runtime.interfaces.errors import DistributedLogError, WriterFenced
from distributedlog.runtime.interfaces.host import Host
from tests.examples import few
from tests.ledger.model_bookie import ModelCluster, model_cluster, no_endpoint
from tests.log.conftest import World
from tests.metadata.local_metadata import LocalMetadata

T = TypeVar("T")
STEPS = 14
"""An opening and its first rolls ask the metadata so often, more or less."""


class Gated:
    """One process' way to the metadata: it stops at its n-th question, before or after that is done."""

    def __init__(self, store: LocalMetadata) -> None:
        self._store = store
        self.stop_at = -1
        self.before = True
        self.asked = 0
        self.stopped = trio.Event()
        self.go_on = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def _gate(self, call: Callable[[], Awaitable[T]]) -> T:
        number, self.asked = self.asked, self.asked + 1
        if number != self.stop_at:
            return await call()
        if self.before:
            self.stopped.set()
            await self.go_on.wait()
            return await call()
        answer = await call()
        self.stopped.set()
        await self.go_on.wait()
        return answer

    async def get(self, key: bytes) -> KeyValue | None:
        return await self._gate(lambda: self._store.get(key))

    async def transact(self, transaction: Transaction) -> TransactionReply:
        return await self._gate(lambda: self._store.transact(transaction))


@asynccontextmanager
async def process(
    cluster: ModelCluster, owner: str, seed: int, **options: Any
) -> AsyncIterator[tuple[Namespace, Gated]]:
    """A client process; leaving it is a kill."""
    gate = Gated(cluster.store)
    async with trio.open_nursery() as nursery:
        host = Host(
            name=owner,
            dial=None,  # type: ignore[arg-type]
            listen=None,  # type: ignore[arg-type]
            disks={},
            random=random.Random(seed),
            wall_ms=lambda: 1_700_000_000_000,
        )
        ledgers = LedgerClient(
            host,
            no_endpoint(),
            gate,
            cluster.pool,
            LedgerOptions(),
        )
        await nursery.start(ledgers.run)
        namespace = Namespace(
            "ns",
            metadata=gate,
            ledgers=ledgers,
            nursery=nursery,
            random=random.Random(seed),
            wall_ms=lambda: 1_700_000_000_000,
            owner=owner,
            options=with_overrides(LogOptions(), {"lock_lease_s": 5.0, **options}),
        )
        yield namespace, gate
        nursery.cancel_scope.cancel()


class Client:
    """Writes numbered records until it cannot, and remembers which were acknowledged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acked: list[int] = []
        self.error: DistributedLogError | None = None

    async def write(self, namespace: Namespace, records: int) -> None:
        try:
            async with namespace.open_log("l").open_writer(takeover=True) as writer:
                for n in range(records):
                    record = LogRecord(0, b"%s %d" % (self.name.encode(), n))
                    pending = await writer.submit(record)
                    await pending
                    self.acked.append(n)
                    await trio.sleep(0.002)
        except DistributedLogError as error:
            self.error = error


async def records_of(namespace: Namespace) -> list[tuple[str, int]]:
    """What a reader gets, as (client, number)."""
    async with namespace.open_log("l").open_reader(to="end") as reader:
        found = [record.payload.decode().split() async for record in reader]
    return [(name, int(number)) for name, number in found]


def check(found: list[tuple[str, int]], *clients: Client) -> None:
    """G1-G3 for each client: in order, each once, all that was acknowledged."""
    for client in clients:
        mine = [number for name, number in found if name == client.name]
        assert mine == sorted(set(mine)), f"{client.name}: {mine}"
        assert set(client.acked) <= set(mine), f"{client.name}: lost {client.acked} {mine}"


@pytest.mark.parametrize(
    ("before", "taker_stops_too"),
    few([(False, True), (True, False), (False, False), (True, True)], 1),
)
async def test_a_zombie_between_any_two_steps(
    autojump_clock: MockClock, before: bool, taker_stops_too: bool
) -> None:
    """H11, H12: A opens, writes and rolls, and stops at each of its steps in turn; B takes over (and may
    stop as well, C takes over from both); then everybody goes on.
    """
    for step in range(STEPS if taker_stops_too else 2 * STEPS):
        a, b, c = Client("a"), Client("b"), Client("c")
        async with (
            model_cluster(4) as cluster,
            process(cluster, "alpha", 1, segment_bytes_max=400) as (of_a, gate_a),
            process(cluster, "beta", 2, segment_bytes_max=400) as (of_b, gate_b),
            process(cluster, "gamma", 3) as (of_c, _),
            trio.open_nursery() as nursery,
        ):
            gate_a.stop_at, gate_a.before = step, before
            nursery.start_soon(a.write, of_a, 12)
            with trio.move_on_after(1):
                await gate_a.stopped.wait()
            acked_before = len(a.acked)
            opened = acked_before > 0
            if taker_stops_too:
                gate_b.stop_at, gate_b.before = step // 2 + 3, not before
            nursery.start_soon(b.write, of_b, 6)
            await trio.sleep(1)
            if taker_stops_too:
                await c.write(of_c, 3)
                gate_b.go_on.set()
                await trio.sleep(1)
            gate_a.go_on.set()
            await trio.sleep(30)
            found = await records_of(of_c)
            nursery.cancel_scope.cancel()
        check(found, a, b, c)
        last = c if taker_stops_too else b
        names = [name for name, _ in found]
        if opened and last.acked:
            first = names.index(last.name)
            assert "a" not in names[first:], f"step {step}: a zombie's record after {names}"
            assert [n for name, n in found[:first] if name == "a"][:acked_before] == list(
                range(acked_before)
            )
        if taker_stops_too:
            assert c.acked == [0, 1, 2]
        else:
            assert b.acked or a.acked


async def test_a_zombie_opens_no_segment_in_a_log_that_is_being_deleted(
    world: World, autojump_clock: MockClock
) -> None:
    """H13: who deletes raises the epoch like a writer; else a ledger would be made that nobody deletes."""
    async with world.process("alpha") as a, world.process("beta") as b:
        writer = await a.open_log("l").open_writer()
        await writer.write(LogRecord(0, b"x"))
        await acquire_log_lock(
            b.context,
            await a.resolve_name("l"),
            takeover=True,
            wait_s=0,
            claim_state=LogState.with_deletion_begun,
        )
        made = len(world.ledgers.writers)

        world.ledgers.writers[-1].needs_roll = True
        await trio.sleep(60)

        assert isinstance(writer.error, WriterFenced)
        assert len(world.ledgers.writers) == made


async def test_a_writer_that_is_killed_at_any_step_of_its_rolls(autojump_clock: MockClock) -> None:
    """H150: between 15/16 and the switch the log has a segment that no bookie has heard of. Whoever takes
    over finds it empty, and all that was acknowledged before it."""
    prepared = 0
    for step in range(2 * STEPS):
        a, b = Client("a"), Client("b")
        async with model_cluster(4) as cluster:
            async with (
                process(cluster, "alpha", 1, segment_bytes_max=400) as (of_a, gate_a),
                trio.open_nursery() as nursery,
            ):
                gate_a.stop_at, gate_a.before = step, step % 2 == 0
                nursery.start_soon(a.write, of_a, 12)
                with trio.move_on_after(1):
                    await gate_a.stopped.wait()
                nursery.cancel_scope.cancel()
            async with process(cluster, "beta", 2) as (of_b, _):
                before = (await of_b.open_log("l").describe()).state if a.acked else None
                await b.write(of_b, 3)
                found = await records_of(of_b)
                check(found, a, b)
                assert b.acked == [0, 1, 2], step
                assert [name for name, _ in found] == sorted(name for name, _ in found)
                shown = await of_b.open_log("l").describe()
                assert all(one.closed for one in shown.segments)
                if before is not None and len(before.in_progress) == 2:
                    prepared += shown.segments[before.last_segment - 1].records == 0
    assert prepared, "some were killed while the next segment was ready and not yet written"
