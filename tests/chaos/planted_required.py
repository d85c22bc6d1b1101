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
    assert hasattr(BookieAuthorizer, "apply_reply"), (
        "what a bookie hears has moved: the bug is to be planted anew"
    )
    original = BookieAuthorizer.apply_reply

    def apply_reply(self: Any, reply: Any) -> None:
        original(self, replace(reply, mode="required") if self.mode == "required" else reply)

    BookieAuthorizer.apply_reply = apply_reply  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    main()
