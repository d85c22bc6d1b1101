"""Choosing bookies for the slots of an ensemble: copies on hosts and racks apart, disks filled evenly (pure).

Of those who may take a slot the ones that share the fewest hosts, then racks, with the slots of its write
sets are left, and one is drawn by its free bytes. Two of one host come together only where no other host
is left. All this is a preference, never a promise: where racks are few, bookies of one rack share a write
set rather than that nothing is written. Enforced it is a promise for what is written from then on: new
ensembles, and bookies that take a place in one. What repair, recovery and drains store keeps to it where
that can be, for a copy in the wrong rack is worth more than none.

Chance is an argument: ``draw`` gives a number in [0, 1).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ..model.bookie_registration import BookieRegistration
from ..model.striping import Striping
from .placement_policy import PlacementPolicy

Draw = Callable[[], float]
Labels = Mapping[str, str]

WEIGHT_MEDIANS_MAX = 3
"""Nobody is drawn as if it had more free bytes than so many times the median's: a new bookie is not
chosen by everybody (H101)."""
SEARCHED_MAX = 2_000
"""Places tried at most where the first choice leaves copies together that might be apart."""

_Place = tuple[str, ...]
"""Where a bookie stands: its host, then the labels from the narrowest to the policy's level."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A bookie that may be chosen."""

    id: str
    labels: Labels = field(default_factory=dict)
    """Where it stands: `placement_policy.LEVELS`; one that is not there is not known."""
    down: bool = False
    """Takes no entries now: it is not reachable, is read-only, or leaves the cluster. May hold a slot that
    starts detached (H22b)."""
    leaving: bool = False
    """It leaves the cluster. A detached slot names it only if no other bookie can be named."""
    free_bytes: int = 0


def ensemble_candidates(
    reachable: Iterable[BookieRegistration],
    known: Iterable[str],
    leaving: Collection[str],
    labels: Callable[[str], Labels],
) -> list[Candidate]:
    """Return all bookies that a new ledger's ensemble can name; those that take no entries are ``down``.

    The one rule for new ledgers, for the cluster's health and for the check before nodes are stopped.

    Args:
        reachable: Registrations of bookies that can be reached now.
        known: IDs of all bookies with a cookie or a registration.
        leaving: IDs of bookies that are being decommissioned.
        labels: Known labels of a bookie that is not reachable.
    """
    found = {
        one.id: Candidate(
            one.id,
            one.where(),
            down=one.read_only or one.id in leaving,
            leaving=one.id in leaving,
            free_bytes=one.free_bytes,
        )
        for one in reachable
    }
    for bookie in known:
        if bookie not in found:
            found[bookie] = Candidate(bookie, labels(bookie), down=True, leaving=bookie in leaving)
    return [found[bookie] for bookie in sorted(found)]


def choose_replacements(
    striping: Striping,
    kept: dict[int, str],
    slots: Sequence[int],
    candidates: Sequence[Candidate],
    draw: Draw,
    *,
    excluded: Collection[str] = (),
    labels: Mapping[str, Labels] | None = None,
    policy: PlacementPolicy | None = None,
) -> dict[int, str]:
    """A live bookie for each of ``slots`` as far as there are any: slot -> bookie id.

    ``kept`` are the slots that stay, with their bookies; ``labels`` theirs where known. Where ``policy``
    is enforced, a slot stays empty rather than that it leaves a write set short of domains.
    """
    policy = policy or PlacementPolicy()
    known: dict[str, Labels] = dict(labels or {})
    known.update({one.id: one.labels for one in candidates})
    free = [
        one
        for one in sorted(candidates, key=lambda c: c.id)
        if not one.down and one.id not in kept.values() and one.id not in excluded
    ]
    places = {
        one: policy.place(known.get(one, {})) for one in [*kept.values(), *(c.id for c in free)]
    }
    choice = _Choice(striping, {n: places[one] for n, one in kept.items()}, policy)
    weights = _weights(free)
    chosen: dict[int, str] = {}
    for slot in slots:
        left = [one for one in free if one.id not in chosen.values()]
        costs = {one.id: choice.cost(slot, places[one.id]) for one in left}
        allowed = [one for one in left if choice.allows(slot, places[one.id])]
        if not allowed:
            if policy.enforced:
                continue  # another slot's neighbours may take one of them
            break
        least = min(costs[one.id] for one in allowed)
        pick = _drawn([one for one in allowed if costs[one.id] == least], weights, draw)
        chosen[slot] = pick.id
        choice.take(slot, places[pick.id])
    if striping.everywhere or choice.perfect(slots) or len({places[one.id] for one in free}) < 2:
        return chosen
    better = _Search(choice, slots, [places[one.id] for one in free]).better()
    if better is None:
        return chosen
    chosen = {}
    for slot, place in better.items():
        left = [one for one in free if places[one.id] == place and one.id not in chosen.values()]
        chosen[slot] = _drawn(left, weights, draw).id
    return chosen


def choose_ensemble(
    striping: Striping,
    candidates: Sequence[Candidate],
    draw: Draw,
    policy: PlacementPolicy | None = None,
) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """An ensemble for a new ledger: the bookies by slot, and the slots that start detached.

    Slots without a writable bookie name a known one that takes no entries now, while every write set keeps
    its ack quorum (H22b). None: not enough bookies for that, or, if ``policy`` is enforced, not enough
    domains.
    """
    size = striping.ensemble_size
    live = sum(not one.down for one in candidates)
    # Slots without a live bookie are spread: with E > Qw neighbours would share their write sets.
    empty = _spread(size, max(0, size - live), int(draw() * size))
    if not striping.ackable([slot for slot in range(size) if slot not in empty]):
        return None
    slots = [slot for slot in range(size) if slot not in empty]
    chosen = choose_replacements(striping, {}, slots, candidates, draw, policy=policy)
    down = sorted(one.id for one in candidates if one.down and not one.leaving)
    leaving = sorted(one.id for one in candidates if one.down and one.leaving)
    if len(chosen) < len(slots) or len(down) + len(leaving) < len(empty):
        return None
    if policy is not None and policy.enforced:
        of = {one.id: policy.place(one.labels) for one in candidates}
        choice = _Choice(striping, {slot: of[one] for slot, one in chosen.items()}, policy)
        if choice.short_sets():
            return None
    for slot in empty:
        left = down or leaving
        chosen[slot] = left.pop(int(draw() * len(left)))
    return tuple(chosen[slot] for slot in range(size)), tuple(sorted(empty))


def can_place(
    striping: Striping, candidates: Sequence[Candidate], policy: PlacementPolicy | None = None
) -> bool:
    """Whether a ledger with these quorums could be created and written on these bookies now."""
    return choose_ensemble(striping, candidates, lambda: 0.0, policy) is not None


def failures_left(striping: Striping, candidates: Sequence[Candidate]) -> int:
    """Return how many more bookies can fail before no ledger can be created, -1 if none can be now.

    Domains are not counted: a policy that is enforced may stop writes earlier.
    """
    up = [one for one in candidates if not one.down]
    rest = [one for one in candidates if one.down]
    for failed in range(len(up) + 1):
        down = [replace(one, down=True) for one in up[:failed]]
        if not can_place(striping, [*down, *up[failed:], *rest]):
            return failed - 1
    return len(up)


def together(
    striping: Striping,
    bookies: Sequence[str],
    labels: Mapping[str, Labels],
    policy: PlacementPolicy,
) -> tuple[int, int]:
    """How far an ensemble is from what is wanted: write sets that are short of domains, pairs on one host.

    Whose labels are not known counts for nothing.
    """
    choice = _Choice(
        striping,
        {n: policy.place(labels[one]) for n, one in enumerate(bookies) if labels.get(one)},
        policy,
    )
    pairs = sum(choice.cost(n, place)[0] for n, place in choice.taken.items())
    unknown = len(choice.taken) < len(bookies) or policy.level == "host"
    return 0 if unknown else choice.short_sets(), pairs // 2


def not_adhering(
    striping: Striping,
    bookies: Sequence[str],
    labels: Mapping[str, Labels],
    policy: PlacementPolicy,
) -> list[str]:
    """What of an ensemble is not as the policy wants it: which bookies stand together, in words.

    Whose labels are not known is not counted, neither for nor against.
    """
    found: dict[str, None] = {}
    need = min(policy.at_least, striping.write_quorum)
    for window in striping.windows():
        here = [bookies[slot] for slot in window]
        by_host: dict[str, list[str]] = {}
        for one in here:
            if host := labels.get(one, {}).get("host", ""):
                by_host.setdefault(host, []).append(one)
        for host, together in by_host.items():
            if len(together) > 1:
                found[f"{_listed(together)} stand on one host ({host})"] = None
        domains = [labels.get(one, {}).get(policy.level, "") for one in here]
        if policy.level != "host" and all(domains) and len(set(domains)) < need:
            found[f"{_listed(here)} stand in {len(set(domains))} {policy.level}, not {need}"] = None
    return list(found)


def _listed(bookies: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(sorted(bookies)[:-1]), max(bookies)]))


class _Choice:
    """Which places the slots have so far, and what one more costs."""

    def __init__(
        self, striping: Striping, taken: dict[int, _Place], policy: PlacementPolicy
    ) -> None:
        self.striping = striping
        self.taken = taken
        self.policy = policy
        self._need = min(policy.at_least, striping.write_quorum)

    def cost(self, slot: int, place: _Place) -> tuple[int, ...]:
        """How many slots of the same write sets it would share each label with, the host first."""
        near = [self.taken[n] for n in _neighbours(self.striping, slot) if n in self.taken]
        return tuple(
            sum(_shares(level, one, other[level]) for other in near)
            for level, one in enumerate(place)
        )

    def allows(self, slot: int, place: _Place) -> bool:
        """Would each write set with this slot have its domains, or one more than without?"""
        if not self.policy.enforced:
            return True
        domain = place[-1]
        if not domain:
            return False
        for window in self.striping.windows():
            if slot in window:
                there = {self.taken[n][-1] for n in window if n in self.taken and n != slot} - {""}
                if len(there) < self._need and domain in there:
                    return False
        return True

    def short_sets(self) -> int:
        """How many write sets have fewer domains than they need?"""
        return sum(
            len({self.taken[n][-1] for n in window if n in self.taken} - {""}) < self._need
            for window in self.striping.windows()
        )

    def take(self, slot: int, place: _Place) -> None:
        """It is the slot's from now on."""
        self.taken[slot] = place

    def perfect(self, slots: Sequence[int]) -> bool:
        """Has each slot a place that it shares with nobody near?"""
        return all(
            slot in self.taken and not any(self.cost(slot, self.taken[slot])) for slot in slots
        )


class _Search:
    """Depth first, over places and not bookies: which place for which slot leaves the fewest together.

    For ensembles larger than a write set: there the first choice may leave the last slot between two of
    its own host, though another order would not. Where write sets are whole ensembles it never does.
    """

    def __init__(self, choice: _Choice, slots: Sequence[int], places: Sequence[_Place]) -> None:
        self._choice = choice
        self._slots = list(slots)
        self._left: dict[_Place, int] = {}
        for one in places:
            self._left[one] = self._left.get(one, 0) + 1
        self._tried = 0
        first = {slot: choice.taken[slot] for slot in slots if slot in choice.taken}
        for slot in first:
            del choice.taken[slot]
        self._best_cost = self._cost_of(first)
        self._best: dict[int, _Place] | None = None

    def better(self) -> dict[int, _Place] | None:
        """Places by slot that cost less than the first choice did; None where none was found."""
        self._go({}, (0,) * len(self._best_cost))
        return self._best

    def _cost_of(self, placed: dict[int, _Place]) -> tuple[int, ...]:
        """Slots without a place, then what is shared."""
        total = [0, *(0 for _ in next(iter(self._left), ()))]
        for slot in self._slots:
            if slot not in placed:
                total[0] += 1
                continue
            for level, count in enumerate(self._choice.cost(slot, placed[slot])):
                total[level + 1] += count
            self._choice.take(slot, placed[slot])
        for slot in placed:
            del self._choice.taken[slot]
        return tuple(total)

    def _go(self, placed: dict[int, _Place], cost: tuple[int, ...]) -> None:
        self._tried += 1
        if self._tried > SEARCHED_MAX or cost >= self._best_cost:
            return
        if len(placed) == len(self._slots):
            self._best, self._best_cost = dict(placed), cost
            return
        slot = self._slots[len(placed)]
        for place, more in sorted(self._options(slot), key=lambda each: each[1]):
            self._left[place] -= 1
            self._choice.take(slot, place)
            self._go({**placed, slot: place}, tuple(map(sum, zip(cost, more, strict=True))))
            del self._choice.taken[slot]
            self._left[place] += 1

    def _options(self, slot: int) -> Iterator[tuple[_Place, tuple[int, ...]]]:
        for place, count in self._left.items():
            if count and self._choice.allows(slot, place):
                yield place, (0, *self._choice.cost(slot, place))


def _shares(level: int, one: str, other: str) -> bool:
    """A host that nobody named is one of its own; racks and above that nobody named are one together."""
    return one == other and (level > 0 or one != "")


def _weights(free: Sequence[Candidate]) -> dict[str, int]:
    most = int(WEIGHT_MEDIANS_MAX * median(one.free_bytes for one in free)) if free else 0
    return {one.id: max(1, min(one.free_bytes, most)) for one in free}


def _drawn(among: Sequence[Candidate], weights: Mapping[str, int], draw: Draw) -> Candidate:
    """One of them, by weight."""
    at = draw() * sum(weights[one.id] for one in among)
    for one in among:
        at -= weights[one.id]
        if at < 0:
            return one
    return among[-1]


def _neighbours(striping: Striping, slot: int) -> list[int]:
    """The other slots that share a write set with ``slot``."""
    size, reach = striping.ensemble_size, striping.write_quorum - 1
    near = {(slot + k) % size for k in range(-reach, reach + 1)}
    return sorted(near - {slot})


def _spread(size: int, count: int, start: int) -> list[int]:
    """``count`` of ``size`` slots, as far apart as can be."""
    return [(start + k * size // count) % size for k in range(count)] if count else []
