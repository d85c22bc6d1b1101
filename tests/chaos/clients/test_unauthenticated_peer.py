"""Who knocks goes on knocking, whatever happens to a knock; words to a run are heard once."""

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import trio

from distributedlog.testing.chaos.clients import cluster_endpoints as places
from distributedlog.testing.chaos.clients.cluster_endpoints import free_addresses
from distributedlog.testing.chaos.run.fault_player import STRANGE_WORDS, connect_unauthenticated
from distributedlog.testing.chaos.run.runner import (
    END,
    END_FAULTS,
    follow_commands,
    is_pending,
    send_command,
)


async def test_a_stranger_knocks_until_it_is_ended(nursery: trio.Nursery) -> None:
    heard: list[bytes] = []
    three = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        heard.append(bytes(await stream.receive_some(4096)))
        if len(heard) == 1:
            await stream.send_all(b"x")
        if len(heard) == 3:
            three.set()
        await stream.aclose()

    listener, *_ = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    told = Counter[str]()
    port = listener.socket.getsockname()[1]
    nursery.start_soon(connect_unauthenticated, ("127.0.0.1", port), 1000.0, told)
    await three.wait()
    nursery.cancel_scope.cancel()

    assert heard[:3] == [STRANGE_WORDS] * 3
    assert told["answered"] == 1
    assert told["knocked"] >= 3


async def test_nobody_at_home_ends_no_stranger(nursery: trio.Nursery) -> None:
    told = Counter[str]()
    [place] = await free_addresses(1)
    nursery.start_soon(connect_unauthenticated, place, 1000.0, told)
    while told["knocked"] < 3:  # noqa: ASYNC110 (a counter tells)
        await trio.sleep(0.001)
    nursery.cancel_scope.cancel()

    assert told["answered"] == 0


async def test_places_are_none_of_those_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PORT_LOW", 31_000)
    monkeypatch.setattr(places, "PORT_HIGH", 31_040)
    taken = [("127.0.0.1", port) for port in range(31_000, 31_020)]

    found = await free_addresses(8, taken)

    assert len(set(found)) == 8
    assert not set(found) & set(taken)


async def test_a_word_is_heard_once(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    heard: list[str] = []
    deeds = {END_FAULTS: lambda: heard.append(END_FAULTS), END: lambda: heard.append(END)}
    nursery.start_soon(follow_commands, tmp_path, deeds)
    await trio.sleep(1.0)
    assert heard == []

    send_command(tmp_path, END_FAULTS)
    await trio.sleep(1.0)
    send_command(tmp_path, END)
    assert is_pending(tmp_path, END)
    await trio.sleep(1.0)

    assert heard == [END_FAULTS, END]
    assert not is_pending(tmp_path, END)
    nursery.cancel_scope.cancel()
