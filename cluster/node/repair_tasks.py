"""Start all repair tasks of a bookie.

They repair missing entries, lost bookies, the limbo state and corruption. They also close open ledgers, audit
closed ones, and delete over-replicated copies. All tasks share one copier, so that one rate limits all copies
together.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import trio

from ...bookie.store.bookie_store import BookieStore
from ...ledger.placement.bookie_pool import BookiePool, make_pool
from ...metadata.client.metadata_client import MetadataClient
from ...runtime.interfaces.host import Host
from ...runtime.net.rpc import Endpoint
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.registration_lease import RegistrationLease
from ..declarations.options import BookieNodeConfig
from ..repair.auditor_election import RepairLeaderElection
from ..repair.copier import Copier
from ..repair.corruption_repair import CorruptionRepair
from ..repair.ledger_audit import UNIT as AUDIT
from ..repair.ledger_audit import LedgerAudit
from ..repair.limbo_repair import UNIT as LIMBO
from ..repair.limbo_repair import LimboRepair
from ..repair.lost_bookies import BookieLiveness, LostBookieRepair, RepairTargets
from ..repair.open_ledger_closer import OpenLedgerCloser, OrphanCloser
from ..repair.over_replication import UNIT as SURPLUS
from ..repair.over_replication import OverReplication
from ..repair.pull_replication import PullReplication
from ..repair.repair_metrics import RepairParts
from ..repair.replication_worker import ReplicationWorker


async def repair_all(
    host: Host,
    config: BookieNodeConfig,
    endpoint: Endpoint,
    metadata: MetadataClient,
    membership: RegistrationLease,
    store: BookieStore,
    bookie_id: str,
    on_parts: Callable[[RepairParts], object],
) -> None:
    """Run all repair tasks of a bookie until cancelled.

    An unexpected exception ends only one attempt of one unit of work
    (`distributedlog/runtime/schedule/work_failures.py`).

    Args:
        host: The machine.
        config: The configuration of the bookie.
        endpoint: Its connections to other nodes.
        metadata: The metadata client.
        membership: Its registration, whose lease holds the election key.
        store: Its store.
        bookie_id: Its ID.
        on_parts: Called once with the parts that count repairs.
    """
    failures = endpoint.failures
    keep = failures.keep_running
    async with trio.open_nursery() as nursery:
        pool = make_pool(endpoint, metadata)
        await nursery.start(pool.run)
        copier = Copier(pool, bytes_per_s=config.repair_bytes_per_s)
        election = RepairLeaderElection(metadata, bookie_id, lambda: membership.lease)
        replication_worker = ReplicationWorker(metadata, pool, election, copier, failures)
        nursery.start_soon(keep, "repair of missing entries", replication_worker.run)
        liveness = BookieLiveness(config.lost_after_s, config.urgent_after_s)
        targets = _targets(pool, host)
        lost_bookie_repair = LostBookieRepair(
            metadata, pool, election, copier, targets, liveness, failures
        )
        nursery.start_soon(lost_bookie_repair.run)
        pull_replication = PullReplication(metadata, pool, copier, bookie_id, failures)
        nursery.start_soon(
            keep, "the fetching of ledgers assigned to this bookie", pull_replication.run
        )
        make_closer = partial(_closer, host, endpoint, metadata, config.name)
        open_ledger_closer = OpenLedgerCloser(
            metadata, lost_bookie_repair.liveness, make_closer, failures
        )
        nursery.start_soon(
            keep, "the closing of open ledgers on lost bookies", open_ledger_closer.run
        )
        audit = LedgerAudit(
            metadata, pool, election, every_s=config.audit_every_s, failures=failures
        )
        nursery.start_soon(keep, AUDIT, audit.run)
        limbo_repair, over_replication = _start_local_repairs(
            nursery, metadata, pool, copier, store, bookie_id, config, failures
        )
        on_parts(
            RepairParts(
                election,
                copier,
                replication_worker,
                lost_bookie_repair,
                open_ledger_closer,
                audit,
                limbo_repair,
                over_replication,
            ),
        )


def _start_local_repairs(
    nursery: trio.Nursery,
    metadata: MetadataClient,
    pool: BookiePool,
    copier: Copier,
    store: BookieStore,
    bookie_id: str,
    config: BookieNodeConfig,
    failures: WorkFailures,
) -> tuple[LimboRepair, OverReplication]:
    """Start the repair of this bookie's own ledgers: limbo, corrupt entries, over-replicated copies."""
    keep = failures.keep_running
    of_own_ledgers = (
        metadata,
        pool,
        copier,
        store.limbo,
        store.corruption_tracker,
        bookie_id,
        trio.Lock(),
        failures,
    )
    limbo_repair = LimboRepair(*of_own_ledgers)
    nursery.start_soon(keep, LIMBO, limbo_repair.run)
    corruption_repair = CorruptionRepair(*of_own_ledgers)
    nursery.start_soon(keep, "the repair of corrupt entries", corruption_repair.run)
    over_replication = OverReplication(
        metadata,
        pool,
        store.ledgers,
        store.replica_removal,
        store.delete_ledger,
        bookie_id,
        every_s=config.surplus_every_s,
        failures=failures,
    )
    nursery.start_soon(keep, SURPLUS, over_replication.run)
    return limbo_repair, over_replication


def _targets(pool: BookiePool, host: Host) -> RepairTargets:
    """Return the bookies that a pool of connections reaches, as targets of copies."""

    def pulls(bookie: str) -> bool:
        registration = pool.registration(bookie)
        return registration is not None and bool(registration.copies_assigned_ledgers)

    return RepairTargets(
        pool.candidates,
        host.random.random,
        policy=lambda: pool.placement,
        labels=pool.labels,
        can_pull=pulls,
        wall_ms=host.wall_ms,
    )


def _closer(
    host: Host, endpoint: Endpoint, metadata: MetadataClient, name: str
) -> AbstractAsyncContextManager[OrphanCloser]:
    """Return the client that closes open ledgers. It is imported here, because most bookies never need it."""
    from ..gc.maintenance_clients import open_ledger_closer

    return open_ledger_closer(host, endpoint, metadata, name)
