"""A write-ahead log: a store in memory that loses nothing when its process dies.

Each change is on disk at a quorum of bookies before it is applied and answered. Who starts the store again,
here or on another machine, fences what may be left of the old process, loads the last checkpoint and applies
what the log has after it. A checkpoint is a file beside the store; the log is truncated to it, so it has to
be as safe as the log: a real one is copied somewhere first.

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
    """Keys to values."""

    def __init__(self, log: Log, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.values: dict[str, str] = {}
        self._writer = log.open_writer(takeover=True)  # from here on nobody else changes the log
        position = None
        if checkpoint.exists():
            stored = json.loads(checkpoint.read_text())
            self.values, position = stored["values"], Position.from_json(stored["position"])
        # "earliest" would pass over in silence what a lost checkpoint had.
        begin = None if position else DLSN.INITIAL
        self.replayed = 0
        with log.open_reader(position=position, dlsn=begin, to="end") as reader:
            for record in reader:
                key, value = json.loads(record.payload)
                self.values[key] = value
                self.replayed += 1
        self._log = log

    def put(self, key: str, value: str) -> None:
        """Durable when it returns. After an error of the log nothing more is taken: start the store again."""
        self._writer.write(json.dumps([key, value]).encode())
        self.values[key] = value

    def checkpoint(self) -> None:
        """All values and where the log goes on, as one file; then the changes before it are given up."""
        end = self._writer.position  # after what this process wrote: another one may have gone on
        aside = self._checkpoint.with_suffix(".new")
        aside.write_text(json.dumps({"values": self.values, "position": end.to_json()}))
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.rename(self._checkpoint)
        self._log.truncate(end.dlsn)

    def die(self) -> None:
        """As a kill: nothing is flushed, nothing closed."""
        self._writer.abort()


def run(uri: str) -> None:
    """Written, killed, started again; checkpoint, killed, started again."""
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
