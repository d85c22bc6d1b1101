"""The log abstraction: an endless stream of records made of ledgers.

    dlsn.py, record.py, names.py    an address; records in columns in one entry; names (pure)
    codecs.py                       lz4 and zstd, bounded (pure)
    position.py                     an address that proves what is before it (pure)
    namespace.py, handle.py, opening.py, watch.py   names to logs; one log; which logs come and go
    rename.py                       another name for the same log
    settings.py, stored_settings.py, settings_watch.py   what a log has set (pure); kept; followed
    retention.py, abandoned.py      the clock of segments' ages (pure); closing what was left open
    keys.py, state.py, segments.py  what must be agreed of a log, and where it is kept (pure)
    log_time.py                     when a record was written: never before the one before it (pure)
    txids.py                        who says a record's txid: a rule of the log (pure)
    ledgers.py                      what is needed of the part below, as protocols
    context.py, options.py          clients, clocks; what can be set, and where a new option goes
    metrics.py, events.py           what a process counts, and how a registry gets it; what it tells

Writing, in the order a record meets it:

    writer.py, admission.py         what the user holds; which records are taken (pure)
    sequenced_writer.py             the calls for proxies, gateways and producers
    txid_admission.py, writer_ownership.py   txids of one writer's records; is the log still the writer's
    batch.py, pipeline.py           one outcome an entry; batches open, ready, in flight
    frames.py                       what one producer sent in one go, whole in an entry
    producers.py, producers_format.py   who a log's producers are; their bytes in its entries (pure)
    producing.py, producers_replay.py   at its writer: what is stored and on its way; read at a takeover
    process_bytes.py, write_throttle.py   what all logs hold; the rates of one log
    open_segment.py                 a batch becomes an entry (`record.py`), its clock's time in it
    compression.py                  and smaller, where the log has a codec
    control.py                      entries without records (pure)
    keeper.py, roll_permits.py      segments rolled, replaced, completed, kept alive; how many rolls at once
    takeover.py, recovery_turns.py  the end of the writer before is made certain, the first segment opened
    lock.py, lock_session.py        a leased key that names who writes (`lock_record.py`); one lease a process
    ownership.py                    changing the state as its owner (H12); without owning it: `truncation.py`

Reading:

    reader.py, entry_queue.py       records in order; entries ahead of their reader; how long it waits
    fetcher.py                      from the bookies, in a task
    skips.py                        what a reader was told to pass over (pure)
    multi_reader.py                 several logs as one stream
    subscription.py, commits.py     one holder from a named position on; what holders commit, written together
    work.py, work_queue.py          how far many workers are (pure); who of them gets what
    presence.py                     that a holder or a worker is there
    byte_stream.py                  a log as bytes: written, read and sought by offset
    segment_watch.py                segments as they are opened, closed, cut off
    follower.py                     the state as a watch pushes it
    lifecycle.py, graveyard.py      what a held position meets (pure); where deleted logs lie
    segment_reader.py               a segment's entries, wherever they lie
    next_segment.py                 the next one, entered by its first entry
    locate.py                       the last record, positions by txid and time, in few looks

What breaks in one log's task stays that log's: `containment.py`.
Ends and positions: `truncation.py`, `purge.py`, `positions.py`, `deletion.py`, `tombstone.py`.
For pipelines: `view.py`, `ranges.py` and `snapshot.py` (plans), `range_reader.py`; `segment_writer.py`,
`link.py`, `app_versions.py`, `unlinked.py` (segments written outside a log, and linked to it).
Small segments share a ledger: `merge.py`; what that leaves, `retired.py`.
Both kinds of writers: `packed.py`, entries whose columns are there already.
"""
