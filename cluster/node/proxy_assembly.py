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
from ...ledger.placement.bookie_pool import make_pool
from ...log.declarations.options import LogOptions
from ...log.namespace import Namespace
from ...metadata.client.metadata_client import MetadataClient
from ...metadata.model.cluster_version import PROBE_KEY, read_cluster_version
from ...proxy.declarations.options import ProxyOptions
from ...proxy.membership.proxy_members import ProxyMembers
from ...proxy.membership.proxy_registration import LEASE_S, READ, WRITE, ProxyRegistration
from ...proxy.read.read_server import ReadServer, ReadSession
from ...proxy.session.client_authorizer import ClientAuthorizer
from ...proxy.session.log_calls import LogCalls
from ...proxy.session.namespace_cache import Namespaces
from ...proxy.session.proxy_session import CommonSession
from ...proxy.write.log_manager import LogManager
from ...proxy.write.produce_session import ProduceSession, ProxyRateLimits
from ...proxy.write.write_proxy_peers import WriteProxyPeers
from ...runtime.declarations.condition_texts import report_of
from ...runtime.declarations.health_conditions import NodeConditions, limit_conditions
from ...runtime.declarations.options import option_names, unknown_option_error, with_overrides
from ...runtime.declarations.versions import stated_version
from ...runtime.interfaces.errors import DistributedLogError
from ...runtime.interfaces.host import Address, Host, Listener
from ...runtime.interfaces.principals import BY_CERTIFICATE
from ...runtime.net.address_check import AddressCheck, advertised_addresses_of
from ...runtime.net.link import Link, LinkSession
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.handshake import Hello
from ...runtime.protocol.tokens import METHOD as TOKEN
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.registration_lease import RegistrationLease
from ..declarations.options import WRITE_PROXY, NodeReady, ProxyNodeConfig
from .node_lifecycle import (
    Keep,
    advertised_addresses,
    check_advertise,
    hosts_of_peers,
    listen_all,
    report_ready,
    run_services,
)

ID_BITS = 64
LOCK_LEASE_S = 3.0
"""Other proxies can take over the logs of a disconnected proxy after this time.

They take over the logs of a killed proxy within one second.
"""
ANNOUNCE_S = 2.0
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
        UnsupportedFormat: The cluster is finalized for a newer version.
    """
    options = split_options(config)
    check_advertise(config.listen, config.advertise)
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
    known_names = [name for part in parts for name in option_names(part)]
    for name in config.options:
        if name not in known_names:
            raise unknown_option_error(name, known_names)

    def given(part_class: type) -> dict[str, object]:
        return {
            name: config.options[name]
            for name in option_names(part_class)
            if name in config.options
        }

    return (
        with_overrides(ProxyOptions(), given(ProxyOptions)),
        with_overrides(LogOptions(lock_lease_s=LOCK_LEASE_S), given(LogOptions)),
        with_overrides(LedgerOptions(), given(LedgerOptions)),
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
    authorizer: ClientAuthorizer
    log_manager: LogManager | None
    """The owner of the logs of a write proxy; None in a read proxy."""


async def _serve(
    host: Host,
    config: ProxyNodeConfig,
    options: ProxyOptions,
    log_options: LogOptions,
    ledger_options: LedgerOptions,
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
    async with run_services(metadata.run) as keep:
        await metadata.get(PROBE_KEY)  # waits for a leader; its answer has the cluster ID
        (await read_cluster_version(metadata)).check_node()
        pool = make_pool(endpoint, metadata)
        await keep(pool.run)
        ledgers = LedgerClient(host, endpoint, metadata, pool, ledger_options)
        await keep(ledgers.run)
        open_namespace = _namespace_opener(
            host, config, log_options, metadata, ledgers, proxy_id, failures
        )
        namespaces = Namespaces(open_namespace, namespaces_max=options.namespaces_max)
        await keep(namespaces.run)
        members = ProxyMembers(metadata)
        await keep(partial(failures.keep_running_started, "the watch of proxies", members.run))
        authorizer = ClientAuthorizer(metadata)
        await keep(partial(failures.keep_running_started, "the watch of rights", authorizer.run))
        if BY_CERTIFICATE in endpoint.methods:
            endpoint.remote_methods[TOKEN] = partial(authorizer.verify_token, metadata.verify_token)
        log_manager: LogManager | None = None
        if config.kind == WRITE_PROXY:
            peers = WriteProxyPeers(endpoint)
            await keep(peers.run)
            log_manager = LogManager(proxy_id, namespaces, members, options, peers, failures)
            await keep(log_manager.run)
        parts = ProxyParts(
            host, config, options, listeners, endpoint, metadata, proxy_id, namespaces, members,
            authorizer, log_manager,
        )  # fmt: skip
        await _serve_registered(parts, keep, task_status)


def _namespace_opener(
    host: Host,
    config: ProxyNodeConfig,
    log_options: LogOptions,
    metadata: MetadataClient,
    ledgers: LedgerClient,
    proxy_id: str,
    failures: WorkFailures,
) -> Callable[[str, trio.Nursery], Namespace]:
    """Return the function that opens a namespace for this proxy's clients."""
    ledger_options = ledgers.options

    def open_namespace(path: str, nursery: trio.Nursery) -> Namespace:
        return Namespace(
            path,
            metadata=metadata,
            ledgers=ledgers,
            nursery=nursery,
            random=host.random,
            wall_ms=host.wall_ms,
            owner=f"{config.kind} {config.name}",
            options=log_options,
            quorums=(
                ledger_options.ensemble_size,
                ledger_options.write_quorum,
                ledger_options.ack_quorum,
            ),
            proxy_id=proxy_id if config.kind == WRITE_PROXY else "",
            failures=failures,
        )

    return open_namespace


async def _serve_registered(
    parts: ProxyParts, keep: Keep, task_status: trio.TaskStatus[NodeReady]
) -> None:
    """Serve clients and register. At the end, give the logs to other proxies and deregister."""
    log_manager, members, proxy_id = parts.log_manager, parts.members, parts.proxy_id
    config, endpoint, failures = parts.config, parts.endpoint, parts.endpoint.failures
    calls = LogCalls(
        parts.namespaces,
        calls_max=parts.options.calls_max,
        is_live_proxy=lambda other: other in members.write and other != proxy_id,
        release_log=None if log_manager is None else log_manager.release_unused,
    )
    await keep(calls.run)
    addresses = advertised_addresses(parts.listeners, config.advertise)
    registration = _registration_lease(parts, addresses)
    read_server = ReadServer(endpoint, parts.namespaces.using)
    if log_manager is None:
        await keep(read_server.run)
    address_check = AddressCheck(
        parts.host,
        proxy_id,
        lambda: advertised_addresses_of(
            config.listen, parts.listeners, addresses, parts.metadata.listener
        ),
        partial(hosts_of_peers, parts.metadata, config.metadata),
    )
    info = _info_function(parts, address_check, registration, calls, read_server)
    limits = ProxyRateLimits(parts.options.records_per_s_max, parts.options.bytes_per_s_max)

    def session(link: Link) -> LinkSession:
        client = parts.authorizer.admit(link)
        common = CommonSession(link, client, members, calls, info)
        if log_manager is not None:
            return ProduceSession(link, log_manager, limits, common)
        return ReadSession(read_server, link, client, common)

    await keep(partial(_listen, endpoint, parts.listeners, session))
    await keep(
        partial(failures.keep_running_started, "the check of its addresses", address_check.run)
    )
    try:
        await registration.register()
        task_status.started(report_ready(config.name, config.kind, proxy_id, parts.listeners))
        await failures.keep_running("the renewal of the registration", registration.run)
    finally:
        if log_manager is not None:
            deadline = trio.current_time() + parts.options.drain_s
            with trio.CancelScope(shield=True, deadline=deadline):
                await _hand_over_logs(log_manager, registration)
        await registration.deregister()


def _registration_lease(parts: ProxyParts, addresses: Mapping[str, Address]) -> RegistrationLease:
    """Return the leased registration of the proxy."""
    log_manager, config = parts.log_manager, parts.config

    def accepting() -> bool:
        return log_manager is None or log_manager.accepting

    def registration() -> ProxyRegistration:
        return ProxyRegistration(
            parts.proxy_id,
            WRITE if config.kind == WRITE_PROXY else READ,
            addresses,
            accepting(),
            config.name,
            config.rack,
            stated_version(parts.endpoint.host.version),
        )

    return RegistrationLease(
        parts.metadata,
        registration().key,
        lambda: registration().encode(),
        None,
        lease_s=LEASE_S,
        get_urgent=accepting,
    )


def _info_function(
    parts: ProxyParts,
    address_check: AddressCheck,
    registration: RegistrationLease,
    calls: LogCalls,
    read_server: ReadServer,
) -> Callable[[], dict[str, object]]:
    """Return the function that answers `Op.INFO`. It uses only values in memory."""
    log_manager, members, endpoint, authorizer = (
        parts.log_manager,
        parts.members,
        parts.endpoint,
        parts.authorizer,
    )
    conditions = NodeConditions()
    conditions.add_check(endpoint.certificate_warning)
    conditions.add_check(endpoint.failures.conditions)
    conditions.add_check(authorizer.condition)
    conditions.add_check(address_check.conditions)

    def info() -> dict[str, object]:
        return {
            **(read_server.info() if log_manager is None else {}),
            "registered": registration.is_held,
            **report_of(limit_conditions(conditions.current())),
            "write_proxies": len(members.write),
            "read_proxies": len(members.read),
            "calls": calls.calls_made,
            **endpoint.info(),
            **authorizer.info(),
            **(log_manager.info() if log_manager is not None else {}),
        }

    return info


async def _hand_over_logs(log_manager: LogManager, registration: RegistrationLease) -> None:
    """Stop accepting logs, report this in the registration, and give the logs to other proxies."""
    log_manager.accepting = False
    # Without a metadata quorum, as when a whole cluster stops, producers detect the end themselves.
    with suppress(DistributedLogError), trio.move_on_after(ANNOUNCE_S):
        await registration.update()
    await log_manager.drain()


async def _listen(
    endpoint: Endpoint,
    listeners: Mapping[str, Listener],
    session: Callable[[Link], LinkSession],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    task_status.started()
    await endpoint.serve(listeners, session)
