"""Copy a log to another one, exactly once, even if the copier is killed repeatedly.

The transaction IDs of the target are the sequence IDs of the source. A target record thus contains data and
progress, and nothing must be stored in two places at once. A named position of the source is only a hint
where to start, and may lag. This program kills the copier several times with pending records.

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
    """Copy the missing records.

    Args:
        dies_after: Simulate a kill after this number of records.
    Returns:
        The number of records that were read and submitted.
    """
    writer = target.open_writer(takeover=True)  # recovers the pending records of an earlier copier
    done = writer.last_txid
    taken = 0
    with source.open_reader(position=source.positions.proven("copier"), to="end") as reader:
        for record in reader:
            if record.sequence_id <= done:
                continue  # copied already, because the hint lags
            writer.submit(LogRecord(record.sequence_id, record.payload.upper()))
            taken += 1
            if taken == dies_after:
                writer.abort()  # flushes nothing; pending records may be stored or not
                return taken
            if taken % HINT_EACH == 0 and reader.position is not None:
                writer.commit()  # the hint must not be ahead of the stored records
                source.positions.advance("copier", reader.position)
    writer.close()
    return taken


def run(uri: str) -> None:
    """Write 500 records and copy them with a copier that is killed and restarted until it finishes."""
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
