"""Clients that write: sessions at a rate, duels for a log, and many small logs.

The order of records and calls matters to the checker. A session is recorded before its first record, and an
acknowledgement only after it has arrived.
"""

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio

from ....log.format.dlsn import DLSN
from ....log.format.record import LogRecord
from ....log.namespace import Namespace
from ....log.write.log_writer import LogWriter
from ....runtime.interfaces.errors import DistributedLogError
from ...verify.history.run_history import Outcome, Value, to_payload
from .client_context import ClientLife, after, before, one_line

TICK_S = 0.01
"""The interval at which a writer submits due records. Those of one interval are one submission."""
IN_FLIGHT_MAX = 100
"""Submissions with unknown outcome. At this number, the writer waits."""


class ChaosWriterSession:
    """A writer from its opening to its end.

    It submits records periodically, and records the outcomes in order.
    """

    def __init__(self, life: ClientLife, writer: LogWriter, number: int) -> None:
        self.life = life
        self.writer = writer
        self.number = number
        self.counter = 0
        self.failure: BaseException | None = None
        self._pending: deque[tuple[int, float, Any]] = deque()
        self._wake = trio.Event()
        self._is_over = False

    @classmethod
    async def open(
        cls, life: ClientLife, namespace: Namespace, log: str, *, takeover: bool
    ) -> "ChaosWriterSession | None":
        """Open the log's writer; record the error and return None if that fails."""
        number, begun_at = life.new_session(), before()
        takeover = takeover and not life.options.get(
            "through"
        )  # a proxied log has one owner, chosen by the proxies
        try:
            writer = await namespace.open_log(log, config=life.log_options).open_writer(
                takeover=takeover
            )
        except DistributedLogError as error:
            life.observations.record("note", after(), f"{log} does not open: {one_line(error)}")
            return None
        life.observations.record("open", number, log, takeover, begun_at, after())
        return cls(life, writer, number)

    async def run(self, hand_over_records: Callable[[], Awaitable[None]]) -> None:
        """Record outcomes while ``hand_over_records`` submits records.

        Then close the writer, or abort it after a failure.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._collect_outcomes)
                await hand_over_records()
                self._is_over = True
                self._wake.set()
            if self.failure is None:
                await self.writer.aclose()
            else:
                await self.writer.abort()
        except DistributedLogError as error:
            self.failure = error
        error_text = one_line(self.failure) if self.failure is not None else ""
        self.life.observations.record("end", self.number, self.counter, after(), error_text)

    async def write(self, records: int, payload_bytes: int) -> None:
        """Submit records now. After a failure, nothing is submitted."""
        begun_at, first = before(), self.counter
        txid = max(self.writer.last_txid, time.time_ns() // 1_000_000)
        batch = [
            LogRecord(txid, to_payload(Value(self.number, first + n), payload_bytes))
            for n in range(records)
        ]
        self.counter += records
        try:
            pending_write = await self.writer.submit_bulk(batch)
        except DistributedLogError as error:
            self.failure = self.failure or error
            self._note_failed(first, records, begun_at, error)
            return
        self._pending.append((first, begun_at, pending_write))
        self._wake.set()

    async def write_at_rate(
        self, rate: float, payload_bytes: int, seconds: float = math.inf
    ) -> None:
        """Write at a rate until the client must end, until ``seconds`` have passed, or until a failure."""
        start, submitted = time.monotonic(), 0
        while not self.life.stop.is_set() and self.failure is None:
            elapsed_s = time.monotonic() - start
            if elapsed_s >= seconds:
                break
            # Records that were due during a long pause are skipped, so that a paused client does not cause a
            # burst.
            submitted = max(submitted, int((elapsed_s - 1.0) * rate))
            due = min(int(elapsed_s * rate) + 1 - submitted, max(1, int(rate * TICK_S * 4)))
            if due > 0 and len(self._pending) < IN_FLIGHT_MAX:
                await self.write(due, payload_bytes)
                submitted += due
            await trio.sleep(min(0.2, max(TICK_S, submitted / rate - elapsed_s)))

    async def wait_until_stopped(self) -> None:
        """Wait until the client must end or the session fails; other tasks call `write`."""
        while not await self.life.wait_or_stop(0.2) and self.failure is None:
            pass

    async def _collect_outcomes(self) -> None:
        """Record outcomes in the order of submission."""
        while self._pending or not self._is_over:
            if not self._pending:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            first, begun_at, pending_write = self._pending[0]
            outcomes = await pending_write.outcomes()
            self._pending.popleft()
            self._note_outcomes(first, begun_at, outcomes)

    def _note_outcomes(
        self, first: int, begun_at: float, outcomes: Sequence[DLSN | DistributedLogError]
    ) -> None:
        acked = 0
        while acked < len(outcomes) and isinstance(outcomes[acked], DLSN):
            acked += 1
        if acked:
            runs = consecutive(
                [outcome for outcome in outcomes[:acked] if isinstance(outcome, DLSN)]
            )
            self.life.observations.record("ack", self.number, first, begun_at, after(), runs)
        self._note_failures(first, begun_at, outcomes, acked)

    def _note_failures(
        self,
        first: int,
        begun_at: float,
        outcomes: Sequence[DLSN | DistributedLogError],
        start: int,
    ) -> None:
        """Record the outcomes from the first failure on.

        Records with the same kind of failure share one line.
        """
        while start < len(outcomes):
            error = outcomes[start]
            end = start + 1
            if isinstance(error, DLSN):
                runs = [(*error, 1)]
                self.life.observations.record(
                    "ack", self.number, first + start, begun_at, after(), runs
                )
            else:
                while end < len(outcomes) and _alike(error, outcomes[end]):
                    end += 1
                self.failure = self.failure or error
                self._note_failed(first + start, end - start, begun_at, error)
            start = end

    def _note_failed(
        self, first: int, count: int, begun_at: float, error: DistributedLogError
    ) -> None:
        outcome = Outcome.REFUSED if error.definite else Outcome.UNKNOWN
        self.life.observations.record(
            "fail", self.number, first, count, begun_at, after(), outcome.value, one_line(error)
        )


def _alike(error: DistributedLogError, other: DLSN | DistributedLogError) -> bool:
    return type(other) is type(error) and other.definite == error.definite


def consecutive(positions: Sequence[DLSN]) -> list[tuple[int, int, int, int]]:
    """Return positions of consecutive records as (segment, entry, slot, count), by entry."""
    runs: list[list[int]] = []
    for segment, entry, slot in positions:
        last_run = runs[-1] if runs else None
        if (
            last_run is not None
            and last_run[:2] == [segment, entry]
            and last_run[2] + last_run[3] == slot
        ):
            last_run[3] += 1
        else:
            runs.append([segment, entry, slot, 1])
    return [(a, b, c, d) for a, b, c, d in runs]


def _feeding(
    session: ChaosWriterSession, life: ClientLife, seconds: float = math.inf
) -> Callable[[], Awaitable[None]]:
    options = life.options
    return partial(session.write_at_rate, options["rate"], options["payload_bytes"], seconds)


async def write(life: ClientLife, namespace: Namespace) -> None:
    """Write forever with one writer at a time. A new session takes over from the previous one."""
    while not life.stop.is_set():
        session = await ChaosWriterSession.open(life, namespace, life.options["log"], takeover=True)
        if session is None:
            await life.wait_or_stop(0.2)
            continue
        await session.run(_feeding(session, life))


async def duel(life: ClientLife, namespace: Namespace) -> None:
    """Take over the log, own it for a while or lose it, pause, and repeat."""
    rng, (shortest_s, longest_s) = life.make_rng, life.options["pause_s"]
    while not await life.wait_or_stop(rng.uniform(0, longest_s / 2)):
        session = await ChaosWriterSession.open(
            life, namespace, life.options["log"], takeover=rng.random() < 0.8
        )
        if session is not None:
            session_s = rng.uniform(shortest_s, longest_s)
            await session.run(_feeding(session, life, session_s))


async def many_logs(life: ClientLife, namespace: Namespace) -> None:
    """Write some records to one random log after another. Each log remains open until it fails."""
    sessions: dict[str, ChaosWriterSession] = {}
    rng = life.make_rng
    records_per_tick = max(1, int(life.options["rate"] * TICK_S * 5))
    async with trio.open_nursery() as nursery:

        async def keep(name: str, session: ChaosWriterSession) -> None:
            await session.run(session.wait_until_stopped)
            sessions.pop(name, None)

        while not await life.wait_or_stop(TICK_S * 5):
            name = f"{life.options['log']}-{rng.randrange(life.options['logs'])}"
            session = sessions.get(name)
            if session is None:
                session = await ChaosWriterSession.open(life, namespace, name, takeover=True)
                if session is None:
                    continue
                sessions[name] = session
                nursery.start_soon(keep, name, session)
            if session.failure is None:
                await session.write(records_per_tick, life.options["payload_bytes"])
