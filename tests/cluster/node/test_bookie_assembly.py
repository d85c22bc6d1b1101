"""A bookie's life on a live quorum: registered, again on the same disks, ended by a failing disk."""

import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from distributedlog.bookie.client.bookie_client import BookieClient
from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.format.entry import encode
from distributedlog.bookie.ledgers.ledger_table import LIMBO_ALL
from distributedlog.bookie.store.startup import open_store
from distributedlog.cluster.coordination.gc_hold import ElectionStatus, hold_deletions
from distributedlog.cluster.declarations.options import (
    BookieNodeConfig,
    MetadataNodeConfig,
    NodeReady,
)
from distributedlog.cluster.gc.retention import Retention
from distributedlog.cluster.gc.segment_merger import SegmentMerger
from distributedlog.cluster.gc.segment_purger import SegmentPurger
from distributedlog.cluster.gc.staged_ledger_collector import StagedLedgerCollector
from distributedlog.cluster.node import bookie_assembly, node_lifecycle, repair_tasks
from distributedlog.cluster.node.bookie_assembly import confine_limbo
from distributedlog.cluster.nodes import serve_node
from distributedlog.cluster.process.process_lifetime import first_error
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_ids import LedgerIds
from distributedlog.ledger.model.ledger_keys import LEDGER_ID_BLOCK
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.interface import Metadata
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    DataDirectoryInUse,
    DataDirectoryLost,
    DiskFailed,
    ForeignData,
)
from distributedlog.runtime.interfaces.host import Buffer, Disk, File, Host
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from tests.metadata.local_metadata import LocalMetadata

STORE = {"journal_file_bytes": 4 << 20, "gather_bytes": 1 << 20}


class _FailingDisk(MemoryDisk):
    """Its syncs fail once `failing` is set, as a device does that goes away."""

    failing = False

    async def create(self, name: str, *, size: int = 0, direct: bool = False) -> File:
        return _FailingFile(self, await super().create(name, size=size, direct=direct))


class _FailingFile:
    def __init__(self, disk: _FailingDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def write_synced(self, offset: int, buffer: Buffer) -> None:
        self._check()
        await self._file.write_synced(offset, buffer)

    def write_synced_now(self, offset: int, buffer: Buffer) -> None:
        self._check()
        self._file.write_synced_now(offset, buffer)

    async def sync(self) -> None:
        self._check()
        await self._file.sync()

    def _check(self) -> None:
        if self._disk.failing:
            raise DiskFailed(f"{self._file.name}: fdatasync: Input/output error")


def _disks(journal: Disk | None = None) -> dict[str, Disk]:
    return {"journal": journal if journal is not None else MemoryDisk(), "index": MemoryDisk()}


@dataclass
class _World:
    quorum: tuple[str, int]
    metadata: MetadataClient
    nursery: trio.Nursery
    errors: list[BaseException] = field(default_factory=list)

    def host(self, disks: dict[str, Disk]) -> Host:
        return real_host("b", disks=disks)

    @asynccontextmanager
    async def bookie(
        self, disks: dict[str, Disk], store: Mapping[str, Any] = STORE, **options: Any
    ) -> AsyncIterator[NodeReady]:
        """Run a bookie while the body runs; then end it cleanly."""
        config = BookieNodeConfig("b", (self.quorum,), store=store, metadata_timeout_s=5, **options)
        async with trio.open_nursery() as nursery:
            yield await nursery.start(serve_node, self.host(disks), config)
            nursery.cancel_scope.cancel()

    async def registration(self, bookie_id: str) -> BookieRegistration | None:
        found = await self.metadata.get(keys.bookie_key(bookie_id))
        return None if found is None else BookieRegistration.decode(found.key, found.value)


@asynccontextmanager
async def _world() -> AsyncIterator[_World]:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            host = real_host("m", disks={"metadata": MemoryDisk()})
            listener = await host.listen(("127.0.0.1", 0))
            address = listener.address
            listener.close()
            ready: NodeReady = await nursery.start(
                serve_node, host, MetadataNodeConfig("m", {"m": address})
            )
            assert ready.address == address
            client = MetadataClient(
                Endpoint(host, lambda: Hello()), [address], client_id="test", timeout_s=10
            )
            await nursery.start(client.run)
            yield _World(address, client, nursery)
            nursery.cancel_scope.cancel()


async def test_a_bookie_is_registered_while_it_serves_and_deregisters_at_a_clean_end() -> None:
    async with _world() as world:
        async with world.bookie(_disks()) as ready:
            found = await world.registration(ready.node_id)
            assert found is not None
            assert found.addresses == {"": ready.address}
            assert found.incarnation == 1

        assert await world.registration(ready.node_id) is None
        assert await world.metadata.get(keys.cookie_key(ready.node_id)) is not None


async def test_a_bookie_on_the_same_disks_is_the_same_bookie() -> None:
    """H6: the id is the data directory's."""
    async with _world() as world:
        disks = _disks()
        async with world.bookie(disks) as first:
            pass
        async with world.bookie(disks) as second:
            found = await world.registration(second.node_id)

        assert second.node_id == first.node_id
        assert found is not None
        assert found.incarnation == 2


async def test_a_bookie_whose_journal_was_replaced_does_not_start() -> None:
    async with _world() as world:
        disks = _disks()
        async with world.bookie(disks) as ready:
            pass
        disks["journal"] = MemoryDisk()

        with pytest.raises(BaseExceptionGroup) as caught:
            async with world.bookie(disks):
                pass

        assert isinstance(first_error(caught.value), ForeignData)
        assert await world.registration(ready.node_id) is None


async def test_a_copy_that_was_taken_while_it_ran_is_in_limbo_and_says_why() -> None:
    """H80: both disks, of the same start, whole in themselves: only the cluster knows that there was more."""
    async with _world() as world:
        bound = await LedgerIds(world.metadata).next() + LEDGER_ID_BLOCK
        disks: dict[str, Disk] = {"journal": MemoryDisk(), "index": MemoryDisk()}
        async with world.bookie(disks) as ready:
            before = await world.registration(ready.node_id)
            older = copy.deepcopy(disks)
            await _fence_something(world, ready)
        for disk in older.values():
            disk.unlock()

        async with world.bookie(older) as again:
            found = await world.registration(again.node_id)

        assert again.node_id == ready.node_id
        assert before is not None
        assert found is not None
        assert "an older copy of its directory" in found.conditions[0].text("cause")
        # Writers leave ledgers of before the loss, and only those.
        assert before.limbo_below == 0
        assert found.limbo_below == bound


async def test_a_note_that_cannot_be_read_is_limbo_and_no_refusal() -> None:
    """Anybody may have written it: the bookie starts, serves what it has, and denies nothing."""
    async with _world() as world:
        disks = _disks()
        async with world.bookie(disks) as ready:
            pass
        poison = Put(keys.sync_point_key(ready.node_id), b"\xc1")
        await world.metadata.transact(Transaction((), (poison,)))

        async with world.bookie(disks) as again:
            found = await world.registration(again.node_id)

        assert found is not None
        assert "seen/" in found.conditions[0].text("cause")


async def test_two_nodes_on_one_directory_are_refused() -> None:
    async with _world() as world:
        disks = _disks()
        async with world.bookie(disks):
            with pytest.raises(BaseExceptionGroup) as caught:
                async with world.bookie(disks):
                    pass
        assert isinstance(first_error(caught.value), DataDirectoryInUse)


@pytest.mark.parametrize("kind", ["bookie", "metadata"])
async def test_a_node_whose_files_were_removed_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The system still accepts its writes, into files that no start finds."""
    monkeypatch.setattr(node_lifecycle, "PLACE_S", 0.05)
    async with AsyncExitStack() as at_end, _world() as world:
        disk = DirectoryDisk(tmp_path / kind)
        at_end.push_async_callback(disk.close)
        config: BookieNodeConfig | MetadataNodeConfig
        if kind == "bookie":
            disks, config = _disks(disk), BookieNodeConfig("b", (world.quorum,), store=STORE)
        else:
            disks, config = {"metadata": disk}, MetadataNodeConfig("n", {"n": ("127.0.0.1", 0)})
        with pytest.RaisesGroup(
            pytest.RaisesExc(DataDirectoryLost, match=str(disk.path)), flatten_subgroups=True
        ):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_node, world.host(disks), config)
                # A metadata node opens and renames files until it is formed. Then its files stay the same.
                files, unchanged = disk.list(), 0
                while kind == "metadata" and unchanged < 50:
                    await trio.sleep(0.01)
                    before, files = files, disk.list()
                    is_formed = any(name.startswith("log.") for name in files)
                    unchanged = unchanged + 1 if is_formed and files == before else 0
                for each in [*disk.path.iterdir()]:
                    each.unlink(missing_ok=True)
                await trio.sleep_forever()


async def test_a_failed_sync_ends_the_whole_node() -> None:
    """Fail-stop: what the page cache shows is no longer to be trusted."""
    async with _world() as world:
        disk = _FailingDisk()

        error: BaseException | None = None
        try:
            async with world.bookie(_disks(disk)) as ready:
                disk.failing = True
                await _write_something(world, ready)
                await trio.sleep_forever()
        except* DiskFailed as group:
            error = first_error(group)

        assert isinstance(error, DiskFailed)
        with pytest.raises(OSError):  # nobody listens there any more
            await trio.open_tcp_stream(*ready.address)


async def _client(world: _World, ready: NodeReady) -> BookieClient:
    endpoint = Endpoint(real_host("c"), lambda: Hello())
    return BookieClient(await endpoint.dial(ready.address, nursery=world.nursery), ready.node_id)


async def _fence_something(world: _World, ready: NodeReady) -> None:
    """Durable when this returns."""
    await (await _client(world, ready)).fence(1, bytes(16), 10.0)


async def _write_something(world: _World, ready: NodeReady) -> None:
    client = await _client(world, ready)
    acked: Sequence[int] = []
    stream = client.open_stream(
        1,
        bytes(16),
        recovery=False,
        fragment_epoch=0,
        on_acked=list(acked).append,
        on_refused=lambda position, error: None,
    )
    stream.send(encode(1, 0, 1, -1, (b"x",), 1))


async def test_whoever_deletes_in_a_node_stops_while_deletions_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H104: purging, retention, merging and collecting take turns that are nobody's meanwhile."""
    turns: list[ElectionStatus] = []

    def asked(kind: Callable[..., Any]) -> Callable[..., Any]:
        def made(metadata: Metadata, turn: ElectionStatus, *rest: Any, **named: Any) -> Any:
            turns.append(turn)
            return kind(metadata, turn, *rest, **named)

        return made

    for kind in (SegmentPurger, Retention, SegmentMerger, StagedLedgerCollector):
        monkeypatch.setattr(bookie_assembly, kind.__name__, asked(kind))
    async with _world() as world, world.bookie(_disks()):
        await turns[0].is_elected()  # now the key is held, whoever of them asked first
        assert [await turn.is_elected() for turn in turns] == [True] * 4

        await hold_deletions(world.metadata, "an operator looks")

        assert [await turn.is_elected() for turn in turns] == [False] * 4


async def test_times_of_a_bookies_options_reach_the_parts_that_keep_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: dict[str, object] = {}

    def noted(module: ModuleType, kind: str, of: Callable[..., object]) -> None:
        original = getattr(module, kind)

        def make(*rest: Any, **named: Any) -> Any:
            made[kind] = of(*rest, **named)
            return original(*rest, **named)

        monkeypatch.setattr(module, kind, make)

    noted(bookie_assembly, "BookieAuthorizer", lambda silence_s, clock: silence_s)
    noted(bookie_assembly, "SegmentPurger", lambda *rest, **named: named["grace_s"])
    noted(repair_tasks, "OverReplication", lambda *rest, **named: named["every_s"])
    store = {**STORE, "trust_silence_s": 150.0}
    options = {"purge_grace_s": 7.0, "surplus_every_s": 11.0}
    async with _world() as world, world.bookie(_disks(), store, **options):
        while len(made) < 3:  # noqa: ASYNC110 (the parts are made in the background)
            await trio.sleep(0.01)

    assert made == {"BookieAuthorizer": 150.0, "SegmentPurger": 7.0, "OverReplication": 11.0}


async def test_a_loss_stays_unconfined_where_nobody_knows_the_next_ledger() -> None:
    """H7: ``next/ledger`` holds something else, whoever wrote it: unknown is not "no", and no end either."""
    disks: dict[str, Disk] = {"journal": MemoryDisk(), "index": MemoryDisk()}
    store = await open_store(real_host("b", disks=disks), BookieOptions(**STORE), bookie_id="b1")
    store.ledgers.limbo_below = 1 << 40
    metadata = LocalMetadata()
    await metadata.transact(Transaction((), (Put(keys.NEXT_LEDGER, "²".encode()),)))

    await confine_limbo(store, metadata)

    assert store.ledgers.limbo_below == 1 << 40


async def test_a_loss_before_the_first_ledger_holds_nothing_back(
    nursery: trio.Nursery,
) -> None:
    """H7: no id was ever given, so all that will be are new. It refused each of them, for ever."""
    disks: dict[str, Disk] = {"journal": MemoryDisk(), "index": MemoryDisk()}
    store = await open_store(real_host("b", disks=disks), BookieOptions(**STORE), bookie_id="b1")
    await nursery.start(store.run)
    store.ledgers.limbo_below = LIMBO_ALL

    await confine_limbo(store, LocalMetadata())

    assert not store.limbo.is_in_limbo(1)
