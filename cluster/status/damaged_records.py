"""Find the unreadable records of the metadata store by reading them, for `dlog status`.

Code that lists records of one kind skips unreadable ones, so that one key stops no other work. This module
reports them. The fuzz tests of the decoders also use `ALL_RECORDS`: each decoder takes key and value, and
raises only `CorruptData` or `UnsupportedFormat`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...ledger.model import ledger_ids as ids
from ...ledger.model import ledger_keys as keys
from ...ledger.model.bookie_registration import BookieRegistration
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.missing_range import decode_missing_ranges
from ...ledger.placement.placement_policy import PlacementPolicy
from ...log.consumers.work_state import WorkState
from ...log.model import deleted_log as tombstone
from ...log.model.lock_record import LockRecord
from ...log.model.log_keys import (
    PURGE_PREFIX,
    REPLACED_PREFIX,
    STAGED_PREFIX,
    decode_log_id,
    parse_purge_key,
    parse_replaced_key,
    parse_staged_key,
)
from ...log.model.log_state import LogState
from ...log.model.segment_expiry import CLOCK_KEY, SegmentCloseTimes, decode_clock
from ...log.model.segment_record import SegmentRecord
from ...log.model.stored_settings import BIND_PREFIX, CONF_PREFIX, StoredSettings
from ...log.segments.app_versions import AppVersion
from ...log.segments.staged_ledgers import StagedLedger
from ...log.services.named_positions import PositionRecord
from ...metadata.model.cluster_version import CLUSTER_VERSION_KEY, ClusterVersion
from ...metadata.model.interface import Metadata, Scan
from ...proxy.membership.proxy_registration import PREFIX as PROXIES
from ...proxy.membership.proxy_registration import ProxyRegistration
from ...runtime.interfaces.errors import CorruptData, DistributedLogError
from ..coordination.cookie import decode_cookie
from ..coordination.gc_hold import HOLD, RESTORES, decode_hold, decode_restores
from ..coordination.journal_sync_point import JournalSyncPoint
from ..coordination.repair_settings import REPAIR_SETTINGS, RepairSettings
from ..repair.pull_replication import ReplicaMove

SEEN_PREFIX = keys.sync_point_key("")
DAMAGED_MAX = 100
"""The maximum number of records that are reported. Further ones would give no more information."""

Decode = Callable[[bytes, bytes], object]


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """The key of an unreadable record, and the reason."""

    key: str
    why: str


def _decode_name(key: bytes, value: bytes) -> object:
    try:
        key.decode()
    except UnicodeDecodeError:
        raise CorruptData(f"{keys.printable_key(key)} is not a key of a log's name") from None
    return decode_log_id(value)


def _decode_settings(value: bytes) -> object:
    """Decode settings. A number out of range is an error here, so that an operator is informed of it."""
    settings = StoredSettings.decode(value)
    if settings.out_of_range:
        raise CorruptData("; ".join(settings.out_of_range))
    return settings


def _decode_log_record(key: bytes, value: bytes) -> object:
    """Decode a record below ``log/``."""
    parts = key.split(b"/")
    decode_record = _LOG_RECORD_DECODERS.get(parts[2]) if len(parts) > 2 else None
    if decode_record is None:
        raise CorruptData(f"{keys.printable_key(key)} is not a key of a log")
    return decode_record(value)


_LOG_RECORD_DECODERS: Mapping[bytes, Callable[[bytes], object]] = {
    b"state": LogState.decode,
    b"segment": SegmentRecord.decode,
    b"lock": LockRecord.decode,
    b"position": PositionRecord.decode,
    b"reader": LockRecord.decode,
    b"work": WorkState.decode,
    b"worker": LockRecord.decode,
    b"txn": AppVersion.decode,
    b"stamps": SegmentCloseTimes.decode,
}

FEW_RECORDS: Mapping[bytes, Decode] = {
    keys.BOOKIE_PREFIX: BookieRegistration.decode,
    keys.COOKIE_PREFIX: decode_cookie,
    keys.LEAVING_PREFIX: lambda key, _: keys.bookie_id_of(key),
    keys.SCRUB_PREFIX: lambda key, _: keys.bookie_id_of(key),
    keys.MISSING_RANGES_PREFIX: lambda key, value: (
        keys.ledger_id_of(key),
        decode_missing_ranges(value),
    ),
    keys.DELETE_PREFIX: lambda key, _: (keys.ledger_id_of(key), keys.bookie_id_of(key)),
    keys.MOVE_PREFIX: lambda key, value: (
        keys.ledger_id_of(key),
        keys.bookie_id_of(key),
        ReplicaMove.decode(value),
    ),
    SEEN_PREFIX: JournalSyncPoint.decode,
    keys.PLACEMENT: lambda _, value: PlacementPolicy.decode(value),
    REPAIR_SETTINGS: lambda _, value: RepairSettings.decode(value),
    keys.NEXT_LEDGER: lambda _, value: ids.decode_next_ledger(value),
    STAGED_PREFIX: lambda key, value: (parse_staged_key(key), StagedLedger.decode(value)),
    REPLACED_PREFIX: lambda key, _: parse_replaced_key(key),
    PURGE_PREFIX: lambda key, _: parse_purge_key(key),
    BIND_PREFIX: lambda _, value: _decode_settings(value),
    CLOCK_KEY: lambda _, value: decode_clock(value),
    RESTORES: lambda _, value: decode_restores(value),
    HOLD: lambda _, value: decode_hold(value),
    PROXIES: ProxyRegistration.decode,
    CLUSTER_VERSION_KEY: lambda _, value: ClusterVersion.decode(value),
}
"""Kinds with few records, which are read at each status."""

MANY_RECORDS: Mapping[bytes, Decode] = {
    keys.LEDGER_PREFIX: LedgerMetadata.decode,
    keys.ON_PREFIX: lambda key, _: (keys.ledger_id_of(key), keys.bookie_id_of(key)),
    b"name/": _decode_name,
    CONF_PREFIX: lambda key, value: (
        decode_log_id(key.removeprefix(CONF_PREFIX)),
        _decode_settings(value),
    ),
    b"log/": _decode_log_record,
    tombstone.DELETED_PREFIX: lambda _, value: tombstone.decode_deleted_logs(value),
}
"""Kinds whose number of records grows with the logs."""

ALL_RECORDS: Mapping[bytes, Decode] = {**FEW_RECORDS, **MANY_RECORDS}

NEXT_STEPS: Mapping[bytes, str] = {
    keys.BOOKIE_PREFIX: "Restart this bookie. It stores the record again",
    PROXIES: "Restart this proxy. It stores the record again",
    SEEN_PREFIX: (
        "Do not stop this bookie until it has stored the record again, after its next write. Without the"
        " record, it would start in the limbo state"
    ),
    keys.PLACEMENT: "Store the complete policy again with dlog placement",
    REPAIR_SETTINGS: "Store the settings again with dlog repair config and dlog repair pause",
}
"""The next step for an unreadable record that a node or a command stores again, by the start of its key."""


def next_step(key: bytes) -> str:
    """Return the next step if this record is unreadable. "" if no node or command stores it again."""
    return next((step for prefix, step in NEXT_STEPS.items() if key.startswith(prefix)), "")


async def damaged_records(metadata: Metadata, *, include_many: bool = False) -> list[DamagedRecord]:
    """Return the unreadable records, at most `DAMAGED_MAX`.

    Args:
        metadata: The metadata store.
        include_many: Whether to read the records of ledgers and logs, too.
    """
    damaged: list[DamagedRecord] = []
    for prefix, decode in (ALL_RECORDS if include_many else FEW_RECORDS).items():
        async for item in Scan(metadata, prefix):
            try:
                decode(item.key, item.value)
            except DistributedLogError as error:
                damaged.append(DamagedRecord(keys.printable_key(item.key), str(error)))
                if len(damaged) == DAMAGED_MAX:
                    return damaged
    return damaged
