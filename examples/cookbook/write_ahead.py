"""A write-ahead log: an in-memory store that loses no change when its process is killed.

Each change is on disk at a quorum of bookies before it is applied and answered. A new process, on this or on
another machine, first fences the old process. Then it loads the last checkpoint and applies the later changes
of the log. A checkpoint is a local file. The log is truncated to it, so the file must be as safe as the log:
a real store first copies it to another place.

python examples/cookbook/write_ahead.py [distributedlog://HOST:PORT/NAMESPACE]
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from secrets import token_hex

from distributedlog import DLSN, Position
from distributedlog.blocking import Log, local_cluster, open_namespace


class KeyValueStore:
    """A map of keys to values, whose changes are in a log."""

    def __init__(self, log: Log, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.values: dict[str, str] = {}
        self._writer = log.open_writer(takeover=True)  # fences any older writer of the log
        position = None
        if checkpoint.exists():
            stored = json.loads(checkpoint.read_text())
            self.values, position = stored["values"], Position.from_json(stored["position"])
        # If the checkpoint is lost, "earliest" would silently skip the changes that it contained.
        begin = None if position else DLSN.INITIAL
        self.replayed = 0
        with log.open_reader(position=position, dlsn=begin, to="end") as reader:
            for record in reader:
                key, value = json.loads(record.payload)
                self.values[key] = value
                self.replayed += 1
        self._log = log

    def put(self, key: str, value: str) -> None:
        """Write the change to the log, then apply it. It is durable when this returns.

        Raises:
            AlreadyClosed, WriterFenced, WriteFailed, NotEnoughBookies: The writer has ended. Open the store
                again.
        """
        self._writer.write(json.dumps([key, value]).encode())
        self.values[key] = value

    def checkpoint(self) -> None:
        """Store all values and the log position in one file, then truncate the changes before it."""
        # The position after the last change of this process: the log may have changes of a later process.
        end = self._writer.position
        aside = self._checkpoint.with_suffix(".new")
        aside.write_text(json.dumps({"values": self.values, "position": end.to_json()}))
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.rename(self._checkpoint)
        self._log.truncate(end.dlsn)

    def die(self) -> None:
        """End as if killed: flush nothing, close nothing."""
        self._writer.abort()


def run(uri: str) -> None:
    """Write, kill and restart a store; then checkpoint, kill and restart it again."""
    with open_namespace(uri) as namespace, tempfile.TemporaryDirectory() as directory:
        log = namespace.open_log(f"store-{token_hex(3)}")
        file = Path(directory) / "checkpoint"
        store = KeyValueStore(log, file)
        for number in range(100):
            store.put(f"key {number % 10}", str(number))
        before = dict(store.values)
        store.die()

        store = KeyValueStore(log, file)
        assert store.values == before
        print(f"started again: {len(store.values)} keys, {store.replayed} changes replayed")
        store.checkpoint()
        store.put("key 3", "after the checkpoint")
        store.die()

        store = KeyValueStore(log, file)
        assert store.values == before | {"key 3": "after the checkpoint"}
        print(f"started again: {len(store.values)} keys, {store.replayed} changes replayed")
        store.die()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with local_cluster() as cluster:
            run(cluster.uri)
