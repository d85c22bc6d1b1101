"""Which proxies there are, as their registrations say: listed, then watched."""

from collections.abc import Callable

import trio

from ...metadata.model.interface import Metadata, Scan, prefix_end
from ...runtime.interfaces.errors import (
    Compacted,
    CorruptData,
    DistributedLogError,
    UnsupportedFormat,
)
from ...runtime.interfaces.log_lines import get_logger
from ..protocol.proxy_messages import MEMBERS_MAX, MemberRow
from .proxy_registration import PREFIX, READ, WRITE, ProxyRegistration

RELIST_DELAY_S = 0.5

log = get_logger("distributedlog.proxy")


class ProxyMembers:
    """See the module. `run` serves it; it stays as it was while the metadata is away."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._registrations: dict[bytes, ProxyRegistration] = {}
        self._callbacks: list[Callable[[], None]] = []

    @property
    def write(self) -> dict[str, ProxyRegistration]:
        """The write proxies, by id."""
        return {
            registration.id: registration
            for registration in self._registrations.values()
            if registration.kind == WRITE
        }

    @property
    def read(self) -> dict[str, ProxyRegistration]:
        """The read proxies, by id."""
        return {
            registration.id: registration
            for registration in self._registrations.values()
            if registration.kind == READ
        }

    def rows(self, listener: str) -> list[MemberRow]:
        """For a client that came in on this listener."""
        member_rows = []
        for _, registration in sorted(self._registrations.items())[:MEMBERS_MAX]:
            address = registration.address(listener)
            if address is not None:
                member_rows.append(
                    MemberRow(registration.kind, registration.id, *address, registration.accepting)
                )
        return member_rows

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` after each change; return how to stop that."""
        self._callbacks.append(callback)

        def stop() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return stop

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the registrations until cancelled. Started when they were listed once."""
        started = False
        while True:
            try:
                revision = await self._list()
                if not started:
                    started = True
                    task_status.started()
                async with self._metadata.watch(
                    PREFIX, prefix_end(PREFIX), after_revision=revision
                ) as watch:
                    while True:
                        for event in (await watch.next_batch()).events:
                            put = event.kind == "put"
                            self._update(event.item.key, event.item.value if put else None)
                        self._notify()
            except Compacted:
                continue
            except DistributedLogError as error:
                log.info("proxies cannot be listed now: %s", error)
                await trio.sleep(RELIST_DELAY_S)

    async def _list(self) -> int:
        scan = Scan(self._metadata, PREFIX)
        listed_keys = set()
        async for item in scan:
            listed_keys.add(item.key)
            self._update(item.key, item.value)
        for key in self._registrations.keys() - listed_keys:
            del self._registrations[key]
        self._notify()
        return scan.revision

    def _update(self, key: bytes, value: bytes | None) -> None:
        self._registrations.pop(key, None)
        if value is not None:
            try:
                self._registrations[key] = ProxyRegistration.decode(key, value)
            except (CorruptData, UnsupportedFormat) as error:
                log.warning("%s: it is passed over", error)

    def _notify(self) -> None:
        for callback in list(self._callbacks):
            callback()
