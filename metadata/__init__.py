"""Agree on small records in a quorum of nodes: Raft, a replicated key-value state, and its client.

This part has no knowledge of ledgers or logs.

For users of the quorum:

    model/interface.py              The calls that other parts make, and their results.
    model/transaction.py            Conditions and operations of a transaction, as values (pure).
    client/metadata_client.py       The client: find the leader, and repeat the requests that are safe to
                                    repeat.
    client/request_router.py        Send a request to the leader, and to another node if the leader is
                                    unresponsive.
    client/node_connections.py      The client's connections to the nodes, opened on demand.
    client/watch_client.py          Receive watched changes in order, without gaps, over reconnects.
    client/range_watch.py           Load the keys of a range once, then apply their changes.
    client/status_query.py          Query the members of the quorum and their status from any node.

Two common questions:

- Where is a vote stored? `raft/raft.py` grants it, `storage/raft_storage.py` makes it durable, and only then
  is it sent (`raft/ready.py`).
- Where is a new command added? The docstring of `model/commands.py` lists the places.

The Raft core, from the bottom up:

    raft/quorum.py                  Count votes and log positions of a majority (pure).
    model/configuration.py          The members of the quorum, as an entry of the log (pure).
    raft/raft_log.py                The log in memory, after a compacted prefix (pure).
    raft/log_watermarks.py          How far the log is appended, durable, committed and applied (pure).
    raft/leader_state.py            State that exists only while the node leads (pure).
    raft/progress.py                The leader's view of the log of one peer, and how much it may send to it
                                    (pure).
    peers/membership_rules.py       The allowed changes of members, and the next step of a change (pure).
    raft/raft.py                    The core: elections, replication, commit, read index, snapshots (pure).
    raft/ready.py                   The actions that the core requires, and the order in which the driver must
                                    do them (pure).
    raft/ready_builder.py           Collect messages, hard state and reads for the next actions (pure).
    raft/recovered_hard_state.py    The hard state that a node recovers from a damaged disk (pure).
    raft/raft_messages.py           The messages between nodes, and their bytes (pure).
    declarations/options.py         The options of a node, and the times and limits of the Raft core.

The replicated state:

    model/cluster_version.py        The version for which the cluster is finalized.
    model/commands.py               The commands in the log, with the identity of their request (pure).
    model/command_results.py        The results of commands, and their bytes (pure).
    state/kv_state.py               Keys with revisions, as in etcd v3 (pure).
    state/watch_history.py          The newest changes, from which watches resume (pure).
    model/request_identity.py       The principal of a request and of a lease (pure).
    state/request_dedup.py          Results of recent requests, so that a repeated request is not done again
                                    (pure).
    state/kv_snapshot.py            The state as a sequence of chunks (pure).
    state/state_digest.py           Compare digests of the state between nodes (pure).
    storage/backup_format.py        The file format of a backup of the whole state (pure).

Authorization:

    model/rights.py                 Rights and roles, and the paths they apply to (pure).
    model/acl_records.py            The keys and records of users, grants, quotas and the audit log (pure).
    auth/key_space.py               The kinds of keys, which other parts register (pure).
    auth/authorizer.py              Authorize the requests of principals (pure).
    auth/acl_cache.py               Users, grants and mode in memory, for proxies, which authorize users
                                    themselves (pure).
    auth/acl_commands.py            Turn a requested change of users, grants, quotas or mode into a
                                    transaction (pure).
    auth/capability_issuer.py       Issue capabilities of ledgers, and the keys to verify them (pure).
    auth/token_service.py           Issue tokens on the leader, and verify them on every node.
    protocol/token_messages.py      The frame bodies of requests about tokens and secrets (pure).
    auth/quorum_secrets.py          The secrets in the replicated state, which no client can read or write
                                    (pure).
    replica/secret_rotation.py      Generate these secrets on the leader, when they are first required and on
                                    command.

The node, which drives the core and the state:

    server.py                       Run one node from its disk and listeners.
    node/metadata_node.py           A node before it is a member: its identity, how it finds a cluster, the
                                    loaded data.
    node/quorum_member.py           A member: create and connect its replica, its peers, and the parts that
                                    serve clients.
    replica/replica.py              Drive the core: persist, then send, then apply, then answer.
    replica/admission_control.py    Refuse requests early that would wait too long (pure).
    auth/principal_quotas.py        Limit the commands, leases and watches of one principal (pure).
    auth/namespace_usage.py         Count the keys, bytes and ledgers of each namespace (pure).
    auth/namespace_quotas.py        Limit the keys, bytes and ledgers of each namespace (pure).
    replica/leases.py               Keep-alives of leases, and their ends, on the leader.
    node/member_status.py           The status of this node and of the other members.
    node/version_guard.py           Write the version of a new cluster, and end a node that is too old.
    declarations/metrics.py         Metrics by their public names.
    declarations/events.py          Log events by their public names.

The disk of a node:

    storage/raft_storage.py         Store term, vote and log in checksummed blocks.
    storage/log_replay.py           The operations in these blocks, and their replay (pure).
    storage/snapshot_store.py       Snapshots as checksummed files.
    storage/member_identity.py      The file that binds the data directory to a quorum.
    storage/metadata_disk_space.py  Reserve free space, and decide whether the disk is low on space.

The connections of a node:

    node/metadata_session.py        One connection of a client or a peer.
    node/watch_server.py            The watches of a connection.
    protocol/client_messages.py     The frame bodies of client requests and their replies (pure).
    peers/raft_peers.py             Connections to the other members, for Raft messages and snapshots.
    peers/unknown_peers.py          Check nodes that claim to be members and are not known here.
    replica/snapshot_receiver.py    Receive a snapshot from the leader.

Members, and recovery of the quorum:

    peers/bootstrap.py              The rules by which a quorum forms (pure, H5).
    peers/membership_changes.py     Change the members on the leader, on an operator's request.
    peers/hard_state_recovery.py    Ask all other voters for limits of a lost hard state (H106).
    node/admin_recovery.py          Create an admin on the request of a majority of nodes, if none is left
                                    (H238).
    node/force_new_cluster.py       Make a new cluster of one node from a backup or from the disk of a
                                    remaining node (H104).
"""
