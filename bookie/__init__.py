"""A storage server: keeps entries of ledgers on its disks, and answers for them.

From the wire to the platter and back:

    format/entry.py, format/bookie_messages.py       the bytes (pure)
    server.py, session/bookie_session.py, session/session_reads.py, session/read_scheduler.py      one session
    a connection: streams, long polls;
                                reads, whose turn they are, credit
    store/bookie_store.py, store/add_handler.py           what a bookie promises: add once, fence, read, LAC,
    delete storage/bookie_storage.py           the parts that hold its data
    session/bookie_authorizer.py                     who may do what with which ledger: capabilities, in place
    of stored keys ledgers/ledger_existence.py                 what the metadata is asked before an old ledger
    becomes known again storage/group_commit.py                  what joins a commit, and what follows when it
    is durable integrity/limbo.py                    ledgers of which something may be lost, and how they get
    out (inv. 22) integrity/corruption_tracker.py                      entries that do not read as they were
    written: noted, looked at, dropped integrity/replica_removal.py                 copies that no record
    names any more integrity/scrubber.py                    every live run is read once in two weeks
    gc/checkpointer.py, gc/file_removal.py    when the index is written; dead files go
    declarations/counters.py                    counters, and what is wrong
    gc/compactor.py, gc/compacted_file_writer.py   live records move out of files that are mostly dead, into
    cold files gc/extent_relocation.py            the index points to where they are then
    gc/compaction_policy.py            which files (pure); how fast:
    distributedlog/runtime/primitives/background_rate.py format/footer_ranges.py                    where the
    index is asked for what is live in them (pure) format/compacted_format.py, replay/compacted_file_scan.py
    what cold files hold (pure), and what they say of themselves declarations/metrics.py,
    declarations/events.py       what it counts, by the names that it has outside; what it tells
    disk/bookie_disk_space.py, disk/disk_reserve.py        why it is read-only (pure); what is put aside for
    the day when a disk is full ledgers/ledger_table.py, ledgers/long_poll.py      what it knows of a ledger;
    who waits for its LAC storage/journal_buffer.py                   the ring in which commits gather, and
    from which the tail is read storage/journal.py                  one block a commit, one sync a block;
    files, rolls, footers storage/file_preallocator.py        its next file, made before it is needed
    format/journal_format.py           what the blocks hold (pure) storage/ledger_state_snapshot.py
    all ledgers' states in one file, where they are many storage/index.py, format/extent_map.py,
    format/index_format.py     (ledger, entry) to a place in the journal; its bytes (pure)
    storage/entry_reader.py, format/record_slices.py, format/read_sources.py  ring, page cache, or a worker
    that asks the device store/startup.py                  a start, in the order of
        replay/journal_replay.py, store/journal_verifier.py      which blocks count; what may be lost
        store/index_rebuild.py                    an index that is gone or damaged, built again
        store/first_journal_file.py               what is written again before it serves
    client/bookie_client.py, client/capability_cache.py   the other end of a connection; what it shows in
    place of stored keys declarations/options.py                  what can be set

What is open: a rotten entry of an open ledger waits until that is closed.
"""
