"""Processes into a cluster: nodes assembled, started, registered, repaired.

    nodes.py                        one node from a host and options: nothing else starts a node
    node/bookie_assembly.py, node/metadata_assembly.py, node/proxy_assembly.py    a node of each kind, from
    its parts
        node/node_lifecycle.py           their addresses, and services until the end
    status/proxy_overview.py                   what proxies say of themselves, and orders to them
        declarations/options.py, declarations/config.py, process/node_directories.py  what it is told, where
        it lives process/json_logs.py, declarations/events.py          what it says; news by names that stay
        coordination/cookie.py, coordination/registration_lease.py    whose disks these are (H6); the
        registration and its lease status/node_health.py                   is it well: asked of itself
        process/http_server.py, node/node_pages.py           told over HTTP: /health, /ready, /metrics, /state
        auth/cluster_key_space.py              what kinds of keys there are, and who may read and write them
        auth/record_change_rules.py           the changes of ledgers' and logs' records that exist
        auth/bookie_change_rules.py           what a bookie may change of others', and how
        coordination/journal_sync_point.py, status/damaged_records.py        how far a journal was synced;
        records that cannot be read
    auth/key_rotation.py                     new secrets, until each bookie checks by them
    auth/token_sessions.py               a door's users: what is opened for a token, and kept while it is used
        auth/token_attempts.py           what tokens that nobody knows yet may cost
    status/cluster_overview.py, status/log_overview.py    the cluster, and one log, as the metadata shows them
    local/local_cluster.py, local/cluster_plan.py               a whole cluster on this machine, and which
    nodes it has
        local/child_processes.py, local/node_child.py      child processes that cannot outlive their parent
        local/fork_server.py              imported once, forked for each node
        process/process_lifetime.py                 when a process ends, and which error it tells

What runs beside serving, so that every ledger has all its copies (`node/repair_tasks.py` starts it;
`coordination/reconcile_loop.py` is how each of them waits, `coordination/blocked_work.py` how it says why):

    repair/auditor_election.py             the bookie that audits, repairs and maintains
    repair/replication_worker.py, repair/copier.py           noted holes are filled; copies and how they are
    made repair/pull_replication.py                      who takes a place fetches what belongs there
    repair/manual_repair.py                   all of that at once, for ledgers that somebody names
    status/placement_status.py                      the placement policy, and what is not as it wants it
    repair/lost_bookies.py, repair/decommission.py             bookies that are gone for good, or are to leave
    status/safe_to_stop.py                     may nodes be stopped for a while?
    repair/open_ledger_closer.py                 what dead writers left open there is closed first
    repair/limbo_repair.py, repair/corruption_repair.py        a bookie that lost something, or holds rotten
    entries, heals itself repair/over_replication.py                      copies too many go
    node/scrub_requests.py                    a scrub that somebody asks for
    repair/ledger_audit.py                        what nobody noted is noted
    status/bookie_names.py                 bookies for people
    repair/loss_declaration.py                    what is gone for good is declared lost, by a person
    status/reference_check.py                   do records refer to each other both ways?
    repair/ledger_deletion.py, gc/segment_purger.py, gc/staged_ledger_collector.py  deleted ledgers, truncated
    segments, segments never linked auth/authorizer_feed.py                 what a bookie checks capabilities
    by gc/ledger_lookup.py                     which ledgers there are; where tombstones end
    coordination/gc_hold.py, coordination/restored_counters.py       metadata that came from a save; nothing
    is deleted until somebody looked gc/retention.py, gc/maintenance_clients.py        what is older, or more,
    than a log is to keep is truncated; closing logs gc/segment_merger.py                      small segments
    share a ledger repair/repair_metrics.py                      what a bookie counts of all this
"""
