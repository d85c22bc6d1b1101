"""Append numbered records with a producer until stdin ends; run by the Python of either build.

    append_program.py URI LOG PRODUCER

Uses the public API alone. Prints the line "{}" after the first acknowledgement. At the end it prints one JSON
line: the number of acknowledged records; the gaps, as the time of each acknowledgement that came late and the
seconds since the one before it; and the errors after which the writer was opened again.
"""

import json
import sys
import threading
import time

from distributedlog import DistributedLogError
from distributedlog.blocking import open_namespace

BATCH = 20
PAUSE_S = 0.02
RETRY_S = 0.2
GAP_S = 0.5
GIVE_UP_S = 90.0


def main(uri: str, log: str, producer: str) -> None:
    """Append until stdin ends; raise if nothing is acknowledged for `GIVE_UP_S`."""
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    acknowledged = 0
    gaps: list[tuple[float, float]] = []
    last_ack = time.monotonic()
    errors: list[str] = []
    with open_namespace(uri) as namespace:
        while not stop.is_set():
            try:
                with namespace.open_log(log).open_writer(producer=producer) as writer:
                    assert writer.producer is not None
                    sequence = writer.producer.next_sequence
                    assert sequence >= acknowledged, (sequence, acknowledged)
                    while not stop.is_set():
                        pending = [
                            writer.submit(f"{producer} {n}".encode())
                            for n in range(sequence, sequence + BATCH)
                        ]
                        for write in pending:
                            write.result()
                        sequence += BATCH
                        if not acknowledged:
                            print("{}", flush=True)
                        acknowledged = sequence
                        now = time.monotonic()
                        if now - last_ack > GAP_S:
                            gaps.append((now, now - last_ack))
                        last_ack = now
                        time.sleep(PAUSE_S)
            except DistributedLogError as error:
                errors.append(f"{type(error).__name__}: {error}"[:200])
                if time.monotonic() - last_ack > GIVE_UP_S:
                    raise
                time.sleep(RETRY_S)
    print(json.dumps({"acknowledged": acknowledged, "gaps": gaps, "errors": errors[-20:]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
