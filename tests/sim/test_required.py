"""A whole cluster on simulated machines in mode `required`: each kind of node and client does its work.

What the table of key classes forgot would be refused here: bookies that register, repair, purge and delete,
a user with a role on a directory who makes, writes, reads, follows, cuts, renames and deletes logs there.
"""

from typing import Any

import pytest
import trio

from distributedlog import LogRecord
from distributedlog.bookie.session.bookie_session import BookieSession
from distributedlog.log.namespace import Namespace
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.node.metadata_node import MetadataNode
from distributedlog.metadata.node.metadata_session import MetadataSession
from distributedlog.runtime.interfaces.errors import DistributedLogError, NotAllowed
from distributedlog.runtime.interfaces.host import Host
from distributedlog.runtime.net.link import Link
from distributedlog.testing.sim.world.scheduler import Simulation
from distributedlog.testing.sim.world.sim_cluster import PATH, Shape, SimCluster

SHAPE = Shape(
    metadata_nodes=1,
    bookies=4,
    clients=3,
    store={
        "journal_file_bytes": 256 * 1024,
        "gather_bytes": 64 * 1024,
        "free_bytes_min": 8 * 1024 * 1024,
    },
    client={"segment_bytes_max": 20_000},
    lost_after_s=10.0,
)
USERS = {"10.0.3.1": "user/app", "10.0.3.2": "user/root", "10.0.3.3": "user/eve"}


def principal_of(link: Link) -> str:
    place = link.peer_address.rpartition(":")[0]
    return USERS.get(place, f"bookie/b{place.rpartition('.')[2]}")


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nodes take bookies by their label and clients by their address; here is what they refuse."""
    said: list[str] = []
    begin = MetadataSession.__init__

    def believing(session: MetadataSession, node: MetadataNode, link: Link) -> None:
        if link.peer.kind != "metadata":
            link.principal = principal_of(link)
        begin(session, node, link)

    monkeypatch.setattr(MetadataSession, "__init__", believing)
    begin_at_bookie = BookieSession.__init__

    def believing_bookie(
        session: BookieSession, store: Any, turns: Any, gate: Any, link: Link, info: Any
    ) -> None:
        link.principal = principal_of(link)
        begin_at_bookie(session, store, turns, gate, link, info)

    monkeypatch.setattr(BookieSession, "__init__", believing_bookie)
    answer = Link.reply_error

    def noting(link: Link, ident: int, error: DistributedLogError, **named: int) -> None:
        if isinstance(error, NotAllowed):
            said.append(str(error))
        answer(link, ident, error, **named)

    monkeypatch.setattr(Link, "reply_error", noting)
    return said


class Story:
    """What happens, in order."""

    def __init__(self) -> None:
        self.ready, self.over = trio.Event(), trio.Event()
        self.killed = trio.Event()
        self.errors: list[str] = []

    async def run(self, simulation: Simulation) -> None:
        cluster = SimCluster(simulation, SHAPE)
        cluster.start_all()
        with trio.fail_after(60):
            await cluster.wait_all_ready()
        cluster.start_client("c2", self.administer)
        with trio.fail_after(60):
            await self.ready.wait()
        cluster.start_client("c1", self.work)
        with trio.fail_after(200):
            await self.killed.wait()
            cluster.machines["b1"].kill()
            await trio.sleep(25)  # it is lost: what it held is copied by the others
            cluster.start_client("c3", self.intrude)
            await self.over.wait()

    async def administer(self, namespace: Namespace, host: Host) -> None:
        metadata = namespace.metadata
        assert isinstance(metadata, MetadataClient)
        await metadata.change_authorization("mode", "report", "root")
        await metadata.change_authorization("user", "app")
        await metadata.change_authorization("user", "eve")
        await metadata.change_authorization("grant", "app", "owner", PATH, "mine/")
        await metadata.change_authorization("mode", "required", "")
        self.ready.set()
        await trio.sleep_forever()

    async def work(self, namespace: Namespace, host: Host) -> None:
        await namespace.create_log("mine/a")
        log = namespace.open_log("mine/a")
        async with log.open_writer() as writer:
            for txid in range(60):
                await writer.write(LogRecord(txid, b"x" * 1000))
            await writer.commit()
        async with log.open_reader() as reader:
            for txid in range(60):
                record = await reader.read_next()
                assert record is not None
                assert record.txid == txid
        async with log.subscribe("app") as subscription:
            await subscription.reader.read_next()
            await subscription.commit()
        await log.truncate(txid=40)
        await log.set({"keep_alive_s": 5.0})
        async with log.open_writer() as writer:
            await writer.write(LogRecord(60, b"y"))
            await writer.commit()
            self.killed.set()
            await trio.sleep(20)
            await writer.write(LogRecord(61, b"y"))
            await writer.commit()
        assert [name async for name in namespace.logs()] == ["mine/a"]
        await namespace.rename_log("mine/a", "mine/b")
        await namespace.create_log("mine/c")
        await namespace.delete_log("mine/c")
        await namespace.delete_log("mine/b")
        await trio.sleep(10)
        await trio.sleep_forever()

    async def intrude(self, namespace: Namespace, host: Host) -> None:
        for attempt in (
            lambda: namespace.create_log("mine/d"),
            lambda: namespace.delete_log("mine/a"),
            lambda: namespace.open_log("mine/a").last_dlsn(),
        ):
            try:
                await attempt()
                self.errors.append("it was let do it")
            except NotAllowed:
                pass
        assert [name async for name in namespace.logs()] == []
        self.over.set()


@pytest.mark.seeds
def test_all_do_their_work_and_no_more_in_mode_required(quiet: None, refused: list[str]) -> None:
    simulation, story = Simulation(5), Story()
    simulation.run(story.run)

    assert not simulation.failures
    assert story.errors == []
    assert [one for one in refused if not one.startswith("user/eve")] == []
