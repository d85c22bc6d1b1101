"""Tokens shown to proxies on processes with certificates: what one's file opens, and when that ends."""

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import open_namespace
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    WriteFailed,
)
from tests.cluster.secured import Secured, secured

pytestmark = pytest.mark.processes

AWAY = (NotAllowed, NotAuthenticated, WriteFailed)


def by(through: str, token: Path) -> Any:
    return open_namespace(through, config={"credentials": f"file:{token}"})


async def read(through: str, token: Path, log: str) -> list[bytes]:
    async with (
        by(through, token) as namespace,
        namespace.open_log(log).open_reader(to="end") as reader,
    ):
        return [record.payload async for record in reader]


async def story(it: Secured, whole: Path, narrow: Path) -> None:
    async with by(it.through, whole) as namespace, by(it.through, narrow) as narrowed:
        await namespace.create_log("x")
        await namespace.create_log("y")
        assert [name async for name in narrowed.logs()] == ["x"]
        with pytest.raises(NotAllowed):
            await narrowed.open_log("y").open_reader()
        with pytest.raises(NotAllowed):
            async with narrowed.open_log("x").open_writer():
                pass

        sent: list[bytes] = []
        seen: list[bytes] = []
        ended: dict[str, tuple[float, DistributedLogError]] = {}

        async def write() -> None:
            writer = await namespace.open_log("x").open_writer()
            try:
                while True:
                    payload = b"%d" % len(sent)
                    await writer.write(payload)
                    sent.append(payload)
            except AWAY as error:
                ended["writer"] = time.monotonic(), error

        async def follow() -> None:
            try:
                async with narrowed.open_log("x").open_reader() as reader:
                    async for record in reader:
                        seen.append(record.payload)
            except AWAY as error:
                ended["reader"] = time.monotonic(), error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(follow)
            while len(seen) < 100:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await trio.to_thread.run_sync(it.dlog, "user", "revoke", "etl")
            revoked = time.monotonic()
        for who, (at, why) in ended.items():
            print(
                f"{who} ended {1000 * (at - revoked):+.0f} ms from the end of the command: {why!r}"
            )
        assert seen == sent[: len(seen)]
        with pytest.raises(NotAuthenticated):  # nothing new over what was open before, either
            await namespace.open_log("y").open_reader()
    for token in (whole, narrow):
        with pytest.raises(NotAuthenticated, match="revoked"):
            await read(it.through, token, "x")
    new = await trio.to_thread.run_sync(lambda: it.token("etl", name="new"))
    stored = await read(it.through, new, "x")
    assert stored[: len(sent)] == sent, "what was acknowledged is there"
    assert len(stored) <= len(sent) + 1, "and of what was not, what was on its way"


def test_a_tokens_file_opens_proxies_until_it_is_revoked(tmp_path: Path) -> None:
    """Threats 3 and 5 at proxies; a token narrowed to one log reads that one and writes none."""
    with secured(tmp_path, bookies=1) as it:
        it.require(("etl", "owner", "/"))
        whole = it.token("etl", name="whole")
        narrow = it.token("etl", "--path", "x", name="narrow")

        async def limited() -> None:
            with trio.fail_after(120):
                await story(it, whole, narrow)

        trio.run(limited)
        shown = [file.read_bytes().strip() for file in (whole, narrow)]
        for file in (tmp_path / "cluster").rglob("*"):  # H240
            assert not file.is_file() or not any(one in file.read_bytes() for one in shown), file
