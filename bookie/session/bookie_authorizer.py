"""Who may do what with which ledger here: what a bookie checks capabilities and passes by.

In mode `open` nothing is checked but ledgers' stored keys, as ever. In `report` and `required` a key that is
shown is looked at first: is it a capability (`distributedlog/runtime/protocol/capabilities.py`) of that
principal? Then the stored key does not matter, on old ledgers as on new; and a ledger that becomes known by
one is stored without a key. Where it is none, `report` counts it and goes by the stored key, `required`
refuses.

Clients hear of a mode when the leader answers them, which may be before this bookie does: so in `open` and
`report` what looks like a capability is one, of which nothing is known here. It is compared with no stored
key and never becomes one: the ledger would be locked by it for all others, and for good after the way back.

What is refused here is a passing thing, `CapabilityOutdated`: the leader alone says "not allowed". When
this bookie hears that something was taken from somebody, or that a generation has ended, open streams and
long polls are looked at again. One that hears nothing of the quorum for `silence_s` serves nodes alone, and
looks again at what it let in before that.
"""

from collections.abc import Callable

import trio

from ...runtime.interfaces.errors import CapabilityOutdated, NotAuthenticated
from ...runtime.interfaces.principals import BOOKIE, METADATA, Welcome, kind_of
from ...runtime.net.link import Link
from ...runtime.protocol.capabilities import (
    UNJUDGED,
    CapabilityKind,
    Generation,
    is_capability,
    looks_like_one,
    read_pass,
)
from ...runtime.protocol.capability_messages import GateAnswer
from ...runtime.protocol.tokens import TOLERANCE_S

NO_KEY = b""
"""In place of a key: a capability was shown. It never comes from a wire, where a key has 16 bytes."""
SHOWN_MAX = 4096
"""Of a connection: so many capabilities that were looked at are remembered."""


class BookieAuthorizer:
    """Of one bookie, for all its connections."""

    def __init__(self, silence_s: float, time_s: Callable[[], float]) -> None:
        """``time_s``: seconds since 1970, for passes that end
        (`distributedlog/runtime/primitives/steady_clock.py`)."""
        self.mode = "open"
        self.looks = False
        """Is any key looked at here? False costs a connection nothing."""
        self.version = 0
        """Grows with each change of what is checked by."""
        self.wanted = trio.Event()
        """Somebody shows what is not known here: perhaps the leader has something newer."""
        self.proved = 0
        self.would_refuse = 0
        """Without a capability, let through by a stored key in mode `report`."""
        self.refused = 0
        self._silence_s = silence_s
        self._time_s = time_s
        self._held: tuple[Generation, ...] = ()
        self._since: dict[str, int] = {}
        self._heard_at = trio.current_time()
        self._was_cut_off = False
        """When it was looked at last."""
        self._listeners: dict[Callable[[], None], None] = {}

    def hear(self, said: GateAnswer) -> None:
        """The leader has answered; every connection looks again at what it let in, if anything changed."""
        self._heard_at = trio.current_time()
        since = dict(said.since)
        if (self.mode, self._held, self._since) == (said.mode, said.held, since):
            return
        self.mode, self._held, self._since = said.mode, said.held, since
        self.looks = bool(said.held) or said.mode == "required"
        self._tell()

    def _tell(self) -> None:
        self.version += 1
        for listener in list(self._listeners):
            listener()

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call that after each change; returns how to stop it."""
        self._listeners[on_change] = None

        def stop() -> None:
            self._listeners.pop(on_change, None)

        return stop

    def tick(self) -> None:
        """Once a minute: its clock is to follow the wall's, and too long a silence ends what is open."""
        self._time_s()
        was, self._was_cut_off = self._was_cut_off, self.is_cut_off
        if self._was_cut_off and not was:
            self._tell()  # a stream is looked at when it opens: else it would go on for ever (H241)

    def welcome(self, proof: bytes) -> Welcome:
        """Who shows this pass, and how long it lasts. Raises `NotAuthenticated`."""
        try:
            principal, since, ends_s = read_pass(proof, self._held)
        except NotAuthenticated:
            self.wanted.set()
            raise
        if since < self._since.get(principal, 0):
            raise NotAuthenticated("a pass from before something was taken from its holder")
        if not ends_s:
            return Welcome(principal)
        left_s = ends_s + TOLERANCE_S - self._time_s()
        if left_s <= 0:
            raise NotAuthenticated(f"the pass of {principal} has ended", NotAuthenticated.ENDED)
        return Welcome(principal, left_s=left_s)

    def proves(self, principal: str, wanted: CapabilityKind, ledger: int, key: bytes) -> bool:
        """Is it a capability of that principal for what is wanted?"""
        since = self._since.get(principal, 0)
        if is_capability(key, self._held, wanted, ledger, principal, since):
            return True
        return self.mode == "report" and is_capability(
            key, self._held, wanted, ledger, principal, UNJUDGED
        )

    @property
    def is_cut_off(self) -> bool:
        """Has the quorum not been heard for so long that nothing which it gave counts?"""
        return self.mode == "required" and trio.current_time() - self._heard_at >= self._silence_s

    def info(self) -> dict[str, int | str]:
        """For `Op.INFO`."""
        return {
            "trust_mode": self.mode,
            "trust_generation": self._held[0].number if self._held else 0,
            "capabilities_proved": self.proved,
            "capabilities_would_refuse": self.would_refuse,
            "capabilities_refused": self.refused,
        }


class PresentedCapabilities:
    """What one connection has shown. Its principal does not change."""

    __slots__ = ("_gate", "_link", "_seen", "_version")

    def __init__(self, gate: BookieAuthorizer, link: Link) -> None:
        self._gate = gate
        self._link = link
        self._seen: dict[tuple[int, CapabilityKind], bytes] = {}
        self._version = gate.version

    def key(self, wanted: CapabilityKind, ledger: int, key: bytes) -> bytes:
        """The key for the store: `NO_KEY`, or what was shown. Raises `CapabilityOutdated`."""
        gate = self._gate
        if not gate.looks:
            return NO_KEY if looks_like_one(key) else key
        if self._version != gate.version or len(self._seen) >= SHOWN_MAX:
            self._seen.clear()
            self._version = gate.version
        principal = self._link.principal
        if not gate.is_cut_off or kind_of(principal) in (BOOKIE, METADATA):
            if self._seen.get((ledger, wanted)) == key:
                return NO_KEY
            if gate.proves(principal, wanted, ledger, key):
                gate.proved += 1
                self._seen[ledger, wanted] = key
                return NO_KEY
        is_one = looks_like_one(key)
        if is_one:
            gate.wanted.set()
        if gate.mode != "required":
            gate.would_refuse += gate.mode == "report"
            return NO_KEY if is_one else key
        gate.refused += 1
        raise CapabilityOutdated(
            f"ledger {ledger}: no capability of {principal} to {wanted.name.lower()} it here, or one that"
            " has ended: ask the metadata for another"
        )
