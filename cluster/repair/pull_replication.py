"""Ledgers that are to leave a bookie are fetched by those who take its place, each for itself.

The bookie that repairs (`lost_bookies.py`) says who is to take what, a key ``move/<target>/<ledger>`` each;
the target copies the entries to itself, so that they cross the network once and the rates of all targets add
up, and swaps itself into the ledger's record. One transaction takes the key away and swaps: who had its key
taken, because the bookie is back or because nothing was heard for `STALE_S`, changes nothing any more.
Both sides go by what they read, again and again; what nobody works off is taken back, and the one who
repairs does it himself.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model import ledger_transactions as transactions
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.stored_ledger import Unreadable
from ...metadata.model.interface import Metadata, Scan
from ...metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    UnsupportedFormat,
)
from ...runtime.interfaces.host import Buffer
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import fields, number, reads_back, text, versioned
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..coordination.reconcile_loop import reconcile_on_change
from .copier import Connections, Copier, held_by_slot

FORMAT = 1
EVERY_S = 10.0
BEAT_S = 15.0
"""While it copies a target says so as often."""
STALE_S = 60.0
"""A key that nobody has touched for so long is taken back."""
OUT_MAX = 64
"""Keys of one target at a time: what is more urgent later need not wait for all there is."""
LEDGERS_AT_ONCE = 4

log = get_logger("distributedlog.cluster.repair.pull_replication")

_MOVE = fields(
    format=number(), leaving=text(4096, 1), kind=number(0, 3), size_bytes=number(), beat=number()
)


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """What a target is to do with one ledger."""

    leaving: str
    """The bookie whose place it takes, in each fragment that names it."""
    kind: int
    size_bytes: int
    """The order, as `lost.Job` has it."""
    beat: int = 0
    """Counted up while it is worked on."""

    @reads_back(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As the key's value."""
        return pack(
            {
                "format": FORMAT,
                "leaving": self.leaving,
                "kind": self.kind,
                "size_bytes": self.size_bytes,
                "beat": self.beat,
            }
        )

    @classmethod
    def decode(cls, value: Buffer) -> "ReplicaMove":
        """Raises `CorruptData`, or `UnsupportedFormat` for the record of a newer version."""
        found = versioned(value, FORMAT, _MOVE, "a move of a ledger")
        del found["format"]
        return cls(**found)


class MoveQueue:
    """What the one who repairs has handed over, and to whom."""

    def __init__(self, metadata: Metadata, pulls: Callable[[str], bool]) -> None:
        self._metadata = metadata
        self._pulls = pulls
        """Does a bookie fetch by itself? One of an older version does not."""
        self._seen: dict[bytes, tuple[int, float]] = {}
        """Key to the revision it was seen with, and since when, by our own time."""
        self._unreadable = Unreadable()
        self._counts: Counter[str] = Counter()
        self._refused: set[tuple[int, str]] = set()
        """(ledger, bookie) that a target has not worked off, as of this look: done here."""
        self.under_way: set[tuple[int, str]] = set()
        """(ledger, bookie it leaves) that somebody has to do."""

    async def look(self, lost: Collection[str]) -> None:
        """See what is under way, and take back what is done by nobody, or need not be done any more."""
        now, seen = trio.current_time(), {}
        under_way: set[tuple[int, str]] = set()
        counts: Counter[str] = Counter()
        back: dict[str, bool] = {}
        self._refused = set()
        async for item in Scan(self._metadata, keys.MOVE_PREFIX):
            try:
                target, ledger_id = keys.bookie_id_of(item.key), keys.ledger_id_of(item.key)
                move = ReplicaMove.decode(item.value)
            except (CorruptData, UnsupportedFormat) as error:
                self._unreadable.note(item.key, error)
                continue
            if move.leaving not in back:
                back[move.leaving] = await self._is_back(move.leaving, lost)
            revision, since = self._seen.get(item.key, (item.mod_revision, now))
            since = since if revision == item.mod_revision else now
            stale = now - since >= STALE_S
            if stale or back[move.leaving]:
                await take_back(self._metadata, item)
                if stale:
                    self._refused.add((ledger_id, move.leaving))
                continue
            seen[item.key] = (item.mod_revision, since)
            under_way.add((ledger_id, move.leaving))
            counts[target] += 1
        self._seen, self.under_way, self._counts = seen, under_way, counts

    async def _is_back(self, bookie: str, lost: Collection[str]) -> bool:
        """Registered, and not to leave: it keeps what it has."""
        return bookie not in lost and await self._metadata.get(keys.bookie_key(bookie)) is not None

    def may_take(self, ledger_id: int, bookie: str, targets: Collection[str]) -> bool:
        """Is one of these worth asking to take a bookie's place?"""
        return (ledger_id, bookie) not in self._refused and any(map(self._pulls, targets))

    async def hand_over(
        self, ledger: LedgerMetadata, version: int, target: str, move: ReplicaMove
    ) -> bool:
        """Ask ``target`` to do it, while the record is as it was read.

        True also where it has enough to do: then it is asked later.
        """
        if self._counts[target] >= OUT_MAX:
            return True
        key = keys.move_key(target, ledger.ledger_id)
        asked = Transaction(
            (
                Compare.version(keys.ledger_key(ledger.ledger_id), version),
                Compare.version(key, 0),
            ),
            (Put(key, move.encode()),),
        )
        if not (await self._metadata.transact(asked)).succeeded:
            return False
        self._counts[target] += 1
        self.under_way.add((ledger.ledger_id, move.leaving))
        return True


async def take_back(metadata: Metadata, item: KeyValue) -> None:
    """A move as it was read is nobody's any more."""
    unchanged = Compare.mod_revision(item.key, item.mod_revision)
    await metadata.transact(Transaction((unchanged,), (Delete(item.key),)))


class PullReplication:
    """Fetches what this bookie is asked to take."""

    def __init__(
        self,
        metadata: Metadata,
        pool: Connections,
        copier: Copier,
        bookie_id: str,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._copier = copier
        self._bookie_id = bookie_id
        self._held_up = BlockedWorkLog(log, "ledgers that this bookie is to take wait")
        self.taken = 0
        """Ledgers since the start."""

    async def run(self) -> None:
        """Until cancelled."""
        prefix = keys.moves_to_prefix(self._bookie_id)
        await reconcile_on_change(
            self._metadata,
            (prefix,),
            self.work,
            every_s=EVERY_S,
            failures=self._failures,
            unit="the work on ledgers that this bookie is to take",
        )

    async def work(self) -> None:
        """Try each once, the most urgent first."""
        asked: list[tuple[int, int, bytes, ReplicaMove, KeyValue]] = []
        async for item in Scan(self._metadata, keys.moves_to_prefix(self._bookie_id)):
            try:
                move = ReplicaMove.decode(item.value)
                asked.append((move.kind, move.size_bytes, item.key, move, item))
            except (CorruptData, UnsupportedFormat) as error:
                self._held_up.note(type(error).__name__, f"{item.key!r}: {error}")
        asked.sort(key=lambda each: each[:3], reverse=True)

        async def pull() -> None:
            while asked:
                *_, move, item = asked.pop()
                unit = f"the work on {item.key!r}"
                if self._failures.rests(unit):
                    continue
                try:
                    with self._failures.contained(unit):
                        await self.pull(item, move)
                except DistributedLogError as error:
                    cause = f"in the place of {move.leaving}: {type(error).__name__}"
                    self._held_up.note(cause, f"{item.key!r}: {error}")

        async with trio.open_nursery() as nursery:
            for _ in range(LEDGERS_AT_ONCE):
                nursery.start_soon(pull)
        self._held_up.end_pass()

    async def pull(self, item: KeyValue, move: ReplicaMove) -> bool:
        """Do one move. False: it was taken back, or is not to be done any more. Raises what a copy raises."""
        failed: list[Exception] = []
        held = _Held(item.key, item.mod_revision)
        taken = False

        async def take() -> None:
            nonlocal taken
            try:
                taken = await self._take(held, move)
            except Exception as error:  # the nursery would wrap it
                failed.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await self._beat(held, move)
            nursery.cancel_scope.cancel()  # taken back: what was copied so far is one too many
        if failed:
            raise failed[0]
        return taken

    async def _beat(self, held: "_Held", move: ReplicaMove) -> None:
        """Say that it is worked on, until cancelled, or until it is not ours any more."""
        beat = move.beat
        while True:
            await trio.sleep(BEAT_S)
            beat += 1
            said = ReplicaMove(move.leaving, move.kind, move.size_bytes, beat)
            async with held.lock:
                try:
                    reply = await self._metadata.transact(
                        Transaction((held.ours,), (Put(held.key, said.encode()),))
                    )
                except DistributedLogError as error:  # it may be said: then the swap fails, once
                    log.info("%r: not said that it is worked on: %s", held.key, error)
                    continue
                if not reply.succeeded:
                    return
                held.revision = reply.revision

    async def _take(self, held: "_Held", move: ReplicaMove) -> bool:
        # Each start counts its cookie up: a bookie that was started again holds what it holds.
        cookie = await self._metadata.get(keys.cookie_key(self._bookie_id))
        own = self._pool.get(self._bookie_id)
        if cookie is None or own is None:
            raise ConnectionLost("this bookie has no connection to itself")
        ledger_id = keys.ledger_id_of(held.key)
        found = await self._metadata.get(keys.ledger_key(ledger_id))
        if found is None:
            return await self._give_up(held)
        ledger = LedgerMetadata.decode(found.key, found.value)
        places = [
            (index, fragment)
            for index, fragment in enumerate(ledger.ensembles)
            if move.leaving in fragment.bookies
        ]
        if not ledger.closed or not places:
            return await self._give_up(held)
        changed = ledger
        for index, fragment in places:
            if self._bookie_id in fragment.bookies:
                return await self._give_up(held)
            slot = fragment.bookies.index(move.leaving)
            wanted = held_by_slot(ledger, index, slot)
            await self._copier.copy(ledger, wanted, self._bookie_id, own)
            changed = changed.with_bookie_replaced(index, slot, self._bookie_id)
        swap = transactions.change_ops(ledger, changed, found.version)
        same_start = Compare.mod_revision(cookie.key, cookie.mod_revision)
        async with held.lock:
            done = swap + Transaction((same_start, held.ours), (Delete(held.key),))
            if not (await self._metadata.transact(done)).succeeded:
                return False
        self.taken += 1
        log.info("ledger %d: taken in the place of bookie %s", ledger_id, move.leaving)
        return True

    async def _give_up(self, held: "_Held") -> bool:
        """It is not to be done."""
        async with held.lock:
            await self._metadata.transact(Transaction((held.ours,), (Delete(held.key),)))
        return False


class _Held:
    """A key that is ours as long as nobody else has touched it."""

    def __init__(self, key: bytes, revision: int) -> None:
        self.key = key
        self.revision = revision
        self.lock = trio.Lock()
        """Around what changes the key, so that our own beat is no stranger to our swap."""

    @property
    def ours(self) -> Compare:
        """Holds while it is."""
        return Compare.mod_revision(self.key, self.revision)
