"""Faults on real processes and containers, from scenario files, judged by what the clients saw.

    model/scenario.py, model/scenario_file.py   what a scenario says, and its TOML
    run/runner.py                       one run: a cluster, clients, faults, heal, the last reading, the
    verdict;
                                    commands to it from outside
    run/fault_player.py, run/fault_targets.py     plays the faults, within what the service promises
    model/adapter.py, adapters/real_cluster.py     where it is played, and what both places have in common:
        adapters/local_processes.py, adapters/process_node.py, adapters/faulty_node.py,
        adapters/node_forwarder.py      processes on this machine adapters/containers.py,
        adapters/container.py, adapters/container_network.py, adapters/docker_engine.py    Docker
        clients/authorization_walk.py                         certificates for all, and rights that come and
        go meanwhile
    adapters/loop_disks.py, adapters/disk_damage.py             file systems of their own; damage to files
    clients/client_processes.py                      the client processes, started, killed and told to end;
        clients/client_main.py, clients/client_context.py, clients/writers.py, clients/readers.py,
        clients/gateway_clients.py      what they do: they note all they see
    clients/cluster_endpoints.py                       where they find the cluster; whom Prometheus is to ask
    run/html_report.py, run/run_timeline.py           what came of it, as one page

The judges are in `verify/`.
"""
