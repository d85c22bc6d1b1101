"""The log abstraction: an endless stream of records made of ledgers.

    dlsn.py, record.py, names.py    a position; records in columns in one entry; names (pure)
    namespace.py, handle.py, opening.py, watch.py   names to logs; one log; which logs come and go
    keys.py, state.py, segments.py  what must be agreed of a log, and where it is kept (pure)
    ledgers.py                      what is needed of the part below, as protocols

Writing, in the order a record meets it:

    writer.py, admission.py         what the user holds; which records are taken
    pipeline.py, batch.py, packed.py    batches open, ready, in flight; one outcome an entry
    keeper.py, open_segment.py      segments begun, rolled, replaced, completed
    takeover.py                     the end of the writer before is made certain
    lock.py, lock_session.py        a leased key that names who writes; one lease a process
    ownership.py, shared_change.py  changing the state: as its owner (H12), and without owning it

Reading:

    reader.py, fetcher.py           records in order; entries ahead of their reader
    follower.py, locate.py          the state as a watch pushes it; positions by txid

Ends and positions: `truncation.py`, `purge.py`, `seal.py`, `positions.py`, `deletion.py`.
For pipelines: `ranges.py` and `snapshot.py` (plans), `range_reader.py`, `segment_writer.py`, `link.py`,
`apps.py`, `unlinked.py` (segments written beside a log, and joined to it).
`options.py` says what can be set.
"""
