"""Rights that are required, on processes with certificates: from open to there and back, beside a writer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.runtime.interfaces.errors import DistributedLogError
from distributedlog.runtime.machine import client_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.uri import parse_uri
from tests.cluster.story import Cluster
from tests.runtime.pki import directory_of

pytestmark = pytest.mark.processes

ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1, "metadata_timeout_s": 10.0}


def as_user(name: str) -> dict[str, Any]:
    return {**ONE, "credentials": f"file:{directory_of(f'user/{name}')}"}


async def read_all(uri: str, name: str, log: str = "x") -> list[bytes]:
    async with (
        open_namespace(uri, config=as_user(name)) as namespace,
        namespace.open_log(log).open_reader(to="end") as reader,
    ):
        return [record.payload async for record in reader]


@asynccontextmanager
async def administered(uri: str) -> AsyncIterator[MetadataClient]:
    host = client_host("admin", f"file:{directory_of('user/root')}")
    endpoint = Endpoint(host, lambda: Hello(kind="client", label="admin"))
    async with trio.open_nursery() as nursery:
        admin = MetadataClient(endpoint, parse_uri(uri).addresses, client_id="admin", timeout_s=10)
        await nursery.start(admin.run)
        yield admin
        nursery.cancel_scope.cancel()


async def story(uri: str) -> None:
    async with administered(uri) as admin:
        async with open_namespace(uri, config=as_user("etl")) as namespace:
            async with namespace.open_log("x").open_writer() as writer:
                sent = 0

                async def write() -> None:
                    nonlocal sent
                    for _ in range(10):
                        sent += 1
                        await writer.write(LogRecord(sent, b"%d" % sent))
                    await trio.sleep(0.3)

                await write()
                await admin.change_authorization("mode", "report", "root")
                await admin.change_authorization("user", "etl")
                await admin.change_authorization("user", "ann")
                await admin.change_authorization("grant", "etl", "owner", namespace.path, "")
                await admin.change_authorization("grant", "ann", "reader", namespace.path, "x")
                await write()
                await admin.change_authorization("mode", "required", "")
                for _ in range(5):
                    await write()
                assert len(await read_all(uri, "ann")) == sent
                pool: Any = namespace.ledgers.pool  # type: ignore[attr-defined]
                (bookie,) = pool.live()
                said = await pool.get(bookie.id).info(10.0)
                assert said["trust_mode"] == "required"
                assert min(said["trust_generation"], said["capabilities_proved"]) > 0
                with pytest.raises(DistributedLogError):
                    await read_all(uri, "stranger")
                await admin.change_authorization("revoke", "ann", namespace.path, "x")
                await trio.sleep(1)
                with pytest.raises(DistributedLogError):
                    await read_all(uri, "ann")
                await write()
            async with namespace.open_log(
                "x"
            ).open_writer() as writer:  # recovers nothing, takes over
                await write()
        await admin.change_authorization("mode", "open", "", force=True)
        await trio.sleep(1)
        assert len(await read_all(uri, "stranger")) == sent


def test_from_open_to_required_and_back_beside_a_writer(tmp_path: Path) -> None:
    """H229, H230, H241: who has no grant gets nothing, the one who writes meets no error."""
    with Cluster.planned(tmp_path, bookies=1, metadata_nodes=1) as cluster:
        cluster.more = {
            node.name: ["--tls", str(directory_of(f"{node.kind}/{node.name}"))]
            for node in cluster.plan.nodes
        }
        cluster.start()

        async def limited() -> None:
            with trio.fail_after(60):
                await story(cluster.uri)

        trio.run(limited)


async def away(cluster: Cluster) -> None:
    """The quorum goes while somebody writes, and comes back."""
    async with (
        administered(cluster.uri) as admin,
        open_namespace(cluster.uri, config=as_user("etl")) as namespace,
    ):
        await admin.change_authorization("mode", "report", "root")
        for name in ("etl", "ann"):
            await admin.change_authorization("user", name)
        await admin.change_authorization("grant", "etl", "owner", namespace.path, "")
        await admin.change_authorization("grant", "ann", "reader", namespace.path, "x")
        await admin.change_authorization("mode", "required", "")
        async with namespace.open_log("x").open_writer() as writer:
            for txid in range(5):
                await writer.write(LogRecord(txid, b"before"))
            await writer.commit()
            assert len(await read_all(cluster.uri, "ann")) == 5
            await admin.change_authorization("revoke", "ann", namespace.path, "x")
            await trio.to_thread.run_sync(cluster.kill, "metadata2", "metadata3")
            for txid in range(5, 30):
                await writer.write(LogRecord(txid, b"away"))
                await trio.sleep(0.1)
            for name in ("ann", "stranger"):
                with pytest.raises(DistributedLogError):
                    await read_all(cluster.uri, name)
            with pytest.raises(DistributedLogError):
                await namespace.create_log("y")
            with pytest.raises(DistributedLogError):
                await admin.change_authorization("mode", "open", "", force=True)
            await writer.write(LogRecord(30, b"away"))
            await trio.to_thread.run_sync(cluster.start, "metadata2", "metadata3")
            await writer.write(LogRecord(31, b"after"))
        assert len(await read_all(cluster.uri, "etl")) == 32
        for name in ("ann", "stranger"):
            with pytest.raises(DistributedLogError):
                await read_all(cluster.uri, name)
        assert [name async for name in namespace.logs()] == ["x"]


def test_without_a_quorum_what_is_open_goes_on_and_nothing_new_is_allowed(tmp_path: Path) -> None:
    """docs/concepts/security-model.md: without a quorum nothing new is opened; open streams continue."""
    with Cluster.planned(tmp_path, bookies=1, metadata_nodes=3) as cluster:
        cluster.more = {
            node.name: ["--tls", str(directory_of(f"{node.kind}/{node.name}"))]
            for node in cluster.plan.nodes
        }
        cluster.start()

        async def limited() -> None:
            with trio.fail_after(150):
                await away(cluster)

        trio.run(limited)
