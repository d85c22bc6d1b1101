"""Other systems beside this one, by turns in one run, each with a sync before its acknowledgement.

    python -m distributedlog.testing.bench.peers --seconds 10 --turns 3 --data DIR [--only ours,nats]

peer.py                         what is asked of each, and three servers of it as processes
nats.py, redis.py, postgresql.py    one system each: its settings, its fastest documented calls
__main__.py                     this project; prints the table of docs/internals/peer-benchmarks.md

Needs the servers' programs on the PATH (``nats-server``, ``redis-server``, PostgreSQL's) and their clients
(``nats-py``, ``redis[hiredis]``, ``psycopg[binary]``); what is missing, or does not start, is left out, and
named with its reason. ``nats-server`` is to be 2.10 or newer: older ones know no ``sync_interval: always``.
"""
