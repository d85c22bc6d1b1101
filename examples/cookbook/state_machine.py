"""A replicated state machine: every replica applies the same commands in the same order.

The order of the log is the order of the commands. A client writes a command and waits until its own replica
has applied it, so the client reads its own write. A replica stores its state and its position in a second log
from time to time, and then truncates the commands before this position. A new replica starts there.

python examples/cookbook/state_machine.py [distributedlog://HOST:PORT/NAMESPACE]
"""

import json
import sys
from secrets import token_hex

from distributedlog import DLSN, LogEmpty, LogTruncated, Position
from distributedlog.blocking import Log, LogReader, LogWriter, local_cluster, open_namespace


class Accounts:
    """The state machine: a pure function of all commands so far, including refused ones."""

    def __init__(self) -> None:
        self.money: dict[str, int] = {}
        self.applied = 0

    def apply(self, command: bytes) -> str:
        """Move money and return the result, which is the same on every replica."""
        source, target, amount = json.loads(command)
        self.applied += 1
        if source and self.money.get(source, 0) < amount:
            return f"{source} has too little"
        if source:
            self.money[source] -= amount
        self.money[target] = self.money.get(target, 0) + amount
        return "done"


class StateMachine:
    """The state after the commands up to a position of the log."""

    def __init__(self, commands: Log, snapshots: Log) -> None:
        self.state = Accounts()
        self._commands, self._snapshots = commands, snapshots
        self._reader = self._begin()
        self._last: DLSN | None = None

    def _begin(self) -> LogReader:
        """Load the newest snapshot, if any, and open a reader after it.

        If another replica stores a newer snapshot and truncates the log in the meantime, repeat.
        """
        while True:
            position = None
            try:
                stored = json.loads(self._snapshots.last_record().payload)
            except LogEmpty:
                pass
            else:
                self.state.money, self.state.applied = stored["money"], stored["applied"]
                position = Position.from_json(stored["position"])
            # Without a snapshot, start at the very first position: if commands were truncated, this raises
            # LogTruncated. "earliest" would skip them without an error.
            begin = None if position else DLSN.INITIAL
            try:
                return self._commands.open_reader(position=position, dlsn=begin)
            except LogTruncated:
                continue

    def apply_up_to(self, dlsn: DLSN) -> str:
        """Apply all commands up to this one and return the result of the last; "" if none was left.

        Raises:
            LogTruncated: Another replica truncated commands that this one has not applied.
        """
        said = ""
        while self._last is None or self._last < dlsn:
            record = self._reader.read_next()
            assert record is not None
            said = self.state.apply(record.payload)
            self._last = record.dlsn
        return said

    def store(self, snapshots: LogWriter) -> None:
        """Store the state and its position in one record, then truncate the commands before it."""
        position = self._reader.position
        assert position is not None
        state = {"money": self.state.money, "applied": self.state.applied}
        snapshots.write(json.dumps(state | {"position": position.to_json()}).encode())
        self._commands.truncate(position.dlsn)

    def close(self) -> None:
        """Close the reader. The state can be rebuilt from the logs."""
        self._reader.close()


def run(uri: str) -> None:
    """Run a leader, a follower, and a late replica that starts from a snapshot."""
    name = f"bank-{token_hex(3)}"
    with open_namespace(uri) as namespace:
        for log in (name, f"{name}/snapshots"):
            namespace.create_log(log, txids="count")
        commands, snapshots = namespace.open_log(name), namespace.open_log(f"{name}/snapshots")
        leader = StateMachine(commands, snapshots)
        with commands.open_writer() as writer, snapshots.open_writer() as snapshot_writer:
            for command in (
                ["", "ann", 100],
                ["ann", "bob", 30],
                ["bob", "eve", 50],
                ["ann", "eve", 5],
            ):
                dlsn = writer.write(json.dumps(command).encode())
                print(command, leader.apply_up_to(dlsn))
            follower = StateMachine(commands, snapshots)
            follower.apply_up_to(dlsn)
            assert follower.state.money == leader.state.money
            leader.store(snapshot_writer)
            snapshot_writer.commit()
            late = StateMachine(commands, snapshots)
            dlsn = writer.write(json.dumps(["eve", "ann", 1]).encode())
            for replica in (leader, follower, late):
                replica.apply_up_to(dlsn)
                print(replica.state.applied, replica.state.money)
                replica.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with local_cluster() as cluster:
            run(cluster.uri)
