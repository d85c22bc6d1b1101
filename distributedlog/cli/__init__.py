"""The command `dlog`: one file a noun; heavy imports stay inside the commands.

A new noun is a file whose click command is called ``command``, and its line in the ``lazy`` of `main.py`; a
new verb is a function in its noun's file. A small noun is another command in the file of a larger one.

main.py                         finds the command; whatever goes wrong is one line and an exit code
framework/options.py, connection/cluster_connection.py, framework/errors.py, framework/output.py    what all
commands share framework/progress.py                     one line per second of a command that takes long
framework/standard_streams.py             output that is whole or fails, on any kind of descriptor
connection/name_suggestions.py                   logs that are called almost as one that is not there
connection/context.py, framework/named_clusters.py   names for clusters; where they are kept
server/local.py, server/local_demo.py, server/serve.py     a cluster on this machine; one node
server/config.py, server/node_settings.py     what can be set; what a node takes from a file and from --set
help/help.py, help/help_topics.py              help of commands and on topics; completion in shells
server/systemd_notify.py              messages for systemd
logs/log.py, logs/stored_entries.py, logs/record_output.py, logs/record_input.py, logs/record_formats.py,
logs/archive_commands.py    logs cluster/status.py, cluster/node.py, storage/decommission.py,
storage/scrub.py, storage/placement.py, storage/repair.py, cluster/metadata.py, server/console.py,
cluster/proxy.py                        the cluster storage/ledger.py, storage/ledger_view.py       ledgers,
missing copies, whether all records fit each other access/trust.py, access/user.py, access/grant.py
authorization cluster/metadata_backups.py               metadata that outlives its nodes
access/pki.py, access/certificates.py         certificates of nodes and users
server/machine_check.py, testing/bench.py, testing/chaos.py    is a machine fit for it; measuring it, and
breaking it
"""
