"""Assemble a bookie from a host and a configuration: its store, its registration and its background work.

Real processes, `dlog local` and the simulator use the same code. A node of any kind runs until it is
cancelled or fails. If it is cancelled, it deregisters and writes a checkpoint.

A failed write or sync ends the whole node with that error. So does any exception of the journal, the Raft log
or the Raft hard state. Nothing that was not synced is acknowledged. Any other unexpected exception ends only
the unit of work that raised it (`distributedlog/runtime/schedule/work_failures.py`).
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

import trio

from ...bookie.declarations.options import BookieOptions
from ...bookie.server import serve_bookie_protocol
from ...bookie.session.bookie_authorizer import BookieAuthorizer
from ...bookie.store.bookie_store import BookieStore
from ...bookie.store.startup import open_store
from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_ids import next_ledger
from ...metadata.client.metadata_client import MetadataClient
from ...metadata.model.cluster_version import PROBE_KEY, read_cluster_version
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare
from ...runtime.declarations.versions import stated_version
from ...runtime.disk.node_identity import NodeIdentity
from ...runtime.interfaces.errors import CorruptData, DistributedLogError
from ...runtime.interfaces.host import Address, Host, Listener
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.net.address_check import AddressCheck, advertised_addresses_of
from ...runtime.net.rpc import Endpoint
from ...runtime.primitives.steady_clock import steady_time
from ...runtime.protocol.handshake import FEATURE_ERROR_CODES, Hello
from ...runtime.schedule.work_failures import WorkFailures
from ..auth.authorizer_feed import feed_authorizer, refresh_authorizer
from ..coordination.cookie import claim_identity, cookie_guard
from ..coordination.gc_hold import GcHold
from ..coordination.journal_sync_point import JournalSyncStore, known_sync_point
from ..coordination.reconcile_loop import reconcile_on_change
from ..coordination.registration_lease import RegistrationLease
from ..declarations.config import overlay
from ..declarations.events import LIMBO, OPENED
from ..declarations.options import BookieNodeConfig, NodeReady
from ..gc.ledger_lookup import end_tombstones, ledger_statuses, missing_ledgers
from ..gc.retention import UNIT as RETENTION
from ..gc.retention import CloseOrphaned, Retention
from ..gc.segment_merger import Merge, SegmentMerger
from ..gc.segment_purger import UNIT as PURGING
from ..gc.segment_purger import SegmentPurger
from ..gc.staged_ledger_collector import StagedLedgerCollector
from ..repair.auditor_election import RepairLeaderElection
from ..repair.ledger_deletion import LedgerDeletion
from ..repair.repair_metrics import RepairParts
from .node_lifecycle import (
    advertised_addresses,
    check_advertise,
    check_directories,
    hosts_of_peers,
    listen_all,
    report_ready,
    run_services,
)
from .repair_tasks import repair_all
from .scrub_requests import run_requested_scrubs

LAST_CHECKPOINT_S = 5.0
LEAVING_EVERY_S = 10.0
EXACT_LEDGERS_MAX = 100
"""Up to this number of ledgers, each new one is reported with the next renewal.

Above it, they are reported with the next other change.
"""

log = get_logger("distributedlog.cluster.node")


async def serve_bookie_node(
    host: Host,
    config: BookieNodeConfig,
    *,
    task_status: trio.TaskStatus[NodeReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a bookie until cancelled.

    The bookie has started when it is registered.

    Args:
        host: The machine, with the disks ``journal`` and ``index``.
        config: The configuration.
        task_status: Receives the addresses and the ID when the bookie has started.

    Raises:
        ForeignData: A directory is not this bookie's newest one (H6). Later, also if another process starts
            with a copy of the directory.
        DataDirectoryInUse: Another process uses a directory.
        AddressInUse: Another program listens on one of the addresses.
        QuorumUnreachable: No metadata quorum answered.
        CorruptData: Stored data is damaged and cannot be recovered.
        InvalidRequest: An option or an address is invalid.
        UnsupportedFormat: The cluster is finalized for a newer version.
        DiskFailed: A write or sync failed.
    """
    disks = [host.disks["journal"], host.disks["index"]]
    for number, disk in enumerate(disks):
        try:
            disk.lock()
        except BaseException:
            for locked in disks[:number]:
                locked.unlock()
            raise
    try:
        options = overlay(BookieOptions, (f"options of bookie {config.name}", config.store))
        check_advertise(config.listen, config.advertise)
        # Ports are opened first: a port in use is then reported before anything else starts.
        listeners = await listen_all(host, config.listen)
        try:
            await _serve_bookie(host, config, options, listeners, task_status)
        finally:
            for listener in listeners.values():
                listener.close()
    finally:
        for disk in disks:
            disk.unlock()


@dataclass(frozen=True, slots=True)
class BookieParts:
    """The parts of one bookie that its registration and its background work share."""

    host: Host
    config: BookieNodeConfig
    listeners: Mapping[str, Listener]
    endpoint: Endpoint
    metadata: MetadataClient
    identity: NodeIdentity
    store: BookieStore

    @property
    def bookie_id(self) -> str:
        """The ID of the bookie."""
        return self.identity.node_id


StartTask = Callable[..., None]
"""Starts a function with its arguments, until the bookie ends. The first argument names the unit of work."""


async def _serve_bookie(
    host: Host,
    config: BookieNodeConfig,
    options: BookieOptions,
    listeners: Mapping[str, Listener],
    task_status: trio.TaskStatus[NodeReady],
) -> None:
    """Create and run the parts of a bookie until its end."""
    identity: NodeIdentity | None = None

    def hello() -> Hello:
        if identity is None:
            return Hello(kind="bookie", label=config.name)
        durability = host.disks["journal"].durability
        return Hello(identity.cluster_id, identity.node_id, "bookie", config.name, durability)

    endpoint = Endpoint(host, hello)
    client_id = f"bookie-{config.name}-{host.random.getrandbits(64):016x}"
    metadata = MetadataClient(
        endpoint, config.metadata, client_id=client_id, timeout_s=config.metadata_timeout_s
    )
    async with run_services(metadata.run) as keep:
        await metadata.get(PROBE_KEY)  # needs a leader; the reply carries the cluster ID
        (await read_cluster_version(metadata)).check_node()
        cluster_id = metadata.cluster_id
        identity, cookie_revision = await claim_identity(
            host.disks,
            metadata,
            cluster_id=cluster_id,
            label=config.name,
            rng=host.random,
            principal=principal_of(host),
        )
        store = await _open_store(host, options, endpoint, metadata, identity)
        await keep(store.run)
        if store.ledgers.limbo_below:
            await confine_limbo(store, metadata)
        parts = BookieParts(host, config, listeners, endpoint, metadata, identity, store)
        authorizer = BookieAuthorizer(options.trust_silence_s, steady_time(host))
        await _serve_registered(parts, authorizer, cookie_revision, task_status)


async def _open_store(
    host: Host,
    options: BookieOptions,
    endpoint: Endpoint,
    metadata: MetadataClient,
    identity: NodeIdentity,
) -> BookieStore:
    """Open the store of a bookie after its identity was checked, and log the result."""
    started_at = trio.current_time()
    recorded_sequence, sync_point_unknown_reason = await known_sync_point(
        metadata, identity.node_id
    )
    store = await open_store(
        host,
        options,
        bookie_id=identity.node_id,
        recorded_sequence=recorded_sequence,
        sync_point_unknown_reason=sync_point_unknown_reason,
        failures=endpoint.failures,
    )
    OPENED.emit(
        log,
        "bookie %s: start %d of this directory, %d ledgers, opened in %.2f s",
        identity.node_id,
        identity.incarnation,
        store.ledgers.known_count,
        trio.current_time() - started_at,
        bookie=identity.node_id,
        start=identity.incarnation,
        ledgers=store.ledgers.known_count,
    )
    store.conditions.add_check(endpoint.certificate_warning)
    return store


async def _serve_registered(
    parts: BookieParts,
    authorizer: BookieAuthorizer,
    cookie_revision: int,
    task_status: trio.TaskStatus[NodeReady],
) -> None:
    """Serve clients and register; at the end, deregister while the metadata store can still be reached."""
    metadata, store, bookie_id = parts.metadata, parts.store, parts.bookie_id
    addresses = advertised_addresses(parts.listeners, parts.config.advertise)
    cookie_unchanged = cookie_guard(bookie_id, cookie_revision)
    address_check = _address_check(parts, addresses)
    store.conditions.add_check(address_check.conditions)
    sync_store = JournalSyncStore(
        metadata, bookie_id, cookie_unchanged, parts.identity.incarnation, lambda: store.durable_to
    )
    await sync_store.store()  # the writes of this start are recorded before any acknowledgement
    registration = _registration_lease(parts, addresses, cookie_unchanged, sync_store)
    repair_parts: list[RepairParts] = []  # one element after repair has started

    def have_parts(started_parts: RepairParts) -> None:
        repair_parts[:] = [started_parts]

    def of_repair() -> Mapping[str, object]:
        # A bookie without repair reports that. Otherwise, no node would report that none repairs.
        return repair_parts[0].info() if repair_parts else {"repairer": False}

    await refresh_authorizer(
        authorizer, parts.endpoint, metadata, bookie_id
    )  # before any client is served
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(_serve_clients, parts, authorizer, registration, of_repair))
            await registration.register()

            def start(unit: str, run: Callable[..., Awaitable[object]], *args: object) -> None:
                """Run it until the end. An unexpected exception ends one attempt."""
                nursery.start_soon(parts.endpoint.failures.keep_running, unit, run, *args)

            start("the renewal of the registration", registration.run)
            start("the check of its addresses", address_check.run)
            _start_own_tasks(parts, authorizer, registration, start)
            _start_maintenance(parts, registration, start)
            if parts.config.repair:
                start(
                    "repair",
                    repair_all,
                    parts.host,
                    parts.config,
                    parts.endpoint,
                    metadata,
                    registration,
                    store,
                    bookie_id,
                    have_parts,
                )
            task_status.started(
                report_ready(parts.config.name, "bookie", bookie_id, parts.listeners)
            )
    finally:
        await _leave(store, sync_store, registration)


async def _serve_clients(
    parts: BookieParts,
    authorizer: BookieAuthorizer,
    registration: RegistrationLease,
    repair_info: Callable[[], Mapping[str, object]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the bookie's protocol until cancelled."""
    await serve_bookie_protocol(
        parts.endpoint,
        parts.listeners,
        parts.store,
        authorizer=authorizer,
        missing_ledgers=partial(missing_ledgers, parts.metadata),
        ledger_statuses=partial(ledger_statuses, parts.metadata),
        is_registered=lambda: registration.is_held,
        node_info=repair_info,
        task_status=task_status,
    )


def _address_check(parts: BookieParts, addresses: Mapping[str, Address]) -> AddressCheck:
    """Return the check that this bookie can be reached at its advertised addresses."""
    listen_address, metadata = parts.config.listen, parts.metadata
    return AddressCheck(
        parts.host,
        parts.bookie_id,
        lambda: advertised_addresses_of(
            listen_address, parts.listeners, addresses, metadata.listener
        ),
        partial(hosts_of_peers, metadata, parts.config.metadata, parts.bookie_id),
    )


def _registration_lease(
    parts: BookieParts,
    addresses: Mapping[str, Address],
    cookie_unchanged: Compare,
    sync_store: JournalSyncStore,
) -> RegistrationLease:
    """Return the registration of the bookie, which a lease keeps."""
    current_registration = partial(
        registration_of, parts.host, parts.config, parts.identity, parts.store, addresses
    )
    codes = bool(parts.endpoint.features & FEATURE_ERROR_CODES)
    return RegistrationLease(
        parts.metadata,
        keys.bookie_key(parts.bookie_id),
        lambda: current_registration().encode(codes=codes),
        cookie_unchanged,
        lease_s=parts.config.lease_s,
        get_urgent=lambda: urgent_parts(current_registration()),
        on_renewed=sync_store.store,
    )


def _start_own_tasks(
    parts: BookieParts,
    authorizer: BookieAuthorizer,
    registration: RegistrationLease,
    start: StartTask,
) -> None:
    """Start the tasks that keep this bookie's own state up to date."""
    metadata, store, bookie_id = parts.metadata, parts.store, parts.bookie_id
    failures = parts.endpoint.failures
    start("the check of its directories", check_directories, list(parts.host.disks.values()))
    # Clients must learn at once when the bookie becomes full or has free space again.
    start(
        "changes of the registration",
        registration.update_on_change,
        lambda: store.space_changed.wait(),
    )
    start("the authorizer", feed_authorizer, authorizer, parts.endpoint, metadata, bookie_id)
    deletion = LedgerDeletion(metadata, bookie_id, store.delete_ledger, failures)
    start("deletion of ledgers", deletion.run)
    start("the removal of tombstones", end_tombstones, metadata, store.drop_tombstones, failures)
    start(
        "the check for a decommission request",
        watch_decommission,
        store,
        metadata,
        bookie_id,
        failures,
    )
    start(
        "the check for a scrub request",
        run_requested_scrubs,
        store.scrubber,
        store.corruption_tracker,
        metadata,
        bookie_id,
        registration.update,
        failures,
    )


def _start_maintenance(
    parts: BookieParts, registration: RegistrationLease, start: StartTask
) -> None:
    """Start the tasks that one elected bookie runs for the cluster.

    They are purging, retention, merging, and the collection of unlinked segments.
    """
    host, config, endpoint = parts.host, parts.config, parts.endpoint
    metadata, failures = parts.metadata, parts.endpoint.failures
    election = RepairLeaderElection(
        metadata, parts.bookie_id, lambda: registration.lease, repairs=config.repair
    )
    gated_election = GcHold(metadata, election)
    purger = SegmentPurger(
        metadata, gated_election, grace_s=config.purge_grace_s, failures=failures
    )
    start(PURGING, purger.run)
    retention = Retention(
        metadata,
        gated_election,
        open_closer=partial(open_orphan_client, host, endpoint, metadata, config.name),
        failures=failures,
    )
    start(RETENTION, retention.run)
    merger = SegmentMerger(
        metadata,
        gated_election,
        purger.deletion_ops_of,
        open_merger=partial(open_merge_client, host, endpoint, metadata, config.name),
        failures=failures,
    )
    start("merging of segments", merger.run)
    collector = StagedLedgerCollector(
        metadata, gated_election, unlinked_s=config.unlinked_s, failures=failures
    )
    start("collection of unlinked segments", collector.run)


async def _leave(
    store: BookieStore, sync_store: JournalSyncStore, registration: RegistrationLease
) -> None:
    """Deregister while the metadata client still runs, then write a checkpoint for a short replay."""
    await sync_store.store_last()
    await registration.deregister()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_CHECKPOINT_S):
        try:
            await store.checkpoint()
        except DistributedLogError as error:
            log.warning("the last checkpoint failed: %s: %s", type(error).__name__, error)


def registration_of(
    host: Host,
    config: BookieNodeConfig,
    identity: NodeIdentity,
    store: BookieStore,
    addresses: Mapping[str, Address],
) -> BookieRegistration:
    """Return the present registration of a bookie."""
    # Steps of 100 MiB: a registration is sent again after a change, not after each write.
    step = 100 * 1024 * 1024
    return BookieRegistration(
        identity.node_id,
        addresses,
        identity.incarnation,
        config.rack,
        config.labels,
        store.space.read_only,
        host.disks["journal"].free_bytes() // step * step,
        store.stored_bytes,
        store.ledgers.known_count,
        store.health_conditions(),
        (
            len(store.corruption_tracker.corrupt_ranges),
            len(store.corruption_tracker.unrepairable),
            store.corruption_tracker.repaired_entries,
        ),
        copies_assigned_ledgers=config.repair,
        principal=principal_of(host),
        limbo_below=store.limbo.limbo_bound,
        version=stated_version(host.version),
    )


def principal_of(host: Host) -> str:
    """Return the principal in the host's certificate, or "" if there is no certificate."""
    certificate = host.certificate()
    return "" if certificate is None else certificate.principal


def urgent_parts(registration: BookieRegistration) -> object:
    """Return the parts of a registration that are sent with the next renewal if they change.

    Up to `EXACT_LEDGERS_MAX` ledgers, their number is one of these parts, because users of a new cluster
    count their first logs.
    """
    condition_codes = [(reported.code, reported.severity) for reported in registration.conditions]
    shown_ledgers = min(registration.ledgers, EXACT_LEDGERS_MAX)
    return (
        registration.read_only,
        condition_codes,
        [count > 0 for count in registration.corruption_counts],
        registration.limbo_below,
        shown_ledgers,
    )


def open_orphan_client(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AbstractAsyncContextManager[CloseOrphaned]:
    """Return the client that closes segments without a writer.

    It is imported here, because most bookies never need a client of other bookies.
    """
    from ..gc.maintenance_clients import open_orphan_closer

    return open_orphan_closer(host, endpoint, metadata, name)


def open_merge_client(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AbstractAsyncContextManager[Merge]:
    """Return the client that merges segments, imported only when it is needed."""
    from ..gc.maintenance_clients import open_merger

    return open_merger(host, endpoint, metadata, name)


async def watch_decommission(
    store: BookieStore, metadata: Metadata, bookie_id: str, failures: WorkFailures
) -> None:
    """Make the bookie accept no new entries while a decommission is requested."""
    key = keys.leaving_key(bookie_id)
    was_requested = store.space.requested_read_only

    async def refresh() -> None:
        is_leaving = await metadata.get(key) is not None
        store.space.requested_read_only = is_leaving or was_requested

    await reconcile_on_change(
        metadata,
        (key,),
        refresh,
        every_s=LEAVING_EVERY_S,
        failures=failures,
        unit="the check for a decommission request",
    )


async def confine_limbo(store: BookieStore, metadata: Metadata) -> None:
    """After a start that found a loss, exclude ledgers that are created later from the limbo state (H7).

    If the next ledger ID is unreadable, all ledgers that are not stored here remain in the limbo state.
    """
    LIMBO.emit(
        log,
        "this start found lost data: ledgers that may be affected are in the limbo state",
        bookie=store.bookie_id,
    )
    try:
        await store.limbo.lower_bound(await next_ledger(metadata))
    except CorruptData as error:
        log.warning("%s", error)
