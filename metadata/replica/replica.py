"""Drive one Raft core and its state: persist, then send, then apply, then answer.

All inputs are synchronous calls. `drain` then executes the actions of the core, whose contract is in
`ready.py`. Heartbeats never wait for the disk. Everything that must be durable first is written by one
task, with one sync for all actions that are pending (H25).
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain
from random import Random

import trio

from ...runtime.interfaces.errors import (
    CommittedEntriesLost,
    DiskFull,
    DistributedLogError,
    NotLeader,
    OutcomeUnknown,
    TooBusy,
    UnsupportedFormat,
)
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.events import LEADER, STATE_DIFFERS
from ..declarations.options import RaftOptions
from ..model.command_results import CommandResult
from ..model.commands import (
    AUTHORIZATION_CHANGE_PREFIX,
    AuthorizationChange,
    ReplicatedCommand,
    Transact,
)
from ..model.configuration import UNKNOWN_CONFIGURATION, Configuration, is_configuration
from ..raft.raft import DurableState, Raft
from ..raft.raft_messages import AppendReply, Entry, Message
from ..raft.ready import Diverged, RaftRole, Ready, SendSnapshot, Snapshot
from ..state import kv_snapshot
from ..state.kv_state import KeyValueState
from ..state.state_digest import ENTRIES_PER_DIGEST, DigestComparison, StateDigestTracker
from ..storage.member_identity import MemberIdentity
from ..storage.metadata_disk_space import CHECK_INTERVAL_S, MetadataDiskSpace
from ..storage.raft_storage import LoadedRaftState, RaftStorage
from .admission_control import NO_TIMEOUT_S, AdmissionControl

log = get_logger("distributedlog.metadata.replica.replica")

SNAPSHOT_BYTES = 32 * 1024 * 1024
"""A snapshot is due when this many bytes were written to the log since the last one.

If half the size of the last snapshot is larger, that size applies.
"""
SNAPSHOT_SIZE_DIVISOR = 2
"""With this divisor, snapshots write at most about two bytes per byte that is written to the log."""
SNAPSHOT_ENTRIES = 500_000
"""A snapshot is also due after this number of applied commands.

A start replays some 100,000 commands per second.
"""
SNAPSHOT_RETRY_S = 2.0
"""Delay until a snapshot that failed for lack of space is tried again.

Also the interval of new snapshots while the disk is low on space, because each one frees space.
"""
DISK_STALL_S = 1.0
"""A write that takes this long means that the disk is unresponsive, and another node should lead.

Half of this time must not have that effect (H25).
"""
LATE_WAKEUP_S = 0.05
"""A timer that fires this late means that the process did not run.

Messages in the sockets are then older than the measured silence.
"""
IDLE_MARK_S = 0.02
FIRST_ELECTION_ADVANCE_S = 0.4
"""The first election timeout is shorter by this time.

No leader is known at a start, and pre-vote prevents harm.
"""

CHANGE_GROWTH_BYTES_MAX = 256
"""While the disk is low on space, a change of existing keys may grow the state by this many bytes.

The deletion of a log needs this, because it first marks the log as being deleted.
"""
REPLIES_PER_REQUEST_MAX = 16
"""Maximum number of copies of one request that wait for its entry. A client sends one per node."""
NO_REQUEST = ("", 0)

OnResult = Callable[[CommandResult | DistributedLogError], None]
"""Receives the outcome of a command once, as a result or an error.

After an error with an unknown outcome, the command may have been applied."""
OnReadable = Callable[[DistributedLogError | None], None]
"""Called once, with None if the state may be read, otherwise with the error."""


@dataclass(slots=True)
class _Proposal:
    term: int
    replies: list[OnResult]
    request_id: tuple[str, int] = NO_REQUEST
    decoded_command: ReplicatedCommand | None = None
    """The decoded command, if the proposer has it."""
    requester: object = None
    """The connection of the request, or None if no client sent it."""
    size_bytes: int = 0
    """Size of a client's command."""


@dataclass(frozen=True, slots=True)
class RestoredNode:
    """The content of a node's data directory, loaded at its start."""

    identity: MemberIdentity
    """The cluster that the directory belongs to."""
    loaded: LoadedRaftState
    """The Raft log and the hard state."""
    state: KeyValueState
    """The replicated state, restored from the newest snapshot."""
    storage: RaftStorage
    disk_space: MetadataDiskSpace
    """The free space of the directory's disk."""


@dataclass(frozen=True, slots=True)
class ReplicaListener:
    """The calls of a replica to its node.

    The replica makes them only from `RaftReplica.drain` and its tasks.
    """

    send: Callable[[str, Message], None]
    """Sends a message to a peer, or drops it if there is no connection."""
    notify_state_differs: Callable[[str, int, int], None]
    """Notifies a peer that its state after an entry has a different digest from that of most members."""
    on_members: Callable[[], None]
    """The members in ``raft.configuration`` have changed."""
    on_applied: Callable[[], None]
    """The state has changed."""
    on_role: Callable[[], None]
    """This node became leader or stepped down."""
    on_late: Callable[[float], None]
    """This node did not run for this number of seconds."""
    on_state_validity: Callable[[], None]
    """`RaftReplica.digests` or ``raft.is_state_valid`` changed: a state is wrong, or correct again."""
    on_log_incomplete: Callable[[], None]
    """A leader counts entries as acknowledged by this node that its log lacks."""
    on_log_complete: Callable[[], Awaitable[None]]
    """Records on disk that the log is complete again (`recovered_hard_state.py`).

    It is awaited before anything else is stored, and again after a `DiskFull`.
    """
    on_snapshot_wanted: Callable[[SendSnapshot], None]
    """A peer lacks entries that are compacted, so it requires a snapshot."""


class RaftReplica:
    """One voter or learner, its replicated state, and the requests that wait for it."""

    def __init__(
        self, node_id: str, restored: RestoredNode, *, options: RaftOptions, rng: Random
    ) -> None:
        """Create a replica. Call `subscribe` before any input."""
        loaded, state, storage = restored.loaded, restored.state, restored.storage
        self.state = state
        self.storage = storage
        self.disk_space = restored.disk_space
        self.raft = Raft(
            node_id,
            DurableState(
                loaded.log,
                loaded.hard_state,
                state.index,
                loaded.recovery_floor,
                loaded.commit_index,
            ),
            options=options,
            random=rng.random,
            now=trio.current_time() - FIRST_ELECTION_ADVANCE_S,
        )
        self.digests = StateDigestTracker()
        self._below_floor = loaded.recovery_floor is not None
        self.snapshot = loaded.snapshot
        """The newest snapshot that is durable here."""
        self.received_snapshot: tuple[Snapshot, KeyValueState] | None = None
        """A leader's snapshot, durable and restored, until the core decides on it."""
        self._listener: ReplicaListener
        self.failed = trio.Event()
        """Set when the node applies nothing more and must end."""
        self._failure: Exception = DistributedLogError()
        self._proposals: dict[int, _Proposal] = {}
        self._admission = AdmissionControl(options.uncommitted_bytes_max)
        self._index_by_request: dict[tuple[str, int], int] = {}
        """Log indexes of clients' requests, by client and request number."""
        self._pending_reads: dict[int, OnReadable] = {}
        self._confirmed_reads: deque[tuple[int, OnReadable]] = deque()
        self._last_read_id = 0
        self._persist_queue: list[Ready] = []
        self._compact_to: Snapshot | None = None
        self._persist_wanted = trio.Event()
        self._persist_started_at: float | None = None
        self._timer = trio.CancelScope()
        self._bytes_written_at_snapshot = storage.bytes_written - storage.log_bytes
        """Approximate bytes that the storage had written when the newest snapshot was started."""
        self._snapshot_wanted = trio.Event()
        self._snapshot_damaged = False
        self._was_leader = False
        self._leader_term = self._leader_start_index = 0
        """The last log index when this node became leader.

        With fewer applied entries, the state is outdated.
        """
        self._authorization_index = 0
        """Log index of the newest authorization change.

        No request is proposed before it is applied, because the change may affect the requester's rights.
        """
        self._logged_leader = ("", 0)
        self._known_configuration = self.raft.configuration

    def subscribe(self, listener: ReplicaListener) -> None:
        """Set the listener. A replica has one."""
        self._listener = listener

    # --- inputs -----------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether this node leads, according to its own state."""
        return self.raft.role is RaftRole.LEADER

    @property
    def has_caught_up(self) -> bool:
        """Whether the node has applied all entries that its log had when it became leader."""
        return self.state.index >= self._leader_start_index

    @property
    def can_authorize(self) -> bool:
        """Whether requests can be authorized by the present state.

        The state of a new leader may lack grants that are in its log.
        """
        return self.has_caught_up and self.state.index >= self._authorization_index

    def authorization_pending_error(self) -> TooBusy:
        """Return the error for a request that must be retried after a pending authorization change."""
        return TooBusy("an authorization change is pending. Retry later")

    def on_message(self, message: Message) -> None:
        """Process a message of a peer. The caller calls `drain` after all messages of a batch."""
        try:
            self.raft.on_message(message, trio.current_time())
        except AssertionError as error:
            self.fail(error)
            raise
        self.fail_if_diverged()
        if isinstance(message, AppendReply) and message.accepted and message.applied_index:
            self._compare_digest(message)

    def _compare_digest(self, message: AppendReply) -> None:
        peer, index, digest = message.sender, message.applied_index, message.state_digest
        if not self.is_leader or message.term != self.raft.term or peer not in self.raft.voters:
            return
        digests, was_wrong = self.digests, peer in self.digests.wrong_peers
        comparison = digests.compare_peer(peer, index, digest, self.raft.voters)
        if comparison is DigestComparison.UNKNOWN or (
            comparison is DigestComparison.SAME and not was_wrong
        ):
            return
        if comparison is DigestComparison.WRONG:
            self._mark_state_wrong(index)
        elif comparison is DigestComparison.PEER_WRONG:
            self._listener.notify_state_differs(peer, index, digests.own_digest(index))
        self._listener.on_state_validity()

    def on_state_differs(self, leader: str, index: int, digest: int) -> None:
        """Process a notice of the leader that most voters had a different state after entry ``index``."""
        if leader == self.raft.leader_id and self.digests.differs(index, digest):
            self._mark_state_wrong(index)
            self._listener.on_state_validity()

    def _mark_state_wrong(self, index: int) -> None:
        """Stop serving clients, because the own state differs from that of the majority."""
        if self.raft.is_state_valid:
            STATE_DIFFERS.emit(
                log,
                "the state of this metadata node after entry %d differs from the majority. It does not"
                " lead until it has received the correct state",
                index,
                entry=index,
            )
            self.raft.set_state_valid(False, trio.current_time())

    def on_connection_closed(self, peer: str) -> None:
        """Report a closed connection to the core immediately."""
        self.raft.on_connection_closed(peer, trio.current_time())
        self.drain()

    def request(
        self,
        command: bytes,
        decoded_command: ReplicatedCommand,
        reply: OnResult,
        *,
        requester: object,
        timeout_s: float = NO_TIMEOUT_S,
    ) -> None:
        """Apply a client's command once, even if it is sent several times (H20).

        A command that was applied before is answered from the state. A repeated command that is pending
        waits for the first one and shares its outcome. If this node loses the leadership, the outcome is
        unknown for all of them.

        Args:
            command: The encoded command.
            decoded_command: The same command, decoded.
            reply: Receives the outcome.
            requester: The connection of the request.
            timeout_s: The timeout of its sender.
        """
        if not self.is_leader:
            reply(self.not_leader_error())
            return
        earlier_result = self.state.earlier_result(decoded_command)
        if earlier_result is not None:
            reply(earlier_result)
            return
        request_id = (decoded_command.client, decoded_command.request_number)
        proposal = self._proposals.get(self._index_by_request.get(request_id, 0))
        if proposal is not None and proposal.term == self.raft.term:
            if len(proposal.replies) < REPLIES_PER_REQUEST_MAX:
                proposal.replies.append(reply)
            else:
                reply(
                    TooBusy(
                        f"request {decoded_command.request_number} of {decoded_command.client} was sent "
                        "too often"
                    )
                )
            return
        if self.state.index < self._authorization_index:
            reply(self.authorization_pending_error())
            return
        leader_state = self.raft.leader_state
        uncommitted_bytes = leader_state.uncommitted_bytes if leader_state is not None else 0
        refusal = self.disk_space.refusal(uncommitted_bytes + len(command))
        if refusal is not None and (self.disk_space.is_full or self._grows_state(decoded_command)):
            reply(refusal)
            return
        now = trio.current_time()
        busy_error = self._admission.refusal(requester, len(command), timeout_s, now)
        if busy_error is not None:
            reply(busy_error)
            return
        index = self.propose(command, reply, request_id, decoded_command)
        if index is not None:
            if isinstance(decoded_command, AuthorizationChange):
                self._authorization_index = index
            new_proposal = self._proposals[index]
            new_proposal.requester, new_proposal.size_bytes = requester, len(command)
            self._admission.on_accepted(requester, len(command), now)

    def is_pending(self, decoded_command: ReplicatedCommand) -> bool:
        """Whether the command was proposed in this term and is not applied.

        A repeated command then waits for it.
        """
        proposal = self._proposals.get(
            self._index_by_request.get((decoded_command.client, decoded_command.request_number), 0)
        )
        return proposal is not None and proposal.term == self.raft.term

    def _grows_state(self, decoded_command: ReplicatedCommand) -> bool:
        if not isinstance(decoded_command, Transact):
            return False
        growth = self.state.growth_bytes(decoded_command.transaction)
        changes = any(
            op.key in self.state.stored_values for op in decoded_command.transaction.operations
        )
        return growth > (CHANGE_GROWTH_BYTES_MAX if changes else 0)

    def propose(
        self,
        command: bytes,
        reply: OnResult,
        request_id: tuple[str, int] = NO_REQUEST,
        decoded_command: ReplicatedCommand | None = None,
    ) -> int | None:
        """Propose a command. Nothing is sent before `drain`.

        Args:
            command: The encoded command.
            reply: Receives the outcome.
            request_id: Client and number of a client's request.
            decoded_command: The decoded command if the caller has it, so that it is decoded once.

        Returns:
            The log index of the command, or None if it was not added to the log.
        """
        try:
            index = self.raft.propose(command)
        except DistributedLogError as error:
            reply(error)
            return None
        except AssertionError as error:
            self.fail(error)
            raise
        if index is None:
            reply(self.not_leader_error())
            return None
        self._proposals[index] = _Proposal(self.raft.term, [reply], request_id, decoded_command)
        if request_id is not NO_REQUEST:
            self._index_by_request[request_id] = index
        return index

    def change_members(self, configuration: Configuration, reply: OnResult) -> None:
        """Propose a new configuration. ``reply`` receives the outcome when it is committed, or the error."""
        try:
            index = self.raft.change_members(configuration, trio.current_time())
        except DistributedLogError as error:
            reply(error)
            return
        except AssertionError as error:
            self.fail(error)
            raise
        if index is None:
            reply(self.not_leader_error())
            return
        self._proposals[index] = _Proposal(self.raft.term, [reply])

    def read_linearizable(self, on_readable: OnReadable) -> None:
        """Call ``on_readable`` when the state is at least as new as this call, after a later quorum round."""
        self._last_read_id += 1
        if self.raft.read_index(self._last_read_id):
            self._pending_reads[self._last_read_id] = on_readable
        else:
            on_readable(self.not_leader_error())

    def not_leader_error(self) -> NotLeader:
        """Return an error with the name of the leader, if it is known."""
        leader = self._name_of(self.raft.leader_id)
        return NotLeader(
            f"this metadata node is not the leader; the leader is {leader or 'unknown'}", leader
        )

    def _name_of(self, node_id: str) -> str:
        member = self.raft.configuration.member(node_id)
        return member.name if member is not None else ""

    # --- output -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Execute the actions of the core that need not wait for the disk.

        The callers are connections and background tasks, which contain exceptions. An exception of the core
        ends the node in any case, because nothing may be acknowledged after it.
        """
        try:
            self._drain()
        except DistributedLogError:
            raise
        except Exception as error:
            self.fail(error)
            raise

    def fail(self, error: Exception) -> None:
        """End the node because of an error of the core, whichever task called the core."""
        if not self.failed.is_set():
            self._failure = error
            self.failed.set()

    def _drain(self) -> None:
        raft = self.raft
        if raft.recovery_floor is not None and not self._below_floor:
            self._below_floor = True
            self._listener.on_log_incomplete()
        while raft.has_ready:
            if self._known_configuration is not raft.configuration:
                self._known_configuration = raft.configuration
                self._listener.on_members()
            ready = raft.ready()
            for peer, message in ready.send_now:
                self._listener.send(peer, message)
            if ready.needs_persist or ready.send_after_persist:
                self._persist_queue.append(ready)
                self._persist_wanted.set()
            if ready.snapshot is not None:
                self._install_snapshot(ready.snapshot)
            if ready.committed:
                self._apply(ready.committed)
            # last, because a leader that removes itself has then applied that change
            if ready.leader_changed:
                self._on_role_changed()
            for request, index in ready.reads:
                self._confirmed_reads.append((index, self._pending_reads.pop(request)))
            for request in ready.reads_lost:
                self._pending_reads.pop(request)(self.not_leader_error())
            for snapshot_request in ready.send_snapshots:
                self._listener.on_snapshot_wanted(snapshot_request)
        while self._confirmed_reads and self._confirmed_reads[0][0] <= self.state.index:
            self._confirmed_reads.popleft()[1](None)
        if raft.deadline < self._timer.deadline:
            self._timer.deadline = raft.deadline

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        if self.failed.is_set():
            return
        now = trio.current_time()
        for entry in entries:
            command = b"" if is_configuration(entry.data) else entry.data
            proposal = self._proposals.pop(entry.index, None)
            # The entry of another term may be another command.
            is_own_proposal = proposal is not None and proposal.term == entry.term
            decoded_command = (
                proposal.decoded_command if is_own_proposal and proposal is not None else None
            )
            try:
                result, _ = self.state.apply(entry.index, command, decoded_command)
            except UnsupportedFormat as error:
                reason = f"entry {entry.index} of the metadata log is {error}: upgrade this node"
                self.fail(UnsupportedFormat(reason))
                return
            if not entry.index % ENTRIES_PER_DIGEST:
                self.digests.record(entry.index, self.state.digest())
            self.disk_space.applied_bytes += len(entry.data) + 64
            if proposal is not None:
                self._index_by_request.pop(proposal.request_id, None)
                if proposal.requester is not None:
                    self._admission.on_applied(proposal.requester, proposal.size_bytes, now)
                for reply in proposal.replies:
                    reply(result if is_own_proposal else self.not_leader_error())
        self.raft.state_digest = self.digests.newest_digest
        self.raft.on_applied(entries[-1].index)
        self._listener.on_applied()
        base = self.snapshot.index if self.snapshot is not None else 0
        entries_fraction = (self.state.index - base) / SNAPSHOT_ENTRIES
        bytes_max = max(SNAPSHOT_BYTES, self.disk_space.snapshot_bytes // SNAPSHOT_SIZE_DIVISOR)
        bytes_fraction = (self.storage.bytes_written - self._bytes_written_at_snapshot) / min(
            bytes_max, self.disk_space.log_bytes_max
        )
        due_fraction = max(entries_fraction, bytes_fraction)
        if due_fraction >= 1 and due_fraction >= self._snapshot_threshold():
            self._snapshot_wanted.set()

    def _snapshot_threshold(self) -> float:
        """Return a factor from 1 to 1.5 that differs between members.

        It prevents that all members write snapshots at the same time.
        """
        if self.is_leader:
            return 1.5
        voters = self.raft.voters
        rank = voters.index(self.raft.node_id) if self.raft.node_id in voters else 0
        return 1 + rank / (2 * max(1, len(voters)))

    def _install_snapshot(self, snapshot: Snapshot) -> None:
        assert self.received_snapshot is not None, "a snapshot is installed after it was received"
        assert self.received_snapshot[0] == snapshot, f"{snapshot} is not the one received"
        self.state = self.received_snapshot[1]
        self.snapshot = snapshot
        self.received_snapshot = None
        self.digests.reset()
        self.raft.state_digest = self.digests.newest_digest
        self.raft.set_state_valid(True, trio.current_time())
        self._listener.on_state_validity()
        self.raft.on_applied(snapshot.index)
        self._listener.on_applied()

    def _on_role_changed(self) -> None:
        if not self.is_leader:
            proposals, self._proposals = self._proposals, {}
            self._index_by_request.clear()
            self._admission.clear()
            # not NotLeader, because the next leader may commit it
            for proposal in proposals.values():
                for reply in proposal.replies:
                    reply(
                        OutcomeUnknown(
                            "this metadata node lost the leadership before the command was applied"
                        )
                    )
        if self.is_leader and self._leader_term != self.raft.term:
            self._leader_term, self._leader_start_index = self.raft.term, self.raft.log.last_index
            self._authorization_index = (
                self._leader_start_index if self._is_authorization_used() else 0
            )
        self._log_leader()
        if self._was_leader != self.is_leader:
            self._was_leader = self.is_leader
            self.digests.on_role()
            self._listener.on_state_validity()
            self._listener.on_role()

    def _is_authorization_used(self) -> bool:
        """Whether requests are checked now, or will be after entries that are not applied yet."""
        if self.state.authorization_revision:
            return True
        tail = self.raft.log.entries_from(self.state.index + 1)
        return any(entry.data.startswith(AUTHORIZATION_CHANGE_PREFIX) for entry in tail)

    def _log_leader(self) -> None:
        """Log a change of the leader. Terms without a leader are not logged."""
        raft = self.raft
        leader = raft.node_id if self.is_leader else raft.leader_id
        if (leader, raft.term) == self._logged_leader:
            return
        if not leader and self._logged_leader[0] != raft.node_id:
            return  # no leader, or an election: only the outcome is logged
        self._logged_leader = (leader, raft.term)
        name = self._name_of(leader) or leader[:8]
        if self.is_leader:
            text = f"this metadata node {name} leads in term {raft.term}"
        elif leader:
            text = f"metadata node {name} leads in term {raft.term}: following"
        else:
            text = f"this metadata node stepped down in term {raft.term}"
        LEADER.emit(log, "%s", text, leader=name, term=raft.term, own=self.is_leader)

    # --- tasks ------------------------------------------------------------------------------------

    async def persist(self) -> None:
        """Persist the pending actions of the core with one sync, then send their messages."""
        while True:
            if self._below_floor and self.raft.recovery_floor is None:
                await self._clear_recovery_floor()
            if not self._persist_queue and self._compact_to is None:
                self._persist_wanted = trio.Event()
                with trio.move_on_after(IDLE_MARK_S):
                    await self._persist_wanted.wait()
                if not self._persist_wanted.is_set():
                    await self.storage.write_watermark(self.raft.commit)
                    await self._persist_wanted.wait()
            batch, self._persist_queue = self._persist_queue, []
            if batch:
                self._persist_started_at = trio.current_time()
                await self._save_batch(batch)
                self._persist_started_at = None
                for ready in batch:
                    for peer, message in ready.send_after_persist:
                        self._listener.send(peer, message)
                now = trio.current_time()
                self.raft.on_persisted(batch[-1].ready_number, now)
                self.raft.on_disk_stalled(False, now)
                self.drain()
            if self._compact_to is not None:
                await self._compact_log()

    async def _clear_recovery_floor(self) -> None:
        """Record that the log is complete again.

        If the disk is full, this is retried with the next write. A start before that also finds a complete
        log.
        """
        while self._below_floor:
            try:
                await self._listener.on_log_complete()
                self._below_floor = False
            except DiskFull:
                if not await self.disk_space.free_reserve():
                    return

    async def _save_batch(self, batch: list[Ready]) -> None:
        """Save a batch, and return when it is durable.

        This may take long on a full disk. Nothing is sent or counted before.
        """
        while True:
            try:
                await self.storage.save(batch)
            except DiskFull as error:
                batch = []  # the storage keeps its operations
                if not await self.disk_space.on_full(error):
                    await self._compact_log()
                    await trio.sleep(CHECK_INTERVAL_S)
            else:
                self.disk_space.on_written()
                return

    async def _compact_log(self) -> None:
        if self._compact_to is not None:
            snapshot, self._compact_to = self._compact_to, None
            await self.storage.compact(snapshot)
            self.raft.compact(snapshot.index)
            self.drain()

    def fail_if_diverged(self) -> None:
        """End the node if the log diverged. Called after each input that may contain a leader's entries."""
        divergence = self.raft.diverged
        if divergence is not None:
            self.fail(CommittedEntriesLost(_describe_divergence(divergence, self._name_of)))

    async def raise_failure(self) -> None:
        """Wait until the node fails, and raise its error.

        Raises:
            UnsupportedFormat: The log has a command that this version does not support.
            CommittedEntriesLost: The quorum has lost entries that this node has.
            Exception: Another error of the core.
        """
        await self.failed.wait()
        raise self._failure

    async def run_clock(self) -> None:
        """Call the core at its deadlines."""
        while True:
            with trio.CancelScope(deadline=self.raft.deadline) as self._timer:
                await trio.sleep_forever()
            now = trio.current_time()
            late_s = now - self._timer.deadline
            if late_s > LATE_WAKEUP_S:
                await trio.lowlevel.checkpoint()  # First process the messages in the sockets,
                await trio.lowlevel.checkpoint()
                self.raft.on_late(late_s, trio.current_time())  # then evaluate the silence.
                self._listener.on_late(late_s)
            if (
                self._persist_started_at is not None
                and now - self._persist_started_at > DISK_STALL_S
            ):
                self.raft.on_disk_stalled(True, now)
            self.raft.on_time(trio.current_time())
            self.drain()

    async def monitor_disk_space(self) -> None:
        """Check the free disk space, until cancelled."""
        taken_at = trio.current_time()
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            await self.disk_space.check_and_restore_reserve()
            has_new_entries = self.state.index > (
                self.snapshot.index if self.snapshot is not None else 0
            )
            if has_new_entries:
                needs_snapshot = self.disk_space.is_low or self.disk_space.snapshot_failed
                if needs_snapshot and trio.current_time() - taken_at >= SNAPSHOT_RETRY_S:
                    taken_at = trio.current_time()
                    self._snapshot_wanted.set()
            elif not self._snapshot_damaged:
                # This node's snapshot may have failed while a newer one from the leader was installed.
                self.disk_space.on_snapshot_current()

    async def verify_snapshot(self) -> None:
        """Verify the newest snapshot after a peer could not install it.

        If its file is damaged, write the state again.
        """
        suspected = self.snapshot
        if suspected is None or await self.storage.snapshots.is_sound(suspected):
            return
        if suspected == self.snapshot:  # otherwise its file was deleted during the check
            log.warning(
                "the snapshot at entry %d is damaged on this node. It is written again",
                suspected.index,
            )
            self._snapshot_damaged = True
            self._snapshot_wanted.set()

    async def take_snapshots(self) -> None:
        """Write a snapshot when one is due, then discard the log up to it."""
        while True:
            await self._snapshot_wanted.wait()
            self._snapshot_wanted = trio.Event()
            self._bytes_written_at_snapshot = self.storage.bytes_written
            replaces_damaged = self._snapshot_damaged
            index = self.state.index
            term = self.raft.log.term_at(index)
            is_current = self.snapshot is not None and self.snapshot.index >= index
            if term is None or (is_current and not replaces_damaged):
                continue  # without a term, a newer snapshot of the leader is about to be installed
            members = self.raft.log.configuration_at(index)
            if members == UNKNOWN_CONFIGURATION:
                continue  # a new member that has not read the configuration yet
            snapshot, applied_bytes = Snapshot(index, term, members), self.disk_space.applied_bytes
            try:
                chunks = chain([members.encode()], kv_snapshot.snapshot_chunks(self.state))
                await self.storage.snapshots.save(snapshot, chunks, replace=replaces_damaged)
            except DiskFull as error:  # a warning only, because the log contains all entries
                if not await self.disk_space.on_snapshot_failed(error):
                    await trio.sleep(SNAPSHOT_RETRY_S)
                self._snapshot_wanted.set()
                continue
            except Exception:
                self._snapshot_wanted.set()  # for the restart of this task
                raise
            if replaces_damaged:
                self._snapshot_damaged = False
            await self.disk_space.on_snapshot(applied_bytes)
            if self.snapshot is None or self.snapshot.index < index:
                self.snapshot = snapshot
                self._compact_to = snapshot
                self._persist_wanted.set()
            else:  # A leader's snapshot is newer. This one stays until the next, and frees no space.
                self.storage.snapshots.reclaimable_bytes = 0


def _describe_divergence(divergence: Diverged, name_of: Callable[[str], str]) -> str:
    leader = name_of(divergence.leader_id) or divergence.leader_id[:8]
    return (
        f"metadata node {leader} leads in term {divergence.term} without entry {divergence.index}, which "
        "is committed."
        f" This node has all entries up to {divergence.commit}; most other nodes run on older"
        " copies of their data directories. Nothing was changed here. Copy this directory and stop all"
        " metadata nodes. To keep the entries, restore the newest directories of the other nodes, or run"
        ' "dlog metadata force-new-cluster --data DIR" on this one. To lose the entries, start this node on'
        ' an empty directory and run "dlog metadata replace"'
    )
