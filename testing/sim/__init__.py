"""Simulate the whole cluster in one process from a seed: virtual time, simulated network and disks.

`python -m distributedlog.testing.sim --seeds 20` runs seeds of the whole cluster (`__main__.py`). There are
three kinds of worlds.

The whole cluster, in trio; a seed injects faults, ends them, and then checks the result:

    workloads/seed.py                One seed: cluster, clients, faults, end of all faults, checks.
    workloads/campaign.py            Run many seeds and sum up their results.
    workloads/pipeline.py            Clients that work as pipelines: links, truncation, named positions.
    workloads/exactly_once.py        Clients that are producers: each record is stored once.
    workloads/proxy_world.py         Many writers and readers of one log, through proxies and directly.
    workloads/authorized_world.py    Clients with certificates, grants or tokens, and clients without rights.
    workloads/writer_progress.py     Compare the latency of honest writers with and without an adversary.
    faults/nemesis.py                Faults at random times.
    faults/targeted_faults.py        Faults at chosen protocol states, such as an ensemble change.
    faults/trigger_points.py         Detect these states on the wire and at the disks.
    faults/parameter_sets.py         Smaller limits, so that rare events occur within a run.
    faults/overload.py               A greedy user and unauthenticated peers, and the resources that others
                                     must keep.

Oracles of the worlds with rights:

    oracles/connection_observer.py   Observe clients' connections: principals, requests and answers.
    oracles/disclosure_oracle.py     Check that the metadata service discloses only what the client has a
                                     right to.
    oracles/bookie_effect_oracle.py  Check that bookies act only on valid capabilities.
    oracles/token_expiry.py          Check the end and the revocation of tokens and passes at nodes.
    oracles/proxy_rights_oracle.py   Check what a proxy does for clients with tokens.

One real bookie and clients that misuse it:

    ledger/bookie_world.py           The bookie, its simulated disk and network, and its clients.

The cores alone on one heap of events, without tasks, thousands of seeds per minute:

    ledger/ledger_world.py           The ledger protocol: one seed, its faults and its end.
    ledger/ledger_actors.py          The writer and the tailing reader.
    ledger/ledger_recoverer.py       A client that recovers the ledger, and sometimes fails.
    ledger/ledger_network.py         Bookies with faults, links to them, and the metadata store of one record.
    ledger/ledger_model.py           A simple model of a bookie, durable at once.
    ledger/ledger_oracles.py         The rules of the ledger protocol, checked at each step.
    raft/raft_world.py               Raft clusters: one seed, its faults and its end.
    raft/raft_node.py                One node: a disk that survives a crash, a core that does not.
    raft/raft_disk.py                The durable state of a node, and its state after a crash.
    raft/raft_faults.py              The mix of faults of a seed.
    raft/raft_oracles.py             The rules of Raft, checked at each step.
    raft/raft_corruption.py          Worlds with corrupt disks.
    raft/raft_disk_copies.py         Worlds with nodes that start from an older copy of their directory.
    raft/raft_versions.py            Worlds with nodes of two versions.

The simulated machines below the worlds in trio:

    world/sim_cluster.py             A whole cluster on simulated machines; a supervisor restarts ended nodes.
    world/sim_host.py                A machine: disks and addresses survive a power cut, the process does not.
    world/machine_state.py           Shared state of a machine, including stalls of its process.
    world/scheduler.py               Time, order and random choices from the seed.
    world/isolation_guard.py         Raise if code uses the real machine's time, randomness, sockets or
                                     threads.
    world/network.py                 TCP streams that are split, cut, reset or half open.
    world/disk.py                    A page cache above durable sectors, and LMDB's guarantees.
    world/disk_handle.py             The files and maps of a disk that one life of a process has open.
    world/oracle_taps.py             Connect the oracles of `testing/verify` to network, disks and state
                                     machines.
    faults/unexpected_errors.py      Throw exceptions into tasks of nodes, as bugs would raise them.

Injected bugs, which seeds must find; they test the simulator itself:

    world/bug_injection.py           Replace functions of the product. Fail a seed in which the product logs
                                     an unexpected exception, even if it affects one log alone.
    bugs/                            Bugs of authorization, pipeline calls and proxies.
    ledger/ledger_injected_bugs.py   Bugs of the ledger cores.
    raft/raft_injected_bugs.py       Bugs of Raft.

Limits: an adversary's CPU time is not in virtual time. All logs of a seed with rights are in one namespace.
Clients show tokens to read proxies in a quarter of these seeds, and never to write proxies. Cluster seeds
replace no metadata node, and at most one bookie per run loses data. Targeted faults rarely hit an ensemble
change and never a hand-over of a log. Merging is off.
"""
