"""What bookies do for users, against what each had heard by then (T1, T3; H231, H241).

A bookie obeys what was given out until it hears that it ended. So whatever it does for somebody in mode
`required` was opened by a capability that the leader gave to that very machine, after the last time that
something was taken from it, made with a generation that counts, for a log on which it had the right. One that
hears nothing of the quorum for its time of silence does nothing for anybody but nodes.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from ....bookie.format import bookie_messages as messages
from ....bookie.format.entry import HEADER, HEADER_BYTES
from ....runtime.protocol.capabilities import CapabilityKind
from ....runtime.protocol.capability_messages import GateAnswer
from ....runtime.protocol.frames import Op
from ...verify.checks.independent_authorizer import SecondJudge
from .connection_observer import Asked, ConnectionOracle, ObservedConnection, SessionFrame
from .disclosure_oracle import DisclosureOracle

LOOK_S = 1.0
"""A bookie looks at streams that are open so often, while it hears nothing."""
LATE_S = 0.5


@dataclass(frozen=True, slots=True)
class ObservedKeys:
    """What a bookie heard from the leader, and when."""

    at: float
    said: GateAnswer


@dataclass(slots=True)
class _Done:
    """What was asked of a bookie."""

    kind: CapabilityKind
    ledger: int
    key: bytes
    at: float
    """When the request arrived at the bookie."""
    added_at: list[tuple[float, bool]] = field(default_factory=list)
    """Of a stream: when each of its records did, and whether the bookie stood still then."""
    stood: bool = False
    is_open: bool = False
    """It was let in when it began, and goes on."""


class BookieEffectOracle(ConnectionOracle):
    """A `ConnectionOracle` of the bookies' answers."""

    def __init__(
        self,
        now: Callable[[], float],
        judge: SecondJudge,
        shown: DisclosureOracle,
        fail: Callable[[str], None],
        *,
        watched: Collection[str],
        thieves: Collection[str],
        silence_s: float,
        stood_until: Callable[[str], float],
    ) -> None:
        """``watched``: machines. ``thieves``: those of them that hold what is not theirs.
        ``stood_until``: when a node last stood still."""
        self._now = now
        self._judge = judge
        self._shown = shown
        self._fail = fail
        self._watched = watched
        self._thieves = thieves
        self._silence_s = silence_s
        self._stood_until = stood_until
        self.heard: dict[str, list[ObservedKeys]] = {}
        """By the bookie's machine, what was news to it, the newest last."""
        self._heard_at: dict[str, float] = {}
        """When it heard anything."""
        self.effects = 0
        """That were judged."""
        self._streams: dict[tuple[ObservedConnection, int], _Done] = {}

    def on_heard(self, bookie: str, said: GateAnswer) -> None:
        """That bookie has heard that."""
        found = self.heard.setdefault(bookie, [])
        self._heard_at[bookie] = self._now()
        if not found or found[-1].said != said:
            found.append(ObservedKeys(self._now(), said))

    def newest(self, bookie: str) -> ObservedKeys | None:
        """What that bookie heard last."""
        found = self.heard.get(bookie)
        return found[-1] if found else None

    def on_request(
        self, met: ObservedConnection, op: int, flags: int, ident: int, body: memoryview
    ) -> None:
        """See `ConnectionOracle`."""
        if not self._is_watched(met):
            return
        if op == Op.STREAM_OPEN:
            opened = messages.StreamOpen.decode(body)
            if not opened.close:
                kind = CapabilityKind.RECOVER if opened.recovery else CapabilityKind.ADD
                self._streams[met, ident] = _Done(
                    kind, opened.ledger, opened.key, self._now(), is_open=True
                )
        elif op == Op.ADD:
            self._on_add(met, ident, body)
        elif op == Op.ADD_MANY:
            at = messages.MANY_ITEM_BYTES * ident
            for number, size in messages.decode_many(ident, body):
                self._on_add(met, number, body[at : at + size])
                at += size

    def _on_add(self, met: ObservedConnection, number: int, body: memoryview) -> None:
        stream = self._streams.get((met, number))
        at = 0
        while stream is not None and len(body) - at >= HEADER_BYTES:
            stream.added_at.append((self._now(), met.node_stood))
            at += max(HEADER_BYTES, HEADER.unpack_from(body, at)[1])

    def on_answer(self, met: ObservedConnection, answer: SessionFrame) -> None:
        """See `ConnectionOracle`."""
        asked, op, status, body = answer.asked, answer.op, answer.status, answer.body
        if not self._is_watched(met):
            return
        if op == Op.ADD_ACKS:
            for number, count in messages.decode_pairs(body, "ADD_ACKS"):
                stream = self._streams.get((met, number))
                if stream is not None and stream.added_at:
                    at, stood = stream.added_at[min(count, len(stream.added_at)) - 1]
                    self._judge_effect(met, replace(stream, at=at, stood=stood))
        elif op == Op.REPLY and asked is not None and not status:
            done = _meant(asked)
            if done is not None:
                self._judge_effect(met, done)

    def _is_watched(self, met: ObservedConnection) -> bool:
        return met.machine in self._watched and met.node.startswith("b")

    def _judge_effect(self, met: ObservedConnection, done: _Done) -> None:
        bookie, principal = met.node, met.principal
        before = [one for one in self.heard.get(bookie, []) if one.at < done.at]
        if not before or before[-1].said.mode != "required":
            return
        self.effects += 1
        said = before[-1].said
        since = said.since.get(principal, 0)
        did = f"{principal} on {met.machine} did {done.kind.name.lower()}"
        what = f"{did} to ledger {done.ledger} at {bookie}"
        given = self._shown.given.get((met.machine, done.key))
        silent_s = done.at - self._heard_at[bookie]
        bound_s = self._silence_s
        if done.is_open:
            bound_s += LOOK_S + LATE_S
            done.stood = done.stood or done.at - self._stood_until(bookie) < LOOK_S + LATE_S
        if silent_s > bound_s and not done.stood and not principal.startswith("bookie/"):
            self._fail(f"{what}, which had heard nothing of the quorum for {silent_s:.1f} s (H241)")
        elif done.key[1] not in [one.number & 0xFF for one in said.held]:
            self._fail(f"{what} by what was made with generation {done.key[1]}")
        elif len(said.held) > 2:
            self._fail(
                f"{bookie} holds {len(said.held)} generations: what is made with the oldest ends"
            )
        elif given is None:
            self._fail(f"{what} by what was never given to it")
        elif given < since:
            self._fail(
                f"{what} by what was given at revision {given}: {bookie} had heard that it ended"
                f" at {since}"
            )
        elif met.machine in self._thieves:
            if done.kind is not CapabilityKind.LIST:
                self._fail(f"{what}, of which it has no copy")
        elif not self._judge.had_right(
            principal,
            done.ledger,
            "r" if done.kind in (CapabilityKind.LIST, CapabilityKind.READ) else "w",
            since,
        ):
            self._fail(
                f"{what}; it had no right to since revision {since}, which {bookie} heard of"
            )


def _meant(asked: Asked) -> _Done | None:
    """What of a ledger that was."""
    if asked.op == Op.READ:
        read = messages.ReadEntriesRequest.decode(asked.body)
        kind = CapabilityKind.RECOVER if read.fence else CapabilityKind.READ
        return _Done(kind, read.ledger, read.key, asked.at)
    if asked.op == Op.WAIT_LAC:
        wait = messages.WaitLac.decode(asked.body)
        return _Done(CapabilityKind.READ, wait.ledger, wait.key, asked.at)
    if asked.op in (Op.FENCE, Op.READ_LAC, Op.LIST_ENTRIES):
        request = messages.LedgerRequest.decode(asked.body)
        kind = CapabilityKind.RECOVER if asked.op == Op.FENCE else CapabilityKind.LIST
        return _Done(kind, request.ledger, request.key, asked.at)
    return None
