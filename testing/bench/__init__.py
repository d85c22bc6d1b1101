"""Benchmarks, one file a question; `dlog bench` is their face.

measure/hardware_baseline.py, measure/baseline_node.py         what the machine allows: every figure is a
ratio to it cases/write.py, cases/read.py, cases/tail.py      rates and latencies of one log, or many; from
call to reader cases/metadata_changes.py                     changes a second of a metadata quorum, and what
each costs cases/metadata_state.py               what its state costs: an insert, a key, a snapshot, a restart
cases/metadata_snapshots.py           what a change waits for while snapshots of a large state are taken
cases/interference.py                 what a lone writer feels of a reader that catches up
cases/tls.py                          what TLS costs, on both sides
cases/proxies.py                      one log for many connections through a write proxy; many logs on one
cases/spark.py                        Spark's source and sink beside the same without us
campaign.py                     all of them in turns: the figures of docs/internals/performance.md
cases/many_logs.py                    what a record costs by how many logs are written
compare_builds.py                       the campaign's cases with two builds by turns: is this one slower?
measure/bench_plan.py                         what was asked; help and end of what is run as `python -m`
measure/histogram.py, measure/svg_report.py        latencies in buckets, records per second; the run as SVG
peers/                          other systems: the figures of docs/internals/peer-benchmarks.md
measure/machine_info.py, measure/interpreter_info.py      the machine, and the build of the interpreter
"""
