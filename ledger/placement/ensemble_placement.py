"""Choose bookies for the slots of an ensemble: separate hosts and racks, evenly filled disks (pure).

Of the bookies that are available for a slot, those remain that share the fewest hosts, then racks, with the
other slots of its write sets. One of them is selected at random, weighted by its free bytes. Two bookies of
one host share a write set only if no other host is left.

By default, this is a preference. If there are too few racks, bookies of one rack share a write set, so that
writes continue. An enforced policy applies to all new ensembles and ensemble changes of writers. Repair,
recovery and draining follow it if possible, because a copy in the wrong rack is better than none.

The source of randomness is an argument: ``random`` returns a number in [0, 1).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ..model.bookie_registration import BookieRegistration
from ..model.striping import Striping
from .placement_policy import PlacementPolicy

RandomFraction = Callable[[], float]
Labels = Mapping[str, str]

WEIGHT_MEDIANS_MAX = 3
"""A bookie is weighted as if it had at most this many times the median of free bytes.

A new, empty bookie is then not selected for every ledger (H101).
"""
SEARCH_STEPS_MAX = 2_000
"""The maximum steps of the search for a better placement, if the first choice leaves copies together."""

_Location = tuple[str, ...]
"""The location of a bookie: its host, then the labels from the narrowest to the policy's level."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A bookie that can be chosen for a slot."""

    id: str
    labels: Labels = field(default_factory=dict)
    """Its location by `placement_policy.LEVELS`. A missing label is unknown."""
    is_unavailable: bool = False
    """Whether it accepts no entries now: it is unreachable, read-only, or being decommissioned.

    It can still be named in a slot that starts detached (H22b).
    """
    is_leaving: bool = False
    """Whether it is being decommissioned. A detached slot names it only if no other bookie can be named."""
    free_bytes: int = 0


def ensemble_candidates(
    reachable: Iterable[BookieRegistration],
    known_ids: Iterable[str],
    leaving: Collection[str],
    labels: Callable[[str], Labels],
) -> list[Candidate]:
    """Return all bookies that a new ledger's ensemble can name, including those that accept no entries now.

    New ledgers, the cluster's health and the check before nodes are stopped all use this rule.

    Args:
        reachable: Registrations of bookies that can be reached now.
        known_ids: IDs of all bookies with a cookie or a registration.
        leaving: IDs of bookies that are being decommissioned.
        labels: Returns the cached labels of a bookie that is unreachable.
    """
    by_id = {
        registration.id: Candidate(
            registration.id,
            registration.where(),
            is_unavailable=registration.read_only or registration.id in leaving,
            is_leaving=registration.id in leaving,
            free_bytes=registration.free_bytes,
        )
        for registration in reachable
    }
    for bookie in known_ids:
        if bookie not in by_id:
            by_id[bookie] = Candidate(
                bookie, labels(bookie), is_unavailable=True, is_leaving=bookie in leaving
            )
    return [by_id[bookie] for bookie in sorted(by_id)]


def choose_replacements(
    striping: Striping,
    kept_bookies: dict[int, str],
    slots: Sequence[int],
    candidates: Sequence[Candidate],
    random: RandomFraction,
    *,
    excluded: Collection[str] = (),
    labels: Mapping[str, Labels] | None = None,
    policy: PlacementPolicy | None = None,
) -> dict[int, str]:
    """Choose a live bookie for each of ``slots``, as far as there are enough.

    Args:
        striping: The quorum sizes.
        kept_bookies: The bookies of the slots that remain.
        slots: The slots to fill.
        candidates: The bookies to choose from.
        random: Returns random numbers in [0, 1).
        excluded: IDs of bookies that must not be chosen.
        labels: The available labels of the kept bookies.
        policy: The placement policy. If it is enforced, a slot stays empty if any bookie would leave a
            write set with too few domains.

    Returns:
        The bookie ID by slot.
    """
    policy = policy or PlacementPolicy()
    labels_by_id: dict[str, Labels] = dict(labels or {})
    labels_by_id.update({candidate.id: candidate.labels for candidate in candidates})
    available = [
        candidate
        for candidate in sorted(candidates, key=lambda c: c.id)
        if not candidate.is_unavailable
        and candidate.id not in kept_bookies.values()
        and candidate.id not in excluded
    ]
    locations = {
        candidate: policy.location(labels_by_id.get(candidate, {}))
        for candidate in [*kept_bookies.values(), *(c.id for c in available)]
    }
    placement = _PartialPlacement(
        striping, {n: locations[candidate] for n, candidate in kept_bookies.items()}, policy
    )
    weights = _weights(available)
    chosen = _choose_slot_by_slot(placement, slots, available, locations, weights, random)
    if (
        striping.is_unstriped
        or placement.shares_nothing(slots)
        or len({locations[candidate.id] for candidate in available}) < 2
    ):
        return chosen
    improved = _PlacementSearch(
        placement, slots, [locations[candidate.id] for candidate in available]
    ).find_improved()
    if improved is None:
        return chosen
    chosen = {}
    for slot, location in improved.items():
        remaining = [
            candidate
            for candidate in available
            if locations[candidate.id] == location and candidate.id not in chosen.values()
        ]
        chosen[slot] = _pick_weighted(remaining, weights, random).id
    return chosen


def _choose_slot_by_slot(
    placement: "_PartialPlacement",
    slots: Sequence[int],
    available: Sequence[Candidate],
    locations: Mapping[str, _Location],
    weights: Mapping[str, int],
    random: RandomFraction,
) -> dict[int, str]:
    """Assign to each slot in turn an allowed bookie that shares the fewest labels with its write sets.

    Adds the locations of the chosen bookies to ``placement``.
    """
    chosen: dict[int, str] = {}
    for slot in slots:
        remaining = [candidate for candidate in available if candidate.id not in chosen.values()]
        costs = {
            candidate.id: placement.sharing_cost(slot, locations[candidate.id])
            for candidate in remaining
        }
        allowed = [
            candidate
            for candidate in remaining
            if placement.is_allowed(slot, locations[candidate.id])
        ]
        if not allowed:
            if placement.policy.enforced:
                continue  # neighbours of another slot may allow one of them
            break
        lowest_cost = min(costs[candidate.id] for candidate in allowed)
        pick = _pick_weighted(
            [candidate for candidate in allowed if costs[candidate.id] == lowest_cost],
            weights,
            random,
        )
        chosen[slot] = pick.id
        placement.assign(slot, locations[pick.id])
    return chosen


def choose_ensemble(
    striping: Striping,
    candidates: Sequence[Candidate],
    random: RandomFraction,
    policy: PlacementPolicy | None = None,
) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Choose the ensemble of a new ledger.

    Slots without a writable bookie name one that accepts no entries now, if every write set keeps its ack
    quorum (H22b).

    Returns:
        The bookies by slot, and the slots that start detached. None if there are not enough bookies, or not
        enough domains for an enforced policy.
    """
    size = striping.ensemble_size
    live_count = sum(not candidate.is_unavailable for candidate in candidates)
    # Spread the slots without a live bookie: with E > Qw, adjacent slots share their write sets.
    empty_slots = _spread_slots(size, max(0, size - live_count), int(random() * size))
    if not striping.keeps_ack_quorums([slot for slot in range(size) if slot not in empty_slots]):
        return None
    slots = [slot for slot in range(size) if slot not in empty_slots]
    chosen = choose_replacements(striping, {}, slots, candidates, random, policy=policy)
    down = sorted(
        candidate.id
        for candidate in candidates
        if candidate.is_unavailable and not candidate.is_leaving
    )
    leaving = sorted(
        candidate.id
        for candidate in candidates
        if candidate.is_unavailable and candidate.is_leaving
    )
    if len(chosen) < len(slots) or len(down) + len(leaving) < len(empty_slots):
        return None
    if policy is not None and policy.enforced:
        locations = {candidate.id: policy.location(candidate.labels) for candidate in candidates}
        placement = _PartialPlacement(
            striping, {slot: locations[candidate] for slot, candidate in chosen.items()}, policy
        )
        if placement.count_short_write_sets():
            return None
    for slot in empty_slots:
        candidates_left = down or leaving
        chosen[slot] = candidates_left.pop(int(random() * len(candidates_left)))
    return tuple(chosen[slot] for slot in range(size)), tuple(sorted(empty_slots))


def can_place(
    striping: Striping, candidates: Sequence[Candidate], policy: PlacementPolicy | None = None
) -> bool:
    """Whether a ledger with these quorums could be created and written on these bookies now."""
    return choose_ensemble(striping, candidates, lambda: 0.0, policy) is not None


def failures_tolerated(striping: Striping, candidates: Sequence[Candidate]) -> int:
    """Return how many more bookies can fail before no ledger can be created; -1 if none can be created now.

    Domains are not counted. An enforced policy may stop writes earlier.
    """
    up = [candidate for candidate in candidates if not candidate.is_unavailable]
    others = [candidate for candidate in candidates if candidate.is_unavailable]
    for failed in range(len(up) + 1):
        down = [replace(candidate, is_unavailable=True) for candidate in up[:failed]]
        if not can_place(striping, [*down, *up[failed:], *others]):
            return failed - 1
    return len(up)


def placement_violations(
    striping: Striping,
    bookies: Sequence[str],
    labels: Mapping[str, Labels],
    policy: PlacementPolicy,
) -> tuple[int, int]:
    """Return how far an ensemble is from the placement policy.

    Bookies without labels are ignored. The first number is then 0. For the level "host" it is always 0.

    Returns:
        The number of write sets with too few domains, and the number of pairs of neighbours on one host.
    """
    placement = _PartialPlacement(
        striping,
        {
            n: policy.location(labels[bookie])
            for n, bookie in enumerate(bookies)
            if labels.get(bookie)
        },
        policy,
    )
    pairs = sum(
        placement.sharing_cost(n, location)[0] for n, location in placement.location_by_slot.items()
    )
    labels_incomplete = len(placement.location_by_slot) < len(bookies) or policy.level == "host"
    return 0 if labels_incomplete else placement.count_short_write_sets(), pairs // 2


def describe_violations(
    striping: Striping,
    bookies: Sequence[str],
    labels: Mapping[str, Labels],
    policy: PlacementPolicy,
) -> list[str]:
    """Return the violations of the policy in an ensemble, as text.

    Bookies without labels cause no violation.
    """
    violations: dict[str, None] = {}
    domains_min = min(policy.at_least, striping.write_quorum)
    for window in striping.all_write_sets():
        write_set = [bookies[slot] for slot in window]
        by_host: dict[str, list[str]] = {}
        for bookie in write_set:
            if host := labels.get(bookie, {}).get("host", ""):
                by_host.setdefault(host, []).append(bookie)
        for host, sharing in by_host.items():
            if len(sharing) > 1:
                violations[f"{_join_names(sharing)} share host {host}"] = None
        domains = [labels.get(bookie, {}).get(policy.level, "") for bookie in write_set]
        if policy.level != "host" and all(domains) and len(set(domains)) < domains_min:
            violations[
                f"{_join_names(write_set)} are in {len(set(domains))} {policy.level}, not {domains_min}"
            ] = None
    return list(violations)


def _join_names(bookies: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(sorted(bookies)[:-1]), max(bookies)]))


class _PartialPlacement:
    """The locations of the slots that are filled so far, and the cost of filling another one."""

    def __init__(
        self, striping: Striping, location_by_slot: dict[int, _Location], policy: PlacementPolicy
    ) -> None:
        self.striping = striping
        self.location_by_slot = location_by_slot
        self.policy = policy
        self._domains_min = min(policy.at_least, striping.write_quorum)

    def sharing_cost(self, slot: int, location: _Location) -> tuple[int, ...]:
        """Return the number of neighbouring slots that share each label of ``location``, the host first."""
        neighbour_locations = [
            self.location_by_slot[n]
            for n in _neighbours(self.striping, slot)
            if n in self.location_by_slot
        ]
        return tuple(
            sum(_is_shared(level, label, neighbour[level]) for neighbour in neighbour_locations)
            for level, label in enumerate(location)
        )

    def is_allowed(self, slot: int, location: _Location) -> bool:
        """Whether each write set of the slot would have enough domains, or gain one."""
        if not self.policy.enforced:
            return True
        domain = location[-1]  # the label of the policy's level
        if not domain:
            return False  # an unknown domain cannot satisfy an enforced policy
        for window in self.striping.all_write_sets():
            if slot in window:
                domains = {
                    self.location_by_slot[n][-1]
                    for n in window
                    if n in self.location_by_slot and n != slot
                } - {""}
                if len(domains) < self._domains_min and domain in domains:
                    return False
        return True

    def count_short_write_sets(self) -> int:
        """Return the number of write sets with too few domains."""
        return sum(
            len({self.location_by_slot[n][-1] for n in window if n in self.location_by_slot} - {""})
            < self._domains_min
            for window in self.striping.all_write_sets()
        )

    def assign(self, slot: int, location: _Location) -> None:
        self.location_by_slot[slot] = location

    def shares_nothing(self, slots: Sequence[int]) -> bool:
        """Whether each slot has a location that shares no label with its neighbours."""
        return all(
            slot in self.location_by_slot
            and not any(self.sharing_cost(slot, self.location_by_slot[slot]))
            for slot in slots
        )


class _PlacementSearch:
    """Search depth-first for locations of the slots that share fewer labels.

    The search tries locations, not bookies. It is for ensembles that are larger than a write set. There,
    choosing slot by slot may leave the last slot between two slots of the same host, although another order
    avoids this. If each write set is the whole ensemble, this never happens.
    """

    def __init__(
        self, placement: _PartialPlacement, slots: Sequence[int], locations: Sequence[_Location]
    ) -> None:
        self._placement = placement
        self._slots = list(slots)
        self._remaining: dict[_Location, int] = {}
        for location in locations:
            self._remaining[location] = self._remaining.get(location, 0) + 1
        self._steps = 0
        first = {
            slot: placement.location_by_slot[slot]
            for slot in slots
            if slot in placement.location_by_slot
        }
        for slot in first:
            del placement.location_by_slot[slot]
        self._best_cost = self._cost_of(first)
        self._best: dict[int, _Location] | None = None

    def find_improved(self) -> dict[int, _Location] | None:
        """Return locations by slot that cost less than the first choice; None if none was found."""
        self._search({}, (0,) * len(self._best_cost))
        return self._best

    def _cost_of(self, placed: dict[int, _Location]) -> tuple[int, ...]:
        """Return the number of slots without a location, then the number of shared labels per level."""
        total = [0, *(0 for _ in next(iter(self._remaining), ()))]
        for slot in self._slots:
            if slot not in placed:
                total[0] += 1
                continue
            for level, count in enumerate(self._placement.sharing_cost(slot, placed[slot])):
                total[level + 1] += count
            self._placement.assign(slot, placed[slot])
        for slot in placed:
            del self._placement.location_by_slot[slot]
        return tuple(total)

    def _search(self, placed: dict[int, _Location], cost: tuple[int, ...]) -> None:
        self._steps += 1
        if self._steps > SEARCH_STEPS_MAX or cost >= self._best_cost:
            return
        if len(placed) == len(self._slots):
            self._best, self._best_cost = dict(placed), cost
            return
        slot = self._slots[len(placed)]
        for location, added_cost in sorted(self._options(slot), key=lambda each: each[1]):
            self._remaining[location] -= 1
            self._placement.assign(slot, location)
            self._search(
                {**placed, slot: location}, tuple(map(sum, zip(cost, added_cost, strict=True)))
            )
            del self._placement.location_by_slot[slot]
            self._remaining[location] += 1

    def _options(self, slot: int) -> Iterator[tuple[_Location, tuple[int, ...]]]:
        for location, count in self._remaining.items():
            if count and self._placement.is_allowed(slot, location):
                yield location, (0, *self._placement.sharing_cost(slot, location))


def _is_shared(level: int, label: str, other_label: str) -> bool:
    """Whether two locations share a label.

    Unknown hosts count as different. Unknown racks and wider domains count as the same.
    """
    return label == other_label and (level > 0 or label != "")


def _weights(free: Sequence[Candidate]) -> dict[str, int]:
    weight_max = (
        int(WEIGHT_MEDIANS_MAX * median(candidate.free_bytes for candidate in free)) if free else 0
    )
    return {candidate.id: max(1, min(candidate.free_bytes, weight_max)) for candidate in free}


def _pick_weighted(
    candidates: Sequence[Candidate], weights: Mapping[str, int], random: RandomFraction
) -> Candidate:
    threshold = random() * sum(weights[candidate.id] for candidate in candidates)
    for candidate in candidates:
        threshold -= weights[candidate.id]
        if threshold < 0:
            return candidate
    return candidates[-1]


def _neighbours(striping: Striping, slot: int) -> list[int]:
    """Return the other slots that share a write set with ``slot``."""
    size, reach = striping.ensemble_size, striping.write_quorum - 1
    nearby_slots = {(slot + k) % size for k in range(-reach, reach + 1)}
    return sorted(nearby_slots - {slot})


def _spread_slots(size: int, count: int, start: int) -> list[int]:
    """Return ``count`` of ``size`` slots, as far apart as possible."""
    return [(start + k * size // count) % size for k in range(count)] if count else []
