"""Provide the command `dlog`: one file per noun; heavy imports stay inside the commands.

A new noun is a file whose click command is called ``command``, and its line in the ``lazy`` of `main.py`. A
new verb is a function in its noun's file. A small noun is another command in the file of a larger one.

Start of the process:

    main.py                           Find the command. Report each failure as one line and an exit code.
    launcher/                         The console script: ends on Ctrl-C even while `dlog` is being imported,
                                      and names packages that replaced our files.

Shared by all commands:

    framework/options.py              Common options (``--uri``, ``--json``, …), and help with
                                      examples.
    framework/errors.py               Each failure as one line on stderr and a documented exit code.
    framework/output.py               Tables, JSON and sizes with units.
    framework/progress.py             One line of progress per second on stderr while a command runs for long.
    framework/standard_streams.py     Standard streams: a write is complete or fails, on any kind of
                                      descriptor.
    framework/named_clusters.py       The file of named clusters (contexts).
    connection/cluster_connection.py  Connect to the cluster: one namespace, a deadline on each answer.
    connection/name_suggestions.py    Suggest names of logs that are similar to a missing one.
    connection/context.py             `dlog context`: name clusters and select one.
    help/help.py                      `dlog help` and `dlog completion`: help of commands, completion in
                                      shells.
    help/help_topics.py               The texts of `dlog help TOPIC`.
    help/version.py                   `dlog version`: versions of this installation.

Logs:

    logs/log.py                       `dlog log`: all commands on logs except export and import.
    logs/record_input.py              `dlog log write`: write a stream of records, with limited memory.
    logs/record_output.py             `dlog log read`: print records as fast as stdout accepts them.
    logs/record_formats.py            Formats of records: ``lines``, ``jsonl``, ``frames`` (no I/O).
    logs/stored_entries.py            `dlog log inspect`: entries as they are stored, from their headers
                                      alone.
    logs/archive_commands.py          `dlog log export` and `import`: a log as Parquet files, by Spark.

Nodes of a cluster:

    cluster/status.py                 `dlog status` and `dlog bookies`: the health of the cluster.
    cluster/node.py                   `dlog node`: check whether nodes can be stopped.
    cluster/upgrade.py                `dlog cluster`: the versions of all nodes, and the end of an upgrade.
    cluster/proxy.py                  `dlog proxy`: list proxies and their logs, move logs.
    cluster/metadata.py               `dlog metadata`: show and change the members of the metadata quorum.
    cluster/metadata_backups.py       `dlog metadata backup`, `restore`, `force-new-cluster`, `gc`: backups.

Bookies and ledgers:

    storage/decommission.py           `dlog decommission`: remove a bookie from the cluster for good.
    storage/scrub.py                  `dlog scrub`: let a bookie read and verify everything that it stores.
    storage/placement.py              `dlog placement`: show the placement policy and its violations.
    storage/repair.py                 `dlog repair`: copy missing replicas now.
    storage/repair_control.py         `dlog repair pause`, `resume`, `config`: the stored settings of repair.
    storage/ledger.py                 `dlog ledger`, `under-replicated`, `audit`: ledgers, missing copies, and
                                      whether the records in the metadata refer to each other.
    storage/ledger_view.py            The records of ledgers, and the bookies' responses about them, for `dlog
                                      ledger`.

Authorization and certificates:

    access/trust.py                   `dlog trust`: authorization mode, quotas, secrets, audit; `dlog whoami`.
    access/user.py                    `dlog user`: manage users.
    access/grant.py                   `dlog grant`: manage grants of logs to users.
    access/pki.py                     `dlog pki`: issue the certificates of nodes and users.
    access/certificates.py            Create a certificate authority and its certificates.

Start nodes, prepare and test machines:

    server/local.py                   `dlog local`: run a whole cluster on this machine.
    server/local_demo.py              `dlog local --demo`: kill a bookie and read each record back.
    server/serve.py                   `dlog serve`: run one node in the foreground.
    server/config.py                  `dlog config`: list options with their reasons, write and check node
                                      files.
    server/node_settings.py           Read the options of a node from its file and from ``--set``.
    server/systemd_notify.py          Notify systemd (``Type=notify``).
    server/console.py                 `dlog console`: show the cluster in a browser.
    server/machine_check.py           `dlog check`: check whether a machine is fit for a node.
    testing/bench.py                  `dlog bench`: measure rates and latencies.
    testing/chaos.py                  `dlog chaos`: inject faults into real processes or containers.
"""
