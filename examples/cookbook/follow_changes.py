"""A change feed: the changes of a table are written to a log, from which consumers update their copies.

The transaction ID of a record is the version of the row, so a consumer recognizes a repeated change. A
consumer stores its named position after it has applied the changes. Each change is therefore delivered at
least once, and applied exactly once because of its version. This program kills the consumer, which then
continues at its stored position.

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
    """A table that is updated from the feed. It outlives its consumer, as a database does."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, str]] = {}
        self.seen_twice = 0

    def apply(self, version: int, key: str, value: str | None) -> None:
        """Apply a change, unless the row has this version or a newer one: it was then applied before."""
        if self.rows.get(key, (-1, ""))[0] >= version:
            self.seen_twice += 1
        else:
            self.rows[key] = (version, value or "")


def consume(log: Log, name: str, copy: Copy, changes: int) -> None:
    """Follow the feed from the named position ``name``, and simulate a kill after this number of changes."""
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
    """Write changes, and consume them with a consumer that is killed after 30 changes."""
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
        print(f"the copy is complete; {copy.seen_twice} changes were repeated")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with local_cluster() as cluster:
            run(cluster.uri)
