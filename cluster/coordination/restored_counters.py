"""The metadata of a cluster as it begins anew from a save: what logs and ledgers count is moved ahead (H104).

`metadata/node/force_new_cluster.py` moves what the key space itself counts. Here, by key: the next ledger's
id goes so far ahead that no ledger of after the save has it, and each log's epoch, so that its writers of
before are fenced when they next look, which they do as soon as their lock's lease is gone.
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
"""An epoch's upper bits count restores, the lower ones writers."""


@dataclass(frozen=True, slots=True)
class RestoredCounters:
    """What a restore makes."""

    state: KeyValueState
    restores: int
    """This one included."""
    logs: int
    unreadable: tuple[str, ...]
    """Keys of records that cannot be read, and are left as they are."""


def restore_counters(restored_state: KeyValueState, why: str) -> RestoredCounters:
    """The state that the cluster goes on with. ``why``: what those are told who ask why nothing is deleted.

    Raises `InvalidRequest` where a newer program must do it.
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
            raise InvalidRequest(f"a newer version must restore this: {error}") from error
        return item.value

    added = {RESTORES: b"%d" % restores, HOLD: encode_hold(why)}
    state = advance_state(restored_state, change, added)
    return RestoredCounters(state, restores, logs, tuple(unreadable))
