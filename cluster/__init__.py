"""Processes into a cluster: nodes assembled, started, registered, repaired.

    nodes.py                        one node from a host and options: nothing else starts a node
    bookie_assembly.py, metadata_assembly.py, proxies.py    a node of each kind, from its parts
        node_lifecycle.py           their addresses, and services until the end
    proxy_view.py                   what proxies say of themselves, and orders to them
        options.py, config.py, directories.py  what it is told, where it lives
        logs.py, events.py          what it says; news by names that stay
        cookie.py, membership.py    whose disks these are (H6); the registration and its lease
        health.py                   is it well: asked of itself
        http.py, pages.py           told over HTTP: /health, /ready, /metrics, /state
        key_classes.py              what kinds of keys there are, and who may read and write them
        record_changes.py           the changes of ledgers' and logs' records that exist
        bookie_changes.py           what a bookie may change of others', and how
        reach.py, damaged.py        how far a journal was synced; records that cannot be read
    rotating.py                     new secrets, until each bookie checks by them
    token_sessions.py               a door's users: what is opened for a token, and kept while it is used
        token_attempts.py           what tokens that nobody knows yet may cost
    overview.py, log_overview.py    the cluster, and one log, as the metadata shows them
    local.py, plan.py               a whole cluster on this machine, and which nodes it has
        processes.py, child.py      child processes that cannot outlive their parent
        fork_server.py              imported once, forked for each node
        lifeline.py                 when a process ends, and which error it tells

What runs beside serving, so that every ledger has all its copies (`repair_tasks.py` starts it; `watching.py`
is how each of them waits, `held_up.py` how it says why):

    auditor_election.py             the bookie that audits, repairs and maintains
    repair.py, copying.py           noted holes are filled; copies and how they are made
    pulling.py                      who takes a place fetches what belongs there
    repair_now.py                   all of that at once, for ledgers that somebody names
    placing.py                      the placement policy, and what is not as it wants it
    lost.py, leaving.py             bookies that are gone for good, or are to leave
    stopping.py                     may nodes be stopped for a while?
    open_ledgers.py                 what dead writers left open there is closed first
    limbo.py, rot_healing.py        a bookie that lost something, or holds rotten entries, heals itself
    surplus.py                      copies too many go
    scrubbing.py                    a scrub that somebody asks for
    audit.py                        what nobody noted is noted
    bookie_names.py                 bookies for people
    giving_up.py                    what is gone for good is declared lost, by a person
    references.py                   do records refer to each other both ways?
    deletion.py, purging.py, collecting.py  deleted ledgers, truncated segments, segments never linked
    gate_keeping.py                 what a bookie checks capabilities by
    existing.py                     which ledgers there are; where tombstones end
    restored.py, restoring.py       metadata that came from a save; nothing is deleted until somebody looked
    retention.py, closing.py        what is older, or more, than a log is to keep is truncated; closing logs
    merging.py                      small segments share a ledger
    metrics.py                      what a bookie counts of all this
"""
