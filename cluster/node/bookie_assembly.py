"""A bookie from a host and a config: its store, its registration and its work in the background.

The same for real processes, `dlog local` and the simulator. A node of any kind runs until it is cancelled (a
clean end: it deregisters and checkpoints), or until it fails: a failed write or sync, or whatever the
journal, the log of Raft or its hard state raise, ends the whole node with that error, and nothing it had not
synced was acknowledged. Any other unexpected error ends its own piece of work
(`distributedlog/runtime/schedule/work_failures.py`).
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
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare
from ...runtime.disk.node_identity import NodeIdentity
from ...runtime.interfaces.errors import CorruptData, DistributedLogError
from ...runtime.interfaces.host import Address, Host, Listener
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.net.address_check import AddressCheck, advertised_by
from ...runtime.net.rpc import Endpoint
from ...runtime.primitives.steady_clock import steady_time
from ...runtime.protocol.handshake import Hello
from ...runtime.schedule.work_failures import WorkFailures
from ..auth.authorizer_feed import feed_authorizer, look
from ..coordination.cookie import cookie_guard, take_identity
from ..coordination.gc_hold import GcHold
from ..coordination.journal_sync_point import ReachNotes, known_sync_point
from ..coordination.reconcile_loop import reconcile_on_change
from ..coordination.registration_lease import RegistrationLease
from ..declarations.config import overlay
from ..declarations.events import LIMBO, OPENED
from ..declarations.options import BookieNodeConfig, NodeReady
from ..gc.ledger_lookup import end_tombstones, ledger_statuses, missing_ledgers
from ..gc.retention import UNIT as RETENTION
from ..gc.retention import Close, Retention
from ..gc.segment_merger import Merge, SegmentMerger
from ..gc.segment_purger import UNIT as PURGING
from ..gc.segment_purger import SegmentPurger
from ..gc.staged_ledger_collector import StagedLedgerCollector
from ..repair.auditor_election import AuditorElection
from ..repair.ledger_deletion import LedgerDeletion
from ..repair.repair_metrics import RepairParts
from .node_lifecycle import (
    FIRST_QUESTION,
    advertised,
    check_places,
    hosts_of_peers,
    kept_until_the_end,
    listen_all,
    must_be_told,
    ready,
)
from .repair_tasks import repair_all
from .scrub_requests import scrub_when_told

LAST_CHECKPOINT_S = 5.0
LEAVING_EVERY_S = 10.0
LEDGERS_FEW = 100
"""Up to this many ledgers each new one is reported with the next renewal, more with the next change."""

log = get_logger("distributedlog.cluster.node")


async def serve_bookie_node(
    host: Host,
    config: BookieNodeConfig,
    *,
    task_status: trio.TaskStatus[NodeReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """A bookie, on ``host.disks["journal"]`` and ``["index"]``. Started once it is registered.

    Raises `ForeignData` (H6), `DataDirectoryInUse`, `AddressInUse`, `QuorumUnreachable`, `CorruptData`,
    `InvalidRequest`; later `DiskFailed`, and `ForeignData` when somebody starts with a copy of its directory.
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
        must_be_told(config.listen, config.advertise)
        # The ports first: a port in use is an error before anything else starts.
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
    """The parts of one bookie that its registration and its work in the background share."""

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


Start = Callable[..., None]
"""Starts a function, with its arguments, until the bookie's end; first the unit of work that it is."""


async def _serve_bookie(
    host: Host,
    config: BookieNodeConfig,
    options: BookieOptions,
    listeners: Mapping[str, Listener],
    task_status: trio.TaskStatus[NodeReady],
) -> None:
    """Put the parts of a bookie together, and take them apart in the end."""
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
    async with kept_until_the_end(metadata.run) as keep:
        await metadata.get(FIRST_QUESTION)  # needs a leader; the reply carries the cluster ID
        cluster_id = metadata.cluster_id
        identity, cookie_revision = await take_identity(
            host.disks,
            metadata,
            cluster_id=cluster_id,
            label=config.name,
            chance=host.random,
            principal=principal_of(host),
        )
        store = await _opened_store(host, options, endpoint, metadata, identity)
        await keep(store.run)
        if store.ledgers.limbo_below:
            await confine(store, metadata)
        parts = BookieParts(host, config, listeners, endpoint, metadata, identity, store)
        gate = BookieAuthorizer(options.trust_silence_s, steady_time(host))
        await _serve_registered(parts, gate, cookie_revision, task_status)


async def _opened_store(
    host: Host,
    options: BookieOptions,
    endpoint: Endpoint,
    metadata: MetadataClient,
    identity: NodeIdentity,
) -> BookieStore:
    """Open the store of a bookie whose identity was checked, and log how."""
    before = trio.current_time()
    witnessed, doubt = await known_sync_point(metadata, identity.node_id)
    store = await open_store(
        host,
        options,
        bookie_id=identity.node_id,
        witnessed=witnessed,
        doubt=doubt,
        failures=endpoint.failures,
    )
    OPENED.say(
        log,
        "bookie %s: start %d of this directory, %d ledgers, opened in %.2f s",
        identity.node_id,
        identity.incarnation,
        store.ledgers.known,
        trio.current_time() - before,
        bookie=identity.node_id,
        start=identity.incarnation,
        ledgers=store.ledgers.known,
    )
    store.conditions.add_check(endpoint.certificate_warning)
    return store


async def _serve_registered(
    parts: BookieParts,
    gate: BookieAuthorizer,
    cookie_revision: int,
    task_status: trio.TaskStatus[NodeReady],
) -> None:
    """Serve clients and register; in the end leave the cluster while its metadata can still be reached."""
    metadata, store, bookie_id = parts.metadata, parts.store, parts.bookie_id
    addresses = advertised(parts.listeners, parts.config.advertise)
    guard = cookie_guard(bookie_id, cookie_revision)
    address_check = _address_check(parts, addresses)
    store.conditions.add_check(address_check.conditions)
    reach = ReachNotes(
        metadata, bookie_id, guard, parts.identity.incarnation, lambda: store.durable_to
    )
    await reach.note()  # the writes of this start count before any acknowledgement
    membership = _membership(parts, addresses, guard, reach)
    repairs: list[RepairParts] = []  # one, when it has begun

    def have_parts(begun: RepairParts) -> None:
        repairs[:] = [begun]

    def of_repair() -> Mapping[str, object]:
        # A bookie without repair reports that: otherwise no node would report that none repairs.
        return repairs[0].info() if repairs else {"repairer": False}

    await look(gate, parts.endpoint, metadata, bookie_id)  # before any client is served
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(_serve_clients, parts, gate, membership, of_repair))
            await membership.register()

            def start(unit: str, run: Callable[..., Awaitable[object]], *args: object) -> None:
                """Have it run until the end; an unexpected exception ends one try of it."""
                nursery.start_soon(parts.endpoint.failures.keep, unit, run, *args)

            start("the renewal of the registration", membership.run)
            start("the check of its addresses", address_check.run)
            _start_upkeep(parts, gate, membership, start)
            _start_maintenance(parts, membership, start)
            if parts.config.repair:
                start(
                    "repair",
                    repair_all,
                    parts.host,
                    parts.config,
                    parts.endpoint,
                    metadata,
                    membership,
                    store,
                    bookie_id,
                    have_parts,
                )
            task_status.started(ready(parts.config.name, "bookie", bookie_id, parts.listeners))
    finally:
        await _leave(store, reach, membership)


async def _serve_clients(
    parts: BookieParts,
    gate: BookieAuthorizer,
    membership: RegistrationLease,
    of_repair: Callable[[], Mapping[str, object]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the bookie's protocol until cancelled."""
    await serve_bookie_protocol(
        parts.endpoint,
        parts.listeners,
        parts.store,
        gate=gate,
        missing_ledgers=partial(missing_ledgers, parts.metadata),
        standings=partial(ledger_statuses, parts.metadata),
        registered=lambda: membership.holds,
        also=of_repair,
        task_status=task_status,
    )


def _address_check(parts: BookieParts, addresses: Mapping[str, Address]) -> AddressCheck:
    """Return the check that the advertised addresses lead back to this bookie."""
    given, metadata = parts.config.listen, parts.metadata
    return AddressCheck(
        parts.host,
        parts.bookie_id,
        lambda: advertised_by(given, parts.listeners, addresses, metadata.listener),
        partial(hosts_of_peers, metadata, parts.config.metadata, parts.bookie_id),
    )


def _membership(
    parts: BookieParts, addresses: Mapping[str, Address], guard: Compare, reach: ReachNotes
) -> RegistrationLease:
    """Return the registration of the bookie, which a lease keeps."""
    registration = partial(
        registration_of, parts.host, parts.config, parts.identity, parts.store, addresses
    )
    return RegistrationLease(
        parts.metadata,
        keys.bookie_key(parts.bookie_id),
        lambda: registration().encode(),
        guard,
        lease_s=parts.config.lease_s,
        urgent=lambda: urgent_of(registration()),
        on_renewed=reach.note,
    )


def _start_upkeep(
    parts: BookieParts, gate: BookieAuthorizer, membership: RegistrationLease, start: Start
) -> None:
    """Start what keeps this bookie's own state up to date with the cluster."""
    metadata, store, bookie_id = parts.metadata, parts.store, parts.bookie_id
    failures = parts.endpoint.failures
    start("the look at its directories", check_places, list(parts.host.disks.values()))
    # Clients choose a bookie with free space at once, and a full one no more.
    start("news in the registration", membership.tell_at_once, lambda: store.space_changed.wait())
    start("the gate", feed_authorizer, gate, parts.endpoint, metadata, bookie_id)
    deletion = LedgerDeletion(metadata, bookie_id, store.delete_ledger, failures)
    start("deletion of ledgers", deletion.run)
    start("the end of tombstones", end_tombstones, metadata, store.end_tombstones, failures)
    start("the look whether it is to leave", leave_when_told, store, metadata, bookie_id, failures)
    start(
        "the look for a requested scrub",
        scrub_when_told,
        store.scrub,
        store.rot,
        metadata,
        bookie_id,
        membership.tell,
        failures,
    )


def _start_maintenance(parts: BookieParts, membership: RegistrationLease, start: Start) -> None:
    """Start what one elected bookie does for the cluster: purge, retain, merge and collect segments."""
    host, config, endpoint = parts.host, parts.config, parts.endpoint
    metadata, failures = parts.metadata, parts.endpoint.failures
    election = AuditorElection(
        metadata, parts.bookie_id, lambda: membership.lease, repairs=config.repair
    )
    janitor = GcHold(metadata, election)
    purger = SegmentPurger(metadata, janitor, grace_s=config.purge_grace_s, failures=failures)
    start(PURGING, purger.run)
    retention = Retention(
        metadata,
        janitor,
        closing=partial(closing, host, endpoint, metadata, config.name),
        failures=failures,
    )
    start(RETENTION, retention.run)
    merger = SegmentMerger(
        metadata,
        janitor,
        purger.deletion_share,
        opening=partial(merging, host, endpoint, metadata, config.name),
        failures=failures,
    )
    start("merging of segments", merger.run)
    collector = StagedLedgerCollector(
        metadata, janitor, unlinked_s=config.unlinked_s, failures=failures
    )
    start("collection of unlinked segments", collector.run)


async def _leave(store: BookieStore, reach: ReachNotes, membership: RegistrationLease) -> None:
    """Deregister while the client of the quorum still runs, then write a checkpoint for a short replay."""
    await reach.note_last()
    await membership.leave()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_CHECKPOINT_S):
        try:
            await store.checkpoint()
        except DistributedLogError as error:
            log.warning("no last checkpoint: %s: %s", type(error).__name__, error)


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
        store.ledgers.known,
        store.what_is_wrong(),
        (len(store.rot.noted), len(store.rot.stuck), store.rot.healed_entries),
        pulls=config.repair,
        principal=principal_of(host),
        limbo_below=store.limbo.below,
    )


def principal_of(host: Host) -> str:
    """Whom its certificate names; "" where it has none."""
    own = host.certificate()
    return "" if own is None else own.principal


def urgent_of(said: BookieRegistration) -> object:
    """Return the parts of a registration that are sent with the next renewal if they change.

    But users who have written their first logs count the ledgers: `LEDGERS_FEW`.
    """
    wrong = [(one.code, one.severity) for one in said.conditions]
    few = min(said.ledgers, LEDGERS_FEW)
    return said.read_only, wrong, [number > 0 for number in said.rot], said.limbo_below, few


def closing(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AbstractAsyncContextManager[Close]:
    """Return the client that closes abandoned segments.

    Most bookies never load a client of other bookies for it.
    """
    from ..gc.maintenance_clients import open_closing

    return open_closing(host, endpoint, metadata, name)


def merging(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AbstractAsyncContextManager[Merge]:
    """Return the client that merges segments, likewise."""
    from ..gc.maintenance_clients import open_merging

    return open_merging(host, endpoint, metadata, name)


async def leave_when_told(
    store: BookieStore, metadata: Metadata, bookie_id: str, failures: WorkFailures
) -> None:
    """Accept no new entries while this bookie is decommissioned. Its copies are stored elsewhere."""
    key = keys.leaving_key(bookie_id)
    asked_before = store.space.asked

    async def look() -> None:
        leaving = await metadata.get(key) is not None
        store.space.asked = leaving or asked_before

    await reconcile_on_change(
        metadata,
        (key,),
        look,
        every_s=LEAVING_EVERY_S,
        failures=failures,
        unit="the look whether it is to leave",
    )


async def confine(store: BookieStore, metadata: Metadata) -> None:
    """After a start that found a loss: ledgers that are created from now on are not in limbo (H7).

    If the next ledger ID is unreadable, all ledgers that are not stored here stay in limbo.
    """
    LIMBO.say(
        log,
        "this start found lost data: what it may have held is in limbo, not denied",
        bookie=store.bookie_id,
    )
    try:
        await store.limbo.confine(await next_ledger(metadata))
    except CorruptData as error:
        log.warning("%s", error)
