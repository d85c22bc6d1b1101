"""A metadata node that has its part in a quorum: a replica, its peers, and what clients are served by.

What the parts do is theirs; here they are made, know each other, and are run.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import trio

from ...runtime.declarations.condition_texts import text_of
from ...runtime.declarations.health_conditions import (
    Code,
    HealthCondition,
    NodeConditions,
    condition,
)
from ...runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    NotAllowed,
    OverQuota,
    TransactionTooLarge,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.interfaces.principals import BY_CERTIFICATE, LOCAL, Token
from ...runtime.net.link import Link
from ...runtime.net.rpc import Endpoint
from ...runtime.primitives.steady_clock import steady_time
from ...runtime.protocol.capabilities import CapabilityKind
from ...runtime.protocol.frames import Op
from ...runtime.protocol.handshake import FEATURE_RESCUE, FEATURE_TRUST, NONE
from ..auth.acl_commands import RESCUE, compose, line_share
from ..auth.authorizer import Authorizer, Parts
from ..auth.capability_issuer import CapabilityIssuer, may_have
from ..auth.key_space import KeySpace
from ..auth.namespace_quotas import NOTHING, NamespaceQuotas
from ..auth.namespace_usage import Growth
from ..auth.principal_quotas import Quotas, why_not_watch
from ..auth.token_service import TokenService
from ..declarations.events import LESS
from ..declarations.options import MetadataOptions
from ..model.acl_records import AuditLine
from ..model.command_results import CommandResult
from ..model.commands import Grant, ReplicatedCommand, Transact, TrustChange, encode_command
from ..model.transaction import Transaction
from ..peers.membership_changes import MembershipChanges
from ..peers.raft_peers import REFUSED_S, RaftPeers
from ..protocol.client_messages import TrustReport
from ..protocol.token_messages import RescueRequest, decode_by
from ..raft.quorum import majority
from ..raft.ready import SendSnapshot
from ..replica.leases import Leases
from ..replica.replica import RaftReplica, ReplicaListener, RestoredNode
from ..replica.secret_rotation import SecretRotation
from ..replica.snapshot_receiver import SnapshotReceiver
from ..storage.metadata_disk_space import is_disk_low
from .admin_recovery import AdminRecoveryVotes
from .member_status import StatusBoard
from .watch_server import LeaderContact, ServedWatches, serial_of

ASK_S = 1.0
WALK_PAUSE_S = 0.005
"""After each piece of a walk over all keys: at most half of the time goes to it."""

log = get_logger("distributedlog.metadata.member")

Rescued = tuple[str, ...] | DistributedLogError
"""The names of the nodes that asked, none where they are too few; or why not."""

LINE_EVERY_S = 3600.0
TOLD_MAX = 10_000


class CurrentRights:
    """Who may do what, by the state of a replica as it is now."""

    def __init__(self, judge: Authorizer, replica: RaftReplica) -> None:
        self._judge = judge
        self._replica = replica

    def judge(self) -> Authorizer:
        """Return the judge, which has seen the state."""
        self._judge.see(self._replica.state)
        return self._judge

    def is_bookie(self, principal: str, bookie_id: str) -> bool:
        """Whether a principal is that bookie."""
        return principal == LOCAL or self.judge().is_bookie(principal, bookie_id)

    def may_have(
        self,
        principal: str,
        token: Token | None,
        kind: CapabilityKind,
        ledger: int,
        bookies: Collection[str],
    ) -> bool:
        """Whether a principal may have a capability; a refusal is counted, also in mode ``report``."""
        trust = self.judge().narrowed(token)
        if may_have(trust, principal, kind, ledger, bookies):
            return True
        what = f"{principal} may not {kind.name.lower()} ledgers of that log"
        trust.verdict(principal, NotAllowed(what))
        return False


class MemberNode:
    """A voter or a learner, or one that was put out and does not know it."""

    def __init__(
        self,
        options: MetadataOptions,
        node_id: str,
        restored: RestoredNode,
        *,
        endpoint: Endpoint,
        conditions: NodeConditions,
        watches: Iterable[ServedWatches],
        nursery: trio.Nursery,
        classes: KeySpace,
    ) -> None:
        """``watches``: those of all connections, as they come and go. ``classes``: for the judge."""
        host, cluster_id = endpoint.host, restored.members.cluster_id
        self.endpoint = endpoint
        self.failures = endpoint.failures
        self._conditions = conditions
        self._watches = watches
        self._nursery = nursery
        self._members = restored.members
        self._wall_ms = host.wall_ms
        self._often = classes.often
        self._snapshots_out: dict[str, None] = {}
        self._differing: dict[str, HealthCondition] = {}
        """The conditions of nodes whose state differs, by node ID."""
        self._told_at: dict[tuple[str, str, str], float] = {}
        """When the audit got its last line of an act that is repeated: principal, act, subject."""
        self._judged_by = (0, 0)
        """What the watches were judged by."""
        self._counting = trio.Event()
        self._wishes = AdminRecoveryVotes()
        self.replica = RaftReplica(node_id, restored, options=options.raft, chance=host.random)
        self.peers = RaftPeers(
            endpoint, options.peers, self.replica, nursery, cluster_id, options.name
        )
        self._rights = CurrentRights(Authorizer(classes, trio.current_time), self.replica)
        self.leases = Leases(self.replica)
        self.quotas = Quotas()
        self.namespaces = NamespaceQuotas(classes)
        self.secrets = SecretRotation(self.replica, host.secret_bytes)
        self.desk = CapabilityIssuer(cluster_id, self._rights.may_have, self._rights.is_bookie)
        self.tokens = TokenService(
            cluster_id, self._rights.judge, steady_time(host), host.secret_bytes
        )
        self.admission = MembershipChanges(self.replica, endpoint, cluster_id)
        self.quorum_contact = LeaderContact(self.replica, watches)
        self.receiver = SnapshotReceiver(self.replica)
        self.board = StatusBoard(options, conditions, self.replica, self.peers, endpoint, nursery)
        if restored.loaded.ghost is not None:
            conditions.set(condition(Code.METADATA_LOG_INCOMPLETE, last=-1))

    # --- what its replica tells it: `ReplicaListener` ---------------------------------------------

    def on_applied(self) -> None:
        """See `ReplicaListener`: watches get the changes."""
        state = self.replica.state
        if state.trust_revision:
            if not self.namespaces.use.follows(state):
                self.namespaces.use.begin(state)
                self._counting.set()
            trust = self.trust
            if (trust.revision, trust.renames) != self._judged_by:
                self._judge_watches()
        for watches in self._watches:
            watches.push(self.replica.state)

    def on_snapshot_wanted(self, wanted: SendSnapshot) -> None:
        """See `ReplicaListener`."""
        if wanted.peer not in self._snapshots_out:
            self._snapshots_out[wanted.peer] = None
            self._nursery.start_soon(self._send_snapshot_to, wanted)

    def on_state(self) -> None:
        """See `ReplicaListener`: the status lists nodes whose state is wrong, for as long as it is."""
        replica = self.replica
        found: dict[str, HealthCondition] = {}
        if not replica.raft.may_serve:
            found[replica.raft.node_id] = condition(Code.METADATA_STATE_DIFFERS)
        else:
            for peer, index in replica.digests.wrong.items():
                found[peer] = condition(
                    Code.METADATA_PEER_DIFFERS, peer=self.peers.name(peer), entry=index
                )
        before, self._differing = self._differing, found
        for node in before.keys() - found.keys():
            self._conditions.clear(Code(before[node].code), node)
        for node, one in found.items():
            self._conditions.set(one, node)
            if before.get(node) != one:
                log.error("metadata: %s", text_of(one))

    def on_less(self) -> None:
        """See `ReplicaListener`. It is not stored: after a restart a leader says so again, or a newer one."""
        incomplete = condition(Code.METADATA_LOG_INCOMPLETE, last=self.replica.raft.log.last_index)
        self._conditions.set(incomplete)
        LESS.say(
            log,
            "this metadata node does not stand, and votes for no less than it had: %s",
            text_of(incomplete),
            entry=self.replica.raft.log.last_index,
        )

    async def on_whole(self) -> None:
        """See `ReplicaListener`."""
        self._members = await self.replica.storage.be_whole(self._members)
        self._conditions.clear(Code.METADATA_LOG_INCOMPLETE)
        log.info("this metadata node's log is whole again: it counts by itself")

    # --- its start, its counters, and what sessions ask of it -------------------------------------

    def start(self) -> None:
        """Begin all that it does by itself, in the nursery."""
        self.replica.subscribe(
            ReplicaListener(
                send=self.peers.send,
                tell_wrong=self.peers.tell_wrong,
                on_members=self.peers.on_members,
                on_applied=self.on_applied,
                on_role=self.leases.on_role,
                on_late=self.leases.on_late,
                on_state=self.on_state,
                on_less=self.on_less,
                on_whole=self.on_whole,
                on_snapshot_wanted=self.on_snapshot_wanted,
            )
        )
        self.peers.on_members()
        replica, keep = self.replica, self.failures.keep
        # An exception of the log of Raft or of its hard state ends the node.
        for ends_node in (
            replica.persist,
            replica.storage.zero_ahead,
            replica.run_clock,
            replica.end_if_must,
        ):
            self._nursery.start_soon(ends_node)
        for unit, run in (
            ("snapshots", replica.take_snapshots),
            ("the look at free space", replica.mind_room),
            ("the look at the quorum's free space", self._mind_quorum),
            ("the count of namespaces", self._count_namespaces),
            ("changes of members", self.admission.run),
            ("the look for a leader", self.quorum_contact.run),
            ("the end of leases", self.leases.run),
            ("the receipt of snapshots", self.receiver.run),
        ):
            self._nursery.start_soon(keep, unit, run)

    def info(self) -> dict[str, float | str]:
        """Counters and gauges."""
        replica = self.replica
        return {
            "role": replica.raft.role.value,
            "leader": replica.raft.role.value == "leader",
            "term": replica.raft.term,
            "applied": replica.state.index,
            "revision": replica.state.revision,
            "leases": len(replica.state.leases),
            "differs": len(replica.digests.wrong) + (not replica.raft.may_serve),
            "syncs": replica.storage.syncs,
            "bytes_written": replica.storage.bytes_written,
            **self.endpoint.info(),
        }

    @property
    def trust(self) -> Authorizer:
        """Who may do what, by the state as it is now."""
        return self._rights.judge()

    def may_read(self, link: Link, start: bytes, end: bytes | None) -> NotAllowed | Parts | None:
        """Of a key (``end`` None), a range, a watch: no, or these parts of it; None: all of it."""
        if not self.replica.state.trust_revision:
            return None
        return self.trust.narrowed(link.token).read(link.principal, start, end)

    def change_of_trust(
        self, head: TrustChange, change: Sequence[str], principal: str, link: Link
    ) -> TrustChange:
        """What a client asks to be changed about who may do what, for the log; ``head``: its request.

        Raises `NotLeader`, `NotAllowed`, `InvalidRequest`.
        """
        replica = self.replica
        if link.token is not None and link.token.narrowing:
            raise NotAllowed(f"a narrowed token of {principal} changes nobody's rights")
        if not replica.leads:
            raise replica.not_leader()
        if replica.state.answered(head) is not None:
            return head
        if not replica.state.trust_revision:
            lacking = self.peers.lacking(FEATURE_TRUST)
            if lacking:
                raise InvalidRequest(
                    "nobody is told what he may do before all metadata nodes know of it:"
                    f" {', '.join(lacking)} is away, or older"
                )
        methods = self.endpoint.methods
        if list(change[:2]) == ["mode", "required"] and {NONE, BY_CERTIFICATE} <= methods.keys():
            raise InvalidRequest(
                "this metadata node takes plain connections beside TLS (--transport either): who comes by one"
                " could act as a node, whatever is required; first start the metadata nodes with --transport"
                " tls, one by one"
            )
        head.transaction = compose(
            self.trust,
            replica.state,
            change,
            principal=principal,
            address=link.peer_address,
            now_ms=self._wall_ms(),
            index=replica.raft.log.last_index + 1,
            serial=serial_of(link),
            by_token=link.token is not None,
            uses=self.namespaces.use.spaces if self.namespaces.use.follows(replica.state) else {},
        )
        return head

    def rescue(
        self, principal: str, node_id: str, user: str, done: Callable[[Rescued], None]
    ) -> None:
        """A node asks for this user as an admin; ``done`` is told who asked, when enough do, or why not."""
        replica = self.replica
        member = replica.raft.configuration.member(node_id)

        def ready(error: DistributedLogError | None) -> None:
            try:
                if error is not None:
                    raise error
                if member is None or not member.votes or principal != f"metadata/{member.name}":
                    raise NotAllowed(
                        f"{principal} asks for no admin: metadata nodes do, by their certificates"
                    )
                if not replica.state.trust_revision:
                    raise InvalidRequest(
                        "nothing is judged in this cluster: dlog trust require names an admin"
                    )
                raft = replica.raft
                if user in self.trust.admins():
                    done((member.name,))
                    return
                now = trio.current_time()
                asking = self._wishes.on_asked(raft.term, node_id, user, raft.voters, now)
                if asking:
                    self._make_admin(user, sorted(map(self.peers.name, asking)), done)
                else:
                    done(())
            except DistributedLogError as refused:
                done(refused)

        replica.read(ready)

    def _make_admin(self, user: str, names: Sequence[str], done: Callable[[Rescued], None]) -> None:
        replica = self.replica
        head = TrustChange(f"{RESCUE}-{self.endpoint.host.secret_bytes(8).hex()}", 1)
        head.transaction = compose(
            self.trust,
            replica.state,
            (RESCUE, user, f"by {', '.join(names)}"),
            principal=f"metadata/{self.peers.name(replica.raft.node_id)}",
            address="",
            now_ms=self._wall_ms(),
            index=replica.raft.log.last_index + 1,
        )

        def applied(answer: CommandResult | DistributedLogError) -> None:
            error = answer if isinstance(answer, DistributedLogError) else answer.error
            if error is None:
                self._wishes.on_done()
            done(tuple(names) if error is None else error)

        replica.request(encode_command(head), head, applied, asker=self)
        replica.drain()

    async def ask_for_admin(self, user: str) -> tuple[str, ...]:
        """Ask the leader for this user as an admin: which nodes it was done for; none: too few ask.

        Raises `NotAllowed`, `InvalidRequest`; `DistributedLogError` where nobody leads, or answers.
        """
        replica = self.replica
        own = self.endpoint.host.certificate()
        if own is None:
            raise NotAllowed("a node without a certificate is nobody whom a leader could count")
        if not replica.leads:
            body = RescueRequest(user).encode()
            leader = replica.raft.leader_id
            return decode_by(
                await self.peers.ask(leader, Op.META_TRUST, body, feature=FEATURE_RESCUE)
            )
        said: list[Rescued] = []
        told = trio.Event()

        def done(answer: Rescued) -> None:
            said.append(answer)
            told.set()

        self.rescue(own.principal, replica.raft.node_id, user, done)
        replica.drain()
        await told.wait()
        if isinstance(said[0], DistributedLogError):
            raise said[0]
        return said[0]

    def growth(self, principal: str, meant: ReplicatedCommand) -> Mapping[str, Growth]:
        """What a command would add to namespaces, where rights are required; by `over_quota`, `on_taken`."""
        state = self.replica.state
        if not isinstance(meant, Transact) or not self.namespaces.use.follows(state):
            return NOTHING
        return self.namespaces.growth(principal, meant.transaction)

    def over_quota(
        self, principal: str, meant: ReplicatedCommand, growth: Mapping[str, Growth]
    ) -> DistributedLogError | None:
        """Why no command of this principal is taken now, where rights are required."""
        replica, quotas = self.replica, self.quotas
        if not replica.state.trust_revision or self.trust.mode != "required":
            return None
        self.namespaces.begin(replica.raft.term)
        over = self.namespaces.why_not(replica.state, growth)
        if over is not None:
            return over
        quotas.begin(replica.raft.term, replica.state.ring, trio.current_time())
        if isinstance(meant, Grant):
            crowd = quotas.why_not_lease(replica.state, principal)
            if crowd is not None:
                return crowd
        return quotas.why_not_request(principal, trio.current_time())

    def on_taken(self, owner: str, index: int, growth: Mapping[str, Growth]) -> None:
        """A command of that owner was put into the log, at this place."""
        self.quotas.on_taken(owner, trio.current_time())
        self.namespaces.on_taken(index, growth)

    def over_watches(self, principal: str) -> OverQuota | None:
        """Why it is served no further watch here."""
        if not self.replica.state.trust_revision or self.trust.mode != "required":
            return None
        there = sum(len(one) for one in self._watches if one.principal == principal)
        return why_not_watch(principal, there)

    def with_line(self, meant: Transact, principal: str, address: str) -> Transact:
        """With a line of the audit in the same transaction, where it is an act that has one."""
        told = self.trust.act(principal, meant.transaction)
        if told is None or not self._is_line_due(principal, *told):
            return meant
        share = meant.transaction + self._line(principal, address, *told)
        try:
            share.check()
        except (
            TransactionTooLarge
        ):  # as large as it may be by itself: then the line stands in front of it
            self.tell(principal, address, *told)
            return meant
        return replace(meant, transaction=share)

    def _is_line_due(self, principal: str, action: str, subject: str) -> bool:
        """An act that programs repeat must not displace the other lines of the audit."""
        if action not in self._often:
            return True
        one, now = (principal, action, subject), trio.current_time()
        if now - self._told_at.get(one, -LINE_EVERY_S) < LINE_EVERY_S:
            return False
        if len(self._told_at) >= TOLD_MAX:
            self._told_at.clear()
        self._told_at[one] = now
        return True

    def tell(self, principal: str, address: str, action: str, subject: str) -> None:
        """A line of its own, for what is no transaction: put before it is done, and it may fail."""
        said = Transact(transaction=self._line(principal, address, action, subject))
        self.replica.propose(encode_command(said), lambda answer: None)

    def _line(self, principal: str, address: str, action: str, subject: str) -> Transaction:
        replica = self.replica
        line = AuditLine(self._wall_ms(), principal, address, action, subject)
        return line_share(replica.state, line, replica.raft.log.last_index + 1)

    def trust_report(self, link: Link, *, own: bool) -> TrustReport:
        """What the leader says of it; ``own``: only to whom it says it."""
        trust, principal = self.trust.narrowed(link.token), link.principal
        would = tuple(
            (who, what, times) for (who, what), times in trust.would_refuse.items() if not own
        )
        state, namespaces = self.replica.state, self.namespaces
        told = () if own or not namespaces.use.follows(state) else namespaces.told(state)
        spaces = tuple(
            (name, use.keys, use.size_bytes, use.ledgers, most.keys, most.size_bytes, most.ledgers)
            for name, use, most in told
        )
        rights = trust.cluster_rights(principal)
        return TrustReport(trust.mode, principal, rights, would, namespaces.use.whole, spaces)

    def _judge_watches(self) -> None:
        """Who may what has changed: what was opened before is judged again, and who is out is put out."""
        trust = self.trust
        self._judged_by = (trust.revision, trust.renames)
        for watches in list(self._watches):
            if not watches.is_out(trust):
                watches.judge(self.may_read)

    async def _count_namespaces(self) -> None:
        """What was there when it began to matter who does what, some at a time; then each change is told."""
        while True:
            await self._counting.wait()
            self._counting = trio.Event()
            left = True
            try:
                while left:
                    left = self.namespaces.use.walk()
                    await trio.sleep(WALK_PAUSE_S)
            except Exception:
                self._counting.set()  # the next run continues the walk
                raise

    async def _send_snapshot_to(self, wanted: SendSnapshot) -> None:
        replica = self.replica
        rest_s, index = ASK_S, wanted.index
        unit = f"the snapshot for metadata node {self.peers.name(wanted.peer)}"
        with self.failures.contained(
            unit
        ) as attempt:  # after any failure the core learns that nothing was sent
            if replica.snapshot is not None and replica.snapshot.index >= wanted.index:
                index = replica.snapshot.index
                rest_s = await self.peers.send_snapshot(
                    replica.raft.term,
                    replica.raft.node_id,
                    wanted,
                    replica.snapshot,
                    replica.storage,
                )
            if rest_s == REFUSED_S:
                await replica.doubt_snapshot()
        if attempt.failed:
            rest_s = self.failures.rest_s(unit)
        await trio.sleep(rest_s)
        self._snapshots_out.pop(wanted.peer, None)
        replica.raft.on_snapshot_sent(wanted.peer, index, not rest_s)
        if rest_s and replica.snapshot is not None:
            # What was kept for that peer meanwhile: it may need another snapshot for a long time yet.
            replica.raft.compact(replica.snapshot.index)
        replica.drain()

    async def _mind_quorum(self) -> None:
        """While we lead: see which voters are short of room; let one lead that is not."""
        replica = self.replica
        while True:
            await trio.sleep(ASK_S)
            self.tokens.time_s()  # it is to follow the wall's clock
            if not replica.leads:
                replica.room.quorum_short = False
                continue
            voters = [v for v in replica.raft.voters if v != replica.raft.node_id]
            well, short = [], int(replica.room.short)
            for voter in voters:
                row = await self.peers.ask_status(voter)
                if row is not None and is_disk_low(row.status.conditions):
                    short += 1
                elif row is not None:
                    well.append(voter)
            replica.room.quorum_short = short >= majority(len(voters) + 1)
            if replica.room.short and well and not replica.room.quorum_short:
                replica.raft.transfer_leadership(trio.current_time(), well[0])
                replica.drain()
