"""Which records of the metadata store cannot be read: found by reading them, for `dlog status`.

A record that cannot be read is passed over by whoever lists its kind, so that one key stops nobody; here is
where it is seen again. `RECORDS` is also what the fuzz of the decoders goes by: each takes key and value, and
raises `CorruptData` or `UnsupportedFormat`, nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...ledger.model import ledger_ids as ids
from ...ledger.model import ledger_keys as keys
from ...ledger.model import missing_range as holes
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.placement.placement_policy import PlacementPolicy
from ...log.consumers.work_state import WorkState
from ...log.model import deleted_log as tombstone
from ...log.model.lock_record import LockRecord
from ...log.model.log_keys import (
    PURGE_PREFIX,
    RETIRED_PREFIX,
    UNLINKED_PREFIX,
    decode_log_id,
    ids_of_retired,
    ids_of_unlinked,
    log_id_of,
)
from ...log.model.log_state import LogState
from ...log.model.segment_expiry import CLOCK_KEY, Stamps, decode_clock
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import BIND_PREFIX, CONF_PREFIX, StoredSettings
from ...log.segments.app_versions import AppVersion
from ...log.segments.staged_ledgers import StagedLedger
from ...log.services.named_positions import PositionRecord
from ...metadata.model.interface import Metadata, Scan
from ...proxy.membership.proxy_registration import PREFIX as PROXIES
from ...proxy.membership.proxy_registration import ProxyRegistration
from ...runtime.interfaces.errors import CorruptData, DistributedLogError
from ..coordination.cookie import decode_cookie
from ..coordination.gc_hold import HOLD, RESTORES, decode_hold, decode_restores
from ..coordination.journal_sync_point import JournalSyncPoint
from ..repair.pull_replication import ReplicaMove

SEEN_PREFIX = keys.seen_key("")
DAMAGED_MAX = 100
"""Named at most; the rest would say the same."""

Decode = Callable[[bytes, bytes], object]


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """A key whose record cannot be read, and why."""

    key: str
    why: str


def _name(key: bytes, value: bytes) -> object:
    try:
        key.decode()
    except UnicodeDecodeError:
        raise CorruptData(f"{keys.shown(key)} is no key of a log's name") from None
    return decode_log_id(value)


def _settings(value: bytes) -> object:
    """Settings, in which no number is replaced: an operator has to see that."""
    found = StoredSettings.decode(value)
    if found.out_of_range:
        raise CorruptData("; ".join(found.out_of_range))
    return found


def _log(key: bytes, value: bytes) -> object:
    """A record below ``log/``."""
    parts = key.split(b"/")
    form = _OF_A_LOG.get(parts[2]) if len(parts) > 2 else None
    if form is None:
        raise CorruptData(f"{keys.shown(key)} is no key of a log")
    return form(value)


_OF_A_LOG: Mapping[bytes, Callable[[bytes], object]] = {
    b"state": LogState.decode,
    b"segment": SegmentRecord.decode,
    b"lock": LockRecord.decode,
    b"position": PositionRecord.decode,
    b"reader": LockRecord.decode,
    b"work": WorkState.decode,
    b"worker": LockRecord.decode,
    b"txn": AppVersion.decode,
    b"stamps": Stamps.decode,
}

FEW: Mapping[bytes, Decode] = {
    keys.BOOKIE_PREFIX: BookieRegistration.decode,
    keys.COOKIE_PREFIX: decode_cookie,
    keys.LEAVING_PREFIX: lambda key, _: keys.bookie_id_of(key),
    keys.SCRUB_PREFIX: lambda key, _: keys.bookie_id_of(key),
    keys.UNDER_PREFIX: lambda key, value: (keys.ledger_id_of(key), holes.decode(value)),
    keys.DELETE_PREFIX: lambda key, _: (keys.ledger_id_of(key), keys.bookie_id_of(key)),
    keys.MOVE_PREFIX: lambda key, value: (
        keys.ledger_id_of(key),
        keys.bookie_id_of(key),
        ReplicaMove.decode(value),
    ),
    SEEN_PREFIX: JournalSyncPoint.decode,
    keys.PLACEMENT: lambda _, value: PlacementPolicy.decode(value),
    keys.NEXT_LEDGER: lambda _, value: ids.next_of(value),
    UNLINKED_PREFIX: lambda key, value: (ids_of_unlinked(key), StagedLedger.decode(value)),
    RETIRED_PREFIX: lambda key, _: ids_of_retired(key),
    PURGE_PREFIX: lambda key, _: log_id_of(key),
    BIND_PREFIX: lambda _, value: _settings(value),
    CLOCK_KEY: lambda _, value: decode_clock(value),
    RESTORES: lambda _, value: decode_restores(value),
    HOLD: lambda _, value: decode_hold(value),
    PROXIES: ProxyRegistration.decode,
}
"""What there is little of: read at each status."""

MANY: Mapping[bytes, Decode] = {
    keys.LEDGER_PREFIX: LedgerMetadata.decode,
    keys.ON_PREFIX: lambda key, _: (keys.ledger_id_of(key), keys.bookie_id_of(key)),
    b"name/": _name,
    CONF_PREFIX: lambda key, value: (
        decode_log_id(key.removeprefix(CONF_PREFIX)),
        _settings(value),
    ),
    b"log/": _log,
    tombstone.GONE_PREFIX: lambda _, value: tombstone.decode(value),
}
"""What grows with the logs."""

RECORDS: Mapping[bytes, Decode] = {**FEW, **MANY}


async def damaged_records(metadata: Metadata, *, thorough: bool = False) -> list[DamagedRecord]:
    """The records that cannot be read, `DAMAGED_MAX` at most; those of ledgers and logs if ``thorough``."""
    found: list[DamagedRecord] = []
    for prefix, decode in (RECORDS if thorough else FEW).items():
        async for item in Scan(metadata, prefix):
            try:
                decode(item.key, item.value)
            except DistributedLogError as error:
                found.append(DamagedRecord(keys.shown(item.key), str(error)))
                if len(found) == DAMAGED_MAX:
                    return found
    return found
