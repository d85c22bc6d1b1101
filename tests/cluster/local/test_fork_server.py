"""Children that are forked from one process which has imported what they need."""

import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from distributedlog.cluster.local.child_processes import Child, environment
from distributedlog.cluster.local.fork_server import ForkedProcess, ForkServer

pytestmark = pytest.mark.processes

ECHO = """
import os, signal, socket, sys
from distributedlog.cluster.local.fork_server import serve_forks
def echo():
    for line in sys.stdin:
        if line == "fail\\n":
            sys.exit(3)
        number, handler = len(os.listdir("/proc/self/fd")), signal.getsignal(signal.SIGCHLD)
        print(number, os.getpgid(0), handler.name, flush=True)
serve_forks(socket.socket(fileno=os.dup(0)), echo)
"""
"""Its children answer each line with what a process of their own would say."""


@contextmanager
def _server() -> Iterator[ForkServer]:
    server = ForkServer.spawn([sys.executable, "-c", ECHO], environment())
    try:
        yield server
    finally:
        server.close()


@asynccontextmanager
async def _children(server: ForkServer, number: int) -> AsyncIterator[list[ForkedProcess]]:
    made = []
    with trio.fail_after(30):
        try:
            for _ in range(number):
                made.append(await server.fork())
            yield made
        finally:
            for one in made:
                await Child("x", one, {}).stop()


async def _said(child: ForkedProcess, line: bytes = b"\n") -> list[str]:
    assert child.stdin is not None
    assert child.stdout is not None
    await child.stdin.send_all(line)
    return (await child.stdout.receive_some(4096)).decode().split()


async def test_a_child_is_a_process_of_its_own_without_what_its_siblings_hold() -> None:
    """H15. A sibling's life line in its hands would outlive the parent."""
    with _server() as server:
        async with _children(server, 3) as children:
            said = [await _said(child) for child in children]

    descriptors, groups, handlers = zip(*said, strict=True)
    assert set(descriptors) == {"4"}  # stdin, stdout, stderr, and the folder that is listed
    assert groups == tuple(str(child.pid) for child in children)
    assert set(handlers) == {"SIG_DFL"}
    assert {child.returncode for child in children} == {0}  # the end of stdin ended it


async def test_how_a_child_ended_is_told_to_all_who_wait() -> None:
    with _server() as server:
        async with _children(server, 3) as (killed, failed, well):
            seen = []

            async def wait() -> None:
                seen.append(await killed.wait())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                nursery.start_soon(wait)
                killed.kill()
            assert failed.stdin is not None
            await failed.stdin.send_all(b"fail\n")

            assert seen == [-signal.SIGKILL] * 2
            assert await failed.wait() == 3
            assert well.returncode is None
            killed.kill()  # of no consequence


async def test_children_outlive_their_server_and_can_still_be_ended() -> None:
    """Nobody is left who knows the code."""
    with _server() as server:
        async with _children(server, 2) as (one, other):
            os.kill(server.pid, signal.SIGKILL)

            assert len(await _said(one)) == 3
            one.kill()
            assert await one.wait() == 255
            assert other.stdin is not None
            await other.stdin.aclose()
            assert await other.wait() == 255
            with pytest.raises(BrokenPipeError):
                await server.fork()


async def test_a_parent_may_hold_more_descriptors_than_select_takes() -> None:
    kept = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(kept[0], 2048), max(kept[1], 2048)))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        with _server() as server:
            async with _children(server, 1) as (child,):
                child.kill()

                assert await child.wait() == -signal.SIGKILL
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, kept)


async def test_one_who_asked_and_was_cancelled_leaves_no_child_and_no_answer_for_another() -> None:
    """Its child finds its life line cut."""
    with _server() as server:
        async with _children(server, 1) as (first,):
            os.kill(server.pid, signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.fork)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            os.kill(server.pid, signal.SIGCONT)

            second = await server.fork()

            try:
                assert (await _said(second))[1] == str(second.pid)
                while _children_of(server) != {first.pid, second.pid}:  # noqa: ASYNC110 (nobody tells)
                    await trio.sleep(0.01)
            finally:
                await Child("x", second, {}).stop()


def _children_of(server: ForkServer) -> set[int]:
    text = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return {int(pid) for pid in text.split()}


async def test_a_server_that_ends_before_it_looks_at_what_is_asked_is_said_to_have_ended() -> None:
    """The socket then says that the connection was reset, not that it is closed."""
    with _server() as server:
        async with _children(server, 1):
            os.kill(server.pid, signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_fork_in_vain, server)
                await trio.testing.wait_all_tasks_blocked()
                os.kill(server.pid, signal.SIGKILL)


async def _fork_in_vain(server: ForkServer) -> None:
    with pytest.raises(BrokenPipeError):
        await server.fork()
