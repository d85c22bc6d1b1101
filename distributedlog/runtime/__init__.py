"""What every process stands on: the seam to the machine, connections, errors.

Read `interfaces/host.py` first: all that a node does not compute comes in through it.

    declarations/options.py                  how each part describes what can be set: unit, default, range,
    reason (pure) interfaces/errors.py                   every error, by what its caller can do; the codes on
    the wire interfaces/host.py                     the seam: connections, disks, maps, chance, the wall
    clock, as protocols machine.py                  the real machine as a host, made of
        net/tcp.py, net/port_reservation.py       connections; ports that are kept for who is to listen there
        disk/directory_disk.py, disk/directory_file.py, disk/sync_mode.py   a directory as a disk; where its
        syncs run disk/deferred_removal.py                 large files of it that go in slices
        disk/lmdb_map.py                 an ordered map
        disk/memory_disk.py                   disk and map in memory, where nothing is to be kept
        net/local_secret.py             who may talk to a cluster on this machine: its user
        net/tls.py                      connections that nobody between reads, and whose ends are known
        disk/reloaded_files.py            files that are loaded again when they were replaced
        net/handshake_limiter.py               when a server works on the next handshake
        process/descriptor_limit.py, net/connection_limiter.py, net/rejection_log.py  who gets the
        connections; who was turned away, told once
    protocol/frames.py, protocol/handshake.py         the envelope of every frame; the first words on a
    connection (pure) protocol/capabilities.py, protocol/capability_messages.py     what opens a ledger at a
    bookie; asked of the leader (pure) protocol/tokens.py, primitives/steady_clock.py  who somebody is for a
    while (pure); wall time that no jump moves at once protocol/schema.py                   what a value from
    a peer or a disk must look like (pure) net/frame_reader.py, primitives/buffer_pool.py   whole frames out
    of what comes in; large buffers (pure) net/link.py                     one connection with frames: a queue
    out, a reader in net/client_link.py, net/rpc.py      requests pipelined; connections made and served
    disk/checksummed_blocks.py                   checksummed blocks in files: the journal and the Raft log
    stand on it (pure) disk/preallocation.py               zeros ahead of the end of either, where commits are
    small interfaces/principals.py, protocol/operations.py       who speaks, by which proof; which operations
    are for which kind of them (pure) disk/node_identity.py                 whose a directory is
    disk/atomic_file.py              small files replaced whole; files that the device cannot read everywhere
    net/address_check.py            whether the addresses that a node advertises lead back to it
    disk/output_file.py              output under a name that a user gave; what it may replace
    declarations/health_conditions.py        the codes of what can be wrong with a node or a cluster (pure)
    declarations/condition_texts.py          their texts, for people (pure)
    declarations/meters.py, declarations/metrics_text.py    what is counted, in tables; histograms (pure); as
    Prometheus reads it declarations/events.py                   what is told, by names that stay, in tables
    (pure) primitives/sorted_keys.py              keys in order, millions of them (pure)
    schedule/call_scheduler.py                    one task, one timer for what thousands of logs have to do
    primitives/backoff.py                  how long to wait before the next try (pure)
    schedule/work_failures.py            failed background work: it is tried again, and shown until it
    succeeds interfaces/log_lines.py                loggers whose lines are handled in another thread than the
    client primitives/background_rate.py                    how fast background work may go, by what it costs
    syncs and commits (pure) schedule/background_loop.py, process/fork_safety.py    a trio run in a thread,
    for other faces; what a forked child leaves alone process/stderr_writer.py                   what a
    process says, without waiting for who reads it process/process_memory.py         when a node's Python
    looks for garbage among all that lives; what the C
                                library keeps of freed memory

The simulator has another host (`testing/sim/world/sim_host.py`); everything above this part cannot tell.

Where something new goes: an error is a class in `interfaces/errors.py`, an operation a number in `frames.Op`,
an option a field in the declarations/options.py of its part, a counter a field of
bookie/declarations/counters.py, a gauge a line of `Store.info`, either of them of a metadata node one of
`MemberNode.info` (`Op.INFO` answers with all), and what touches the machine stands behind
`interfaces/host.py`.
"""
