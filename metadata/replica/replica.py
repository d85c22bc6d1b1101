"""Drives one Raft core and its state: persist, then send, then apply, then answer.

All inputs are calls without an await; `drain` then carries out what the core wants done (its contract is
in `ready.py`). Heartbeats never wait for the disk: what must be durable first goes through one task, with one
sync for all that gathered (H25).
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
from .admission_control import NEVER_S, AdmissionControl

log = get_logger("distributedlog.metadata.replica.replica")

SNAPSHOT_BYTES = 32 * 1024 * 1024
"""Take a snapshot when so much was written to the log since the last one, …"""
SNAPSHOT_SIZE_DIVISOR = 2
"""… and half of what the last one had: so a state is written at most twice while it is put in once …"""
SNAPSHOT_ENTRIES = 500_000
"""… or when so many commands were applied: a start does some 100,000 of them a second again."""
SNAPSHOT_RETRY_S = 2.0
"""A snapshot that there was no room for is tried again after so long; where the disk is short, a new one is
taken so often, for the room that it gives back."""
DISK_STALL_S = 1.0
"""A write under way for so long: this disk hangs, somebody else should lead. Half of it must not (H25)."""
LATE_WAKEUP_S = 0.05
"""A clock that wakes this late was not run: what lies in the sockets is older than our silence."""
IDLE_MARK_S = 0.02
FIRST_ELECTION_ADVANCE_S = 0.4
"""The first wait for a leader is shorter by this: nobody is heard at a start, and pre-vote forbids harm."""

CHANGE_GROWTH_BYTES_MAX = 256
"""Bytes by which the change of what is there may make it larger, where there is no room: a log that is being
deleted says so first."""
REPLIES_PER_REQUEST_MAX = 16
"""So many sendings of one request wait for its one entry; a client has one a node."""
NO_REQUEST = ("", 0)

OnResult = Callable[[CommandResult | DistributedLogError], None]
"""Told once what became of a command: the state's answer, or why it was (perhaps) never applied."""
OnReadable = Callable[[DistributedLogError | None], None]
"""Called once: None, and the state may be read; or why it may not."""


@dataclass(slots=True)
class _Proposal:
    term: int
    replies: list[OnResult]
    request_id: tuple[str, int] = NO_REQUEST
    decoded_command: ReplicatedCommand | None = None
    """What the command says, where that is known already."""
    requester: object = None
    """For whom it was taken; None: not for a client."""
    size_bytes: int = 0
    """Of a client's command, bytes."""


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
    """The calls of a replica to the node around it. It makes them from `RaftReplica.drain` and its tasks
    only."""

    send: Callable[[str, Message], None]
    """Sends a message to a peer, or drops it if there is no connection."""
    notify_state_differs: Callable[[str, int, int], None]
    """Notifies a peer that its state after an entry has another digest than that of most members."""
    on_members: Callable[[], None]
    """Other members count: ``raft.configuration`` has changed."""
    on_applied: Callable[[], None]
    """The state has changed."""
    on_role: Callable[[], None]
    """This node begins or ends to lead."""
    on_late: Callable[[float], None]
    """This node was not run for so many seconds."""
    on_state_validity: Callable[[], None]
    """`RaftReplica.digests` or ``raft.may_serve`` has changed: a node's state is wrong, or is right again."""
    on_log_incomplete: Callable[[], None]
    """A leader has this node's word for entries that it lacks."""
    on_log_complete: Callable[[], Awaitable[None]]
    """Stores that the log is no less than it ever was (`recovered_hard_state.py`). It is awaited before more
    is stored, and again after a `DiskFull`."""
    on_snapshot_wanted: Callable[[SendSnapshot], None]
    """A peer lacks entries that are compacted: it needs a snapshot."""


class RaftReplica:
    """One voter (or a learner), its replicated state, and who waits for what."""

    def __init__(
        self, node_id: str, restored: RestoredNode, *, options: RaftOptions, rng: Random
    ) -> None:
        """`subscribe` follows before any input."""
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
        """The newest one that is durable here."""
        self.received_snapshot: tuple[Snapshot, KeyValueState] | None = None
        """A leader's snapshot, durable and restored, until the core says what to do with it."""
        self._listener: ReplicaListener
        self.failed = trio.Event()
        """Nothing is applied any more: this node must end."""
        self._failure: Exception = DistributedLogError()
        self._proposals: dict[int, _Proposal] = {}
        self._admission = AdmissionControl(options.uncommitted_bytes_max)
        self._index_by_request: dict[tuple[str, int], int] = {}
        """The proposals of clients' requests, by client and number."""
        self._pending_reads: dict[int, OnReadable] = {}
        self._confirmed_reads: deque[tuple[int, OnReadable]] = deque()
        self._last_read_id = 0
        self._persist_queue: list[Ready] = []
        self._compact_to: Snapshot | None = None
        self._persist_wanted = trio.Event()
        self._persist_started_at: float | None = None
        self._timer = trio.CancelScope()
        self._bytes_written_at_snapshot = storage.bytes_written - storage.log_bytes
        """What the storage had written when the newest snapshot was begun, about."""
        self._snapshot_wanted = trio.Event()
        self._snapshot_damaged = False
        self._was_leader = False
        self._leader_term = self._leader_start_index = 0
        """How far its log went when it came to lead: less is a state of before."""
        self._authorization_index = 0
        """Before that is applied no request is proposed: by whom it is may count."""
        self._logged_leader = ("", 0)
        self._known_configuration = self.raft.configuration

    def subscribe(self, listener: ReplicaListener) -> None:
        """Call ``listener`` from now on. A replica has one."""
        self._listener = listener

    # --- inputs -----------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Does this node lead, as far as it knows?"""
        return self.raft.role is RaftRole.LEADER

    @property
    def has_caught_up(self) -> bool:
        """Has it applied all that was in its log when it came to lead?"""
        return self.state.index >= self._leader_start_index

    @property
    def can_authorize(self) -> bool:
        """Is its state what a request is judged by? A new leader's may be one of before what was granted."""
        return self.has_caught_up and self.state.index >= self._authorization_index

    def authorization_pending_error(self) -> TooBusy:
        """What is asked for meanwhile is asked for again."""
        return TooBusy("who may do what is being changed, or is just read by a new leader")

    def on_message(self, message: Message) -> None:
        """A peer's message; `drain` follows when all of its batch are in."""
        try:
            self.raft.on_message(message, trio.current_time())
        except AssertionError as error:
            self.fail(error)
            raise
        self.fail_if_diverged()
        if isinstance(message, AppendReply) and message.accepted and message.applied_index:
            self._compare_digest(message)

    def _compare_digest(self, message: AppendReply) -> None:
        """A follower says what its state was after an entry."""
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
        """The leader, and most voters with it, had another state after entry ``index``."""
        if leader == self.raft.leader_id and self.digests.differs(index, digest):
            self._mark_state_wrong(index)
            self._listener.on_state_validity()

    def _mark_state_wrong(self, index: int) -> None:
        """This node's state is not what most others have: it serves nobody with it."""
        if self.raft.is_state_valid:
            STATE_DIFFERS.emit(
                log,
                "the state of this metadata node after entry %d is not what most others have: it leads"
                " no more, until it has theirs",
                index,
                entry=index,
            )
            self.raft.set_state_valid(False, trio.current_time())

    def on_connection_closed(self, peer: str) -> None:
        """A closed connection is news at once."""
        self.raft.on_connection_closed(peer, trio.current_time())
        self.drain()

    def request(
        self,
        command: bytes,
        decoded_command: ReplicatedCommand,
        reply: OnResult,
        *,
        requester: object,
        timeout_s: float = NEVER_S,
    ) -> None:
        """Have a client's command applied once, however often it is sent; ``reply`` is told (H20).

        ``asker``: the connection it came on. ``within_s``: for so long its sender waits.
        One that was done is answered from the state; one that is under way is waited for, and shares its
        fate: lost with this leadership, it is unknown to all who asked.
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
                        f"request {decoded_command.request_number} of {decoded_command.client} is asked "
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
        """Was it taken in this term, and is not done yet? Then whoever sends it again waits for it."""
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
        """Have a command applied; ``reply`` is told. Nothing is sent before `drain`.

        ``meant``: the command decoded, where it is, so that it is decoded once. Returns its place in the
        log, None where it has none.
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
        """Have other members; ``reply`` is told when that is committed, or why not."""
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
        """Call ``read`` when the state is at least as new as now, by a quorum round that begins later."""
        self._last_read_id += 1
        if self.raft.read_index(self._last_read_id):
            self._pending_reads[self._last_read_id] = on_readable
        else:
            on_readable(self.not_leader_error())

    def not_leader_error(self) -> NotLeader:
        """Says where the leader is, as far as it is known."""
        leader = self._name_of(self.raft.leader_id)
        return NotLeader(f"this metadata node does not lead; {leader or 'nobody'} does", leader)

    def _name_of(self, node_id: str) -> str:
        member = self.raft.configuration.member(node_id)
        return member.name if member is not None else ""

    # --- output -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Carry out what the core wants done, as far as it does not wait for the disk.

        Its callers are connections and background work, which contain exceptions. An exception of the core
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
        """End the node because of an error of the core, whichever task has called the core."""
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
            if ready.leader_changed:  # after that: a leader that removed itself has done so
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
            # Of another term it may be another command.
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
        """1 to 1.5, another one for each member: they do not all write a snapshot at one moment."""
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
            for proposal in proposals.values():  # not NotLeader: the next leader may commit it
                for reply in proposal.replies:
                    reply(OutcomeUnknown("this metadata node led no longer before it was done"))
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
        """Is anything judged here, or will be by what is in the log and was not applied yet?"""
        if self.state.authorization_revision:
            return True
        tail = self.raft.log.entries_from(self.state.index + 1)
        return any(entry.data.startswith(AUTHORIZATION_CHANGE_PREFIX) for entry in tail)

    def _log_leader(self) -> None:
        """Log whom this node follows, once a change: terms in which nobody comes to lead say nothing."""
        raft = self.raft
        leader = raft.node_id if self.is_leader else raft.leader_id
        if (leader, raft.term) == self._logged_leader:
            return
        if not leader and self._logged_leader[0] != raft.node_id:
            return  # silence, or an election: what comes of it is told
        self._logged_leader = (leader, raft.term)
        name = self._name_of(leader) or leader[:8]
        if self.is_leader:
            text = f"this metadata node {name} leads in term {raft.term}"
        elif leader:
            text = f"metadata node {name} leads in term {raft.term}: following"
        else:
            text = f"this metadata node leads no more, in term {raft.term}"
        LEADER.emit(log, "%s", text, leader=name, term=raft.term, own=self.is_leader)

    # --- tasks ------------------------------------------------------------------------------------

    async def persist(self) -> None:
        """Make durable what the core asked for, one sync for all that gathered; then send and report."""
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
        """Have it said; on a full disk with the next write: a start before that finds the log whole, too."""
        while self._below_floor:
            try:
                await self._listener.on_log_complete()
                self._below_floor = False
            except DiskFull:
                if not await self.disk_space.free_reserve():
                    return

    async def _save_batch(self, batch: list[Ready]) -> None:
        """Returns when it is durable. On a full disk that may be late: nothing is sent or counted before."""
        while True:
            try:
                await self.storage.save(batch)
            except DiskFull as error:
                batch = []  # the storage has it
                if not await self.disk_space.on_full(error):
                    await self._compact_log()
                    await trio.sleep(CHECK_INTERVAL_S)
            else:
                self.disk_space.on_written()
                return

    async def _compact_log(self) -> None:
        """Forget the log up to a snapshot, if there is a new one."""
        if self._compact_to is not None:
            snapshot, self._compact_to = self._compact_to, None
            await self.storage.compact(snapshot)
            self.raft.compact(snapshot.index)
            self.drain()

    def fail_if_diverged(self) -> None:
        """Called after each input that may bring a leader's entries."""
        divergence = self.raft.diverged
        if divergence is not None:
            self.fail(CommittedEntriesLost(_describe_divergence(divergence, self._name_of)))

    async def raise_failure(self) -> None:
        """Raise the error that ends this node: one of the core, in whichever task it was raised, or another.

        Raises `UnsupportedFormat` when the log has a command that this version does not know.

        Raises `CommittedEntriesLost` when the quorum has lost entries that this node has.
        """
        await self.failed.wait()
        raise self._failure

    async def run_clock(self) -> None:
        """Wake the core at its deadlines."""
        while True:
            with trio.CancelScope(deadline=self.raft.deadline) as self._timer:
                await trio.sleep_forever()
            now = trio.current_time()
            late_s = now - self._timer.deadline
            if late_s > LATE_WAKEUP_S:
                await trio.lowlevel.checkpoint()  # first what lies in the sockets …
                await trio.lowlevel.checkpoint()
                self.raft.on_late(late_s, trio.current_time())  # … then what the silence means
                self._listener.on_late(late_s)
            if (
                self._persist_started_at is not None
                and now - self._persist_started_at > DISK_STALL_S
            ):
                self.raft.on_disk_stalled(True, now)
            self.raft.on_time(trio.current_time())
            self.drain()

    async def monitor_disk_space(self) -> None:
        """Look at the disk's free space, until cancelled."""
        taken_at = trio.current_time()
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            await self.disk_space.check_and_restore_reserve()
            has_new_entries = self.state.index > (
                self.snapshot.index if self.snapshot is not None else 0
            )
            if (
                self.disk_space.is_low
                and has_new_entries
                and trio.current_time() - taken_at >= SNAPSHOT_RETRY_S
            ):
                taken_at = trio.current_time()
                self._snapshot_wanted.set()

    async def verify_snapshot(self) -> None:
        """A peer could not take the newest one: where its file is damaged, the state is written again."""
        suspected = self.snapshot
        if suspected is None or await self.storage.snapshots.is_sound(suspected):
            return
        if suspected == self.snapshot:  # else its file has gone meanwhile
            log.warning(
                "the snapshot at entry %d is damaged here: it is made anew", suspected.index
            )
            self._snapshot_damaged = True
            self._snapshot_wanted.set()

    async def take_snapshots(self) -> None:
        """Write the state aside when enough was applied, then forget the log up to there."""
        while True:
            await self._snapshot_wanted.wait()
            self._snapshot_wanted = trio.Event()
            self._bytes_written_at_snapshot = self.storage.bytes_written
            replaces_damaged, self._snapshot_damaged = self._snapshot_damaged, False
            index = self.state.index
            term = self.raft.log.term_at(index)
            is_current = self.snapshot is not None and self.snapshot.index >= index
            if term is None or (is_current and not replaces_damaged):
                continue
            members = self.raft.log.configuration_at(index)
            if members == UNKNOWN_CONFIGURATION:
                continue  # let in just now, and has not read yet who the members are
            snapshot, applied_bytes = Snapshot(index, term, members), self.disk_space.applied_bytes
            try:
                chunks = chain([members.encode()], kv_snapshot.snapshot_chunks(self.state))
                await self.storage.snapshots.save(snapshot, chunks, replace=replaces_damaged)
            except DiskFull as error:  # an alarm, no end: the log has it all
                self._snapshot_damaged = replaces_damaged
                if not await self.disk_space.on_snapshot_failed(error):
                    await trio.sleep(SNAPSHOT_RETRY_S)
                self._snapshot_wanted.set()
                continue
            except Exception:
                self._snapshot_damaged = replaces_damaged
                self._snapshot_wanted.set()  # when this is run again
                raise
            await self.disk_space.on_snapshot(applied_bytes)
            if self.snapshot is None or self.snapshot.index < index:
                self.snapshot = snapshot
                self._compact_to = snapshot
                self._persist_wanted.set()
            else:  # a leader's is newer: this one lies here until the next
                self.storage.snapshots.reclaimable_bytes = 0


def _describe_divergence(divergence: Diverged, name_of: Callable[[str], str]) -> str:
    leader = name_of(divergence.leader_id) or divergence.leader_id[:8]
    return (
        f"metadata node {leader} leads in term {divergence.term} without entry {divergence.index}, which "
        "is committed."
        f" This node has all entries up to {divergence.commit}; most others run on older copies of their data"
        " directories. Nothing was changed here. Copy this directory and stop all metadata nodes. To keep the"
        " entries, put the newest directories of the others back, or run"
        ' "dlog metadata force-new-cluster --data DIR" on this one. To give them up, start this node on an'
        ' empty directory and run "dlog metadata replace"'
    )
