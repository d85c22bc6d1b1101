"""A bookie's registration: ``bookie/<id>`` under a lease, made again when the lease was lost.

The lease tells others whom to try; nothing safe rests on it (H19). Registration is conditional on the
cookie, so that two processes with copies of one directory cannot both be this bookie.
"""

from collections.abc import Awaitable, Callable

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.errors import (
    DistributedLogError,
    ForeignData,
    LeaseExpired,
    OutcomeUnknown,
    QuorumUnreachable,
)
from ...runtime.interfaces.log_lines import get_logger
from ..declarations.events import LEASE_LOST

RENEWALS_A_LEASE = 3
REFRESH_S = 10.0
"""Free space and counters are told again this often, where they have changed."""
LEAVE_S = 1.0
TELL_REST_S = 0.5
"""After what was told at once, at the least: what changes all the time is told as often."""

log = get_logger("distributedlog.cluster.coordination.registration_lease")


class RegistrationLease:
    """Keeps one leased key alive. ``value`` is asked for what to say each time.

    ``guard``: what must hold, that this node may be registered. ``urgent``: what is
    told with the next renewal when it changed, not only each `REFRESH_S`.
    ``on_renewed`` is what goes to the metadata with each renewal.
    """

    def __init__(
        self,
        metadata: Metadata,
        key: bytes,
        value: Callable[[], bytes],
        guard: Compare | None,
        *,
        lease_s: float,
        urgent: Callable[[], object] = lambda: None,
        on_renewed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._metadata = metadata
        self._key = key
        self._value = value
        self._guard = guard
        self._lease_s = lease_s
        self._urgent = urgent
        self._on_renewed = on_renewed
        self._renewed_at = -float("inf")
        """When the last renewal that was answered was asked for."""
        self._said = b""
        self._said_urgent: object = None
        self._saying = trio.Lock()
        """What is said last is what holds."""
        self.lease = 0
        """The lease under which this node's other temporary keys may be held too; 0: none now."""

    @property
    def holds(self) -> bool:
        """Is the lease ours as far as can be known? Who is cut off from the metadata is told by nobody."""
        return self.lease != 0 and trio.current_time() < self._renewed_at + self._lease_s

    async def register(self) -> None:
        """Take a lease and register.

        Raises `ForeignData` when the cookie has moved on, `QuorumUnreachable` also where it is not known what
        was done: what nobody renews ends by itself.
        """
        while True:
            self._renewed_at = trio.current_time()
            try:
                lease = await self._metadata.grant_lease(int(self._lease_s * 1000))
                await self._say(lease)
            except LeaseExpired:
                continue  # it ran out before it was used: whoever was stalled asks again
            except OutcomeUnknown as error:
                raise QuorumUnreachable(f"registering: {error}") from error
            self.lease = lease
            return

    async def run(self) -> None:
        """Renew until cancelled; after a lost lease register again. Raises `ForeignData`."""
        step_s = self._lease_s / RENEWALS_A_LEASE
        said_at = trio.current_time()
        while True:
            await trio.sleep(step_s)
            try:
                if not self.lease:
                    await self.register()
                    LEASE_LOST.say(log, "registered again after the lease was lost")
                asked_at = trio.current_time()
                await self._metadata.renew_lease(self.lease)
                self._renewed_at = asked_at
                if self._on_renewed is not None:
                    await self._on_renewed()
                value = self._value()
                due = trio.current_time() - said_at >= REFRESH_S
                if value != self._said and (due or self._urgent() != self._said_urgent):
                    await self._say(self.lease)
                    said_at = trio.current_time()
            except LeaseExpired:
                self.lease = 0
                step_s = 0.0
                continue
            except ForeignData:
                raise
            except DistributedLogError as error:  # the quorum is away: the lease may live or not
                log.warning("the registration was not renewed: %s: %s", type(error).__name__, error)
                step_s = 0.5
                continue
            step_s = self._lease_s / RENEWALS_A_LEASE

    async def tell(self) -> None:
        """Tell now what has changed, for somebody waits for it. Raises `ForeignData`, `LeaseExpired`."""
        if self.lease and self._value() != self._said:
            await self._say(self.lease)

    async def tell_at_once(self, changed: Callable[[], Awaitable[object]]) -> None:
        """Tell what is urgent as soon as ``changed`` returns, until cancelled. Raises `ForeignData`.

        What cannot be told now is told with a renewal.
        """
        while True:
            if self._urgent() == self._said_urgent:
                await changed()
            try:
                await self.tell()
            except ForeignData:
                raise
            except DistributedLogError as error:
                log.info("not told at once: %s: %s", type(error).__name__, error)
            await trio.sleep(TELL_REST_S)

    async def leave(self) -> None:
        """Say goodbye at a clean end, within `LEAVE_S`; failing that the lease runs out."""
        if not self.lease:
            return
        lease, self.lease = self.lease, 0
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_S) as scope:
            try:
                await self._metadata.revoke_lease(lease)
            except DistributedLogError as error:
                log.info("left without a goodbye: %s", error)
        if scope.cancelled_caught:
            log.info("left without a goodbye: no answer within %g s", LEAVE_S)

    async def _say(self, lease: int) -> None:
        async with self._saying:
            value, urgent = self._value(), self._urgent()
            reply = await self._metadata.transact(
                Transaction(
                    () if self._guard is None else (self._guard,), (Put(self._key, value, lease),)
                )
            )
            if not reply.succeeded:
                raise ForeignData(
                    "this node was started somewhere else with a copy of its directory, or decommissioned"
                )
            self._said, self._said_urgent = value, urgent
