"""A planted bug, from outside: a bookie that has once required rights goes on requiring them.

Run as a node's module, ``dlog chaos run walk --node-module tests.chaos.planted_required``: on the way back to
open the leader gives no capabilities any more, and those bookies take nothing else.
"""

from dataclasses import replace
from typing import Any

from distributedlog.bookie.session.bookie_authorizer import BookieAuthorizer
from distributedlog.cli.main import main


def plant() -> None:
    """What is heard of a mode that requires nothing counts no more."""
    assert hasattr(BookieAuthorizer, "hear"), (
        "what a bookie hears has moved: the bug is to be planted anew"
    )
    original = BookieAuthorizer.hear

    def hear(self: Any, said: Any) -> None:
        original(self, replace(said, mode="required") if self.mode == "required" else said)

    BookieAuthorizer.hear = hear  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    main()
