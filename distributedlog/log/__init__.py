"""The log abstraction: an endless stream of records made of ledgers.

    format/dlsn.py, format/record.py, interfaces/log_names.py    an address; records in columns in one entry;
    names (pure) declarations/compression_codecs.py                       lz4 and zstd, bounded (pure)
    model/position.py                     an address that proves what is before it (pure)
    namespace.py, log.py, interfaces/open_call.py, services/log_watch.py   names to logs; one log; which logs
    come and go changes/log_rename.py                       another name for the same log
    model/stored_settings.py, services/settings_update.py, services/settings_watch.py   what a log has set
    (pure); kept; followed model/segment_expiry.py, takeover/orphaned_segment.py      the clock of segments'
    ages (pure); closing what was left open model/log_keys.py, model/log_state.py, model/segment_record.py
    what must be agreed of a log, and where it is kept (pure) format/log_clock.py                     when a
    record was written: never before the one before it (pure) model/txid_policy.py                        who
    says a record's txid: a rule of the log (pure) interfaces/segment_store.py                      what is
    needed of the part below, as protocols services/log_context.py, declarations/options.py          clients,
    clocks; what can be set, and where a new option goes services/log_metrics.py, declarations/events.py
    what a process counts, and how a registry gets it; what it tells

Writing, in the order a record meets it:

    write/log_writer.py, write/record_validation.py         what the user holds; which records are taken
    (pure) write/sequenced_writer.py             the calls for proxies, gateways and producers
    write/txid_admission.py, write/writer_ownership.py   txids of one writer's records; is the log still the
    writer's write/entry_batch.py, write/send_queue.py           one outcome an entry; batches open, ready, in
    flight write/sequenced_batch.py                       what one producer sent in one go, whole in an entry
    format/producer_table.py, format/producer_section.py   who a log's producers are; their bytes in its
    entries (pure) write/producer_state_manager.py, takeover/producer_recovery.py   at its writer: what is
    stored and on its way; read at a takeover limits/memory_budget.py, limits/write_throttle.py   what all
    logs hold; the rates of one log write/open_segment.py                 a batch becomes an entry
    (`format/record.py`), its clock's time in it format/compression.py                  and smaller, where the
    log has a codec format/control_record.py                      entries without records (pure)
    write/segment_roller.py, limits/roll_semaphore.py      segments rolled, replaced, completed, kept alive;
    how many rolls at once takeover/takeover.py, limits/recovery_semaphore.py  the end of the writer before is
    made certain, the first segment opened takeover/log_lock.py, services/lease_session.py        a leased key
    that names who writes (`model/lock_record.py`); one lease a process model/writer_log_state.py
    changing the state as its owner (H12); without owning it: `changes/log_truncation.py`

Reading:

    read/log_reader.py, read/entry_queue.py       records in order; entries ahead of their reader; how long it
    waits read/fetcher.py                      from the bookies, in a task
    read/skipped_entries.py                        what a reader was told to pass over (pure)
    read/multi_reader.py                 several logs as one stream
    consumers/subscription.py, services/position_commits.py     one holder from a named position on; what
    holders commit, written together consumers/work_state.py, consumers/work_queue.py          how far many
    workers are (pure); who of them gets what services/ephemeral_key.py                     that a holder or a
    worker is there byte_stream.py                  a log as bytes: written, read and sought by offset
    read/segment_watch.py                segments as they are opened, closed, cut off
    read/state_watch.py                     the state as a watch pushes it
    model/position_outcome.py, model/deleted_log_lookup.py      what a held position meets (pure); where
    deleted logs lie read/segment_reader.py               a segment's entries, wherever they lie
    read/next_segment.py                 the next one, entered by its first entry
    read/position_search.py                       the last record, positions by txid and time, in few looks

What breaks in one log's task stays that log's: `interfaces/error_boundary.py`.
Ends and positions: `changes/log_truncation.py`, `segments/segment_purge.py`, `services/named_positions.py`,
`segments/log_deletion.py`, `model/deleted_log.py`. For pipelines: `read/log_view.py`,
`model/segment_ranges.py` and `read/log_snapshot.py` (plans), `read/range_reader.py`;
`segments/external_segment_writer.py`, `segments/segment_link.py`, `segments/app_versions.py`,
`segments/staged_ledgers.py` (segments written outside a log, and linked to it). Small segments share a
ledger: `segments/segment_merge.py`; what that leaves, `segments/replaced_ledgers.py`. Both kinds of writers:
`format/packed_columns.py`, entries whose columns are there already.
"""
