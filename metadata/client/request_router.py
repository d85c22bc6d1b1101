"""One question of a client to the quorum: where it was sent, what came back, and where it goes next.

It goes to the leader, and stays there for as long as that node's connection shows signs of life: a slow
commit is no reason to send a command again. A connection that is silent, and silent to a ping, is another
thing: its node may hang, or be cut off. Then others are asked beside it; whichever answers first counts,
which is safe because a command is done once however often it is sent (H20).

Who leads after the leader went silent, one question finds out for all of a client's
(`RequestRouter.searcher`): thousands that each went from node to node would keep the next leader from its
work.
"""

from enum import Enum, auto
from functools import partial
from math import inf
from typing import NamedTuple

import trio

from ...runtime.interfaces.errors import (
    AlreadyClosed,
    ConnectionLost,
    DistributedLogError,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    ProtocolError,
    QuorumUnreachable,
    RequestTimeout,
    TooBusy,
    WrongPeer,
)
from ...runtime.interfaces.host import Address, Buffer
from ...runtime.net.client_link import ClientLink, PendingReply, Reply
from ...runtime.primitives.backoff import Backoff
from .node_connections import PAUSE_S, PING_S, SILENCE_S, NodeConnections

ELSEWHERE = (
    ConnectionLost,
    NotReady,
    OutcomeUnknown,
    ProtocolError,
    RequestTimeout,
    WrongPeer,
)
"""What a node that cannot help answers, or no node at all: the next one is asked."""
BUSY_MIN_S = 0.05
BUSY_MAX_S = 2.0
"""A leader that has too much to do is asked again after about so long: longer each time, not all at once."""
REST_S = 0.5
"""So long a question waits for another one to find the leader, before it asks for itself."""
TICK_S = 0.05
"""How often the questions under way are looked at for silence: one clock for all of them, for a timeout round
each wait cost more than the wait."""
LATE_S = 0.1
"""Woken so much later than asked for, this process did not run: silence in that time was our own (H25)."""


class Next(Enum):
    """What to do after a refusal."""

    FOLLOW = auto()
    """Ask the leader that was named."""
    SEARCH = auto()
    """Nobody who was asked leads: one question searches, the others wait for what it finds."""
    PAUSE = auto()
    """The leader has too much to do."""


class Sending(NamedTuple):
    """A question that is under way on one connection."""

    link: ClientLink
    pending: PendingReply
    sent_at: float


class RequestRouter:
    """All that a client asks now."""

    def __init__(self, links: NodeConnections) -> None:
        self.links = links
        self.under_way: dict[QuorumRequest, None] = {}
        self.searcher: QuorumRequest | None = None
        """The one that looks for the leader."""
        self._begun = trio.Event()

    async def run(self) -> None:
        """Wake those that have waited for as long as they wanted to, until cancelled."""
        while True:
            if not self.under_way:
                self._begun = trio.Event()
                await self._begun.wait()
            await trio.sleep(TICK_S)
            now = trio.current_time()
            for question in self.under_way:
                if question.waits_until <= now:
                    question.wake()

    def begin(self, question: "QuorumRequest") -> None:
        """It is under way from here on, until `end`."""
        self.under_way[question] = None
        self._begun.set()

    def end(self, question: "QuorumRequest") -> None:
        """It was answered, or given up."""
        del self.under_way[question]
        if self.searcher is question:
            self.searcher = None
            self.wake()  # somebody else searches on, where nobody was found

    def found(self, leader: Address) -> None:
        """That node answered as only a leader can."""
        if self.links.leader != leader or self.searcher is not None:
            self.links.leader = leader
            self.wake()

    def wake(self) -> None:
        """Let all of them look again."""
        for question in self.under_way:
            question.wake()


class QuorumRequest:
    """One request, through all its sendings. `ask` may be called again for what was refused as stale."""

    __slots__ = (
        "_answers",
        "_busy",
        "_links",
        "_news",
        "_questions",
        "_ran_at",
        "_steps",
        "_under_way",
        "last",
        "once",
        "unanswered",
        "waits_until",
    )

    def __init__(self, questions: RequestRouter, *, once: bool = False) -> None:
        self.once = once
        """Would it be done again where it is sent again? Then it is not, where it may have been done."""
        self.unanswered = 0
        """Sendings of which nobody knows what became."""
        self.last: DistributedLogError | None = None
        self.waits_until = inf
        """Woken by `RequestRouter.run` once this has passed."""
        self._questions = questions
        self._links = questions.links
        self._under_way: dict[Address, Sending] = {}
        self._answers: list[tuple[Address, Reply | DistributedLogError]] = []
        self._news: trio.Event | None = None
        """Set when there is something to look at; None while nobody waits for it."""
        self._ran_at = 0.0
        """This process did not run just before: silence counts from here."""
        self._steps = 0
        self._busy: Backoff | None = None

    async def ask(self, op: int, body: Buffer, deadline: float) -> Reply:
        """Ask until somebody answers. Raises the error that an answer carries; `TooBusy`,
        `QuorumUnreachable` at the deadline."""
        links, questions = self._links, self._questions
        questions.begin(self)
        place: Address | None = links.leader
        try:
            while trio.current_time() < deadline:
                if place is not None and place not in self._under_way:
                    await self._send(place, op, body, deadline)
                await self._wait(deadline)
                if not self._answers and self.once and self._under_way:  # nobody else is asked
                    await self._rest(min(deadline, trio.current_time() + REST_S))
                    continue
                if not self._answers:  # silence
                    for silent in self._under_way:
                        links.next_after(silent)
                    place = await self._place_of_search(deadline)
                    continue
                asked, answer = self._answers.pop(0)
                if isinstance(answer, Reply):
                    self.unanswered -= 1
                    questions.found(asked)
                    return answer
                self.last = answer
                wanted = self._after(asked, answer)
                place = links.leader
                if wanted is Next.PAUSE:
                    self._busy = self._busy or Backoff(BUSY_MIN_S, BUSY_MAX_S)
                    pause_s = self._busy.next_s(links.chance())
                    await self._rest(min(deadline, trio.current_time() + pause_s))
                elif wanted is Next.SEARCH:
                    now = trio.current_time()
                    hears = now < self._heard_at(now) + SILENCE_S
                    place = None if hears else await self._place_of_search(deadline)
        finally:
            self._leave()
        if isinstance(self.last, TooBusy) and not self.unanswered:
            raise self.last
        places = ", ".join(f"{host}:{port}" for host, port in links.known.all)
        raise QuorumUnreachable(
            f"no leader of the metadata quorum at {places} answered within {links.timeout_s:g} s"
            f" (last: {self.last or 'no answer'})"
        )

    def wake(self) -> None:
        """Somebody leads."""
        if self._news is not None:
            self._news.set()

    # --- sending ----------------------------------------------------------------------------------

    async def _send(self, place: Address, op: int, body: Buffer, deadline: float) -> None:
        """Have it under way at one more node, or note why it is not."""
        try:
            link = self._links.open_link(place) or await self._links.link(place, deadline)
            now = trio.current_time()
            left_s = max(0.01, deadline - now)
            on_reply = partial(self._on_reply, place)
            pending = link.stand(op, body, timeout_s=left_s, on_reply=on_reply)
        except AlreadyClosed:
            raise
        except DistributedLogError as error:
            self._answers.append((place, error))
            self.unanswered += error.definite  # never sent: as if sent, and refused for certain
            return
        self._under_way[place] = Sending(link, pending, now)
        self.unanswered += 1

    def _on_reply(self, place: Address, answer: Reply | DistributedLogError) -> None:
        self._under_way.pop(place, None)
        self._answers.append((place, answer))
        if self._news is not None:
            self._news.set()

    def _is_at(self, place: Address) -> bool:
        return place in self._under_way

    def _leave(self) -> None:
        for sending in self._under_way.values():
            sending.link.forget(sending.pending)
        self._under_way.clear()
        self._answers.clear()
        self._questions.end(self)

    # --- waiting ----------------------------------------------------------------------------------

    async def _wait(self, deadline: float) -> None:
        """Until there is an answer, or until no node that was asked shows a sign of life."""
        while not self._answers and self._under_way:
            now = trio.current_time()
            heard_at = self._heard_at(now)
            until = heard_at + PING_S
            if now >= until:
                until = heard_at + SILENCE_S
                for place, sending in self._under_way.items():
                    self._links.ping(place, sending.link)
            if now >= min(until, deadline):
                return
            self.waits_until = min(until, deadline)
            self._news = news = trio.Event()
            await news.wait()
            self._news, self.waits_until = None, inf
            if trio.current_time() > until + TICK_S + LATE_S:
                self._ran_at = trio.current_time()

    def _heard_at(self, now: float) -> float:
        """When a node that has the question last showed a sign of life; -inf where none has it."""
        heard_at = -inf
        for sending in self._under_way.values():
            heard_at = max(heard_at, sending.link.received_at, sending.sent_at, self._ran_at)
        return min(now, heard_at)

    async def _rest(self, until: float) -> None:
        """Until an answer, or news of a leader, or then."""
        if not self._answers:
            self._news = news = trio.Event()
            with trio.CancelScope(deadline=until):
                await news.wait()
            self._news = None

    async def _place_of_search(self, deadline: float) -> Address | None:
        """Where to ask next for a leader; None where there is an answer meanwhile."""
        links, questions = self._links, self._questions
        if questions.searcher not in (None, self):
            await self._rest(min(deadline, trio.current_time() + REST_S))
            return None if self._answers or self._is_at(links.leader) else links.leader
        questions.searcher = self
        self._steps += 1
        # All of them may name a leader that has just died: one round of questions, then pauses.
        if self._steps >= len(links.known.all):
            await self._rest(min(deadline, trio.current_time() + PAUSE_S))
        for _ in links.known.all:
            if not self._is_at(links.leader):
                break
            links.turn()
        return None if self._answers else links.leader

    # --- answers ----------------------------------------------------------------------------------

    def _after(self, asked: Address, error: DistributedLogError) -> Next:
        """What to do after a refusal. Raises it where it is the answer."""
        self.unanswered -= error.definite
        if self.once and self.unanswered:
            raise error
        links = self._links
        if isinstance(error, NotLeader):
            return Next.FOLLOW if links.follow(asked, error.leader) else Next.SEARCH
        if isinstance(error, TooBusy):
            return Next.PAUSE
        if isinstance(error, ELSEWHERE):
            links.next_after(asked)
            return Next.SEARCH
        raise error
