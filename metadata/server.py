"""One node of the metadata quorum, from its disk and its listeners to the end of its life.

A node that belongs to no cluster yet answers who it is and waits: to found one, to be told of one, or for
ever (`forming.py`). Then it is a `Replica` with connections to its peers, sessions for its clients, leases
and watches. Whatever fails on its disk ends it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import trio

from ..runtime.errors import DistributedLogError, ForeignData
from ..runtime.host import Address, Disk, Host, Listener
from ..runtime.identity import NodeIdentity, load_identity, new_node_id, store_identity
from ..runtime.reasons import Reasons
from ..runtime.rpc import Endpoint, Hello, Link
from .admission import Admission, who_is_at
from .configuration import Configuration, Member
from .forming import FormAnswer, Founding, listed, may_found, may_join
from .kv import KeyValueState
from .leases import Leases
from .messages import Message
from .options import RaftOptions
from .peers import Peers
from .quorum import majority
from .quorum_contact import QuorumContact
from .ready import SendSnapshot
from .receiving import SnapshotReceiver, restore
from .replica import Replica
from .room import Room, is_short
from .served_watches import ServedWatches
from .sessions import MetadataSession
from .status import StatusBoard
from .storage import (
    Members,
    RaftStorage,
    load_members,
    new_members,
    remove_leftovers,
    store_members,
)
from .wire import Row

log = logging.getLogger("distributedlog.metadata.server")

WRITTEN_BY = "distributedlog 0.1"
PROBE_S = 0.05
PROBE_MAX_S = 0.5
ASK_S = 1.0


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """What one node is told."""

    name: str
    peers: Mapping[str, Address]
    """Every node of the quorum by name, this one included; the same list for all."""
    advertised: Mapping[str, Address] = field(default_factory=dict)
    """Our own addresses by listener name, for clients; default: the one in ``peers``."""
    raft: RaftOptions = field(default_factory=RaftOptions)


class MetadataNode:
    """A node of the quorum. `serve_metadata` makes and runs it."""

    def __init__(self, host: Host, options: MetadataOptions, identity: NodeIdentity) -> None:
        self.identity = identity
        self.watches: dict[ServedWatches, None] = {}
        """Of each connection."""
        self.replica: Replica | None = None
        self.leases: Leases
        self.receiver: SnapshotReceiver
        self.admission: Admission | None = None
        self.quorum_contact: QuorumContact | None = None
        self.peers: Peers | None = None
        self.damage = ""
        self.reasons = Reasons()
        """What is wrong here: told in the status (`status.py`)."""
        self.options = options
        self.waiting_because = "this node has just started"
        self._host = host
        self._disk: Disk = host.disks["metadata"]
        self._members: Members | None = None
        self._offer: tuple[Founding, Callable[[FormAnswer], None]] | None = None
        self._offered = trio.Event()
        self._nursery: trio.Nursery
        self._snapshots_out: dict[str, None] = {}
        self.endpoint = Endpoint(host, self.hello)
        self.board = StatusBoard(self)

    # --- who we are -------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """What every connection begins with."""
        return Hello(
            cluster_id=self._members.cluster_id if self._members is not None else "",
            node_id=self.identity.node_id,
            kind="metadata",
            label=self.options.name,
            durability=self._disk.durability,
        )

    def form_answer(self) -> FormAnswer:
        """What we say while a cluster forms."""
        cluster_id = self._members.cluster_id if self._members is not None else ""
        return FormAnswer(
            self.options.name, self.identity.node_id, cluster_id, listed(self.options.peers)
        )

    def offer(self, founding: Founding, reply: Callable[[FormAnswer], None]) -> None:
        """A founder says that we vote in its cluster; ``reply`` is told when that is durable, or not so."""
        if self._offer is None and may_join(self.form_answer(), founding):
            self._offer = (founding, reply)
            self._offered.set()
        else:
            reply(self.form_answer())

    def info(self) -> dict[str, int | str]:
        """Counters and gauges."""
        replica = self.replica
        assert replica is not None
        return {
            "role": replica.raft.role.value,
            "term": replica.raft.term,
            "applied": replica.state.index,
            "revision": replica.state.revision,
            "leases": len(replica.state.leases),
            "syncs": replica.storage.syncs,
            "bytes_written": replica.storage.bytes_written,
            "connections": self.endpoint.connections,
            "refused": sum(self.endpoint.refusals.counts.values()),
        }

    def ask_all(self, reply: Callable[[list[Row]], None]) -> bool:
        """Ask every member for its line; False when too many ask already."""
        return self.board.ask_all(self._nursery, reply)

    def may_speak(self, node_id: str, link: Link) -> bool:
        """A node speaks to us as a member, over that connection: is it heard?"""
        return self.peers is not None and self.peers.strangers.may_speak(node_id, link.peer_address)

    def on_peer_heard(self, node_id: str, link: Link) -> None:
        """A member speaks to us over that connection."""
        if self.peers is not None:
            self.peers.on_heard(node_id, link)

    # --- its life ---------------------------------------------------------------------------------

    async def serve(
        self, listeners: Mapping[str, Listener], *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Serve until cancelled."""
        await remove_leftovers(self._disk)
        members = await load_members(self._disk)
        if members is not None:
            self._check_members(members)
            # Said from the first answer on: while it loads, a member must not pass for an empty node (H5).
            self._members = members
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(
                partial(
                    self.endpoint.serve,
                    listeners,
                    lambda link: MetadataSession(self, link),
                    is_node=self._is_node,
                )
            )
            if members is not None:
                await self._start(members)
                task_status.started()
            else:
                task_status.started()
                await self._start(await self._form())

    def _is_node(self, hello: Hello) -> bool:
        """Is a place kept for who says this? A metadata node must be a member; bookies we do not know."""
        if not hello.cluster_id or hello.cluster_id != self.hello().cluster_id:
            return False
        replica = self.replica
        if hello.kind == "metadata" and replica is not None:
            return replica.raft.configuration.member(hello.node_id) is not None
        return hello.kind == "bookie"

    def _check_members(self, members: Members) -> None:
        name = self.options.name
        if members.voters.get(name) != self.identity.node_id:
            raise ForeignData(
                f"this data directory belongs to node {self.identity.node_id} of cluster"
                f" {members.cluster_id}, not to its {name}; give it its own, or an empty one"
            )

    async def _start(self, members: Members) -> None:
        storage = RaftStorage(self._disk, members.seed)
        loaded, members = await storage.load(members)
        self.damage = loaded.damage or ("" if members.may_vote else "its log was damaged before")
        self._members = members
        if self.damage:
            # No part in the quorum at all: it has forgotten in which terms it voted, and would confirm to
            # an earlier leader what a later one, elected with its help, has decided otherwise (M1, M4).
            log.error("metadata node %s takes no part: %s", self.options.name, self.damage)
            self.waiting_because = f"this node's disk is damaged: {self.damage}"
            return
        state = KeyValueState()
        if loaded.snapshot is not None:
            state, _ = await restore(storage.snapshots.chunks(loaded.snapshot))
        room = Room(self._disk, self.reasons, self.options.name)
        await room.begin(storage)
        replica = Replica(
            self.identity.node_id,
            loaded,
            state,
            storage,
            room,
            options=self.options.raft,
            chance=self._host.random,
            may_vote=members.may_vote,
            send=self._send,
            send_snapshot=self._send_snapshot,
            name_leader=self.board.name_of,
        )
        self.peers = Peers(
            self.endpoint,
            self.options.peers,
            replica,
            self._founding_for,
            self._nursery,
            members.cluster_id,
        )
        self.admission = Admission(replica, self.endpoint, members.cluster_id)
        self.quorum_contact = QuorumContact(replica, self.watches)
        self.leases = Leases(replica)
        self.receiver = SnapshotReceiver(replica)
        replica.on_role = self.leases.on_role
        replica.on_late = self.leases.on_late
        replica.on_applied = self._push_changes
        replica.on_members = self.peers.on_members
        self.replica = replica
        self.peers.on_members()
        for task in (
            replica.persist,
            replica.run_clock,
            replica.take_snapshots,
            replica.mind_room,
            self._mind_quorum,
            self.admission.run,
            self.quorum_contact.run,
            self.leases.run,
            self.receiver.run,
        ):
            self._nursery.start_soon(task)

    def _founding_for(self, node_id: str) -> Founding:
        """What a member that has no data yet is told: the founding, if it is of the founders (H5)."""
        assert self._members is not None
        assert self.replica is not None
        raft, cluster_id = self.replica.raft, self._members.cluster_id
        if raft.log.base_index == 0:
            founders = raft.log.configuration_at(0)
            if node_id in founders.voters:
                return Founding(cluster_id, {m.name: m.node_id for m in founders.members})
        member = raft.configuration.member(node_id)
        return Founding(cluster_id, {member.name if member else "": node_id}, let_in=True)

    async def _form(self) -> Members:
        """Found a cluster, or wait until somebody says that we belong to one."""
        pause_s = PROBE_S
        while True:
            if self._offer is not None:
                (founding, reply), self._offer = self._offer, None
                members = await self._join(founding)
                self._members = members
                reply(self.form_answer())
                return members
            answers = await self._probe()
            self.waiting_because = may_found(self.form_answer(), answers)
            if not self.waiting_because and self._offer is None:
                voters = {name: answer.node_id for name, answer in answers.items()}
                voters[self.options.name] = self.identity.node_id
                return await self._join(Founding(new_node_id(self._host.random), voters))
            with trio.move_on_after(pause_s):
                await self._offered.wait()
            pause_s = min(PROBE_MAX_S, pause_s * 1.5)

    async def _join(self, founding: Founding) -> Members:
        members = new_members(founding.cluster_id, founding.voters, self._host.random)
        founders = [
            Member(node_id, name, "{}:{}".format(*self.options.peers[name]), True)
            for name, node_id in founding.voters.items()
            if not founding.let_in and name in self.options.peers
        ]
        await RaftStorage(self._disk, members.seed).begin(Configuration.of(founders))
        await store_members(self._disk, members)
        log.info(
            "metadata node %s %s cluster %s",
            self.options.name,
            "is let into" if founding.let_in else f"founds, with {', '.join(founding.voters)},",
            founding.cluster_id,
        )
        return members

    async def _probe(self) -> dict[str, FormAnswer]:
        names = [name for name in sorted(self.options.peers) if name != self.options.name]
        answers: dict[str, FormAnswer] = {}
        if self.options.name != min(self.options.peers):
            return answers  # somebody else founds: wait to be told

        async def ask(name: str) -> None:
            try:
                answers[name] = await who_is_at(self.endpoint, self.options.peers[name])
            except DistributedLogError:
                return

        async with trio.open_nursery() as asking:
            for name in names:
                asking.start_soon(ask, name)
        return {name: answers[name] for name in names if name in answers}

    # --- for the replica --------------------------------------------------------------------------

    def _send(self, peer: str, message: Message) -> None:
        assert self.peers is not None
        self.peers.send(peer, message)

    def _send_snapshot(self, wanted: SendSnapshot) -> None:
        if wanted.peer not in self._snapshots_out:
            self._snapshots_out[wanted.peer] = None
            self._nursery.start_soon(self._send_snapshot_to, wanted)

    async def _send_snapshot_to(self, wanted: SendSnapshot) -> None:
        replica, peers = self.replica, self.peers
        assert replica is not None
        assert peers is not None
        delivered, index = False, wanted.index
        if replica.snapshot is not None and replica.snapshot.index >= wanted.index:
            index = replica.snapshot.index
            delivered = await peers.send_snapshot(
                replica.raft.term, self.identity.node_id, wanted, replica.snapshot, replica.storage
            )
        if not delivered:
            await trio.sleep(ASK_S)
        self._snapshots_out.pop(wanted.peer, None)
        replica.raft.on_snapshot_sent(wanted.peer, index, delivered, trio.current_time())
        replica.drain()

    async def _mind_quorum(self) -> None:
        """While we lead: see which voters are short of room; let one lead that is not."""
        replica, peers = self.replica, self.peers
        assert replica is not None
        assert peers is not None
        while True:
            await trio.sleep(ASK_S)
            if not replica.leads:
                replica.room.quorum_short = False
                continue
            voters = [v for v in replica.raft.voters if v != self.identity.node_id]
            well, short = [], int(replica.room.short)
            for voter in voters:
                row = await peers.ask_status(voter)
                if row is not None and is_short(row.status.reasons):
                    short += 1
                elif row is not None:
                    well.append(voter)
            replica.room.quorum_short = short >= majority(len(voters) + 1)
            if replica.room.short and well and not replica.room.quorum_short:
                replica.raft.transfer_leadership(trio.current_time(), well[0])
                replica.drain()

    def _push_changes(self) -> None:
        assert self.replica is not None
        for watches in self.watches:
            watches.push(self.replica.state)


async def serve_metadata(
    host: Host,
    options: MetadataOptions,
    listeners: Mapping[str, Listener],
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a metadata node on ``host.disks["metadata"]``, which the caller has locked, until cancelled.

    Started with its node id, once it answers on its listeners: it may still wait for its peers to form a
    cluster. Raises `ForeignData`, `InvalidRequest`, `CorruptData`, `UnsupportedFormat`, `DiskFailed`.
    """
    disk = host.disks["metadata"]
    identity = await load_identity(disk)
    if identity is None:
        identity = NodeIdentity(
            cluster_id="",
            node_id=new_node_id(host.random),
            kind="metadata",
            label=options.name,
            incarnation=1,
            written_by=WRITTEN_BY,
        )
        await store_identity(disk, identity)  # before anybody is told of it (H5)
    if identity.kind != "metadata":
        raise ForeignData(f"this data directory belongs to {identity.kind} {identity.label}")
    node = MetadataNode(host, options, identity)
    async with trio.open_nursery() as nursery:
        await nursery.start(_serve, node, listeners)
        task_status.started(identity.node_id)


async def _serve(
    node: MetadataNode,
    listeners: Mapping[str, Listener],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    await node.serve(listeners, task_status=task_status)
