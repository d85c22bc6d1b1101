"""Assemble, start, register, observe and repair the nodes of a cluster.

Start of a node:

    nodes.py                            Serve a node of any kind. No other module starts nodes.
    node/bookie_assembly.py             Assemble a bookie from its parts.
    node/metadata_assembly.py           Assemble a metadata node from its parts.
    node/proxy_assembly.py              Assemble a write proxy or read proxy from its parts.
    node/node_lifecycle.py              The addresses of a node, and services that run until its end.
    declarations/options.py             The configuration of one node, and the line that reports it ready.
    declarations/config.py              Merge options from flags, environment, file and defaults.
    process/node_directories.py         The data directories of a node, which it refuses if they belong to
                                        another kind.
    process/stderr_logs.py              Write log lines to stderr.
    declarations/events.py              Log events by their public names.
    process/process_lifetime.py         End a process on a signal or at the end of stdin, and choose the error
                                        to report.

Identity and registration of a bookie:

    coordination/cookie.py              Check that the disks belong to the bookie and are the newest copy
                                        (H6).
    coordination/registration_lease.py  The registration, and the lease that keeps it.
    coordination/journal_sync_point.py  The progress record: how far the journal was synced.

Health and status:

    status/node_health.py               Ask a node for its health over its own protocol.
    process/http_server.py              Serve pages over HTTP.
    node/node_pages.py                  The pages: /health, /ready, /metrics and /state.
    status/cluster_overview.py          The state of the cluster from its metadata.
    status/cluster_versions.py          The versions of the nodes, and the conditions that follow (pure).
    status/upgrade.py                   Check whether an upgrade can be finalized, and finalize it.
    status/log_overview.py              The state and effective options of one log.
    status/consumer_overview.py         Positions, subscribers and work queues of a log, with their lag.
    status/proxy_overview.py            The status of proxies, and commands to them.
    status/placement_status.py          The placement policy, and the ledgers that violate it.
    status/bookie_names.py              The names of bookies for output to people.
    status/audit_findings.py            The findings of an audit, and the checks of single records (pure).
    status/damaged_records.py           Find unreadable records in the metadata.
    status/reference_check.py           Check that the records of ledgers, bookies and logs refer to each
                                        other.
    status/safe_to_stop.py              Check whether nodes can be stopped for a while.

Authorization:

    auth/cluster_key_space.py           All kinds of metadata keys, with the rights to read and write them.
    auth/record_change_rules.py         The allowed changes of the records of ledgers and logs, and the right
                                        for each.
    auth/bookie_change_rules.py         The changes that a bookie may make to records other than its own.
    auth/authorizer_feed.py             Keep a bookie's keys for verifying capabilities up to date.
    auth/key_rotation.py                Rotate the secrets of capabilities and passes, and wait until all
                                        bookies use the new ones.
    auth/token_sessions.py              One cluster session per user token in a gateway or console.
    auth/token_attempts.py              Limit the cost of unverified tokens (pure).

A cluster on one machine:

    local/local_cluster.py              Run a whole cluster on this machine.
    local/cluster_plan.py               The nodes of such a cluster, stored in its directory.
    local/child_processes.py            Start child processes that end with their parent.
    local/node_child.py                 The program of a child process, which runs one node or a whole
                                        cluster.
    local/fork_server.py                A process that imports the modules once, and forks for each node.

Background work of a bookie (`node/bookie_assembly.py` starts it, and `node/repair_tasks.py` the repair):

    node/repair_tasks.py                Start the repair tasks of one bookie, with one shared copier.
    coordination/reconcile_loop.py      Run work again after changes and on a timer.
    coordination/blocked_work.py        Log the reasons why work is blocked, once per change.
    repair/auditor_election.py          Elect the bookie that audits, repairs and maintains: the repair
                                        leader.
    repair/repair_metrics.py            Repair metrics by their public names.
    coordination/gc_hold.py             Suspend deletions after a restore, until an operator resumes them
                                        (H104).
    coordination/log_changes.py         Checks and effects of changes that operators request.
    coordination/repair_settings.py     Pause the repair of lost bookies, and store its delay.
    coordination/restored_counters.py   Advance the counters of logs and ledgers after a restore (H104).

Missing, corrupt and over-replicated copies:

    repair/replication_worker.py        Copy recorded missing entries to the bookies that lack them.
    repair/copier.py                    Determine the entries that a bookie should hold, and copy them.
    repair/ledger_audit.py              Find missing entries without a record, and record them.
    repair/lost_bookies.py              Move ledgers off lost bookies, and off bookies to be decommissioned.
    repair/pull_replication.py          Let a replacement bookie fetch its own copies.
    repair/decommission.py              Request a decommission, report its progress, and find ledgers with too
                                        few copies.
    repair/open_ledger_closer.py        Close segments that failed writers left open, so that they can be
                                        copied.
    repair/limbo_repair.py              Restore lost entries of a bookie from other replicas, and end the
                                        limbo state.
    repair/corruption_repair.py         Replace corrupt entries of a bookie from other replicas.
    repair/over_replication.py          Drop over-replicated copies.
    repair/manual_repair.py             Repair named ledgers at once, on an operator's request.
    repair/loss_declaration.py          Declare lost entries as lost, on an operator's request.
    node/scrub_requests.py              Request a scrub of a bookie, and run it.

Deletion and maintenance of logs and ledgers:

    repair/ledger_deletion.py           Remove deleted ledgers from a bookie.
    gc/ledger_lookup.py                 Check which ledgers exist, and move the ID below which bookies keep no
                                        tombstones.
    gc/segment_purger.py                Delete truncated segments.
    gc/staged_ledger_collector.py       Delete segments that were written outside a log and never linked to
                                        it.
    gc/retention.py                     Truncate logs by age and size.
    gc/segment_merger.py                Merge small segments into a shared ledger.
    gc/maintenance_clients.py           The clients with which a bookie closes and merges segments.
"""
