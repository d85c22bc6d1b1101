"""The way of every command to the cluster: one namespace, and a deadline on every answer."""

import gc
import os
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ...runtime.interfaces.errors import (
    REFUSED,
    ConnectionLost,
    InvalidRequest,
    QuorumUnreachable,
    RequestTimeout,
)
from ...runtime.net import tcp
from ...runtime.process.process_memory import keep_freed_memory
from ..framework.errors import innermost
from ..framework.options import Settings
from .name_suggestions import name_near

if TYPE_CHECKING:
    from ...runtime.interfaces.host import Address, Host
    from ...uri import NamespaceUri

Result = TypeVar("Result")

STDOUT = 1
WAIT_NOTICE_S = 3.0
"""After so long without an answer a person wants to know what is waited for."""
REFUSED_S = 3.0
"""If every address refuses connections for so long, no cluster is there. Restarted nodes listen sooner."""
REFUSED_PAUSE_S = 0.25
DIAL_S = 1.0


@asynccontextmanager
async def namespace(settings: Settings, host: "Host | None" = None) -> AsyncIterator[Any]:
    """The namespace that the command is about. Raises `QuorumUnreachable` within the timeout.

    ``host`` is the machine of the caller, by default with the credentials of this process.
    """
    uri = settings.where()
    from ... import open_namespace

    await end_if_refused(settings)
    config = {"metadata_timeout_s": settings.timeout_s}
    async with AsyncExitStack() as stack:
        with notice_when_slow(settings, "opening the namespace"):
            opened = await stack.enter_async_context(open_namespace(uri, config=config, host=host))
        try:
            yield opened
        except Exception as error:
            await name_near(opened, error)
            raise


async def end_if_refused(settings: Settings) -> None:
    """Raise `QuorumUnreachable` if every address of the URI refuses connections for `REFUSED_S`.

    With --timeout, a command waits for the cluster as long as that instead.
    """
    from ...uri import parse_uri

    if "timeout_s" in settings.ranks:
        return
    uri = parse_uri(settings.where())
    give_up_at = trio.current_time() + REFUSED_S
    while await _all_refuse(uri.addresses):
        if trio.current_time() >= give_up_at:
            raise _refused_error(uri)
        await trio.sleep(REFUSED_PAUSE_S)


async def _all_refuse(addresses: "Sequence[Address]") -> bool:
    """Whether each of these machines answers at once that no program listens there."""
    refusing = 0

    async def dial(address: "Address") -> None:
        nonlocal refusing
        try:
            (await tcp.dial(address)).close()
        except ConnectionLost as error:
            refusing += error.detail == REFUSED
            if error.detail == REFUSED:
                return
        nursery.cancel_scope.cancel()  # something is there, or may be: the client finds out

    with trio.move_on_after(DIAL_S):
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(dial, address)
    return refusing == len(addresses)


def _refused_error(uri: "NamespaceUri") -> QuorumUnreachable:
    from ...uri import format_address

    addresses = ", ".join(map(format_address, uri.addresses))
    return QuorumUnreachable(
        f"no program listens at {addresses}: connections were refused for {REFUSED_S:g} s. Start the "
        "cluster, or"
        " use --timeout to wait for it"
    )


@asynccontextmanager
async def quorum(
    settings: Settings, host: "Host | None" = None, *, wait_for_start: bool = False
) -> AsyncIterator[Any]:
    """Connect to the metadata quorum alone. It works without a leader too, if one node answers.

    ``host`` as of `namespace`. ``patient``: also where no program listens yet. Raises `InvalidRequest`
    where the URI names proxies.
    """
    from ...metadata.client.metadata_client import MetadataClient
    from ...runtime.machine import client_host
    from ...runtime.net.rpc import Endpoint
    from ...runtime.protocol.handshake import Hello
    from ...uri import parse_uri

    namespace_uri = parse_uri(settings.where())
    if namespace_uri.is_proxied:
        raise InvalidRequest(
            f"{namespace_uri} names proxies, and only metadata nodes can answer this: give their URI, distributedlog://…"
        )
    if not wait_for_start:
        await end_if_refused(settings)
    host = host or client_host("dlog")
    endpoint = Endpoint(host, lambda: Hello(kind="client", label="dlog"))
    client = MetadataClient(
        endpoint,
        namespace_uri.addresses,
        client_id=f"{host.random.getrandbits(64):016x}",
        timeout_s=settings.timeout_s,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        yield client
        nursery.cancel_scope.cancel()


async def await_answer(
    settings: Settings, description: str, call: Callable[[], Awaitable[Result]]
) -> Result:
    """Await one answer of the cluster. Raises `RequestTimeout` when the timeout passes first."""
    # The parts below have deadlines of their own, with better words: they get the first say.
    with trio.move_on_after(settings.timeout_s + 1.0), notice_when_slow(settings, description):
        return await call()
    raise RequestTimeout(f"no answer for {settings.timeout_s:g} s: {description}")


@contextmanager
def notice_when_slow(settings: Settings, description: str) -> Iterator[Callable[[], None]]:
    """Say once, on a terminal, what a command waits for, where that takes long; what it gives ends that."""
    scope = trio.CancelScope()
    if not sys.stderr.isatty():
        yield scope.cancel
        return

    async def tell() -> None:
        with scope:
            await trio.sleep(WAIT_NOTICE_S)
            context_text = f', at the context "{settings.context}"' if settings.context else ""
            settings.note(
                f"no answer yet: {description}{context_text} (--timeout is {settings.timeout_s:g} s)"
            )

    trio.lowlevel.spawn_system_task(tell)  # in no nursery: errors of the block stay as they are
    try:
        yield scope.cancel
    finally:
        scope.cancel()


def run_call(
    settings: Settings,
    description: str,
    call: Callable[[Any], Awaitable[Result]],
    connect: Callable[[Settings], AbstractAsyncContextManager[Any]] = namespace,
) -> Result:
    """A command that is one call: of the namespace, or of what `quorum` gives."""

    async def work() -> Result:
        async with connect(settings) as connection:
            return await await_answer(settings, description, lambda: call(connection))

    return run(work)


async def run_until_stdout_closed(task: Callable[[], Awaitable[None]]) -> None:
    """Work that has no end of its own, until nobody reads what it prints.

    Of `dlog status --watch | head -1` the first line is all that is printed for hours: only the next one
    would meet the closed pipe.
    """
    try:
        async with trio.open_nursery() as nursery:
            if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(STDOUT).st_mode):
                nursery.start_soon(_cancel_when_unread, nursery.cancel_scope)
            await task()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise innermost(group) from group


async def _cancel_when_unread(scope: trio.CancelScope) -> None:
    await trio.lowlevel.wait_readable(STDOUT)  # of a pipe's end to write: its other end is closed
    scope.cancel()


def run(task: Callable[[], Awaitable[Result]]) -> Result:
    """Run a command's coroutine."""
    keep_freed_memory()
    gc.freeze()  # modules and classes: a full collection of the rest is short
    return trio.run(task)
