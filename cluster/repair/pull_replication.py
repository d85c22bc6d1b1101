"""Let replacement bookies fetch the ledgers of a lost or leaving bookie themselves.

The repair leader (`lost_bookies.py`) assigns each ledger with a key ``move/<target>/<ledger>``. The target
copies the entries to itself, so they cross the network once, and the copy rates of all targets add up. Then
one transaction deletes the key and puts the target into the ledger's record. A target whose key was withdrawn
therefore changes nothing. Keys are withdrawn when the lost bookie is back, or when the target sent no
heartbeat for `STALE_MOVE_S`.

Both sides repeatedly act on the present keys. A ledger whose key became stale is moved by the repair leader
itself.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model import ledger_transactions as transactions
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.stored_ledger import UnreadableRecords
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
from ...runtime.protocol.schema import decode_versioned, fields, number, text, verify_round_trip
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..coordination.reconcile_loop import reconcile_on_change
from .copier import BookieConnections, Copier, ranges_of_slot

FORMAT = 1
EVERY_S = 10.0
HEARTBEAT_S = 15.0
"""How often a target sends a heartbeat while it copies."""
STALE_MOVE_S = 60.0
"""A key without a heartbeat for this time is withdrawn."""
OUT_MAX = 64
"""Keys of one target at a time, so that more urgent ledgers need not wait for all others."""
LEDGERS_AT_ONCE = 4

log = get_logger("distributedlog.cluster.repair.pull_replication")

_MOVE = fields(
    format=number(), leaving=text(4096, 1), kind=number(0, 3), size_bytes=number(), beat=number()
)


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """The request to a target to replace a bookie in one ledger."""

    leaving: str
    """The bookie to replace, in each fragment that lists it."""
    priority: int
    size_bytes: int
    """The urgency, as the priority and size of `RepairJob`."""
    heartbeat: int = 0
    """The heartbeat counter, which increases while the target works on the move."""

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Return the value of the key."""
        return pack(
            {
                "format": FORMAT,
                "leaving": self.leaving,
                "kind": self.priority,
                "size_bytes": self.size_bytes,
                "beat": self.heartbeat,
            }
        )

    @classmethod
    def decode(cls, value: Buffer) -> "ReplicaMove":
        """Decode the value of a key.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: The value is from a newer version.
        """
        values = decode_versioned(value, FORMAT, _MOVE, "a move of a ledger")
        del values["format"]
        values["priority"], values["heartbeat"] = values.pop("kind"), values.pop("beat")
        return cls(**values)


class MoveQueue:
    """The moves that the repair leader has handed over to other bookies."""

    def __init__(self, metadata: Metadata, can_pull: Callable[[str], bool]) -> None:
        self._metadata = metadata
        self._can_pull = can_pull
        """Whether a bookie fetches ledgers itself. One of an older version does not."""
        self._last_changed: dict[bytes, tuple[int, float]] = {}
        """The revision of each key, and when it was first observed, by the monotonic clock."""
        self._unreadable = UnreadableRecords()
        self._moves_by_target: Counter[str] = Counter()
        self._timed_out: set[tuple[int, str]] = set()
        """(ledger, leaving bookie) of the moves that became stale at the last refresh.

        The repair leader does them.
        """
        self.pending_moves: set[tuple[int, str]] = set()
        """(ledger, leaving bookie) of the moves that are assigned."""

    async def refresh(self, lost: Collection[str]) -> None:
        """Load the assigned moves, and withdraw those that are stale or not needed any more."""
        now, last_changed = trio.current_time(), {}
        pending_moves: set[tuple[int, str]] = set()
        moves_by_target: Counter[str] = Counter()
        is_back: dict[str, bool] = {}
        self._timed_out = set()
        async for item in Scan(self._metadata, keys.MOVE_PREFIX):
            try:
                target, ledger_id = keys.bookie_id_of(item.key), keys.ledger_id_of(item.key)
                move = ReplicaMove.decode(item.value)
            except (CorruptData, UnsupportedFormat) as error:
                self._unreadable.log_once(item.key, error)
                continue
            if move.leaving not in is_back:
                is_back[move.leaving] = await self._is_back(move.leaving, lost)
            revision, changed_at = self._last_changed.get(item.key, (item.mod_revision, now))
            changed_at = changed_at if revision == item.mod_revision else now
            is_stale = now - changed_at >= STALE_MOVE_S
            if is_stale or is_back[move.leaving]:
                await withdraw_move(self._metadata, item)
                if is_stale:
                    self._timed_out.add((ledger_id, move.leaving))
                continue
            last_changed[item.key] = (item.mod_revision, changed_at)
            pending_moves.add((ledger_id, move.leaving))
            moves_by_target[target] += 1
        self._last_changed, self.pending_moves, self._moves_by_target = (
            last_changed,
            pending_moves,
            moves_by_target,
        )

    async def _is_back(self, bookie: str, lost_bookies: Collection[str]) -> bool:
        """Whether a bookie is registered again and not leaving, so that it keeps its ledgers."""
        return (
            bookie not in lost_bookies
            and await self._metadata.get(keys.bookie_key(bookie)) is not None
        )

    def can_hand_over(self, ledger_id: int, leaving_bookie: str, targets: Collection[str]) -> bool:
        """Whether one of the targets fetches ledgers itself, and the move is not one that became stale."""
        return (ledger_id, leaving_bookie) not in self._timed_out and any(
            map(self._can_pull, targets)
        )

    async def hand_over(
        self, ledger: LedgerMetadata, ledger_version: int, target: str, move: ReplicaMove
    ) -> bool:
        """Assign a move to a target, if the ledger's record is unchanged.

        Returns:
            Whether the move is assigned. Also True if the target has `OUT_MAX` moves: it is then assigned
                later.
        """
        if self._moves_by_target[target] >= OUT_MAX:
            return True
        key = keys.move_key(target, ledger.ledger_id)
        request = Transaction(
            (
                Compare.version(keys.ledger_key(ledger.ledger_id), ledger_version),
                Compare.version(key, 0),
            ),
            (Put(key, move.encode()),),
        )
        if not (await self._metadata.transact(request)).succeeded:
            return False
        self._moves_by_target[target] += 1
        self.pending_moves.add((ledger.ledger_id, move.leaving))
        return True


async def withdraw_move(metadata: Metadata, item: KeyValue) -> None:
    """Delete the key of a move if it is unchanged."""
    unchanged = Compare.mod_revision(item.key, item.mod_revision)
    await metadata.transact(Transaction((unchanged,), (Delete(item.key),)))


class PullReplication:
    """Fetches the ledgers that are assigned to this bookie."""

    def __init__(
        self,
        metadata: Metadata,
        pool: BookieConnections,
        copier: Copier,
        bookie_id: str,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._copier = copier
        self._bookie_id = bookie_id
        self._blocked_work = BlockedWorkLog(
            log, "ledgers assigned to this bookie wait to be fetched"
        )
        self.pulled_ledgers = 0
        """Since the start."""

    async def run(self) -> None:
        """Process the assigned moves when they change and every 10 s, until cancelled."""
        prefix = keys.moves_to_prefix(self._bookie_id)
        await reconcile_on_change(
            self._metadata,
            (prefix,),
            self.run_pass,
            every_s=EVERY_S,
            failures=self._failures,
            unit="the fetching of ledgers assigned to this bookie",
        )

    async def run_pass(self) -> None:
        """Try each assigned move once, the most urgent first."""
        requested_moves: list[tuple[int, int, bytes, ReplicaMove, KeyValue]] = []
        async for item in Scan(self._metadata, keys.moves_to_prefix(self._bookie_id)):
            try:
                move = ReplicaMove.decode(item.value)
                requested_moves.append((move.priority, move.size_bytes, item.key, move, item))
            except (CorruptData, UnsupportedFormat) as error:
                self._blocked_work.record(type(error).__name__, f"{item.key!r}: {error}")
        requested_moves.sort(key=lambda entry: entry[:3], reverse=True)

        async def pull() -> None:
            while requested_moves:
                *_, move, item = requested_moves.pop()
                unit = f"the work on {item.key!r}"
                if self._failures.is_waiting(unit):
                    continue
                try:
                    with self._failures.attempt(unit):
                        await self.pull_ledger(item, move)
                except DistributedLogError as error:
                    cause = f"as replacement of {move.leaving}: {type(error).__name__}"
                    self._blocked_work.record(cause, f"{item.key!r}: {error}")

        async with trio.open_nursery() as nursery:
            for _ in range(LEDGERS_AT_ONCE):
                nursery.start_soon(pull)
        self._blocked_work.end_pass()

    async def pull_ledger(self, item: KeyValue, move: ReplicaMove) -> bool:
        """Do one move.

        Returns:
            False if the move was withdrawn or is not needed any more.

        Raises:
            ConnectionLost: No bookie could provide a copy of an entry.
            DistributedLogError: This bookie could not store an entry, or a record could not be read.
        """
        errors: list[Exception] = []
        move_key = _MoveKey(item.key, item.mod_revision)
        is_pulled = False

        async def take() -> None:
            nonlocal is_pulled
            try:
                is_pulled = await self._copy_and_swap(move_key, move)
            except Exception as error:  # the nursery would wrap the exception
                errors.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await self._send_heartbeats(move_key, move)
            nursery.cancel_scope.cancel()  # withdrawn: the entries copied so far are over-replicated
        if errors:
            raise errors[0]
        return is_pulled

    async def _send_heartbeats(self, move_key: "_MoveKey", move: ReplicaMove) -> None:
        """Increase the heartbeat of a move until cancelled, or until another process changed its key."""
        heartbeat = move.heartbeat
        while True:
            await trio.sleep(HEARTBEAT_S)
            heartbeat += 1
            refreshed = ReplicaMove(move.leaving, move.priority, move.size_bytes, heartbeat)
            async with move_key.lock:
                try:
                    reply = await self._metadata.transact(
                        Transaction((move_key.unchanged,), (Put(move_key.key, refreshed.encode()),))
                    )
                except (
                    DistributedLogError
                ) as error:  # the outcome may be unknown: then the final transaction fails once
                    log.info("%r: the heartbeat could not be stored: %s", move_key.key, error)
                    continue
                if not reply.succeeded:
                    return
                move_key.revision = reply.revision

    async def _copy_and_swap(self, move_key: "_MoveKey", move: ReplicaMove) -> bool:
        # Each start of a bookie increases its cookie's revision, because a restarted bookie may lack entries.
        cookie = await self._metadata.get(keys.cookie_key(self._bookie_id))
        own_connection = self._pool.get(self._bookie_id)
        if cookie is None or own_connection is None:
            raise ConnectionLost("this bookie has no connection to itself")
        ledger_id = keys.ledger_id_of(move_key.key)
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        if item is None:
            return await self._abandon(move_key)
        ledger = LedgerMetadata.decode(item.key, item.value)
        fragments = [
            (index, fragment)
            for index, fragment in enumerate(ledger.ensembles)
            if move.leaving in fragment.bookies
        ]
        if not ledger.closed or not fragments:
            return await self._abandon(move_key)
        changed = ledger
        for index, fragment in fragments:
            if self._bookie_id in fragment.bookies:
                return await self._abandon(move_key)
            slot = fragment.bookies.index(move.leaving)
            ranges = ranges_of_slot(ledger, index, slot)
            await self._copier.copy(ledger, ranges, self._bookie_id, own_connection)
            changed = changed.with_bookie_replaced(index, slot, self._bookie_id)
        swap = transactions.change_ops(ledger, changed, item.version)
        same_start = Compare.mod_revision(cookie.key, cookie.mod_revision)
        async with move_key.lock:
            finish = swap + Transaction((same_start, move_key.unchanged), (Delete(move_key.key),))
            if not (await self._metadata.transact(finish)).succeeded:
                return False
        self.pulled_ledgers += 1
        log.info("ledger %d: this bookie replaced bookie %s", ledger_id, move.leaving)
        return True

    async def _abandon(self, move_key: "_MoveKey") -> bool:
        """Delete the key of a move that is not needed, and return False."""
        async with move_key.lock:
            await self._metadata.transact(
                Transaction((move_key.unchanged,), (Delete(move_key.key),))
            )
        return False


class _MoveKey:
    """The key of a move, which this process holds until another process changes it."""

    def __init__(self, key: bytes, revision: int) -> None:
        self.key = key
        self.revision = revision
        self.lock = trio.Lock()
        """Guards changes of the key, so that a heartbeat does not invalidate the final transaction."""

    @property
    def unchanged(self) -> Compare:
        """A condition that holds while no other process has changed the key."""
        return Compare.mod_revision(self.key, self.revision)
