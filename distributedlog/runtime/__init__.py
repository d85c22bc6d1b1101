"""Provide every process with the platform layer, connections, disks, options and errors.

Read `interfaces/host.py` first: all input from the machine reaches a node through it.

The platform layer:

    interfaces/host.py                     The platform layer as protocols: connections, disks, maps,
                                           randomness, wall clock.
    machine.py                             Implement a host on the real machine.
    interfaces/errors.py                   Every error with its wire code, by the reaction of the caller.
    interfaces/principals.py               Users and nodes on a connection, and the forms of a proof (pure).
    interfaces/log_lines.py                Loggers. Lines of a client's loop are handled in another thread.

Declarations:

    declarations/options.py                Options of a part: unit, default, range, reason (pure).
    declarations/meters.py                 Metrics of a part in a table, and histograms (pure).
    declarations/metrics_text.py           Print samples in the Prometheus text format.
    declarations/events.py                 Events of a part in a table, with stable names (pure).
    declarations/health_conditions.py      Codes of the problems of a node or a cluster (pure).
    declarations/condition_texts.py        Text of each health condition, for people (pure).
    declarations/http_statuses.py          The HTTP status of each error (pure).
    declarations/versions.py               The version of this software, and those that formats need (pure).

Connections:

    net/tcp.py                             Connections over TCP.
    net/tls.py                             TLS 1.3 over any connection, with the identity of both ends.
    net/local_secret.py                    The secret of a cluster on this machine, in a file of its user.
    net/port_reservation.py                Reserve ports until the chosen process listens on them.
    net/link.py                            One connection with frames: a send queue, a receive loop.
    net/client_link.py                     A client's end of a connection, with pipelined requests.
    net/rpc.py                             Open connections and serve them, with the tasks of each link.
    net/frame_reader.py                    Split received bytes into complete frames (pure).
    net/handshake_limiter.py               Limit handshakes per second at a server. Nodes do not wait.
    net/connection_limiter.py              Assign connection slots, and choose the connections to close.
    net/rejection_log.py                   Count rejected connections. Log each address and reason once.
    net/address_check.py                   Check that the advertised addresses of a node lead back to it.

Protocol:

    protocol/frames.py                     The envelope of every frame, and control messages (pure).
    protocol/handshake.py                  HELLO and AUTH, the first messages of a connection (pure).
    protocol/operations.py                 Which kind of principal may request which operation (pure).
    protocol/schema.py                     Check the form of values from peers and from disks (pure).
    protocol/capabilities.py               Capabilities: access to one ledger at one bookie (pure).
    protocol/capability_messages.py        Requests for capabilities to the metadata leader (pure).
    protocol/tokens.py                     Tokens: signed, time-limited proofs of a user (pure).

Disks:

    disk/directory_disk.py                 A directory of a file system as a disk.
    disk/directory_file.py                 A file of such a directory, with direct or buffered writes.
    disk/sync_mode.py                      Choose where syncs run: on the event loop or in a thread.
    disk/deferred_removal.py               Free large removed files in slices.
    disk/preallocation.py                  Write zeros ahead of the end of journal and Raft log at low rates.
    disk/checksummed_blocks.py             Checksummed blocks in files, for journal and Raft log (pure).
    disk/lmdb_map.py                       An ordered map in LMDB.
    disk/memory_disk.py                    Disk and map in memory, for tests and clusters that store nothing.
    disk/atomic_file.py                    Replace small files atomically; read files with unreadable parts.
    disk/node_identity.py                  The identity of a data directory, in its file ``FORMAT``.
    disk/reloaded_files.py                 Load files again after they were replaced, such as certificates.
    disk/output_file.py                    Write output under a name that a user gave. Only this file
                                           decides which existing files are replaced.

Background work and the process:

    schedule/call_scheduler.py             One task and one timer for the work of thousands of logs.
    schedule/work_failures.py              Retry background work that failed, and list it until it succeeds.
    schedule/background_loop.py            Run Trio in a thread, for the blocking and asyncio APIs.
    process/fork_safety.py                 Close inherited descriptors in a forked child.
    process/descriptor_limit.py            Derive the number of connections from the descriptor limit.
    process/stderr_writer.py               Write to standard error in a thread, without blocking the loop.
    process/process_memory.py              Control full garbage collections and the memory that glibc retains.

Values without I/O:

    primitives/steady_clock.py             Wall time that follows jumps of the wall clock only slowly.
    primitives/background_rate.py          The rate of background work, from the latency of syncs and commits
                                           (pure).
    primitives/backoff.py                  The delay before the next attempt (pure).
    primitives/buffer_pool.py              Large buffers that are reused (pure).
    primitives/sorted_keys.py              Millions of keys in order (pure).

The simulator has its own host (`testing/sim/world/sim_host.py`). The layers above this part cannot
distinguish the two hosts.

Where to add things:

- An error is a class in `interfaces/errors.py`.
- An operation is a number in `Op` of `protocol/frames.py`.
- An option is a field in `declarations/options.py` of its part.
- A counter of a bookie is a field in `bookie/declarations/counters.py`. A gauge is a line of
  `BookieStore.info`.
- A counter or a gauge of a metadata node is a line of `MemberNode.info`. `Op.INFO` returns all of them.
- Access to the machine is a call behind `interfaces/host.py`.
"""
