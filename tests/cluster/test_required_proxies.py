"""Rights that are required, through proxies, on processes with certificates: who may, who may not, who may no
more."""

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import open_namespace
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    WriteFailed,
)
from distributedlog.runtime.machine import client_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.uri import parse_uri
from tests.cluster.secured import NS, secured
from tests.runtime.pki import directory_of

pytestmark = pytest.mark.processes
AWAY = (NotAllowed, NotAuthenticated, WriteFailed)


def as_user(uri: str, name: str) -> Any:
    return open_namespace(uri, config={"credentials": f"file:{directory_of(f'user/{name}')}"})


async def write(through: str, name: str, payload: bytes, log: str = "x") -> None:
    async with (
        as_user(through, name) as namespace,
        namespace.open_log(log).open_writer() as writer,
    ):
        await writer.write(payload)


async def read(through: str, name: str, log: str = "x") -> list[bytes]:
    async with (
        as_user(through, name) as namespace,
        namespace.open_log(log).open_reader(to="end") as reader,
    ):
        return [record.payload async for record in reader]


async def names(through: str, name: str) -> list[str]:
    async with as_user(through, name) as namespace:
        return [one async for one in namespace.logs()]


async def story(uri: str, through: str) -> None:
    host = client_host("admin", f"file:{directory_of('user/root')}")
    endpoint = Endpoint(host, lambda: Hello(kind="client", label="admin"))
    async with trio.open_nursery() as nursery:
        admin = MetadataClient(endpoint, parse_uri(uri).addresses, client_id="admin", timeout_s=10)
        await nursery.start(admin.run)
        await admin.change_authorization("mode", "report", "root")
        for user, role in (("pro", "producer"), ("con", "consumer"), ("own", "owner")):
            await admin.change_authorization("user", user)
            await admin.change_authorization("grant", user, role, NS, "x")
        await admin.change_authorization("mode", "required", "")
        async with as_user(through, "own") as namespace:
            await namespace.create_log("x")
        await write(through, "pro", b"a producer's")
        await write(through, "own", b"its owner's")
        assert await read(through, "con") == [b"a producer's", b"its owner's"]
        assert await names(through, "pro") == ["x"]
        assert await names(through, "stranger") == []
        for user in ("con", "stranger"):
            with pytest.raises(NotAllowed):
                await write(through, user, b"not theirs")
        for user in ("pro", "stranger"):
            with pytest.raises(NotAllowed):
                await read(through, user)
        with pytest.raises(DistributedLogError):  # a producer has nothing but through proxies
            await write(uri, "pro", b"directly")

        async with as_user(through, "pro") as namespace:
            writer = await namespace.open_log("x").open_writer()
            sent: list[bytes] = []
            ended: list[tuple[float, DistributedLogError]] = []

            async def write_on() -> None:
                try:
                    while True:
                        payload = b"%d" % len(sent)
                        await writer.write(payload)
                        sent.append(payload)
                except AWAY as error:
                    ended.append((time.monotonic(), error))

            async with trio.open_nursery() as writing:
                writing.start_soon(write_on)
                await trio.sleep(1)
                await admin.change_authorization("revoke", "pro", NS, "x")
                revoked = time.monotonic()
        ((at, why),) = ended
        print(f"the last write ended {1000 * (at - revoked):.1f} ms after the answer: {why!r}")
        with pytest.raises(NotAllowed):
            await write(through, "pro", b"an ex-user's")
        stored = (await read(through, "con"))[2:]
        assert stored[: len(sent)] == sent, "what was acknowledged is there"
        assert len(stored) <= len(sent) + 1, "and of what was not, what was on its way"
        nursery.cancel_scope.cancel()


def test_a_producer_a_consumer_a_stranger_and_an_ex_user_through_proxies(tmp_path: Path) -> None:
    with secured(tmp_path, bookies=1) as it:

        async def limited() -> None:
            with trio.fail_after(90):
                await story(it.cluster.uri, it.through)

        trio.run(limited)
