"""A member of the metadata quorum: its replica, its peers, and the parts that serve clients.

This module creates and connects these parts, and runs their tasks.
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
from ...runtime.protocol.handshake import FEATURE_ADMIN_RECOVERY, FEATURE_TRUST, METHOD_NONE
from ..auth.acl_commands import RECOVER_ADMIN, audit_line_ops, compose
from ..auth.authorizer import Authorizer, VisibleParts
from ..auth.capability_issuer import CapabilityIssuer, may_have_capability
from ..auth.key_space import UNKNOWN_CLASS, KeySpace
from ..auth.namespace_quotas import NO_GROWTH, NamespaceQuotas
from ..auth.namespace_usage import UsageGrowth
from ..auth.principal_quotas import PrincipalQuotas, watch_quota_error
from ..auth.token_service import TokenService
from ..declarations.events import LESS
from ..declarations.options import MetadataOptions
from ..model.acl_records import AuditLine
from ..model.cluster_version import CLUSTER_VERSION_KEY
from ..model.command_results import CommandResult
from ..model.commands import (
    AuthorizationChange,
    GrantLease,
    ReplicatedCommand,
    Transact,
    encode_command,
)
from ..model.transaction import Transaction
from ..peers.membership_changes import MembershipChanges
from ..peers.raft_peers import SNAPSHOT_RETRY_S, RaftPeers
from ..protocol.client_messages import AuthorizationReport
from ..protocol.token_messages import AdminRecoveryRequest, decode_requesting_nodes
from ..raft.quorum import majority
from ..raft.ready import SendSnapshot
from ..replica.leases import Leases
from ..replica.replica import RaftReplica, ReplicaListener, RestoredNode
from ..replica.secret_rotation import SecretRotation
from ..replica.snapshot_receiver import SnapshotReceiver
from ..storage.metadata_disk_space import is_disk_low
from .admin_recovery import AdminRecoveryVotes
from .member_status import StatusBoard
from .version_guard import VersionGuard
from .watch_server import LeaderContact, ServedWatches, serial_of

CHECK_INTERVAL_S = 1.0
COUNT_PAUSE_S = 0.005
"""Pause after each part of a scan of all keys, so that it takes at most half of the time."""

log = get_logger("distributedlog.metadata.member")

AdminRecoveryResult = tuple[str, ...] | DistributedLogError
"""The names of the requesting nodes, empty if they are too few, or the error."""

REPEATED_LINE_INTERVAL_S = 3600.0
LOGGED_ACTIONS_MAX = 10_000


class CurrentRights:
    """The rights of principals by the present state of a replica."""

    def __init__(self, authorizer: Authorizer, replica: RaftReplica) -> None:
        self._authorizer = authorizer
        self._replica = replica

    def authorizer(self) -> Authorizer:
        """Return the authorizer, refreshed from the state."""
        self._authorizer.refresh(self._replica.state)
        return self._authorizer

    def is_bookie(self, principal: str, bookie_id: str) -> bool:
        """Whether a principal is that bookie."""
        return principal == LOCAL or self.authorizer().is_bookie(principal, bookie_id)

    def may_have_capability(
        self,
        principal: str,
        token: Token | None,
        kind: CapabilityKind,
        ledger: int,
        bookies: Collection[str],
    ) -> bool:
        """Whether a principal may have a capability. A refusal is counted, also in mode "report"."""
        scoped = self.authorizer().restricted_to_token(token)
        if may_have_capability(scoped, principal, kind, ledger, bookies):
            return True
        reason = f"{principal} may not {kind.name.lower()} the ledgers of that log"
        scoped.apply_mode(principal, NotAllowed(reason))
        return False


class MemberNode:
    """A voter or a learner, or a node that was removed and has not received that change."""

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
        key_space: KeySpace,
    ) -> None:
        """Create all parts.

        Args:
            options: The options of the node.
            node_id: Its ID.
            restored: Its data.
            endpoint: Its endpoint.
            conditions: Its health conditions.
            watches: Those of all open connections.
            nursery: Runs its tasks.
            key_space: For the authorizer.
        """
        host, cluster_id = endpoint.host, restored.identity.cluster_id
        self.endpoint = endpoint
        self.failures = endpoint.failures
        self._conditions = conditions
        self._watches = watches
        self._nursery = nursery
        self._identity = restored.identity
        self._clock_ms = host.wall_ms
        self._repeated_actions = key_space.repeated_actions
        self._has_version = key_space.of(CLUSTER_VERSION_KEY) is not UNKNOWN_CLASS
        self._snapshot_receivers: dict[str, None] = {}
        self._state_conditions: dict[str, HealthCondition] = {}
        """The conditions of nodes whose state differs, by node ID."""
        self._logged_at: dict[tuple[str, str, str], float] = {}
        """Time of the last audit record of each repeated action, by principal, action and subject."""
        self._watch_rights_version = (0, 0)
        """The rights by which the watches were authorized last."""
        self._count_wanted = trio.Event()
        self._admin_votes = AdminRecoveryVotes()
        self.replica = RaftReplica(node_id, restored, options=options.raft, rng=host.random)
        self.peers = RaftPeers(
            endpoint, options.peers, self.replica, nursery, cluster_id, options.name
        )
        self._current_rights = CurrentRights(Authorizer(key_space, trio.current_time), self.replica)
        self.version_guard = VersionGuard(self.replica, self.peers, options.version)
        self.leases = Leases(self.replica)
        self.principal_quotas = PrincipalQuotas()
        self.namespace_quotas = NamespaceQuotas(key_space)
        self.secrets = SecretRotation(self.replica, host.secret_bytes)
        self.capability_issuer = CapabilityIssuer(
            cluster_id, self._current_rights.may_have_capability, self._current_rights.is_bookie
        )
        self.token_service = TokenService(
            cluster_id, self._current_rights.authorizer, steady_time(host), host.secret_bytes
        )
        self.membership_changes = MembershipChanges(self.replica, endpoint, cluster_id)
        self.quorum_contact = LeaderContact(self.replica, watches)
        self.snapshot_receiver = SnapshotReceiver(self.replica)
        self.status_board = StatusBoard(
            options, conditions, self.replica, self.peers, endpoint, nursery
        )
        if restored.loaded.recovery_floor is not None:
            conditions.set(condition(Code.METADATA_LOG_INCOMPLETE, last=-1))

    # --- replica events: `ReplicaListener` --------------------------------------------------------

    def on_applied(self) -> None:
        """See `ReplicaListener`. Sends the changes to the watches."""
        state = self.replica.state
        self.version_guard.check()
        if state.authorization_revision:
            if not self.namespace_quotas.usage.is_counting(state):
                self.namespace_quotas.usage.start_counting(state)
                self._count_wanted.set()
            trust = self.authorizer
            if (trust.revision, trust.rename_count) != self._watch_rights_version:
                self._reauthorize_watches()
        for watches in self._watches:
            watches.push(self.replica.state)

    def on_snapshot_wanted(self, snapshot_request: SendSnapshot) -> None:
        """See `ReplicaListener`."""
        if snapshot_request.peer not in self._snapshot_receivers:
            self._snapshot_receivers[snapshot_request.peer] = None
            self._nursery.start_soon(self._send_snapshot_to, snapshot_request)

    def on_state_validity(self) -> None:
        """See `ReplicaListener`. Sets the conditions of nodes with a wrong state, and clears old ones."""
        replica = self.replica
        conditions: dict[str, HealthCondition] = {}
        if not replica.raft.is_state_valid:
            conditions[replica.raft.node_id] = condition(Code.METADATA_STATE_DIFFERS)
        else:
            for peer, index in replica.digests.wrong_peers.items():
                conditions[peer] = condition(
                    Code.METADATA_PEER_DIFFERS, peer=self.peers.name_of(peer), entry=index
                )
        conditions_before, self._state_conditions = self._state_conditions, conditions
        for node in conditions_before.keys() - conditions.keys():
            self._conditions.clear(Code(conditions_before[node].code), node)
        for node, new_condition in conditions.items():
            self._conditions.set(new_condition, node)
            if conditions_before.get(node) != new_condition:
                log.error("metadata: %s", text_of(new_condition))

    def on_log_incomplete(self) -> None:
        """See `ReplicaListener`.

        The condition is not stored, because after a restart a leader reports it again.
        """
        incomplete = condition(Code.METADATA_LOG_INCOMPLETE, last=self.replica.raft.log.last_index)
        self._conditions.set(incomplete)
        LESS.emit(
            log,
            "this metadata node does not campaign until its log is complete: %s",
            text_of(incomplete),
            entry=self.replica.raft.log.last_index,
        )

    async def on_log_complete(self) -> None:
        """See `ReplicaListener`."""
        self._identity = await self.replica.storage.clear_recovery_floor(self._identity)
        self._conditions.clear(Code.METADATA_LOG_INCOMPLETE)
        log.info("the log of this metadata node is complete again")

    # --- start, counters, and calls of sessions ---------------------------------------------------

    def start(self, *, is_new_cluster: bool = False) -> None:
        """Start all tasks in the nursery.

        Args:
            is_new_cluster: Whether the node has just founded the cluster, or joined it as a founder. The
                cluster then gets a version, if its key space has one.
        """
        self.version_guard.check()
        self.replica.subscribe(
            ReplicaListener(
                send=self.peers.send,
                notify_state_differs=self.peers.notify_state_differs,
                on_members=self.peers.on_members,
                on_applied=self.on_applied,
                on_role=self.leases.on_role,
                on_late=self.leases.on_late,
                on_state_validity=self.on_state_validity,
                on_log_incomplete=self.on_log_incomplete,
                on_log_complete=self.on_log_complete,
                on_snapshot_wanted=self.on_snapshot_wanted,
            )
        )
        self.peers.on_members()
        replica, keep = self.replica, self.failures.keep_running
        # An error in the Raft log or the hard state ends the node.
        for ends_node in (
            replica.persist,
            replica.storage.zero_ahead,
            replica.run_clock,
            replica.raise_failure,
        ):
            self._nursery.start_soon(ends_node)
        for unit, run in (
            ("snapshots", replica.take_snapshots),
            ("the check of free space", replica.monitor_disk_space),
            ("the check of the quorum's free space", self._monitor_quorum_disk_space),
            ("the count of namespaces", self._count_namespaces),
            ("changes of members", self.membership_changes.run),
            ("the check for a leader", self.quorum_contact.run),
            ("the end of leases", self.leases.run),
            ("the receipt of snapshots", self.snapshot_receiver.run),
        ):
            self._nursery.start_soon(keep, unit, run)
        if is_new_cluster and self._has_version:
            self._nursery.start_soon(
                keep, "the version of a new cluster", self.version_guard.write_first_version
            )

    def info(self) -> dict[str, float | str]:
        """Return counters and gauges."""
        replica = self.replica
        return {
            "role": replica.raft.role.value,
            "leader": replica.raft.role.value == "leader",
            "term": replica.raft.term,
            "applied": replica.state.index,
            "revision": replica.state.revision,
            "leases": len(replica.state.leases),
            "differs": len(replica.digests.wrong_peers) + (not replica.raft.is_state_valid),
            "syncs": replica.storage.syncs,
            "bytes_written": replica.storage.bytes_written,
            **self.endpoint.info(),
        }

    @property
    def authorizer(self) -> Authorizer:
        """Return the authorizer for the present state."""
        return self._current_rights.authorizer()

    def may_read(
        self, link: Link, start: bytes, end: bytes | None
    ) -> NotAllowed | VisibleParts | None:
        """Authorize the read of a key (``end`` is None) or of a range, or a watch.

        Returns:
            The refusal, the visible parts of the range, or None if all of it is visible.
        """
        if not self.replica.state.authorization_revision:
            return None
        return self.authorizer.restricted_to_token(link.token).authorize_read(
            link.principal, start, end
        )

    def compose_acl_change(
        self, head: AuthorizationChange, change: Sequence[str], principal: str, link: Link
    ) -> AuthorizationChange:
        """Build the command for a requested change of users, grants, quotas or the mode.

        Args:
            head: The command with the identity of the request, without its transaction.
            change: The words of the change (`acl_commands.py`).
            principal: The principal of the request.
            link: Its connection.

        Raises:
            NotLeader: Another node leads.
            NotAllowed: The principal may not make the change.
            InvalidRequest: The change is invalid, or not possible with the present nodes or transport.
        """
        replica = self.replica
        if link.token is not None and link.token.token_scope:
            raise NotAllowed(f"a restricted token of {principal} may not change rights")
        if not replica.is_leader:
            raise replica.not_leader_error()
        if replica.state.earlier_result(head) is not None:
            return head
        if not replica.state.authorization_revision:
            lacking_nodes = self.peers.peers_without_feature(FEATURE_TRUST)
            if lacking_nodes:
                raise InvalidRequest(
                    "authorization requires that all metadata nodes are reachable and support it:"
                    f" {', '.join(lacking_nodes)} is unreachable or older"
                )
        methods = self.endpoint.methods
        if (
            list(change[:2]) == ["mode", "required"]
            and {METHOD_NONE, BY_CERTIFICATE} <= methods.keys()
        ):
            raise InvalidRequest(
                "this metadata node accepts plain connections in addition to TLS (--transport either), and"
                " a plain client could act as a node in any mode. First restart the metadata nodes with"
                " --transport tls, one by one"
            )
        head.transaction = compose(
            self.authorizer,
            replica.state,
            change,
            principal=principal,
            address=link.peer_address,
            now_ms=self._clock_ms(),
            index=replica.raft.log.last_index + 1,
            serial=serial_of(link),
            by_token=link.token is not None,
            usage_by_namespace=self.namespace_quotas.usage.usage_by_namespace
            if self.namespace_quotas.usage.is_counting(replica.state)
            else {},
        )
        return head

    def recover_admin(
        self, principal: str, node_id: str, user: str, done: Callable[[AdminRecoveryResult], None]
    ) -> None:
        """Process the request of a node to make a user admin.

        ``done`` receives the requesting nodes when they are a majority, no nodes before, or the error. If the
        user is an admin already, it receives this node.
        """
        replica = self.replica
        member = replica.raft.configuration.member(node_id)

        def ready(error: DistributedLogError | None) -> None:
            try:
                if error is not None:
                    raise error
                if member is None or not member.votes or principal != f"metadata/{member.name}":
                    raise NotAllowed(
                        f"{principal} may not request an admin: only metadata nodes with certificates may"
                    )
                if not replica.state.authorization_revision:
                    raise InvalidRequest(
                        "authorization is off in this cluster: dlog trust set-mode creates an admin"
                    )
                raft = replica.raft
                if user in self.authorizer.admins():
                    done((member.name,))
                    return
                now = trio.current_time()
                requesting_nodes = self._admin_votes.on_vote(
                    raft.term, node_id, user, raft.voters, now
                )
                if requesting_nodes:
                    self._make_admin(user, sorted(map(self.peers.name_of, requesting_nodes)), done)
                else:
                    done(())
            except DistributedLogError as denial:
                done(denial)

        replica.read_linearizable(ready)

    def _make_admin(
        self, user: str, names: Sequence[str], done: Callable[[AdminRecoveryResult], None]
    ) -> None:
        replica = self.replica
        command = AuthorizationChange(
            f"{RECOVER_ADMIN}-{self.endpoint.host.secret_bytes(8).hex()}", 1
        )
        command.transaction = compose(
            self.authorizer,
            replica.state,
            (RECOVER_ADMIN, user, f"by {', '.join(names)}"),
            principal=f"metadata/{self.peers.name_of(replica.raft.node_id)}",
            address="",
            now_ms=self._clock_ms(),
            index=replica.raft.log.last_index + 1,
        )

        def applied(answer: CommandResult | DistributedLogError) -> None:
            error = answer if isinstance(answer, DistributedLogError) else answer.error
            if error is None:
                self._admin_votes.on_done()
            done(tuple(names) if error is None else error)

        replica.request(encode_command(command), command, applied, requester=self)
        replica.drain()

    async def request_admin(self, user: str) -> tuple[str, ...]:
        """Send this node's request for an admin to the leader.

        Returns:
            The nodes for which it was granted, or none if too few request it.

        Raises:
            NotAllowed, InvalidRequest: The leader refused the request.
            DistributedLogError: No leader is known, or it did not answer.
        """
        replica = self.replica
        certificate = self.endpoint.host.certificate()
        if certificate is None:
            raise NotAllowed("a node without a certificate cannot request an admin")
        if not replica.is_leader:
            body = AdminRecoveryRequest(user).encode()
            leader = replica.raft.leader_id
            return decode_requesting_nodes(
                await self.peers.request(
                    leader, Op.META_TRUST, body, feature=FEATURE_ADMIN_RECOVERY
                )
            )
        results: list[AdminRecoveryResult] = []
        answered = trio.Event()

        def done(answer: AdminRecoveryResult) -> None:
            results.append(answer)
            answered.set()

        self.recover_admin(certificate.principal, replica.raft.node_id, user, done)
        replica.drain()
        await answered.wait()
        if isinstance(results[0], DistributedLogError):
            raise results[0]
        return results[0]

    def growth(
        self, principal: str, decoded_command: ReplicatedCommand
    ) -> Mapping[str, UsageGrowth]:
        """Return the growth of namespaces by a command, if usage is counted.

        For `quota_error` and `on_accepted`.
        """
        state = self.replica.state
        if not isinstance(decoded_command, Transact) or not self.namespace_quotas.usage.is_counting(
            state
        ):
            return NO_GROWTH
        return self.namespace_quotas.growth_by_namespace(principal, decoded_command.transaction)

    def quota_error(
        self, principal: str, decoded_command: ReplicatedCommand, growth: Mapping[str, UsageGrowth]
    ) -> DistributedLogError | None:
        """Return why a command exceeds a quota, or None. Quotas apply only in mode "required"."""
        replica, quotas = self.replica, self.principal_quotas
        if not replica.state.authorization_revision or self.authorizer.mode != "required":
            return None
        self.namespace_quotas.begin_term(replica.raft.term)
        namespace_error = self.namespace_quotas.quota_error(replica.state, growth)
        if namespace_error is not None:
            return namespace_error
        quotas.begin_term(replica.raft.term, replica.state.request_dedup, trio.current_time())
        if isinstance(decoded_command, GrantLease):
            lease_error = quotas.lease_error(replica.state, principal)
            if lease_error is not None:
                return lease_error
        return quotas.request_error(principal, trio.current_time())

    def on_accepted(self, owner: str, index: int, growth: Mapping[str, UsageGrowth]) -> None:
        """Count a command of that owner, which was added to the log at this index."""
        self.principal_quotas.on_accepted(owner, trio.current_time())
        self.namespace_quotas.on_accepted(index, growth)

    def watch_quota_error(self, principal: str) -> OverQuota | None:
        """Return why the principal may not open a further watch on this node, or None."""
        if not self.replica.state.authorization_revision or self.authorizer.mode != "required":
            return None
        watch_count = sum(len(served) for served in self._watches if served.principal == principal)
        return watch_quota_error(principal, watch_count)

    def with_audit_line(self, decoded_command: Transact, principal: str, address: str) -> Transact:
        """Add an audit record to the transaction of a command, if its action requires one."""
        action = self.authorizer.audited_action(principal, decoded_command.transaction)
        if action is None or not self._is_line_due(principal, *action):
            return decoded_command
        transaction = decoded_command.transaction + self._audit_line_ops(
            principal, address, *action
        )
        try:
            transaction.check()
        except (
            TransactionTooLarge
        ):  # The transaction is already as large as allowed. Write the audit record before it.
            self.write_audit_line(principal, address, *action)
            return decoded_command
        return replace(decoded_command, transaction=transaction)

    def _is_line_due(self, principal: str, action: str, subject: str) -> bool:
        """Whether an audit record is due.

        Frequent actions of programs must not displace other audit records.
        """
        if action not in self._repeated_actions:
            return True
        action_key, now = (principal, action, subject), trio.current_time()
        if (
            now - self._logged_at.get(action_key, -REPEATED_LINE_INTERVAL_S)
            < REPEATED_LINE_INTERVAL_S
        ):
            return False
        if len(self._logged_at) >= LOGGED_ACTIONS_MAX:
            self._logged_at.clear()
        self._logged_at[action_key] = now
        return True

    def write_audit_line(self, principal: str, address: str, action: str, subject: str) -> None:
        """Write a separate audit record before an action that is not a transaction. The action may fail."""
        command = Transact(transaction=self._audit_line_ops(principal, address, action, subject))
        self.replica.propose(encode_command(command), lambda answer: None)

    def _audit_line_ops(
        self, principal: str, address: str, action: str, subject: str
    ) -> Transaction:
        replica = self.replica
        line = AuditLine(self._clock_ms(), principal, address, action, subject)
        return audit_line_ops(replica.state, line, replica.raft.log.last_index + 1)

    def authorization_report(self, link: Link, *, own_only: bool) -> AuthorizationReport:
        """Return the authorization report.

        With ``own_only``, it has only the requester's principal and rights.
        """
        scoped, principal = self.authorizer.restricted_to_token(link.token), link.principal
        report_denials = tuple(
            (who, what, times)
            for (who, what), times in scoped.report_denials.items()
            if not own_only
        )
        state, namespaces = self.replica.state, self.namespace_quotas
        usage_rows = (
            ()
            if own_only or not namespaces.usage.is_counting(state)
            else namespaces.usage_report(state)
        )
        namespaces_used = tuple(
            (
                name,
                use.keys,
                use.size_bytes,
                use.ledgers,
                quota.keys,
                quota.size_bytes,
                quota.ledgers,
            )
            for name, use, quota in usage_rows
        )
        rights = scoped.cluster_rights(principal)
        return AuthorizationReport(
            scoped.mode,
            principal,
            rights,
            report_denials,
            namespaces.usage.is_complete,
            namespaces_used,
        )

    def _reauthorize_watches(self) -> None:
        """Authorize all watches and connections again after a change of rights.

        Those without rights end.
        """
        trust = self.authorizer
        self._watch_rights_version = (trust.revision, trust.rename_count)
        for watches in list(self._watches):
            if not watches.close_if_revoked(trust):
                watches.reauthorize(self.may_read)

    async def _count_namespaces(self) -> None:
        """Count the usage of namespaces in parts, when authorization is used first.

        Each later change is counted when it is applied.
        """
        while True:
            await self._count_wanted.wait()
            self._count_wanted = trio.Event()
            has_more = True
            try:
                while has_more:
                    has_more = self.namespace_quotas.usage.count_some()
                    await trio.sleep(COUNT_PAUSE_S)
            except Exception:
                self._count_wanted.set()  # the next run continues the scan
                raise

    async def _send_snapshot_to(self, snapshot_request: SendSnapshot) -> None:
        replica = self.replica
        wait_s, index = CHECK_INTERVAL_S, snapshot_request.index
        unit = f"the snapshot for metadata node {self.peers.name_of(snapshot_request.peer)}"
        with self.failures.attempt(
            unit
        ) as attempt:  # after a failure too, the core is notified that nothing was sent
            if replica.snapshot is not None and replica.snapshot.index >= snapshot_request.index:
                index = replica.snapshot.index
                wait_s = await self.peers.send_snapshot(
                    replica.raft.term,
                    replica.raft.node_id,
                    snapshot_request,
                    replica.snapshot,
                    replica.storage,
                )
            if wait_s == SNAPSHOT_RETRY_S:
                await replica.verify_snapshot()
        if attempt.failed:
            wait_s = self.failures.retry_delay_s(unit)
        await trio.sleep(wait_s)
        self._snapshot_receivers.pop(snapshot_request.peer, None)
        replica.raft.on_snapshot_sent(snapshot_request.peer, index, not wait_s)
        if wait_s and replica.snapshot is not None:
            # Discard the entries that were kept for that peer. It may need a new snapshot for a long time.
            replica.raft.compact(replica.snapshot.index)
        replica.drain()

    async def _monitor_quorum_disk_space(self) -> None:
        """While this node leads, check which voters are low on disk space.

        Let another node lead if this one is low.
        """
        replica = self.replica
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            self.token_service.time_s()  # because it must follow the wall clock
            if not replica.is_leader:
                replica.disk_space.is_quorum_low = False
                continue
            voters = [v for v in replica.raft.voters if v != replica.raft.node_id]
            voters_with_space, low_count = [], int(replica.disk_space.is_low)
            for voter in voters:
                row = await self.peers.query_status(voter)
                if row is not None and is_disk_low(row.status.conditions):
                    low_count += 1
                elif row is not None:
                    voters_with_space.append(voter)
            replica.disk_space.is_quorum_low = low_count >= majority(len(voters) + 1)
            if (
                replica.disk_space.is_low
                and voters_with_space
                and not replica.disk_space.is_quorum_low
            ):
                replica.raft.transfer_leadership(trio.current_time(), voters_with_space[0])
                replica.drain()
