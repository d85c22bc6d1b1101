"""A change feed: what happens to a table goes into a log, and others keep copies of it up to date.

The record's txid is the row's version, so a consumer that sees one twice knows it. A consumer stores its
position by a name after what it did: at least once, and with versions exactly once. It is killed in the
middle here and goes on where it had stored that it was.

python examples/cookbook/follow_changes.py [distributedlog://HOST:PORT/NAMESPACE]
"""

import json
import sys
from secrets import token_hex

from distributedlog import LogRecord
from distributedlog.blocking import Log, local_cluster, open_namespace

CHANGES = 60
STORED_EACH = 8


class Copy:
    """A table that follows the feed; it outlives its consumer, as a database does."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, str]] = {}
        self.seen_twice = 0

    def apply(self, version: int, key: str, value: str | None) -> None:
        """Versions ascend: an older one than the row's was applied before."""
        if self.rows.get(key, (-1, ""))[0] >= version:
            self.seen_twice += 1
        else:
            self.rows[key] = (version, value or "")


def consume(log: Log, name: str, copy: Copy, changes: int) -> None:
    """Follow the feed from where ``name`` stands; after so many changes the process is killed."""
    with log.open_reader(position=log.positions.proven(name)) as reader:
        for taken in range(1, changes + 1):
            record = reader.read_next(wait_s=10)
            if record is None:
                return
            key, value = json.loads(record.payload)
            copy.apply(record.txid, key, value)
            if taken % STORED_EACH == 0 and reader.position is not None:
                log.positions.advance(name, reader.position)


def run(uri: str) -> None:
    """A producer, and a consumer that is killed after 30 changes."""
    with open_namespace(uri) as namespace:
        log = namespace.open_log(f"changes-{token_hex(3)}")
        truth: dict[str, tuple[int, str]] = {}
        with log.open_writer() as writer:
            for version in range(CHANGES):
                key, value = f"row {version % 7}", f"value {version}"
                writer.submit(LogRecord(version, json.dumps([key, value]).encode()))
                truth[key] = (version, value)
            writer.commit()
        copy = Copy()
        consume(log, "copy", copy, 30)
        print(f"killed after 30 of {CHANGES} changes")
        consume(log, "copy", copy, CHANGES - 30 // STORED_EACH * STORED_EACH)
        assert copy.rows == truth
        print(f"the copy is whole; {copy.seen_twice} changes came twice")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with local_cluster() as cluster:
            run(cluster.uri)
