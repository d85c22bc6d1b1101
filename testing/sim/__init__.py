"""The whole cluster in one process, from a seed: virtual time, simulated network and disks.

`python -m distributedlog.testing.sim --seeds 20` runs it (`__main__.py`). Three worlds, from whole to small:

    workloads/seed.py, world/sim_cluster.py                 the whole cluster in trio: faults, then heal, and
    judge
        faults/nemesis.py, faults/targeted_faults.py, faults/trigger_points.py       faults at random times,
        and at moments that count workloads/campaign.py, faults/parameter_sets.py          many seeds; small
        bounds workloads/pipeline.py, workloads/exactly_once.py            other clients: pipelines; producers
        workloads/proxy_world.py                      many writers and readers of one log, behind proxies
        workloads/authorized_world.py                      certificates, grants, and those who have none
            oracles/connection_observer.py, oracles/disclosure_oracle.py, oracles/bookie_effect_oracle.py
            what each of them is told, and gets done oracles/token_expiry.py, oracles/proxy_rights_oracle.py
            who comes by tokens, at nodes and at proxies faults/overload.py, workloads/writer_progress.py
            who wants more than his share; how honest writers fare beside each
    ledger/bookie_world.py                     one real bookie and bad clients
    ledger/ledger_world.py, raft/raft_world.py      cores alone on one heap, thousands of seeds a minute
        ledger_*.py, raft_*.py          their actors, networks, faults and oracles

What the worlds in trio stand on, from the ground up:

    world/scheduler.py, world/isolation_guard.py               time, order and chance from a seed; no real
    world faults/unexpected_errors.py                       exceptions that are thrown into tasks
    world/network.py                          streams that are cut, split, reset, half open
    world/disk.py, world/disk_handle.py             a page cache above durable sectors; LMDB's promise;
    handles world/sim_host.py, world/machine_state.py           a machine: power cuts before the process may
    tidy up; stalls world/oracle_taps.py                             the oracles of verify/ on the wire

Files with `planted` in their name hold bugs that seeds must find: the simulator's own exam;
world/bug_injection.py puts them in, and hears of broken rules that the product keeps to one log.

Limits: an adversary's CPU time is not in virtual time. All logs of a seed with rights are in one namespace.
Clients show tokens to read proxies in a quarter of these seeds, and never to write proxies. Cluster seeds
replace no metadata node, and at most one bookie per run loses data. Targeted faults rarely hit an ensemble
change and never a hand-over of a log. Merging is off.
"""
