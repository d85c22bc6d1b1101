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
from ..model.commands import TRUST_BEGINS, ReplicatedCommand, Transact, TrustChange
from ..model.configuration import UNKNOWN, Configuration, is_configuration
from ..raft.raft import DurableState, Raft
from ..raft.raft_messages import AppendReply, Entry, Message
from ..raft.ready import Diverged, RaftRole, Ready, SendSnapshot, Snapshot
from ..state import kv_snapshot
from ..state.kv_state import KeyValueState
from ..state.state_digest import EVERY, DigestComparison, StateDigestTracker
from ..storage.member_identity import MemberIdentity
from ..storage.metadata_disk_space import LOOK_S, MetadataDiskSpace
from ..storage.raft_storage import Loaded, RaftStorage
from .admission_control import NEVER_S, AdmissionControl

log = get_logger("distributedlog.metadata.replica.replica")

SNAPSHOT_BYTES = 32 * 1024 * 1024
"""Take a snapshot when so much was written to the log since the last one, …"""
SNAPSHOT_PART = 2
"""… and half of what the last one had: so a state is written at most twice while it is put in once …"""
SNAPSHOT_ENTRIES = 500_000
"""… or when so many commands were applied: a start does some 100,000 of them a second again."""
SNAPSHOT_AGAIN_S = 2.0
"""A snapshot that there was no room for is tried again after so long; where the disk is short, a new one is
taken so often, for the room that it gives back."""
STALL_S = 1.0
"""A write under way for so long: this disk hangs, somebody else should lead. Half of it must not (H25)."""
LATE_S = 0.05
"""A clock that wakes this late was not run: what lies in the sockets is older than our silence."""
IDLE_MARK_S = 0.02
START_HURRY_S = 0.4
"""The first wait for a leader is shorter by this: nobody is heard at a start, and pre-vote forbids harm."""

GROWTH_OF_A_CHANGE = 256
"""Bytes by which the change of what is there may make it larger, where there is no room: a log that is being
deleted says so first."""
ASKERS_MAX = 16
"""So many sendings of one request wait for its one entry; a client has one a node."""
NOBODY = ("", 0)

Reply = Callable[[CommandResult | DistributedLogError], None]
"""Told once what became of a command: the state's answer, or why it was (perhaps) never applied."""
Read = Callable[[DistributedLogError | None], None]
"""Called once: None, and the state may be read; or why it may not."""


@dataclass(slots=True)
class _Proposal:
    term: int
    replies: list[Reply]
    request: tuple[str, int] = NOBODY
    meant: ReplicatedCommand | None = None
    """What the command says, where that is known already."""
    asker: object = None
    """For whom it was taken; None: not for a client."""
    size: int = 0
    """Of a client's command, bytes."""


@dataclass(frozen=True, slots=True)
class RestoredNode:
    """The content of a node's data directory, loaded at its start."""

    members: MemberIdentity
    """The cluster that the directory belongs to."""
    loaded: Loaded
    """The Raft log and the hard state."""
    state: KeyValueState
    """The replicated state, restored from the newest snapshot."""
    storage: RaftStorage
    room: MetadataDiskSpace
    """The free space of the directory's disk."""


@dataclass(frozen=True, slots=True)
class ReplicaListener:
    """The calls of a replica to the node around it. It makes them from `RaftReplica.drain` and its tasks
    only."""

    send: Callable[[str, Message], None]
    """Sends a message to a peer, or drops it if there is no connection."""
    tell_wrong: Callable[[str, int, int], None]
    """Notifies a peer that its state after an entry has another digest than that of most members."""
    on_members: Callable[[], None]
    """Other members count: ``raft.configuration`` has changed."""
    on_applied: Callable[[], None]
    """The state has changed."""
    on_role: Callable[[], None]
    """This node begins or ends to lead."""
    on_late: Callable[[float], None]
    """This node was not run for so many seconds."""
    on_state: Callable[[], None]
    """`RaftReplica.digests` or ``raft.may_serve`` has changed: a node's state is wrong, or is right again."""
    on_less: Callable[[], None]
    """A leader has this node's word for entries that it lacks."""
    on_whole: Callable[[], Awaitable[None]]
    """Stores that the log is no less than it ever was (`recovered_hard_state.py`). It is awaited before more
    is stored, and again after a `DiskFull`."""
    on_snapshot_wanted: Callable[[SendSnapshot], None]
    """A peer lacks entries that are compacted: it needs a snapshot."""


class RaftReplica:
    """One voter (or a learner), its replicated state, and who waits for what."""

    def __init__(
        self, node_id: str, restored: RestoredNode, *, options: RaftOptions, chance: Random
    ) -> None:
        """`subscribe` follows before any input."""
        loaded, state, storage = restored.loaded, restored.state, restored.storage
        self.state = state
        self.storage = storage
        self.room = restored.room
        self.raft = Raft(
            node_id,
            DurableState(
                loaded.log, loaded.hard_state, state.index, loaded.ghost, loaded.committed
            ),
            options=options,
            draw=chance.random,
            now=trio.current_time() - START_HURRY_S,
        )
        self.digests = StateDigestTracker()
        self._haunted = loaded.ghost is not None
        self.snapshot = loaded.snapshot
        """The newest one that is durable here."""
        self.received: tuple[Snapshot, KeyValueState] | None = None
        """A leader's snapshot, durable and restored, until the core says what to do with it."""
        self._listener: ReplicaListener
        self.ended = trio.Event()
        """Nothing is applied any more: this node must end."""
        self._why_ended: Exception = DistributedLogError()
        self._proposals: dict[int, _Proposal] = {}
        self._intake = AdmissionControl(options.uncommitted_bytes_max)
        self._by_request: dict[tuple[str, int], int] = {}
        """The proposals of clients' requests, by client and number."""
        self._reads: dict[int, Read] = {}
        self._ripe: deque[tuple[int, Read]] = deque()
        self._last_read = 0
        self._queue: list[Ready] = []
        self._compact: Snapshot | None = None
        self._queued = trio.Event()
        self._persist_since: float | None = None
        self._clock = trio.CancelScope()
        self._snapshot_at = storage.bytes_written - storage.log_bytes
        """What the storage had written when the newest snapshot was begun, about."""
        self._snapshot_wanted = trio.Event()
        self._snapshot_damaged = False
        self._leads = False
        self._led_term = self._led_from = 0
        """How far its log went when it came to lead: less is a state of before."""
        self._judged_from = 0
        """Before that is applied no request is proposed: by whom it is may count."""
        self._told_leader = ("", 0)
        self._members = self.raft.configuration

    def subscribe(self, listener: ReplicaListener) -> None:
        """Call ``listener`` from now on. A replica has one."""
        self._listener = listener

    # --- inputs -----------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Does this node lead, as far as it knows?"""
        return self.raft.role is RaftRole.LEADER

    @property
    def caught_up(self) -> bool:
        """Has it applied all that was in its log when it came to lead?"""
        return self.state.index >= self._led_from

    @property
    def may_refuse(self) -> bool:
        """Is its state what a request is judged by? A new leader's may be one of before what was granted."""
        return self.caught_up and self.state.index >= self._judged_from

    def not_judged_yet(self) -> TooBusy:
        """What is asked for meanwhile is asked for again."""
        return TooBusy("who may do what is being changed, or is just read by a new leader")

    def on_message(self, message: Message) -> None:
        """A peer's message; `drain` follows when all of its batch are in."""
        try:
            self.raft.on_message(message, trio.current_time())
        except AssertionError as error:
            self.end(error)
            raise
        self.end_if_diverged()
        if isinstance(message, AppendReply) and message.accepted and message.applied_index:
            self._compare(message)

    def _compare(self, message: AppendReply) -> None:
        """A follower says what its state was after an entry."""
        peer, index, digest = message.sender, message.applied_index, message.state_digest
        if not self.leads or message.term != self.raft.term or peer not in self.raft.voters:
            return
        digests, was_wrong = self.digests, peer in self.digests.wrong
        verdict = digests.on_said(peer, index, digest, self.raft.voters)
        if verdict is DigestComparison.UNKNOWN or (
            verdict is DigestComparison.SAME and not was_wrong
        ):
            return
        if verdict is DigestComparison.WRONG:
            self._be_wrong(index)
        elif verdict is DigestComparison.PEER_WRONG:
            self._listener.tell_wrong(peer, index, digests.own(index))
        self._listener.on_state()

    def on_differs(self, leader: str, index: int, digest: int) -> None:
        """The leader, and most voters with it, had another state after entry ``index``."""
        if leader == self.raft.leader_id and self.digests.is_other(index, digest):
            self._be_wrong(index)
            self._listener.on_state()

    def _be_wrong(self, index: int) -> None:
        """This node's state is not what most others have: it serves nobody with it."""
        if self.raft.may_serve:
            STATE_DIFFERS.say(
                log,
                "the state of this metadata node after entry %d is not what most others have: it leads"
                " no more, until it has theirs",
                index,
                entry=index,
            )
            self.raft.mind_state(False, trio.current_time())

    def on_connection_closed(self, peer: str) -> None:
        """A closed connection is news at once."""
        self.raft.on_connection_closed(peer, trio.current_time())
        self.drain()

    def request(
        self,
        command: bytes,
        meant: ReplicatedCommand,
        reply: Reply,
        *,
        asker: object,
        within_s: float = NEVER_S,
    ) -> None:
        """Have a client's command applied once, however often it is sent; ``reply`` is told (H20).

        ``asker``: the connection it came on. ``within_s``: for so long its sender waits.
        One that was done is answered from the state; one that is under way is waited for, and shares its
        fate: lost with this leadership, it is unknown to all who asked.
        """
        if not self.leads:
            reply(self.not_leader())
            return
        known = self.state.answered(meant)
        if known is not None:
            reply(known)
            return
        name = (meant.client, meant.request)
        proposal = self._proposals.get(self._by_request.get(name, 0))
        if proposal is not None and proposal.term == self.raft.term:
            if len(proposal.replies) < ASKERS_MAX:
                proposal.replies.append(reply)
            else:
                reply(TooBusy(f"request {meant.request} of {meant.client} is asked too often"))
            return
        if self.state.index < self._judged_from:
            reply(self.not_judged_yet())
            return
        leadership = self.raft.leadership
        uncommitted_bytes = leadership.uncommitted_bytes if leadership is not None else 0
        refusal = self.room.refusal(uncommitted_bytes + len(command))
        if refusal is not None and (self.room.full or self._grows(meant)):
            reply(refusal)
            return
        now = trio.current_time()
        busy = self._intake.refusal(asker, len(command), within_s, now)
        if busy is not None:
            reply(busy)
            return
        index = self.propose(command, reply, name, meant)
        if index is not None:
            if isinstance(meant, TrustChange):
                self._judged_from = index
            proposed = self._proposals[index]
            proposed.asker, proposed.size = asker, len(command)
            self._intake.on_taken(asker, len(command), now)

    def is_under_way(self, meant: ReplicatedCommand) -> bool:
        """Was it taken in this term, and is not done yet? Then whoever sends it again waits for it."""
        proposal = self._proposals.get(self._by_request.get((meant.client, meant.request), 0))
        return proposal is not None and proposal.term == self.raft.term

    def _grows(self, meant: ReplicatedCommand) -> bool:
        if not isinstance(meant, Transact):
            return False
        growth = self.state.growth(meant.transaction)
        changes = any(op.key in self.state.stored for op in meant.transaction.operations)
        return growth > (GROWTH_OF_A_CHANGE if changes else 0)

    def propose(
        self,
        command: bytes,
        reply: Reply,
        request: tuple[str, int] = NOBODY,
        meant: ReplicatedCommand | None = None,
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
            self.end(error)
            raise
        if index is None:
            reply(self.not_leader())
            return None
        self._proposals[index] = _Proposal(self.raft.term, [reply], request, meant)
        if request is not NOBODY:
            self._by_request[request] = index
        return index

    def change_members(self, configuration: Configuration, reply: Reply) -> None:
        """Have other members; ``reply`` is told when that is committed, or why not."""
        try:
            index = self.raft.change_members(configuration, trio.current_time())
        except DistributedLogError as error:
            reply(error)
            return
        except AssertionError as error:
            self.end(error)
            raise
        if index is None:
            reply(self.not_leader())
            return
        self._proposals[index] = _Proposal(self.raft.term, [reply])

    def read(self, read: Read) -> None:
        """Call ``read`` when the state is at least as new as now, by a quorum round that begins later."""
        self._last_read += 1
        if self.raft.read_index(self._last_read):
            self._reads[self._last_read] = read
        else:
            read(self.not_leader())

    def not_leader(self) -> NotLeader:
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
            self.end(error)
            raise

    def end(self, error: Exception) -> None:
        """End the node because of an error of the core, whichever task has called the core."""
        if not self.ended.is_set():
            self._why_ended = error
            self.ended.set()

    def _drain(self) -> None:
        raft = self.raft
        if raft.ghost is not None and not self._haunted:
            self._haunted = True
            self._listener.on_less()
        while raft.has_ready:
            if self._members is not raft.configuration:
                self._members = raft.configuration
                self._listener.on_members()
            ready = raft.ready()
            for peer, message in ready.send_now:
                self._listener.send(peer, message)
            if ready.needs_persist or ready.send_after_persist:
                self._queue.append(ready)
                self._queued.set()
            if ready.snapshot is not None:
                self._install(ready.snapshot)
            if ready.committed:
                self._apply(ready.committed)
            if ready.leader_changed:  # after that: a leader that removed itself has done so
                self._note_role()
            for request, index in ready.reads:
                self._ripe.append((index, self._reads.pop(request)))
            for request in ready.reads_lost:
                self._reads.pop(request)(self.not_leader())
            for wanted in ready.send_snapshots:
                self._listener.on_snapshot_wanted(wanted)
        while self._ripe and self._ripe[0][0] <= self.state.index:
            self._ripe.popleft()[1](None)
        if raft.deadline < self._clock.deadline:
            self._clock.deadline = raft.deadline

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        if self.ended.is_set():
            return
        now = trio.current_time()
        for entry in entries:
            command = b"" if is_configuration(entry.data) else entry.data
            proposal = self._proposals.pop(entry.index, None)
            # Of another term it may be another command.
            same = proposal is not None and proposal.term == entry.term
            meant = proposal.meant if same and proposal is not None else None
            try:
                answer, _ = self.state.apply(entry.index, command, meant)
            except UnsupportedFormat as error:
                why = f"entry {entry.index} of the metadata log is {error}: upgrade this node"
                self.end(UnsupportedFormat(why))
                return
            if not entry.index % EVERY:
                self.digests.note(entry.index, self.state.digest())
            self.room.applied_bytes += len(entry.data) + 64
            if proposal is not None:
                self._by_request.pop(proposal.request, None)
                if proposal.asker is not None:
                    self._intake.on_decided(proposal.asker, proposal.size, now)
                for reply in proposal.replies:
                    reply(answer if same else self.not_leader())
        self.raft.state_mark = self.digests.newest
        self.raft.on_applied(entries[-1].index)
        self._listener.on_applied()
        base = self.snapshot.index if self.snapshot is not None else 0
        entries_part = (self.state.index - base) / SNAPSHOT_ENTRIES
        bytes_max = max(SNAPSHOT_BYTES, self.room.snapshot_bytes // SNAPSHOT_PART)
        bytes_part = (self.storage.bytes_written - self._snapshot_at) / min(
            bytes_max, self.room.share_bytes
        )
        part = max(entries_part, bytes_part)
        if part >= 1 and part >= self._patience():
            self._snapshot_wanted.set()

    def _patience(self) -> float:
        """1 to 1.5, another one for each member: they do not all write a snapshot at one moment."""
        if self.leads:
            return 1.5
        voters = self.raft.voters
        rank = voters.index(self.raft.node_id) if self.raft.node_id in voters else 0
        return 1 + rank / (2 * max(1, len(voters)))

    def _install(self, snapshot: Snapshot) -> None:
        assert self.received is not None, "a snapshot is installed after it was received"
        assert self.received[0] == snapshot, f"{snapshot} is not the one received"
        self.state = self.received[1]
        self.snapshot = snapshot
        self.received = None
        self.digests.begin_anew()
        self.raft.state_mark = self.digests.newest
        self.raft.mind_state(True, trio.current_time())
        self._listener.on_state()
        self.raft.on_applied(snapshot.index)
        self._listener.on_applied()

    def _note_role(self) -> None:
        if not self.leads:
            proposals, self._proposals = self._proposals, {}
            self._by_request.clear()
            self._intake.clear()
            for proposal in proposals.values():  # not NotLeader: the next leader may commit it
                for reply in proposal.replies:
                    reply(OutcomeUnknown("this metadata node led no longer before it was done"))
        if self.leads and self._led_term != self.raft.term:
            self._led_term, self._led_from = self.raft.term, self.raft.log.last_index
            self._judged_from = self._led_from if self._is_trust_at_stake() else 0
        self._tell_leader()
        if self._leads != self.leads:
            self._leads = self.leads
            self.digests.on_role()
            self._listener.on_state()
            self._listener.on_role()

    def _is_trust_at_stake(self) -> bool:
        """Is anything judged here, or will be by what is in the log and was not applied yet?"""
        if self.state.trust_revision:
            return True
        tail = self.raft.log.tail(self.state.index + 1)
        return any(entry.data.startswith(TRUST_BEGINS) for entry in tail)

    def _tell_leader(self) -> None:
        """Log whom this node follows, once a change: terms in which nobody comes to lead say nothing."""
        raft = self.raft
        leader = raft.node_id if self.leads else raft.leader_id
        if (leader, raft.term) == self._told_leader:
            return
        if not leader and self._told_leader[0] != raft.node_id:
            return  # silence, or an election: what comes of it is told
        self._told_leader = (leader, raft.term)
        name = self._name_of(leader) or leader[:8]
        if self.leads:
            text = f"this metadata node {name} leads in term {raft.term}"
        elif leader:
            text = f"metadata node {name} leads in term {raft.term}: following"
        else:
            text = f"this metadata node leads no more, in term {raft.term}"
        LEADER.say(log, "%s", text, leader=name, term=raft.term, own=self.leads)

    # --- tasks ------------------------------------------------------------------------------------

    async def persist(self) -> None:
        """Make durable what the core asked for, one sync for all that gathered; then send and report."""
        while True:
            if self._haunted and self.raft.ghost is None:
                await self._be_whole()
            if not self._queue and self._compact is None:
                self._queued = trio.Event()
                with trio.move_on_after(IDLE_MARK_S):
                    await self._queued.wait()
                if not self._queued.is_set():
                    await self.storage.mark(self.raft.commit)
                    await self._queued.wait()
            batch, self._queue = self._queue, []
            if batch:
                self._persist_since = trio.current_time()
                await self._save(batch)
                self._persist_since = None
                for ready in batch:
                    for peer, message in ready.send_after_persist:
                        self._listener.send(peer, message)
                now = trio.current_time()
                self.raft.on_persisted(batch[-1].number, now)
                self.raft.on_disk_stalled(False, now)
                self.drain()
            if self._compact is not None:
                await self._forget()

    async def _be_whole(self) -> None:
        """Have it said; on a full disk with the next write: a start before that finds the log whole, too."""
        while self._haunted:
            try:
                await self._listener.on_whole()
                self._haunted = False
            except DiskFull:
                if not await self.room.give_up_reserve():
                    return

    async def _save(self, batch: list[Ready]) -> None:
        """Returns when it is durable. On a full disk that may be late: nothing is sent or counted before."""
        while True:
            try:
                await self.storage.save(batch)
            except DiskFull as error:
                batch = []  # the storage has it
                if not await self.room.on_full(error):
                    await self._forget()
                    await trio.sleep(LOOK_S)
            else:
                self.room.on_written()
                return

    async def _forget(self) -> None:
        """Forget the log up to a snapshot, if there is a new one."""
        if self._compact is not None:
            snapshot, self._compact = self._compact, None
            await self.storage.compact(snapshot)
            self.raft.compact(snapshot.index)
            self.drain()

    def end_if_diverged(self) -> None:
        """Called after each input that may bring a leader's entries."""
        found = self.raft.diverged
        if found is not None:
            self.end(CommittedEntriesLost(_what_diverged(found, self._name_of)))

    async def end_if_must(self) -> None:
        """Raise the error that ends this node: one of the core, in whichever task it was raised, or another.

        Raises `UnsupportedFormat` when the log has a command that this version does not know.

        Raises `CommittedEntriesLost` when the quorum has lost entries that this node has.
        """
        await self.ended.wait()
        raise self._why_ended

    async def run_clock(self) -> None:
        """Wake the core at its deadlines."""
        while True:
            with trio.CancelScope(deadline=self.raft.deadline) as self._clock:
                await trio.sleep_forever()
            now = trio.current_time()
            late_s = now - self._clock.deadline
            if late_s > LATE_S:
                await trio.lowlevel.checkpoint()  # first what lies in the sockets …
                await trio.lowlevel.checkpoint()
                self.raft.on_late(late_s, trio.current_time())  # … then what the silence means
                self._listener.on_late(late_s)
            if self._persist_since is not None and now - self._persist_since > STALL_S:
                self.raft.on_disk_stalled(True, now)
            self.raft.on_time(trio.current_time())
            self.drain()

    async def mind_room(self) -> None:
        """Look at the disk's free space, until cancelled."""
        taken_at = trio.current_time()
        while True:
            await trio.sleep(LOOK_S)
            await self.room.look()
            news = self.state.index > (self.snapshot.index if self.snapshot is not None else 0)
            if self.room.short and news and trio.current_time() - taken_at >= SNAPSHOT_AGAIN_S:
                taken_at = trio.current_time()
                self._snapshot_wanted.set()

    async def doubt_snapshot(self) -> None:
        """A peer could not take the newest one: where its file is damaged, the state is written again."""
        doubted = self.snapshot
        if doubted is None or await self.storage.snapshots.is_sound(doubted):
            return
        if doubted == self.snapshot:  # else its file has gone meanwhile
            log.warning("the snapshot at entry %d is damaged here: it is made anew", doubted.index)
            self._snapshot_damaged = True
            self._snapshot_wanted.set()

    async def take_snapshots(self) -> None:
        """Write the state aside when enough was applied, then forget the log up to there."""
        while True:
            await self._snapshot_wanted.wait()
            self._snapshot_wanted = trio.Event()
            self._snapshot_at = self.storage.bytes_written
            anew, self._snapshot_damaged = self._snapshot_damaged, False
            index = self.state.index
            term = self.raft.log.term_at(index)
            has_it = self.snapshot is not None and self.snapshot.index >= index
            if term is None or (has_it and not anew):
                continue
            members = self.raft.log.configuration_at(index)
            if members == UNKNOWN:
                continue  # let in just now, and has not read yet who the members are
            snapshot, applied = Snapshot(index, term, members), self.room.applied_bytes
            try:
                chunks = chain([members.encode()], kv_snapshot.snapshot(self.state))
                await self.storage.snapshots.save(snapshot, chunks, anew=anew)
            except DiskFull as error:  # an alarm, no end: the log has it all
                self._snapshot_damaged = anew
                if not await self.room.on_snapshot_failed(error):
                    await trio.sleep(SNAPSHOT_AGAIN_S)
                self._snapshot_wanted.set()
                continue
            except Exception:
                self._snapshot_damaged = anew
                self._snapshot_wanted.set()  # when this is run again
                raise
            await self.room.on_snapshot(applied)
            if self.snapshot is None or self.snapshot.index < index:
                self.snapshot = snapshot
                self._compact = snapshot
                self._queued.set()
            else:  # a leader's is newer: this one lies here until the next
                self.storage.snapshots.passing_bytes = 0


def _what_diverged(found: Diverged, name_of: Callable[[str], str]) -> str:
    leader = name_of(found.leader_id) or found.leader_id[:8]
    return (
        f"metadata node {leader} leads in term {found.term} without entry {found.index}, which is committed."
        f" This node has all entries up to {found.commit}; most others run on older copies of their data"
        " directories. Nothing was changed here. Copy this directory and stop all metadata nodes. To keep the"
        " entries, put the newest directories of the others back, or run"
        ' "dlog metadata force-new-cluster --data DIR" on this one. To give them up, start this node on an'
        ' empty directory and run "dlog metadata replace"'
    )
