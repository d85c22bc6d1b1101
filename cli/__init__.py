"""The command `dlog`: one file a noun; heavy imports stay inside the commands.

A new noun is a file whose click command is called ``command``, and its line in the ``lazy`` of `main.py`; a
new verb is a function in its noun's file. A small noun is another command in the file of a larger one.

main.py                         finds the command; whatever goes wrong is one line and an exit code
options.py, connect.py, errors.py, output.py    what all commands share
progress.py                     one line per second of a command that takes long
standard_streams.py             output that is whole or fails, on any kind of descriptor
near_names.py                   logs that are called almost as one that is not there
context.py, named_clusters.py   names for clusters; where they are kept
local.py, demo.py, serve.py     a cluster on this machine; one node
config.py, node_settings.py     what can be set; what a node takes from a file and from --set
help.py, topics.py              help of commands and on topics; completion in shells
service_manager.py              messages for systemd
log.py, inspect.py, read.py, write.py, formats.py, archives.py    logs
status.py, node.py, decommission.py, scrub.py, placement.py, repair.py, metadata.py, console.py,
proxy.py                        the cluster
ledger.py, ledger_view.py       ledgers, missing copies, whether all records fit each other
trust.py, user.py, grant.py     authorization
metadata_saves.py               metadata that outlives its nodes
pki.py, certificates.py         certificates of nodes and users
check.py, bench.py, chaos.py    is a machine fit for it; measuring it, and breaking it
"""
