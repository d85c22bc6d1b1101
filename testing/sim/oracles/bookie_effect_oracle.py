"""Check that bookies act for users only on valid capabilities, as far as they can know it (T1, T3; H231,
H241).

A bookie accepts a capability until it receives the news that it ended. In mode `required`, each of its
effects for a user must therefore be covered by a capability with four properties. The leader gave it to the
same machine. It was given after the last revocation of the user's rights. Its key generation is valid. It is
for a log on which the user had the right. A bookie without contact to the quorum for ``silence_s`` must serve
nodes only.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from ....bookie.format import bookie_messages as messages
from ....bookie.format.entry import HEADER, HEADER_BYTES
from ....runtime.protocol.capabilities import CapabilityKind
from ....runtime.protocol.capability_messages import BookieKeysReply
from ....runtime.protocol.frames import Op
from ...verify.checks.independent_authorizer import IndependentAuthorizer
from .connection_observer import ConnectionOracle, ObservedConnection, ObservedRequest, SessionFrame
from .disclosure_oracle import DisclosureOracle

CHECK_INTERVAL_S = 1.0
"""Interval at which a bookie without contact to the quorum checks its open streams."""
LATE_S = 0.5


@dataclass(frozen=True, slots=True)
class ObservedKeys:
    """The keys that a bookie received from the leader, and the time."""

    observed_at: float
    answer: BookieKeysReply


@dataclass(slots=True)
class _Effect:
    """A request to a bookie."""

    kind: CapabilityKind
    ledger: int
    key: bytes
    arrived_at: float
    """When the request arrived at the bookie."""
    added_at: list[tuple[float, bool]] = field(default_factory=list)
    """For a stream: when each of its records arrived, and whether the bookie was stalled then."""
    was_stalled: bool = False
    is_open: bool = False
    """Whether it is a stream, which is authorized when it begins and then continues."""


class BookieEffectOracle(ConnectionOracle):
    """A `ConnectionOracle` that checks the effects of requests at bookies."""

    def __init__(
        self,
        now: Callable[[], float],
        reference: IndependentAuthorizer,
        disclosure: DisclosureOracle,
        fail: Callable[[str], None],
        *,
        watched_machines: Collection[str],
        thief_machines: Collection[str],
        silence_s: float,
        stalled_until: Callable[[str], float],
    ) -> None:
        """Create the oracle.

        Args:
            watched_machines: The machines whose requests are checked.
            thief_machines: Those of them with the certificate of a bookie and keys stolen from another
                bookie. They may only list entries, because their bookie stores no ledgers.
            silence_s: How long a bookie may serve users without contact to the quorum.
            stalled_until: Returns when the last stall of a node ended.
        """
        self._now = now
        self._reference = reference
        self._disclosure = disclosure
        self._fail = fail
        self._watched_machines = watched_machines
        self._thief_machines = thief_machines
        self._silence_s = silence_s
        self._stalled_until = stalled_until
        self.observed: dict[str, list[ObservedKeys]] = {}
        """The different answers that each bookie received, newest last."""
        self._observed_at: dict[str, float] = {}
        """When each bookie last received an answer."""
        self.effect_count = 0
        """Number of checked effects."""
        self._streams: dict[tuple[ObservedConnection, int], _Effect] = {}

    def on_gate_answer(self, bookie: str, answer: BookieKeysReply) -> None:
        """Record that a bookie has received this answer."""
        observed = self.observed.setdefault(bookie, [])
        self._observed_at[bookie] = self._now()
        if not observed or observed[-1].answer != answer:
            observed.append(ObservedKeys(self._now(), answer))

    def newest(self, bookie: str) -> ObservedKeys | None:
        """Return the newest answer that a bookie received."""
        observed = self.observed.get(bookie)
        return observed[-1] if observed else None

    def on_request(
        self, connection: ObservedConnection, op: int, flags: int, ident: int, body: memoryview
    ) -> None:
        """Record streams and their records; see `ConnectionOracle`."""
        if not self._is_watched(connection):
            return
        if op == Op.STREAM_OPEN:
            stream_open = messages.StreamOpenRequest.decode(body)
            if not stream_open.close:
                kind = CapabilityKind.RECOVER if stream_open.recovery else CapabilityKind.ADD
                self._streams[connection, ident] = _Effect(
                    kind, stream_open.ledger, stream_open.key, self._now(), is_open=True
                )
        elif op == Op.ADD:
            self._on_add(connection, ident, body)
        elif op == Op.ADD_MANY:
            offset = messages.ADD_MANY_ITEM_BYTES * ident
            for number, size in messages.decode_add_many_items(ident, body):
                self._on_add(connection, number, body[offset : offset + size])
                offset += size

    def _on_add(self, connection: ObservedConnection, number: int, body: memoryview) -> None:
        stream = self._streams.get((connection, number))
        offset = 0
        while stream is not None and len(body) - offset >= HEADER_BYTES:
            stream.added_at.append((self._now(), connection.was_node_stalled))
            offset += max(HEADER_BYTES, HEADER.unpack_from(body, offset)[1])

    def on_answer(self, connection: ObservedConnection, answer: SessionFrame) -> None:
        """Check the effect of a successful answer; see `ConnectionOracle`."""
        request, op, status, body = answer.request, answer.op, answer.status, answer.body
        if not self._is_watched(connection):
            return
        if op == Op.ADD_ACKS:
            for number, count in messages.decode_pairs(body, "ADD_ACKS"):
                stream = self._streams.get((connection, number))
                if stream is not None and stream.added_at:
                    added_at, was_stalled = stream.added_at[min(count, len(stream.added_at)) - 1]
                    self._check_effect(
                        connection, replace(stream, arrived_at=added_at, was_stalled=was_stalled)
                    )
        elif op == Op.REPLY and request is not None and not status:
            effect = _effect_of(request)
            if effect is not None:
                self._check_effect(connection, effect)

    def _is_watched(self, connection: ObservedConnection) -> bool:
        return connection.machine in self._watched_machines and connection.node.startswith("b")

    def _check_effect(self, connection: ObservedConnection, effect: _Effect) -> None:
        bookie, principal = connection.node, connection.principal
        earlier_answers = [
            generation
            for generation in self.observed.get(bookie, [])
            if generation.observed_at < effect.arrived_at
        ]
        if not earlier_answers or earlier_answers[-1].answer.mode != "required":
            return
        self.effect_count += 1
        gate_answer = earlier_answers[-1].answer
        since = gate_answer.revoked_at_revisions.get(principal, 0)
        action = f"{principal} on {connection.machine} did {effect.kind.name.lower()}"
        description = f"{action} to ledger {effect.ledger} at {bookie}"
        given_at_revision = self._disclosure.given_capabilities.get(
            (connection.machine, effect.key)
        )
        silent_s = effect.arrived_at - self._observed_at[bookie]
        bound_s = self._silence_s
        if effect.is_open:
            bound_s += CHECK_INTERVAL_S + LATE_S
            effect.was_stalled = (
                effect.was_stalled
                or effect.arrived_at - self._stalled_until(bookie) < CHECK_INTERVAL_S + LATE_S
            )
        if silent_s > bound_s and not effect.was_stalled and not principal.startswith("bookie/"):
            self._fail(
                f"{description}, which had no contact to the quorum for {silent_s:.1f} s (H241)"
            )
        elif effect.key[1] not in [
            generation.number & 0xFF for generation in gate_answer.generations
        ]:
            self._fail(f"{description} with a capability of the ended generation {effect.key[1]}")
        elif len(gate_answer.generations) > 2:
            self._fail(
                f"{bookie} holds {len(gate_answer.generations)} generations, although capabilities "
                "of the oldest one must have ended"
            )
        elif given_at_revision is None:
            self._fail(f"{description} with a capability that it never received")
        elif given_at_revision < since:
            self._fail(
                f"{description} with a capability of revision {given_at_revision}, although {bookie}"
                " had received the revocation"
                f" at {since}"
            )
        elif connection.machine in self._thief_machines:
            if effect.kind is not CapabilityKind.LIST:
                self._fail(f"{description}, of which the client's bookie stores no copy")
        elif not self._reference.had_right(
            principal,
            effect.ledger,
            "r" if effect.kind in (CapabilityKind.LIST, CapabilityKind.READ) else "w",
            since,
        ):
            self._fail(
                f"{description} without the right since revision {since}, which {bookie} had received"
            )


def _effect_of(observed_request: ObservedRequest) -> _Effect | None:
    """Return the effect of a request on a ledger, or None if it has none."""
    if observed_request.op == Op.READ:
        read = messages.ReadEntriesRequest.decode(observed_request.body)
        kind = CapabilityKind.RECOVER if read.fence else CapabilityKind.READ
        return _Effect(kind, read.ledger, read.key, observed_request.arrived_at)
    if observed_request.op == Op.WAIT_LAC:
        wait = messages.WaitLacRequest.decode(observed_request.body)
        return _Effect(CapabilityKind.READ, wait.ledger, wait.key, observed_request.arrived_at)
    if observed_request.op in (Op.FENCE, Op.READ_LAC, Op.LIST_ENTRIES):
        request = messages.LedgerRequest.decode(observed_request.body)
        kind = CapabilityKind.RECOVER if observed_request.op == Op.FENCE else CapabilityKind.LIST
        return _Effect(kind, request.ledger, request.key, observed_request.arrived_at)
    return None
