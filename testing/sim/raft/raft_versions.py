"""Raft worlds with nodes of two versions, which are upgraded and downgraded one by one at any step (H105).

Each node applies committed commands to a real `KeyValueState`, and after each entry all nodes must have the
same digest. The newer version has two additional commands: one that puts a key, and one that activates other
limits. Limits decide the result of a command, so they are part of the state. If they were constants of the
program, two versions would derive two states from one log. A node that encounters an unknown command applies
nothing more and ends. A node that finds a snapshot of the newer format does the same until it is upgraded.
``python -m distributedlog.testing.sim.raft.raft_versions --seeds 20000`` runs many seeds.
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
"""The older and the newer version."""
LIMITS = {NOW: (6, 2), NEXT: (9, 4)}
"""The maximum numbers of remembered requests and of leases, by version."""
TOUCH = pack(["touch", ["", 0, 0], b""])
LIFT = pack(["lift", ["", 0, 0], b""])
BACK = 0.35
"""Share of version changes that are downgrades."""
AGAIN_S = 0.4
"""Interval at which a node that is too old for its snapshot is restarted."""


class StateOfVersion:
    """The state of a program of one version.

    ``limits_lifted`` is part of the state: whether the limits of the newer version apply.
    """

    def __init__(self, version: int, lifted: bool) -> None:
        self.version = version
        self.limits_lifted = lifted
        requests_max, leases_max = LIMITS[self.limits_version()]
        self.kv = KeyValueState(requests_max=requests_max, leases_max=leases_max)

    def limits_version(self) -> int:
        """Return the version whose limits apply."""
        return NEXT if self.limits_lifted else NOW

    def head(self) -> bytes:
        """Return the head of a snapshot: the version that wrote it, and whether the limits are lifted."""
        return pack([self.version, self.limits_lifted])

    def apply(self, index: int, command: bytes) -> None:
        """Apply a command of the log. An unknown one raises `UnsupportedFormat` and changes nothing."""
        if self.version == NEXT and command == LIFT:
            command = b""
            self.limits_lifted = True
            self.kv.request_dedup.size, self.kv._leases_max = LIMITS[self.limits_version()]
        elif self.version == NEXT and command == TOUCH:
            put = Transaction((), (Put(b"touched", b"%d" % index),))
            command = encode_command(Transact(transaction=put))
        self.kv.apply(index, command)


class VersionsWorld(RaftWorld):
    """A world with an additional fault: a node ends at some step and restarts with another version."""

    state_class = StateOfVersion
    machine: "VersionedMachine"

    def __init__(self, seed: int, *, white_box: bool = True) -> None:
        super().__init__(seed, white_box=white_box)
        many = self.faults.delay_s < 0.1  # otherwise as in `CorruptionWorld`
        self.faults.propose_rate = 24.0 if many else 4.0
        self.faults.chaos_s = 4.0
        self.faults.compact_after = self.rng.choice((0, 3, 12))
        self.versions = dict.fromkeys(self.ids, NOW)
        """The version of each node from its next start on."""
        self.changes = self.refused_starts = 0
        self.schedule(self.rng.uniform(0.3, 0.8), self.change_version)

    def state_machine(self) -> "VersionedMachine":
        """Return state machines of the product."""
        return VersionedMachine(self)

    def change_version(self) -> None:
        """End a random node within a few steps. It restarts with another version."""
        if self.is_healed:
            return
        self.schedule(self.now + self.rng.expovariate(2.0), self.change_version)
        node = self.nodes[self.rng.choice(self.ids)]
        self.versions[node.node_id] = NOW if self.rng.random() < BACK else NEXT
        node.crash_in = min(node.crash_in, self.rng.randrange(1, 40))
        self.changes += 1

    def heal(self) -> None:
        """End all faults and upgrade all nodes to the newer version."""
        self.versions = dict.fromkeys(self.versions, NEXT)
        for node in self.nodes.values():
            if node.core is not None and self.machine.states[node.node_id].version != NEXT:
                self.crash(node)
        super().heal()

    def start(self, node: RaftNode) -> None:
        """Start a node. If its version is too old for its snapshot, it ends at once and retries later."""
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
    """The product's state machines, each as one version implements it, in addition to the digest chain."""

    def __init__(self, world: VersionsWorld) -> None:
        self.world = world
        self._chain = ChainMachine(world)
        self.states: dict[str, StateOfVersion] = {}
        self.commands: dict[int, bytes] = {}
        """The command for the number in an entry."""
        self.digests: dict[int, tuple[int, bool]] = {}

    def restore(self, node: RaftNode, snapshot: StoredSnapshot) -> None:
        """Load a snapshot with the version that runs."""
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
        """Return a head with the version and the limits, and then the chunks of the state."""
        state = self.states[node.node_id]
        return (state.head(), *snapshot_chunks(state.kv))

    def can_read(self, node: RaftNode, snapshot: StoredSnapshot) -> bool:
        """Return whether the node's version can read the snapshot. Older versions reject newer ones."""
        return _may_read(self.states[node.node_id].version, snapshot)

    def apply(self, node: RaftNode, entry: Entry, term: int) -> None:
        """Apply an entry and compare the digest with other nodes.

        An unknown command ends the node before it.
        """
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
        """Propose a random command. A leader of the newer version also receives new commands."""
        version = self.states[node.node_id].version
        roll = self.world.rng.random()
        if version == NEXT and roll < 0.25:
            self.commands[command] = LIFT if roll < 0.1 else TOUCH
        else:
            self.commands[command] = self._random_command(core.commit)
        self._chain.propose(node, core, command)

    def _random_command(self, commit: int) -> bytes:
        """Return a command with one of few keys, leases and request numbers, so that many requests repeat."""
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


# --- injected bugs ------------------------------------------------------------------------------


class LimitsOfTheProgram(StateOfVersion):
    """Applies the limits that its program was built with."""

    def limits_version(self) -> int:
        """Return the node's own version."""
        return self.version


class LimitsOfTheProgramWorld(VersionsWorld):
    """A world of `LimitsOfTheProgram` nodes."""

    state_class = LimitsOfTheProgram


class PassesOver(StateOfVersion):
    """Ignores an unknown command and continues."""

    def apply(self, index: int, command: bytes) -> None:
        """Treat an unknown command as an invalid one."""
        try:
            super().apply(index, command)
        except UnsupportedFormat:
            self.kv.index = index


class PassesOverWorld(VersionsWorld):
    """A world of `PassesOver` nodes."""

    state_class = PassesOver


class ForgetsLimits(StateOfVersion):
    """Omits the limits from snapshots, although they decide the results of commands."""

    def head(self) -> bytes:
        """Return a head with the older limits."""
        return pack([self.version, False])


class SnapshotsForgetLimits(VersionsWorld):
    """A world of `ForgetsLimits` nodes."""

    state_class = ForgetsLimits


def main(arguments: Sequence[str]) -> int:
    """Run seeds and print the one that failed."""
    count = int(arguments[arguments.index("--seeds") + 1]) if "--seeds" in arguments else 1000
    failure = run_seeds(range(count), VersionsWorld)
    print(
        f"{count} seeds: {'none failed' if failure is None else f'seed {failure[0]}: {failure[1]}'}"
    )
    return failure is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
