"""Connect commands to the cluster: one namespace, and a deadline on each answer."""

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
from ..framework.progress import TICK_S, ProgressLine
from .name_suggestions import name_near

if TYPE_CHECKING:
    from ...runtime.interfaces.host import Address, Host
    from ...uri import NamespaceUri

Result = TypeVar("Result")

STDOUT = 1
WAIT_NOTICE_S = 2.0
"""Seconds without an answer after which the progress line names the pending request."""
REFUSED_S = 3.0
"""Seconds of refused connections at every address after which the cluster is considered absent.

Restarted nodes listen sooner.
"""
REFUSED_PAUSE_S = 0.25
DIAL_S = 1.0


@asynccontextmanager
async def namespace(settings: Settings, host: "Host | None" = None) -> AsyncIterator[Any]:
    """Open the namespace of the command.

    Args:
        settings: The options of the command.
        host: The platform layer, by default this machine with the credentials of this process.

    Raises:
        QuorumUnreachable: The cluster did not answer within the timeout.
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

    If --timeout was given, the command waits for that time instead.
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
    """Return whether every address refuses a connection at once."""
    refusing = 0

    async def dial(address: "Address") -> None:
        nonlocal refusing
        try:
            (await tcp.dial(address)).close()
        except ConnectionLost as error:
            refusing += error.detail == REFUSED
            if error.detail == REFUSED:
                return
        nursery.cancel_scope.cancel()  # a program may listen there: the client determines it

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
    """Connect to the metadata quorum only. This works without a leader if one node answers.

    Args:
        settings: The options of the command.
        host: As for `namespace`.
        wait_for_start: Whether to connect even if all addresses refuse connections now.

    Raises:
        InvalidRequest: The URI contains proxies.
    """
    from ...metadata.client.metadata_client import MetadataClient
    from ...runtime.machine import client_host
    from ...runtime.net.rpc import Endpoint
    from ...runtime.protocol.handshake import Hello
    from ...uri import parse_uri

    namespace_uri = parse_uri(settings.where())
    if namespace_uri.is_proxied:
        raise InvalidRequest(
            f"{namespace_uri} contains proxies. Use a distributedlog:// URI with metadata node addresses"
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
    """Await one answer of the cluster. Raises `RequestTimeout` after the timeout of the command."""
    # The calls inside have deadlines with more specific errors, so this one is a second later.
    with trio.move_on_after(settings.timeout_s + 1.0), notice_when_slow(settings, description):
        return await call()
    raise RequestTimeout(f"no answer for {settings.timeout_s:g} s: {description}")


@contextmanager
def notice_when_slow(settings: Settings, description: str) -> Iterator[Callable[[], None]]:
    """Name the pending request in a progress line if it takes long. Yields a function that ends this.

    Unlike `show_progress`, the line needs no thread, and it appears later: most answers arrive sooner.
    """
    scope, line, started_at = trio.CancelScope(), ProgressLine(settings), trio.current_time()

    def stop() -> None:
        scope.cancel()
        line.remove()  # before any output of the caller

    if not line.is_shown:
        yield stop
        return

    async def tell() -> None:
        with scope:
            await trio.sleep(WAIT_NOTICE_S)
            while not scope.cancel_called:
                context_text = f', at the context "{settings.context}"' if settings.context else ""
                waited_s = trio.current_time() - started_at
                line.show(
                    f"no answer yet: {description}{context_text},"
                    f" {waited_s:.0f} of {settings.timeout_s:g} s"
                )
                await trio.sleep(TICK_S)

    trio.lowlevel.spawn_system_task(
        tell
    )  # outside a nursery, so that errors of the block are not wrapped
    try:
        yield stop
    finally:
        stop()


def run_call(
    settings: Settings,
    description: str,
    call: Callable[[Any], Awaitable[Result]],
    connect: Callable[[Settings], AbstractAsyncContextManager[Any]] = namespace,
) -> Result:
    """Run a command that is one call, on the namespace or on the connection that ``connect`` opens."""

    async def work() -> Result:
        async with connect(settings) as connection:
            return await await_answer(settings, description, lambda: call(connection))

    return run(work)


async def run_until_stdout_closed(task: Callable[[], Awaitable[None]]) -> None:
    """Run an endless task until the reader of stdout ends.

    `dlog status --watch | head -1` may print its next line only after hours, and only that line would fail
    with `BrokenPipeError`.
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
    await trio.lowlevel.wait_readable(
        STDOUT
    )  # the write end of a pipe is readable when its reader is closed
    scope.cancel()


def run(task: Callable[[], Awaitable[Result]]) -> Result:
    """Run a command's coroutine."""
    keep_freed_memory()
    gc.freeze()  # excludes modules and classes, so that a full collection is short
    return trio.run(task)
