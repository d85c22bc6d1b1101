"""What lay on bookies that are gone for good, or are to leave, is stored elsewhere.

A bookie is *lost* when it has not been registered for ``lost_after_s`` on end, as far as this process has
seen: the time begins anew with a new repairer and after each moment without a quorum (H19), so that nothing
is copied because metadata was away. A bookie that comes back in time cancels it. A bookie that somebody
decommissions (`leaving/<bookie>`), and one whose cookie is gone, are lost at once. More than half of all
away at one time is taken for a partition of ours: then none is lost by time, and the time begins anew.

What has the fewest copies comes first, of that the smallest; an entry with one copy left waits for
``urgent_after_s`` alone, unless half of the bookies are away (H99).

For each closed ledger: first the copies, durable on the new bookie, then the swap in the ledger's record
by compare-and-set, mirrored in the reverse index (inv. 27, 28). The swap fails when the new bookie was
started again meanwhile: what it held is then looked at anew. Open ledgers are their writers', or are closed
first (`open_ledger_closer.py`).
Upstream: `lostBookieRecoveryDelay`, 0 s by default, with the delay reset by each audit.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...ledger.model import ledger_transactions as transactions
from ...ledger.model import missing_range as notes
from ...ledger.model.ledger_metadata import LedgerMetadata
from ...ledger.model.missing_range import MissingRange
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
from ..declarations.events import DECOMMISSIONED, LOST
from .auditor_election import AuditorElection
from .copier import BookieConnections, Copier, ranges_of_slot
from .decommission import bookies_in_index, fewest_sound_copies, is_majority_away
from .ledger_deletion import LedgerDeletion
from .pull_replication import MoveQueue, ReplicaMove
from .replication_worker import EVERY_S

OBSERVATION_GAP_S_MAX = 4 * EVERY_S
"""Longer between two looks: nobody can say what was registered meanwhile."""
URGENT_AFTER_S = 15.0
URGENT = 0
CHECKS_AT_ONCE = 16
LEDGERS_AT_ONCE = 4
REST_FACTOR = 4
"""Times as long as it took to find out what is to be done it is not asked again."""

UNIT = "the repair of what lost bookies held"

log = get_logger("distributedlog.cluster.repair.lost_bookies")


class BookieLiveness:
    """For how long each bookie has been away, as seen without a gap (pure but for its caller's clock)."""

    def __init__(self, lost_after_s: float, urgent_after_s: float = URGENT_AFTER_S) -> None:
        self._lost_after_s = lost_after_s
        self._urgent_after_s = urgent_after_s
        self._away_since: dict[str, float] = {}
        self._observed_at = float("-inf")
        self._minority_away_since: float | None = None
        """From when on fewer than half have been away; None: half of them are, or more."""
        self.observation_gaps = 0
        """How often nothing was known. What was seen before one is worth nothing after it."""
        self.lost_bookies: dict[str, str] = {}
        """Bookie to why it counts as lost."""
        self.away_bookies: frozenset[str] = frozenset()
        """Who was not registered when it was looked last."""
        self.urgent_bookies: frozenset[str] = frozenset()
        """Away for so long that what has one copy left is stored elsewhere."""
        self.presumed_lost: frozenset[str] = frozenset()
        """Lost, to leave, or away: what nobody writes there any more is closed (`open_ledger_closer.py`)."""

    @property
    def has_observation(self) -> bool:
        """Is anything known of who is there? Not before the first look, nor by who is not elected."""
        return self._observed_at > float("-inf")

    def reset(self) -> None:
        """Nothing is known any more: not elected, or no quorum answered."""
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
    ) -> None:
        """One look. ``bookies_in_index`` are the bookies of all ensembles."""
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
                self.lost_bookies[bookie] = "is to leave"
            elif bookie in registered:
                continue
            elif bookie not in bookies_with_cookie:
                self.lost_bookies[bookie] = "was decommissioned"
            elif not majority_away and now - self._away_since[bookie] >= self._lost_after_s:
                self.lost_bookies[bookie] = f"has been away for {self._lost_after_s:g} s"
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
    """A closed ledger that is to leave bookies; in the order of what is most in danger."""

    priority: int
    """`URGENT`: an entry has one sound copy at most; 1, 2: fewer than the ack, the write quorum."""
    size_bytes: int
    ledger_id: int
    bookies: tuple[str, ...]
    away_bookies: frozenset[str]
    """Who was away when this was so."""


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


class LostBookieRepair:
    """Moves closed ledgers off lost bookies while this bookie is the elected repairer."""

    def __init__(
        self,
        metadata: Metadata,
        pool: BookieConnections,
        election: AuditorElection,
        copier: Copier,
        targets: RepairTargets,
        liveness: BookieLiveness,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._election = election
        self._copier = copier
        self._targets = targets
        self._move_queue = MoveQueue(metadata, targets.can_pull)
        self._successors: dict[str, str] = {}
        """Who is to leave, and who should take its place; "" for anybody."""
        self.liveness = liveness
        self._blocked_work = BlockedWorkLog(log, "closed ledgers stay on lost bookies")
        self._unreadable = UnreadableRecords()
        self.moved_ledgers = 0
        """Ledgers taken off lost bookies since the start."""
        self._remaining_jobs: deque[RepairJob] = deque()

    @property
    def remaining(self) -> int:
        """Ledgers that are to move, about: in a pass what is not begun, then what waits or is fetched."""
        return max(
            len(self._remaining_jobs), len(self._move_queue.pending_moves) + self.blocked_ledgers
        )

    @property
    def blocked_ledgers(self) -> int:
        """Ledgers that had to wait in the last pass."""
        return self._blocked_work.waiting_count

    async def run(self) -> None:
        """Until cancelled."""
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
                log.info("who is away is not known now: %s", error)
            finally:
                if not is_observed:
                    self.liveness.reset()
            await trio.sleep(EVERY_S)

    async def observe_bookies(self) -> None:
        """See who is there."""
        ensemble_bookies = [bookie async for bookie in bookies_in_index(self._metadata)]
        cookies = await self._bookie_ids(keys.COOKIE_PREFIX)
        leaving = {}
        async for item in Scan(self._metadata, keys.LEAVING_PREFIX):
            with suppress(CorruptData):
                leaving[keys.bookie_id_of(item.key)] = item.value.decode(errors="replace")
        self._successors = leaving
        registered = await self._bookie_ids(keys.BOOKIE_PREFIX)  # last: who just came back is seen
        lost_before = self.liveness.lost_bookies
        self.liveness.observe(
            trio.current_time(),
            ensemble_bookies=ensemble_bookies,
            registered=registered,
            bookies_with_cookie=cookies,
            leaving=set(leaving),
        )
        for bookie, reason in self.liveness.lost_bookies.items():
            if bookie not in lost_before:
                text = "bookie %s %s: its closed ledgers are stored elsewhere"
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
        """Move what is to be moved now; return how long not to look again, in seconds."""
        started_at = trio.current_time()
        jobs = await self.find_jobs()
        rest_s = max(EVERY_S, REST_FACTOR * (trio.current_time() - started_at))
        await self.run_jobs(jobs)
        return rest_s

    async def drain(self, bookie: str) -> bool:
        """Move what can be moved off one lost bookie; True when no ensemble names it any more."""
        await self.run_jobs(await self._list_jobs([bookie], ()))
        start = keys.bookie_ledgers_prefix(bookie)
        if (await self._metadata.range(start, prefix_end(start), limit=1)).items:
            return False
        await self._finish_decommission(bookie)
        return True

    async def find_jobs(self) -> deque[RepairJob]:
        """What is to be done, most urgent first. A lost bookie that nothing names takes its leave."""
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
                with suppress(CorruptData, UnsupportedFormat):  # `replication_worker.py` names it
                    recorded_ranges[keys.ledger_id_of(item.key)] = notes.decode_missing_ranges(
                        item.value
                    )
        remaining_ledgers, jobs = deque(bookies_of_ledger), []

        async def look() -> None:
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
                    with self._failures.attempt(f"the look at ledger {ledger_id} of a lost bookie"):
                        job = await self._make_job(ledger_id, bookies, missing_ranges)
                except (CorruptData, UnsupportedFormat) as error:
                    self._unreadable.log_once(keys.ledger_key(ledger_id), error)
                    continue
                if job is not None:
                    jobs.append(job)

        await run_concurrently(CHECKS_AT_ONCE, look)
        return deque(sorted(jobs))

    async def _make_job(
        self, ledger_id: int, bookies: tuple[str, ...], missing_ranges: Iterable[MissingRange]
    ) -> RepairJob | None:
        """None: nothing can be done for the ledger now."""
        away_bookies = self.liveness.away_bookies
        item = await self._metadata.get(keys.ledger_key(ledger_id))
        if item is None:
            return RepairJob(3, 0, ledger_id, bookies, away_bookies)  # the index is behind
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
        """Do what is due of it still, several ledgers at a time."""
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
                continue  # it is back, or we are not the repairer any more
            if (job.ledger_id, bookie) in self._move_queue.pending_moves:
                break  # its other copies are checked after that
            try:
                if await self._try_hand_over(job, bookie):
                    break
                if moved and not await self._is_still_due(job, bookie):
                    continue  # haste ends where there is a second copy
                moved = await self.move_ledger(job.ledger_id, bookie) or moved
            except DistributedLogError as error:
                cause = f"on bookie {bookie}: {type(error).__name__}"
                self._blocked_work.record(cause, f"ledger {job.ledger_id}: {error}")

    async def _try_hand_over(self, job: RepairJob, bookie: str) -> bool:
        """Does somebody fetch the ledger who takes the bookie's place? Where one can take it everywhere."""
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
        """Is the job to be done still, at this moment?"""
        if bookie in self.liveness.lost_bookies:
            return True
        urgent = job.priority == URGENT and bookie in self.liveness.urgent_bookies
        return urgent and job.away_bookies <= self.liveness.away_bookies

    async def _is_still_due(self, job: RepairJob, bookie: str) -> bool:
        """And after another bookie's copies of the ledger were stored elsewhere?"""
        if bookie in self.liveness.lost_bookies:
            return True
        item = await self._metadata.get(keys.missing_ranges_key(job.ledger_id))
        missing_ranges = () if item is None else notes.decode_missing_ranges(item.value)
        current_job = await self._make_job(job.ledger_id, (bookie,), missing_ranges)
        return current_job is not None and current_job.priority == URGENT

    async def move_ledger(self, ledger_id: int, bookie: str) -> bool:
        """Store one ledger's entries of ``bookie`` elsewhere. False: it is not closed, or changed meanwhile.

        Raises `NotEnoughBookies`, and what a copy raises.
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
                return False  # it has gone just now
            # Each start counts its cookie up: a bookie that was started again holds what it holds.
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
        """Who takes the slot: one that took another slot of this ledger, where it stands as well as any."""
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

        def apart(bookie: str) -> tuple[int, int]:
            bookies = [kept_slots.get(n, bookie) for n in range(len(fragment.bookies))]
            return placement_violations(ledger.striping, bookies, labels, policy)

        best = chosen(candidates)
        if best is None:
            raise NotEnoughBookies(
                f"ledger {ledger.ledger_id}: nobody can take the place of {fragment.bookies[slot]}:"
                f" live are {sorted(candidate.id for candidate in candidates)}, in the ensemble "
                f"{sorted(ensemble)}"
            )
        reused = chosen(
            [candidate for candidate in candidates if candidate.id in preferred_bookies]
        )
        return reused if reused is not None and apart(reused) <= apart(best) else best

    async def _finish_decommission(self, bookie: str) -> None:
        """A drained bookie that is to leave and does not run is forgotten: its id is never used again."""
        if await self._metadata.get(keys.leaving_key(bookie)) is None:
            return
        if await self._metadata.get(keys.bookie_key(bookie)) is not None:
            return  # it runs, drained; whoever runs it stops it
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
    """So many tasks of the same, until all are through. The first error of ours is raised."""
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
    """What a bookie that is gone still has to delete went with it."""
