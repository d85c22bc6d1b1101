"""The quorum that holds what must be agreed: Raft, a key-value state, a client.

It knows nothing of ledgers or logs. Whoever only uses it reads the first two lines.

    model/interface.py, model/transaction.py    what the parts above ask; conditions and operations as values
    (pure) client/metadata_client.py                       finds the leader, sends again what is safe to send
    again
        client/request_router.py, client/node_connections.py, client/watch_client.py, client/status_query.py

Where is a vote stored? `raft/raft.py` casts it, and sends it when it is durable (`raft/ready.py`) by
`storage/raft_storage.py`. Where would a new command go? `model/commands.py` says.

The Raft core (pure), from the ground up:

    raft/quorum.py, model/configuration.py     what a majority has done; who the members are
    raft/raft_log.py, raft/log_watermarks.py       the log as a core sees it; how far it is, at each stage
    raft/leader_state.py, raft/progress.py, peers/membership_rules.py   what exists only while a node leads
    raft/raft.py, raft/ready.py, raft/ready_builder.py    the whole core; what it wants done, in which order
    raft/recovered_hard_state.py                        a node whose disk has lost something, and what it
    still may do raft/raft_messages.py, declarations/options.py         what nodes say to each other; times
    and bounds

The replicated state (pure):

    model/commands.py, model/command_results.py         what goes through the log, and what comes back
    state/kv_state.py, state/watch_history.py               keys with revisions, as in etcd v3; what watches
    resume from model/request_identity.py                       whose a request is, and a lease
    state/request_dedup.py, state/kv_snapshot.py requests sent again are not done again; the state in chunks
    state/state_digest.py                whether all nodes have made the same state
    storage/backup_format.py                        the state in a file that outlives every node

Who may do what (pure):

    model/rights.py, model/acl_records.py     rights, roles, paths; the keys that give them to users
    auth/key_space.py, auth/authorizer.py            what kinds of keys there are; may this principal do that
    auth/acl_cache.py                  the same, followed by who is not the leader and lets users in: proxies
    auth/acl_commands.py                what is asked to be changed of it, as a transaction
    auth/capability_issuer.py              who gets which capabilities of ledgers
    auth/token_service.py, protocol/token_messages.py    who gets which tokens, and whose they are; how that
    is asked auth/quorum_secrets.py, replica/secret_rotation.py      what these are made with: nobody's to
    read; drawn by the leader

A node, which drives both:

    server.py, node/metadata_node.py, node/quorum_member.py  its listeners; it forms and loads; it takes part
    replica/replica.py                      persist, then send, then apply, then answer
    replica/admission_control.py                       what is refused early, that the rest is done in time
    (pure) auth/principal_quotas.py                       what one principal may have at once (pure)
    auth/namespace_usage.py, auth/namespace_quotas.py   what each namespace has, and may have (pure)
    storage/raft_storage.py, storage/log_replay.py, storage/snapshot_store.py, storage/member_identity.py,
    storage/metadata_disk_space.py   its disk node/metadata_session.py, node/watch_server.py,
    protocol/client_messages.py             its connections: clients, watches, peers/raft_peers.py,
    peers/unknown_peers.py, replica/snapshot_receiver.py                peers, snapshots replica/leases.py,
    node/member_status.py            keep-alives; the status of the node declarations/metrics.py,
    declarations/events.py       what it counts, by the names that it has outside; what it tells
    peers/bootstrap.py, peers/membership_changes.py        how a quorum comes to be (H5), and how its members
    change peers/hard_state_recovery.py                    a node that has forgotten what it promised asks the
    others (H106) node/admin_recovery.py                     an admin, asked for by a majority of nodes where
    none is left (H238) node/force_new_cluster.py                   a new one from a save, or from the one
    node that is left (H104)
"""
