"""A program that writes a log and takes it over whenever its writer ends; Prometheus may scrape it.

    python -m tests.chaos.counted_writer URI LOG PORT

Two of them are two services that somebody has configured for one log. Each error is a line of stdout.
"""

import sys
import time

from prometheus_client import REGISTRY, start_http_server

from distributedlog.blocking import open_namespace
from distributedlog.runtime.errors import DistributedLogError

PAUSE_S = 0.2


def main(uri: str, log: str, port: int) -> None:
    """Until it is killed."""
    start_http_server(port, addr="127.0.0.1")
    with open_namespace(uri, metrics=REGISTRY) as namespace:
        while True:
            try:
                with namespace.open_log(log).open_writer(takeover=True) as writer:
                    while True:
                        writer.write(b"x")
                        time.sleep(PAUSE_S)
            except DistributedLogError as error:
                print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
