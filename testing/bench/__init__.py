"""Measure the system, one file per question; `dlog bench` runs some of the benchmarks.

Benchmarks:

    cases/write.py                Rates and latencies of writes to one log or many.
    cases/read.py                 Rates of reads from the beginning of a log.
    cases/tail.py                 Latency from the write call to a reader in another process.
    cases/many_logs.py            Cost of a record by the number of written logs.
    cases/metadata_changes.py     Changes per second of a metadata quorum, and the cost of each.
    cases/metadata_state.py       Cost of the replicated state: an insert, memory per key, a snapshot, a
                                  start.
    cases/metadata_snapshots.py   Latency of a change while nodes take snapshots of a large state.
    cases/interference.py         Latency of a single-record writer during a catch-up read.
    cases/tls.py                  CPU cost of TLS, on both sides.
    cases/proxies.py              One log for many connections through a write proxy; many logs on one proxy.
    cases/spark.py                Spark's source and sink, compared with Spark and a writer alone.

Comparisons:

    campaign.py                   All benchmarks in alternating runs with a baseline: the figures of
                                  docs/internals/performance.md.
    compare_builds.py             Compare two builds in alternating runs.
    peers/                        Compare with other systems: the figures of
                                  docs/internals/peer-benchmarks.md.

Shared by the benchmarks:

    measure/hardware_baseline.py  The baselines of the machine; every other figure is a ratio to one of them.
    measure/baseline_node.py      One node of the replicated baseline.
    measure/bench_plan.py         The arguments and the result of a benchmark; help and end of `python -m`
                                  programs.
    measure/histogram.py          Latencies in buckets, and records per second.
    measure/svg_report.py         A run of `dlog bench` as SVG.
    measure/machine_info.py       The machine, and CPU that other processes used during a run.
    measure/interpreter_info.py   The build of the interpreter.
"""
