"""What a client shows bookies in place of a ledger's stored key: capabilities, asked of the quorum's leader.

While the cluster is open nothing is asked and stored keys are shown. Else what is missing is asked for: what
gathers while one question is under way is the next one, so that a thousand logs that open together are one
or two. A bookie that says `CapabilityOutdated` has heard of a newer generation, or that something was taken
from us, or its word is older than ours: all that is held for it is asked for again, in the same slot.
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
"""Of (ledger, bookie): the oldest go, and are asked for again."""
DENIAL_TTL_S = 2.0
"""Who was not allowed something is not asked for it again at once."""
RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0

log = get_logger("distributedlog.bookie.client.bookie_client")

T = TypeVar("T")
RequestCapabilities = Callable[[bytes], Awaitable[memoryview]]
"""Sends a META_CAPS to the leader; its answer's body."""


class CapabilityCache:
    """Of one client process. `run` asks; it sleeps while the cluster is open."""

    def __init__(self, request: RequestCapabilities | None, on_update: Callable[[], None]) -> None:
        """``ask`` None: capabilities are never asked for. ``on_news``: something has come."""
        self._request = request
        self._on_update = on_update
        self.active = False
        """Are capabilities shown?"""
        self.session_credential = b""
        """How a bookie knows us; empty: as anonymous."""
        self._cached: dict[tuple[int, str], dict[CapabilityKind, bytes]] = {}
        """In the order they came."""
        self._wanted: dict[CapabilityKind, dict[int, dict[str, None]]] = {}
        self._denied_until: dict[tuple[int, CapabilityKind], float] = {}
        """Until when."""
        self._credential_wanted = False
        self._wake = trio.Event()
        self._changed = trio.Event()
        self.questions = self.answers = 0

    def set_mode(self, mode: str) -> None:
        """The cluster's mode, as it was read or as it is now."""
        was_active, self.active = self.active, mode != "open" and self._request is not None
        if mode != "required":
            self._denied_until.clear()  # nothing is refused now
        if was_active and not self.active:
            self._cached.clear()
            self._wanted.clear()

    @property
    def can_request(self) -> bool:
        """May capabilities ever be shown?"""
        return self._request is not None

    async def wait_for_credential(self, timeout_s: float) -> bytes:
        """The pass, asked for if need be; empty where none is needed, or none came in that time."""
        with trio.move_on_after(timeout_s):
            answers_before = self.answers
            while self.active and not self.session_credential and self.answers == answers_before:
                self._credential_wanted = True
                self._wake.set()
                await self._changed.wait()
        return self.session_credential if self.active else b""

    def discard_credential(self) -> None:
        """A bookie does not take it any more."""
        self.session_credential = b""

    def find_key(
        self, bookie: str, needed_kind: CapabilityKind, ledger: int, stored_key: bytes
    ) -> bytes | None:
        """What is to be shown; None: it is on its way. Raises `NotAllowed`."""
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
        """The same, waited for. Raises `NotAllowed`, `RequestTimeout`."""
        key = self.find_key(bookie, kind, ledger, stored_key)
        if key is None:
            with trio.move_on_after(timeout_s):
                while (key := self.find_key(bookie, kind, ledger, stored_key)) is None:
                    await self._changed.wait()
        if key is None:
            raise RequestTimeout(
                f"ledger {ledger}: no capability came from the metadata within {timeout_s:g} s"
            )
        return key

    async def wait_for_keys(
        self, bookies: Collection[str], kind: CapabilityKind, ledger: int, timeout_s: float
    ) -> None:
        """Ask for these, and wait up to that long: what is opened then need not wait. Raises nothing."""
        if not self.active:
            return
        with trio.move_on_after(timeout_s):
            try:
                while [
                    bookie for bookie in bookies if self.find_key(bookie, kind, ledger, b"") is None
                ]:
                    await self._changed.wait()
            except NotAllowed:
                return  # whoever uses it is told

    def invalidate(self, bookie: str) -> None:
        """That bookie has refused what was shown, or a stored key: what is held for it counts no more."""
        if self._request is None:
            return
        self.active = True  # it has heard of the mode before us
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
        """What ``ask(key)`` answers, with another key while the bookie says that one is outdated."""
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

    # --- asking -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask for what is wanted, until cancelled."""
        assert self._request is not None, "run where capabilities may be asked for"
        pause = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        while True:
            if not self._wanted and not self._credential_wanted:
                self._wake = trio.Event()
                await self._wake.wait()
            credential_wanted = self._credential_wanted
            kind, requested = self._next_request()
            question = CapabilityRequest(kind, requested)
            self.questions += 1
            try:
                answer = CapabilityReply.decode(await self._request(question.encode()))
            except Exception as error:
                for ledger, bookies in requested.items():
                    self._enqueue(kind, ledger, bookies)
                self._credential_wanted = self._credential_wanted or credential_wanted
                if not isinstance(error, DistributedLogError):
                    raise
                log.info("no capabilities: %s", error)
                await trio.sleep(pause.next_s())
                continue
            pause.reset()
            self.answers += 1
            self._apply_answer(question, answer)
            self._changed.set()
            self._changed = trio.Event()
            self._on_update()

    def _enqueue(self, kind: CapabilityKind, ledger: int, bookies: Collection[str]) -> None:
        if self.active:
            self._wanted.setdefault(kind, {}).setdefault(ledger, {}).update(dict.fromkeys(bookies))

    def _next_request(self) -> tuple[CapabilityKind, dict[int, tuple[str, ...]]]:
        """As much of one kind as one question may hold; nothing, where only the pass is wanted."""
        self._credential_wanted = False  # it comes with any answer
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
