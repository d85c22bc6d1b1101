"""Authorize requests by capabilities, passes, or the stored keys of ledgers.

In mode ``open`` (off), only the stored keys of ledgers are checked. In modes ``report`` and ``required``
(enforce), a presented key is first checked as a capability of the connection's principal
(`distributedlog/runtime/protocol/capabilities.py`). With a valid capability, the stored key does not matter,
on old ledgers as on new ones. A ledger that becomes known by a capability is stored without a key. Without a
valid one, ``report`` counts the request and checks the stored key, and ``required`` refuses it.

Clients receive a new mode from the metadata leader, possibly earlier than this bookie. So in ``open`` and
``report``, a key with the form of a capability is accepted as one that cannot be verified yet. It is never
compared with a stored key, and never becomes one. As a stored key, it would lock out all other clients of the
ledger, even after the mode was set back.

A bookie refuses only with `CapabilityOutdated`, which is temporary. Only the leader answers "not allowed".
After a revocation or the end of a generation, open streams and long polls are checked again. A bookie without
contact to the quorum for ``silence_s`` serves only nodes, and checks again the streams that it accepted
before.
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
"""Used in place of a key after a capability was presented. It never arrives from a client, whose keys have 16
bytes."""
VERIFIED_MAX = 4096
"""The number of verified capabilities that are cached per connection."""


class BookieAuthorizer:
    """The authorization data of one bookie, for all its connections."""

    def __init__(self, silence_s: float, time_s: Callable[[], float]) -> None:
        """Create an authorizer in mode ``open``.

        Args:
            silence_s: Without an answer of the quorum for this time, only nodes are served.
            time_s: Returns the seconds since 1970, for the expiry of passes (`SteadyClock`).
        """
        self.mode = "open"
        self.enforcing = False
        """Whether keys are checked as capabilities at all. If not, connections have no extra cost."""
        self.version = 0
        """Increases with each change of the authorization data."""
        self.refresh_wanted = trio.Event()
        """Set when a peer presents unknown credentials, because the leader may have newer data."""
        self.verified_count = 0
        self.report_denials = 0
        """Requests without a valid capability that mode ``report`` allowed after a check of the
        stored key."""
        self.denials = 0
        self._silence_s = silence_s
        self._time_s = time_s
        self._generations: tuple[Generation, ...] = ()
        self._revoked_at_revision: dict[str, int] = {}
        self._updated_at = trio.current_time()
        self._was_cut_off = False
        """The value of `is_cut_off` at the last check."""
        self._listeners: dict[Callable[[], None], None] = {}

    def apply_reply(self, reply: BookieKeysReply) -> None:
        """Apply an answer of the leader.

        If anything changed, all connections check their streams and polls again.
        """
        self._updated_at = trio.current_time()
        revoked_at_revision = dict(reply.revoked_at_revisions)
        if (self.mode, self._generations, self._revoked_at_revision) == (
            reply.mode,
            reply.generations,
            revoked_at_revision,
        ):
            return
        self.mode, self._generations, self._revoked_at_revision = (
            reply.mode,
            reply.generations,
            revoked_at_revision,
        )
        self.enforcing = bool(reply.generations) or reply.mode == "required"
        self._notify_change()

    def _notify_change(self) -> None:
        self.version += 1
        for listener in list(self._listeners):
            listener()

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call ``on_change`` when access must be checked again; returns a function that stops this."""
        self._listeners[on_change] = None

        def stop() -> None:
            self._listeners.pop(on_change, None)

        return stop

    def check_silence(self) -> None:
        """Check whether the quorum has been out of contact for too long. Called once per minute.

        This also reads the clock, so that it follows the wall clock.
        """
        self._time_s()
        was_cut_off, self._was_cut_off = self._was_cut_off, self.is_cut_off
        if self._was_cut_off and not was_cut_off:
            # Streams are only checked when they are opened, so open ones would otherwise never end (H241).
            self._notify_change()

    def authenticate(self, session_credential: bytes) -> Welcome:
        """Return the principal of a pass and how long the pass is valid.

        Raises:
            NotAuthenticated: The pass is unknown, was issued before a revocation, or has expired.
        """
        try:
            principal, issued_at_revision, ends_s = verify_session_credential(
                session_credential, self._generations
            )
        except NotAuthenticated:
            self.refresh_wanted.set()
            raise
        if issued_at_revision < self._revoked_at_revision.get(principal, 0):
            raise NotAuthenticated("the pass was issued before a revocation of its holder's rights")
        if not ends_s:
            return Welcome(principal)
        remaining_s = ends_s + CLOCK_TOLERANCE_S - self._time_s()
        if remaining_s <= 0:
            raise NotAuthenticated(f"the pass of {principal} has ended", NotAuthenticated.ENDED)
        return Welcome(principal, valid_s=remaining_s)

    def proves(self, principal: str, kind: CapabilityKind, ledger: int, key: bytes) -> bool:
        """Whether ``key_to_check`` is a capability of that principal for this kind of access to the
        ledger."""
        revoked_at_revision = self._revoked_at_revision.get(principal, 0)
        if is_capability(key, self._generations, kind, ledger, principal, revoked_at_revision):
            return True
        return self.mode == "report" and is_capability(
            key, self._generations, kind, ledger, principal, REPORT_ONLY_REVISION
        )

    @property
    def is_cut_off(self) -> bool:
        """Whether the quorum has been out of contact for so long that only nodes are served."""
        return self.mode == "required" and trio.current_time() - self._updated_at >= self._silence_s

    def info(self) -> dict[str, int | str]:
        """Return the values for `Op.INFO`."""
        return {
            "trust_mode": self.mode,
            "trust_generation": self._generations[0].number if self._generations else 0,
            "capabilities_proved": self.verified_count,
            "capabilities_would_refuse": self.report_denials,
            "capabilities_refused": self.denials,
        }


class PresentedCapabilities:
    """The capabilities that one connection has presented. The principal of a connection does not change."""

    __slots__ = ("_authorizer", "_link", "_verified", "_version")

    def __init__(self, authorizer: BookieAuthorizer, link: Link) -> None:
        self._authorizer = authorizer
        self._link = link
        self._verified: dict[tuple[int, CapabilityKind], bytes] = {}
        self._version = authorizer.version

    def key_to_check(self, kind: CapabilityKind, ledger: int, presented_key: bytes) -> bytes:
        """Return the key to check in the store.

        Returns:
            `NO_KEY` if the key is or may be a capability, otherwise the presented key.
        Raises:
            CapabilityOutdated: Mode ``required`` needs a valid capability.
        """
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
            f"ledger {ledger}: {principal} presented no valid capability to {kind.name.lower()} it, and must"
            " request a new one from the metadata"
        )
