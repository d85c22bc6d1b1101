"""Measure the replicated state of a metadata node: insert rate, memory per key, snapshot and restore.

    python -m distributedlog.testing.bench.cases.metadata_state --keys 1000000

One process without disk and network decodes and applies commands as a node does. Each command puts one key
of 33 bytes, in random order. Figures are CPU seconds unless stated otherwise. The slowest apply is in elapsed
time, which includes other processes of the machine. The snapshot is taken without pauses, and a new state is
built from it.
"""

import json
import os
import random
import resource
from time import perf_counter, process_time
from typing import Any

from ....metadata.model.commands import Transact, encode_command
from ....metadata.model.transaction import Put, Transaction
from ....metadata.state.kv_snapshot import SnapshotBuilder, snapshot_chunks
from ....metadata.state.kv_state import KeyValueState
from ..measure.bench_plan import parser_of, run
from ..measure.interpreter_info import this_build

BATCH = 1000
SLOW_S = 0.005


def measure(keys: int, value_bytes: int, seed: int = 1) -> dict[str, Any]:
    """Insert ``keys`` keys, take a snapshot and restore it. Return the figures by name."""
    rng, state = random.Random(seed), KeyValueState()
    memory_before = _held_bytes()
    cpu_s = last_s = worst_s = 0.0
    slow_applies = 0
    for first in range(1, keys + 1, BATCH):
        commands = []
        for number in range(first, min(keys + 1, first + BATCH)):
            key = b"%032x" % rng.getrandbits(128)
            put = Put(b"/" + key, rng.randbytes(value_bytes))
            change = Transact("bench", number, number - 1, Transaction((), (put,)))
            commands.append(encode_command(change))
        begun_cpu_s = process_time()
        for command in commands:
            begun_at = perf_counter()
            state.apply(state.index + 1, command)
            apply_s = perf_counter() - begun_at
            worst_s = max(worst_s, apply_s)
            slow_applies += apply_s > SLOW_S
        last_s = process_time() - begun_cpu_s
        cpu_s += last_s
    memory_bytes = _held_bytes() - memory_before
    assert state.revision == keys, "each key is new"

    size = chunks = 0
    snapshot_cpu_s = worst_chunk_s = 0.0
    stored_chunks = []
    begun_cpu_s, begun_at = process_time(), perf_counter()
    for chunk in snapshot_chunks(state):
        worst_chunk_s = max(worst_chunk_s, perf_counter() - begun_at)
        size, chunks = size + len(chunk), chunks + 1
        stored_chunks.append(chunk)
        begun_at = perf_counter()
    snapshot_cpu_s = process_time() - begun_cpu_s
    del state
    builder = SnapshotBuilder(KeyValueState())
    begun_cpu_s = process_time()
    for chunk in stored_chunks:
        builder.add(chunk)
    builder.finish()
    return {
        "keys": keys,
        "inserts_per_cpu_s": round(keys / cpu_s),
        "last_inserts_per_cpu_s": round(len(commands) / last_s),
        "worst_apply_ms": round(worst_s * 1e3, 2),
        "applies_over_5_ms": slow_applies,
        "bytes_a_key": round(memory_bytes / keys),
        "snapshot_bytes": size,
        "snapshot_chunks": chunks,
        "snapshot_cpu_s": round(snapshot_cpu_s, 2),
        "worst_chunk_ms": round(worst_chunk_s * 1e3, 2),
        "restore_cpu_s": round(process_time() - begun_cpu_s, 2),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _held_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure and print one line per figure, or JSON."""
    parser = parser_of(__spec__.name, __doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    results = measure(args.keys, args.value_bytes)
    if args.json:
        print(json.dumps(results))
        return
    print(this_build().describe())
    for name, figure in results.items():
        print(f"{name:24} {figure:>13,}")


if __name__ == "__main__":
    run(main)
