"""A planted bug, from outside: bookies take adds to a fenced ledger from its old writer (G4).

Run as a node's module, ``dlog chaos run pauses --node-module tests.chaos.planted_fence``: a writer that
slept while another one took the log over is acknowledged what nobody will ever read.
"""

from typing import Any

from distributedlog.bookie.store.add_handler import AddHandler
from distributedlog.cli.main import main


def plant() -> None:
    """Adds do not ask for the fence."""
    assert hasattr(AddHandler, "refusal"), "the fence has moved: the bug is to be planted anew"
    original = AddHandler.refusal

    def refusal(self: Any, stream: Any) -> Any:
        recovery, stream.recovery = stream.recovery, True
        try:
            return original(self, stream)
        finally:
            stream.recovery = recovery

    AddHandler.refusal = refusal  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    main()
