"""Store data that needs attention before an upgrade; run by the Python of the older build.

    older_data_program.py URI

Prints one JSON line with the names of the logs.
"""

import json
import sys
from math import inf

from distributedlog import LogRecord
from distributedlog.blocking import open_namespace


def main(uri: str) -> None:
    """Write logs with a boolean txid, with decreasing txids, and with an infinite option."""
    names = ["booleans", "decreasing", "infinite"]
    with open_namespace(uri) as namespace:
        for name in names:
            namespace.create_log(name)
        with namespace.open_log("booleans").open_writer() as writer:
            writer.write(LogRecord(True, b"x"))
        unchecked = namespace.open_log("decreasing", config={"max_txid_check": False})
        with unchecked.open_writer() as writer:
            writer.write(LogRecord(9, b"x"))
            writer.write(LogRecord(1, b"x"))
        namespace.open_log("infinite").set({"keep_alive_s": inf})
    print(json.dumps(names))


if __name__ == "__main__":
    main(sys.argv[1])
