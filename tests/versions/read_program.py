"""Read a whole log and count its records per producer; run by the Python of either build.

    read_program.py URI LOG

Prints one JSON object: for each producer the number of records, and the first record that is not the
successor of the one before it (null if each record is there exactly once, in order).
"""

import json
import sys

from distributedlog.blocking import open_namespace


def main(uri: str, log: str) -> None:
    """Read from the beginning to the current end."""
    counts: dict[str, int] = {}
    unexpected: dict[str, str | None] = {}
    with open_namespace(uri) as namespace, namespace.open_log(log).open_reader(to="end") as reader:
        while batch := reader.read_bulk(1000):
            for record in batch:
                producer, number = bytes(record.payload).decode().split()
                expected = counts.get(producer, 0)
                if int(number) != expected and unexpected.get(producer) is None:
                    unexpected[producer] = f"{record.dlsn}: {number}, expected {expected}"
                unexpected.setdefault(producer, None)
                counts[producer] = expected + 1
    print(json.dumps({"counts": counts, "unexpected": unexpected}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
