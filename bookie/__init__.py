"""Store entries of ledgers on the disks of one machine, and serve them to clients.

Bytes on the wire:

    format/entry.py                   The entry record: one layout on the wire, in the journal and in replies
                                      (pure).
    format/bookie_messages.py         The frame bodies of requests and replies between clients and bookies
                                      (pure).

Connections:

    server.py                         Serve a store to connections, with one session per connection and no
                                      task per request.
    session/bookie_session.py         One connection: decode its frames, carry out adds and fences, send
                                      replies.
    session/session_reads.py          The reads of one connection, served when it is the connection's turn.
    session/read_scheduler.py         Serve the reads of all connections in turn, and limit the bytes of their
                                      replies.
    session/bookie_authorizer.py      Authorize requests by capabilities, passes, or the stored keys of
                                      ledgers.

Operations on ledgers:

    store/bookie_store.py             The guarantees of a bookie: add once, refuse adds after a fence, read,
                                      report the LAC, delete.
    store/add_handler.py              Verify the records of an ADD frame and put them into the journal buffer,
                                      in one call.
    storage/bookie_storage.py         The parts that hold the data of a bookie. The start creates them.
    storage/group_commit.py           Collect records for a commit, and acknowledge them when its sync has
                                      made them durable.
    ledgers/ledger_table.py           The state of ledgers in memory, their add streams, and the requests that
                                      wait for a LAC.
    ledgers/ledger_existence.py       Query the metadata about unknown ledgers before an add to them is
                                      accepted.
    ledgers/long_poll.py              Requests that wait until the LAC of a ledger advances.

Journal:

    storage/journal.py                Write and sync one block per commit. Roll and seal the journal files.
    storage/journal_buffer.py         The ring of buffers in which commits are collected. The newest entries
                                      are read from it.
    storage/file_preallocator.py      Create the next journal file before it is needed.
    format/journal_format.py          The contents of journal blocks (pure).
    storage/ledger_state_snapshot.py  The states of all ledgers in one file, so that journal files need not
                                      repeat many states.

Index and reads:

    storage/index.py                  The map from ledger and entry to an offset in a file.
    format/extent_map.py              The extents of one ledger in memory, in columns.
    format/index_format.py            The bytes of keys and values in the index (pure).
    storage/entry_reader.py           Read entries from the journal buffer, from the page cache, or from the
                                      device in a worker.
    format/record_slices.py           Cut and check the records in the bytes of an extent (pure).
    format/read_sources.py            The memory that a reply refers to: extents loaded from the device or the
                                      page cache.

Corruption and lost data:

    integrity/limbo.py                The ledgers in limbo state, in which entries may be missing, and the end
                                      of this state (inv. 22).
    integrity/corruption_tracker.py   Record corrupt entries, check them again, and drop them when another
                                      copy is available.
    integrity/replica_removal.py      Drop copies that no ledger record names any more, and keep a fenced
                                      stub.
    integrity/scrubber.py             Read and verify each live extent once in two weeks by default.

Space:

    gc/checkpointer.py                Write checkpoints of the index, and serialize the changes of its map.
    gc/file_removal.py                Delete files without live records.
    gc/compactor.py                   Move live records out of mostly deleted files into compacted files.
    gc/compacted_file_writer.py       Write one compacted file.
    gc/extent_relocation.py           Find the live extents of files, and point the index to their copies.
    gc/compaction_policy.py           Select the files to compact, and the files in which to free pages
                                      (pure).
    format/footer_ranges.py           The ID ranges for which compaction queries the index, from the footers
                                      of files (pure).
    format/compacted_format.py        The layout of compacted files (pure).
    replay/compacted_file_scan.py     Read and check the footer of a compacted file.
    disk/bookie_disk_space.py         Decide from disk space and other facts whether the bookie is read-only
                                      (pure).
    disk/disk_reserve.py              Keep reserve files, whose space is freed when a disk is full.

`distributedlog/runtime/primitives/background_rate.py` sets the speed of compaction.

Start:

    store/startup.py                  All steps of a start, in order.
    replay/journal_replay.py          Read the journal, and decide which blocks count.
    store/index_rebuild.py            Rebuild a lost or damaged index.
    store/journal_verifier.py         Check whether synced data may be lost.
    store/first_journal_file.py       Copy blocks that may be unsynced into a new journal file before the
                                      bookie serves.

Client:

    client/bookie_client.py           The client end of a connection to one bookie.
    client/capability_cache.py        The capabilities that a client sends in place of the stored keys of
                                      ledgers.

Options and observation:

    declarations/options.py           The options of a bookie.
    declarations/counters.py          Counters, and health conditions.
    declarations/metrics.py           Metrics by their public names.
    declarations/events.py            Log events by their public names.

Known limit: a corrupt entry of an open ledger is not repaired before recovery starts or the ledger closes.
"""
