"""Compare all copies of a closed ledger, of each entry, with digests of the expected content.

Callers run this check before they delete the only other copies of the ledger's content (H158).
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
    """Return a description of a copy that is absent, damaged or different, or "" if all copies match.

    Args:
        metadata: The closed ledger.
        pool: Connections to the bookies.
        options: Time limits.
        digests: The expected xxh3_64 digest of each entry's payload, in order.

    Raises:
        DistributedLogError: A bookie could not be queried.
    """
    if not metadata.closed or metadata.last_entry != len(digests) - 1:
        return f"it ends at entry {metadata.last_entry}, but {len(digests)} entries are expected"
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
    """Compare one bookie's copies of a fragment, up to entry ``stop``, excluded."""
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
            return f"entry {entry} is absent"
    return ""
