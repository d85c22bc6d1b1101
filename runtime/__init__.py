"""What every process stands on: the seam to the machine, connections, errors.

Read `host.py` first: all that a node does not compute comes in through it.

    options.py                  how each part describes what can be set: unit, default, range, reason (pure)
    errors.py                   every error, by what its caller can do; the codes on the wire
    host.py                     the seam: connections, disks, maps, chance, the wall clock, as protocols
    machine.py                  the real machine as a host, made of
        tcp.py, held_ports.py       connections; ports that are kept for who is to listen there
        files.py, directory_file.py, sync_mode.py   a directory as a disk; where its syncs run
        removals.py                 large files of it that go in slices
        lmdb_map.py                 an ordered map
        memory.py                   disk and map in memory, where nothing is to be kept
        local_secret.py             who may talk to a cluster on this machine: its user
        tls.py                      connections that nobody between reads, and whose ends are known
        settled_files.py            files that are loaded again when they were replaced
        handshakes.py               when a server works on the next handshake
        descriptors.py, places.py, refusals.py  who gets the connections; who was turned away, told once
    frames.py, hello.py         the envelope of every frame; the first words on a connection (pure)
    capabilities.py, capability_messages.py     what opens a ledger at a bookie; asked of the leader (pure)
    tokens.py, steady_clock.py  who somebody is for a while (pure); wall time that no jump moves at once
    schema.py                   what a value from a peer or a disk must look like (pure)
    frame_reader.py, reuse.py   whole frames out of what comes in; large buffers (pure)
    link.py                     one connection with frames: a queue out, a reader in
    client_link.py, rpc.py      requests pipelined; connections made and served
    blocks.py                   checksummed blocks in files: the journal and the Raft log stand on it (pure)
    zero_ahead.py               zeros ahead of the end of either, where commits are small
    principals.py, ops.py       who speaks, by which proof; which operations are for which kind of them (pure)
    identity.py                 whose a directory is
    atomic_file.py              small files replaced whole; files that the device cannot read everywhere
    address_check.py            whether the addresses that a node advertises lead back to it
    output_file.py              output under a name that a user gave; what it may replace
    health_conditions.py        the codes of what can be wrong with a node or a cluster (pure)
    condition_texts.py          their texts, for people (pure)
    meters.py, exposition.py    what is counted, in tables; histograms (pure); as Prometheus reads it
    events.py                   what is told, by names that stay, in tables (pure)
    sorted_keys.py              keys in order, millions of them (pure)
    turns.py                    one task, one timer for what thousands of logs have to do
    backoff.py                  how long to wait before the next try (pure)
    work_failures.py            failed background work: it is tried again, and shown until it succeeds
    log_lines.py                loggers whose lines are handled in another thread than the client
    pacer.py                    how fast background work may go, by what it costs syncs and commits (pure)
    background.py, forked.py    a trio run in a thread, for other faces; what a forked child leaves alone
    stderr.py                   what a process says, without waiting for who reads it
    full_collections.py         when a node's Python looks for garbage among all that lives; what the C
                                library keeps of freed memory

The simulator has another host (`sim/host.py`); everything above this part cannot tell.

Where something new goes: an error is a class in `errors.py`, an operation a number in `frames.Op`, an option
a field in the options.py of its part, a counter a field of bookie/stats.py, a gauge a line of `Store.info`,
either of them of a metadata node one of `MemberNode.info` (`Op.INFO` answers with all), and what touches the
machine stands behind `host.py`.
"""
