"""An interpreter for the golden transcripts in scenarios/*.txt (in the manner of etcd's raft tests).

A transcript is a list of steps: a command line, ``----``, and what it printed, up to an empty line.
Lines that begin with ``#`` are comments. Nothing happens by itself: messages wait until `deliver`,
writes wait until `persist`, time stands still until `time` or `timeout`. The commands:

    cluster a b c        new nodes with empty disks; node number i draws i / n of its timeouts' width
    narrow a b c         the same; one entry a message
    timeout a            the clock goes to a's deadline (if that is ahead), and a acts
    time 1.5             the clock goes to 1.5 s; nobody is told
    act a                a acts if its deadline has come
    late a 1.5           a's driver was not run for 1.5 s until now
    turn a               a's driver carries out one Ready: sends what it may, queues the write
    persist a            a's queued writes are durable; what waited for them is sent
    deliver a->b [n]     b takes all (or n) messages from a that are under way; `deliver b`: from all
    drop a->b            those messages are lost; `drop a`: all from and to a
    stabilize [a b]      turn, persist and deliver among these nodes (default: all) until quiet
    propose a text       read a 7         transfer a b        stalled a yes     closed a b
    compact a 5 [5]      a snapshot of its applied state, the log forgets up to 5
    sent a b             a's snapshot reaches b whole     lost a b    it does not
    crash a              start a          status
    join e               an empty node that knows of nobody
    members a b c +e     at a it is proposed that b and c are voters and e a learner
    emptied a            a's directory is emptied; what starts there may not vote
"""

from dataclasses import fields
from pathlib import Path

from distributedlog.metadata.declarations.options import RaftOptions
from distributedlog.metadata.model.configuration import (
    Configuration,
    decode_configuration,
    is_configuration,
)
from distributedlog.metadata.raft.raft import DurableState, Raft
from distributedlog.metadata.raft.raft_messages import AppendRequest, Entry, Message
from distributedlog.metadata.raft.ready import Ready
from distributedlog.runtime.interfaces.errors import DistributedLogError
from distributedlog.testing.sim.raft.raft_disk import RaftDisk, StoredSnapshot


def run_transcript(path: Path, core_class: type[Raft] = Raft) -> str:
    """The transcript as the core plays it now: equal to the file if nothing changed."""
    stage = Stage(core_class)
    out: list[str] = []
    in_output = False
    for line in path.read_text().splitlines():
        if in_output:
            in_output = bool(line)
            if line:
                continue
        if line == "----":
            in_output = True
            continue
        out.append(line)
        if line and not line.startswith("#"):
            out.append("----")
            stage.lines = []
            name, *words = line.split()
            getattr(stage, f"do_{name}")(*words)
            out.extend(stage.lines or ["ok"])
    return "\n".join(out) + "\n"


class Stage:
    """The nodes, their disks and the messages under way."""

    def __init__(self, core_class: type[Raft]) -> None:
        self.core_class = core_class
        self.ids: list[str] = []
        self.disks: dict[str, RaftDisk] = {}
        self.cores: dict[str, Raft] = {}
        self.writes: dict[str, list[Ready]] = {}
        self.chains: dict[str, int] = {}
        self.wire: list[tuple[str, str, Message]] = []
        self.asked: list[tuple[str, str, int]] = []
        self.options = RaftOptions(commit_lag_s=0.0)
        self.now = 0.0
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    # --- the cluster ------------------------------------------------------------------------------

    def do_cluster(self, *ids: str) -> None:
        self.ids = list(ids)
        for node_id in ids:
            self.disks[node_id] = RaftDisk(Configuration.from_ids(ids))
            self.do_start(node_id)

    def do_narrow(self, *ids: str) -> None:
        self.options = RaftOptions(append_bytes_max=1, commit_lag_s=0.0)
        self.do_cluster(*ids)

    def do_join(self, node_id: str) -> None:
        self.ids.append(node_id)
        self.disks[node_id] = RaftDisk()
        self.do_start(node_id)

    def do_members(self, node_id: str, *words: str) -> None:
        learners = [word[1:] for word in words if word.startswith("+")]
        wanted = Configuration.from_ids([w for w in words if not w.startswith("+")], learners)
        try:
            index = self.cores[node_id].change_members(wanted, self.now)
        except DistributedLogError as error:
            self.say(f"{type(error).__name__}")
        else:
            self.say(f"index {index}")

    def do_emptied(self, node_id: str) -> None:
        self.disks[node_id] = RaftDisk(Configuration.from_ids(self.ids))
        self.do_start(node_id, may_vote=False)

    def do_start(self, node_id: str, may_vote: bool = True) -> None:
        disk = self.disks[node_id]
        share = self.ids.index(node_id) / len(self.ids)
        self.cores[node_id] = self.core_class(
            node_id,
            DurableState(disk.log(), disk.hard_state, applied=disk.snapshot.index),
            options=self.options,
            random=lambda: share,
            now=self.now,
            may_vote=may_vote,
        )
        self.writes[node_id] = []
        self.say(f"{node_id}: term {disk.hard_state.term}, log {self.log_text(node_id)}")

    def do_crash(self, node_id: str) -> None:
        del self.cores[node_id]
        self.writes[node_id] = []

    def do_status(self) -> None:
        for node_id in self.ids:
            core = self.cores.get(node_id)
            if core is None:
                self.say(f"{node_id}: down, durable {self.log_text(node_id)}")
                continue
            self.say(
                f"{node_id}: {core.role.value} of {core.leader_id or 'nobody'} in term {core.term}, "
                f"commit {core.commit}, durable {self.log_text(node_id)}"
            )

    def log_text(self, node_id: str) -> str:
        disk = self.disks[node_id]
        terms = " ".join(f"{entry.index}:{entry.term}" for entry in disk.entries)
        base = f"[..{disk.base_index}:{disk.base_term}] " if disk.base_index else ""
        return (base + terms).strip() or "empty"

    # --- time and inputs --------------------------------------------------------------------------

    def do_time(self, now: str) -> None:
        self.now = float(now)

    def do_timeout(self, node_id: str) -> None:
        core = self.cores[node_id]
        self.now = max(self.now, core.deadline)
        core.on_time(self.now)
        self.say(f"{self.now:.3f} s: {node_id} is {core.role.value} in term {core.term}")

    def do_propose(self, node_id: str, text: str) -> None:
        self.say(f"index {self.cores[node_id].propose(text.encode())}")

    def do_read(self, node_id: str, request_id: str) -> None:
        taken = self.cores[node_id].read_index(int(request_id))
        self.say("taken" if taken else "not the leader")

    def do_transfer(self, node_id: str, to: str) -> None:
        self.say(str(self.cores[node_id].transfer_leadership(self.now, to)))

    def do_stalled(self, node_id: str, yes: str) -> None:
        self.cores[node_id].on_disk_stalled(yes == "yes", self.now)

    def do_closed(self, node_id: str, peer: str) -> None:
        core = self.cores[node_id]
        core.on_connection_closed(peer, self.now)
        self.say(f"{node_id} acts at {core.deadline:.3f} s")

    def do_act(self, node_id: str) -> None:
        core = self.cores[node_id]
        core.on_time(self.now)
        self.say(f"{node_id} is {core.role.value}, acts at {core.deadline:.3f} s")

    def do_late(self, node_id: str, lateness_s: str) -> None:
        self.cores[node_id].on_late(float(lateness_s), self.now)

    def do_compact(self, node_id: str, up_to: str) -> None:
        core, disk = self.cores[node_id], self.disks[node_id]
        term = core.log.term_at(core.applied)
        assert term is not None
        members = core.log.configuration_at(core.applied)
        disk.snapshot = StoredSnapshot(core.applied, term, 0, members)
        disk.compact(core.compact(int(up_to)))
        self.say(f"{node_id}: log {self.log_text(node_id)}")

    def do_sent(self, node_id: str, peer: str) -> None:
        core, snapshot = self.cores[node_id], self.disks[node_id].snapshot
        self.disks[peer].incoming[snapshot.index] = snapshot
        self.cores[peer].on_snapshot_received(core.term, node_id, snapshot.core_snapshot, self.now)
        core.on_snapshot_sent(peer, snapshot.index, True)

    def do_lost(self, node_id: str, peer: str) -> None:
        self.cores[node_id].on_snapshot_sent(peer, 0, False)

    # --- the driver and the network ---------------------------------------------------------------

    def do_turn(self, node_id: str) -> bool:
        core = self.cores[node_id]
        if not core.has_ready:
            return False
        ready = core.ready()
        if ready.leader_changed:
            self.say(
                f"{node_id} is {ready.role.value} of {ready.leader_id or 'nobody'} in {ready.term}"
            )
        self._say_write(node_id, ready)
        if ready.needs_persist or ready.send_after_persist:
            self.writes[node_id].append(ready)
        for to, message in ready.send_now:
            self.wire.append((node_id, to, message))
            self.say(f"  {node_id}->{to} {text_of(message)}")
        if ready.snapshot is not None:
            core.on_applied(ready.snapshot.index)
        if ready.committed:
            core.on_applied(ready.committed[-1].index)
            self.say(f"  {node_id} applies {' '.join(entry_text(e) for e in ready.committed)}")
        for request_id, index in ready.reads:
            self.say(f"  {node_id} serves read {request_id} from {index}")
        for request_id in ready.reads_lost:
            self.say(f"  {node_id} loses read {request_id}")
        for ask in ready.send_snapshots:
            self.say(f"  {node_id} wants a snapshot sent to {ask.peer}, {ask.index} or later")
        return True

    def _say_write(self, node_id: str, ready: Ready) -> None:
        if ready.hard_state is not None:
            state = ready.hard_state
            self.say(f"  {node_id} writes term {state.term} vote {state.vote or 'none'}")
        if ready.snapshot is not None:
            self.say(f"  {node_id} installs {ready.snapshot.index}:{ready.snapshot.term}")
        if ready.truncate_from is not None:
            self.say(f"  {node_id} truncates from {ready.truncate_from}")
        if ready.append:
            self.say(f"  {node_id} appends {' '.join(entry_text(e) for e in ready.append)}")

    def do_persist(self, node_id: str) -> bool:
        writes, self.writes[node_id] = self.writes[node_id], []
        for ready in writes:
            self.disks[node_id].save(ready)
            for to, message in ready.send_after_persist:
                self.wire.append((node_id, to, message))
                self.say(f"  {node_id}->{to} {text_of(message)}")
            self.cores[node_id].on_persisted(ready.ready_number, self.now)
        return bool(writes)

    def do_deliver(self, link: str, count: str = "1000000") -> bool:
        sender, _, to = link.rpartition("->")
        chosen = [m for m in self.wire if m[1] == to and sender in ("", m[0])][: int(count)]
        for item in chosen:
            self.wire.remove(item)
            if to in self.cores:
                self.cores[to].on_message(item[2], self.now)
        return bool(chosen)

    def do_drop(self, link: str) -> None:
        sender, arrow, to = link.partition("->")
        before = len(self.wire)
        if arrow:
            self.wire = [m for m in self.wire if (m[0], m[1]) != (sender, to)]
        else:
            self.wire = [m for m in self.wire if sender not in (m[0], m[1])]
        self.say(f"{before - len(self.wire)} lost")

    def do_stabilize(self, *ids: str) -> None:
        members = [node_id for node_id in (ids or self.ids) if node_id in self.cores]
        busy = True
        while busy:
            busy = False
            for node_id in members:
                busy |= self.do_turn(node_id)
                busy |= self.do_persist(node_id)
            for sender in members:
                for to in members:
                    busy |= self.do_deliver(f"{sender}->{to}")


def entry_text(entry: Entry) -> str:
    if is_configuration(entry.data):
        members = decode_configuration(entry.data).members
        said = ",".join(m.name if m.votes else f"+{m.name}" for m in members)
        return f"{entry.index}:{entry.term}:[{said}]"
    return f"{entry.index}:{entry.term}:{entry.data.decode() or '-'}"


def text_of(message: Message) -> str:
    """A message in one line: its name and what it says."""
    if isinstance(message, AppendRequest):
        entries = " ".join(entry_text(entry) for entry in message.entries) or "nothing"
        return (
            f"Append term {message.term} after {message.prev_index}:{message.prev_term}, "
            f"commit {message.commit}: {entries}"
        )
    told = [f for f in fields(message) if f.name not in ("sender", "term", "number")]
    rest = "".join(f" {f.name} {getattr(message, f.name)}" for f in told)
    return f"{type(message).__name__} term {message.term}{rest}"
