"""The whole cluster in one process, from a seed: virtual time, simulated network and disks.

`python -m distributedlog.sim --seeds 20` runs it (`__main__.py`). Three worlds, from whole to small:

    seed.py, cluster.py                 the whole cluster in trio: faults, then heal, and judge
        nemesis.py, ambush.py, moments.py       faults at random times, and at moments that count
        campaign.py, tuning.py          many seeds; small bounds
        pipeline.py, once.py            other clients: pipelines; producers
        proxied.py                      many writers and readers of one log, behind proxies
        trusted.py                      certificates, grants, and those who have none
            meetings.py, shown.py, effects.py    what each of them is told, and gets done
            token_ends.py, at_proxies.py        who comes by tokens, at nodes and at proxies
            crowding.py, progress.py    who wants more than his share; how honest writers fare beside each
    bookie_world.py                     one real bookie and bad clients
    ledger_world.py, raft_world.py      cores alone on one heap, thousands of seeds a minute
        ledger_*.py, raft_*.py          their actors, networks, faults and oracles

What the worlds in trio stand on, from the ground up:

    scheduler.py, wall.py               time, order and chance from a seed; no real world
    unexpected.py                       exceptions that are thrown into tasks
    network.py                          streams that are cut, split, reset, half open
    disk.py, disk_handle.py             a page cache above durable sectors; LMDB's promise; handles
    host.py, machine_state.py           a machine: power cuts before the process may tidy up; stalls
    taps.py                             the oracles of verify/ on the wire

Files with `planted` in their name hold bugs that seeds must find: the simulator's own exam; planting.py
puts them in, and hears of broken rules that the product keeps to one log.
"""
