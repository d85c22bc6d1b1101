"""Combine ledgers into logs: endless sequences of records, each with one writer.

Names, settings and metadata:

    namespace.py                           Create, list, find, open and delete logs.
    log.py                                 One log: open writers and readers, truncate, seal, search.
    interfaces/open_call.py                The value of ``open_writer`` and its like, for ``async with`` or
                                           ``await``.
    interfaces/log_names.py                Valid names of logs and namespaces (pure).
    interfaces/segment_store.py            The interface to the ledgers, as protocols.
    interfaces/error_boundary.py           End only the writer or reader whose task failed.
    model/log_keys.py                      Keys of logs in the metadata store (pure).
    model/log_state.py                     The state of a log in one key, and its changes (pure).
    model/segment_record.py                The record of a segment, and when a segment ends (pure).
    model/position.py                      A position that proves that all records before it are confirmed
                                           (pure).
    model/position_outcome.py              The outcome for a held position: continue, truncated, deleted,
                                           recreated (pure).
    model/txid_policy.py                   Fill in omitted transaction IDs, and check given ones (pure).
    model/stored_settings.py               Stored settings of a log and of a namespace (pure).
    services/settings_update.py            Read and change stored settings, and permit keys and headers.
    services/settings_watch.py             Watch the settings of open logs.
    services/log_watch.py                  Watch the namespace for created, renamed and deleted logs.
    services/log_context.py                Clients, clocks and options that all operations of a log share.
    services/log_metrics.py                Metrics of a process, and their export to a registry.
    declarations/options.py                Options. A new option is a field here.
    declarations/events.py                 Events of a writer.

The bytes of an entry:

    format/dlsn.py                         The DLSN, the position of a record (pure).
    format/record.py                       Records as columns in one entry (pure).
    format/packed_columns.py               An entry from columns in Arrow's layout, for all kinds of writers
                                           (pure).
    format/record_headers.py               Keys and headers as columns of an entry (pure).
    format/control_record.py               Entries without records (pure).
    format/producer_table.py               The producers of a log, and how far their records are stored
                                           (pure).
    format/producer_section.py             The bytes of producers in an entry (pure).
    format/log_clock.py                    Log time: the time stamp of an entry, which never decreases.
    format/compression.py                  Compress the entries of a writer if that saves space.
    declarations/compression_codecs.py     lz4 and zstd, with a limit on decompressed bytes (pure).

Write, in the order of a record:

    write/log_writer.py                    The writer that users hold.
    write/record_validation.py             Check records, one by one and in columns (pure).
    write/txid_admission.py                Transaction IDs of one writer's records.
    write/writer_ownership.py              Check that the writer owns the log, and change the log's state.
    write/sequenced_writer.py              Calls for proxies, gateways and producers.
    write/sequenced_batch.py               A frame: records of one producer in one entry, with one outcome.
    write/producer_state_manager.py        Stored and pending frames of each producer.
    limits/memory_budget.py                Limit the undurable bytes of all logs of a process (pure).
    limits/write_throttle.py               The rate limits of one log.
    write/entry_batch.py                   The records of one entry, with one outcome.
    write/send_queue.py                    Batches of a writer: open, ready, in flight.
    write/open_segment.py                  The open segment: encode batches (`format/record.py`) and send
                                           them, stamped with log time.
    write/segment_roller.py                Roll, replace and complete segments, and keep idle ones alive.
    limits/roll_semaphore.py               Limit the concurrent rolls of a process.

Take over a log:

    takeover/takeover.py                   Recover the previous writer's segments, then open a new one.
    takeover/log_lock.py                   Claim a log: take its lock and raise its epoch.
    takeover/producer_recovery.py          Read the producers of a log from its end.
    takeover/orphaned_segment.py           Close the open segments of a log that has no writer.
    limits/recovery_semaphore.py           Limit the concurrent recoveries of a process.
    model/lock_record.py                   The value of a leased key: the owner (pure).
    model/writer_log_state.py              Change the state of a log as its owner (H12).
    services/lease_session.py              One lease for the locks of all logs of a process.

Read:

    read/log_reader.py                     Records in order, from a position on.
    read/entry_queue.py                    Entries between a reader and its source, limited in bytes.
    read/fetcher.py                        Fetch entries of one segment after the other, in a task.
    read/segment_reader.py                 Read the entries of a segment, in a separate ledger or a shared
                                           one.
    read/next_segment.py                   Open the next segment; its first entry proves the previous end.
    read/state_watch.py                    Load the state of a log, then follow it by a watch.
    read/skipped_entries.py                Unreadable entries that a reader skipped on request (pure).
    read/multi_reader.py                   Read several logs as one stream.
    read/position_search.py                Find the last record, or a position by transaction ID or time,
                                           in few reads.
    arrow/arrow_reader.py                  A log as Arrow record batches, with bounded memory.
    arrow/arrow_columns.py                 The columns of these batches, and the choice of some of them.
    arrow/arrow_batches.py                 Build the batches, also those of Spark.
    byte_stream.py                         A log as bytes: write, read and seek by offset.

Consumers with stored positions:

    services/named_positions.py            Positions that are stored under a name.
    services/position_commits.py           Write the commits of many subscriptions together.
    consumers/subscription.py              One holder reads from a named position on.
    consumers/work_state.py                The progress of a work queue (pure).
    consumers/work_queue.py                Distribute the ranges of a log to several workers.
    services/ephemeral_key.py              A leased key that proves that a holder or a worker is alive.

Rename, end and delete:

    changes/log_rename.py                  Rename a log.
    changes/log_truncation.py              Truncate or seal a log; change its state without owning it.
    segments/segment_purge.py              Delete segments before the truncation point.
    model/segment_expiry.py                The clock for the age of segments, and which have expired (pure).
    segments/log_deletion.py               Delete a log with its ledgers and keys.
    model/deleted_log.py                   The record of a deleted log (pure).
    model/deleted_log_lookup.py            Find the records of deleted logs, and write them.

Pipelines, such as batch jobs:

    read/log_view.py                       The readable part of a log, from memory, for planners.
    read/position_lag.py                   How far positions are behind the end of their log.
    read/log_snapshot.py                   The readable part of a log, read once, as a plan.
    model/segment_ranges.py                Plans as values that can be sent to other processes (pure).
    read/range_reader.py                   Read planned ranges in any process.
    read/segment_watch.py                  Watch a log for opened, closed and truncated segments.
    segments/external_segment_writer.py    Write a segment outside its log.
    segments/segment_link.py               Attach such segments to a log in one transaction.
    segments/app_versions.py               The version that each application has attached last.
    segments/staged_ledgers.py             Find and delete ledgers that were never attached.

Small segments:

    segments/segment_merge.py              Copy small closed segments into a common ledger.
    segments/replaced_ledgers.py           Delete the ledgers that a merge has replaced, after a delay.
"""
