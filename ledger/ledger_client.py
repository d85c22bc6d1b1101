"""Ledgers: create, write, read, recover, delete. One `LedgerClient` a process."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from ..metadata.client.metadata_client import MetadataClient
from ..metadata.model.interface import Metadata
from ..metadata.model.transaction import Transaction
from ..runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    NoSuchLedger,
    NotEnoughBookies,
    OutcomeUnknown,
    VersionConflict,
    WriteFailed,
)
from ..runtime.interfaces.host import Host
from ..runtime.interfaces.log_lines import get_logger
from ..runtime.net.rpc import Endpoint
from ..runtime.protocol.capabilities import CapabilityKind, stored_key
from ..runtime.schedule.call_scheduler import CallScheduler, PeriodicChecks
from .declarations.options import LedgerOptions
from .model import ledger_transactions as transactions
from .model.ledger_ids import LedgerIds
from .model.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from .model.stored_ledger import NewLedger, StoredLedger, check_custom
from .model.striping import Striping
from .placement.bookie_pool import BookiePool, pool_of
from .placement.ensemble_placement import choose_ensemble
from .read.ledger_checker import find_different_copy
from .read.ledger_reader import LedgerReader
from .read.ledger_watch import LedgerWatch
from .recovery.recovery_driver import RecoveryDriver
from .write.explicit_lac import ExplicitLacFlusher
from .write.flow_control import InFlightBytes, RetainedBytes
from .write.ledger_writer import LedgerWriter, WriterServices

log = get_logger("distributedlog.ledger")


def _listed(bookies: Iterable[str]) -> str:
    return ", ".join(bookies) or "none"


def _ignore(told: object) -> None:
    """What nobody asked to be told."""


class LedgerClient:
    """See the module. `run` must be running for writers and readers to live."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        metadata: Metadata,
        pool: BookiePool,
        options: LedgerOptions | None = None,
    ) -> None:
        self.options = options if options is not None else LedgerOptions()
        self.pool = pool
        self._host = host
        self._endpoint = endpoint
        self._store = metadata
        self._failures = endpoint.failures
        self._records = LedgerWatch(metadata, self._failures)
        self._nursery: trio.Nursery | None = None
        self._turn = CallScheduler(pool.gather, pool.send_gathered)
        self._lacs = ExplicitLacFlusher(pool.gather, pool.send_gathered)
        self._sweeps = PeriodicChecks(self.options.sweep_s)
        self._services = WriterServices(
            metadata,
            pool,
            self.options,
            host.random,
            RetainedBytes(self.options.kept_bytes_max),
            InFlightBytes(self.options.sent_bytes_max),
            self._turn,
            self._lacs,
            self._sweeps,
        )
        self._ids = LedgerIds(metadata)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks of writers and readers until cancelled. The pool has its own `run`."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._records.run)
            self._nursery = nursery
            keep = self._failures.keep
            nursery.start_soon(keep, "the turns of ledger writers", self._turn.run)
            nursery.start_soon(keep, "LACs of idle ledgers", self._lacs.run)
            task_status.started()
            await keep("the deadlines of adds", self._sweeps.run)

    def gather(self) -> None:
        """What writers send from now on waits for `send_gathered`, which follows before anyone waits."""
        self.pool.gather()

    def send_gathered(self) -> None:
        """Send what was gathered: to each bookie in one call."""
        try:
            self._lacs.in_beat()
        finally:
            self.pool.send_gathered()

    async def _look_after(self, writer: LedgerWriter) -> None:
        try:
            await writer.run()
        except* Exception:  # a rule that is broken here is this ledger's end, not everybody's
            log.exception("the writer of ledger %d broke a rule, and was ended", writer.ledger_id)

    # --- creating and writing ---------------------------------------------------------------------

    async def prepare(
        self,
        *,
        custom: Mapping[str, bytes] | None = None,
        owner: tuple[int, int] | None = None,
        quorums: tuple[int, int, int] | None = None,
        incarnation: int = 0,
    ) -> NewLedger:
        """Choose an id and an ensemble. ``quorums``: E, Qw, Qa. ``custom``: at most 4 KiB, kept with it.

        Raises `NotEnoughBookies`, naming who is there; `InvalidRequest` for impossible quorums, or too
        much custom metadata; `CorruptData` where nobody can say whether a placement policy is enforced.
        """
        check_custom(custom or {})
        options = self.options
        sizes = quorums or (options.ensemble_size, options.write_quorum, options.ack_quorum)
        if not sizes[0] >= sizes[1] >= sizes[2] >= 1:
            raise InvalidRequest(f"quorums {sizes}: E >= Qw >= Qa >= 1 must hold")
        striping = Striping(*sizes)
        candidates = self.pool.ensemble_candidates()
        chance = self._host.random
        policy = self.pool.required_placement()
        chosen = choose_ensemble(striping, candidates, chance.random, policy)
        if chosen is None:
            writable = [one for one in candidates if not one.down]
            wanted = ""
            if policy.enforced:
                there = sorted({one.labels.get(policy.level, "") for one in writable} - {""})
                wanted = f" in {policy.at_least} {policy.level}s, enforced (there are {there})"
            raise NotEnoughBookies(
                f"a ledger with E={sizes[0]}, Qw={sizes[1]}, Qa={sizes[2]} needs more writable"
                f" bookies{wanted}: writable {_listed(one.id for one in writable)};"
                f" unreachable, read-only or leaving {_listed(one.id for one in candidates if one.down)}"
            )
        bookies, detached = chosen
        ledger_id = await self._ids.next()
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
            ensembles=(Fragment(0, bookies, 0),),
            key=stored_key(chance.randbytes(16)),
            creation_token=chance.getrandbits(63),
            owner=owner,
            incarnation=incarnation,
            created_ms=self._host.wall_ms(),
            custom=dict(custom or {}),
        )
        return NewLedger(metadata, detached)

    def writer(
        self,
        prepared: NewLedger,
        *,
        on_confirmed: Callable[[int], None] = _ignore,
        on_failed: Callable[[DistributedLogError], None] = _ignore,
    ) -> LedgerWriter:
        """The writer of a ledger whose creating transaction succeeded; the only one there will be.

        ``on_confirmed`` is called with each new LAC, from the ack path: it must not block or raise.
        ``on_failed`` is called once, when an error ends the writer; adds that are not confirmed are unknown.
        """
        assert self._nursery is not None, "writers live while `run` runs"

        def failed(error: DistributedLogError) -> None:
            if isinstance(error, WriteFailed):  # too few bookies took it, perhaps for its number
                self._ids.give_up_block()
            on_failed(error)

        writer = LedgerWriter(prepared, self._services, on_confirmed=on_confirmed, on_failed=failed)
        self._nursery.start_soon(self._look_after, writer)
        return writer

    async def create(
        self,
        *,
        custom: Mapping[str, bytes] | None = None,
        quorums: tuple[int, int, int] | None = None,
        on_confirmed: Callable[[int], None] = _ignore,
        on_failed: Callable[[DistributedLogError], None] = _ignore,
    ) -> LedgerWriter:
        """Create a ledger that no log refers to, and write it. Raises as `prepare`, and `VersionConflict`."""
        prepared = await self.prepare(custom=custom, quorums=quorums)
        try:
            reply = await self._store.transact(prepared.transaction())
            succeeded = reply.succeeded
        except OutcomeUnknown:
            found = await self._records.get(prepared.ledger_id)
            succeeded = (
                found is not None and found[0].creation_token == prepared.metadata.creation_token
            )
        if not succeeded:
            raise VersionConflict(f"ledger {prepared.ledger_id} exists already")
        return self.writer(prepared, on_confirmed=on_confirmed, on_failed=on_failed)

    # --- reading ----------------------------------------------------------------------------------

    async def metadata(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """The record and its version. Raises `NoSuchLedger`, also for one that is being deleted."""
        found = await self._records.get(ledger_id)
        if found is None or found[0].state is LedgerState.DELETING:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return found

    async def find(self, ledger_id: int) -> StoredLedger:
        """The record, for whoever links or deletes it. Raises `NoSuchLedger`."""
        return StoredLedger(*await self.metadata(ledger_id))

    async def open(self, ledger_id: int, *, turn: int = 0) -> LedgerReader:
        """Read without recovery: does not fence, sees up to the LAC. Raises `NoSuchLedger`.

        ``turn``: where all bookies hold everything, who reads with another one asks another one first.
        """
        reader = await self.follow(ledger_id, turn=turn)
        if not reader.closed:
            try:
                await reader.refresh_lac()
            except BaseException:
                reader.close()  # it follows the record from its making on
                raise
        return reader

    async def follow(self, ledger_id: int, *, turn: int = 0) -> LedgerReader:
        """As `open`, for who waits for what comes: nobody is asked how far the ledger can be read now."""
        metadata, _ = await self.metadata(ledger_id)
        bookies = metadata.last_fragment.bookies
        wait_s = self.options.connect_timeout_s
        await self.pool.shown_keys.have(bookies, CapabilityKind.READ, ledger_id, wait_s)
        return LedgerReader(
            metadata,
            records=self._records,
            pool=self.pool,
            options=self.options,
            first_poll=int(self._host.random.random() * metadata.ensemble_size),
            turn=turn,
        )

    async def different_copy(self, ledger_id: int, digests: Sequence[int]) -> str:
        """Which copy of a closed ledger is absent, damaged or other than meant; see `ledger_checker.py`."""
        metadata, _ = await self.metadata(ledger_id)
        return await find_different_copy(metadata, self.pool, self.options, digests)

    # --- recovering -------------------------------------------------------------------------------

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence the ledger, find its end, close it; return the closed record.

        A ledger that is closed is returned as it is. Any number of recoveries may run at once.
        Raises `RecoveryIncomplete` when too few bookies answered (nothing was decided: try again when
        they are back), `NoSuchLedger`, `InternalError` where a rule of ours broke in it.
        """
        while True:
            metadata, version = await self.metadata(ledger_id)
            if metadata.closed:
                return metadata
            if metadata.state is LedgerState.OPEN:
                marked = transactions.change_ops(metadata, metadata.in_recovery(), version)
                try:
                    await self._store.transact(marked)
                except OutcomeUnknown:
                    log.info("ledger %d: whether it is marked is looked up", ledger_id)
                continue  # read again: from IN_RECOVERY on the writer changes no ensemble
            driver = RecoveryDriver(
                metadata,
                version,
                store=self._store,
                pool=self.pool,
                options=self.options,
                chance=self._host.random,
            )
            return await driver.run()

    # --- deleting ---------------------------------------------------------------------------------

    async def deletion_share(self, ledger_id: int) -> Transaction:
        """The share of a transaction that turns it to DELETING, with a to-do a bookie (H21).

        For the log that owns it: the owner is not asked. Empty where the ledger is gone already.
        """
        found = await self._records.get(ledger_id)
        if found is None or found[0].state is LedgerState.DELETING:
            return Transaction()
        return transactions.deletion_ops(*found)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger that no log refers to (H13). No error where it is gone already."""
        while True:
            found = await self._records.get(ledger_id)
            if found is None or found[0].state is LedgerState.DELETING:
                return
            if found[0].owner is not None:
                raise InvalidRequest(
                    f"ledger {ledger_id} belongs to log {found[0].owner[0]}, segment {found[0].owner[1]}"
                )
            try:
                if (await self._store.transact(transactions.deletion_ops(*found))).succeeded:
                    return
            except OutcomeUnknown:
                continue


async def start_client(
    nursery: trio.Nursery,
    host: Host,
    endpoint: Endpoint,
    metadata: MetadataClient,
    options: LedgerOptions | None = None,
) -> LedgerClient:
    """A client with connections to all bookies; its tasks and theirs run in ``nursery``."""
    pool = pool_of(endpoint, metadata)
    await nursery.start(pool.run)
    ledgers = LedgerClient(host, endpoint, metadata, pool, options)
    await nursery.start(ledgers.run)
    return ledgers
