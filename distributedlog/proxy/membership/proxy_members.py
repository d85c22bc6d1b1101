"""The registered proxies."""

from collections.abc import Callable

import trio

from ...metadata.client.range_watch import follow_range
from ...metadata.model.interface import Metadata, Scan, WatchBatch, prefix_end
from ...runtime.interfaces.errors import CorruptData, UnsupportedFormat
from ...runtime.interfaces.log_lines import get_logger
from ..protocol.proxy_messages import MEMBERS_MAX, MemberRow
from .proxy_registration import PREFIX, READ, WRITE, ProxyRegistration

RETRY_S = 0.5

log = get_logger("distributedlog.proxy")


class ProxyMembers:
    """Follow the registrations of proxies.

    `run` must be running. While no metadata quorum answers, the last known registrations remain.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._registrations: dict[bytes, ProxyRegistration] = {}
        self._callbacks: list[Callable[[], None]] = []

    @property
    def write(self) -> dict[str, ProxyRegistration]:
        """The write proxies, by ID."""
        return {
            registration.id: registration
            for registration in self._registrations.values()
            if registration.kind == WRITE
        }

    @property
    def read(self) -> dict[str, ProxyRegistration]:
        """The read proxies, by ID."""
        return {
            registration.id: registration
            for registration in self._registrations.values()
            if registration.kind == READ
        }

    def rows(self, listener: str) -> list[MemberRow]:
        """Return the proxies for a client, with their addresses for the listener that it uses."""
        member_rows = []
        for _, registration in sorted(self._registrations.items())[:MEMBERS_MAX]:
            address = registration.address(listener)
            if address is not None:
                member_rows.append(
                    MemberRow(registration.kind, registration.id, *address, registration.accepting)
                )
        return member_rows

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` after each change. Return a function that ends this."""
        self._callbacks.append(callback)

        def stop() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return stop

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the registrations until cancelled. The task has started when they were read once."""
        await follow_range(
            self._metadata,
            PREFIX,
            prefix_end(PREFIX),
            load=self._load,
            apply=self._apply,
            on_error=lambda error: log.info("registrations of proxies cannot be read: %s", error),
            retry_s=RETRY_S,
            task_status=task_status,
        )

    async def _load(self) -> int:
        scan = Scan(self._metadata, PREFIX)
        listed_keys = set()
        async for item in scan:
            listed_keys.add(item.key)
            self._update(item.key, item.value)
        for key in self._registrations.keys() - listed_keys:
            del self._registrations[key]
        self._notify()
        return scan.revision

    def _apply(self, batch: WatchBatch) -> None:
        for event in batch.events:
            self._update(event.item.key, event.item.value if event.kind == "put" else None)
        self._notify()

    def _update(self, key: bytes, value: bytes | None) -> None:
        self._registrations.pop(key, None)
        if value is not None:
            try:
                self._registrations[key] = ProxyRegistration.decode(key, value)
            except (CorruptData, UnsupportedFormat) as error:
                log.warning("%s: this registration is ignored", error)

    def _notify(self) -> None:
        for callback in list(self._callbacks):
            callback()
