"""Write, read and recover ledgers, which are replicated on several bookies and have one writer each.

Ledgers and their records:

    ledger_client.py                 Create, write, read, recover and delete ledgers.
    model/stored_ledger.py           A ledger before it is stored, a ledger that was read, and records that
                                     are unreadable.
    model/ledger_ids.py              Allocate the IDs of new ledgers.
    model/ledger_metadata.py         The record of a ledger, and all changes of its state (pure).
    model/ledger_keys.py             All metadata keys of this part (pure).
    model/ledger_transactions.py     Metadata operations that change a record, with the index of the ledgers
                                     per bookie.
    read/ledger_watch.py             Read the records of ledgers, and watch them for changes.

Choice of bookies:

    model/striping.py                The slots that store an entry, and the answers that cover a quorum
                                     (pure).
    placement/ensemble_placement.py  Choose the bookies of new ledgers and the replacements of failed bookies
                                     (pure).
    placement/placement_policy.py    The placement policy: how far apart copies are stored, and by which
                                     labels (pure).
    model/bookie_registration.py     The registration record of a bookie: identity, addresses, free space
                                     (pure).
    placement/bookie_pool.py         Connections to all live bookies, one per bookie.

Writing, in the order of an entry's path:

    write/ledger_writer.py           The writer: `add`, the LAC, back-pressure, the end.
    write/pending_adds.py            Adds in flight, and the last confirmed entry (pure).
    write/add_streams.py             Send the same record to the bookie of each slot, and receive
                                     acknowledgements.
    write/explicit_lac.py            Send a LAC that no later add carries, after a short delay.
    write/ensemble_monitor.py        Watch for disconnected, silent and slow slots, and replace or detach
                                     them.
    write/slot_timers.py             Measure the time for which adds and slots have waited (pure).
    write/ensemble_change.py         Decide on replacements. They count only after they are stored in the
                                     metadata (pure).
    model/missing_range.py           The record of entries that detached slots lack (pure).
    write/missing_range_recorder.py  Store this record in the metadata for repair.
    write/flow_control.py            Limit the bytes that a process sends, and keeps for slow slots, over all
                                     ledgers (pure).

Recovery, when the writer has failed:

    recovery/ledger_recovery.py      The steps: fence, read, write back, close (pure).
    recovery/recovery_actions.py     The requests that these steps return to the driver (pure).
    recovery/quorum_coverage.py      Decide from the answers whether an entry is present, absent or unknown
                                     (pure).
    recovery/recovery_driver.py      Carry out the requests on bookies and metadata.

Reading:

    read/ledger_reader.py            Read verified entries up to the LAC, from any replica.
    read/read_ahead.py               Request the next ranges of entries ahead of the reader.
    read/tail_polls.py               Follow the end of a ledger with long polls.
    read/ledger_checker.py           Compare all copies of a closed ledger.

Options and events:

    declarations/options.py          The options of ledgers (pure).
    declarations/events.py           Log events by their public names.
"""
