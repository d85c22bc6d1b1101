"""Worlds whose nodes are of two versions, upgraded and put back one by one at any step (H105).

Each node applies what was committed to a real `KeyValueState`, and after each entry all must have the same
digest. The version to come knows two commands more: one that puts a key, and one from which on there are
other limits. Limits decide what becomes of a command, so they are state: of the program alone, two versions
would make two states of one log. Who finds a command that he does not know applies nothing more and ends; so
does who finds a snapshot of the newer format, until he is upgraded.
``python -m distributedlog.testing.sim.raft.raft_versions --seeds 20000`` runs many.
"""

import sys
from collections.abc import Sequence

from ....metadata.model.commands import (
    ExpireLease,
    GrantLease,
    RevokeLease,
    Transact,
    encode_command,
)
from ....metadata.model.configuration import is_configuration
from ....metadata.model.transaction import Compare, Delete, Put, Transaction
from ....metadata.raft.raft import Raft
from ....metadata.raft.raft_messages import Entry
from ....metadata.state.kv_snapshot import SnapshotBuilder, snapshot_chunks
from ....metadata.state.kv_state import KeyValueState
from ....runtime.interfaces.errors import UnsupportedFormat
from ....runtime.protocol.frames import pack, unpack
from .raft_disk import StoredSnapshot
from .raft_node import Crashed, RaftNode
from .raft_oracles import Broken
from .raft_world import ChainMachine, RaftWorld, run_seeds

NOW, NEXT = 1, 2
"""Versions."""
LIMITS = {NOW: (6, 2), NEXT: (9, 4)}
"""Requests that are remembered, and leases."""
TOUCH = pack(["touch", ["", 0, 0], b""])
LIFT = pack(["lift", ["", 0, 0], b""])
BACK = 0.35
"""This part of all changes is to the version of before."""
AGAIN_S = 0.4
"""Who is too old for its snapshot is started again so often."""


class StateOfVersion:
    """The state as a program of ``version`` makes it. ``lifted``: the newer limits hold; that is state."""

    def __init__(self, version: int, lifted: bool) -> None:
        self.version = version
        self.limits_lifted = lifted
        requests_max, leases_max = LIMITS[self.limits_version()]
        self.kv = KeyValueState(requests_max=requests_max, leases_max=leases_max)

    def limits_version(self) -> int:
        """Whose limits hold."""
        return NEXT if self.limits_lifted else NOW

    def head(self) -> bytes:
        """Return the head of a snapshot: the version that wrote it, and whether the limits are lifted."""
        return pack([self.version, self.limits_lifted])

    def apply(self, index: int, command: bytes) -> None:
        """Apply what is in the log. Raises `UnsupportedFormat`, with nothing done."""
        if self.version == NEXT and command == LIFT:
            command = b""
            self.limits_lifted = True
            self.kv.request_dedup.size, self.kv._leases_max = LIMITS[self.limits_version()]
        elif self.version == NEXT and command == TOUCH:
            put = Transaction((), (Put(b"touched", b"%d" % index),))
            command = encode_command(Transact(transaction=put))
        self.kv.apply(index, command)


class VersionsWorld(RaftWorld):
    """A world with one fault more: a node ends at some step, and another version of it is started."""

    state_class = StateOfVersion
    machine: "VersionedMachine"

    def __init__(self, seed: int, *, white_box: bool = True) -> None:
        super().__init__(seed, white_box=white_box)
        many = self.faults.delay_s < 0.1  # else as in `RottingWorld`
        self.faults.propose_rate = 24.0 if many else 4.0
        self.faults.chaos_s = 4.0
        self.faults.compact_after = self.rng.choice((0, 3, 12))
        self.versions = dict.fromkeys(self.ids, NOW)
        """The version that each node is started as, from the next time on."""
        self.changes = self.refused_starts = 0
        self.schedule(self.rng.uniform(0.3, 0.8), self.change_version)

    def state_machine(self) -> "VersionedMachine":
        """Those of the product."""
        return VersionedMachine(self)

    def change_version(self) -> None:
        """Somebody ends a few steps from now, and comes back as another version."""
        if self.is_healed:
            return
        self.schedule(self.now + self.rng.expovariate(2.0), self.change_version)
        node = self.nodes[self.rng.choice(self.ids)]
        self.versions[node.node_id] = NOW if self.rng.random() < BACK else NEXT
        node.crash_in = min(node.crash_in, self.rng.randrange(1, 40))
        self.changes += 1

    def heal(self) -> None:
        """All have the newer version in the end."""
        self.versions = dict.fromkeys(self.versions, NEXT)
        for node in self.nodes.values():
            if node.core is not None and self.machine.states[node.node_id].version != NEXT:
                self.crash(node)
        super().heal()

    def start(self, node: RaftNode) -> None:
        """Who is too old for its own snapshot ends at once."""
        if node.core is not None or node.gone:
            return
        if node.node_id not in self.versions:
            self.versions[node.node_id] = NEXT if self.is_healed else self.rng.choice((NOW, NEXT))
        version = self.versions[node.node_id]
        if not _may_read(version, node.disk.snapshot):
            self.refused_starts += 1
            self.schedule(self.now + AGAIN_S, self.start, node)
            return
        self.machine.states[node.node_id] = self.state_class(version, False)
        super().start(node)


class VersionedMachine:
    """State machines of the product, each as a program of one version makes it, in addition to the chain."""

    def __init__(self, world: VersionsWorld) -> None:
        self.world = world
        self._chain = ChainMachine(world)
        self.states: dict[str, StateOfVersion] = {}
        self.commands: dict[int, bytes] = {}
        """What the number in an entry stands for."""
        self.digests: dict[int, tuple[int, bool]] = {}

    def restore(self, node: RaftNode, snapshot: StoredSnapshot) -> None:
        """From the chunks, as the version that runs."""
        self._chain.restore(node, snapshot)
        version = self.states[node.node_id].version
        if not snapshot.content:
            self.states[node.node_id] = self.world.state_class(version, False)
            return
        head, *chunks = snapshot.content
        state = self.states[node.node_id] = self.world.state_class(version, _head(head)[1])
        builder = SnapshotBuilder(state.kv)
        for chunk in chunks:
            builder.add(chunk)
        builder.finish()

    def snapshot_of(self, node: RaftNode) -> tuple[bytes, ...]:
        """A head that says who may read it, and whose limits hold; then the chunks."""
        state = self.states[node.node_id]
        return (state.head(), *snapshot_chunks(state.kv))

    def can_read(self, node: RaftNode, snapshot: StoredSnapshot) -> bool:
        """An older version refuses what a newer one wrote."""
        return _may_read(self.states[node.node_id].version, snapshot)

    def apply(self, node: RaftNode, entry: Entry, term: int) -> None:
        """Who does not know a command ends before it; all others have one state after it."""
        command = b""
        if entry.data and not is_configuration(entry.data):
            command = self.commands[int.from_bytes(entry.data, "big")]
        state = self.states[node.node_id]
        try:
            state.apply(entry.index, command)
        except UnsupportedFormat:
            self.world.refused_starts += 1
            self.world.crash(node)
            raise Crashed from None
        self._chain.apply(node, entry, term)
        digest = state.kv.digest(), state.limits_lifted
        if self.digests.setdefault(entry.index, digest) != digest:
            raise Broken(f"H105 two states after {entry.index}: {node}, version {state.version}")

    # --- commands ---------------------------------------------------------------------------------

    def propose(self, node: RaftNode, core: Raft, command: int) -> None:
        """What is asked of a leader of the newer version may be new, too."""
        version = self.states[node.node_id].version
        roll = self.world.rng.random()
        if version == NEXT and roll < 0.25:
            self.commands[command] = LIFT if roll < 0.1 else TOUCH
        else:
            self.commands[command] = self._random_command(core.commit)
        self._chain.propose(node, core, command)

    def _random_command(self, commit: int) -> bytes:
        """Few keys, few leases, few requests, which are sent again and again."""
        rng = self.world.rng
        head = (rng.choice("xy"), rng.randrange(1, 16), max(0, commit - rng.randrange(9)))
        roll = rng.random()
        if roll < 0.2:
            return encode_command(GrantLease(*head, ttl_ms=1000))
        if roll < 0.3:
            return encode_command(RevokeLease(*head, lease=rng.randrange(1, 6)))
        if roll < 0.35:
            return encode_command(ExpireLease(lease=rng.randrange(1, 6)))
        if roll < 0.4:
            return b"what no version knows"
        key, other = (b"k%d" % rng.randrange(6) for _ in range(2))
        compares = (Compare.version(other, rng.randrange(3)),) if roll < 0.6 else ()
        put = Put(key, rng.randbytes(2), rng.choice((0, 0, 1, 2, 3)))
        operation = Delete(key) if roll > 0.9 else put
        return encode_command(Transact(*head, transaction=Transaction(compares, (operation,))))


def _head(packed: bytes) -> tuple[int, bool]:
    version, lifted = unpack(packed, "the head of a snapshot")
    return version, lifted


def _may_read(version: int, snapshot: StoredSnapshot) -> bool:
    return not snapshot.content or _head(snapshot.content[0])[0] <= version


# --- planted ------------------------------------------------------------------------------------


class LimitsOfTheProgram(StateOfVersion):
    """Judges by the limits that it was built with."""

    def limits_version(self) -> int:
        """Its own."""
        return self.version


class LimitsOfTheProgramWorld(VersionsWorld):
    """Of such nodes."""

    state_class = LimitsOfTheProgram


class PassesOver(StateOfVersion):
    """Answers a command that it does not know with an error, and goes on."""

    def apply(self, index: int, command: bytes) -> None:
        """As if it were nonsense."""
        try:
            super().apply(index, command)
        except UnsupportedFormat:
            self.kv.index = index


class PassesOverWorld(VersionsWorld):
    """Of such nodes."""

    state_class = PassesOver


class ForgetsLimits(StateOfVersion):
    """What decides commands is in the state, and not in its snapshots."""

    def head(self) -> bytes:
        """The limits of before."""
        return pack([self.version, False])


class SnapshotsForgetLimits(VersionsWorld):
    """Of such nodes."""

    state_class = ForgetsLimits


def main(arguments: Sequence[str]) -> int:
    """Run seeds, and say which one failed."""
    count = int(arguments[arguments.index("--seeds") + 1]) if "--seeds" in arguments else 1000
    failure = run_seeds(range(count), VersionsWorld)
    print(
        f"{count} seeds: {'none failed' if failure is None else f'seed {failure[0]}: {failure[1]}'}"
    )
    return failure is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
