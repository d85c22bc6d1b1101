"""Benchmarks, one file a question; `dlog bench` is their face.

floor.py, floor_node.py         what the machine allows: every figure is a ratio to it
write.py, read.py, tail.py      rates and latencies of one log, or many; from call to reader
metadata.py                     changes a second of a metadata quorum, and what each costs
metadata_state.py               what its state costs: an insert, a key, a snapshot, a restart
metadata_snapshots.py           what a change waits for while snapshots of a large state are taken
interference.py                 what a lone writer feels of a reader that catches up
tls.py                          what TLS costs, on both sides
proxies.py                      one log for many connections through a write proxy; many logs on one
spark.py                        Spark's source and sink beside the same without us
campaign.py                     all of them in turns: the figures of docs/performance.md
many_logs.py                    what a record costs by how many logs are written
builds.py                       the campaign's cases with two builds by turns: is this one slower?
plan.py                         what was asked; help and end of what is run as `python -m`
histogram.py, picture.py        latencies in buckets, what each second had; the run as an SVG
peers/                          other systems beside this one: the figures of docs/comparison.md
machine.py, interpreter.py      what the machine is, and how the interpreter was built
"""
