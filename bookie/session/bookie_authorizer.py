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
from ...runtime.interfaces.principals import BOOKIE, METADATA, Welcome, principal_kind
from ...runtime.net.link import Link
from ...runtime.protocol.capabilities import (
    REPORT_ONLY_REVISION,
    CapabilityKind,
    Generation,
    is_capability,
    may_be_capability,
    verify_session_credential,
)
from ...runtime.protocol.capability_messages import BookieKeysReply
from ...runtime.protocol.tokens import CLOCK_TOLERANCE_S

NO_KEY = b""
"""In place of a key: a capability was shown. It never comes from a wire, where a key has 16 bytes."""
VERIFIED_MAX = 4096
"""Of a connection: so many capabilities that were looked at are remembered."""


class BookieAuthorizer:
    """Of one bookie, for all its connections."""

    def __init__(self, silence_s: float, time_s: Callable[[], float]) -> None:
        """``time_s``: seconds since 1970, for passes that end
        (`distributedlog/runtime/primitives/steady_clock.py`)."""
        self.mode = "open"
        self.enforcing = False
        """Is any key looked at here? False costs a connection nothing."""
        self.version = 0
        """Grows with each change of what is checked by."""
        self.refresh_wanted = trio.Event()
        """Somebody shows what is not known here: perhaps the leader has something newer."""
        self.verified_count = 0
        self.report_denials = 0
        """Without a capability, let through by a stored key in mode `report`."""
        self.denials = 0
        self._silence_s = silence_s
        self._time_s = time_s
        self._generations: tuple[Generation, ...] = ()
        self._revoked_at_revision: dict[str, int] = {}
        self._updated_at = trio.current_time()
        self._was_cut_off = False
        """When it was looked at last."""
        self._listeners: dict[Callable[[], None], None] = {}

    def hear(self, said: BookieKeysReply) -> None:
        """The leader has answered; every connection looks again at what it let in, if anything changed."""
        self._updated_at = trio.current_time()
        revoked_at_revision = dict(said.revoked_at_revisions)
        if (self.mode, self._generations, self._revoked_at_revision) == (
            said.mode,
            said.generations,
            revoked_at_revision,
        ):
            return
        self.mode, self._generations, self._revoked_at_revision = (
            said.mode,
            said.generations,
            revoked_at_revision,
        )
        self.enforcing = bool(said.generations) or said.mode == "required"
        self._notify_change()

    def _notify_change(self) -> None:
        self.version += 1
        for listener in list(self._listeners):
            listener()

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call that after each change; returns how to stop it."""
        self._listeners[on_change] = None

        def stop() -> None:
            self._listeners.pop(on_change, None)

        return stop

    def check_silence(self) -> None:
        """Once a minute: its clock is to follow the wall's, and too long a silence ends what is open."""
        self._time_s()
        was_cut_off, self._was_cut_off = self._was_cut_off, self.is_cut_off
        if self._was_cut_off and not was_cut_off:
            self._notify_change()  # a stream is looked at when it opens: else it would go on for ever (H241)

    def authenticate(self, session_credential: bytes) -> Welcome:
        """Who shows this pass, and how long it lasts. Raises `NotAuthenticated`."""
        try:
            principal, issued_at_revision, ends_s = verify_session_credential(
                session_credential, self._generations
            )
        except NotAuthenticated:
            self.refresh_wanted.set()
            raise
        if issued_at_revision < self._revoked_at_revision.get(principal, 0):
            raise NotAuthenticated("a pass from before something was taken from its holder")
        if not ends_s:
            return Welcome(principal)
        remaining_s = ends_s + CLOCK_TOLERANCE_S - self._time_s()
        if remaining_s <= 0:
            raise NotAuthenticated(f"the pass of {principal} has ended", NotAuthenticated.ENDED)
        return Welcome(principal, valid_s=remaining_s)

    def proves(self, principal: str, kind: CapabilityKind, ledger: int, key: bytes) -> bool:
        """Is it a capability of that principal for what is wanted?"""
        revoked_at_revision = self._revoked_at_revision.get(principal, 0)
        if is_capability(key, self._generations, kind, ledger, principal, revoked_at_revision):
            return True
        return self.mode == "report" and is_capability(
            key, self._generations, kind, ledger, principal, REPORT_ONLY_REVISION
        )

    @property
    def is_cut_off(self) -> bool:
        """Has the quorum not been heard for so long that nothing which it gave counts?"""
        return self.mode == "required" and trio.current_time() - self._updated_at >= self._silence_s

    def info(self) -> dict[str, int | str]:
        """For `Op.INFO`."""
        return {
            "trust_mode": self.mode,
            "trust_generation": self._generations[0].number if self._generations else 0,
            "capabilities_proved": self.verified_count,
            "capabilities_would_refuse": self.report_denials,
            "capabilities_refused": self.denials,
        }


class PresentedCapabilities:
    """What one connection has shown. Its principal does not change."""

    __slots__ = ("_authorizer", "_link", "_verified", "_version")

    def __init__(self, authorizer: BookieAuthorizer, link: Link) -> None:
        self._authorizer = authorizer
        self._link = link
        self._verified: dict[tuple[int, CapabilityKind], bytes] = {}
        self._version = authorizer.version

    def key(self, kind: CapabilityKind, ledger: int, presented_key: bytes) -> bytes:
        """The key for the store: `NO_KEY`, or what was shown. Raises `CapabilityOutdated`."""
        authorizer = self._authorizer
        if not authorizer.enforcing:
            return NO_KEY if may_be_capability(presented_key) else presented_key
        if self._version != authorizer.version or len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
            self._version = authorizer.version
        principal = self._link.principal
        if not authorizer.is_cut_off or principal_kind(principal) in (BOOKIE, METADATA):
            if self._verified.get((ledger, kind)) == presented_key:
                return NO_KEY
            if authorizer.proves(principal, kind, ledger, presented_key):
                authorizer.verified_count += 1
                self._verified[ledger, kind] = presented_key
                return NO_KEY
        is_capability = may_be_capability(presented_key)
        if is_capability:
            authorizer.refresh_wanted.set()
        if authorizer.mode != "required":
            authorizer.report_denials += authorizer.mode == "report"
            return NO_KEY if is_capability else presented_key
        authorizer.denials += 1
        raise CapabilityOutdated(
            f"ledger {ledger}: no capability of {principal} to {kind.name.lower()} it here, or one that"
            " has ended: ask the metadata for another"
        )
