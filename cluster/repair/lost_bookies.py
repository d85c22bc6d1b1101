"""Store the closed ledgers of lost or leaving bookies on other bookies.

A bookie is *lost* when it has not been registered for ``lost_after_s`` without interruption, as observed by
this process. The time starts again with a new repair leader and after each period without a metadata quorum
(H19), so that an unavailable metadata store causes no copies. A bookie that returns in time is not lost.

A bookie that is being decommissioned (key ``leaving/<bookie>``), or that has no cookie any more, is lost at
once. If more than half of all bookies are away at one time, this process assumes a partition. Then no bookie
becomes lost by time, and all times start again. A stored delay of the cluster replaces ``lost_after_s``, and
a stored pause stops all moves for a time (`repair_settings.py`).

Ledgers with the fewest copies are moved first, and among these the smallest. A ledger with an entry that has
one copy left waits only for ``urgent_after_s``, unless half of the bookies are away (H99).

Each closed ledger is first copied durably to the new bookie. Then a compare-and-set replaces the bookie in
the ledger's record and in the reverse index (inv. 27, 28). The replacement fails if the new bookie was
restarted in between: its entries are then checked again. Open ledgers are left to their writers, or closed
first (`open_ledger_closer.py`).

In BookKeeper, the delay is ``lostBookieRecoveryDelay``, 0 s by default, which each audit resets.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model import ledger_transactions as transactions
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.missing_range import MissingRange, decode_missing_ranges
from ...ledger.model.stored_ledger import UnreadableRecords
from ...ledger.placement.ensemble_placement import (
    Candidate,
    Labels,
    RandomFraction,
    choose_replacements,
    placement_violations,
)
from ...ledger.placement.placement_policy import PlacementPolicy
from ...metadata.model.interface import Metadata, Scan, prefix_end
from ...metadata.model.transaction import Compare, Delete, Transaction
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    NotEnoughBookies,
    UnsupportedFormat,
)
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.schedule.work_failures import WorkFailures
from ..coordination.blocked_work import BlockedWorkLog
from ..coordination.repair_settings import usable_repair_settings
from ..declarations.events import DECOMMISSIONED, LOST
from .auditor_election import RepairLeaderElection
from .copier import BookieConnections, Copier, ranges_of_slot
from .decommission import bookies_in_index, fewest_sound_copies, is_majority_away
from .ledger_deletion import LedgerDeletion
from .pull_replication import MoveQueue, ReplicaMove
from .replication_worker import EVERY_S

OBSERVATION_GAP_S_MAX = 4 * EVERY_S
"""After a longer pause between two observations, nothing is known about registrations in between."""
URGENT_AFTER_S = 15.0
URGENT = 0
CHECKS_AT_ONCE = 16
LEDGERS_AT_ONCE = 4
REST_FACTOR = 4
"""After a pass, the next search for jobs waits this many times as long as the search took."""

UNIT = "the repair of what lost bookies held"

log = get_logger("distributedlog.cluster.repair.lost_bookies")


class BookieLiveness:
    """How long each bookie has been away, as observed without a gap (pure except for its caller's clock)."""

    def __init__(self, lost_after_s: float, urgent_after_s: float = URGENT_AFTER_S) -> None:
        self._lost_after_s = lost_after_s
        self._urgent_after_s = urgent_after_s
        self._away_since: dict[str, float] = {}
        self._observed_at = float("-inf")
        self._minority_away_since: float | None = None
        """Since when less than half of the bookies have been away; None while half or more are away."""
        self.observation_gaps = 0
        """The number of gaps in the observation. Observations before a gap are worthless after it."""
        self.lost_bookies: dict[str, str] = {}
        """Lost bookies, with the reason."""
        self.away_bookies: frozenset[str] = frozenset()
        """The bookies that were not registered at the last observation."""
        self.urgent_bookies: frozenset[str] = frozenset()
        """Bookies that have been away so long that ledgers with one copy left are stored elsewhere."""
        self.presumed_lost: frozenset[str] = frozenset()
        """Bookies that are lost or leaving, or away while less than half of all are.

        Logs on them without a writer are closed (`open_ledger_closer.py`).
        """

    @property
    def has_observation(self) -> bool:
        """Whether there is an observation.

        There is none before the first one, and none on a bookie that is not the repair leader.
        """
        return self._observed_at > float("-inf")

    def reset(self) -> None:
        """Discard all observations, because this bookie is not the repair leader or no quorum answered."""
        self._away_since.clear()
        self._observed_at = float("-inf")
        self._minority_away_since = None
        self.observation_gaps += 1
        self.lost_bookies = {}
        self.away_bookies = self.urgent_bookies = self.presumed_lost = frozenset()

    def observe(
        self,
        now: float,
        *,
        ensemble_bookies: list[str],
        registered: set[str],
        bookies_with_cookie: set[str],
        leaving: set[str],
        lost_after_s: float | None = None,
    ) -> None:
        """Record one observation.

        Args:
            now: The present time, by the monotonic clock.
            ensemble_bookies: The bookies in the ensembles of all ledgers.
            registered: The registered bookies.
            bookies_with_cookie: The bookies with a cookie.
            leaving: The bookies that are being decommissioned.
            lost_after_s: The stored delay of the cluster, in place of the leader's own.
        """
        lost_after_s = self._lost_after_s if lost_after_s is None else lost_after_s
        if now - self._observed_at > OBSERVATION_GAP_S_MAX:
            self.reset()
        self._observed_at = now
        self.lost_bookies = {}
        known_bookies = {*ensemble_bookies, *leaving, *registered}
        self.away_bookies = frozenset(known_bookies - registered)
        majority_away = is_majority_away(len(self.away_bookies), len(known_bookies))
        if majority_away:
            self._away_since.clear()
        if 2 * len(self.away_bookies) >= len(known_bookies):
            self._minority_away_since = None
        elif self._minority_away_since is None:
            self._minority_away_since = now
        for bookie in sorted({*ensemble_bookies, *leaving}):
            if bookie in registered:
                self._away_since.pop(bookie, None)
            else:
                self._away_since.setdefault(bookie, now)
            if bookie in leaving:
                self.lost_bookies[bookie] = "is being decommissioned"
            elif bookie in registered:
                continue
            elif bookie not in bookies_with_cookie:
                self.lost_bookies[bookie] = "was decommissioned"
            elif not majority_away and now - self._away_since[bookie] >= lost_after_s:
                self.lost_bookies[bookie] = f"has been away for {lost_after_s:g} s"
        self.urgent_bookies, self.presumed_lost = frozenset(), frozenset(self.lost_bookies)
        if self._minority_away_since is not None:
            urgent_cutoff = now - self._urgent_after_s
            if self._minority_away_since <= urgent_cutoff:
                self.urgent_bookies = frozenset(
                    bookie for bookie, since in self._away_since.items() if since <= urgent_cutoff
                )
            self.presumed_lost |= self.away_bookies


@dataclass(frozen=True, slots=True, order=True)
class RepairJob:
    """A closed ledger to move off some bookies. Jobs sort by urgency."""

    priority: int
    """The urgency, by the entry with the fewest intact copies.

    It is `URGENT` with at most one copy, 1 below the ack quorum, 2 below the write quorum, otherwise 3.
    """
    size_bytes: int
    ledger_id: int
    bookies: tuple[str, ...]
    away_bookies: frozenset[str]
    """The bookies that were away when the priority was computed."""


@dataclass(frozen=True, slots=True)
class RepairTargets:
    """The bookies that can receive copies, and how one of them is chosen."""

    candidates: Callable[[], list[Candidate]]
    """The bookies that can be chosen now."""
    random: RandomFraction
    """A random number from 0 to below 1, which decides between equal bookies."""
    policy: Callable[[], PlacementPolicy] = PlacementPolicy
    labels: Callable[[str], Labels] = lambda bookie: {}
    """The location of a bookie that is no candidate now."""
    can_pull: Callable[[str], bool] = lambda bookie: False
    """Whether a bookie fetches its own copies. One of an older version does not."""
    wall_ms: Callable[[], int] = lambda: 0
    """The wall clock, for the end of a pause. Manual repair has none, because it is never paused."""


class LostBookieRepair:
    """Moves closed ledgers off lost bookies while this bookie is the repair leader."""

    def __init__(
        self,
        metadata: Metadata,
        pool: BookieConnections,
        election: RepairLeaderElection,
        copier: Copier,
        targets: RepairTargets,
        liveness: BookieLiveness,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._is_paused = False
        """Whether a stored pause lasts (`repair_settings.py`), as of the last observation."""
        self._metadata = metadata
        self._pool = pool
        self._election = election
        self._copier = copier
        self._targets = targets
        self._move_queue = MoveQueue(metadata, targets.can_pull)
        self._successors: dict[str, str] = {}
        """The leaving bookies and their requested replacements; "" for any replacement."""
        self.liveness = liveness
        self._blocked_work = BlockedWorkLog(log, "closed ledgers remain on lost bookies")
        self._unreadable = UnreadableRecords()
        self.moved_ledgers = 0
        """Ledgers moved off lost bookies since the start."""
        self._remaining_jobs: deque[RepairJob] = deque()

    @property
    def remaining(self) -> int:
        """The approximate number of ledgers to move.

        It is the number of jobs not started in the present pass, or the number of pending and blocked moves
        if that is higher.
        """
        return max(
            len(self._remaining_jobs), len(self._move_queue.pending_moves) + self.blocked_ledgers
        )

    @property
    def blocked_ledgers(self) -> int:
        """The number of ledgers that were blocked in the last pass."""
        return self._blocked_work.waiting_count

    async def run(self) -> None:
        """Observe the bookies and move ledgers until cancelled."""
        async with trio.open_nursery() as nursery:
            keep = self._failures.keep_running
            nursery.start_soon(keep, "the detection of lost bookies", self._run_observation)
            nursery.start_soon(keep, UNIT, self._run_passes)

    async def _run_observation(self) -> None:
        while True:
            is_observed = False  # also after an unexpected exception: all times start again (H19)
            try:
                if await self._election.is_elected():
                    await self.observe_bookies()
                    is_observed = True
            except DistributedLogError as error:
                log.info("the bookies could not be observed: %s", error)
            finally:
                if not is_observed:
                    self.liveness.reset()
            await trio.sleep(EVERY_S)

    async def observe_bookies(self) -> None:
        """Observe which bookies are registered, and report newly lost ones."""
        ensemble_bookies = [bookie async for bookie in bookies_in_index(self._metadata)]
        cookies = await self._bookie_ids(keys.COOKIE_PREFIX)
        leaving = {}
        async for item in Scan(self._metadata, keys.LEAVING_PREFIX):
            with suppress(CorruptData):
                leaving[keys.bookie_id_of(item.key)] = item.value.decode(errors="replace")
        self._successors = leaving
        settings = await usable_repair_settings(self._metadata)
        was_paused, self._is_paused = (
            self._is_paused,
            settings.is_paused(self._targets.wall_ms()),
        )
        if self._is_paused:
            self._remaining_jobs.clear()  # the ledgers in work are finished
        if self._is_paused != was_paused:
            state = f"is paused until {settings.pause_end}" if self._is_paused else "has resumed"
            log.warning("the repair of lost bookies %s", state)
        registered = await self._bookie_ids(keys.BOOKIE_PREFIX)  # last: includes late returns
        lost_before = self.liveness.lost_bookies
        self.liveness.observe(
            trio.current_time(),
            ensemble_bookies=ensemble_bookies,
            registered=registered,
            bookies_with_cookie=cookies,
            leaving=set(leaving),
            lost_after_s=settings.lost_after_s,
        )
        for bookie, reason in self.liveness.lost_bookies.items():
            if bookie not in lost_before:
                text = "bookie %s %s: its closed ledgers are copied to other bookies"
                LOST.emit(log, text, bookie, reason, bookie=bookie, why=reason)

    async def _bookie_ids(self, prefix: bytes) -> set[str]:
        items = [item async for item in Scan(self._metadata, prefix)]
        readable = self._unreadable.decode_readable(items, lambda item: keys.bookie_id_of(item.key))
        return {bookie for _, bookie in readable}

    async def _run_passes(self) -> None:
        while True:
            rest_s = EVERY_S
            try:
                with self._failures.attempt(UNIT) as attempt:
                    rest_s = await self.run_pass()
                if attempt.failed:
                    rest_s = max(EVERY_S, self._failures.retry_delay_s(UNIT))
            except DistributedLogError as error:
                self._blocked_work.record(type(error).__name__, str(error))
            self._blocked_work.end_pass()
            await trio.sleep(rest_s)

    async def run_pass(self) -> float:
        """Move all ledgers that are due, and return the delay of the next pass in seconds."""
        if self._is_paused:
            return EVERY_S
        started_at = trio.current_time()
        jobs = await self.find_jobs()
        rest_s = max(EVERY_S, REST_FACTOR * (trio.current_time() - started_at))
        if not self._is_paused:  # the search takes long, and a pause may have begun
            await self.run_jobs(jobs)
        return rest_s

    async def drain(self, bookie: str) -> bool:
        """Move ledgers off one lost bookie, and return whether no ensemble lists it any more."""
        await self.run_jobs(await self._list_jobs([bookie], ()))
        start = keys.bookie_ledgers_prefix(bookie)
        if (await self._metadata.range(start, prefix_end(start), limit=1)).items:
            return False
        await self._finish_decommission(bookie)
        return True

    async def find_jobs(self) -> deque[RepairJob]:
        """Return the due jobs, most urgent first.

        It also finishes the decommission of leaving bookies without ledgers.
        """
        if self.liveness.has_observation:
            await self._move_queue.refresh(
                {*self.liveness.lost_bookies, *self.liveness.urgent_bookies}
            )
        return await self._list_jobs([*self.liveness.lost_bookies], self.liveness.urgent_bookies)

    async def _list_jobs(self, lost: Sequence[str], urgent: Collection[str]) -> deque[RepairJob]:
        bookies_of_ledger: dict[int, list[str]] = {}
        for bookie in [*lost, *sorted({*urgent} - {*lost})]:
            has_no_ledgers = True
            async for item in Scan(self._metadata, keys.bookie_ledgers_prefix(bookie)):
                has_no_ledgers = False
                try:
                    bookies_of_ledger.setdefault(keys.ledger_id_of(item.key), []).append(bookie)
                except CorruptData as error:
                    self._unreadable.log_once(item.key, error)
            if has_no_ledgers and bookie in lost:
                await self._finish_decommission(bookie)
        recorded_ranges: dict[int, tuple[MissingRange, ...]] = {}
        if bookies_of_ledger:
            async for item in Scan(self._metadata, keys.MISSING_RANGES_PREFIX):
                with suppress(CorruptData, UnsupportedFormat):  # `replication_worker.py` reports it
                    recorded_ranges[keys.ledger_id_of(item.key)] = decode_missing_ranges(item.value)
        remaining_ledgers, jobs = deque(bookies_of_ledger), []

        async def check() -> None:
            while remaining_ledgers:
                ledger_id = remaining_ledgers.popleft()
                bookies, missing_ranges = (
                    tuple(bookies_of_ledger[ledger_id]),
                    recorded_ranges.get(ledger_id, ()),
                )
                unit, job = _unit_of(ledger_id), None
                if self._failures.is_waiting(unit):
                    continue
                try:
                    with self._failures.attempt(
                        f"the check of ledger {ledger_id} of a lost bookie"
                    ):
                        job = await self._make_job(ledger_id, bookies, missing_ranges)
                except (CorruptData, UnsupportedFormat) as error:
                    self._unreadable.log_once(keys.ledger_key(ledger_id), error)
                    continue
                if job is not None:
                    jobs.append(job)

        await run_concurrently(CHECKS_AT_ONCE, check)
        return deque(sorted(jobs))

    async def _make_job(
        self, ledger_id: int, bookies: tuple[str, ...], missing_ranges: Iterable[MissingRange]
    ) -> RepairJob | None:
        """Return the job of a ledger; None if the ledger is not closed, so that nothing can be done now."""
        away_bookies = self.liveness.away_bookies
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        if item is None:
            # The index still lists a deleted ledger.
            return RepairJob(3, 0, ledger_id, bookies, away_bookies)
        ledger = LedgerMetadata.decode(item.key, item.value)
        if not ledger.closed:
            return None
        copies = fewest_sound_copies(ledger, away_bookies, missing_ranges)
        priority = (
            URGENT
            if copies <= 1
            else 1
            if copies < ledger.ack_quorum
            else 2
            if copies < ledger.write_quorum
            else 3
        )
        return RepairJob(priority, ledger.length or 0, ledger_id, bookies, away_bookies)

    async def run_jobs(self, jobs: deque[RepairJob]) -> None:
        """Run the jobs that are still due, several at a time.

        Jobs that are started are removed from the queue.
        """
        self._remaining_jobs = jobs

        async def work() -> None:
            while jobs:
                job = jobs.popleft()
                with self._failures.attempt(_unit_of(job.ledger_id)) as attempt:
                    await self._run_job(job)
                if attempt.failed:
                    self._blocked_work.record("an unexpected exception", f"ledger {job.ledger_id}")

        await run_concurrently(LEDGERS_AT_ONCE, work)

    async def _run_job(self, job: RepairJob) -> None:
        moved = False
        for bookie in job.bookies:
            if not self._is_due(job, bookie):
                continue  # the bookie is back, or this bookie is no longer the repair leader
            if (job.ledger_id, bookie) in self._move_queue.pending_moves:
                break  # its other copies are checked after that
            try:
                if await self._try_hand_over(job, bookie):
                    break
                if moved and not await self._is_still_due(job, bookie):
                    continue  # with a second copy it is no longer urgent
                moved = await self.move_ledger(job.ledger_id, bookie) or moved
            except DistributedLogError as error:
                cause = f"on bookie {bookie}: {type(error).__name__}"
                self._blocked_work.record(cause, f"ledger {job.ledger_id}: {error}")

    async def _try_hand_over(self, job: RepairJob, bookie: str) -> bool:
        """Return whether a replacement bookie fetches the ledger itself, and request that if possible.

        It is possible if one bookie can replace the lost one in all fragments.
        """
        move_queue = self._move_queue
        if not move_queue.can_hand_over(
            job.ledger_id, bookie, [candidate.id for candidate in self._targets.candidates()]
        ):
            return False
        item = await self._metadata.get(keys.ledger_key(job.ledger_id))
        if item is None:
            return False
        ledger = LedgerMetadata.decode(item.key, item.value)
        fragment_indexes = [
            n for n, candidate in enumerate(ledger.ensembles) if bookie in candidate.bookies
        ]
        if not ledger.closed or not fragment_indexes:
            return False
        slot = ledger.ensembles[fragment_indexes[0]].bookies.index(bookie)
        target = self._choose_replacement(ledger, fragment_indexes[0], slot, [])
        if any(target in ledger.ensembles[n].bookies for n in fragment_indexes):
            return False
        if not move_queue.can_hand_over(job.ledger_id, bookie, [target]):
            return False
        return await move_queue.hand_over(
            ledger, item.version, target, ReplicaMove(bookie, job.priority, job.size_bytes)
        )

    def _is_due(self, job: RepairJob, bookie: str) -> bool:
        """Whether the job is still due."""
        if bookie in self.liveness.lost_bookies:
            return True
        urgent = job.priority == URGENT and bookie in self.liveness.urgent_bookies
        return urgent and job.away_bookies <= self.liveness.away_bookies

    async def _is_still_due(self, job: RepairJob, bookie: str) -> bool:
        """Whether the job is still due after the ledger was moved off another bookie."""
        if bookie in self.liveness.lost_bookies:
            return True
        item = await self._metadata.get(keys.missing_ranges_key(job.ledger_id))
        missing_ranges = () if item is None else decode_missing_ranges(item.value)
        current_job = await self._make_job(job.ledger_id, (bookie,), missing_ranges)
        return current_job is not None and current_job.priority == URGENT

    async def move_ledger(self, ledger_id: int, bookie: str) -> bool:
        """Store one ledger's entries of a bookie on other bookies.

        Returns:
            False if the ledger is not closed, or a record or bookie changed during the call.

        Raises:
            NotEnoughBookies: No bookie can replace it.
            ConnectionLost: No bookie could provide a copy of an entry.
            DistributedLogError: The replacement bookie returned an error.
        """
        key = keys.ledger_key(ledger_id)
        item = await self._metadata.get(key)
        if (
            item is None
            or bookie not in (ledger := LedgerMetadata.decode(item.key, item.value)).bookies()
        ):
            unchanged = Compare.version(key, 0 if item is None else item.version)
            drop_index_entry = Transaction(
                (unchanged,), (Delete(keys.bookie_ledger_key(bookie, ledger_id)),)
            )
            return (await self._metadata.transact(drop_index_entry)).succeeded
        if not ledger.closed:
            return False
        changed = ledger
        guards: dict[str, Compare] = {}
        for index, fragment in enumerate(ledger.ensembles):
            if bookie not in fragment.bookies:
                continue
            slot = fragment.bookies.index(bookie)
            replacement = self._choose_replacement(changed, index, slot, list(guards))
            cookie = await self._metadata.get(keys.cookie_key(replacement))
            target = self._pool.get(replacement)
            if cookie is None or target is None:
                return False  # it disconnected or was decommissioned just now
            # Each start of a bookie increases its cookie's revision, because a restarted bookie may lack
            # entries.
            guards.setdefault(
                replacement, Compare.mod_revision(keys.cookie_key(replacement), cookie.mod_revision)
            )
            await self._copier.copy(
                ledger, ranges_of_slot(ledger, index, slot), replacement, target
            )
            changed = changed.with_bookie_replaced(index, slot, replacement)
        swap = transactions.change_ops(ledger, changed, item.version)
        reply = await self._metadata.transact(swap + Transaction(tuple(guards.values())))
        if reply.succeeded:
            self.moved_ledgers += 1
            log.info("ledger %d: %s took the place of bookie %s", ledger_id, list(guards), bookie)
        return reply.succeeded

    def _choose_replacement(
        self, ledger: LedgerMetadata, fragment_index: int, slot: int, preferred_bookies: list[str]
    ) -> str:
        """Return the replacement for a slot.

        It prefers the requested successor, then a bookie that replaces another slot of this ledger if its
        placement is as good as the best candidate's.
        """
        fragment = ledger.ensembles[fragment_index]
        ensemble = set(fragment.bookies)
        candidates = [
            candidate
            for candidate in self._targets.candidates()
            if candidate.id not in self.liveness.lost_bookies
        ]
        successor = self._successors.get(fragment.bookies[slot])
        if successor not in ensemble and any(candidate.id == successor for candidate in candidates):
            return str(successor)
        kept_slots = {n: b for n, b in enumerate(fragment.bookies) if n != slot}
        labels = {candidate: self._targets.labels(candidate) for candidate in kept_slots.values()}
        labels |= {candidate.id: candidate.labels for candidate in candidates}
        policy = self._targets.policy().as_preference()

        def chosen(choices: Sequence[Candidate]) -> str | None:
            return choose_replacements(
                ledger.striping,
                kept_slots,
                [slot],
                choices,
                self._targets.random,
                excluded=ensemble,
                labels=labels,
                policy=policy,
            ).get(slot)

        def violations(bookie: str) -> tuple[int, int]:
            bookies = [kept_slots.get(n, bookie) for n in range(len(fragment.bookies))]
            return placement_violations(ledger.striping, bookies, labels, policy)

        best = chosen(candidates)
        if best is None:
            raise NotEnoughBookies(
                f"ledger {ledger.ledger_id}: no bookie can replace {fragment.bookies[slot]};"
                f" available are {sorted(candidate.id for candidate in candidates)}, in the ensemble are "
                f"{sorted(ensemble)}"
            )
        reused = chosen(
            [candidate for candidate in candidates if candidate.id in preferred_bookies]
        )
        return reused if reused is not None and violations(reused) <= violations(best) else best

    async def _finish_decommission(self, bookie: str) -> None:
        """Delete the cookie of a drained, leaving bookie that does not run. Its ID is never used again."""
        if await self._metadata.get(keys.leaving_key(bookie)) is None:
            return
        if await self._metadata.get(keys.bookie_key(bookie)) is not None:
            return  # it is drained but still runs, until the operator stops it
        await LedgerDeletion(self._metadata, bookie, _delete_nothing).run_pass()
        delete_records = Transaction(
            (Compare.exists(keys.leaving_key(bookie)), Compare.version(keys.bookie_key(bookie), 0)),
            (
                Delete(keys.cookie_key(bookie)),
                Delete(keys.sync_point_key(bookie)),
                Delete(keys.leaving_key(bookie)),
            ),
        )
        if (await self._metadata.transact(delete_records)).succeeded:
            DECOMMISSIONED.emit(log, "bookie %s was decommissioned", bookie, bookie=bookie)


def _unit_of(ledger_id: int) -> str:
    return f"the move of ledger {ledger_id} off a lost bookie"


async def run_concurrently(count: int, task: Callable[[], Awaitable[None]]) -> None:
    """Run several instances of a task until all end.

    The first `DistributedLogError` ends all of them, and is raised.
    """
    errors: list[DistributedLogError] = []

    async def run() -> None:
        try:
            await task()
        except DistributedLogError as error:
            errors.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(run)
    if errors:
        raise errors[0]


async def _delete_nothing(ledger_id: int) -> None:
    """Do nothing: the entries that a lost bookie still had to delete are lost with it."""
