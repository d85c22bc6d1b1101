"""One node from a Host and a config: a metadata node or a bookie. (A proxy: `proxies.py`.)

The same for real processes, `dlog local` and the simulator. A node runs until it is cancelled (a clean
end: it says goodbye and checkpoints), or until it fails: a failed write or sync, or whatever the journal, the
log of Raft or its hard state raise, ends the whole node with that error, and nothing it had not synced was
acknowledged. What else fails unexpectedly ends its own piece of work (`runtime/work_failures.py`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import trio

from ..bookie.gate import Gate
from ..bookie.opening import open_store
from ..bookie.options import BookieOptions
from ..bookie.server import serve_bookie_protocol
from ..bookie.store import Store
from ..ledger import keys
from ..ledger.ids import next_ledger
from ..ledger.registration import BookieRegistration
from ..metadata.client import MetadataClient
from ..metadata.interface import Metadata, Scan
from ..metadata.options import MetadataOptions
from ..metadata.server import serve_metadata
from ..runtime.address_check import AddressCheck, Advertised, advertised_by
from ..runtime.errors import CorruptData, DistributedLogError, InvalidRequest, UnsupportedFormat
from ..runtime.hello import Hello
from ..runtime.host import Address, Disk, Host, Listener
from ..runtime.identity import NodeIdentity
from ..runtime.log_lines import get_logger
from ..runtime.rpc import Endpoint
from ..runtime.steady_clock import steady_time
from ..runtime.work_failures import WorkFailures
from .collecting import Collector
from .config import format_address, overlay
from .cookie import cookie_guard, take_identity
from .deletion import Deletion
from .events import LIMBO, OPENED, SERVES
from .existing import end_tombstones, missing_ledgers, standings
from .gate_keeping import keep_gate, look
from .key_classes import KEY_CLASSES
from .membership import Membership
from .merging import Merge, Merging
from .metrics import RepairParts
from .options import BookieNodeConfig, MetadataNodeConfig, NodeReady
from .purging import UNIT as PURGING
from .purging import Purger
from .reach import ReachNotes, known_reach
from .repair import Election
from .repair_tasks import repair_all
from .restored import UnlessHeld
from .retention import UNIT as RETENTION
from .retention import Close, Retention
from .scrubbing import scrub_when_told
from .watching import at_each_change

LAST_CHECKPOINT_S = 5.0
PLACE_S = 2.0
"""Between two checks that the files of a node are still in its data directory."""
LEAVING_EVERY_S = 10.0
ALL_ADDRESSES = ("", "0.0.0.0", "::")
"""To listen on; not to dial."""
LEDGERS_FEW = 100
"""Up to so many ledgers each new one is told with the next renewal, of more with what is told anyway."""
FIRST_QUESTION = b"cluster"
"""A key that nobody has; asking for it needs a leader."""

log = get_logger("distributedlog.cluster.node")


async def serve_metadata_node(
    host: Host,
    config: MetadataNodeConfig,
    *,
    task_status: trio.TaskStatus[NodeReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """A node of the quorum, on ``host.disks["metadata"]``. Started once it listens and knows who it is.

    Raises `ForeignData`, `DataDirectoryInUse`, `AddressInUse`, `CorruptData`; later `DiskFailed`.
    """
    if config.name not in config.voters:
        raise InvalidRequest(f"{config.name} is none of the quorum: {', '.join(config.voters)}")
    disk = host.disks["metadata"]
    disk.lock()
    try:
        listeners = await listen_all(host, config.listen or {"": config.voters[config.name]})
        try:
            options = MetadataOptions(
                config.name, config.voters, advertised(listeners, config.advertise)
            )
            async with trio.open_nursery() as nursery:
                keep = WorkFailures().keep
                nursery.start_soon(keep, "the look at its directory", check_places, [disk])
                addresses = addresses_of_voter(config, listeners)
                node_id = await nursery.start(
                    serve_metadata, host, options, listeners, KEY_CLASSES, addresses
                )
                task_status.started(ready(config.name, "metadata", node_id, listeners))
        finally:
            for listener in listeners.values():
                listener.close()
    finally:
        disk.unlock()


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
        # The ports first: a taken one is a plain error, and nobody was kept waiting for it.
        listeners = await listen_all(host, config.listen)
        try:
            await _serve_bookie(host, config, options, listeners, task_status)
        finally:
            for listener in listeners.values():
                listener.close()
    finally:
        for disk in disks:
            disk.unlock()


async def check_places(disks: Sequence[Disk]) -> None:
    """End the node soon after its files are not in its data directory any more.

    Without this, it would acknowledge into removed files until its end. Raises `DataDirectoryLost`.
    """
    while True:
        await trio.sleep(PLACE_S)
        for disk in disks:
            await disk.check_place()


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
        await metadata.get(FIRST_QUESTION)  # a quorum that leads; from then on its id is known
        cluster_id = metadata.cluster_id
        identity, cookie_revision = await take_identity(
            host.disks,
            metadata,
            cluster_id=cluster_id,
            label=config.name,
            chance=host.random,
            principal=principal_of(host),
        )
        before = trio.current_time()
        witnessed, doubt = await known_reach(metadata, identity.node_id)
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
        await keep(store.run)
        if store.ledgers.limbo_below:
            await confine(store, metadata)
        addresses = advertised(listeners, config.advertise)
        registration = partial(registration_of, host, config, identity, store, addresses)
        address_check = AddressCheck(
            host,
            identity.node_id,
            lambda: advertised_by(config.listen, listeners, addresses, metadata.listener),
            partial(hosts_of_peers, metadata, config.metadata, identity.node_id),
        )
        store.conditions.add_check(address_check.conditions)
        guard = cookie_guard(identity.node_id, cookie_revision)
        reach = ReachNotes(
            metadata,
            identity.node_id,
            guard,
            identity.incarnation,
            lambda: store.durable_to,
        )
        await reach.note()  # what this start wrote counts before anything is acknowledged
        membership = Membership(
            metadata,
            keys.bookie_key(identity.node_id),
            lambda: registration().encode(),
            guard,
            lease_s=config.lease_s,
            urgent=lambda: urgent_of(registration()),
            on_renewed=reach.note,
        )
        gate = Gate(options.trust_silence_s, steady_time(host))
        repairs: list[RepairParts] = []  # one, when it has begun
        await look(gate, endpoint, metadata, identity.node_id)  # before anybody is served
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(
                    partial(
                        serve_bookie_protocol,
                        endpoint,
                        listeners,
                        store,
                        gate=gate,
                        missing_ledgers=partial(missing_ledgers, metadata),
                        standings=partial(standings, metadata),
                        registered=lambda: membership.holds,
                        # Who is not to repair says so: else nobody would say that nobody does.
                        also=lambda: repairs[0].info() if repairs else {"repairer": False},
                    )
                )
                await membership.register()
                failures = endpoint.failures

                def have_parts(parts: RepairParts) -> None:
                    repairs[:] = [parts]

                def start(unit: str, run: Callable[..., Awaitable[object]], *args: object) -> None:
                    """Have it run until the end; an unexpected exception of it is contained."""
                    nursery.start_soon(failures.keep, unit, run, *args)

                start("the renewal of the registration", membership.run)
                start("the check of its addresses", address_check.run)
                start("the look at its directories", check_places, list(host.disks.values()))
                # Who has room again is chosen at once, and who has none is not.
                start(
                    "news in the registration",
                    membership.tell_at_once,
                    lambda: store.space_changed.wait(),
                )
                start("the gate", keep_gate, gate, endpoint, metadata, identity.node_id)
                deletion = Deletion(metadata, identity.node_id, store.delete_ledger, failures)
                start("deletion of ledgers", deletion.run)
                start(
                    "the end of tombstones",
                    end_tombstones,
                    metadata,
                    store.end_tombstones,
                    failures,
                )
                start(
                    "the look whether it is to leave",
                    leave_when_told,
                    store,
                    metadata,
                    identity.node_id,
                    failures,
                )
                start(
                    "the look for a requested scrub",
                    scrub_when_told,
                    store.scrub,
                    store.rot,
                    metadata,
                    identity.node_id,
                    membership.tell,
                    failures,
                )
                election = Election(
                    metadata,
                    identity.node_id,
                    lambda: membership.lease,
                    repairs=config.repair,
                )
                janitor = UnlessHeld(metadata, election)
                purger = Purger(metadata, janitor, grace_s=config.purge_grace_s, failures=failures)
                start(PURGING, purger.run)
                retention = Retention(
                    metadata,
                    janitor,
                    closing=partial(closing, host, endpoint, metadata, config.name),
                    failures=failures,
                )
                start(RETENTION, retention.run)
                merger = Merging(
                    metadata,
                    janitor,
                    purger.deletion_share,
                    opening=partial(merging, host, endpoint, metadata, config.name),
                    failures=failures,
                )
                start("merging of segments", merger.run)
                collector = Collector(
                    metadata, janitor, unlinked_s=config.unlinked_s, failures=failures
                )
                start("collection of unlinked segments", collector.run)
                if config.repair:
                    start(
                        "repair",
                        repair_all,
                        host,
                        config,
                        endpoint,
                        metadata,
                        membership,
                        store,
                        identity.node_id,
                        have_parts,
                    )
                task_status.started(ready(config.name, "bookie", identity.node_id, listeners))
        finally:
            # No more adds: say goodbye while the quorum's client still runs, then leave a short replay.
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
    store: Store,
    addresses: Mapping[str, Address],
) -> BookieRegistration:
    """What a bookie says of itself to all, at this moment."""
    # Whole tenths of a gigabyte: a registration is told again when it changed, not at each write.
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
    """What closes segments that were left open. Most bookies never load a client of other bookies for it."""
    from .closing import open_closing

    return open_closing(host, endpoint, metadata, name)


def merging(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AbstractAsyncContextManager[Merge]:
    """What merges segments, likewise."""
    from .closing import open_merging

    return open_merging(host, endpoint, metadata, name)


async def leave_when_told(
    store: Store, metadata: Metadata, bookie_id: str, failures: WorkFailures
) -> None:
    """A bookie that is to leave takes no new entries; what it holds is stored elsewhere."""
    key = keys.leaving_key(bookie_id)
    asked_before = store.space.asked

    async def look() -> None:
        leaving = await metadata.get(key) is not None
        store.space.asked = leaving or asked_before

    await at_each_change(
        metadata,
        (key,),
        look,
        every_s=LEAVING_EVERY_S,
        failures=failures,
        unit="the look whether it is to leave",
    )


async def confine(store: Store, metadata: Metadata) -> None:
    """After a start that found a loss: ledgers that are created from now on are not in limbo (H7).

    Where nobody can say which those are, all that are not known here stay in limbo.
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


async def listen_all(host: Host, addresses: Mapping[str, Address]) -> dict[str, Listener]:
    """Listen on every address, by listener name. Raises `AddressInUse` and leaves none open."""
    found: dict[str, Listener] = {}
    try:
        for name, address in addresses.items():
            found[name] = await host.listen(address)
    except BaseException:
        for listener in found.values():
            listener.close()
        raise
    return found


def advertised(
    listeners: Mapping[str, Listener], given: Mapping[str, Address]
) -> dict[str, Address]:
    """What others should dial, by listener name: what was given, else where it listens.

    Nobody can dial the address that stands for all of a machine's: it is left out. A metadata node is
    then found where the list of the quorum says, a bookie would be found nowhere (`must_be_told`).
    """
    for name in given:
        if name not in listeners:
            raise InvalidRequest(f"--advertise names the listener {name!r}, --listen does not")
    found = {name: given.get(name, listener.address) for name, listener in listeners.items()}
    return {name: address for name, address in found.items() if address[0] not in ALL_ADDRESSES}


def addresses_of_voter(
    config: MetadataNodeConfig, listeners: Mapping[str, Listener]
) -> list[Advertised]:
    """Return the addresses at which others dial a metadata node: the listed and the advertised ones."""
    own = config.voters[config.name]
    given = config.listen or {"": own}
    bound = {name: listeners[name] for name, address in given.items() if address == own}
    listed = [
        replace(one, listener="", for_peers=True)
        for one in advertised_by(given, bound, dict.fromkeys([*bound][:1] or [""], own), "")
    ]
    told = advertised_by(given, listeners, advertised(listeners, config.advertise), "")
    return listed + [
        # Only the default address is for everybody. Other listeners may be for networks without this node.
        replace(one, for_peers=one.listener == "")
        for one in told
        if one.address != own and (one.listener in config.advertise or one.listener not in bound)
    ]


async def hosts_of_peers(
    metadata: Metadata, given: Iterable[Address], own_id: str = ""
) -> list[str]:
    """Return the hosts at which metadata nodes and other bookies are dialed. Raises as `Metadata.range`."""
    found = [host for host, _ in given]
    async for item in Scan(metadata, keys.BOOKIE_PREFIX):
        with suppress(CorruptData, UnsupportedFormat):  # counted among the damaged records
            one = BookieRegistration.decode(item.key, item.value)
            if one.id != own_id:
                found += [host for host, _ in one.addresses.values()]
    return found


def must_be_told(listen: Mapping[str, Address], given: Mapping[str, Address]) -> None:
    """Refuse a bookie that would register an address nobody can dial. Raises `InvalidRequest`."""
    for name, address in listen.items():
        if given.get(name, address)[0] in ALL_ADDRESSES:
            prefix = f"{name}=" if name else ""
            raise InvalidRequest(
                f"--listen {prefix}{format_address(address)} is every address of this machine: say which"
                f" one others should dial, with --advertise {prefix}HOST:PORT"
            )


def ready(name: str, kind: str, node_id: str, listeners: Mapping[str, Listener]) -> NodeReady:
    """What the node says when it serves."""
    first = next(iter(listeners.values()))
    where = format_address(first.address)
    SERVES.say(
        log, "%s %s serves at %s", kind, name, where, node_name=name, kind=kind, address=where
    )
    return NodeReady(name, kind, node_id, first.address)


Keep = Callable[[Callable[..., Awaitable[None]]], Awaitable[None]]


@asynccontextmanager
async def kept_until_the_end(run: Callable[..., Awaitable[None]]) -> AsyncIterator[Keep]:
    """Run services that outlive a cancellation from outside until the body is through.

    Gives a function that starts one more. A service that fails ends the body, and with it the node.
    """
    async with trio.open_nursery() as nursery:
        scopes: list[trio.CancelScope] = []

        async def run_in_scope(
            service: Callable[..., Awaitable[None]],
            *,
            task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
        ) -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await service(task_status=task_status)

        async def keep(service: Callable[..., Awaitable[None]]) -> None:
            await nursery.start(run_in_scope, service)
            scopes[-1].shield = True  # a start can still be cancelled, what has started not

        try:
            await keep(run)
            yield keep
        finally:
            for scope in reversed(scopes):
                scope.cancel()
