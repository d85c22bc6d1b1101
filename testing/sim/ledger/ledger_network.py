"""Bookies with faults, the links to them, and the store of one record, on the event heap of the ledger world.

A link delivers messages in order with any delay. When it breaks, some of the sent messages still arrive,
maybe much later. The store supports compare-and-set. It can freeze and lose its answers.
"""

import heapq
from collections.abc import Callable, Sequence
from random import Random

from ....ledger.model.ledger_metadata import LedgerMetadata
from ....ledger.model.striping import Striping
from ....ledger.placement.ensemble_placement import Candidate, choose_replacements
from ....runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    ProtocolError,
    RequestTimeout,
)
from ....runtime.interfaces.host import Buffer
from .ledger_model import ModelBookie, ModelStream

LEDGER = 7
KEY = b"0123456789abcdef"
NEVER = float("inf")


class SimBookie:
    """A model bookie and its present faults."""

    def __init__(self, bookie_id: str) -> None:
        self.id = bookie_id
        self.model = ModelBookie(bookie_id)
        self.down = False
        self.damaged = False
        self.hung_until = 0.0
        self.cut_off_until: dict[str, float] = {}


class LedgerNet:
    """Time and randomness of a world, its bookies and the links to them."""

    def __init__(self, random: Random, bookies: int) -> None:
        self.random = random
        self.now = 0.0
        self.healed = False
        self.trace: list[str] = []
        self.bookies = {f"b{n}": SimBookie(f"b{n}") for n in range(bookies)}
        self.links: dict[tuple[str, str], SimLink] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0

    # --- time and randomness ----------------------------------------------------------------------

    def call_after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Schedule an action."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._sequence, action))

    def run_until(self, end: float, is_done: Callable[[], bool]) -> None:
        """Run the scheduled actions in order, until time ``end`` or until ``is_done`` returns True."""
        while self._heap and self.now < end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
            if is_done():
                break

    def delay(self) -> float:
        """Return the travel time of a message: usually about a millisecond, sometimes up to 1.5 s."""
        roll = self.random.random()
        if self.healed or roll > 0.06:
            return 0.0005 + 0.001 * self.random.random()
        return self.random.random() * (0.05 if roll > 0.015 else 1.5)

    def record_event(self, line: str) -> None:
        """Add a line to the trace that a failing seed prints."""
        self.trace.append(f"{self.now:8.4f} {line}")

    # --- bookies ----------------------------------------------------------------------------------

    def link(self, client: str, bookie_id: str) -> "SimLink | None":
        """Return the live connection of a client to a bookie, or make one.

        Return None if that is impossible now.
        """
        link = self.links.get((client, bookie_id))
        if link is not None and link.closed is None:
            return link
        bookie = self.bookies[bookie_id]
        if bookie.down or self.now < bookie.cut_off_until.get(client, 0.0):
            return None
        link = self.links[client, bookie_id] = SimLink(self, client, bookie)
        return link

    def choose(
        self,
        striping: Striping,
        client: str,
        slots: list[int],
        kept_bookies: dict[int, str],
        excluded: list[str],
    ) -> dict[int, str]:
        """Choose bookies for these slots.

        Args:
            client: The client whose cut links are considered. "" has none.
        """
        candidates = [
            Candidate(b.id, is_unavailable=b.down or self.now < b.cut_off_until.get(client, 0.0))
            for b in self.bookies.values()
        ]
        return choose_replacements(
            striping, kept_bookies, slots, candidates, self.random.random, excluded=excluded
        )

    def stop(self, bookie: SimBookie, for_s: float) -> None:
        """Cut the power of a bookie for ``for_s`` seconds.

        Its connections end, and stored entries are kept.
        """
        bookie.down = True
        for link in list(self.links.values()):
            if link.bookie is bookie:
                link.break_(0.0)

        def start() -> None:
            bookie.down = False

        self.call_after(for_s, start)


class SimLink:
    """A connection that delivers in order with any delay. After a break, some sent messages still arrive."""

    def __init__(self, net: LedgerNet, client: str, bookie: SimBookie) -> None:
        self.net = net
        self.client = client
        self.bookie = bookie
        self.closed: DistributedLogError | None = None
        self._arrives_at = self._reply_arrives_at = 0.0
        self._lost_after = NEVER
        self._sinks: list[SimSink] = []
        self._requests: list[Callable[[DistributedLogError], None]] = []

    def break_(self, arrives_for_s: float) -> None:
        """Break the connection. Messages that arrive later than ``arrives_for_s`` from now are lost.

        The client receives the error at once.
        """
        if self.closed is not None:
            return
        self.closed = ConnectionLost(f"the connection to {self.bookie.id} broke")
        self._lost_after = self.net.now + arrives_for_s
        sinks, self._sinks = self._sinks, []
        requests, self._requests = self._requests, []
        for sink in sinks:
            sink.on_broken(self.closed)
        for fail_request in requests:
            fail_request(self.closed)

    def send(self, action: Callable[[], None]) -> None:
        """Send a message to the bookie. ``action`` runs on arrival."""
        net = self.net
        self._arrives_at = max(self._arrives_at, net.now + net.delay())

        def arrive() -> None:
            if net.now > self._lost_after or (self.bookie.down and self.closed is not None):
                return
            if net.now < self.bookie.hung_until:
                net.call_after(self.bookie.hung_until - net.now, arrive)
            else:
                action()

        net.call_after(self._arrives_at - net.now, arrive)

    def reply(self, action: Callable[[], None]) -> None:
        """Send a message to the client. ``action`` runs on arrival, unless the connection is broken."""
        net = self.net
        self._reply_arrives_at = max(self._reply_arrives_at, net.now + net.delay())

        def arrive() -> None:
            if self.closed is None:
                action()

        net.call_after(self._reply_arrives_at - net.now, arrive)

    def request(
        self,
        run_at_bookie: Callable[[], Callable[[], None]],
        on_failed: Callable[[DistributedLogError], None],
        timeout_s: float,
    ) -> None:
        """Send a request.

        Args:
            run_at_bookie: Runs at the bookie and returns the action that handles the answer at the client.
            on_failed: Called once with the error if the connection breaks or the answer is late.
            timeout_s: Seconds until the request fails with `RequestTimeout`.
        """
        if self.closed is not None:
            on_failed(self.closed)
            return
        is_done = False

        def fail(error: DistributedLogError) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                on_failed(error)

        def at_bookie() -> None:
            answer = run_at_bookie()

            def at_client() -> None:
                nonlocal is_done
                if not is_done:
                    is_done = True
                    self._requests.remove(fail)
                    answer()

            self.reply(at_client)

        def late() -> None:
            if not is_done:
                if fail in self._requests:
                    self._requests.remove(fail)
                fail(RequestTimeout(f"{self.bookie.id} did not answer"))

        self._requests.append(fail)
        self.send(at_bookie)
        self.net.call_after(timeout_s, late)

    def open_stream(
        self,
        ledger: int,
        key: bytes,
        *,
        recovery: bool,
        fragment_epoch: int,
        on_acked: Callable[[int], object],
        on_refused: Callable[[int, DistributedLogError], None],
        on_progress: Callable[[], None],
        on_broken: Callable[[Exception], None],
    ) -> "SimSink":
        """Open an add stream, as in `bookie/client/bookie_client.py`. Internal errors end the run."""
        sink = SimSink(self, ledger, key, recovery, on_acked, on_refused, on_progress)
        self._sinks.append(sink)
        return sink


class SimSink:
    """One add stream with both of its sides."""

    def __init__(
        self,
        link: SimLink,
        ledger: int,
        key: bytes,
        recovery: bool,
        on_acked: Callable[[int], object],
        on_refused: Callable[[int, DistributedLogError], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._link = link
        self._on_acked = on_acked
        self._on_refused = on_refused
        self._on_progress = on_progress
        self._stream = ModelStream(link.bookie.model, ledger, key, recovery=recovery)
        self._acked = 0
        self._acking = False
        self._closed = False
        self.has_lac_waiters = False

    def send(self, record: Buffer) -> None:
        """Send one record to the bookie."""
        self._link.send(lambda: self._arrive(record))

    def shared_sender(self, streams: Sequence[object]) -> None:
        """Return None: simulated links have no shared sender."""

    def shared_lac_sender(self, streams: Sequence[object]) -> None:
        """Return None: simulated links have no shared sender."""

    def send_lac(self, lac: int) -> None:
        """Send the explicit LAC to the bookie."""
        self._link.send(lambda: self._stream.write_lac(lac))

    def call_when_processed(self, on_processed: Callable[[], None], timeout_s: float) -> None:
        """Call ``on_processed`` when the bookie has processed everything sent before this call."""
        self._link.send(lambda: self._link.reply(on_processed))

    def close(self) -> None:
        """Close the stream. Later errors are dropped."""
        self._closed = True

    def on_broken(self, error: DistributedLogError) -> None:
        """Report that the link broke."""
        if not self._closed:
            self._on_refused(self._acked, error)

    def _arrive(self, record: Buffer) -> None:
        refused_before = self._stream.refusal
        if self._stream.add(record):
            if not self._acking:  # acks are grouped, as after one sync
                self._acking = True
                self._link.net.call_after(self._link.net.random.random() * 0.002, self._ack)
        elif refused_before is None and self._stream.refusal is not None:
            position, error = self._stream.count, self._stream.refusal
            self._link.reply(lambda: self._notify_refused(position, error))

    def _notify_refused(self, position: int, error: DistributedLogError) -> None:
        if not self._closed:
            self._on_refused(position, error)

    def _ack(self) -> None:
        self._acking = False
        count = self._stream.count

        # Acks of a closed stream still arrive. `PendingAdds` must not count them.
        def told() -> None:
            self._acked = count
            try:
                if self._on_acked(count):
                    self._on_progress()
            except ProtocolError as error:
                self._on_refused(count, error)

        self._link.reply(told)


class SimStore:
    """The ledger's metadata under compare-and-set. Answers may be late or lost."""

    def __init__(
        self, net: LedgerNet, value: LedgerMetadata, on_closed: Callable[[LedgerMetadata], None]
    ) -> None:
        self.net = net
        self.value = value
        self.version = 1
        self.frozen_until = 0.0
        self.lose_replies = False
        self._on_closed = on_closed

    def cas(
        self,
        version: int,
        new: LedgerMetadata,
        on_done: Callable[[bool | None, LedgerMetadata, int], None],
    ) -> None:
        """Replace the metadata if the version matches.

        Args:
            on_done: Called with True, False (conflict) or None (unknown), and the metadata and version at
                that time.
        """
        self._call(lambda: self._apply(version, new), on_done)

    def get(self, on_done: Callable[[bool | None, LedgerMetadata, int], None]) -> None:
        """Read the metadata and its version. The answer is never lost."""
        self._call(lambda: True, on_done, lossless=True)

    def _call(
        self,
        run_at_store: Callable[[], bool],
        on_done: Callable[[bool | None, LedgerMetadata, int], None],
        *,
        lossless: bool = False,
    ) -> None:
        net = self.net

        def arrive() -> None:
            if net.now < self.frozen_until:
                net.call_after(self.frozen_until - net.now + 0.001, arrive)
                return
            outcome: bool | None = run_at_store()
            if self.lose_replies and not lossless and net.random.random() < 0.5:
                outcome = None
            value, version = self.value, self.version
            net.call_after(
                0.0005 + net.random.random() * 0.003, lambda: on_done(outcome, value, version)
            )

        net.call_after(0.0005 + net.random.random() * 0.003, arrive)

    def _apply(self, version: int, new: LedgerMetadata) -> bool:
        if version != self.version:
            return False
        self.value, self.version = new, self.version + 1
        self.net.record_event(
            f"store v{self.version} {new.state} {[(f.first_entry, f.bookies) for f in new.ensembles]}"
        )
        if new.closed:
            self._on_closed(new)
        return True
