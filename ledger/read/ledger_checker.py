"""Are all copies of a closed ledger what was meant to be in it? Each one of each entry is read and compared.

For whoever is about to give up the only other copies of what the ledger holds (H158).
"""

from collections.abc import Sequence

import xxhash

from ...bookie.format.entry import records
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ..declarations.options import LedgerOptions
from ..model.ledger_metadata import Fragment, LedgerMetadata
from ..placement.bookie_pool import BookiePool

READ_BYTES = 1024 * 1024


async def find_different_copy(
    metadata: LedgerMetadata, pool: BookiePool, options: LedgerOptions, digests: Sequence[int]
) -> str:
    """Which copy of a closed ledger is absent, damaged or other than meant, in words; "": none is.

    ``digests``: xxh3_64 of each entry's payload, in order. Raises what keeps a bookie from being asked.
    """
    if not metadata.closed or metadata.last_entry != len(digests) - 1:
        return f"it ends at entry {metadata.last_entry}, and {len(digests)} entries were meant"
    for index, fragment in enumerate(metadata.ensembles):
        end = metadata.fragment_end(index)
        stop = len(digests) if end is None else min(end, len(digests))
        for slot in range(len(fragment.bookies)):
            difference = await _find_difference(
                metadata, fragment, slot, stop, pool, options, digests
            )
            if difference:
                return f"{fragment.bookies[slot]}: {difference}"
    return ""


async def _find_difference(
    metadata: LedgerMetadata,
    fragment: Fragment,
    slot: int,
    stop: int,
    pool: BookiePool,
    options: LedgerOptions,
    digests: Sequence[int],
) -> str:
    """What one bookie holds of a fragment, up to entry ``stop``, without that."""
    striping = metadata.striping
    entry = striping.next_held(slot, fragment.first_entry)
    while entry < stop:
        client = await pool.connected(fragment.bookies[slot], options.connect_timeout_s)
        response = await client.read(
            metadata.ledger_id,
            metadata.key,
            entry,
            stop - 1,
            READ_BYTES,
            past_lac=True,
            timeout_s=options.request_timeout_s,
        )
        first_requested = entry
        try:
            for record in records(response.body):
                if record.ledger != metadata.ledger_id or record.entry != entry:
                    break
                if xxhash.xxh3_64_intdigest(record.payload) != digests[entry]:
                    return f"entry {entry} has other bytes"
                entry = striping.next_held(slot, entry + 1)
        except (CorruptData, UnsupportedFormat) as error:
            return f"entry {entry}: {error}"
        if entry == first_requested:
            return f"entry {entry} is not there"
    return ""
