"""A storage server: keeps entries of ledgers on its disks, and answers for them.

From the wire to the platter and back:

    entry.py, messages.py       the bytes (pure)
    server.py, session.py, session_reads.py, read_turns.py      one session a connection: streams, long polls;
                                reads, whose turn they are, credit
    store.py, adds.py           what a bookie promises: add once, fence, read, LAC, delete
    bookie_storage.py           the parts that hold its data
    gate.py                     who may do what with which ledger: capabilities, in place of stored keys
    look_ups.py                 what the metadata is asked before an old ledger becomes known again
    commits.py                  what joins a commit, and what follows when it is durable
    limbo.py                    ledgers of which something may be lost, and how they get out (inv. 22)
    rot.py                      entries that do not read as they were written: noted, looked at, dropped
    dropping.py                 copies that no record names any more
    scrub.py                    every live run is read once in two weeks
    checkpointer.py, file_removal.py    when the index is written; dead files go
    stats.py                    counters, and what is wrong
    compaction.py, cold_writer.py   live records move out of files that are mostly dead, into cold files
    extent_relocation.py            the index points to where they are then
    compaction_policy.py            which files (pure); how fast: runtime/pacer.py
    spans.py                    where the index is asked for what is live in them (pure)
    cold_blocks.py, cold_files.py   what cold files hold (pure), and what they say of themselves
    metrics.py, events.py       what it counts, by the names that it has outside; what it tells
    space.py, reserve.py        why it is read-only (pure); what is put aside for the day when a disk is full
    ledgers.py, waiters.py      what it knows of a ledger; who waits for its LAC
    gather.py                   the ring in which commits gather, and from which the tail is read
    journal.py                  one block a commit, one sync a block; files, rolls, footers
    file_preallocator.py        its next file, made before it is needed
    journal_blocks.py           what the blocks hold (pure)
    state_base.py               all ledgers' states in one file, where they are many
    index.py, runs.py, index_records.py     (ledger, entry) to a place in the journal; its bytes (pure)
    reads.py, cutting.py, read_sources.py  ring, page cache, or a worker that asks the device
    opening.py                  a start, in the order of
        replay.py, journal_verifier.py      which blocks count; what may be lost
        index_rebuild.py                    an index that is gone or damaged, built again
        first_journal_file.py               what is written again before it serves
    client.py, client_keys.py   the other end of a connection; what it shows in place of stored keys
    options.py                  what can be set

What is open: a rotten entry of an open ledger waits until that is closed.
"""
