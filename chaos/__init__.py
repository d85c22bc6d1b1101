"""Faults on real processes and containers, from scenario files, judged by what the clients saw.

    scenario.py, scenario_file.py   what a scenario says, and its TOML
    runner.py                       one run: a cluster, clients, faults, heal, the last reading, the verdict;
                                    commands to it from outside
    fault_player.py, targets.py     plays the faults, within what the service promises
    adapter.py, real_cluster.py     where it is played, and what both places have in common:
        local_processes.py, process_node.py, node.py, proxy.py      processes on this machine
        containers.py, container.py, container_network.py, engine.py    Docker
        walk.py                         certificates for all, and rights that come and go meanwhile
    disks.py, damage.py             file systems of their own; damage to files
    clients.py                      the client processes, started, killed and told to end;
        client.py, life.py, writers.py, readers.py, posters.py      what they do: they note all they see
    places.py                       where they find the cluster; whom Prometheus is to ask
    report.py, picture.py           what came of it, as one page

The judges are in `verify/`.
"""
