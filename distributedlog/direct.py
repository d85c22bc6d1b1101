"""A namespace whose logs this process reads and writes itself: the clients below it, assembled."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import trio

from .ledger.client import LedgerClient
from .ledger.options import LedgerOptions
from .ledger.pool import BookiePool
from .log.namespace import Namespace
from .log.options import LogOptions
from .metadata.client import MetadataClient
from .runtime.errors import DistributedLogError, InvalidRequest
from .runtime.hello import Hello
from .runtime.host import Host
from .runtime.machine import process_name, real_host
from .runtime.rpc import Endpoint
from .uri import NamespaceUri

FIRST_KEY = b"next/ledger"
"""Read once at opening: who answers tells the cluster's id and our listener's name."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client process reaches its cluster."""

    metadata_timeout_s: float = 30.0
    """Without an answer of the metadata quorum for this long a call raises `QuorumUnreachable`."""
    owner: str = ""
    """How this process is named to others; default: its host and process id."""


@asynccontextmanager
async def open_direct(
    uri: NamespaceUri, config: Mapping[str, Any] | None, host: Host | None
) -> AsyncIterator[Namespace]:
    """The clients' tasks run until this ends; whatever the body raises comes out as it is."""
    client, ledger, log = split_config(config)
    owner = client.owner or process_name()
    if host is None:
        host = real_host(owner)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            namespace = await _assemble(uri, host, owner, client, ledger, log, nursery)
            try:
                yield namespace
            finally:
                namespace.close()
        except trio.Cancelled:
            raise
        except BaseException as error:
            failure = error  # the nursery would wrap it
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _assemble(
    uri: NamespaceUri,
    host: Host,
    owner: str,
    client: ClientOptions,
    ledger: LedgerOptions,
    log: LogOptions,
    nursery: trio.Nursery,
) -> Namespace:
    def hello() -> Hello:
        return Hello(cluster_id=metadata.cluster_id, kind="client", label=owner)

    endpoint = Endpoint(host, hello)
    metadata = MetadataClient(
        endpoint,
        uri.addresses,
        client_id=f"{host.random.getrandbits(64):016x}",
        timeout_s=client.metadata_timeout_s,
    )
    await nursery.start(metadata.run)
    await metadata.get(FIRST_KEY)
    pool = BookiePool(endpoint, metadata, metadata.listener)
    await nursery.start(pool.run)
    ledgers = LedgerClient(host, endpoint, metadata, pool, ledger)
    await nursery.start(ledgers.run)
    return Namespace(
        uri.path,
        metadata=metadata,
        ledgers=ledgers,
        nursery=nursery,
        random=host.random,
        wall_ms=host.wall_ms,
        owner=owner,
        options=log,
        quorums=(ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum),
    )


def split_config(
    config: Mapping[str, Any] | None,
) -> tuple[ClientOptions, LedgerOptions, LogOptions]:
    """One flat mapping of options to the parts that own them. Raises `InvalidRequest`."""
    given = dict(config or {})
    client = {f.name: given.pop(f.name) for f in fields(ClientOptions) if f.name in given}
    ledger = {f.name: given.pop(f.name) for f in fields(LedgerOptions) if f.name in given}
    try:
        log = LogOptions().overlaid(given)
    except InvalidRequest as error:
        known = ", ".join(f.name for kind in (ClientOptions, LedgerOptions) for f in fields(kind))
        raise InvalidRequest(f"{error}; of the client and of ledgers: {known}") from None
    for name, value in ledger.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise InvalidRequest(f"option {name}: {value!r} is not a positive number")
    chosen = replace(LedgerOptions(), **ledger)
    if not chosen.ensemble_size >= chosen.write_quorum >= chosen.ack_quorum:
        raise InvalidRequest(
            f"ensemble {chosen.ensemble_size} >= write quorum {chosen.write_quorum} >= "
            f"ack quorum {chosen.ack_quorum} does not hold"
        )
    return replace(ClientOptions(), **client), chosen, log


__all__ = ["ClientOptions", "DistributedLogError", "open_direct", "split_config"]
