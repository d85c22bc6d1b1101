"""Log to log, exactly once, whatever dies.

The target's txids are the source's sequence ids: the target says itself how far it got, in the same record as
the data, and nothing has to be stored in two places at one moment. A named position of the source is a hint
where to begin to look, and may lag. The copier is killed here again and again, with records under way.

python examples/cookbook/exactly_once.py [distributedlog://HOST:PORT/NAMESPACE]
"""

import sys
from random import Random
from secrets import token_hex

from distributedlog import LogRecord
from distributedlog.blocking import Log, local_cluster, open_namespace

RECORDS = 500
HINT_EACH = 50


def copy(source: Log, target: Log, dies_after: int | None = None) -> int:
    """Copy what is not there yet; after ``dies_after`` records the process is killed. How many were taken."""
    writer = target.open_writer(
        takeover=True
    )  # what an earlier copier had under way is there now, or never
    done = writer.last_txid
    taken = 0
    with source.open_reader(position=source.positions.proven("copier"), to="end") as reader:
        for record in reader:
            if record.sequence_id <= done:
                continue  # the hint lags
            writer.submit(LogRecord(record.sequence_id, record.payload.upper()))
            taken += 1
            if taken == dies_after:
                writer.abort()  # nothing is flushed; of what is under way nobody knows what is stored
                return taken
            if taken % HINT_EACH == 0 and reader.position is not None:
                writer.commit()  # the hint must not be ahead of what is stored
                source.positions.advance("copier", reader.position)
    writer.close()
    return taken


def run(uri: str) -> None:
    """500 records, and a copier that dies until it is through."""
    name = token_hex(3)
    chance = Random(1)
    with open_namespace(uri) as namespace:
        source, target = namespace.open_log(f"from-{name}"), namespace.open_log(f"to-{name}")
        with source.open_writer() as writer:
            writer.write_bulk([LogRecord(n, b"record %d" % n) for n in range(RECORDS)])
        deaths = 0
        while True:
            dies_after = chance.randrange(1, 120)
            if copy(source, target, dies_after) < dies_after:
                break
            deaths += 1
        with target.open_reader(to="end") as reader:
            found = [record.payload for record in reader]
        assert found == [b"RECORD %d" % n for n in range(RECORDS)]
        print(f"{len(found)} records, each once, after {deaths} deaths")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with local_cluster() as cluster:
            run(cluster.uri)
