"""What proxies say of themselves, and orders to them, for who has the metadata quorum's client."""

from typing import Any

import trio

from ...log.model.lock_record import holder_of
from ...log.model.log_keys import decode_log_id, name_key
from ...metadata.client.metadata_client import MetadataClient
from ...metadata.model.interface import Scan
from ...proxy.membership.proxy_registration import PREFIX, WRITE, ProxyRegistration
from ...proxy.membership.rendezvous_hash import balance as plan_moves
from ...proxy.protocol.proxy_messages import (
    OWNED_PAGE,
    ProxyCall,
    decode_answer,
    decode_owned,
    decode_would_refuse,
)
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
from .node_health import ask_info

ASK_S = 3.0
ORDER_S = 60.0
"""A drain takes 30 s at most."""


async def registered(metadata: MetadataClient) -> list[ProxyRegistration]:
    """The proxies, by kind and id; those whose record cannot be read are left out."""
    found = []
    async for item in Scan(metadata, PREFIX):
        try:
            found.append(ProxyRegistration.decode(item.key, item.value))
        except DistributedLogError:
            continue  # `dlog status` names it
    return found


async def proxies(metadata: MetadataClient) -> list[dict[str, Any]]:
    """A row each: as it is registered, and what it says of itself now."""
    host, rows = client_host("dlog"), []
    for one in await registered(metadata):
        address = one.address(metadata.listener)
        row: dict[str, Any] = {
            "name": one.label,
            "id": one.id,
            "kind": f"{one.kind}-proxy",
            "state": "up" if one.accepting else "draining",
            "address": None if address is None else format_address(address),
            "rack": one.rack or None,
        }
        if address is not None:
            try:
                _, info = await ask_info(host, address, timeout_s=ASK_S)
                said = {k: v for k, v in info.items() if type(v) in (int, float)}
                row = {**said, **row}
            except DistributedLogError as error:
                row["state"] = f"{type(error).__name__}"
        rows.append(row)
    return rows


async def owned(metadata: MetadataClient, wanted: str = "") -> list[dict[str, Any]]:
    """The logs that write proxies have, of one of them or of all.

    Raises `InvalidRequest` where none is called so, and what keeps one from answering.
    """
    host, rows = client_host("dlog"), []
    there = [one for one in await registered(metadata) if one.kind == WRITE]
    for one in [_named(there, wanted)] if wanted else there:
        rows += [
            {
                "proxy": one.label,
                "namespace": path,
                "log": name,
                "producers": producers,
                "segment": segment,
            }
            for path, name, producers, segment in await _owned(host, metadata, one)
        ]
    return rows


async def _owned(
    host: Host, metadata: MetadataClient, one: ProxyRegistration
) -> list[tuple[str, str, int, int]]:
    """Namespace, name, producers and segment of each log that a proxy has."""
    found: list[tuple[str, str, int, int]] = []
    after = ""
    while True:
        body = await _order(host, metadata, one, ProxyCall("owned", [after, OWNED_PAGE]))
        page = decode_owned(body)
        found += page
        if len(page) < OWNED_PAGE:
            return found
        after = "\0".join(page[-1][:2])


async def move(
    metadata: MetadataClient, path: str, log: str, target: str, *, host: Host | None = None
) -> str:
    """Have a log given to a proxy ("": whoever is first for it); the name of who had it.

    ``host``: the machine to speak from (default: this one).
    Raises `LogNotFound`, `InvalidRequest` where no proxy has it or is called so, or that one drains.
    """
    there = [one for one in await registered(metadata) if one.kind == WRITE]
    to = _named(there, target) if target else None
    if to is not None and not to.accepting:
        raise InvalidRequest(f"{to.label} drains: it takes no log until it is started anew")
    found = await metadata.get(name_key(path, log))
    if found is None:
        raise LogNotFound(f'log "{log}" does not exist in namespace {path}', log)
    holder = await holder_of(metadata, decode_log_id(found.value))
    owner = next((one for one in there if holder is not None and one.id == holder.proxy), None)
    if owner is None:
        by = "nobody" if holder is None else holder.owner
        raise InvalidRequest(f'log "{log}" is written by {by}, and not by a proxy')
    if to is not None and to.id == owner.id:
        raise InvalidRequest(f'log "{log}" is written by {owner.label} already')
    call = ProxyCall("move", [path, log, "" if to is None else to.id])
    await _order(host or client_host("dlog"), metadata, owner, call)
    return owner.label


async def balance(metadata: MetadataClient, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Move logs so that no write proxy has two more than another one; a row each, with its outcome.

    Who drains takes none; who does not answer neither takes nor gives. A log that has left its proxy by then
    stays where it is.
    """
    host = client_host("dlog")
    there = {
        one.id: one for one in await registered(metadata) if one.kind == WRITE and one.accepting
    }
    logs: dict[str, list[tuple[str, str, int]]] = {}
    for one in there.values():
        try:
            rows = await _owned(host, metadata, one)
        except DistributedLogError:
            continue  # `dlog proxy list` says why
        logs[one.id] = [(path, name, producers) for path, name, producers, _ in rows]
    found = []
    for move in plan_moves(logs):
        outcome = "planned"
        if not dry_run:
            call = ProxyCall("move", [move.path, move.log, move.target])
            try:
                moved = decode_answer(
                    await _order(host, metadata, there[move.owner], call), flag, "move"
                )
                outcome = "moved" if moved else "has gone elsewhere"
            except DistributedLogError as error:
                outcome = f"{type(error).__name__}: {error}"
        found.append(
            {
                "log": move.log,
                "namespace": move.path,
                "from": there[move.owner].label,
                "to": there[move.target].label,
                "outcome": outcome,
            }
        )
    return found


async def would_refuse(
    metadata: MetadataClient, *, host: Host | None = None
) -> tuple[list[tuple[str, str, str, int]], list[str]]:
    """What the proxies counted in mode ``report``: proxy, principal, what it lacked, how often.

    And which of them did not say it, and why. ``host`` as of `move`.
    """
    machine = host or client_host("dlog")
    found: list[tuple[str, str, str, int]] = []
    silent: list[str] = []
    for one in await registered(metadata):
        try:
            body = await _order(
                machine, metadata, one, ProxyCall("would_refuse", []), within_s=ASK_S
            )
            found += [(one.label, *row) for row in decode_would_refuse(body)]
        except DistributedLogError as error:
            silent.append(f"{one.label}: {type(error).__name__}: {error}")
    return found, silent


async def drain(metadata: MetadataClient, wanted: str, *, host: Host | None = None) -> str:
    """Have a write proxy give all its logs up, and take none; its name. ``host`` as of `move`."""
    one = _named([one for one in await registered(metadata) if one.kind == WRITE], wanted)
    await _order(host or client_host("dlog"), metadata, one, ProxyCall("drain", []))
    return one.label


def _named(there: list[ProxyRegistration], wanted: str) -> ProxyRegistration:
    """By id, the beginning of one, or name. Raises `InvalidRequest` where none fits, or several."""
    found = [
        one
        for one in there
        if wanted in (one.id, one.label) or (len(wanted) >= 4 and one.id.startswith(wanted))
    ]
    if len(found) != 1:
        known = ", ".join(f"{one.label} ({one.id})" for one in found or there) or "none"
        if found:
            raise InvalidRequest(f"several write proxies are called {wanted}: {known}; give an id")
        raise InvalidRequest(f"no write proxy is called {wanted}; there are: {known}")
    return found[0]


async def _order(
    host: Host,
    metadata: MetadataClient,
    one: ProxyRegistration,
    call: ProxyCall,
    *,
    within_s: float = ORDER_S,
) -> memoryview:
    """Have one proxy do something; its answer. Raises what it raises."""
    address = one.address(metadata.listener)
    if address is None:
        raise ConnectionLost(f"{one.label} gives no address")
    endpoint = Endpoint(host, lambda: Hello(metadata.cluster_id, label="dlog"))
    failed: DistributedLogError = RequestTimeout(f"{one.label} did not answer in {within_s:g} s")
    answer: memoryview | None = None
    async with trio.open_nursery() as nursery:
        try:
            link = await endpoint.dial(
                address, nursery=nursery, expected_node_id=one.id, kind=PROXY
            )
            reply = await link.request(Op.PROXY_CALL, call.encode(), timeout_s=within_s)
            answer = reply.body
        except DistributedLogError as error:
            failed = error  # the nursery would wrap it
        nursery.cancel_scope.cancel()
    if answer is None:
        raise failed
    return answer
