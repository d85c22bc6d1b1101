"""Inject faults into real processes and containers, and check the observations of the clients.

Scenarios:

    model/scenario.py              A scenario as frozen values: clients, faults, limits.
    model/scenario_file.py         Read a scenario from TOML.
    model/adapter.py               The interface between a scenario and the cluster that runs it.

One run:

    run/runner.py                  Start cluster and clients, inject faults, end them, read all logs, check.
                                   Accept commands from other processes.
    run/fault_player.py            Inject the faults of a scenario, within the guarantees of the service.
    run/fault_targets.py           Choose the nodes of a fault, so that no limit of the scenario is exceeded.
    run/html_report.py             The report as one HTML page.
    run/run_timeline.py            The timeline of a run as SVG: faults, rate and latency.

Clusters:

    adapters/real_cluster.py       Shared by processes and containers: start, disks, clocks.
    adapters/local_processes.py    The adapter for processes on this machine.
    adapters/process_node.py       One node as a process: its files, start, kill and stop.
    adapters/faulty_node.py        A node whose wall clock and memory can be wrong.
    adapters/node_forwarder.py     Forward connections between processes; can cut and slow each link.
    adapters/containers.py         The adapter for Docker containers.
    adapters/container.py          One node's container: its settings and the actions on it.
    adapters/container_network.py  Cut links between containers by rules in their network namespaces.
    adapters/docker_engine.py      Call the Docker engine and compose through their command lines.
    adapters/loop_disks.py         File systems on loop devices, to cut power, fill or break them.
    adapters/disk_damage.py        Damage the files of a node that is down.

Clients:

    clients/client_processes.py    Start, kill, pause and end the client processes.
    clients/client_main.py         The main program of a client process.
    clients/client_context.py      The settings of a client process, and its writer of observations.
    clients/writers.py             Clients that write.
    clients/readers.py             Clients that read, truncate and use registers.
    clients/gateway_clients.py     Clients of the HTTP gateways, which repeat each request until it is
                                   answered.
    clients/cluster_endpoints.py   The addresses of the cluster for clients, and of all metrics pages for
                                   Prometheus.
    clients/authorization_walk.py  Change the authorization mode during a run in which nodes and users have
                                   certificates.

The checkers are in `testing/verify`.
"""
