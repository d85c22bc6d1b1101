"""The client of many bookies: one ledger, one writer, striped, replicated, fenced, recovered.

    client.py                       create, write, read, recover, delete; with
        stored_ledger.py, ids.py        a ledger to be created, one as it was read, records that cannot be
                                        read; new ids
    metadata.py, keys.py            the record, and where it is kept
    ledger_records.py, transactions.py  followed; changed, with the index of who holds what
    striping.py, placement.py       which bookies hold an entry, or a new ledger (pure)
        placement_policy.py             how far apart its copies are to be, by which labels
    registration.py, pool.py        who there is; connections

Writing, in the order an entry meets it:

    writer.py                       `add`, the LAC, the end
    add_window.py                   what is in flight, and how far it is confirmed (pure)
    slot_streams.py                 the same record to each slot's bookie, acks back
    resting_lacs.py                 LACs that no add has carried, told a little later
    slot_care.py, lateness.py       slots that are silent, slow, refused
    ensemble_change.py              what to replace (pure); the store is asked first
    holes.py, hole_note.py          what slots miss, noted for repair
    process_bounds.py               what is kept for slow slots, and sent, over all ledgers (pure)

When the writer is gone:

    recovery.py                     fence, read, write back, close (pure); with
        recovery_actions.py, evidence.py    what it asks for; what the answers prove
    recovery_driver.py              the driver

Reading:

    reader.py, read_ahead.py, tail.py   up to the LAC; ranges under way; long polls at the end
    copies.py                       are all copies what was meant

`options.py` says what can be set, `events.py` what is told.
"""
