"""What a proxy does for those who came by a token, against what it had heard by then (T3, T4, H237).

A proxy asks the leader once whose a token is and how long it lasts, and follows what revokes it. So when it
has heard that a user's tokens are others, nothing leaves it for who came by an older one, not even of what he
was let in to before; nothing long after a token's end; and nobody is let in to a log that his token leaves
out.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import trio

from .... import open_namespace
from ....log.namespace import Namespace
from ....proxy.protocol.read_messages import Subscribe
from ....runtime.interfaces.errors import DistributedLogError, NotAllowed
from ....runtime.interfaces.host import Host
from ....runtime.net.tls import token_credentials
from ....runtime.protocol.frames import Op
from ...verify.checks.independent_authorizer import SecondJudge
from ...verify.history.run_history import RunHistory
from ...verify.workloads.workload import as_read
from .connection_observer import ConnectionOracle, ObservedConnection, SessionFrame
from .token_expiry import SWEEP_S

PAUSE_S = 0.3
HOLDS_S = 12.0
"""For so long who came by a token goes on with it, also when it has ended: longer than any lasts."""
NEWEST = 4
"""Of all tokens that there were, these are shown."""


@dataclass(frozen=True, slots=True)
class ObservedRights:
    """What a proxy knows of who may do what, and since when."""

    at: float
    required_since: float
    """Since then rights count there; infinite: they do not."""
    numbers: Mapping[str, int]
    """That tokens must have, of a user; -1: it is none any more."""


class AtProxies(ConnectionOracle):
    """A `ConnectionOracle` of what proxies answer and send."""

    def __init__(
        self,
        now: Callable[[], float],
        judge: SecondJudge,
        fail: Callable[[str], None],
        *,
        stood_until: Callable[[str], float],
    ) -> None:
        """``stood_until``: when a node last stood still."""
        self._now = now
        self._judge = judge
        self._fail = fail
        self._stood_until = stood_until
        self.heard: dict[str, ObservedRights] = {}
        """By the proxy's machine."""
        self.given = 0
        """Frames that left for who came by a token."""
        self.let_in = 0
        """Subscriptions of theirs where rights counted."""
        self.ended = 0
        """Of their subscriptions, with an error."""

    def on_heard(self, proxy: str, mode: str, numbers: Mapping[str, int]) -> None:
        """That proxy has heard that, and has ended what it ends."""
        before, now = self.heard.get(proxy), self._now()
        since = now if before is None else min(now, before.required_since)
        self.heard[proxy] = ObservedRights(
            now, since if mode == "required" else float("inf"), numbers
        )

    def on_begun(self, proxy: str) -> None:
        """Another process is there, which knows nothing yet."""
        self.heard.pop(proxy, None)

    def on_answer(self, met: ObservedConnection, answer: SessionFrame) -> None:
        """See `ConnectionOracle`."""
        heard, token = self.heard.get(met.node), met.token
        if heard is None or token is None:
            return
        self.ended += answer.op == Op.SUBSCRIPTION_ENDED and bool(answer.status)
        asked = answer.asked if answer.op == Op.REPLY and not answer.status else None
        if asked is None and answer.op != Op.ENTRIES:
            return
        self.given += 1
        now, what = self._now(), f"{met.node} went on with {met.machine}"
        if heard.at < now and heard.numbers.get(token.user, -1) != token.since:
            self._fail(
                f"T3: {what} by a token of {token.principal} that was revoked, of which it heard"
                f" {now - heard.at:.3f} s before (operation {answer.op})"
            )
        late_s = now - max(met.until, self._stood_until(met.node))
        if late_s > SWEEP_S:
            self._fail(
                f"H237: {what} by a token that had ended {late_s:.1f} s before"
                f" (operation {answer.op})"
            )
        if asked is not None and asked.op == Op.SUBSCRIBE and heard.required_since < asked.at:
            self.let_in += 1
            ask = Subscribe.decode(asked.body)
            may = (one.narrowed(token.narrowing) for one in self._judge.policies)
            if not any("r" in one.on_path(token.user, ask.path, ask.name) for one in may):
                self._fail(
                    f"T4: {met.node} let {met.machine} read {ask.name} by a token that leaves it out"
                )


async def read_by_tokens(
    host: Host,
    uri: str,
    config: Mapping[str, Any],
    tokens: Sequence[bytes],
    logs: Mapping[str, RunHistory | None],
    chance: Random,
) -> None:
    """Read logs through proxies by any of the newest tokens, and hold on to what it opened. Until cancelled.

    ``tokens``: all that there are, the newest last; ``logs``: by name, what is read of it is noted there.
    """
    while True:
        await trio.sleep(chance.expovariate(1.0 / PAUSE_S))
        coming = _shows(host, chance.choice(tokens[-NEWEST:]))
        with suppress(DistributedLogError), trio.move_on_after(HOLDS_S):
            async with open_namespace(uri, config=config, host=coming) as through:
                while True:
                    log = chance.choice([*logs])
                    with suppress(NotAllowed), trio.move_on_after(0.5 + chance.expovariate(1.0)):
                        await _read(through, log, logs[log], latest=chance.random() < 0.5)
                    await trio.sleep(PAUSE_S)


async def _read(through: Namespace, log: str, history: RunHistory | None, *, latest: bool) -> None:
    """From the beginning, or what comes; over the connection that is there. Until cancelled."""
    begun, reading = trio.current_time(), None
    async with through.open_log(log).open_reader(at="latest" if latest else "earliest") as reader:
        async for record in reader:
            if history is not None and not latest:
                reading = reading or history.begin_reading("by token", begun)
                reading.records.append(as_read(record))


def _shows(host: Host, token: bytes) -> Host:
    """The same machine, for somebody who comes by that token."""
    credentials = token_credentials(lambda: token)
    return replace(host, credentials=lambda address: credentials)
