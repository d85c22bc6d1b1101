"""Create, write, read, recover and delete ledgers, with one `LedgerClient` per process."""

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
from .model.stored_ledger import NewLedger, StoredLedger, check_custom_metadata
from .model.striping import Striping
from .placement.bookie_pool import BookiePool, make_pool
from .placement.ensemble_placement import choose_ensemble
from .read.ledger_checker import find_different_copy
from .read.ledger_reader import LedgerReader
from .read.ledger_watch import LedgerWatch
from .recovery.recovery_driver import RecoveryDriver
from .write.explicit_lac import ExplicitLacFlusher
from .write.flow_control import InFlightBytes, RetainedBytes
from .write.ledger_writer import LedgerWriter, WriterServices

log = get_logger("distributedlog.ledger")


def _join_names(bookies: Iterable[str]) -> str:
    return ", ".join(bookies) or "none"


def _no_op(value: object) -> None:
    """The default of the callbacks, which ignores the value."""


class LedgerClient:
    """Creates and opens ledgers. Writers and readers work only while `run` runs."""

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
        self._ledger_watch = LedgerWatch(metadata, self._failures)
        self._nursery: trio.Nursery | None = None
        self._call_scheduler = CallScheduler(pool.defer_sends, pool.send_deferred)
        self._lac_flusher = ExplicitLacFlusher(pool.defer_sends, pool.send_deferred)
        self._timeout_checks = PeriodicChecks(self.options.sweep_s)
        self._services = WriterServices(
            metadata,
            pool,
            self.options,
            host.random,
            RetainedBytes(self.options.kept_bytes_max),
            InFlightBytes(self.options.sent_bytes_max),
            self._call_scheduler,
            self._lac_flusher,
            self._timeout_checks,
        )
        self._ledger_ids = LedgerIds(metadata)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks of writers and readers until cancelled. The pool has a separate `run`."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._ledger_watch.run)
            self._nursery = nursery
            keep_running = self._failures.keep_running
            nursery.start_soon(
                keep_running, "the send task of ledger writers", self._call_scheduler.run
            )
            nursery.start_soon(keep_running, "the LACs of idle ledgers", self._lac_flusher.run)
            task_status.started()
            await keep_running("the timeout checks of adds", self._timeout_checks.run)

    def defer_sends(self) -> None:
        """Hold back what writers send until `send_deferred`, which the caller calls before it blocks."""
        self.pool.defer_sends()

    def send_deferred(self) -> None:
        """Send what `defer_sends` held back, in one call per bookie."""
        try:
            self._lac_flusher.flush_with_deferred()
        finally:
            self.pool.send_deferred()

    async def _run_writer(self, writer: LedgerWriter) -> None:
        try:
            await writer.run()
        except* Exception:  # a broken invariant ends this ledger's writer only
            log.exception(
                "the writer of ledger %d violated an invariant and was stopped", writer.ledger_id
            )

    # --- creating and writing ---------------------------------------------------------------------

    async def prepare(
        self,
        *,
        custom: Mapping[str, bytes] | None = None,
        owner: tuple[int, int] | None = None,
        quorums: tuple[int, int, int] | None = None,
        incarnation: int = 0,
    ) -> NewLedger:
        """Choose the ID and the ensemble of a new ledger.

        Args:
            custom: Custom metadata to store with the ledger, at most 4 KiB.
            owner: (log ID, segment) of the log that will refer to the ledger.
            quorums: E, Qw and Qa. By default, those of the options.
            incarnation: The incarnation of the log.

        Raises:
            NotEnoughBookies: The placement is impossible. The message lists the bookies.
            InvalidRequest: The quorums are impossible, or there is too much custom metadata.
            CorruptData: A stored record is invalid, or the placement policy, which may be enforced, was
                never readable.
            QuorumUnreachable: The metadata quorum did not answer.
        """
        check_custom_metadata(custom or {})
        options = self.options
        quorum_sizes = quorums or (options.ensemble_size, options.write_quorum, options.ack_quorum)
        if not quorum_sizes[0] >= quorum_sizes[1] >= quorum_sizes[2] >= 1:
            raise InvalidRequest(f"quorums {quorum_sizes}: E >= Qw >= Qa >= 1 must hold")
        striping = Striping(*quorum_sizes)
        candidates = self.pool.ensemble_candidates()
        rng = self._host.random
        policy = self.pool.required_placement()
        chosen = choose_ensemble(striping, candidates, rng.random, policy)
        if chosen is None:
            writable = [candidate for candidate in candidates if not candidate.is_unavailable]
            requirement = ""
            if policy.enforced:
                domains = sorted(
                    {candidate.labels.get(policy.level, "") for candidate in writable} - {""}
                )
                requirement = (
                    f" in {policy.at_least} {policy.level}s, enforced (there are {domains})"
                )
            raise NotEnoughBookies(
                f"a ledger with E={quorum_sizes[0]}, Qw={quorum_sizes[1]}, Qa={quorum_sizes[2]} needs "
                "more writable"
                f" bookies{requirement}. Writable are {_join_names(candidate.id for candidate in writable)};"
                " unreachable, read-only or draining are "
                f"{_join_names(candidate.id for candidate in candidates if candidate.is_unavailable)}"
            )
        bookies, detached = chosen
        ledger_id = await self._ledger_ids.next()
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=quorum_sizes[0],
            write_quorum=quorum_sizes[1],
            ack_quorum=quorum_sizes[2],
            ensembles=(Fragment(0, bookies, 0),),
            key=stored_key(rng.randbytes(16)),
            creation_token=rng.getrandbits(63),
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
        on_confirmed: Callable[[int], None] = _no_op,
        on_failed: Callable[[DistributedLogError], None] = _no_op,
    ) -> LedgerWriter:
        """Return the writer of a ledger whose creating transaction succeeded. Call it once per ledger.

        Args:
            prepared: The ledger.
            on_confirmed: Called with each new LAC in the acknowledgement path. It must not block or raise.
            on_failed: Called once if an error ends the writer. The outcome of unconfirmed adds is then
                unknown.
        """
        assert self._nursery is not None, "writers live while `run` runs"

        def failed(error: DistributedLogError) -> None:
            if isinstance(error, WriteFailed):  # perhaps rejected because of its ID
                self._ledger_ids.discard_block()
            on_failed(error)

        writer = LedgerWriter(prepared, self._services, on_confirmed=on_confirmed, on_failed=failed)
        self._nursery.start_soon(self._run_writer, writer)
        return writer

    async def create(
        self,
        *,
        custom: Mapping[str, bytes] | None = None,
        quorums: tuple[int, int, int] | None = None,
        on_confirmed: Callable[[int], None] = _no_op,
        on_failed: Callable[[DistributedLogError], None] = _no_op,
    ) -> LedgerWriter:
        """Create a ledger to which no log refers, and return its writer.

        Raises:
            DistributedLogError: As `prepare`.
            VersionConflict: The ledger ID exists.
        """
        prepared = await self.prepare(custom=custom, quorums=quorums)
        try:
            reply = await self._store.transact(prepared.create_ops())
            succeeded = reply.succeeded
        except OutcomeUnknown:
            stored = await self._ledger_watch.get(prepared.ledger_id)
            succeeded = (
                stored is not None and stored[0].creation_token == prepared.metadata.creation_token
            )
        if not succeeded:
            raise VersionConflict(f"ledger {prepared.ledger_id} exists already")
        return self.writer(prepared, on_confirmed=on_confirmed, on_failed=on_failed)

    # --- reading ----------------------------------------------------------------------------------

    async def metadata(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """Return the record of a ledger and its version.

        Raises:
            NoSuchLedger: The ledger does not exist or is being deleted.
        """
        stored = await self._ledger_watch.get(ledger_id)
        if stored is None or stored[0].state is LedgerState.DELETING:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return stored

    async def find(self, ledger_id: int) -> StoredLedger:
        """Return the ledger's record, to link or delete the ledger.

        Raises:
            NoSuchLedger: The ledger does not exist or is being deleted.
        """
        return StoredLedger(*await self.metadata(ledger_id))

    async def open(self, ledger_id: int, *, replica_offset: int = 0) -> LedgerReader:
        """Open a reader without recovery. It does not fence, and reads up to the LAC.

        Args:
            ledger_id: The ledger.
            replica_offset: If every bookie stores every entry, readers with different values prefer different
                bookies.

        Raises:
            NoSuchLedger: The ledger does not exist or is being deleted.
            LedgerStateUnknown: Too few bookies answered, so the LAC is unknown.
        """
        reader = await self.open_tailing(ledger_id, replica_offset=replica_offset)
        if not reader.closed:
            try:
                await reader.refresh_lac()
            except BaseException:
                reader.close()  # it has followed the record since its creation
                raise
        return reader

    async def open_tailing(self, ledger_id: int, *, replica_offset: int = 0) -> LedgerReader:
        """Open a reader as `open` does, but without a request for the LAC.

        For readers that wait for new entries.
        """
        metadata, _ = await self.metadata(ledger_id)
        bookies = metadata.last_fragment.bookies
        wait_s = self.options.connect_timeout_s
        await self.pool.capabilities.wait_for_keys(bookies, CapabilityKind.READ, ledger_id, wait_s)
        return LedgerReader(
            metadata,
            ledger_watch=self._ledger_watch,
            pool=self.pool,
            options=self.options,
            first_poll=int(self._host.random.random() * metadata.ensemble_size),
            replica_offset=replica_offset,
        )

    async def different_copy(self, ledger_id: int, digests: Sequence[int]) -> str:
        """Return a description of a wrong copy of a closed ledger, or "" (`find_different_copy`)."""
        metadata, _ = await self.metadata(ledger_id)
        return await find_different_copy(metadata, self.pool, self.options, digests)

    # --- recovering -------------------------------------------------------------------------------

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence a ledger, find its end and close it. Return the closed record.

        A closed ledger is returned unchanged. Any number of recoveries can run concurrently.

        Raises:
            RecoveryIncomplete: Too few bookies answered, so nothing was decided. Retry when they are
                available.
            NoSuchLedger: The ledger does not exist or is being deleted.
            InternalError: The recovery violated an invariant.
        """
        while True:
            metadata, version = await self.metadata(ledger_id)
            if metadata.closed:
                return metadata
            if metadata.state is LedgerState.OPEN:
                operations = transactions.change_ops(metadata, metadata.in_recovery(), version)
                try:
                    await self._store.transact(operations)
                except OutcomeUnknown:
                    log.info(
                        "ledger %d: outcome of the change to in_recovery is unknown, reading it again",
                        ledger_id,
                    )
                continue  # read again: in IN_RECOVERY the writer can change no ensemble
            driver = RecoveryDriver(
                metadata,
                version,
                store=self._store,
                pool=self.pool,
                options=self.options,
                rng=self._host.random,
            )
            return await driver.run()

    # --- deleting ---------------------------------------------------------------------------------

    async def delete_ops(self, ledger_id: int) -> Transaction:
        """Return operations that set a ledger to DELETING, with one removal task per bookie (H21).

        For the log that owns the ledger: the owner is not checked. Empty if the ledger is already deleted.
        """
        stored = await self._ledger_watch.get(ledger_id)
        if stored is None or stored[0].state is LedgerState.DELETING:
            return Transaction()
        return transactions.deletion_ops(*stored)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger to which no log refers (H13). Do nothing if it is already deleted.

        Raises:
            InvalidRequest: A log refers to the ledger.
        """
        while True:
            stored = await self._ledger_watch.get(ledger_id)
            if stored is None or stored[0].state is LedgerState.DELETING:
                return
            if stored[0].owner is not None:
                raise InvalidRequest(
                    f"ledger {ledger_id} belongs to log {stored[0].owner[0]}, segment {stored[0].owner[1]}"
                )
            try:
                if (await self._store.transact(transactions.deletion_ops(*stored))).succeeded:
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
    """Start a client with connections to all bookies. Its tasks and theirs run in ``nursery``."""
    pool = make_pool(endpoint, metadata)
    await nursery.start(pool.run)
    ledgers = LedgerClient(host, endpoint, metadata, pool, options)
    await nursery.start(ledgers.run)
    return ledgers
