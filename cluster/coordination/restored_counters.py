"""Advance the counters of logs and ledgers when the metadata of a cluster is restored from a backup (H104).

`metadata/node/force_new_cluster.py` advances the counters of the key space itself. This module changes two
kinds of keys. The next ledger ID is advanced so far that no ledger created after the backup has it. Each
log's epoch is raised, so that earlier writers are fenced at their next metadata access. They access the
metadata as soon as their lock's lease is lost.
"""

from dataclasses import dataclass, replace

from ...ledger.model import ledger_keys as keys
from ...ledger.model.ledger_ids import decode_next_ledger
from ...log.model.log_state import LogState
from ...metadata.model.transaction import KeyValue
from ...metadata.node.force_new_cluster import advance_state
from ...metadata.state.kv_state import KeyValueState
from ...runtime.interfaces.errors import CorruptData, InvalidRequest, UnsupportedFormat
from .gc_hold import HOLD, RESTORES, decode_restores, encode_hold

LEDGERS_AHEAD = 1 << 40
EPOCH_BITS = 32
"""The upper bits of an epoch count restores, the lower ones writers."""


@dataclass(frozen=True, slots=True)
class RestoredCounters:
    """The result of a restore."""

    state: KeyValueState
    restores: int
    """The number of restores, including this one."""
    logs: int
    unreadable: tuple[str, ...]
    """Keys of unreadable records, which remain unchanged."""


def restore_counters(restored_state: KeyValueState, why: str) -> RestoredCounters:
    """Return the state with which a restored cluster starts.

    Args:
        restored_state: The state from the backup.
        why: The reason to report while deletions are on hold.

    Raises:
        InvalidRequest: A record is from a newer version, which must do the restore.
    """
    stored_restores = restored_state.get(RESTORES)
    restores = 1 + (0 if stored_restores is None else decode_restores(stored_restores.value))
    logs = 0
    unreadable: list[str] = []

    def change(item: KeyValue) -> bytes:
        nonlocal logs
        try:
            if item.key == keys.NEXT_LEDGER:
                return b"%d" % (decode_next_ledger(item.value) + LEDGERS_AHEAD)
            if item.key.startswith(b"log/") and item.key.endswith(b"/state"):
                state = LogState.decode(item.value)
                epoch = restores << EPOCH_BITS | state.epoch & ((1 << EPOCH_BITS) - 1)
                logs += 1
                return replace(state, epoch=epoch).encode()
        except CorruptData:
            unreadable.append(keys.printable_key(item.key))
        except UnsupportedFormat as error:
            raise InvalidRequest(f"only a newer version can restore this: {error}") from error
        return item.value

    added = {RESTORES: b"%d" % restores, HOLD: encode_hold(why)}
    state = advance_state(restored_state, change, added)
    return RestoredCounters(state, restores, logs, tuple(unreadable))
