"""Connections to all live bookies, one per bookie, for all ledgers of a process.

The pool is level-triggered. It lists and watches the registrations, and repeatedly corrects every
difference between them and its connections. A bookie whose registration ended keeps its connection while
that works. Leases show new bookies, but do not prove that a bookie failed, because the metadata may be
unavailable while bookies serve.

Ensembles contain bookie IDs. The address of an ID is looked up here. The bookie that answers must have this
ID (H6), also in its certificate (H227).
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial

import trio

from ...bookie.client.bookie_client import BookieClient
from ...bookie.client.capability_cache import CapabilityCache, RequestCapabilities
from ...metadata.client.metadata_client import MetadataClient
from ...metadata.client.range_watch import follow_range
from ...metadata.model.acl_records import MODE_KEY, decode_mode
from ...metadata.model.interface import Metadata, Scan, WatchBatch, prefix_end
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import (
    ConnectionLost,
    CorruptData,
    DistributedLogError,
    NotAuthenticated,
    QuorumUnreachable,
    UnsupportedFormat,
)
from ...runtime.interfaces.host import Address
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.interfaces.principals import BOOKIE, Credentials
from ...runtime.net.rpc import Endpoint
from ...runtime.primitives.backoff import Backoff
from ...runtime.protocol.frames import Op
from ...runtime.protocol.tokens import METHOD as TOKEN
from ..model import ledger_keys as keys
from ..model.bookie_registration import BookieRegistration
from ..model.stored_ledger import UnreadableRecords
from .ensemble_placement import Candidate, ensemble_candidates
from .placement_policy import PlacementPolicy

REDIAL_MIN_S = 0.05
REDIAL_MAX_S = 1.0
DIAL_S = 5.0
RETRY_S = 0.5
CREDENTIAL_TIMEOUT_S = 5.0
PASS, NONE = "pass", "none"
"""Methods of an AUTH message."""
WATCH_UNIT = "the watch of bookies"
UNREGISTERED_S = 30.0
"""No ledger should stay open on a bookie that is not registered for this time, in seconds."""

log = get_logger("distributedlog.ledger")

OnKeyChange = Callable[[bytes, bytes | None], None]
"""Receives a key and its value, or None if the key was deleted."""


class BookiePool:
    """Keeps the connections while `run` runs. All other methods except `connected` are synchronous."""

    def __init__(
        self,
        endpoint: Endpoint,
        metadata: Metadata,
        listener: str = "",
        *,
        request_capabilities: RequestCapabilities | None = None,
    ) -> None:
        """Create a pool. `run` connects it.

        Args:
            endpoint: The endpoint that opens the connections.
            metadata: The metadata store with the registrations.
            listener: The name of the listener through which this process connects.
            request_capabilities: Sends a META_CAPS request to the metadata leader. If it is None, the pool
                sends stored keys to bookies.
        """
        self._endpoint = endpoint
        self._metadata = metadata
        self._listener = listener
        self._registered: dict[str, BookieRegistration] = {}
        self._known_bookies: dict[str, None] = {}
        self._leaving_bookies: dict[str, None] = {}
        self._unregistered_at: dict[str, float] = {}
        """When the registration of each known but unregistered bookie ended, as observed here."""
        self.limbo_below: dict[str, int] = {}
        """Bookies that lost data, by ID: ledgers with an ID below the value should be closed
        (`bookie_registration.py`)."""
        self._registered_since: dict[str, tuple[int, float]] = {}
        """The revision at which each registration began, and when that was observed here."""
        self._labels: dict[str, Mapping[str, str]] = {}
        self.placement = PlacementPolicy()
        """The cluster's placement policy as last read; the default policy until it was read."""
        self._placement_error: DistributedLogError | None = QuorumUnreachable("not listed yet")
        """Why the placement policy was never read; None if it was read at least once."""
        self._clients: dict[str, BookieClient] = {}
        self._anonymous_at: dict[str, None] = {}
        """Bookies to which this client is connected unauthenticated, because it has a token but had no
        pass."""
        self._first_dials: dict[str, trio.Event] = {}
        self._listeners: list[Callable[[], None]] = []
        self._changed = trio.Event()
        self._unreadable_records = UnreadableRecords()
        self.capabilities = CapabilityCache(request_capabilities, self._on_capabilities)

    # --- what there is ----------------------------------------------------------------------------

    def get(self, bookie_id: str) -> BookieClient | None:
        """Return the connection to a bookie; None if there is none now."""
        client = self._clients.get(bookie_id)
        return client if client is not None and client.close_error is None else None

    def live(self) -> list[BookieRegistration]:
        """Return the registered and connected bookies in order of ID, including read-only ones."""
        return [
            registration
            for _, registration in sorted(self._registered.items())
            if self.get(registration.id) is not None
        ]

    def candidates(self) -> list[Candidate]:
        """Return the bookies for slots: registered, connected, writable and not being decommissioned."""
        return [
            Candidate(registration.id, registration.where(), free_bytes=registration.free_bytes)
            for registration in self.live()
            if not registration.read_only and registration.id not in self._leaving_bookies
        ]

    def ensemble_candidates(self) -> list[Candidate]:
        """Return all bookies that a new ledger's ensemble can name (`ensemble_candidates`)."""
        return ensemble_candidates(
            self.live(), self.known_ids(), self._leaving_bookies, self.labels
        )

    def is_writable(self, bookie_id: str) -> bool:
        """Whether a bookie is writable and not being decommissioned, according to its registration."""
        registration = self.registration(bookie_id)
        read_only = registration is not None and registration.read_only
        return not read_only and bookie_id not in self._leaving_bookies

    def known_ids(self) -> list[str]:
        """Return the IDs of all bookies with a cookie or a registration, live or not, in order."""
        return sorted({*self._known_bookies, *self._registered})

    def is_leaving(self, bookie_id: str) -> bool:
        """Whether the bookie is being decommissioned."""
        return bookie_id in self._leaving_bookies

    def bookies_to_leave(self) -> set[str]:
        """Return the bookies on which no ledger should stay open.

        They are being decommissioned, or have not been registered for `UNREGISTERED_S`.
        """
        unregistered_before = trio.current_time() - UNREGISTERED_S
        return {
            *self._leaving_bookies,
            *(
                bookie
                for bookie, since in self._unregistered_at.items()
                if since <= unregistered_before
            ),
        }

    def registered_since(self, bookie_id: str) -> float:
        """Return since when a bookie has been registered without a gap, by trio's clock, as observed here.

        A reader that read a ledger's record before that time must read it again. Entries that only this
        bookie stores may have been declared lost while it was away (H103).
        """
        return self._registered_since.get(bookie_id, (0, float("-inf")))[1]

    def registration(self, bookie_id: str) -> BookieRegistration | None:
        """Return the last registration of a bookie; None if its lease ended."""
        return self._registered.get(bookie_id)

    def labels(self, bookie_id: str) -> Mapping[str, str]:
        """Return the labels of a bookie, or those that it had when it was last registered."""
        return self._labels.get(bookie_id, {})

    def required_placement(self) -> PlacementPolicy:
        """Return `placement` for new ledgers and for moves that only the policy requires.

        Raises:
            CorruptData: The policy was never readable, so it may be enforced.
            UnsupportedFormat: The policy is of a newer version and was never readable.
            QuorumUnreachable: The policy was not read yet.
        """
        if self._placement_error is not None:
            raise self._placement_error.again(
                f"the placement policy cannot be read: {self._placement_error} (set all of it again with"
                " dlog placement, or remove it with dlog placement --reset)"
            )
        return self.placement

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` after each change of registrations or connections.

        Returns:
            A function that stops this.
        """
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    def defer_sends(self) -> None:
        """Hold back what is sent to bookies until `send_deferred`.

        The caller must call it before it blocks.
        """
        for client in self._clients.values():
            client.link.defer_sends()

    def send_deferred(self) -> None:
        """Send what `defer_sends` held back, in one call per bookie."""
        for client in self._clients.values():
            client.link.send_deferred()

    async def connected(self, bookie_id: str, timeout_s: float) -> BookieClient:
        """Return the connection to a bookie, and wait for it if necessary.

        Raises:
            ConnectionLost: There is no connection after ``timeout_s``.
        """
        client = self.get(bookie_id)
        if client is None:
            with trio.move_on_after(timeout_s):
                while client is None:
                    await self._changed.wait()
                    client = self.get(bookie_id)
        if client is None:
            raise ConnectionLost(f"no connection to bookie {bookie_id}")
        return client

    # --- tasks ------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the registrations and keep the connections until cancelled.

        The pool has started when the registrations are read and each bookie was dialed once, or `DIAL_S`
        has passed.
        """
        async with trio.open_nursery() as nursery:
            on_registration = partial(self._on_registration, nursery)
            keep_started = self._endpoint.failures.keep_running_started
            await nursery.start(
                keep_started, WATCH_UNIT, self._watch_prefix, keys.COOKIE_PREFIX, self._on_cookie
            )
            await nursery.start(
                keep_started, WATCH_UNIT, self._watch_prefix, keys.LEAVING_PREFIX, self._on_leaving
            )
            await nursery.start(
                keep_started, WATCH_UNIT, self._watch_prefix, keys.PLACEMENT, self._on_placement
            )
            if self.capabilities.can_request:
                keep = self._endpoint.failures.keep_running
                nursery.start_soon(keep, "the requests for capabilities", self.capabilities.run)
                await nursery.start(
                    keep_started, WATCH_UNIT, self._watch_prefix, MODE_KEY, self._on_mode
                )
            await nursery.start(
                keep_started, WATCH_UNIT, self._watch_prefix, keys.BOOKIE_PREFIX, on_registration
            )
            with trio.move_on_after(DIAL_S):
                for first_try in list(self._first_dials.values()):
                    await first_try.wait()
            task_status.started()

    async def _watch_prefix(
        self,
        prefix: bytes,
        on_change: OnKeyChange,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        await follow_range(
            self._metadata,
            prefix,
            prefix_end(prefix),
            load=partial(self._load, prefix, on_change),
            apply=partial(self._apply, on_change),
            on_error=lambda error: log.info("registrations of bookies cannot be read: %s", error),
            retry_s=RETRY_S,
            task_status=task_status,
        )

    async def _load(self, prefix: bytes, on_change: OnKeyChange) -> int:
        """Process all keys of a prefix, then remove cached ones that no longer exist.

        Returns:
            The revision.
        """
        listed_keys: dict[bytes, None] = {}
        scan = Scan(self._metadata, prefix)
        async for item in scan:
            listed_keys[item.key] = None
            self._record_registered_since(item)
            on_change(item.key, item.value)
        known_by_prefix: dict[bytes, Collection[str]] = {
            keys.BOOKIE_PREFIX: self._registered,
            keys.COOKIE_PREFIX: self._known_bookies,
            keys.LEAVING_PREFIX: self._leaving_bookies,
        }
        for bookie_id in list(known_by_prefix.get(prefix, ())):
            if prefix + bookie_id.encode() not in listed_keys:
                on_change(prefix + bookie_id.encode(), None)
        if prefix in (keys.PLACEMENT, MODE_KEY) and prefix not in listed_keys:
            on_change(prefix, None)
        self._notify_change()
        return scan.revision

    def _apply(self, on_change: OnKeyChange, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.kind == "put":
                self._record_registered_since(event.item)
            on_change(event.item.key, event.item.value if event.kind == "put" else None)
        self._notify_change()

    def _record_registered_since(self, item: KeyValue) -> None:
        """Record when a registration began, including one that began while the watch was interrupted."""
        if item.key.startswith(keys.BOOKIE_PREFIX):
            bookie_id = item.key.removeprefix(keys.BOOKIE_PREFIX).decode(errors="replace")
            if self._registered_since.get(bookie_id, (0, 0.0))[0] != item.create_revision:
                self._registered_since[bookie_id] = (item.create_revision, trio.current_time())

    def _id_of(self, key: bytes) -> str | None:
        """Return the bookie of a key; None for an invalid key, which is logged."""
        try:
            return keys.bookie_id_of(key)
        except CorruptData as error:
            self._unreadable_records.log_once(key, error)
            return None

    def _on_cookie(self, key: bytes, value: bytes | None) -> None:
        bookie_id = self._id_of(key)
        if bookie_id is None:
            return
        if value is None:
            self._known_bookies.pop(bookie_id, None)
            self._unregistered_at.pop(bookie_id, None)
        else:
            self._known_bookies[bookie_id] = None
            if bookie_id not in self._registered:
                self._unregistered_at.setdefault(bookie_id, trio.current_time())

    def _on_leaving(self, key: bytes, value: bytes | None) -> None:
        bookie_id = self._id_of(key)
        if bookie_id is None:
            return
        if value is None:
            self._leaving_bookies.pop(bookie_id, None)
        else:
            self._leaving_bookies[bookie_id] = None

    def _on_placement(self, key: bytes, value: bytes | None) -> None:
        if key != keys.PLACEMENT:
            return
        try:
            self.placement = PlacementPolicy() if value is None else PlacementPolicy.decode(value)
        except (CorruptData, UnsupportedFormat) as error:
            self._unreadable_records.log_once(key, error)  # the previous policy remains
            if self._placement_error is not None:
                self._placement_error = error
        else:
            self._placement_error = None

    def _on_mode(self, key: bytes, value: bytes | None) -> None:
        if key != MODE_KEY:
            return
        try:
            self.capabilities.set_mode(decode_mode(value))
        except CorruptData as error:
            self._unreadable_records.log_once(key, error)  # the previous mode remains
        if self.capabilities.active:
            self._redial_anonymous()

    def _on_capabilities(self) -> None:
        """Process a reply of the leader to a request for capabilities.

        It may contain a pass that was missing before, because the leader was unavailable.
        """
        if self.capabilities.session_credential:
            self._redial_anonymous()
        self._notify_change()

    def _redial_anonymous(self) -> None:
        """Reconnect to bookies that this client reached without a pass.

        Capabilities are for one principal, which these bookies did not authenticate.
        """
        for client in [self.get(bookie_id) for bookie_id in list(self._anonymous_at)]:
            if client is not None:
                client.link.close(ConnectionLost("connected again, with a pass"))

    def _on_registration(self, nursery: trio.Nursery, key: bytes, value: bytes | None) -> None:
        bookie_id = self._id_of(key)
        if bookie_id is None:
            return
        try:
            registration = None if value is None else BookieRegistration.decode(key, value)
        except (CorruptData, UnsupportedFormat) as error:
            self._unreadable_records.log_once(key, error)
            return
        if registration is None:
            if self._registered.pop(bookie_id, None) is not None:
                self._unregistered_at[bookie_id] = trio.current_time()
                self.limbo_below.pop(bookie_id, None)
            return
        self._unregistered_at.pop(bookie_id, None)
        self._registered[bookie_id] = registration
        if registration.limbo_below:
            self.limbo_below[bookie_id] = registration.limbo_below
        else:
            self.limbo_below.pop(bookie_id, None)
        self._labels[bookie_id] = registration.where()
        if bookie_id not in self._first_dials:
            self._first_dials[bookie_id] = trio.Event()
            nursery.start_soon(
                self._keep_connected, bookie_id, self._first_dials[bookie_id], nursery
            )

    async def _keep_connected(
        self, bookie_id: str, first_dial: trio.Event, nursery: trio.Nursery
    ) -> None:
        """Dial while the bookie is registered, and again whenever its connection ends."""
        unit = f"the connection to bookie {bookie_id}"
        try:
            await self._endpoint.failures.keep_running(
                unit, self._dial_loop, bookie_id, first_dial, nursery
            )
        finally:
            first_dial.set()
            self._first_dials.pop(bookie_id, None)

    async def _dial_loop(
        self, bookie_id: str, first_dial: trio.Event, nursery: trio.Nursery
    ) -> None:
        backoff = Backoff(REDIAL_MIN_S, REDIAL_MAX_S)
        while True:
            registration = self._registered.get(bookie_id)
            if registration is None and self.get(bookie_id) is None:
                return  # a new registration starts a new task
            if registration is not None:
                address = registration.address(self._listener)
                if address is not None and await self._dial(registration, address, nursery):
                    backoff.reset()
                    first_dial.set()
                    await self._wait_until_closed(bookie_id)
                    continue
            first_dial.set()
            with trio.move_on_after(backoff.next_s(self._endpoint.host.random.random())):
                await self._wait_until_moved(bookie_id, registration)

    async def _dial(
        self, registration: BookieRegistration, address: Address, nursery: trio.Nursery
    ) -> bool:
        bookie_id = registration.id
        try:
            link = await self._endpoint.dial(
                address,
                expected_node_id=bookie_id,
                listener=self._listener,
                nursery=nursery,
                credentials=await self._credentials(bookie_id, address),
                kind=BOOKIE,
                principal=registration.principal,
            )
        except NotAuthenticated as error:
            self.capabilities.discard_credential()
            log.info("bookie %s at %s:%d: %s", bookie_id, *address, error)
            return False
        except DistributedLogError as error:
            log.debug("bookie %s at %s:%d: %s", bookie_id, *address, error)
            return False
        client = BookieClient(link, bookie_id, self.capabilities)
        client.on_closed.append(lambda _: self._notify_change())
        self._clients[bookie_id] = client
        self._notify_change()
        return True

    async def _credentials(self, bookie_id: str, address: Address) -> Credentials | None:
        """Return the credentials for a bookie; None to use those of the host.

        A token is sent to the metadata quorum only, so a session credential replaces it here. Without one,
        the connection is anonymous.
        """
        self._anonymous_at.pop(bookie_id, None)
        host_credentials = self._endpoint.host.credentials(address)
        if host_credentials is None or host_credentials.method != TOKEN:
            return None
        session_credential = await self.capabilities.wait_for_credential(CREDENTIAL_TIMEOUT_S)
        if session_credential:
            return Credentials(PASS, lambda context: session_credential)
        self._anonymous_at[bookie_id] = None
        return Credentials(NONE, lambda context: b"")

    async def _wait_until_closed(self, bookie_id: str) -> None:
        while self.get(bookie_id) is not None:
            await self._changed.wait()

    async def _wait_until_moved(self, bookie_id: str, previous: BookieRegistration | None) -> None:
        """Return when the bookie registers with other addresses, so that the next dial need not wait."""
        while True:
            await self._changed.wait()
            registration = self._registered.get(bookie_id)
            if registration is not None and (
                previous is None or registration.addresses != previous.addresses
            ):
                return

    def _notify_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        for callback in list(self._listeners):
            callback()


def make_pool(endpoint: Endpoint, metadata: MetadataClient) -> BookiePool:
    """Create a pool. It uses capabilities from the metadata leader if the cluster requires them."""

    async def ask(request: bytes) -> memoryview:
        return (await metadata.request(Op.META_CAPS, request)).body

    return BookiePool(endpoint, metadata, metadata.listener, request_capabilities=ask)
