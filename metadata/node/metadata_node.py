"""A metadata node before it is a member: its identity, how it joins a cluster, and the data that it loads.

A node without a cluster answers requests for its identity. It either founds a cluster, or waits until a
founder or an operator adds it (`bootstrap.py` has the rules). Then it loads the data on its disk and
becomes a `MemberNode`, unless its disk is damaged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import trio

from ...runtime.declarations.health_conditions import Code, NodeConditions, condition
from ...runtime.disk.node_identity import NodeIdentity, new_node_id
from ...runtime.interfaces.errors import (
    DistributedLogError,
    ForeignData,
    NotAuthenticated,
    NotReady,
)
from ...runtime.interfaces.host import Host
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.interfaces.principals import BY_CERTIFICATE, HandshakeContext, Welcome
from ...runtime.net.rpc import Endpoint
from ...runtime.primitives.backoff import Backoff
from ...runtime.protocol.handshake import Hello
from ...runtime.protocol.tokens import METHOD as TOKEN
from ..auth.key_space import KeySpace
from ..declarations.events import DAMAGED, LISTS_DIFFER, RECALLED
from ..declarations.options import MetadataOptions
from ..model.configuration import Configuration, Member
from ..model.interface import MemberRole
from ..peers.bootstrap import (
    Bootstrap,
    BootstrapAnswer,
    ListDifference,
    bootstrap_obstacle,
    list_difference,
    may_join,
    sorted_peers,
)
from ..peers.hard_state_recovery import VoterReport, member_addresses, request_voter_reports
from ..peers.membership_changes import query_node
from ..protocol.client_messages import MemberStatusRow
from ..raft.recovered_hard_state import RecoveredHardState
from ..replica.replica import RestoredNode
from ..replica.snapshot_receiver import restore
from ..state.kv_state import KeyValueState
from ..storage.member_identity import (
    MemberIdentity,
    load_member_identity,
    new_identity,
    store_member_identity,
)
from ..storage.metadata_disk_space import MetadataDiskSpace
from ..storage.raft_storage import LoadedRaftState, RaftStorage, remove_leftovers
from .admin_recovery import request_if_configured
from .member_status import make_own_row
from .quorum_member import MemberNode
from .watch_server import ServedWatches

log = get_logger("distributedlog.metadata.node.metadata_node")


PROBE_S = 0.05
PROBE_MAX_S = 0.5
COMPARE_LISTS_S = 5.0
"""Interval at which a node that is not the founder compares its list of nodes with other lists."""
HARD_STATE_RECOVERY_S = 0.5


class MetadataNode:
    """One node, which bootstraps, loads its data, and then has a `member`."""

    def __init__(
        self,
        host: Host,
        options: MetadataOptions,
        identity: NodeIdentity,
        key_space: KeySpace | None = None,
    ) -> None:
        """``key_space`` has the kinds of keys, by which requests are authorized (`authorizer.py`)."""
        self._key_space = key_space or KeySpace()
        self.options = options
        self.identity = identity
        self.cluster_id = ""
        """Set before the data is loaded, because a member must not be mistaken for an empty node (H5)."""
        self.member: MemberNode | None = None
        """None during bootstrap and loading, and while a damaged disk leaves the hard state unknown."""
        self.not_ready_reason = "this node has just started"
        self.conditions = NodeConditions()
        """The node's health conditions, for its row of a status."""
        self.watches: dict[ServedWatches, None] = {}
        """The watches of each connection."""
        self.endpoint = Endpoint(host, self.hello)
        self.conditions.add_check(self.endpoint.certificate_warning)
        self.conditions.add_check(self.endpoint.failures.conditions)
        if BY_CERTIFICATE in self.endpoint.methods:
            self.endpoint.methods[TOKEN] = self._verify_token
        self._host = host
        self._disk = host.disks["metadata"]
        self._damage = ""
        self.list_differences: tuple[ListDifference, ...] = ()
        """Differences of the lists of other nodes, or of the members, from this node's list."""
        self._logged_differences: set[ListDifference] = set()
        self._bootstrap_offer: tuple[Bootstrap, Callable[[BootstrapAnswer], None]] | None = None
        self._offer_received = trio.Event()
        self._joining = False
        """Whether the node is storing its cluster. Further offers come too late."""
        self._is_new_cluster = False
        """Whether the cluster was founded since the start of this process, with this node."""

    # --- identity ---------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """Return the handshake message of every connection."""
        return Hello(
            cluster_id=self.cluster_id,
            node_id=self.identity.node_id,
            kind="metadata",
            label=self.options.name,
            durability=self._disk.durability,
        )

    def bootstrap_answer(self) -> BootstrapAnswer:
        """Return this node's answer while a cluster forms."""
        return BootstrapAnswer(
            self.options.name,
            self.identity.node_id,
            self.cluster_id,
            sorted_peers(self.options.peers),
        )

    def status_row(self) -> MemberStatusRow:
        """Return the status of this node."""
        if self.member is not None:
            return self.member.status_board.own_row()
        role = MemberRole.STARTING if self.cluster_id else MemberRole.EMPTY
        if self._damage:
            role = MemberRole.DAMAGED
        return make_own_row(
            self.options,
            self.identity.node_id,
            self.conditions,
            role.value,
            role_detail=self._damage,
        )

    def is_node(self, hello: Hello) -> bool:
        """Whether a connection slot is reserved for this peer.

        A metadata node must be a member. The registration of bookies is not checked, because it is not
        known here.
        """
        if not hello.cluster_id or hello.cluster_id != self.cluster_id:
            return False
        if hello.kind == "metadata" and self.member is not None:
            return self.member.replica.raft.configuration.member(hello.node_id) is not None
        return hello.kind == "bookie"

    def _verify_token(self, context: HandshakeContext, proof: bytes) -> Welcome:
        """Verify a token in a handshake. Raises `NotAuthenticated`, `NotReady`."""
        if not context.is_secret:
            raise NotAuthenticated(
                f"tokens are accepted only over TLS, but {context.peer_address} uses a plain connection"
            )
        if self.member is None:
            raise NotReady(self.not_ready_reason)
        return self.member.token_service.check_token(self.member.replica.state, proof)

    # --- bootstrap --------------------------------------------------------------------------------

    def offer_bootstrap(
        self, bootstrap: Bootstrap, reply: Callable[[BootstrapAnswer], None]
    ) -> None:
        """Process the offer to join a cluster.

        ``reply`` receives the answer when the node's membership is durable, or immediately if the node does
        not accept.
        """
        can_accept = self._bootstrap_offer is None and not self._joining
        if can_accept and may_join(self.bootstrap_answer(), bootstrap):
            self._bootstrap_offer = (bootstrap, reply)
            self._offer_received.set()
        else:
            reply(self.bootstrap_answer())

    async def load_identity(self) -> MemberIdentity | None:
        """Return the cluster that this directory belongs to, or None.

        Raises:
            ForeignData: The directory belongs to a node of another name or ID.
            CorruptData: Its identity is damaged.
        """
        await remove_leftovers(self._disk)
        identity = await load_member_identity(self._disk)
        if identity is None:
            return None
        if identity.voters.get(self.options.name) != self.identity.node_id:
            raise ForeignData(
                f"this data directory belongs to node {self.identity.node_id} of cluster"
                f" {identity.cluster_id}, not to {self.options.name}. Use its own or an empty directory"
            )
        self.cluster_id = identity.cluster_id
        return identity

    async def bootstrap(self) -> MemberIdentity:
        """Found a cluster, or wait for an offer to join one."""
        backoff = Backoff(PROBE_S, PROBE_MAX_S, factor=1.5)
        compared_at = -COMPARE_LISTS_S
        while True:
            if self._bootstrap_offer is not None:
                (offered_bootstrap, reply), self._bootstrap_offer = self._bootstrap_offer, None
                identity = await self._join_cluster(offered_bootstrap)
                reply(self.bootstrap_answer())
                return identity
            is_founder = self.options.name == min(self.options.peers)
            answers: dict[str, BootstrapAnswer] = {}
            if is_founder or trio.current_time() >= compared_at + COMPARE_LISTS_S:
                compared_at = trio.current_time()
                answers = await self._probe_peers()
                self._compare_lists(answers)
            self.not_ready_reason = bootstrap_obstacle(
                self.bootstrap_answer(), answers if is_founder else {}
            )
            if not self.not_ready_reason and self._bootstrap_offer is None:
                voters = {name: answer.node_id for name, answer in answers.items()}
                voters[self.options.name] = self.identity.node_id
                return await self._join_cluster(Bootstrap(new_node_id(self._host.random), voters))
            with trio.move_on_after(backoff.next_s()):
                await self._offer_received.wait()

    def _compare_lists(self, answers: Mapping[str, BootstrapAnswer]) -> None:
        """Compare the lists of all empty nodes with this node's list. Different lists prevent a cluster."""
        own_list = self.bootstrap_answer().peers
        differences = [
            list_difference(name, own_list, answers[name].peers)
            for name in sorted(answers)
            # otherwise its cluster exists, and its members may have changed
            if not answers[name].cluster_id
        ]
        self._report_differences(
            [difference for difference in differences if difference is not None]
        )

    def _report_differences(self, differences: Sequence[ListDifference]) -> None:
        for difference in differences:
            if difference not in self._logged_differences:
                self._logged_differences.add(difference)
                LISTS_DIFFER.emit(log, "%s", difference, peer=difference.peer, why=str(difference))
        self.list_differences = tuple(differences)
        if differences and not self.cluster_id:
            self.conditions.set(
                condition(
                    Code.METADATA_LISTS_DIFFER,
                    peer=differences[0].peer,
                    missing=", ".join(differences[0].missing),
                    more=", ".join(differences[0].additional),
                    moved=", ".join(
                        f"{name}: {own_address}, {other_address}"
                        for name, own_address, other_address in differences[0].moved
                    ),
                )
            )
        else:
            self.conditions.clear(Code.METADATA_LISTS_DIFFER)

    async def _join_cluster(self, bootstrap: Bootstrap) -> MemberIdentity:
        self._joining = True
        self._is_new_cluster = not bootstrap.is_addition
        identity = new_identity(bootstrap.cluster_id, bootstrap.voters, self._host.random)
        founders = [
            Member(node_id, name, "{}:{}".format(*self.options.peers[name]), True)
            for name, node_id in bootstrap.voters.items()
            if not bootstrap.is_addition and name in self.options.peers
        ]
        await RaftStorage(self._disk, identity.seed).create_log(
            Configuration.from_members(founders)
        )
        await store_member_identity(self._disk, identity)
        self.cluster_id = identity.cluster_id
        log.info(
            "metadata node %s %s cluster %s",
            self.options.name,
            "is added to"
            if bootstrap.is_addition
            else f"founds, with {', '.join(bootstrap.voters)},",
            bootstrap.cluster_id,
        )
        return identity

    async def _probe_peers(self) -> dict[str, BootstrapAnswer]:
        names = [name for name in sorted(self.options.peers) if name != self.options.name]
        answers: dict[str, BootstrapAnswer] = {}

        async def ask(name: str) -> None:
            try:
                answers[name] = await query_node(self.endpoint, self.options.peers[name])
            except DistributedLogError:
                return

        async with trio.open_nursery() as asking:
            for name in names:
                asking.start_soon(ask, name)
        return {name: answers[name] for name in names if name in answers}

    # --- membership -------------------------------------------------------------------------------

    async def become_member(self, identity: MemberIdentity, nursery: trio.Nursery) -> None:
        """Load the data on the disk, and become a member. ``nursery`` runs the tasks of the member."""
        storage = RaftStorage(self._disk, identity.seed)
        loaded, identity = await storage.load(identity)
        if loaded.damage:
            log.error("metadata node %s: %s", self.options.name, loaded.damage)
        if not identity.may_vote and loaded.recovery_floor is None:
            # The node is not a member yet. It does not know in which terms it voted. It might acknowledge
            # entries of an earlier leader, although it helped to elect a later one that decided otherwise
            # (M1, M4).
            self._damage = loaded.damage or "its log was damaged at an earlier start"
            DAMAGED.emit(
                log,
                "metadata node %s does not join the quorum: %s",
                self.options.name,
                self._damage,
                why=self._damage,
            )
            self.not_ready_reason = f"this node's disk is damaged: {self._damage}"
            nursery.start_soon(self._recover_hard_state, identity, storage, loaded, nursery)
            return
        await self._start_member(identity, storage, loaded, nursery)

    async def _recover_hard_state(
        self,
        identity: MemberIdentity,
        storage: RaftStorage,
        loaded: LoadedRaftState,
        nursery: trio.Nursery,
    ) -> None:
        """Query all other voters until the limits of the lost hard state are known, then become a member."""
        # Only the addresses in old reports are used, not their terms and entries.
        reports_by_voter: dict[str, VoterReport] = {}
        while True:
            addresses = {**self.options.peers, **member_addresses(reports_by_voter)}
            addresses.pop(self.options.name, None)
            unit = "the recovery of the hard state"
            with self.endpoint.failures.attempt(unit) as attempt:
                new_reports, recovered = await request_voter_reports(
                    self.endpoint, self.identity.node_id, addresses.values(), identity.cluster_id
                )
                reports_by_voter.update(new_reports)
                if isinstance(recovered, RecoveredHardState):
                    break
                self.not_ready_reason = f"this node's disk is damaged, and {recovered}"
            wait_s = HARD_STATE_RECOVERY_S
            if attempt.failed:
                wait_s = self.endpoint.failures.retry_delay_s(unit)
            await trio.sleep(wait_s)
        recovered = await storage.store_recovered_state(recovered)
        RECALLED.emit(
            log,
            "metadata node %s recovered its hard state from the other nodes: term %d, entry %d",
            self.options.name,
            recovered.hard_state.term,
            recovered.last.log_index,
            term=recovered.hard_state.term,
            entry=recovered.last.log_index,
        )
        self._damage = ""
        loaded = replace(loaded, hard_state=recovered.hard_state, recovery_floor=recovered.last)
        await self._start_member(identity, storage, loaded, nursery)

    async def _start_member(
        self,
        identity: MemberIdentity,
        storage: RaftStorage,
        loaded: LoadedRaftState,
        nursery: trio.Nursery,
    ) -> None:
        state = KeyValueState()
        if loaded.snapshot is not None:
            state, _ = await restore(storage.snapshots.chunks(loaded.snapshot))
        disk_space = MetadataDiskSpace(self._disk, storage, self.conditions, self.options.name)
        await disk_space.start()
        self.member = MemberNode(
            self.options,
            self.identity.node_id,
            RestoredNode(identity, loaded, state, storage, disk_space),
            endpoint=self.endpoint,
            conditions=self.conditions,
            watches=self.watches,
            nursery=nursery,
            key_space=self._key_space,
        )
        members_now = self.member.replica.raft.configuration.members
        listed_now = tuple(sorted((member.name, member.address) for member in members_now))
        difference = (
            list_difference("", sorted_peers(self.options.peers), listed_now)
            if listed_now
            else None
        )
        self._report_differences([] if difference is None else [difference])
        self.member.start(is_new_cluster=self._is_new_cluster)
        nursery.start_soon(
            self.endpoint.failures.keep_running,
            "the request for an admin",
            request_if_configured,
            self._disk,
            self.member.request_admin,
            self.conditions,
        )
