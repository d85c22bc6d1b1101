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
DEREGISTER_S = 1.0
BETWEEN_UPDATES_S = 0.5
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
        get_value: Callable[[], bytes],
        guard: Compare | None,
        *,
        lease_s: float,
        get_urgent: Callable[[], object] = lambda: None,
        on_renewed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._metadata = metadata
        self._key = key
        self._get_value = get_value
        self._guard = guard
        self._lease_s = lease_s
        self._get_urgent = get_urgent
        self._on_renewed = on_renewed
        self._renewed_at = -float("inf")
        """When the last renewal that was answered was asked for."""
        self._published_value = b""
        self._published_urgent: object = None
        self._publish_lock = trio.Lock()
        """What is said last is what holds."""
        self.lease = 0
        """The lease under which this node's other temporary keys may be held too; 0: none now."""

    @property
    def is_held(self) -> bool:
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
                await self._publish(lease)
            except LeaseExpired:
                continue  # it ran out before it was used: whoever was stalled asks again
            except OutcomeUnknown as error:
                raise QuorumUnreachable(f"registering: {error}") from error
            self.lease = lease
            return

    async def run(self) -> None:
        """Renew until cancelled; after a lost lease register again. Raises `ForeignData`."""
        wait_s = self._lease_s / RENEWALS_A_LEASE
        published_at = trio.current_time()
        while True:
            await trio.sleep(wait_s)
            try:
                if not self.lease:
                    await self.register()
                    LEASE_LOST.emit(log, "registered again after the lease was lost")
                requested_at = trio.current_time()
                await self._metadata.renew_lease(self.lease)
                self._renewed_at = requested_at
                if self._on_renewed is not None:
                    await self._on_renewed()
                value = self._get_value()
                is_due = trio.current_time() - published_at >= REFRESH_S
                if value != self._published_value and (
                    is_due or self._get_urgent() != self._published_urgent
                ):
                    await self._publish(self.lease)
                    published_at = trio.current_time()
            except LeaseExpired:
                self.lease = 0
                wait_s = 0.0
                continue
            except ForeignData:
                raise
            except DistributedLogError as error:  # the quorum is away: the lease may live or not
                log.warning("the registration was not renewed: %s: %s", type(error).__name__, error)
                wait_s = 0.5
                continue
            wait_s = self._lease_s / RENEWALS_A_LEASE

    async def update(self) -> None:
        """Tell now what has changed, for somebody waits for it. Raises `ForeignData`, `LeaseExpired`."""
        if self.lease and self._get_value() != self._published_value:
            await self._publish(self.lease)

    async def update_on_change(self, wait_for_change: Callable[[], Awaitable[object]]) -> None:
        """Tell what is urgent as soon as ``changed`` returns, until cancelled. Raises `ForeignData`.

        What cannot be told now is told with a renewal.
        """
        while True:
            if self._get_urgent() == self._published_urgent:
                await wait_for_change()
            try:
                await self.update()
            except ForeignData:
                raise
            except DistributedLogError as error:
                log.info("not told at once: %s: %s", type(error).__name__, error)
            await trio.sleep(BETWEEN_UPDATES_S)

    async def deregister(self) -> None:
        """Say goodbye at a clean end, within `DEREGISTER_S`; failing that the lease runs out."""
        if not self.lease:
            return
        lease, self.lease = self.lease, 0
        with trio.CancelScope(shield=True, deadline=trio.current_time() + DEREGISTER_S) as scope:
            try:
                await self._metadata.revoke_lease(lease)
            except DistributedLogError as error:
                log.info("left without a goodbye: %s", error)
        if scope.cancelled_caught:
            log.info("left without a goodbye: no answer within %g s", DEREGISTER_S)

    async def _publish(self, lease: int) -> None:
        async with self._publish_lock:
            value, urgent = self._get_value(), self._get_urgent()
            reply = await self._metadata.transact(
                Transaction(
                    () if self._guard is None else (self._guard,), (Put(self._key, value, lease),)
                )
            )
            if not reply.succeeded:
                raise ForeignData(
                    "this node was started somewhere else with a copy of its directory, or decommissioned"
                )
            self._published_value, self._published_urgent = value, urgent
