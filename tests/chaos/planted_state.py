"""A planted fault, from outside: a metadata node's memory changes a bit of a value (H105).

Run as a node's module, ``python -m tests.chaos.planted_state serve metadata …``: when the file that
DLOG_PLANTED_STATE names is there, the next log's name that it applies has a bit flipped, and the file goes.
"""

import os
from pathlib import Path
from typing import Any

from distributedlog.cli.main import main
from distributedlog.metadata.kv import HEAD, KeyValueState

WHERE = "DLOG_PLANTED_STATE"


def plant(when: Path) -> None:
    """One value is stored otherwise, once, as soon as ``when`` is there."""
    assert hasattr(KeyValueState, "_enter"), "values are entered elsewhere: plant it anew"
    enter = KeyValueState._enter

    def flip(self: Any, key: bytes, lease_id: int, stored: bytes) -> None:
        # A log's name stays as it is: what is written again soon would be right again.
        if key.startswith(b"name/") and len(stored) > HEAD.size and when.exists():
            when.unlink()
            stored = stored[:-1] + bytes([stored[-1] ^ 1])
        enter(self, key, lease_id, stored)

    KeyValueState._enter = flip  # type: ignore[method-assign]


if __name__ == "__main__":
    plant(Path(os.environ[WHERE]))
    main()
