"""The client of many bookies: one ledger, one writer, striped, replicated, fenced, recovered.

    ledger_client.py                       create, write, read, recover, delete; with
        model/stored_ledger.py, model/ledger_ids.py        a ledger to be created, one as it was read, records
        that cannot be
                                        read; new ids
    model/ledger_metadata.py, model/ledger_keys.py            the record, and where it is kept
    read/ledger_watch.py, model/ledger_transactions.py  followed; changed, with the index of who holds what
    model/striping.py, placement/ensemble_placement.py       which bookies hold an entry, or a new ledger
    (pure)
        placement/placement_policy.py             how far apart its copies are to be, by which labels
    model/bookie_registration.py, placement/bookie_pool.py        who there is; connections

Writing, in the order an entry meets it:

    write/ledger_writer.py                       `add`, the LAC, the end
    write/pending_adds.py                   what is in flight, and how far it is confirmed (pure)
    write/add_streams.py                 the same record to each slot's bookie, acks back
    write/explicit_lac.py                 LACs that no add has carried, told a little later
    write/ensemble_monitor.py, write/slot_timers.py       slots that are silent, slow, refused
    write/ensemble_change.py              what to replace (pure); the store is asked first
    model/missing_range.py, write/missing_range_recorder.py          what slots miss, noted for repair
    write/flow_control.py               what is kept for slow slots, and sent, over all ledgers (pure)

When the writer is gone:

    recovery/ledger_recovery.py                     fence, read, write back, close (pure); with
        recovery/recovery_actions.py, recovery/quorum_coverage.py    what it asks for; what the answers prove
    recovery/recovery_driver.py              the driver

Reading:

    read/ledger_reader.py, read/read_ahead.py, read/tail_polls.py   up to the LAC; ranges under way; long
    polls at the end read/ledger_checker.py                       are all copies what was meant

`declarations/options.py` says what can be set, `declarations/events.py` what is told.
"""
