"""Query and control proxies, for programs that have a client of the metadata quorum."""

from typing import Any

import trio

from ...log.model.lock_record import lock_holder
from ...log.model.log_keys import decode_log_id, name_key
from ...metadata.client.metadata_client import MetadataClient
from ...metadata.model.interface import Metadata, Scan
from ...proxy.membership.proxy_registration import PREFIX, WRITE, ProxyRegistration
from ...proxy.membership.rendezvous_hash import plan_moves as plan_moves
from ...proxy.protocol.proxy_messages import (
    OWNED_LOGS_PER_PAGE,
    ProxyCall,
    decode_answer,
    decode_owned,
    decode_would_refuse,
)
from ...runtime.declarations.versions import shown_version
from ...runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    InvalidRequest,
    LogNotFound,
    RequestTimeout,
)
from ...runtime.interfaces.host import Host
from ...runtime.interfaces.principals import PROXY
from ...runtime.machine import client_host
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.frames import Op
from ...runtime.protocol.handshake import Hello
from ...runtime.protocol.schema import flag
from ..declarations.config import format_address
from .node_health import query_info

QUERY_S = 3.0
ORDER_S = 60.0
"""A drain takes at most 30 s."""


async def registered_proxies(metadata: Metadata) -> list[ProxyRegistration]:
    """Return the registered proxies by kind and ID. Unreadable registrations are left out."""
    registrations = []
    async for item in Scan(metadata, PREFIX):
        try:
            registrations.append(ProxyRegistration.decode(item.key, item.value))
        except DistributedLogError:
            continue  # `dlog status` lists the record
    return registrations


async def proxy_rows(metadata: MetadataClient) -> list[dict[str, Any]]:
    """Return a row per proxy, with its registration and its present numbers."""
    host, rows = client_host("dlog"), []
    for registration in await registered_proxies(metadata):
        address = registration.address(metadata.listener)
        row: dict[str, Any] = {
            "name": registration.label,
            "id": registration.id,
            "kind": f"{registration.kind}-proxy",
            "state": "up" if registration.accepting else "draining",
            "address": None if address is None else format_address(address),
            "rack": registration.rack or None,
            "version": shown_version(registration.version),
        }
        if address is not None:
            try:
                _, info = await query_info(host, address, timeout_s=QUERY_S)
                numbers = {k: v for k, v in info.items() if type(v) in (int, float)}
                row = {**numbers, **row}
            except DistributedLogError as error:
                row["state"] = f"{type(error).__name__}"
        rows.append(row)
    return rows


async def hosted_logs(metadata: MetadataClient, name_or_id: str = "") -> list[dict[str, Any]]:
    """Return the logs that write proxies own.

    Args:
        metadata: The metadata client.
        name_or_id: The proxy; "" for all.

    Raises:
        InvalidRequest: There is no such proxy.
        DistributedLogError: A proxy did not answer.
    """
    host, rows = client_host("dlog"), []
    write_proxies = [proxy for proxy in await registered_proxies(metadata) if proxy.kind == WRITE]
    for proxy in [_find_proxy(write_proxies, name_or_id)] if name_or_id else write_proxies:
        rows += [
            {
                "proxy": proxy.label,
                "namespace": path,
                "log": name,
                "producers": producers,
                "segment": segment,
            }
            for path, name, producers, segment in await _hosted_logs(host, metadata, proxy)
        ]
    return rows


async def _hosted_logs(
    host: Host, metadata: MetadataClient, proxy: ProxyRegistration
) -> list[tuple[str, str, int, int]]:
    """Return namespace, name, number of producers and segment of each log that a proxy owns."""
    logs: list[tuple[str, str, int, int]] = []
    last_key = ""
    while True:
        body = await _send_call(
            host, metadata, proxy, ProxyCall("owned", [last_key, OWNED_LOGS_PER_PAGE])
        )
        page = decode_owned(body)
        logs += page
        if len(page) < OWNED_LOGS_PER_PAGE:
            return logs
        last_key = "\0".join(page[-1][:2])


async def move_log(
    metadata: MetadataClient, path: str, log: str, target: str, *, host: Host | None = None
) -> str:
    """Move a log to another proxy, and return the name of its previous proxy.

    Args:
        metadata: The metadata client.
        path: The namespace.
        log: The name of the log.
        target: The new proxy; "" for the one that is preferred for this log.
        host: The machine from which to connect; this one by default.

    Raises:
        LogNotFound: The log does not exist.
        InvalidRequest: No proxy owns the log, there is no such target, the target is draining, or it owns the
            log already.
    """
    write_proxies = [one for one in await registered_proxies(metadata) if one.kind == WRITE]
    destination = _find_proxy(write_proxies, target) if target else None
    if destination is not None and not destination.accepting:
        raise InvalidRequest(
            f"{destination.label} is draining: it accepts no log until it is restarted"
        )
    item = await metadata.get(name_key(path, log))
    if item is None:
        raise LogNotFound(f'log "{log}" does not exist in namespace {path}', log)
    holder = await lock_holder(metadata, decode_log_id(item.value))
    owner = next(
        (one for one in write_proxies if holder is not None and one.id == holder.proxy), None
    )
    if owner is None:
        holder_name = "no client" if holder is None else holder.owner
        raise InvalidRequest(f'log "{log}" is written by {holder_name}, and not by a proxy')
    if destination is not None and destination.id == owner.id:
        raise InvalidRequest(f'log "{log}" is written by {owner.label} already')
    call = ProxyCall("move", [path, log, "" if destination is None else destination.id])
    await _send_call(host or client_host("dlog"), metadata, owner, call)
    return owner.label


async def balance_logs(metadata: MetadataClient, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Balance the logs, so that no write proxy has two logs more than another, and return a row per move.

    Draining proxies receive no log. Proxies that do not answer neither receive nor give logs. A log that is
    no longer on the expected proxy is not moved.

    Args:
        metadata: The metadata client.
        dry_run: Plan the moves only.
    """
    host = client_host("dlog")
    accepting_proxies = {
        proxy.id: proxy
        for proxy in await registered_proxies(metadata)
        if proxy.kind == WRITE and proxy.accepting
    }
    logs: dict[str, list[tuple[str, str, int]]] = {}
    for proxy in accepting_proxies.values():
        try:
            rows = await _hosted_logs(host, metadata, proxy)
        except DistributedLogError:
            continue  # `dlog proxy list` shows the error
        logs[proxy.id] = [(path, name, producers) for path, name, producers, _ in rows]
    outcomes = []
    for move in plan_moves(logs):
        outcome = "planned"
        if not dry_run:
            call = ProxyCall("move", [move.path, move.log, move.target])
            try:
                is_moved = decode_answer(
                    await _send_call(host, metadata, accepting_proxies[move.owner], call),
                    flag,
                    "move",
                )
                outcome = "moved" if is_moved else "has gone elsewhere"
            except DistributedLogError as error:
                outcome = f"{type(error).__name__}: {error}"
        outcomes.append(
            {
                "log": move.log,
                "namespace": move.path,
                "from": accepting_proxies[move.owner].label,
                "to": accepting_proxies[move.target].label,
                "outcome": outcome,
            }
        )
    return outcomes


async def reported_denials(
    metadata: MetadataClient, *, host: Host | None = None
) -> tuple[list[tuple[str, str, str, int]], list[str]]:
    """Return the requests that proxies counted as denied in mode ``report``.

    Args:
        metadata: The metadata client.
        host: The machine from which to connect; this one by default.

    Returns:
        Rows of proxy, principal, missing right and number; and the proxies that did not answer, with the
        error.
    """
    client_machine = host or client_host("dlog")
    denials: list[tuple[str, str, str, int]] = []
    unanswered: list[str] = []
    for proxy in await registered_proxies(metadata):
        try:
            body = await _send_call(
                client_machine, metadata, proxy, ProxyCall("would_refuse", []), timeout_s=QUERY_S
            )
            denials += [(proxy.label, *row) for row in decode_would_refuse(body)]
        except DistributedLogError as error:
            unanswered.append(f"{proxy.label}: {type(error).__name__}: {error}")
    return denials, unanswered


async def drain_proxy(
    metadata: MetadataClient, name_or_id: str, *, host: Host | None = None
) -> str:
    """Drain a write proxy: it releases all its logs and accepts no more. Return its name.

    Args:
        metadata: The metadata client.
        name_or_id: The proxy.
        host: The machine from which to connect; this one by default.

    Raises:
        InvalidRequest: There is no such proxy.
        DistributedLogError: The proxy did not answer, or the drain failed.
    """
    proxy = _find_proxy(
        [proxy for proxy in await registered_proxies(metadata) if proxy.kind == WRITE], name_or_id
    )
    await _send_call(host or client_host("dlog"), metadata, proxy, ProxyCall("drain", []))
    return proxy.label


def _find_proxy(write_proxies: list[ProxyRegistration], name_or_id: str) -> ProxyRegistration:
    """Return a proxy by its ID, the first four or more characters of its ID, or its name.

    Raises:
        InvalidRequest: No proxy matches, or several do.
    """
    matches = [
        proxy
        for proxy in write_proxies
        if name_or_id in (proxy.id, proxy.label)
        or (len(name_or_id) >= 4 and proxy.id.startswith(name_or_id))
    ]
    if len(matches) != 1:
        shown = (
            ", ".join(f"{proxy.label} ({proxy.id})" for proxy in matches or write_proxies) or "none"
        )
        if matches:
            raise InvalidRequest(
                f"several write proxies have the name {name_or_id}: {shown}; give an ID"
            )
        raise InvalidRequest(f"no write proxy has the name {name_or_id}; there are: {shown}")
    return matches[0]


async def _send_call(
    host: Host,
    metadata: MetadataClient,
    proxy: ProxyRegistration,
    call: ProxyCall,
    *,
    timeout_s: float = ORDER_S,
) -> memoryview:
    """Send a call to one proxy and return the answer. Errors of the proxy are raised."""
    address = proxy.address(metadata.listener)
    if address is None:
        raise ConnectionLost(f"{proxy.label} has no registered address")
    endpoint = Endpoint(host, lambda: Hello(metadata.cluster_id, label="dlog"))
    failure: DistributedLogError = RequestTimeout(
        f"{proxy.label} did not answer within {timeout_s:g} s"
    )
    response: memoryview | None = None
    async with trio.open_nursery() as nursery:
        try:
            link = await endpoint.dial(
                address, nursery=nursery, expected_node_id=proxy.id, kind=PROXY
            )
            reply = await link.request(Op.PROXY_CALL, call.encode(), timeout_s=timeout_s)
            response = reply.body
        except DistributedLogError as error:
            failure = error  # the nursery would wrap the exception
        nursery.cancel_scope.cancel()
    if response is None:
        raise failure
    return response
