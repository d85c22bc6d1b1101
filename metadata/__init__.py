"""The quorum that holds what must be agreed: Raft, a key-value state, a client.

It knows nothing of ledgers or logs. Whoever only uses it reads the first two lines.

    interface.py, transaction.py    what the parts above ask; conditions and operations as values (pure)
    client.py                       finds the leader, sends again what is safe to send again
        asking.py, quorum_links.py, watching.py, status_question.py

Where is a vote stored? `raft.py` casts it, and sends it when it is durable (`ready.py`) by `storage.py`.
Where would a new command go? `commands.py` says.

The Raft core (pure), from the ground up:

    quorum.py, configuration.py     what a majority has done; who the members are
    raft_log.py, log_marks.py       the log as a core sees it; how far it is, at each stage
    leadership.py, progress.py, membership.py   what exists only while a node leads
    raft.py, ready.py, outbox.py    the whole core; what it wants done, in which order
    ghost.py                        a node whose disk has lost something, and what it still may do
    messages.py, options.py         what nodes say to each other; times and bounds

The replicated state (pure):

    commands.py, answers.py         what goes through the log, and what comes back
    kv.py, history.py               keys with revisions, as in etcd v3; what watches resume from
    owners.py                       whose a request is, and a lease
    request_ring.py, kv_snapshot.py requests sent again are not done again; the state in chunks
    state_digests.py                whether all nodes have made the same state
    saves.py                        the state in a file that outlives every node

Who may do what (pure):

    rights.py, trust_records.py     rights, roles, paths; the keys that give them to users
    classes.py, judge.py            what kinds of keys there are; may this principal do that
    trust_table.py                  the same, followed by who is not the leader and lets users in: proxies
    trust_changes.py                what is asked to be changed of it, as a transaction
    capability_desk.py              who gets which capabilities of ledgers
    token_desk.py, token_messages.py    who gets which tokens, and whose they are; how that is asked
    secret_keys.py, secrets.py      what these are made with: nobody's to read; drawn by the leader

A node, which drives both:

    server.py, node.py, member_node.py  its listeners; it forms and loads; it takes part
    replica.py                      persist, then send, then apply, then answer
    intake.py                       what is refused early, that the rest is done in time (pure)
    quotas.py                       what one principal may have at once (pure)
    namespace_use.py, namespace_quotas.py   what each namespace has, and may have (pure)
    storage.py, log_operations.py, snapshot_files.py, members.py, room.py   its disk
    sessions.py, served_watches.py, wire.py             its connections: clients, watches,
    peers.py, strangers.py, receiving.py                peers, snapshots
    leases.py, status.py            keep-alives; the status of the node
    metrics.py, events.py       what it counts, by the names that it has outside; what it tells
    forming.py, admission.py        how a quorum comes to be (H5), and how its members change
    recalling.py                    a node that has forgotten what it promised asks the others (H106)
    rescuing.py                     an admin, asked for by a majority of nodes where none is left (H238)
    refounding.py                   a new one from a save, or from the one node that is left (H104)
"""
