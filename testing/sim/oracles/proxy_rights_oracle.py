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

    observed_at: float
    required_since: float
    """Since then rights count there; infinite: they do not."""
    token_numbers: Mapping[str, int]
    """That tokens must have, of a user; -1: it is none any more."""


class AtProxies(ConnectionOracle):
    """A `ConnectionOracle` of what proxies answer and send."""

    def __init__(
        self,
        now: Callable[[], float],
        reference: SecondJudge,
        fail: Callable[[str], None],
        *,
        stalled_until: Callable[[str], float],
    ) -> None:
        """``stood_until``: when a node last stood still."""
        self._now = now
        self._reference = reference
        self._fail = fail
        self._stalled_until = stalled_until
        self.observed: dict[str, ObservedRights] = {}
        """By the proxy's machine."""
        self.frames_to_token_users = 0
        """Frames that left for who came by a token."""
        self.checked_subscriptions = 0
        """Subscriptions of theirs where rights counted."""
        self.ended_subscriptions = 0
        """Of their subscriptions, with an error."""

    def on_rights(self, proxy: str, mode: str, token_numbers: Mapping[str, int]) -> None:
        """That proxy has heard that, and has ended what it ends."""
        previous, now = self.observed.get(proxy), self._now()
        required_since = now if previous is None else min(now, previous.required_since)
        self.observed[proxy] = ObservedRights(
            now, required_since if mode == "required" else float("inf"), token_numbers
        )

    def on_restart(self, proxy: str) -> None:
        """Another process is there, which knows nothing yet."""
        self.observed.pop(proxy, None)

    def on_answer(self, connection: ObservedConnection, answer: SessionFrame) -> None:
        """See `ConnectionOracle`."""
        rights, token = self.observed.get(connection.node), connection.token
        if rights is None or token is None:
            return
        self.ended_subscriptions += answer.op == Op.SUBSCRIPTION_ENDED and bool(answer.status)
        request = answer.request if answer.op == Op.REPLY and not answer.status else None
        if request is None and answer.op != Op.ENTRIES:
            return
        self.frames_to_token_users += 1
        now, description = self._now(), f"{connection.node} went on with {connection.machine}"
        if (
            rights.observed_at < now
            and rights.token_numbers.get(token.user, -1) != token.revoked_at_revision
        ):
            self._fail(
                f"T3: {description} by a token of {token.principal} that was revoked, of which it heard"
                f" {now - rights.observed_at:.3f} s before (operation {answer.op})"
            )
        late_s = now - max(connection.ends_at, self._stalled_until(connection.node))
        if late_s > SWEEP_S:
            self._fail(
                f"H237: {description} by a token that had ended {late_s:.1f} s before"
                f" (operation {answer.op})"
            )
        if (
            request is not None
            and request.op == Op.SUBSCRIBE
            and rights.required_since < request.arrived_at
        ):
            self.checked_subscriptions += 1
            subscribe = Subscribe.decode(request.body)
            policies = (policy.narrowed(token.token_scope) for policy in self._reference.policies)
            if not any(
                "r" in policy.path_rights(token.user, subscribe.path, subscribe.name)
                for policy in policies
            ):
                self._fail(
                    f"T4: {connection.node} let {connection.machine} read {subscribe.name} by a token "
                    "that leaves it out"
                )


async def read_by_tokens(
    host: Host,
    uri: str,
    config: Mapping[str, Any],
    tokens: Sequence[bytes],
    logs: Mapping[str, RunHistory | None],
    rng: Random,
) -> None:
    """Read logs through proxies by any of the newest tokens, and hold on to what it opened. Until cancelled.

    ``tokens``: all that there are, the newest last; ``logs``: by name, what is read of it is noted there.
    """
    while True:
        await trio.sleep(rng.expovariate(1.0 / PAUSE_S))
        token_host = _shows(host, rng.choice(tokens[-NEWEST:]))
        with suppress(DistributedLogError), trio.move_on_after(HOLDS_S):
            async with open_namespace(uri, config=config, host=token_host) as namespace:
                while True:
                    name = rng.choice([*logs])
                    with suppress(NotAllowed), trio.move_on_after(0.5 + rng.expovariate(1.0)):
                        await _read(namespace, name, logs[name], latest=rng.random() < 0.5)
                    await trio.sleep(PAUSE_S)


async def _read(
    namespace: Namespace, log: str, history: RunHistory | None, *, latest: bool
) -> None:
    """From the beginning, or what comes; over the connection that is there. Until cancelled."""
    begun_at, reading = trio.current_time(), None
    async with namespace.open_log(log).open_reader(at="latest" if latest else "earliest") as reader:
        async for record in reader:
            if history is not None and not latest:
                reading = reading or history.begin_reading("by token", begun_at)
                reading.records.append(as_read(record))


def _shows(host: Host, token: bytes) -> Host:
    """The same machine, for somebody who comes by that token."""
    credentials = token_credentials(lambda: token)
    return replace(host, credentials=lambda address: credentials)
