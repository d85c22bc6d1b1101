"""Compare other systems with this one in alternating runs, each with a sync before the acknowledgement.

    python -m distributedlog.testing.bench.peers --seconds 10 --turns 3 --data DIR [--only ours,nats]

Files:

    peer.py        The operations that each system must provide, and its servers as processes.
    nats.py        NATS JetStream: its settings and its fastest documented calls.
    redis.py       Redis Streams: the same.
    postgresql.py  PostgreSQL: the same.
    __main__.py    This project; prints the table of docs/internals/peer-benchmarks.md.

The servers' programs must be on the PATH (``nats-server``, ``redis-server``, PostgreSQL's), and their clients
must be installed (``nats-py``, ``redis[hiredis]``, ``psycopg[binary]``). A system that is missing or does not
start is omitted, and named with the reason. ``nats-server`` must be 2.10 or newer, because older versions do
not support ``sync_interval: always``.
"""
