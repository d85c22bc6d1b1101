"""What the metadata shows to clients, judged by the second judge (T4): no key, name or capability of others.

Every answer is looked at as it leaves a node: items of reads and ranges, what a condition that did not hold
shows, changes that watches tell of, capabilities, passes, tokens, the words of refusals. It was rightful if
it was so at any moment since its request came.
"""

import re
from collections.abc import Callable

from ....metadata.protocol.client_messages import (
    RangeRequest,
    TrustRequest,
    decode_events,
    decode_item,
    decode_outcome,
    decode_page,
    decode_trust,
)
from ....metadata.protocol.token_messages import decode_trust_question
from ....runtime.interfaces.principals import Narrowing
from ....runtime.protocol.capabilities import CapabilityKind
from ....runtime.protocol.capability_messages import CapsAnswer, GateQuestion, decode_question
from ....runtime.protocol.frames import Op, error_from
from ....runtime.protocol.tokens import PREFIX, read_token
from ...verify.checks.independent_authorizer import Policy, SecondJudge
from .connection_observer import Asked, ConnectionOracle, ObservedConnection, SessionFrame

SECRET = b"secret/"


class DisclosureOracle(ConnectionOracle):
    """A `ConnectionOracle` of the metadata nodes' answers."""

    def __init__(self, judge: SecondJudge, fail: Callable[[str], None]) -> None:
        self._judge = judge
        self._fail = fail
        self.judged = 0
        """What was shown where rights counted."""
        self.given: dict[tuple[str, bytes], int] = {}
        """Machine and capability to the newest revision of `SecondJudge.revision` at which it was given."""

    def on_answer(self, met: ObservedConnection, answer: SessionFrame) -> None:
        """See `ConnectionOracle`."""
        asked, op, status, body = answer.asked, answer.op, answer.status, answer.body
        if not met.node.startswith("m"):
            return
        if op == Op.META_WATCH_EVENTS and not status:
            for event in decode_events(body).events:
                # Or when it was told of it, later: who is let in again hears what it missed.
                self._may_see(met, event.item.key, event.item.mod_revision, "a watch told of")
        elif op != Op.REPLY or asked is None:
            return
        elif status:
            self._look_at_words(met, asked, str(error_from(status, body)))
        elif asked.op == Op.META_READ:
            if RangeRequest.decode(asked.body).end is None:
                found = [decode_item(body)[1]]
            else:
                found = [*decode_page(body)[1].items]
            for item in found:
                if item is not None:
                    self._may_see(met, item.key, asked.revision, "was shown")
        elif asked.op == Op.META_TRANSACT:
            outcome = decode_outcome(body)[1]
            if outcome.error is not None:
                self._look_at_words(met, asked, str(outcome.error))
            for item in outcome.transaction.current if outcome.transaction is not None else ():
                if item is not None:
                    self._may_see(met, item.key, asked.revision, "was shown by a condition")
        elif asked.op == Op.META_CAPS:
            self._look_at_capabilities(met, asked, body)
        elif asked.op == Op.META_TRUST:
            self._look_at_trust(met, asked, bytes(body))
        elif asked.op == Op.META_SAVE and not self._may(met, asked.revision, _is_admin):
            self._fail(f"T4: {self._who(met)} was given a save")

    # --- what it is ---------------------------------------------------------------------------------

    def _may_see(self, met: ObservedConnection, key: bytes, revision: int, how: str) -> None:
        if key.startswith(SECRET):
            self._fail(f"T4: {how} {self._who(met)}: a secret, {key!r}")
            return

        def may(policy: Policy, user: str, narrowing: Narrowing) -> bool:
            cut = policy.narrowed(narrowing)
            return self._judge.may_read(cut, met.principal, key)

        if not self._may(met, revision, may):
            self._fail(f"T4: {self._who(met)}: {how} {key!r} of revision {revision}")

    def _look_at_capabilities(
        self, met: ObservedConnection, asked: Asked, body: memoryview
    ) -> None:
        question = decode_question(asked.body)
        if isinstance(question, GateQuestion):
            self._fail(f"T1: {self._who(met)} was given the keys of {question.bookie_id}")
            return
        answer = CapsAnswer.decode(body)
        if answer.passport and met.principal.encode() not in answer.passport:
            self._fail(f"T1: {self._who(met)} was given somebody else's pass")
        letter = "r" if question.kind in (CapabilityKind.LIST, CapabilityKind.READ) else "w"
        for ledger, keys in answer.keys.items():
            for key in keys:
                self.given[met.machine, key] = self._judge.revision
            if not keys or not met.principal.startswith("user/"):
                continue

            def may(policy: Policy, user: str, narrowing: Narrowing, of: int = ledger) -> bool:
                return letter in self._judge.on_ledger(policy.narrowed(narrowing), user, of)

            if not self._may(met, asked.revision, may):
                self._fail(f"T4: {self._who(met)} was given a capability of {ledger}")

    def _look_at_trust(self, met: ObservedConnection, asked: Asked, body: bytes) -> None:
        if body.startswith(PREFIX):
            token = read_token(body)
            if token.principal != met.principal and not self._may(met, asked.revision, _is_admin):
                self._fail(f"T4: {self._who(met)} was given a token of {token.principal}")
            return
        question = decode_trust_question(asked.body)
        if not isinstance(question, TrustRequest) or question.change is not None:
            return
        report = decode_trust(memoryview(body))
        if report.principal != met.principal:
            self._fail(f"T4: {self._who(met)} was told that it is {report.principal}")
        if report.would_refuse and not self._may(met, asked.revision, _is_operator):
            self._fail(f"T4: {self._who(met)} was told who would be refused")

    def _look_at_words(self, met: ObservedConnection, asked: Asked, words: str) -> None:
        """A refusal names no log that its receiver may not know, but what was asked for itself (H234)."""
        for namespace, name in self._judge.paths():
            if name.encode() in asked.body or not re.search(rf"\b{re.escape(name)}\b", words):
                continue

            def may(
                policy: Policy,
                user: str,
                narrowing: Narrowing,
                place: tuple[str, str] = (namespace, name),
            ) -> bool:
                cut = policy.narrowed(narrowing)
                return bool(cut.on_path(user, *place)) or "o" in cut.of_cluster(user)

            if not self._may(met, asked.revision, may):
                self._fail(f"T4: {self._who(met)} was told of {name}: {words}")

    # --- when it was ----------------------------------------------------------------------------------

    def _may(
        self, met: ObservedConnection, revision: int, may: Callable[[Policy, str, Narrowing], bool]
    ) -> bool:
        """Was there a moment since that revision when it might be answered so?"""
        policies = self._judge.since(revision)
        if any(one.mode != "required" for one in policies):
            return True
        self.judged += 1
        user = met.principal.partition("/")[2]
        narrowing = () if met.token is None else met.token.narrowing
        return any(may(one, user, narrowing) for one in policies)

    def _who(self, met: ObservedConnection) -> str:
        cut = " by a narrowed token" if met.token is not None and met.token.narrowing else ""
        return f"{met.principal} on {met.machine}{cut}"


def _is_admin(policy: Policy, user: str, narrowing: Narrowing) -> bool:
    return not narrowing and "a" in policy.of_cluster(user)


def _is_operator(policy: Policy, user: str, narrowing: Narrowing) -> bool:
    return not narrowing and "o" in policy.of_cluster(user)
