"""Faults on real processes and containers, from scenario files, judged by what the clients saw.

    scenario.py, scenario_file.py   what a scenario says, and its TOML
    runner.py                       one run: a cluster, clients, faults, heal, the last reading, the verdict
    nemesis.py, targets.py          plays the faults, within what the service promises
    adapter.py                      where it is played:
        local_processes.py, place.py, node.py, proxy.py     processes on this machine
        containers.py, container.py, container_files.py, container_network.py, engine.py    Docker
        disks.py, damage.py         file systems of their own; damage to files
    crew.py, client.py, load.py, writers.py, readers.py     the client processes, which note all they see
    report.py, picture.py, words.py what came of it, as one page

The judges are in `verify/`.
"""
