# ruff: noqa: E501
"""What `apply_moves.py` writes beside the moves: docstrings of folders, and edits by hand."""

FOLDERS = {
    "bookie/client": "The client of one bookie.",
    "bookie/declarations": "Options, events, metrics and counters of a bookie.",
    "bookie/disk": "Disk space of a bookie: when it accepts writes, and the reserve on a full disk.",
    "bookie/format": "The bytes of a bookie: entries, journal, compacted files, index, messages.",
    "bookie/gc": "Free the space of deleted ledgers: compaction, checkpoints, removal of files.",
    "bookie/integrity": "Detect lost and corrupt entries: limbo, scrubber, removal of copies.",
    "bookie/ledgers": "The state of ledgers in memory, and requests that wait for it.",
    "bookie/replay": "Read journal and compacted files at a start.",
    "bookie/session": "Connections of clients: authorization, requests and the order of reads.",
    "bookie/storage": "Journal, index, group commit and reads of entries.",
    "bookie/store": "The store of a bookie: its start, and adds to it.",
    "cluster/auth": "Rights on the keys of the metadata, and credentials of users at a node.",
    "cluster/coordination": "Registration of a bookie, and state that nodes agree on in the metadata.",
    "cluster/declarations": "Options, events and configuration of nodes.",
    "cluster/gc": "Retention, and removal of segments and ledgers that no log uses.",
    "cluster/local": "A whole cluster on one machine, as child processes.",
    "cluster/node": "Nodes of each kind, assembled from their parts.",
    "cluster/process": "A node as a process: directories, life time, HTTP pages, log lines.",
    "cluster/repair": "Replication of lost, corrupt and misplaced copies of ledgers.",
    "cluster/status": "The state of a cluster for people and programs.",
    "distributedlog/cli/access": "Commands for users, grants, authorization and certificates.",
    "distributedlog/cli/cluster": "Commands for the nodes of a cluster.",
    "distributedlog/cli/connection": "The connection of a command to a cluster.",
    "distributedlog/cli/framework": "Shared by all commands: options, output, errors, standard streams.",
    "distributedlog/cli/help": "Help and completion.",
    "distributedlog/cli/logs": "Commands for logs.",
    "distributedlog/cli/server": "Commands that run nodes, and prepare machines for them.",
    "distributedlog/cli/storage": "Commands for bookies and ledgers.",
    "distributedlog/cli/testing": "Commands for benchmarks and fault injection.",
    "distributedlog/log/changes": "Rename, seal and truncate a log.",
    "distributedlog/log/consumers": "Subscriptions and work queues.",
    "distributedlog/log/declarations": "Options, events and codecs of logs.",
    "distributedlog/log/format": "The bytes of records, entries and producer state.",
    "distributedlog/log/interfaces": "Names of logs, and the interface that the log layer requires of the ledger layer.",
    "distributedlog/log/limits": "Limits of memory, rates and concurrency.",
    "distributedlog/log/model": "The metadata of a log: state, segments, positions, settings.",
    "distributedlog/log/read": "Readers, and searches for positions.",
    "distributedlog/log/segments": "Segments as units: link, merge, purge, deletion of a log.",
    "distributedlog/log/services": "Shared by the logs of a process: leases, watches, positions, metrics.",
    "distributedlog/log/takeover": "Open a log for writing: lock, recovery of the last segment and producers.",
    "distributedlog/log/write": "Writers: validation, batches, segments, producers.",
    "distributedlog/proxy/client": "The client of proxies.",
    "distributedlog/proxy/declarations": "Options, events and metrics of proxies.",
    "distributedlog/proxy/membership": "Registration of proxies, and the proxy of each log.",
    "distributedlog/proxy/protocol": "Messages between clients and proxies.",
    "distributedlog/proxy/read": "The read proxy.",
    "distributedlog/proxy/session": "Sessions of clients, for both kinds of proxies.",
    "distributedlog/proxy/write": "The write proxy.",
    "distributedlog/runtime/declarations": "Options, metrics, events and health conditions, as each part declares them.",
    "distributedlog/runtime/disk": "Files, maps and blocks on disk and in memory.",
    "distributedlog/runtime/interfaces": "The platform layer, errors and principals, as every part uses them.",
    "distributedlog/runtime/net": "Connections: TCP, TLS, links, requests, limits.",
    "distributedlog/runtime/primitives": "Small values without I/O: backoff, clocks, buffers.",
    "distributedlog/runtime/process": "The process: signals, memory, descriptors, standard error.",
    "distributedlog/runtime/protocol": "Frames, handshake, schema, tokens and capabilities on the wire.",
    "distributedlog/runtime/schedule": "Background work: event loop in a thread, timers, failures.",
    "distributedlog/spark/client": "The client of a Spark process: connection, retries, credentials.",
    "distributedlog/spark/monitor": "Metrics and lag of queries.",
    "distributedlog/spark/options": "Options of source and sink.",
    "distributedlog/spark/read": "The source: plans, offsets and Arrow batches.",
    "distributedlog/spark/sink": "The sink.",
    "ledger/declarations": "Options and events of ledgers.",
    "ledger/model": "The metadata of a ledger.",
    "ledger/placement": "The choice of bookies for an ensemble.",
    "ledger/read": "Readers of ledgers.",
    "ledger/recovery": "Recovery of a ledger without a writer.",
    "ledger/write": "The writer of a ledger: pending adds, ensemble changes, flow control.",
    "metadata/auth": "Users, grants, capabilities, tokens and quotas.",
    "metadata/client": "The client of the metadata quorum.",
    "metadata/declarations": "Options, events and metrics of a metadata node.",
    "metadata/model": "Commands, transactions and records of the replicated state.",
    "metadata/node": "A metadata node: its sessions, watches and member of the quorum.",
    "metadata/peers": "The other nodes of the quorum: connections, membership, bootstrap.",
    "metadata/protocol": "Messages between clients and metadata nodes.",
    "metadata/raft": "The Raft core, without I/O.",
    "metadata/replica": "The driver of one Raft core: persists, sends, applies, answers.",
    "metadata/state": "The replicated state machine.",
    "metadata/storage": "The disk of a metadata node: Raft log, snapshots, backups.",
    "testing/bench/cases": "Benchmarks, one file per question.",
    "testing/bench/measure": "Shared by benchmarks: baselines, histograms, reports.",
    "testing/chaos/adapters": "Clusters of processes and of containers, and faults in them.",
    "testing/chaos/clients": "Client processes of a run.",
    "testing/chaos/model": "Scenarios, and the interface of the clusters that play them.",
    "testing/chaos/run": "One run: faults, report, result.",
    "testing/sim/bugs": "Known bugs that seeds must find.",
    "testing/sim/faults": "Faults of a simulated cluster.",
    "testing/sim/ledger": "The ledger protocol in a simulated world of its own.",
    "testing/sim/oracles": "Checks of the behavior of a simulated cluster.",
    "testing/sim/raft": "Raft in a simulated world of its own.",
    "testing/sim/workloads": "Clients of a simulated cluster, by seed.",
    "testing/sim/world": "Simulated time, network, disks and machines.",
    "testing/verify/checks": "Checks of guarantees over recorded observations.",
    "testing/verify/history": "Observations of the clients of a run.",
    "testing/verify/report": "Availability over time, and charts.",
    "testing/verify/workloads": "Clients that record their observations.",
    "testing": "Simulator, fault injection, checkers and benchmarks.",
}
"""Docstrings of the folders that become packages."""

EDITS: dict[str, list[tuple[str, str]]] = {
    "distributedlog/cli/launcher/__init__.py": [
        (
            "import _signal as signal  # the module",
            "import _signal as signal  # type: ignore[import-not-found]  # the module",
        )
    ],
    "pyproject.toml": [
        ('dlog = "dlog:main"', 'dlog = "distributedlog_launcher:main"'),
        (
            'py-modules = ["dlog", "pyspark_distributedlog"]   # the console script; what Spark finds by its name\n',
            "",
        ),
        (
            'include = ["bench", "bookie", "chaos", "cli", "cluster", "console", "gateway", "ledger", "log",'
            ' "metadata", "proxy", "runtime", "sim", "spark", "verify", "distributedlog", "tests"]',
            'include = ["bookie", "cluster", "distributedlog", "ledger", "metadata", "testing", "tests"]',
        ),
    ],
    "distributedlog/cli/framework/options.py": [
        ("self.lazy[cmd_name][0], __package__)", 'self.lazy[cmd_name][0], "distributedlog.cli")'),
        ("module relative to this package", "module relative to `distributedlog.cli`"),
    ],
    "testing/chaos/clients/client_processes.py": [
        ('f"{__package__}.client"', 'f"{__package__}.client_main"')
    ],
    "testing/bench/measure/hardware_baseline.py": [
        ('__package__ + ".floor_node"', '__package__ + ".baseline_node"')
    ],
    "tests/cli/test_usage.py": [
        ('"import dlog\\n"', '"import distributedlog_launcher as dlog\\n"'),
        ('"import sys, dlog; ', '"import sys, distributedlog_launcher as dlog; '),
    ],
    "cluster/local/child_processes.py": [('f"{__package__}.child"', 'f"{__package__}.node_child"')],
    "tests/spark/client/test_retry.py": [
        (
            'f"import logging; {setup}\\nfrom distributedlog.spark.client.executor_log import speak\\n'
            'speak(); speak()\\n"',
            'f"import logging; {setup}\\nfrom distributedlog.spark.client.executor_log import speak\\n"\n'
            '        "speak(); speak()\\n"',
        )
    ],
    "tests/spark/test_documents.py": [
        (
            '"import sys, distributedlog.spark, distributedlog.spark.client.spark_client, ',
            '"import sys, distributedlog.spark, distributedlog.spark.client.spark_client, "\n        "',
        )
    ],
    "tests/test_architecture.py": [
        (
            '{"sim", "bench", "chaos", "console", "gateway"}',
            '{"sim", "bench", "chaos", "console", "gateway"}',
        ),
        (
            "BY_FULL_NAME: set[str] = set()",
            'BY_FULL_NAME = {\n    "distributedlog/cli/launcher/__init__.py",\n'
            '    "distributedlog/spark/pyspark_distributedlog/__init__.py",\n}',
        ),
    ],
    "tests/test_layout.py": [
        (
            "LEFT_OUT: tuple[str, ...] = ()",
            'LEFT_OUT = ("distributedlog.testing.sim.", "distributedlog.testing.bench.peers.")',
        )
    ],
    "tests/bench/measure/test_command_line.py": [('if b"floor_node" in', 'if b"baseline_node" in')],
    "tests/chaos/test_processes.py": [
        (
            "local_processes; from distributedlog.testing.chaos.run import",
            'local_processes;"\n        "from distributedlog.testing.chaos.run import',
        )
    ],
    ".dockerignore": [
        (
            "!dlog.py\n!pyspark_distributedlog.py\n!bench\n!bookie\n!chaos\n!cli\n!cluster\n!console\n"
            "!distributedlog\n!gateway\n!ledger\n!log\n!metadata\n!proxy\n!runtime\n!sim\n!spark\n!verify\n",
            "!bookie\n!cluster\n!distributedlog\n!ledger\n!metadata\n!testing\n",
        )
    ],
}
"""By new path: text that must be there after the moves, and what stands in its place."""

AFTER_RENAMES: dict[str, list[tuple[str, str]]] = {
    "tests/test_architecture.py": [
        (
            "ONE_SUBCLASS: dict[str, str] = {\n",
            'ONE_SUBCLASS: dict[str, str] = {\n    "CliCommand": "click has two classes, commands and groups of them, and both have examples",\n',
        )
    ],
}
AFTER_RENAMES["tests/test_cookbook.py"] = [
    ('program("write_ahead")["Store"]', 'program("write_ahead")["KeyValueStore"]'),
    ('program("state_machine")["Replica"]', 'program("state_machine")["StateMachine"]'),
]
"""By path, new or old: edits that the new names of classes require. Made once."""
