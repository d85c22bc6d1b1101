"""A metadata node before it has its part in a quorum: who it is, how it comes to a cluster, what it loads.

A node that belongs to no cluster yet answers who it is and waits: to found one, to be told of one, or for
ever (`bootstrap.py` has the rules). Then it loads what its disk has and becomes a `MemberNode`, unless its
disk is damaged.
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
from ...runtime.interfaces.principals import BY_CERTIFICATE, Meeting, Welcome
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
    FormAnswer,
    ListDifference,
    list_difference,
    listed,
    may_bootstrap,
    may_join,
)
from ..peers.hard_state_recovery import VoterReport, places_of, request_voter_reports
from ..peers.membership_changes import who_is_at
from ..protocol.client_messages import Row
from ..raft.recovered_hard_state import RecoveredHardState
from ..replica.replica import RestoredNode
from ..replica.snapshot_receiver import restore
from ..state.kv_state import KeyValueState
from ..storage.member_identity import MemberIdentity, load_members, new_members, store_members
from ..storage.metadata_disk_space import MetadataDiskSpace
from ..storage.raft_storage import Loaded, RaftStorage, remove_leftovers
from .admin_recovery import ask_if_told
from .member_status import own_row
from .quorum_member import MemberNode
from .watch_server import ServedWatches

log = get_logger("distributedlog.metadata.node.metadata_node")


PROBE_S = 0.05
PROBE_MAX_S = 0.5
COMPARE_S = 5.0
"""How often a node that does not found compares its list of nodes with theirs."""
RECALL_S = 0.5


class MetadataNode:
    """One node: it forms, loads, and then is what `member` is."""

    def __init__(
        self,
        host: Host,
        options: MetadataOptions,
        identity: NodeIdentity,
        classes: KeySpace | None = None,
    ) -> None:
        """``classes``: what the keys are, for who is judged (`authorizer.py`)."""
        self._classes = classes or KeySpace()
        self.options = options
        self.identity = identity
        self.cluster_id = ""
        """Said while it loads, too: a member must not pass for an empty node (H5)."""
        self.member: MemberNode | None = None
        """None while it forms and loads, and while a damaged disk leaves it no word of what it promised."""
        self.waiting_because = "this node has just started"
        self.conditions = NodeConditions()
        """The node's health conditions, for its row of a status."""
        self.watches: dict[ServedWatches, None] = {}
        """Of each connection."""
        self.endpoint = Endpoint(host, self.hello)
        self.conditions.add_check(self.endpoint.certificate_warning)
        self.conditions.add_check(self.endpoint.failures.conditions)
        if BY_CERTIFICATE in self.endpoint.methods:
            self.endpoint.methods[TOKEN] = self._verify_token
        self._host = host
        self._disk = host.disks["metadata"]
        self._damage = ""
        self.list_differences: tuple[ListDifference, ...] = ()
        """How the lists of other nodes, or the members of the quorum, differ from the list of this node."""
        self._told_differences: set[ListDifference] = set()
        self._offer: tuple[Bootstrap, Callable[[FormAnswer], None]] | None = None
        self._offered = trio.Event()
        self._joining = False
        """It is storing which cluster it belongs to: what else it is offered comes too late."""

    # --- who we are -------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """What every connection begins with."""
        return Hello(
            cluster_id=self.cluster_id,
            node_id=self.identity.node_id,
            kind="metadata",
            label=self.options.name,
            durability=self._disk.durability,
        )

    def form_answer(self) -> FormAnswer:
        """What we say while a cluster forms."""
        return FormAnswer(
            self.options.name, self.identity.node_id, self.cluster_id, listed(self.options.peers)
        )

    def row(self) -> Row:
        """Our line of a status."""
        if self.member is not None:
            return self.member.board.row()
        role = MemberRole.STARTING if self.cluster_id else MemberRole.EMPTY
        if self._damage:
            role = MemberRole.DAMAGED
        return own_row(
            self.options,
            self.identity.node_id,
            self.conditions,
            role.value,
            role_detail=self._damage,
        )

    def is_node(self, hello: Hello) -> bool:
        """Is a place kept for who says this? A metadata node must be a member; bookies we do not know."""
        if not hello.cluster_id or hello.cluster_id != self.cluster_id:
            return False
        if hello.kind == "metadata" and self.member is not None:
            return self.member.replica.raft.configuration.member(hello.node_id) is not None
        return hello.kind == "bookie"

    def _verify_token(self, meeting: Meeting, proof: bytes) -> Welcome:
        """The method ``token``. Raises `NotAuthenticated`, `NotReady`."""
        if not meeting.is_secret:
            raise NotAuthenticated(f"a token is not taken in clear, and {meeting.peer_address} is")
        if self.member is None:
            raise NotReady(self.waiting_because)
        return self.member.tokens.welcome(self.member.replica.state, proof)

    # --- how it comes to a cluster ----------------------------------------------------------------

    def offer(self, founding: Bootstrap, reply: Callable[[FormAnswer], None]) -> None:
        """A founder says that we vote in its cluster; ``reply`` is told when that is durable, or not so."""
        free = self._offer is None and not self._joining
        if free and may_join(self.form_answer(), founding):
            self._offer = (founding, reply)
            self._offered.set()
        else:
            reply(self.form_answer())

    async def members(self) -> MemberIdentity | None:
        """The cluster that this directory belongs to, if it does. Raises `ForeignData`, `CorruptData`."""
        await remove_leftovers(self._disk)
        members = await load_members(self._disk)
        if members is None:
            return None
        if members.voters.get(self.options.name) != self.identity.node_id:
            raise ForeignData(
                f"this data directory belongs to node {self.identity.node_id} of cluster"
                f" {members.cluster_id}, not to its {self.options.name}; give it its own, or an empty one"
            )
        self.cluster_id = members.cluster_id
        return members

    async def form(self) -> MemberIdentity:
        """Found a cluster, or wait until somebody says that we belong to one."""
        backoff = Backoff(PROBE_S, PROBE_MAX_S, factor=1.5)
        compared_at = -COMPARE_S
        while True:
            if self._offer is not None:
                (founding, reply), self._offer = self._offer, None
                members = await self._join(founding)
                reply(self.form_answer())
                return members
            founds = self.options.name == min(self.options.peers)
            answers: dict[str, FormAnswer] = {}
            if founds or trio.current_time() >= compared_at + COMPARE_S:
                compared_at = trio.current_time()
                answers = await self._probe()
                self._compare_lists(answers)
            self.waiting_because = may_bootstrap(self.form_answer(), answers if founds else {})
            if not self.waiting_because and self._offer is None:
                voters = {name: answer.node_id for name, answer in answers.items()}
                voters[self.options.name] = self.identity.node_id
                return await self._join(Bootstrap(new_node_id(self._host.random), voters))
            with trio.move_on_after(backoff.next_s()):
                await self._offered.wait()

    def _compare_lists(self, answers: Mapping[str, FormAnswer]) -> None:
        """The lists of the nodes that answer with this one's: with two lists no cluster is formed."""
        ours = self.form_answer().peers
        found = [
            list_difference(name, ours, answers[name].peers)
            for name in sorted(answers)
            if not answers[name].cluster_id  # else it was formed, and its members may have changed
        ]
        self._note_differences([one for one in found if one is not None])

    def _note_differences(self, found: Sequence[ListDifference]) -> None:
        for one in found:
            if one not in self._told_differences:
                self._told_differences.add(one)
                LISTS_DIFFER.say(log, "%s", one, peer=one.peer, why=str(one))
        self.list_differences = tuple(found)
        if found and not self.cluster_id:
            self.conditions.set(
                condition(
                    Code.METADATA_LISTS_DIFFER,
                    peer=found[0].peer,
                    missing=", ".join(found[0].missing),
                    more=", ".join(found[0].more),
                    moved=", ".join(
                        f"{name}: {here}, {there}" for name, here, there in found[0].moved
                    ),
                )
            )
        else:
            self.conditions.clear(Code.METADATA_LISTS_DIFFER)

    async def _join(self, founding: Bootstrap) -> MemberIdentity:
        self._joining = True
        members = new_members(founding.cluster_id, founding.voters, self._host.random)
        founders = [
            Member(node_id, name, "{}:{}".format(*self.options.peers[name]), True)
            for name, node_id in founding.voters.items()
            if not founding.let_in and name in self.options.peers
        ]
        await RaftStorage(self._disk, members.seed).begin(Configuration.of(founders))
        await store_members(self._disk, members)
        self.cluster_id = members.cluster_id
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

        async def ask(name: str) -> None:
            try:
                answers[name] = await who_is_at(self.endpoint, self.options.peers[name])
            except DistributedLogError:
                return

        async with trio.open_nursery() as asking:
            for name in names:
                asking.start_soon(ask, name)
        return {name: answers[name] for name in names if name in answers}

    # --- what it becomes --------------------------------------------------------------------------

    async def become_member(self, members: MemberIdentity, nursery: trio.Nursery) -> None:
        """Load what the disk has, and take part; ``nursery`` holds the member's tasks."""
        storage = RaftStorage(self._disk, members.seed)
        loaded, members = await storage.load(members)
        if loaded.damage:
            log.error("metadata node %s: %s", self.options.name, loaded.damage)
        if not members.may_vote and loaded.ghost is None:
            # No part in the quorum yet: it has forgotten in which terms it voted, and would confirm to
            # an earlier leader what a later one, elected with its help, has decided otherwise (M1, M4).
            self._damage = loaded.damage or "its log was damaged before"
            DAMAGED.say(
                log,
                "metadata node %s takes no part: %s",
                self.options.name,
                self._damage,
                why=self._damage,
            )
            self.waiting_because = f"this node's disk is damaged: {self._damage}"
            nursery.start_soon(self._recall, members, storage, loaded, nursery)
            return
        await self._take_part(members, storage, loaded, nursery)

    async def _recall(
        self, members: MemberIdentity, storage: RaftStorage, loaded: Loaded, nursery: trio.Nursery
    ) -> None:
        """Ask all other voters until they have said what this node may have promised; then take part."""
        # Says where the members are; what it says of promises is old.
        known: dict[str, VoterReport] = {}
        while True:
            places = {**self.options.peers, **places_of(known)}
            places.pop(self.options.name, None)
            unit = "the question what this node may have promised"
            with self.endpoint.failures.contained(unit) as attempt:
                said, word = await request_voter_reports(
                    self.endpoint, self.identity.node_id, places.values(), members.cluster_id
                )
                known.update(said)
                if isinstance(word, RecoveredHardState):
                    break
                self.waiting_because = f"this node's disk is damaged, and {word}"
            wait_s = RECALL_S
            if attempt.failed:
                wait_s = self.endpoint.failures.rest_s(unit)
            await trio.sleep(wait_s)
        word = await storage.remember(word)
        RECALLED.say(
            log,
            "metadata node %s knows from the others what it may have promised: term %d, entry %d",
            self.options.name,
            word.hard_state.term,
            word.last.at,
            term=word.hard_state.term,
            entry=word.last.at,
        )
        self._damage = ""
        loaded = replace(loaded, hard_state=word.hard_state, ghost=word.last)
        await self._take_part(members, storage, loaded, nursery)

    async def _take_part(
        self, members: MemberIdentity, storage: RaftStorage, loaded: Loaded, nursery: trio.Nursery
    ) -> None:
        state = KeyValueState()
        if loaded.snapshot is not None:
            state, _ = await restore(storage.snapshots.chunks(loaded.snapshot))
        room = MetadataDiskSpace(self._disk, storage, self.conditions, self.options.name)
        await room.begin()
        self.member = MemberNode(
            self.options,
            self.identity.node_id,
            RestoredNode(members, loaded, state, storage, room),
            endpoint=self.endpoint,
            conditions=self.conditions,
            watches=self.watches,
            nursery=nursery,
            classes=self._classes,
        )
        members_now = self.member.replica.raft.configuration.members
        listed_now = tuple(sorted((member.name, member.address) for member in members_now))
        other = list_difference("", listed(self.options.peers), listed_now) if listed_now else None
        self._note_differences([] if other is None else [other])
        self.member.start()
        nursery.start_soon(
            self.endpoint.failures.keep,
            "the question for an admin",
            ask_if_told,
            self._disk,
            self.member.ask_for_admin,
            self.conditions,
        )
