"""Ledgers in memory, over the real metadata state machine: what the log part is tested on.

Small and honest: a ledger's record is a key in the store with a version; creation, closing and deletion are
shares of transactions; an entry is readable only once something said so (a later entry, `publish_lac`, the
close); recovery fences first, keeps everything that was acknowledged, and may keep what was merely sent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio
import xxhash

from distributedlog.bookie.format.entry import encode
from distributedlog.log.interfaces.segment_store import SegmentEntry
from distributedlog.metadata.model.transaction import Compare, Put, Transaction
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DistributedLogError,
    InvalidRequest,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    RecoveryIncomplete,
    VersionConflict,
)
from distributedlog.runtime.interfaces.host import Buffer
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.metadata.local_metadata import LocalMetadata

DELAY_S = 0.001


@dataclass(slots=True)
class ModelEntry:
    ledger: int
    entry: int
    payload: memoryview
    length_so_far: int

    @property
    def record(self) -> memoryview:
        size = len(self.payload)
        lac = self.entry - 1
        return memoryview(
            encode(self.ledger, self.entry, self.length_so_far, lac, [self.payload], size)
        )


@dataclass(slots=True)
class ModelClosed:
    last_entry: int | None
    length: int | None


class Store:
    """What the bookies hold of one ledger."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.durable = 0
        self.lac = -1
        self.fenced = False
        self.changed = trio.Event()

    def learn_lac(self, lac: int) -> None:
        self.lac = max(self.lac, lac)
        self.tell()

    def tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class ModelPrepared:
    def __init__(
        self,
        ledger_id: int,
        owner: tuple[int, int] | None,
        incarnation: int = 0,
        custom: Mapping[str, bytes] | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.owner = owner
        self.incarnation = incarnation
        self.custom = dict(custom or {})

    @property
    def key(self) -> bytes:
        return b"ledger/%016x" % self.ledger_id

    def create_ops(self) -> Transaction:
        value = pack(["open", -1, 0, self.owner, self.incarnation, self.custom])
        return Transaction((Compare.version(self.key, 0),), (Put(self.key, value),))


class ModelFound:
    """A ledger's record as it was read."""

    def __init__(self, ledger_id: int, version: int, fields: list[Any]) -> None:
        self._key = b"ledger/%016x" % ledger_id
        self._version = version
        self._fields = fields
        state, last, length, owner, self.incarnation, self.custom = fields
        self.owner = None if owner is None else (owner[0], owner[1])
        self.closed = state == "closed"
        self.quorums = (3, 3, 2)
        self.last_entry = last if self.closed else None
        self.length = length if self.closed else None

    def _share(self, state: str, owner: tuple[int, int] | None) -> Transaction:
        value = pack([state, *self._fields[1:3], owner, *self._fields[4:]])
        return Transaction((Compare.version(self._key, self._version),), (Put(self._key, value),))

    def link_ops(self, owner: tuple[int, int]) -> Transaction:
        assert self.closed
        assert self.owner is None
        return self._share("closed", owner)

    def delete_ops(self) -> Transaction:
        if self.owner is not None:
            raise InvalidRequest(f"{self._key!r} belongs to {self.owner}")
        return self._share("deleting", None)


class ModelWriter:
    """Adds are durable ``DELAY_S`` after the last `tick`, unless the cluster holds them."""

    def __init__(
        self,
        cluster: "ModelLedgers",
        prepared: ModelPrepared,
        on_confirmed: Callable[[int], None],
        on_failed: Callable[[DistributedLogError], None],
    ) -> None:
        self.ledger_id = prepared.ledger_id
        self.lac = -1
        self.error: DistributedLogError | None = None
        self.needs_roll = self.should_close_early = False
        self.on_confirmed = on_confirmed
        self.on_failed = on_failed
        self.added = 0
        self.published: list[int] = []
        self._cluster = cluster
        self._key = prepared.key
        self._prepared = prepared
        self._lengths: list[int] = []
        self.over = self.closing = False

    @property
    def store(self) -> Store:
        return self._cluster.stores[self.ledger_id]

    @property
    def last_entry(self) -> int:
        return self.added - 1

    @property
    def in_flight_bytes(self) -> int:
        return sum(self._lengths[self.lac + 1 :])

    @property
    def has_capacity(self) -> bool:
        return self.added - 1 - self.lac < self._cluster.window

    async def wait_capacity(self) -> None:
        while not self.has_capacity and self.error is None:
            await self.store.changed.wait()

    def add(self, buffers: Sequence[Buffer], payload_bytes: int) -> int:
        if self.error is not None:
            raise self.error
        payload = b"".join(buffers)
        assert len(payload) == payload_bytes
        assert not self.over, "nothing is added after abort or close"
        self._lengths.append(payload_bytes)
        self.added += 1
        self._cluster.sent(self, payload)
        return self.added - 1

    def publish_lac(self) -> None:
        self.published.append(self.lac)
        if not self.store.fenced:
            self.store.learn_lac(self.lac)

    async def flush_lac(self) -> None:
        self.publish_lac()

    async def wait_settled(self) -> None:
        if self.closing:
            return
        while self.lac < self.added - 1 and self.error is None:
            await self.store.changed.wait()
        if self.error is not None:
            raise self.error

    def close_ops(self, custom: Mapping[str, bytes] | None = None) -> Transaction:
        if self.error is not None and not self.closing:
            raise self.error
        self.closing = True
        self.error = AlreadyClosed("closed by its writer")
        assert self.lac == self.added - 1, "all adds are confirmed"
        made = self._prepared
        custom = {**made.custom, **(custom or {})}
        end = ["closed", self.lac, sum(self._lengths)]
        value = pack([*end, made.owner, made.incarnation, custom])
        return Transaction((Compare.version(self._key, 1),), (Put(self._key, value),))

    def abort(self) -> None:
        self.over = True
        self.error = self.error or AlreadyClosed("given up")

    def fail(self, error: DistributedLogError) -> None:
        if self.error is None and not self.over:
            self.error = error
            self.on_failed(error)


class ModelReader:
    def __init__(self, cluster: "ModelLedgers", ledger_id: int) -> None:
        self._cluster = cluster
        self._ledger_id = ledger_id
        self._last: int | None = None
        self._proven = -1
        self._heard_at = -float("inf")
        self.over = False

    @property
    def lac(self) -> int:
        if self._last is not None:
            return self._last
        return max(self._proven, self._cluster.stores[self._ledger_id].lac)

    @property
    def closed(self) -> bool:
        return self._last is not None

    @property
    def last_response_at(self) -> float:
        return self._heard_at

    async def why_unreadable(self, entry: int) -> str:
        await self.look()
        return self._cluster.broken.get((self._ledger_id, entry), "") if self.closed else ""

    def record_lac(self, lac: int) -> None:
        self._proven = max(self._proven, lac)

    def close(self) -> None:
        self.over = True

    async def refresh_lac(self) -> int:
        await self.look()
        return self.lac

    async def look(self) -> None:
        state, last, *_ = await self._cluster.record(self._ledger_id)
        if state == "closed":
            self._last = last

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[ModelEntry]:
        await trio.sleep(self._cluster.read_s)
        if self._ledger_id not in self._cluster.stores:
            raise NoSuchLedger(f"ledger {self._ledger_id} does not exist")
        entries = self._cluster.stores[self._ledger_id].entries
        assert 0 <= first <= last <= self.lac
        if first >= len(entries):  # somebody said that it is confirmed, and it is not there
            raise NoSuchEntry(f"ledger {self._ledger_id} has no entry {first}")
        last = min(last, len(entries) - 1)
        found: list[ModelEntry] = []
        broken = self._cluster.broken
        if (self._ledger_id, first) in broken:
            raise CorruptData(broken[self._ledger_id, first] or "some replicas do not answer")
        for entry in range(first, last + 1):
            if (self._ledger_id, entry) in broken:
                break
            length = sum(map(len, entries[: entry + 1]))
            self._cluster.entries_read += 1
            found.append(ModelEntry(self._ledger_id, entry, memoryview(entries[entry]), length))
            bytes_max -= len(entries[entry])
            if bytes_max <= 0:
                break
        return found

    async def wait(
        self,
        after: int,
        *,
        wait_s: float,
        on_entries: Callable[[Sequence[SegmentEntry]], int] | None = None,
    ) -> int:
        with trio.move_on_after(wait_s):
            while not self.closed:
                if on_entries is not None and self.lac > after:
                    after += on_entries(await self.read(after + 1, self.lac, bytes_max=1 << 20))
                if self.lac > after:
                    break
                if not self._cluster.silent:
                    self._heard_at = trio.current_time()
                store = self._cluster.stores.get(self._ledger_id)
                if store is None:
                    raise NoSuchLedger(f"ledger {self._ledger_id} does not exist")
                changed = store.changed
                await self.look()
                if self.lac <= after and not self.closed:
                    with trio.move_on_after(0.05):
                        await changed.wait()
        return self.lac


class ModelLedgers:
    """All ledgers, and the faults: acks that are held, bookies that are away, errors."""

    def __init__(self, metadata: LocalMetadata) -> None:
        self.metadata = metadata
        self.stores: dict[int, Store] = {}
        self.writers: list[ModelWriter] = []
        self.window = 1000
        self.held = False
        """What is sent now reaches no disk."""
        self.dead: set[int] = set()
        """Ledgers whose entries reach no disk, until they are taken out."""
        self.away = False
        """Recoveries and creations find no bookies."""
        self.silent = False
        """No bookie answers a wait."""
        self.read_s = 0.0
        """Seconds after which a read is answered."""
        self.broken: dict[tuple[int, int], str] = {}
        """Entries that cannot be read, by ledger and entry: what all replicas say, "" where some are away."""
        self.entries_read = 0
        """By all readers."""
        self.keep_in_flight = 0
        """How many entries that were sent and not acknowledged the next recoveries find."""
        self._next_id = 1
        self._sent: list[tuple[ModelWriter, bytes]] = []
        self._wake = trio.Event()

    def defer_sends(self) -> None:
        """What is sent has no frames."""

    def send_deferred(self) -> None:
        """See `defer_sends`."""

    async def run(self) -> None:
        """Make what was sent durable, and say so, in batches."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await trio.sleep(DELAY_S)
            if not self.held:
                self.flush()

    def flush(self) -> None:
        """Everything sent reaches its disk now, in the order it was sent."""
        sent, self._sent = self._sent, []
        confirmed: dict[ModelWriter, int] = {}
        for writer, payload in sent:
            if writer.ledger_id in self.dead:
                self._sent.append((writer, payload))
                continue
            if writer.store.fenced:
                writer.fail(LedgerFenced(f"ledger {writer.ledger_id} is fenced"))
                continue
            writer.store.entries.append(payload)
            writer.store.learn_lac(len(writer.store.entries) - 2)  # each entry carries the LAC
            writer.lac = len(writer.store.entries) - 1
            confirmed[writer] = writer.lac
        for writer, lac in confirmed.items():
            if not writer.over:
                writer.on_confirmed(lac)
                if writer.lac == writer.added - 1:
                    writer.publish_lac()

    def release(self) -> None:
        """End a hold."""
        self.held = False
        self._wake.set()

    def sent(self, writer: ModelWriter, payload: bytes) -> None:
        self._sent.append((writer, payload))
        self._wake.set()

    async def record(self, ledger_id: int) -> Any:
        found = await self.metadata.get(b"ledger/%016x" % ledger_id)
        fields = None if found is None else unpack(found.value, "a ledger")
        if fields is None or fields[0] == "deleting":
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return fields

    async def prepare(
        self,
        *,
        custom: Mapping[str, bytes] | None = None,
        owner: tuple[int, int] | None = None,
        quorums: tuple[int, int, int] | None = None,
        incarnation: int = 0,
    ) -> ModelPrepared:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise RecoveryIncomplete("the model's bookies are away")
        self._next_id += 1
        return ModelPrepared(self._next_id - 1, owner, incarnation, custom)

    def writer(
        self,
        prepared: ModelPrepared,
        *,
        on_confirmed: Callable[[int], None] = lambda _: None,
        on_failed: Callable[[DistributedLogError], None] = lambda _: None,
    ) -> ModelWriter:
        self.stores[prepared.ledger_id] = Store()
        made = ModelWriter(self, prepared, on_confirmed, on_failed)
        self.writers.append(made)
        return made

    async def find(self, ledger_id: int) -> ModelFound:
        found = await self.metadata.get(b"ledger/%016x" % ledger_id)
        fields = None if found is None else unpack(found.value, "a ledger")
        if found is None or fields is None or fields[0] == "deleting":
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return ModelFound(ledger_id, found.version, fields)

    async def open(self, ledger_id: int, *, replica_offset: int = 0) -> ModelReader:
        self.stores.setdefault(ledger_id, Store())
        reader = ModelReader(self, ledger_id)
        await reader.look()
        return reader

    async def open_tailing(self, ledger_id: int) -> ModelReader:
        return await self.open(ledger_id)

    async def recover(self, ledger_id: int) -> ModelClosed:
        await trio.sleep(DELAY_S)
        if self.away:
            raise RecoveryIncomplete(f"ledger {ledger_id}: the model's bookies are away")
        state, last, length, *rest = await self.record(ledger_id)
        store = self.stores.setdefault(ledger_id, Store())
        if state == "closed":
            return ModelClosed(last, length)
        store.fenced = True
        kept = [payload for writer, payload in self._sent if writer.ledger_id == ledger_id]
        self._sent = [item for item in self._sent if item[0].ledger_id != ledger_id]
        store.entries += kept[: self.keep_in_flight]
        for writer in self.writers:
            if writer.ledger_id == ledger_id:
                writer.fail(LedgerFenced(f"ledger {ledger_id} is fenced"))
        last, length = len(store.entries) - 1, sum(map(len, store.entries))
        key = b"ledger/%016x" % ledger_id
        found = await self.metadata.get(key)
        assert found is not None
        reply = await self.metadata.transact(
            Transaction(
                (Compare.version(key, found.version),),
                (Put(key, pack(["closed", last, length, *rest])),),
            )
        )
        if not reply.succeeded:
            raise VersionConflict(f"ledger {ledger_id} was changed while it was recovered")
        store.learn_lac(last)
        return ModelClosed(last, length)

    async def different_copy(self, ledger_id: int, digests: Sequence[int]) -> str:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise RecoveryIncomplete("the model's bookies are away")
        held = [xxhash.xxh3_64_intdigest(one) for one in self.stores[ledger_id].entries]
        return "" if held == list(digests) else f"b1: ledger {ledger_id} has other bytes"

    async def delete_ops(self, ledger_id: int) -> Transaction:
        key = b"ledger/%016x" % ledger_id
        found = await self.metadata.get(key)
        if found is None:
            return Transaction()
        return Transaction(
            (Compare.version(key, found.version),),
            (Put(key, pack(["deleting", -1, 0, None, 0, {}])),),
        )
