"""Check what proxies do for clients with tokens, given the revocations the proxies have received (T3, T4,
H237).

A proxy requests the owner and the lifetime of a token from the leader once, and watches revocations. Three
rules follow. After a proxy has received that a user's tokens are revoked, it sends nothing to a client with
an older token, not even data of an earlier subscription. It sends nothing long after the end of a token. It
lets no client read a log that its token does not cover.
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
from ...verify.checks.independent_authorizer import IndependentAuthorizer
from ...verify.history.run_history import RunHistory
from ...verify.workloads.workload import as_read
from .connection_observer import ConnectionOracle, ObservedConnection, SessionFrame
from .token_expiry import SWEEP_S

PAUSE_S = 0.3
HOLDS_S = 12.0
"""How long a client continues to use one token. Longer than any token is valid, so that tokens end in use."""
NEWEST = 4
"""Clients choose among this many newest tokens."""


@dataclass(frozen=True, slots=True)
class ObservedRights:
    """The rights that a proxy has received, and when."""

    observed_at: float
    required_since: float
    """Since when the proxy enforces authorization; infinite if it does not."""
    token_numbers: Mapping[str, int]
    """The token number that tokens of a user must have; -1 if the user has no valid tokens."""


class ProxyRightsOracle(ConnectionOracle):
    """A `ConnectionOracle` of the answers and entries that proxies send."""

    def __init__(
        self,
        now: Callable[[], float],
        reference: IndependentAuthorizer,
        fail: Callable[[str], None],
        *,
        stalled_until: Callable[[str], float],
    ) -> None:
        """Create the oracle. ``stalled_until`` returns when the last stall of a node ended."""
        self._now = now
        self._reference = reference
        self._fail = fail
        self._stalled_until = stalled_until
        self.observed: dict[str, ObservedRights] = {}
        """By the machine of the proxy."""
        self.frames_to_token_users = 0
        """Number of frames to clients with tokens."""
        self.checked_subscriptions = 0
        """Number of their subscriptions while authorization was enforced."""
        self.ended_subscriptions = 0
        """Number of their subscriptions that ended with an error."""

    def on_rights(self, proxy: str, mode: str, token_numbers: Mapping[str, int]) -> None:
        """Record the rights that a proxy has received, after it ended the affected connections."""
        previous, now = self.observed.get(proxy), self._now()
        required_since = now if previous is None else min(now, previous.required_since)
        self.observed[proxy] = ObservedRights(
            now, required_since if mode == "required" else float("inf"), token_numbers
        )

    def on_restart(self, proxy: str) -> None:
        """Forget the rights of a proxy, because a new process starts without them."""
        self.observed.pop(proxy, None)

    def on_answer(self, connection: ObservedConnection, answer: SessionFrame) -> None:
        """Check a frame to a client with a token; see `ConnectionOracle`."""
        rights, token = self.observed.get(connection.node), connection.token
        if rights is None or token is None:
            return
        self.ended_subscriptions += answer.op == Op.SUBSCRIPTION_ENDED and bool(answer.status)
        request = answer.request if answer.op == Op.REPLY and not answer.status else None
        if request is None and answer.op != Op.ENTRIES:
            return
        self.frames_to_token_users += 1
        now, description = self._now(), f"{connection.node} still served {connection.machine}"
        if (
            rights.observed_at < now
            and rights.token_numbers.get(token.user, -1) != token.revoked_at_revision
        ):
            self._fail(
                f"T3: {description} for a revoked token of {token.principal},"
                f" {now - rights.observed_at:.3f} s after it received the revocation (operation {answer.op})"
            )
        late_s = now - max(connection.ends_at, self._stalled_until(connection.node))
        if late_s > SWEEP_S:
            self._fail(
                f"H237: {description} for a token that had ended {late_s:.1f} s before"
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
                    f"T4: {connection.node} let {connection.machine} read {subscribe.name} with a token "
                    "that does not cover it"
                )


async def read_by_tokens(
    host: Host,
    uri: str,
    config: Mapping[str, Any],
    tokens: Sequence[bytes],
    logs: Mapping[str, RunHistory | None],
    rng: Random,
) -> None:
    """Read logs through proxies with random newest tokens, and keep using each connection. Runs until
    cancelled.

    Args:
        tokens: All tokens so far, newest last.
        logs: Logs by name, with the history that records what is read, or None.
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
    """Read a log from its beginning or its end over the existing connection. Runs until cancelled."""
    begun_at, reading = trio.current_time(), None
    async with namespace.open_log(log).open_reader(at="latest" if latest else "earliest") as reader:
        async for record in reader:
            if history is not None and not latest:
                reading = reading or history.begin_reading("by token", begun_at)
                reading.records.append(as_read(record))


def _shows(host: Host, token: bytes) -> Host:
    """Return a host of the same machine that presents a token."""
    credentials = token_credentials(lambda: token)
    return replace(host, credentials=lambda address: credentials)
