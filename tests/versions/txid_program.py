"""Append to a log, with txids and without, and search it; run by the Python of either build.

    txid_program.py URI LOG TXID...

Each TXID is a number, or "-" for a record without one, which are written by one writer. Prints one JSON line:
the outcome of each write, the txids that are read, and what a search for txid 5 gives.
"""

import json
import sys

from distributedlog import DistributedLogError, LogRecord
from distributedlog.blocking import open_namespace


def main(uri: str, name: str, txids: list[str]) -> None:
    """Write and read; an error's class stands for what it refuses."""
    outcomes: list[str] = []
    with open_namespace(uri) as namespace:
        log = namespace.open_log(name)
        try:
            with log.open_writer() as writer:
                for txid in txids:
                    try:
                        writer.write(b"x" if txid == "-" else LogRecord(int(txid), b"x"))
                        outcomes.append("ok")
                    except DistributedLogError as error:
                        outcomes.append(type(error).__name__)
        except DistributedLogError as error:
            outcomes.append(type(error).__name__)
        with log.open_reader(to="end") as reader:
            found = [record.txid for record in reader]
        try:
            at = str(log.find(txid=5))
        except DistributedLogError as error:
            at = type(error).__name__
    print(json.dumps({"outcomes": outcomes, "txids": found, "find": at}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
