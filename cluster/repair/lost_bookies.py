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
from ...ledger.model.stored_ledger import Unreadable
from ...ledger.placement.ensemble_placement import (
    Candidate,
    Draw,
    Labels,
    choose_replacements,
    together,
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
from .copier import Connections, Copier, held_by_slot
from .decommission import most_are_away, named, sound_copies
from .ledger_deletion import LedgerDeletion
from .pull_replication import MoveQueue, ReplicaMove
from .replication_worker import EVERY_S

STALE_S = 4 * EVERY_S
"""Longer between two looks: nobody can say what was registered meanwhile."""
URGENT_AFTER_S = 15.0
URGENT = 0
LOOKS_AT_ONCE = 16
LEDGERS_AT_ONCE = 4
REST = 4
"""Times as long as it took to find out what is to be done it is not asked again."""

UNIT = "the repair of what lost bookies held"

log = get_logger("distributedlog.cluster.repair.lost_bookies")


class BookieLiveness:
    """For how long each bookie has been away, as seen without a gap (pure but for its caller's clock)."""

    def __init__(self, lost_after_s: float, urgent_after_s: float = URGENT_AFTER_S) -> None:
        self._lost_after_s = lost_after_s
        self._urgent_after_s = urgent_after_s
        self._gone_since: dict[str, float] = {}
        self._seen_at = float("-inf")
        self._few_since: float | None = None
        """From when on fewer than half have been away; None: half of them are, or more."""
        self.gaps = 0
        """How often nothing was known. What was seen before one is worth nothing after it."""
        self.lost: dict[str, str] = {}
        """Bookie to why it counts as lost."""
        self.away: frozenset[str] = frozenset()
        """Who was not registered when it was looked last."""
        self.urgent: frozenset[str] = frozenset()
        """Away for so long that what has one copy left is stored elsewhere."""
        self.given_up: frozenset[str] = frozenset()
        """Lost, to leave, or away: what nobody writes there any more is closed (`open_ledger_closer.py`)."""

    @property
    def known(self) -> bool:
        """Is anything known of who is there? Not before the first look, nor by who is not elected."""
        return self._seen_at > float("-inf")

    def forget(self) -> None:
        """Nothing is known any more: not elected, or no quorum answered."""
        self._gone_since.clear()
        self._seen_at = float("-inf")
        self._few_since = None
        self.gaps += 1
        self.lost = {}
        self.away = self.urgent = self.given_up = frozenset()

    def see(
        self,
        now: float,
        *,
        named: list[str],
        registered: set[str],
        cookies: set[str],
        leaving: set[str],
    ) -> None:
        """One look. ``named`` are the bookies of all ensembles."""
        if now - self._seen_at > STALE_S:
            self.forget()
        self._seen_at = now
        self.lost = {}
        known = {*named, *leaving, *registered}
        self.away = frozenset(known - registered)
        most = most_are_away(len(self.away), len(known))
        if most:
            self._gone_since.clear()
        if 2 * len(self.away) >= len(known):
            self._few_since = None
        elif self._few_since is None:
            self._few_since = now
        for bookie in sorted({*named, *leaving}):
            if bookie in registered:
                self._gone_since.pop(bookie, None)
            else:
                self._gone_since.setdefault(bookie, now)
            if bookie in leaving:
                self.lost[bookie] = "is to leave"
            elif bookie in registered:
                continue
            elif bookie not in cookies:
                self.lost[bookie] = "was decommissioned"
            elif not most and now - self._gone_since[bookie] >= self._lost_after_s:
                self.lost[bookie] = f"has been away for {self._lost_after_s:g} s"
        self.urgent, self.given_up = frozenset(), frozenset(self.lost)
        if self._few_since is not None:
            before = now - self._urgent_after_s
            if self._few_since <= before:
                self.urgent = frozenset(
                    bookie for bookie, since in self._gone_since.items() if since <= before
                )
            self.given_up |= self.away


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """A closed ledger that is to leave bookies; in the order of what is most in danger."""

    kind: int
    """`URGENT`: an entry has one sound copy at most; 1, 2: fewer than the ack, the write quorum."""
    size_bytes: int
    ledger_id: int
    bookies: tuple[str, ...]
    away: frozenset[str]
    """Who was away when this was so."""


@dataclass(frozen=True, slots=True)
class RepairTargets:
    """The bookies that can receive copies, and how one of them is chosen."""

    candidates: Callable[[], list[Candidate]]
    """The bookies that can be chosen now."""
    draw: Draw
    """A random number from 0 to below 1, which decides between equal bookies."""
    policy: Callable[[], PlacementPolicy] = PlacementPolicy
    labels: Callable[[str], Labels] = lambda bookie: {}
    """The location of a bookie that is no candidate now."""
    pulls: Callable[[str], bool] = lambda bookie: False
    """Whether a bookie fetches its own copies. One of an older version does not."""


class LostBookieRepair:
    """Moves closed ledgers off lost bookies while this bookie is the elected repairer."""

    def __init__(
        self,
        metadata: Metadata,
        pool: Connections,
        election: AuditorElection,
        copier: Copier,
        targets: RepairTargets,
        absences: BookieLiveness,
        failures: WorkFailures | None = None,
    ) -> None:
        self._failures = failures or WorkFailures()
        self._metadata = metadata
        self._pool = pool
        self._election = election
        self._copier = copier
        self._targets = targets
        self._moves_out = MoveQueue(metadata, targets.pulls)
        self._successors: dict[str, str] = {}
        """Who is to leave, and who should take its place; "" for anybody."""
        self.absences = absences
        self._held_up = BlockedWorkLog(log, "closed ledgers stay on lost bookies")
        self._unreadable = Unreadable()
        self.moved = 0
        """Ledgers taken off lost bookies since the start."""
        self._jobs_left: deque[Job] = deque()

    @property
    def left(self) -> int:
        """Ledgers that are to move, about: in a pass what is not begun, then what waits or is fetched."""
        return max(len(self._jobs_left), len(self._moves_out.under_way) + self.blocked)

    @property
    def blocked(self) -> int:
        """Ledgers that had to wait in the last pass."""
        return self._held_up.waiting

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            keep = self._failures.keep
            nursery.start_soon(keep, "the detection of lost bookies", self._observe)
            nursery.start_soon(keep, UNIT, self._work)

    async def _observe(self) -> None:
        while True:
            known = False  # also after an unexpected exception: all times start again (H19)
            try:
                if await self._election.elected():
                    await self.look()
                    known = True
            except DistributedLogError as error:
                log.info("who is away is not known now: %s", error)
            finally:
                if not known:
                    self.absences.forget()
            await trio.sleep(EVERY_S)

    async def look(self) -> None:
        """See who is there."""
        names = [bookie async for bookie in named(self._metadata)]
        cookies = await self._ids(keys.COOKIE_PREFIX)
        leaving = {}
        async for item in Scan(self._metadata, keys.LEAVING_PREFIX):
            with suppress(CorruptData):
                leaving[keys.bookie_id_of(item.key)] = item.value.decode(errors="replace")
        self._successors = leaving
        registered = await self._ids(keys.BOOKIE_PREFIX)  # last: who just came back is seen
        before = self.absences.lost
        self.absences.see(
            trio.current_time(),
            named=names,
            registered=registered,
            cookies=cookies,
            leaving=set(leaving),
        )
        for bookie, why in self.absences.lost.items():
            if bookie not in before:
                text = "bookie %s %s: its closed ledgers are stored elsewhere"
                LOST.say(log, text, bookie, why, bookie=bookie, why=why)

    async def _ids(self, prefix: bytes) -> set[str]:
        items = [item async for item in Scan(self._metadata, prefix)]
        found = self._unreadable.readable(items, lambda item: keys.bookie_id_of(item.key))
        return {bookie for _, bookie in found}

    async def _work(self) -> None:
        while True:
            rest_s = EVERY_S
            try:
                with self._failures.contained(UNIT) as attempt:
                    rest_s = await self.work()
                if attempt.failed:
                    rest_s = max(EVERY_S, self._failures.rest_s(UNIT))
            except DistributedLogError as error:
                self._held_up.note(type(error).__name__, str(error))
            self._held_up.end_pass()
            await trio.sleep(rest_s)

    async def work(self) -> float:
        """Move what is to be moved now; return how long not to look again, in seconds."""
        began = trio.current_time()
        jobs = await self.find()
        rest_s = max(EVERY_S, REST * (trio.current_time() - began))
        await self.do(jobs)
        return rest_s

    async def empty(self, bookie: str) -> bool:
        """Move what can be moved off one lost bookie; True when no ensemble names it any more."""
        await self.do(await self._jobs([bookie], ()))
        start = keys.on_prefix(bookie)
        if (await self._metadata.range(start, prefix_end(start), limit=1)).items:
            return False
        await self._bid_farewell(bookie)
        return True

    async def find(self) -> deque[Job]:
        """What is to be done, most urgent first. A lost bookie that nothing names takes its leave."""
        if self.absences.known:
            await self._moves_out.look({*self.absences.lost, *self.absences.urgent})
        return await self._jobs([*self.absences.lost], self.absences.urgent)

    async def _jobs(self, lost: Sequence[str], urgent: Collection[str]) -> deque[Job]:
        named_by: dict[int, list[str]] = {}
        for bookie in [*lost, *sorted({*urgent} - {*lost})]:
            empty = True
            async for item in Scan(self._metadata, keys.on_prefix(bookie)):
                empty = False
                try:
                    named_by.setdefault(keys.ledger_id_of(item.key), []).append(bookie)
                except CorruptData as error:
                    self._unreadable.note(item.key, error)
            if empty and bookie in lost:
                await self._bid_farewell(bookie)
        noted: dict[int, tuple[MissingRange, ...]] = {}
        if named_by:
            async for item in Scan(self._metadata, keys.UNDER_PREFIX):
                with suppress(CorruptData, UnsupportedFormat):  # `replication_worker.py` names it
                    noted[keys.ledger_id_of(item.key)] = notes.decode(item.value)
        left, jobs = deque(named_by), []

        async def look() -> None:
            while left:
                ledger_id = left.popleft()
                bookies, holes = tuple(named_by[ledger_id]), noted.get(ledger_id, ())
                unit, job = _unit_of(ledger_id), None
                if self._failures.rests(unit):
                    continue
                try:
                    with self._failures.contained(
                        f"the look at ledger {ledger_id} of a lost bookie"
                    ):
                        job = await self._job(ledger_id, bookies, holes)
                except (CorruptData, UnsupportedFormat) as error:
                    self._unreadable.note(keys.ledger_key(ledger_id), error)
                    continue
                if job is not None:
                    jobs.append(job)

        await at_once(LOOKS_AT_ONCE, look)
        return deque(sorted(jobs))

    async def _job(
        self, ledger_id: int, bookies: tuple[str, ...], holes: Iterable[MissingRange]
    ) -> Job | None:
        """None: nothing can be done for the ledger now."""
        away = self.absences.away
        found = await self._metadata.get(keys.ledger_key(ledger_id))
        if found is None:
            return Job(3, 0, ledger_id, bookies, away)  # the index is behind
        ledger = LedgerMetadata.decode(found.key, found.value)
        if not ledger.closed:
            return None
        copies = sound_copies(ledger, away, holes)
        kind = (
            URGENT
            if copies <= 1
            else 1
            if copies < ledger.ack_quorum
            else 2
            if copies < ledger.write_quorum
            else 3
        )
        return Job(kind, ledger.length or 0, ledger_id, bookies, away)

    async def do(self, jobs: deque[Job]) -> None:
        """Do what is due of it still, several ledgers at a time."""
        self._jobs_left = jobs

        async def work() -> None:
            while jobs:
                job = jobs.popleft()
                with self._failures.contained(_unit_of(job.ledger_id)) as attempt:
                    await self._do_one(job)
                if attempt.failed:
                    self._held_up.note("an unexpected exception", f"ledger {job.ledger_id}")

        await at_once(LEDGERS_AT_ONCE, work)

    async def _do_one(self, job: Job) -> None:
        moved = False
        for bookie in job.bookies:
            if not self._due(job, bookie):
                continue  # it is back, or we are not the repairer any more
            if (job.ledger_id, bookie) in self._moves_out.under_way:
                break  # its other copies are checked after that
            try:
                if await self._handed_over(job, bookie):
                    break
                if moved and not await self._due_again(job, bookie):
                    continue  # haste ends where there is a second copy
                moved = await self.move(job.ledger_id, bookie) or moved
            except DistributedLogError as error:
                cause = f"on bookie {bookie}: {type(error).__name__}"
                self._held_up.note(cause, f"ledger {job.ledger_id}: {error}")

    async def _handed_over(self, job: Job, bookie: str) -> bool:
        """Does somebody fetch the ledger who takes the bookie's place? Where one can take it everywhere."""
        out = self._moves_out
        if not out.may_take(job.ledger_id, bookie, [one.id for one in self._targets.candidates()]):
            return False
        found = await self._metadata.get(keys.ledger_key(job.ledger_id))
        if found is None:
            return False
        ledger = LedgerMetadata.decode(found.key, found.value)
        places = [n for n, one in enumerate(ledger.ensembles) if bookie in one.bookies]
        if not ledger.closed or not places:
            return False
        slot = ledger.ensembles[places[0]].bookies.index(bookie)
        target = self._choose(ledger, places[0], slot, [])
        if any(target in ledger.ensembles[n].bookies for n in places):
            return False
        if not out.may_take(job.ledger_id, bookie, [target]):
            return False
        return await out.hand_over(
            ledger, found.version, target, ReplicaMove(bookie, job.kind, job.size_bytes)
        )

    def _due(self, job: Job, bookie: str) -> bool:
        """Is the job to be done still, at this moment?"""
        if bookie in self.absences.lost:
            return True
        urgent = job.kind == URGENT and bookie in self.absences.urgent
        return urgent and job.away <= self.absences.away

    async def _due_again(self, job: Job, bookie: str) -> bool:
        """And after another bookie's copies of the ledger were stored elsewhere?"""
        if bookie in self.absences.lost:
            return True
        note = await self._metadata.get(keys.under_key(job.ledger_id))
        holes = () if note is None else notes.decode(note.value)
        now = await self._job(job.ledger_id, (bookie,), holes)
        return now is not None and now.kind == URGENT

    async def move(self, ledger_id: int, bookie: str) -> bool:
        """Store one ledger's entries of ``bookie`` elsewhere. False: it is not closed, or changed meanwhile.

        Raises `NotEnoughBookies`, and what a copy raises.
        """
        record = keys.ledger_key(ledger_id)
        found = await self._metadata.get(record)
        if (
            found is None
            or bookie not in (ledger := LedgerMetadata.decode(found.key, found.value)).bookies()
        ):
            same = Compare.version(record, 0 if found is None else found.version)
            stale = Transaction((same,), (Delete(keys.on_key(bookie, ledger_id)),))
            return (await self._metadata.transact(stale)).succeeded
        if not ledger.closed:
            return False
        changed = ledger
        guards: dict[str, Compare] = {}
        for index, fragment in enumerate(ledger.ensembles):
            if bookie not in fragment.bookies:
                continue
            slot = fragment.bookies.index(bookie)
            chosen = self._choose(changed, index, slot, list(guards))
            cookie = await self._metadata.get(keys.cookie_key(chosen))
            target = self._pool.get(chosen)
            if cookie is None or target is None:
                return False  # it has gone just now
            # Each start counts its cookie up: a bookie that was started again holds what it holds.
            guards.setdefault(
                chosen, Compare.mod_revision(keys.cookie_key(chosen), cookie.mod_revision)
            )
            await self._copier.copy(ledger, held_by_slot(ledger, index, slot), chosen, target)
            changed = changed.with_bookie_replaced(index, slot, chosen)
        swap = transactions.change_ops(ledger, changed, found.version)
        reply = await self._metadata.transact(swap + Transaction(tuple(guards.values())))
        if reply.succeeded:
            self.moved += 1
            log.info("ledger %d: %s took the place of bookie %s", ledger_id, list(guards), bookie)
        return reply.succeeded

    def _choose(self, ledger: LedgerMetadata, index: int, slot: int, before: list[str]) -> str:
        """Who takes the slot: one that took another slot of this ledger, where it stands as well as any."""
        fragment = ledger.ensembles[index]
        here = set(fragment.bookies)
        candidates = [one for one in self._targets.candidates() if one.id not in self.absences.lost]
        by = self._successors.get(fragment.bookies[slot])
        if by not in here and any(one.id == by for one in candidates):
            return str(by)
        kept = {n: b for n, b in enumerate(fragment.bookies) if n != slot}
        labels = {one: self._targets.labels(one) for one in kept.values()}
        labels |= {one.id: one.labels for one in candidates}
        policy = self._targets.policy().preferred()

        def chosen(among: Sequence[Candidate]) -> str | None:
            return choose_replacements(
                ledger.striping,
                kept,
                [slot],
                among,
                self._targets.draw,
                excluded=here,
                labels=labels,
                policy=policy,
            ).get(slot)

        def apart(one: str) -> tuple[int, int]:
            there = [kept.get(n, one) for n in range(len(fragment.bookies))]
            return together(ledger.striping, there, labels, policy)

        found = chosen(candidates)
        if found is None:
            raise NotEnoughBookies(
                f"ledger {ledger.ledger_id}: nobody can take the place of {fragment.bookies[slot]}:"
                f" live are {sorted(one.id for one in candidates)}, in the ensemble {sorted(here)}"
            )
        again = chosen([one for one in candidates if one.id in before])
        return again if again is not None and apart(again) <= apart(found) else found

    async def _bid_farewell(self, bookie: str) -> None:
        """A drained bookie that is to leave and does not run is forgotten: its id is never used again."""
        if await self._metadata.get(keys.leaving_key(bookie)) is None:
            return
        if await self._metadata.get(keys.bookie_key(bookie)) is not None:
            return  # it runs, drained; whoever runs it stops it
        await LedgerDeletion(self._metadata, bookie, _nothing).work()
        last = Transaction(
            (Compare.exists(keys.leaving_key(bookie)), Compare.version(keys.bookie_key(bookie), 0)),
            (
                Delete(keys.cookie_key(bookie)),
                Delete(keys.seen_key(bookie)),
                Delete(keys.leaving_key(bookie)),
            ),
        )
        if (await self._metadata.transact(last)).succeeded:
            DECOMMISSIONED.say(log, "bookie %s was decommissioned", bookie, bookie=bookie)


def _unit_of(ledger_id: int) -> str:
    return f"the move of ledger {ledger_id} off a lost bookie"


async def at_once(count: int, work: Callable[[], Awaitable[None]]) -> None:
    """So many tasks of the same, until all are through. The first error of ours is raised."""
    failed: list[DistributedLogError] = []

    async def run() -> None:
        try:
            await work()
        except DistributedLogError as error:
            failed.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(run)
    if failed:
        raise failed[0]


async def _nothing(ledger_id: int) -> None:
    """What a bookie that is gone still has to delete went with it."""
