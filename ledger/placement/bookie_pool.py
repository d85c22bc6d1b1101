"""Connections to all live bookies, one each, for all ledgers of a process.

Level-triggered: the registrations are listed and watched, and what differs from the connections is put
right, again and again. A bookie whose registration is gone keeps its connection while that works: leases
say who is new, not who is dead (metadata may be away while bookies serve). Ensembles hold ids; an id is
looked up here and the bookie that answers must be it (H6), also by its certificate (H227).
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial

import trio

from ...bookie.client.bookie_client import BookieClient
from ...bookie.client.capability_cache import Ask, ClientKeys
from ...metadata.client.metadata_client import MetadataClient
from ...metadata.model.acl_records import MODE_KEY, decode_mode
from ...metadata.model.interface import Metadata, Scan, WatchBatch, prefix_end
from ...metadata.model.transaction import KeyValue
from ...runtime.interfaces.errors import (
    Compacted,
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
from ..model.stored_ledger import Unreadable
from .ensemble_placement import Candidate, ensemble_candidates
from .placement_policy import PlacementPolicy

REDIAL_FIRST_S = 0.05
REDIAL_LONGEST_S = 1.0
DIAL_S = 5.0
RELIST_S = 0.5
PASS_S = 5.0
PASS, NONE = "pass", "none"
"""Methods of AUTH."""
FOLLOWS = "the watch of bookies"
GONE_S = 30.0
"""Not registered for so long: nothing should stay open on it."""

log = get_logger("distributedlog.ledger")

Take = Callable[[bytes, bytes | None], None]
"""Gets a key and its value; None: the key is gone."""


class BookiePool:
    """See the module. `run` serves it; everything else is synchronous but `connected`."""

    def __init__(
        self,
        endpoint: Endpoint,
        metadata: Metadata,
        listener: str = "",
        *,
        ask_capabilities: Ask | None = None,
    ) -> None:
        """``ask_capabilities``: a META_CAPS to the leader; without it stored keys are shown to bookies."""
        self._endpoint = endpoint
        self._metadata = metadata
        self._listener = listener
        self._registered: dict[str, BookieRegistration] = {}
        self._known: dict[str, None] = {}
        self._leaving: dict[str, None] = {}
        self._gone_at: dict[str, float] = {}
        """Known and not registered, since when, as far as it was seen here."""
        self.limbo_below: dict[str, int] = {}
        """Of those that say that they lost data: ledgers with a lower id are to end
        (`bookie_registration.py`)."""
        self._came: dict[str, tuple[int, float]] = {}
        """The revision that each registration began with, and when that was seen here."""
        self._labels: dict[str, Mapping[str, str]] = {}
        self.placement = PlacementPolicy()
        """How far apart copies are to be, as the cluster's settings say now, as far as they could be read."""
        self._placement_unread: DistributedLogError | None = QuorumUnreachable("not listed yet")
        """Why they never were; None: they were read once at least."""
        self._clients: dict[str, BookieClient] = {}
        self._nameless: dict[str, None] = {}
        """Bookies that do not know us, for we have a token, and had no pass."""
        self._wanted: dict[str, trio.Event] = {}
        self._listeners: list[Callable[[], None]] = []
        self._changed = trio.Event()
        self._unreadable = Unreadable()
        self.shown_keys = ClientKeys(ask_capabilities, self._on_keys)

    # --- what there is ----------------------------------------------------------------------------

    def get(self, bookie_id: str) -> BookieClient | None:
        """The connection to a bookie; None when there is none now."""
        client = self._clients.get(bookie_id)
        return client if client is not None and client.closed is None else None

    def live(self) -> list[BookieRegistration]:
        """Bookies that are registered and connected, read-only ones included, by id."""
        return [one for _, one in sorted(self._registered.items()) if self.get(one.id) is not None]

    def candidates(self) -> list[Candidate]:
        """Who may be chosen for a slot now: registered, connected, writable, and not to leave."""
        return [
            Candidate(one.id, one.where(), free_bytes=one.free_bytes)
            for one in self.live()
            if not one.read_only and one.id not in self._leaving
        ]

    def ensemble_candidates(self) -> list[Candidate]:
        """Return all bookies that a new ledger's ensemble can name (`placement.ensemble_candidates`)."""
        return ensemble_candidates(self.live(), self.known(), self._leaving, self.labels)

    def takes_entries(self, bookie_id: str) -> bool:
        """Whether a bookie is writable and stays, as far as its registration is known."""
        registration = self.registration(bookie_id)
        read_only = registration is not None and registration.read_only
        return not read_only and bookie_id not in self._leaving

    def known(self) -> list[str]:
        """The ids of all bookies that have a cookie or a registration, alive or not, in order."""
        return sorted({*self._known, *self._registered})

    def leaving(self, bookie_id: str) -> bool:
        """Is it to leave?"""
        return bookie_id in self._leaving

    def unwanted(self) -> set[str]:
        """On whom nothing should stay open: who is to leave, or has not been registered for `GONE_S`."""
        before = trio.current_time() - GONE_S
        return {*self._leaving, *(one for one, since in self._gone_at.items() if since <= before)}

    def came_at(self, bookie_id: str) -> float:
        """By trio's clock, from when on a bookie has been registered without a gap, as was seen here.

        Who read a ledger's record before that reads it anew: what only that bookie had may have been
        declared lost while it was away (H103).
        """
        return self._came.get(bookie_id, (0, float("-inf")))[1]

    def registration(self, bookie_id: str) -> BookieRegistration | None:
        """What a bookie last said of itself; None when its lease is gone."""
        return self._registered.get(bookie_id)

    def labels(self, bookie_id: str) -> Mapping[str, str]:
        """Where a bookie stands, or stood when it was last seen here."""
        return self._labels.get(bookie_id, {})

    def required_placement(self) -> PlacementPolicy:
        """`placement`, for who may do without: makes a new ledger, or moves copies because of it alone.

        Raises `CorruptData`, `UnsupportedFormat` where it could never be read: it may be enforced.
        """
        if self._placement_unread is not None:
            raise self._placement_unread.again(
                f"how far apart copies are to be is not known: {self._placement_unread} (set it anew, all of"
                " it, with dlog placement, or forget it with dlog placement --default)"
            )
        return self.placement

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` after each change of who is there or connected; return how to stop that."""
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    def gather(self) -> None:
        """What is sent from now on waits for `send_gathered`, which follows before anyone waits."""
        for client in self._clients.values():
            client.link.gather()

    def send_gathered(self) -> None:
        """Send what was gathered, to each bookie in one call."""
        for client in self._clients.values():
            client.link.send_gathered()

    async def connected(self, bookie_id: str, timeout_s: float) -> BookieClient:
        """The connection to a bookie, waited for if need be. Raises `ConnectionLost` after ``timeout_s``."""
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
        """Follow the registrations and keep the connections, until cancelled.

        Started when the registrations are known and each bookie was dialled once, or `DIAL_S` is over.
        """
        async with trio.open_nursery() as nursery:
            take_registration = partial(self._take_registration, nursery)
            keep_started = self._endpoint.failures.keep_started
            await nursery.start(
                keep_started, FOLLOWS, self._follow, keys.COOKIE_PREFIX, self._take_cookie
            )
            await nursery.start(
                keep_started, FOLLOWS, self._follow, keys.LEAVING_PREFIX, self._take_leaving
            )
            await nursery.start(
                keep_started, FOLLOWS, self._follow, keys.PLACEMENT, self._take_placement
            )
            if self.shown_keys.can_ask:
                keep = self._endpoint.failures.keep
                nursery.start_soon(keep, "the question for capabilities", self.shown_keys.run)
                await nursery.start(keep_started, FOLLOWS, self._follow, MODE_KEY, self._take_mode)
            await nursery.start(
                keep_started, FOLLOWS, self._follow, keys.BOOKIE_PREFIX, take_registration
            )
            with trio.move_on_after(DIAL_S):
                for first_try in list(self._wanted.values()):
                    await first_try.wait()
            task_status.started()

    async def _follow(
        self,
        prefix: bytes,
        take: Take,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        end = prefix_end(prefix)
        started = False
        while True:
            try:
                revision = await self._list(prefix, take)
                if not started:
                    started = True
                    task_status.started()
                async with self._metadata.watch(prefix, end, after_revision=revision) as watch:
                    while True:
                        self._take_batch(await watch.next(), take)
            except Compacted:
                continue
            except DistributedLogError as error:
                log.info("bookies cannot be listed now: %s", error)
                await trio.sleep(RELIST_S)

    async def _list(self, prefix: bytes, take: Take) -> int:
        """Take all that is there, then drop what is not; the revision to watch from."""
        there: dict[bytes, None] = {}
        scan = Scan(self._metadata, prefix)
        async for item in scan:
            there[item.key] = None
            self._note_beginning(item)
            take(item.key, item.value)
        had: dict[bytes, Collection[str]] = {
            keys.BOOKIE_PREFIX: self._registered,
            keys.COOKIE_PREFIX: self._known,
            keys.LEAVING_PREFIX: self._leaving,
        }
        for bookie_id in list(had.get(prefix, ())):
            if prefix + bookie_id.encode() not in there:
                take(prefix + bookie_id.encode(), None)
        if prefix in (keys.PLACEMENT, MODE_KEY) and prefix not in there:
            take(prefix, None)
        self._tell()
        return scan.revision

    def _take_batch(self, batch: WatchBatch, take: Take) -> None:
        for event in batch.events:
            if event.kind == "put":
                self._note_beginning(event.item)
            take(event.item.key, event.item.value if event.kind == "put" else None)
        self._tell()

    def _note_beginning(self, item: KeyValue) -> None:
        """Also of a bookie that went and came while nothing was seen here."""
        if item.key.startswith(keys.BOOKIE_PREFIX):
            bookie_id = item.key.removeprefix(keys.BOOKIE_PREFIX).decode(errors="replace")
            if self._came.get(bookie_id, (0, 0.0))[0] != item.create_revision:
                self._came[bookie_id] = (item.create_revision, trio.current_time())

    def _id_of(self, key: bytes) -> str | None:
        """The bookie of a key; None for a key that is none's, which is named."""
        try:
            return keys.bookie_id_of(key)
        except CorruptData as error:
            self._unreadable.note(key, error)
            return None

    def _take_cookie(self, key: bytes, value: bytes | None) -> None:
        bookie_id = self._id_of(key)
        if bookie_id is None:
            return
        if value is None:
            self._known.pop(bookie_id, None)
            self._gone_at.pop(bookie_id, None)
        else:
            self._known[bookie_id] = None
            if bookie_id not in self._registered:
                self._gone_at.setdefault(bookie_id, trio.current_time())

    def _take_leaving(self, key: bytes, value: bytes | None) -> None:
        bookie_id = self._id_of(key)
        if bookie_id is None:
            return
        if value is None:
            self._leaving.pop(bookie_id, None)
        else:
            self._leaving[bookie_id] = None

    def _take_placement(self, key: bytes, value: bytes | None) -> None:
        if key != keys.PLACEMENT:
            return
        try:
            self.placement = PlacementPolicy() if value is None else PlacementPolicy.decode(value)
        except (CorruptData, UnsupportedFormat) as error:
            self._unreadable.note(key, error)  # the one of before stays
            if self._placement_unread is not None:
                self._placement_unread = error
        else:
            self._placement_unread = None

    def _take_mode(self, key: bytes, value: bytes | None) -> None:
        if key != MODE_KEY:
            return
        try:
            self.shown_keys.take_mode(decode_mode(value))
        except CorruptData as error:
            self._unreadable.note(key, error)  # the one of before stays
        if self.shown_keys.active:
            self._show_pass()

    def _on_keys(self) -> None:
        """The leader has answered. A pass may come when somebody was dialled without: the leader was away."""
        if self.shown_keys.passport:
            self._show_pass()
        self._tell()

    def _show_pass(self) -> None:
        """What is shown from now on is one principal's: who does not know us is dialled again."""
        for client in [self.get(bookie_id) for bookie_id in list(self._nameless)]:
            if client is not None:
                client.link.close(ConnectionLost("connected again, with a pass"))

    def _take_registration(self, nursery: trio.Nursery, key: bytes, value: bytes | None) -> None:
        bookie_id = self._id_of(key)
        if bookie_id is None:
            return
        try:
            registration = None if value is None else BookieRegistration.decode(key, value)
        except (CorruptData, UnsupportedFormat) as error:
            self._unreadable.note(key, error)
            return
        if registration is None:
            if self._registered.pop(bookie_id, None) is not None:
                self._gone_at[bookie_id] = trio.current_time()
                self.limbo_below.pop(bookie_id, None)
            return
        self._gone_at.pop(bookie_id, None)
        self._registered[bookie_id] = registration
        if registration.limbo_below:
            self.limbo_below[bookie_id] = registration.limbo_below
        else:
            self.limbo_below.pop(bookie_id, None)
        self._labels[bookie_id] = registration.where()
        if bookie_id not in self._wanted:
            self._wanted[bookie_id] = trio.Event()
            nursery.start_soon(self._keep_connected, bookie_id, self._wanted[bookie_id], nursery)

    async def _keep_connected(
        self, bookie_id: str, tried: trio.Event, nursery: trio.Nursery
    ) -> None:
        """Dial while the bookie is registered, again whenever its connection ends."""
        unit = f"the connection to bookie {bookie_id}"
        try:
            await self._endpoint.failures.keep(unit, self._dial_again, bookie_id, tried, nursery)
        finally:
            tried.set()
            self._wanted.pop(bookie_id, None)

    async def _dial_again(self, bookie_id: str, tried: trio.Event, nursery: trio.Nursery) -> None:
        backoff = Backoff(REDIAL_FIRST_S, REDIAL_LONGEST_S)
        while True:
            registration = self._registered.get(bookie_id)
            if registration is None and self.get(bookie_id) is None:
                return  # a new registration starts a new task
            if registration is not None:
                address = registration.address(self._listener)
                if address is not None and await self._dial(registration, address, nursery):
                    backoff.reset()
                    tried.set()
                    await self._until_closed(bookie_id)
                    continue
            tried.set()
            with trio.move_on_after(backoff.next_s(self._endpoint.host.random.random())):
                await self._until_moved(bookie_id, registration)

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
            self.shown_keys.lose_pass()
            log.info("bookie %s at %s:%d: %s", bookie_id, *address, error)
            return False
        except DistributedLogError as error:
            log.debug("bookie %s at %s:%d: %s", bookie_id, *address, error)
            return False
        client = BookieClient(link, bookie_id, self.shown_keys)
        client.on_closed.append(lambda _: self._tell())
        self._clients[bookie_id] = client
        self._tell()
        return True

    async def _credentials(self, bookie_id: str, address: Address) -> Credentials | None:
        """What a bookie there is shown; None: what the host has for it. A token is for the quorum alone."""
        self._nameless.pop(bookie_id, None)
        own = self._endpoint.host.credentials(address)
        if own is None or own.method != TOKEN:
            return None
        passport = await self.shown_keys.have_pass(PASS_S)
        if passport:
            return Credentials(PASS, lambda meeting: passport)
        self._nameless[bookie_id] = None
        return Credentials(NONE, lambda meeting: b"")

    async def _until_closed(self, bookie_id: str) -> None:
        while self.get(bookie_id) is not None:
            await self._changed.wait()

    async def _until_moved(self, bookie_id: str, before: BookieRegistration | None) -> None:
        """Until the bookie registers elsewhere: then the next dial need not wait."""
        while True:
            await self._changed.wait()
            now = self._registered.get(bookie_id)
            if now is not None and (before is None or now.addresses != before.addresses):
                return

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        for callback in list(self._listeners):
            callback()


def pool_of(endpoint: Endpoint, metadata: MetadataClient) -> BookiePool:
    """One that shows capabilities where the cluster wants them; the quorum's leader gives them."""

    async def ask(question: bytes) -> memoryview:
        return (await metadata.ask(Op.META_CAPS, question)).body

    return BookiePool(endpoint, metadata, metadata.listener, ask_capabilities=ask)
