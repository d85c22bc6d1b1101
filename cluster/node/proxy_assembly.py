"""Assemble a write proxy or read proxy from a host and a configuration.

A proxy has no disk. Its ID is generated at each start. A proxy that is stopped accepts no new logs. It gives
its logs to other proxies while it still serves requests, and then deregisters. Its storage clients run until
this is done.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from ...ledger.declarations.options import LedgerOptions
from ...ledger.ledger_client import LedgerClient
from ...ledger.placement.bookie_pool import pool_of
from ...log.declarations.options import LogOptions
from ...log.namespace import Namespace
from ...metadata.client.metadata_client import MetadataClient
from ...proxy.declarations.options import ProxyOptions
from ...proxy.membership.proxy_members import ProxyMembers
from ...proxy.membership.proxy_registration import LEASE_S, READ, WRITE, ProxyRegistration
from ...proxy.read.read_server import ReadServer, ReadSession
from ...proxy.session.client_authorizer import ClientAuthorizer
from ...proxy.session.log_calls import LogCalls
from ...proxy.session.namespace_cache import Namespaces
from ...proxy.session.proxy_session import CommonSession
from ...proxy.write.log_manager import LogManager
from ...proxy.write.produce_session import Limits, ProduceSession
from ...proxy.write.write_proxy_peers import WriteProxyPeers
from ...runtime.declarations.condition_texts import report_of
from ...runtime.declarations.health_conditions import NodeConditions, limited
from ...runtime.declarations.options import names, overlaid, unknown
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Address, Host, Listener
from ...runtime.interfaces.principals import BY_CERTIFICATE
from ...runtime.net.address_check import AddressCheck, advertised_by
from ...runtime.net.link import Link, LinkSession
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.handshake import Hello
from ...runtime.protocol.tokens import METHOD as TOKEN
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.registration_lease import RegistrationLease
from ..declarations.options import WRITE_PROXY, NodeReady, ProxyNodeConfig
from .node_lifecycle import (
    FIRST_QUESTION,
    Keep,
    advertised,
    hosts_of_peers,
    kept_until_the_end,
    listen_all,
    must_be_told,
    ready,
)

ID_BITS = 64
LOCK_LEASE_S = 3.0
"""Other proxies can take over the logs of a disconnected proxy after this time.

They take over the logs of a killed proxy within one second.
"""
TELL_S = 2.0
"""A stopping proxy tries for this time to report in its registration that it accepts no logs."""


async def serve_proxy_node(
    host: Host,
    config: ProxyNodeConfig,
    *,
    task_status: trio.TaskStatus[NodeReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a write proxy or read proxy until cancelled.

    The proxy has started when it is registered.

    Args:
        host: The machine.
        config: The configuration, including the kind of the proxy.
        task_status: Receives the addresses and the ID when the proxy has started.

    Raises:
        AddressInUse: Another program listens on one of the addresses.
        QuorumUnreachable: No metadata quorum answered.
        InvalidRequest: An option or an address is invalid.
    """
    options = split_options(config)
    must_be_told(config.listen, config.advertise)
    listeners = await listen_all(host, config.listen)
    try:
        await _serve(host, config, *options, listeners, task_status)
    finally:
        for listener in listeners.values():
            listener.close()


def split_options(config: ProxyNodeConfig) -> tuple[ProxyOptions, LogOptions, LedgerOptions]:
    """Split the options of a proxy by the part that declares them.

    Raises:
        InvalidRequest: An option is unknown or its value is invalid.
    """
    parts = (ProxyOptions, LogOptions, LedgerOptions)
    known = [name for part in parts for name in names(part)]
    for name in config.options:
        if name not in known:
            raise unknown(name, known)

    def given(part: type) -> dict[str, object]:
        return {name: config.options[name] for name in names(part) if name in config.options}

    return (
        overlaid(ProxyOptions(), given(ProxyOptions)),
        overlaid(LogOptions(lock_lease_s=LOCK_LEASE_S), given(LogOptions)),
        overlaid(LedgerOptions(), given(LedgerOptions)),
    )


@dataclass(frozen=True, slots=True)
class ProxyParts:
    """The parts of one proxy that its sessions and its registration share."""

    host: Host
    config: ProxyNodeConfig
    options: ProxyOptions
    listeners: Mapping[str, Listener]
    endpoint: Endpoint
    metadata: MetadataClient
    proxy_id: str
    namespaces: Namespaces
    members: ProxyMembers
    rights: ClientAuthorizer
    owner: LogManager | None
    """The owner of the logs of a write proxy; None in a read proxy."""


async def _serve(
    host: Host,
    config: ProxyNodeConfig,
    options: ProxyOptions,
    of_logs: LogOptions,
    of_ledgers: LedgerOptions,
    listeners: Mapping[str, Listener],
    task_status: trio.TaskStatus[NodeReady],
) -> None:
    """Create and run the parts of a proxy until its end."""
    proxy_id = f"{host.random.getrandbits(ID_BITS):016x}"

    def hello() -> Hello:
        return Hello(metadata.cluster_id, proxy_id, config.kind, config.name)

    endpoint = Endpoint(host, hello)
    failures = endpoint.failures
    metadata = MetadataClient(
        endpoint,
        config.metadata,
        client_id=f"{config.kind}-{config.name}-{proxy_id}",
        timeout_s=config.metadata_timeout_s,
    )
    async with kept_until_the_end(metadata.run) as keep:
        await metadata.get(FIRST_QUESTION)  # waits for a leader; its answer has the cluster ID
        pool = pool_of(endpoint, metadata)
        await keep(pool.run)
        ledgers = LedgerClient(host, endpoint, metadata, pool, of_ledgers)
        await keep(ledgers.run)
        open_namespace = _namespaces(host, config, of_logs, metadata, ledgers, proxy_id, failures)
        namespaces = Namespaces(open_namespace, namespaces_max=options.namespaces_max)
        await keep(namespaces.run)
        members = ProxyMembers(metadata)
        await keep(partial(failures.keep_started, "the watch of proxies", members.run))
        rights = ClientAuthorizer(metadata)
        await keep(partial(failures.keep_started, "the watch of rights", rights.run))
        if BY_CERTIFICATE in endpoint.methods:
            endpoint.asked[TOKEN] = partial(rights.verify_token, metadata.verify_token)
        owner: LogManager | None = None
        if config.kind == WRITE_PROXY:
            peers = WriteProxyPeers(endpoint)
            await keep(peers.run)
            owner = LogManager(proxy_id, namespaces, members, options, peers, failures)
            await keep(owner.run)
        parts = ProxyParts(
            host, config, options, listeners, endpoint, metadata, proxy_id, namespaces, members,
            rights, owner,
        )  # fmt: skip
        await _serve_registered(parts, keep, task_status)


def _namespaces(
    host: Host,
    config: ProxyNodeConfig,
    of_logs: LogOptions,
    metadata: MetadataClient,
    ledgers: LedgerClient,
    proxy_id: str,
    failures: WorkFailures,
) -> Callable[[str, trio.Nursery], Namespace]:
    """Return the function that opens a namespace for this proxy's clients."""
    of_ledgers = ledgers.options

    def open_namespace(path: str, nursery: trio.Nursery) -> Namespace:
        return Namespace(
            path,
            metadata=metadata,
            ledgers=ledgers,
            nursery=nursery,
            random=host.random,
            wall_ms=host.wall_ms,
            owner=f"{config.kind} {config.name}",
            options=of_logs,
            quorums=(
                of_ledgers.ensemble_size,
                of_ledgers.write_quorum,
                of_ledgers.ack_quorum,
            ),
            proxy_id=proxy_id if config.kind == WRITE_PROXY else "",
            failures=failures,
        )

    return open_namespace


async def _serve_registered(
    parts: ProxyParts, keep: Keep, task_status: trio.TaskStatus[NodeReady]
) -> None:
    """Serve clients and register. At the end, give the logs to other proxies and deregister."""
    owner, members, proxy_id = parts.owner, parts.members, parts.proxy_id
    config, endpoint, failures = parts.config, parts.endpoint, parts.endpoint.failures
    calls = LogCalls(
        parts.namespaces,
        calls_max=parts.options.calls_max,
        serves=lambda other: other in members.write and other != proxy_id,
        release=None if owner is None else owner.release,
    )
    await keep(calls.run)
    addresses = advertised(parts.listeners, config.advertise)
    membership = _membership(parts, addresses)
    reading = ReadServer(endpoint, parts.namespaces.using)
    if owner is None:
        await keep(reading.run)
    address_check = AddressCheck(
        parts.host,
        proxy_id,
        lambda: advertised_by(config.listen, parts.listeners, addresses, parts.metadata.listener),
        partial(hosts_of_peers, parts.metadata, config.metadata),
    )
    info = _info(parts, address_check, membership, calls, reading)
    limits = Limits(parts.options.records_per_s_max, parts.options.bytes_per_s_max)

    def session(link: Link) -> LinkSession:
        client = parts.rights.meet(link)
        common = CommonSession(link, client, members, calls, info)
        if owner is not None:
            return ProduceSession(link, owner, limits, common)
        return ReadSession(reading, link, client, common)

    await keep(partial(_listen, endpoint, parts.listeners, session))
    await keep(partial(failures.keep_started, "the check of its addresses", address_check.run))
    try:
        await membership.register()
        task_status.started(ready(config.name, config.kind, proxy_id, parts.listeners))
        await failures.keep("the renewal of the registration", membership.run)
    finally:
        if owner is not None:
            deadline = trio.current_time() + parts.options.drain_s
            with trio.CancelScope(shield=True, deadline=deadline):
                await _end(owner, membership)
        await membership.leave()


def _membership(parts: ProxyParts, addresses: Mapping[str, Address]) -> RegistrationLease:
    """Return the leased registration of the proxy."""
    owner, config = parts.owner, parts.config

    def accepting() -> bool:
        return owner is None or owner.accepting

    def registration() -> ProxyRegistration:
        return ProxyRegistration(
            parts.proxy_id,
            WRITE if config.kind == WRITE_PROXY else READ,
            addresses,
            accepting(),
            config.name,
            config.rack,
        )

    return RegistrationLease(
        parts.metadata,
        registration().key,
        lambda: registration().encode(),
        None,
        lease_s=LEASE_S,
        urgent=accepting,
    )


def _info(
    parts: ProxyParts,
    address_check: AddressCheck,
    membership: RegistrationLease,
    calls: LogCalls,
    reading: ReadServer,
) -> Callable[[], dict[str, object]]:
    """Return the function that answers `Op.INFO`. It uses only values in memory."""
    owner, members, endpoint, rights = parts.owner, parts.members, parts.endpoint, parts.rights
    conditions = NodeConditions()
    conditions.add_check(endpoint.certificate_warning)
    conditions.add_check(endpoint.failures.conditions)
    conditions.add_check(rights.condition)
    conditions.add_check(address_check.conditions)

    def info() -> dict[str, object]:
        return {
            **(reading.info() if owner is None else {}),
            "registered": membership.holds,
            **report_of(limited(conditions.current())),
            "write_proxies": len(members.write),
            "read_proxies": len(members.read),
            "calls": calls.made,
            **endpoint.info(),
            **rights.info(),
            **(owner.info() if owner is not None else {}),
        }

    return info


async def _end(owner: LogManager, membership: RegistrationLease) -> None:
    """Stop accepting logs, report this in the registration, and give the logs to other proxies."""
    owner.accepting = False
    # Without a metadata quorum, as when a whole cluster stops, producers detect the end themselves.
    with suppress(DistributedLogError), trio.move_on_after(TELL_S):
        await membership.tell()
    await owner.drain()


async def _listen(
    endpoint: Endpoint,
    listeners: Mapping[str, Listener],
    session: Callable[[Link], LinkSession],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    task_status.started()
    await endpoint.serve(listeners, session)
