"""Try to read, write, truncate and seal a log with keys and headers; run by the Python of either build.

    keyed_program.py URI LOG

Prints one JSON object: the payloads that were read before an error, and per call its error or "ok".
"""

import json
import sys
from collections.abc import Callable

from distributedlog import DistributedLogError, LogRecord
from distributedlog.blocking import Log, open_namespace


def main(uri: str, log: str) -> None:
    """Call each operation once."""
    payloads: list[str] = []

    def read(handle: Log) -> None:
        with handle.open_reader() as reader:
            while (record := reader.read_next(10)) is not None:
                payloads.append(bytes(record.payload).decode())

    def read_columns(handle: Log) -> None:
        with handle.open_reader(to="end") as reader:
            while reader.read_columns(10) is not None:
                pass

    def write(handle: Log) -> None:
        with handle.open_writer() as writer:
            writer.write(LogRecord(txid=1 << 50, payload=b"older"))

    calls: dict[str, Callable[[Log], object]] = {
        "read": read,
        "read_columns": read_columns,
        "last": lambda handle: handle.last_record(),
        "write": write,
        "truncate": lambda handle: handle.truncate(handle.last_dlsn()),
    }
    outcomes = {}
    with open_namespace(uri) as namespace:
        for name, call in calls.items():
            try:
                call(namespace.open_log(log))
                outcomes[name] = "ok"
            except DistributedLogError as error:
                outcomes[name] = type(error).__name__
    print(json.dumps({"payloads": payloads, "outcomes": outcomes}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
