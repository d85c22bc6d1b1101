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
from ...runtime.protocol.capabilities import SERVES, CapabilityKind
from ...runtime.protocol.capability_messages import KEYS_MAX, LEDGERS_MAX, CapsAnswer, CapsQuestion

HELD_MAX = 64 * 1024
"""Of (ledger, bookie): the oldest go, and are asked for again."""
REFUSED_S = 2.0
"""Who was not allowed something is not asked for it again at once."""
AGAIN_FIRST_S = 0.05
AGAIN_LONGEST_S = 1.0

log = get_logger("distributedlog.bookie.client.bookie_client")

T = TypeVar("T")
Ask = Callable[[bytes], Awaitable[memoryview]]
"""Sends a META_CAPS to the leader; its answer's body."""


class ClientKeys:
    """Of one client process. `run` asks; it sleeps while the cluster is open."""

    def __init__(self, ask: Ask | None, on_news: Callable[[], None]) -> None:
        """``ask`` None: capabilities are never asked for. ``on_news``: something has come."""
        self._ask = ask
        self._on_news = on_news
        self.active = False
        """Are capabilities shown?"""
        self.passport = b""
        """How a bookie knows us; empty: as anonymous."""
        self._held: dict[tuple[int, str], dict[CapabilityKind, bytes]] = {}
        """In the order they came."""
        self._wanted: dict[CapabilityKind, dict[int, dict[str, None]]] = {}
        self._refused: dict[tuple[int, CapabilityKind], float] = {}
        """Until when."""
        self._pass_wanted = False
        self._wake = trio.Event()
        self._changed = trio.Event()
        self.questions = self.answers = 0

    def take_mode(self, mode: str) -> None:
        """The cluster's mode, as it was read or as it is now."""
        was, self.active = self.active, mode != "open" and self._ask is not None
        if mode != "required":
            self._refused.clear()  # nothing is refused now
        if was and not self.active:
            self._held.clear()
            self._wanted.clear()

    @property
    def can_ask(self) -> bool:
        """May capabilities ever be shown?"""
        return self._ask is not None

    async def have_pass(self, timeout_s: float) -> bytes:
        """The pass, asked for if need be; empty where none is needed, or none came in that time."""
        with trio.move_on_after(timeout_s):
            before = self.answers
            while self.active and not self.passport and self.answers == before:
                self._pass_wanted = True
                self._wake.set()
                await self._changed.wait()
        return self.passport if self.active else b""

    def lose_pass(self) -> None:
        """A bookie does not take it any more."""
        self.passport = b""

    def key(self, bookie: str, wanted: CapabilityKind, ledger: int, stored: bytes) -> bytes | None:
        """What is to be shown; None: it is on its way. Raises `NotAllowed`."""
        if not self.active:
            return stored
        held = self._held.get((ledger, bookie))
        if held is not None:
            for kind in SERVES[wanted]:
                if kind in held:
                    return held[kind]
        until = self._refused.get((ledger, wanted))
        if until is not None:
            if trio.current_time() < until:
                raise NotAllowed(f"no right to {wanted.name.lower()} ledger {ledger}")
            del self._refused[ledger, wanted]
        self._wanted.setdefault(wanted, {}).setdefault(ledger, {})[bookie] = None
        self._wake.set()
        return None

    async def get(
        self, bookie: str, wanted: CapabilityKind, ledger: int, stored: bytes, timeout_s: float
    ) -> bytes:
        """The same, waited for. Raises `NotAllowed`, `RequestTimeout`."""
        found = self.key(bookie, wanted, ledger, stored)
        if found is None:
            with trio.move_on_after(timeout_s):
                while (found := self.key(bookie, wanted, ledger, stored)) is None:
                    await self._changed.wait()
        if found is None:
            raise RequestTimeout(
                f"ledger {ledger}: no capability came from the metadata within {timeout_s:g} s"
            )
        return found

    async def have(
        self, bookies: Collection[str], wanted: CapabilityKind, ledger: int, timeout_s: float
    ) -> None:
        """Ask for these, and wait up to that long: what is opened then need not wait. Raises nothing."""
        if not self.active:
            return
        with trio.move_on_after(timeout_s):
            try:
                while [one for one in bookies if self.key(one, wanted, ledger, b"") is None]:
                    await self._changed.wait()
            except NotAllowed:
                return  # whoever uses it is told

    def outdated(self, bookie: str) -> None:
        """That bookie has refused what was shown, or a stored key: what is held for it counts no more."""
        if self._ask is None:
            return
        self.active = True  # it has heard of the mode before us
        for place in [place for place in self._held if place[1] == bookie]:
            del self._held[place]

    async def patiently(
        self,
        bookie: str,
        wanted: CapabilityKind,
        ledger: int,
        stored: bytes,
        timeout_s: float,
        ask: Callable[[bytes], Awaitable[T]],
    ) -> T:
        """What ``ask(key)`` answers, with another key while the bookie says that one is outdated."""
        deadline = trio.current_time() + timeout_s
        pause = Backoff(AGAIN_FIRST_S, AGAIN_LONGEST_S)
        while True:
            try:
                return await ask(await self.get(bookie, wanted, ledger, stored, timeout_s))
            except CapabilityOutdated:
                self.outdated(bookie)
                again_s = pause.next_s()
                if trio.current_time() + again_s >= deadline or self._ask is None:
                    raise
            await trio.sleep(again_s)

    # --- asking -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask for what is wanted, until cancelled."""
        assert self._ask is not None, "run where capabilities may be asked for"
        pause = Backoff(AGAIN_FIRST_S, AGAIN_LONGEST_S)
        while True:
            if not self._wanted and not self._pass_wanted:
                self._wake = trio.Event()
                await self._wake.wait()
            for_pass = self._pass_wanted
            kind, asked = self._next_question()
            question = CapsQuestion(kind, asked)
            self.questions += 1
            try:
                answer = CapsAnswer.decode(await self._ask(question.encode()))
            except Exception as error:
                for ledger, bookies in asked.items():
                    self._want(kind, ledger, bookies)
                self._pass_wanted = self._pass_wanted or for_pass
                if not isinstance(error, DistributedLogError):
                    raise
                log.info("no capabilities: %s", error)
                await trio.sleep(pause.next_s())
                continue
            pause.reset()
            self.answers += 1
            self._take(question, answer)
            self._changed.set()
            self._changed = trio.Event()
            self._on_news()

    def _want(self, kind: CapabilityKind, ledger: int, bookies: Collection[str]) -> None:
        if self.active:
            self._wanted.setdefault(kind, {}).setdefault(ledger, {}).update(dict.fromkeys(bookies))

    def _next_question(self) -> tuple[CapabilityKind, dict[int, tuple[str, ...]]]:
        """As much of one kind as one question may hold; nothing, where only the pass is wanted."""
        self._pass_wanted = False  # it comes with any answer
        if not self._wanted:
            return CapabilityKind.LIST, {}
        kind = next(iter(self._wanted))
        wanted, asked, count = self._wanted[kind], dict[int, tuple[str, ...]](), 0
        while wanted and len(asked) < LEDGERS_MAX:
            ledger = next(iter(wanted))
            count += len(wanted[ledger])
            if asked and count > KEYS_MAX:
                break
            asked[ledger] = tuple(wanted.pop(ledger))
        if not wanted:
            del self._wanted[kind]
        return kind, asked

    def _take(self, question: CapsQuestion, answer: CapsAnswer) -> None:
        self.passport = answer.passport
        self.take_mode(answer.mode)
        if not self.active:
            return
        until = trio.current_time() + REFUSED_S
        for ledger, bookies in question.ledgers.items():
            keys = answer.keys.get(ledger, ())
            if len(keys) != len(bookies):
                self._refused[ledger, question.kind] = until
                continue
            for bookie, key in zip(bookies, keys, strict=True):
                place = (ledger, bookie)
                self._held[place] = {**self._held.pop(place, {}), question.kind: key}
        while len(self._held) > HELD_MAX:
            del self._held[next(iter(self._held))]
        while len(self._refused) > HELD_MAX:
            del self._refused[next(iter(self._refused))]
