"""Keep a node's registration: a key under a lease, which is created again after the lease is lost.

The registration shows other nodes which nodes to try. No safety depends on it (H19). A bookie's registration
``bookie/<id>`` is conditional on the cookie, so that two processes with copies of one directory cannot both
be registered.
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
"""Free space and counters are published this often if they have changed."""
DEREGISTER_S = 1.0
BETWEEN_UPDATES_S = 0.5
"""The shortest pause after an immediate update, which limits updates of a constantly changing value."""

log = get_logger("distributedlog.cluster.coordination.registration_lease")


class RegistrationLease:
    """Keeps one leased key alive, and its value up to date.

    ``get_value`` returns the value to publish. The key is written only while ``guard`` holds. ``get_urgent``
    returns the parts of the value that are published with the next renewal if they changed; other changes are
    published every `REFRESH_S`. ``on_renewed`` is called after each renewal.
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
        """When the last renewal with a response was requested."""
        self._published_value = b""
        self._published_urgent: object = None
        self._publish_lock = trio.Lock()
        """Serializes updates, so that the newest value is the last one stored."""
        self.lease = 0
        """The lease, which may also hold other temporary keys of this node; 0 if there is none now."""

    @property
    def is_held(self) -> bool:
        """Whether the lease is held, as far as this node can determine.

        A node without connection to the metadata store receives no notice that its lease expired.
        """
        return self.lease != 0 and trio.current_time() < self._renewed_at + self._lease_s

    async def register(self) -> None:
        """Acquire a lease and register.

        Raises:
            ForeignData: The guard does not hold, because the cookie has changed.
            QuorumUnreachable: No metadata quorum answered. Also if the outcome is unknown: a lease that is
                not renewed expires.
        """
        while True:
            self._renewed_at = trio.current_time()
            try:
                lease = await self._metadata.grant_lease(int(self._lease_s * 1000))
                await self._publish(lease)
            except LeaseExpired:
                continue  # it expired before it was used, because this process stalled
            except OutcomeUnknown as error:
                raise QuorumUnreachable(f"the registration failed: {error}") from error
            self.lease = lease
            return

    async def run(self) -> None:
        """Renew the lease until cancelled, and register again after it is lost.

        Raises:
            ForeignData: The guard does not hold, because the cookie has changed.
        """
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
            except DistributedLogError as error:  # no quorum: the lease may or may not be alive
                log.warning("the registration was not renewed: %s: %s", type(error).__name__, error)
                wait_s = 0.5
                continue
            wait_s = self._lease_s / RENEWALS_A_LEASE

    async def update(self) -> None:
        """Publish changes now, for a client that waits for them.

        Raises:
            ForeignData: The guard does not hold, because the cookie has changed.
            LeaseExpired: The lease has expired.
        """
        if self.lease and self._get_value() != self._published_value:
            await self._publish(self.lease)

    async def update_on_change(self, wait_for_change: Callable[[], Awaitable[object]]) -> None:
        """Publish urgent changes whenever ``wait_for_change`` returns, until cancelled.

        A change that cannot be published now is published with a renewal.

        Raises:
            ForeignData: The guard does not hold, because the cookie has changed.
        """
        while True:
            if self._get_urgent() == self._published_urgent:
                await wait_for_change()
            try:
                await self.update()
            except ForeignData:
                raise
            except DistributedLogError as error:
                log.info("a change was not published at once: %s: %s", type(error).__name__, error)
            await trio.sleep(BETWEEN_UPDATES_S)

    async def deregister(self) -> None:
        """Revoke the lease at a clean end, within `DEREGISTER_S`. If this fails, the lease expires."""
        if not self.lease:
            return
        lease, self.lease = self.lease, 0
        with trio.CancelScope(shield=True, deadline=trio.current_time() + DEREGISTER_S) as scope:
            try:
                await self._metadata.revoke_lease(lease)
            except DistributedLogError as error:
                log.info("the registration was not removed: %s", error)
        if scope.cancelled_caught:
            log.info("the registration was not removed: no answer within %g s", DEREGISTER_S)

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
                    "another process started with a copy of this node's directory, or the node was"
                    " decommissioned"
                )
            self._published_value, self._published_urgent = value, urgent
