"""The capabilities that a client presents to bookies in place of the stored keys of ledgers.

While the cluster's authorization mode is ``open`` (off), stored keys are presented, and no capabilities are
requested. Otherwise missing ones are requested from the metadata leader. Those that are needed during a
request are in the next one, so a thousand logs that open at the same time need one or two requests. A bookie
answers `CapabilityOutdated` after a new generation or a revocation, or if its data is older than the
leader's. All capabilities for this bookie are then requested again, and the writer keeps the bookie in its
slot.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import trio

from ...runtime.interfaces.errors import (
    CapabilityOutdated,
    DistributedLogError,
    NotAllowed,
    RequestTimeout,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.primitives.backoff import Backoff
from ...runtime.protocol.capabilities import SUFFICIENT_KINDS, CapabilityKind
from ...runtime.protocol.capability_messages import (
    KEYS_MAX,
    LEDGERS_MAX,
    CapabilityReply,
    CapabilityRequest,
)

CACHED_MAX = 64 * 1024
"""The maximum number of (ledger, bookie) pairs. The oldest are evicted, and requested again when needed."""
DENIAL_TTL_S = 2.0
"""For this time after a denial, the same capability is not requested again."""
RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0

log = get_logger("distributedlog.bookie.client.bookie_client")

T = TypeVar("T")
RequestCapabilities = Callable[[bytes], Awaitable[memoryview]]
"""Send a META_CAPS request to the leader, and return the body of the answer."""


class CapabilityCache:
    """The capabilities of one client process. `run` requests them, and is idle in mode ``open``."""

    def __init__(self, request: RequestCapabilities | None, on_update: Callable[[], None]) -> None:
        """Create an empty cache.

        Args:
            request: Sends a request to the leader; None if capabilities are never requested.
            on_update: Called after each answer.
        """
        self._request = request
        self._on_update = on_update
        self.active = False
        """Whether capabilities are presented."""
        self.session_credential = b""
        """The proof of the client's identity for bookies; empty for an anonymous client."""
        self._cached: dict[tuple[int, str], dict[CapabilityKind, bytes]] = {}
        """By (ledger, bookie), in the order of arrival."""
        self._wanted: dict[CapabilityKind, dict[int, dict[str, None]]] = {}
        self._denied_until: dict[tuple[int, CapabilityKind], float] = {}
        self._credential_wanted = False
        self._wake = trio.Event()
        self._changed = trio.Event()
        self.requests_sent = self.answers_received = 0

    def set_mode(self, mode: str) -> None:
        """Apply the authorization mode of the cluster."""
        was_active, self.active = self.active, mode != "open" and self._request is not None
        if mode != "required":
            self._denied_until.clear()  # nothing is refused now
        if was_active and not self.active:
            self._cached.clear()
            self._wanted.clear()

    @property
    def can_request(self) -> bool:
        """Whether capabilities can ever be presented."""
        return self._request is not None

    async def wait_for_credential(self, timeout_s: float) -> bytes:
        """Return the session credential, and request it if necessary.

        Returns:
            An empty value if none is needed, or if none arrived within the timeout.
        """
        with trio.move_on_after(timeout_s):
            answers_before = self.answers_received
            while (
                self.active
                and not self.session_credential
                and self.answers_received == answers_before
            ):
                self._credential_wanted = True
                self._wake.set()
                await self._changed.wait()
        return self.session_credential if self.active else b""

    def discard_credential(self) -> None:
        """Forget the session credential after a bookie refused it."""
        self.session_credential = b""

    def find_key(
        self, bookie: str, needed_kind: CapabilityKind, ledger: int, stored_key: bytes
    ) -> bytes | None:
        """Return the key or capability to present; request it and return None if it is missing.

        Raises:
            NotAllowed: The leader has just denied it.
        """
        if not self.active:
            return stored_key
        cached = self._cached.get((ledger, bookie))
        if cached is not None:
            for granting_kind in SUFFICIENT_KINDS[needed_kind]:
                if granting_kind in cached:
                    return cached[granting_kind]
        denied_until = self._denied_until.get((ledger, needed_kind))
        if denied_until is not None:
            if trio.current_time() < denied_until:
                raise NotAllowed(f"no right to {needed_kind.name.lower()} ledger {ledger}")
            del self._denied_until[ledger, needed_kind]
        self._wanted.setdefault(needed_kind, {}).setdefault(ledger, {})[bookie] = None
        self._wake.set()
        return None

    async def wait_for_key(
        self, bookie: str, kind: CapabilityKind, ledger: int, stored_key: bytes, timeout_s: float
    ) -> bytes:
        """Return the key or capability to present, and wait for it if necessary.

        Raises:
            NotAllowed: The leader denied it.
            RequestTimeout: No answer arrived in time.
        """
        key = self.find_key(bookie, kind, ledger, stored_key)
        if key is None:
            with trio.move_on_after(timeout_s):
                while (key := self.find_key(bookie, kind, ledger, stored_key)) is None:
                    await self._changed.wait()
        if key is None:
            raise RequestTimeout(
                f"ledger {ledger}: no capability arrived from the metadata within {timeout_s:g} s"
            )
        return key

    async def wait_for_keys(
        self, bookies: Collection[str], kind: CapabilityKind, ledger: int, timeout_s: float
    ) -> None:
        """Request capabilities for these bookies and wait up to ``timeout_s``. Raises no errors.

        Streams that are opened afterwards need not wait.
        """
        if not self.active:
            return
        with trio.move_on_after(timeout_s):
            try:
                while [
                    bookie for bookie in bookies if self.find_key(bookie, kind, ledger, b"") is None
                ]:
                    await self._changed.wait()
            except NotAllowed:
                return  # later calls that need the capability raise the error

    def invalidate(self, bookie: str) -> None:
        """Drop all capabilities for a bookie that refused one, or that refused a stored key."""
        if self._request is None:
            return
        self.active = True  # the bookie received the new mode earlier than this client
        for cache_key in [cache_key for cache_key in self._cached if cache_key[1] == bookie]:
            del self._cached[cache_key]

    async def request_with_retry(
        self,
        bookie: str,
        kind: CapabilityKind,
        ledger: int,
        stored_key: bytes,
        timeout_s: float,
        send_request: Callable[[bytes], Awaitable[T]],
    ) -> T:
        """Return the result of ``send_request(key)``; repeat it with a new capability if necessary.

        Raises:
            CapabilityOutdated: The bookie still refused the capability at the end of ``timeout_s``.
            DistributedLogError: An error of the request, or of `wait_for_key`.
        """
        deadline = trio.current_time() + timeout_s
        pause = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        while True:
            try:
                return await send_request(
                    await self.wait_for_key(bookie, kind, ledger, stored_key, timeout_s)
                )
            except CapabilityOutdated:
                self.invalidate(bookie)
                delay_s = pause.next_s()
                if trio.current_time() + delay_s >= deadline or self._request is None:
                    raise
            await trio.sleep(delay_s)

    # --- requests to the leader -------------------------------------------------------------------

    async def run(self) -> None:
        """Send requests for missing capabilities until cancelled."""
        assert self._request is not None, "run where capabilities may be asked for"
        pause = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        while True:
            if not self._wanted and not self._credential_wanted:
                self._wake = trio.Event()
                await self._wake.wait()
            credential_wanted = self._credential_wanted
            kind, requested = self._next_request()
            question = CapabilityRequest(kind, requested)
            self.requests_sent += 1
            try:
                answer = CapabilityReply.decode(await self._request(question.encode()))
            except Exception as error:
                for ledger, bookies in requested.items():
                    self._enqueue(kind, ledger, bookies)
                self._credential_wanted = self._credential_wanted or credential_wanted
                if not isinstance(error, DistributedLogError):
                    raise
                log.info("the request for capabilities failed: %s", error)
                await trio.sleep(pause.next_s())
                continue
            pause.reset()
            self.answers_received += 1
            self._apply_answer(question, answer)
            self._changed.set()
            self._changed = trio.Event()
            self._on_update()

    def _enqueue(self, kind: CapabilityKind, ledger: int, bookies: Collection[str]) -> None:
        if self.active:
            self._wanted.setdefault(kind, {}).setdefault(ledger, {}).update(dict.fromkeys(bookies))

    def _next_request(self) -> tuple[CapabilityKind, dict[int, tuple[str, ...]]]:
        """Return the ledgers of one request, all for one kind; none if only a credential is needed."""
        self._credential_wanted = False  # every answer contains it
        if not self._wanted:
            return CapabilityKind.LIST, {}
        kind = next(iter(self._wanted))
        pending, requested, count = self._wanted[kind], dict[int, tuple[str, ...]](), 0
        while pending and len(requested) < LEDGERS_MAX:
            ledger = next(iter(pending))
            count += len(pending[ledger])
            if requested and count > KEYS_MAX:
                break
            requested[ledger] = tuple(pending.pop(ledger))
        if not pending:
            del self._wanted[kind]
        return kind, requested

    def _apply_answer(self, question: CapabilityRequest, answer: CapabilityReply) -> None:
        self.session_credential = answer.session_credential
        self.set_mode(answer.mode)
        if not self.active:
            return
        denied_until = trio.current_time() + DENIAL_TTL_S
        for ledger, bookies in question.ledgers.items():
            keys = answer.keys.get(ledger, ())
            if len(keys) != len(bookies):
                self._denied_until[ledger, question.kind] = denied_until
                continue
            for bookie, key in zip(bookies, keys, strict=True):
                cache_key = (ledger, bookie)
                self._cached[cache_key] = {**self._cached.pop(cache_key, {}), question.kind: key}
        while len(self._cached) > CACHED_MAX:
            del self._cached[next(iter(self._cached))]
        while len(self._denied_until) > CACHED_MAX:
            del self._denied_until[next(iter(self._denied_until))]
