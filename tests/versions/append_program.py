"""Append numbered records with a producer until a file appears; run by the Python of either build.

    append_program.py URI LOG PRODUCER STOP_FILE

Uses the public API alone. Prints the line "{}" after the first acknowledgement. At the end it prints one JSON
line: the number of acknowledged records, the longest time in seconds between two acknowledgements, and the
errors after which the writer was opened again.
"""

import json
import sys
import time
from pathlib import Path

from distributedlog import DistributedLogError, LogRecord
from distributedlog.blocking import open_namespace

BATCH = 20
PAUSE_S = 0.02
RETRY_S = 0.2
GIVE_UP_S = 90.0


def main(uri: str, log: str, producer: str, stop: Path) -> None:
    """Append until the stop file exists; raise if nothing is acknowledged for `GIVE_UP_S`."""
    acknowledged, longest_gap_s = 0, 0.0
    last_ack = time.monotonic()
    errors: list[str] = []
    with open_namespace(uri) as namespace:
        while not stop.exists():
            try:
                with namespace.open_log(log).open_writer(producer=producer) as writer:
                    assert writer.producer is not None
                    sequence = writer.producer.next_sequence
                    assert sequence >= acknowledged, (sequence, acknowledged)
                    while not stop.exists():
                        clock_ms = time.time_ns() // 1_000_000
                        pending = [
                            writer.submit(
                                LogRecord(txid=clock_ms, payload=f"{producer} {n}".encode())
                            )
                            for n in range(sequence, sequence + BATCH)
                        ]
                        for write in pending:
                            write.result()
                        sequence += BATCH
                        if not acknowledged:
                            print("{}", flush=True)
                        acknowledged = sequence
                        longest_gap_s = max(longest_gap_s, time.monotonic() - last_ack)
                        last_ack = time.monotonic()
                        time.sleep(PAUSE_S)
            except DistributedLogError as error:
                errors.append(f"{type(error).__name__}: {error}"[:200])
                if time.monotonic() - last_ack > GIVE_UP_S:
                    raise
                time.sleep(RETRY_S)
    print(
        json.dumps(
            {
                "acknowledged": acknowledged,
                "longest_gap_s": round(longest_gap_s, 2),
                "errors": errors[-20:],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
