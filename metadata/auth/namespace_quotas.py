"""How much of the store a namespace may take, judged by the leader where rights are required (pure; H236).

Who may write a log may put keys into the store for as long as it likes, and everybody's metadata are in the
memory of the same nodes. So a namespace has a bound of keys, bytes and ledgers, its own or everybody's
(`trust_records.Bounds`). What would go beyond it is refused; what takes something away never is. A namespace
at its bound goes on where it makes nothing new: what is read, truncated and deleted, and what an open segment
needs to be closed, passes, and for that a change of what is there may still make it larger, a little, up to a
quarter beyond. A ledger is closed, a log claimed and deleted, however far beyond it is: its bound may have
been made less. What nodes do passes always: repair, recovery, retention.

Who may only read makes keys as well, positions of his own: they have nine tenths of each bound, so that no
reader keeps a writer from a new segment.

Counted is what is applied, and what is under way: so a burst goes no further than one by one would.
"""

from collections import deque
from collections.abc import Iterator, Mapping

from ...runtime.interfaces.errors import CorruptData, NamespaceFull, UnsupportedFormat
from ...runtime.interfaces.principals import BOOKIE, LOCAL, METADATA, kind_of
from ..model.acl_records import QUOTA_PREFIX, NamespaceQuota, quota_key
from ..model.transaction import Transaction
from ..state.kv_state import KeyValueState
from .key_space import KeySpace
from .namespace_usage import Growth, NamespaceUse, Use

CHANGE_BYTES = 1024
"""By so much a change of what is there may make a full namespace larger: a close in other ensembles does."""
BEYOND = 1.25
"""Times its bytes, and so far."""
OF_READERS = 0.9
"""Of a bound: what takes the right to read alone, a reader's own positions, leaves the rest to who writes."""
NOTHING: Mapping[str, Growth] = {}
SHOWN_MAX = 1000
"""Namespaces that are told of, the fullest first."""


class NamespaceQuotas:
    """Of one node."""

    def __init__(self, classes: KeySpace) -> None:
        self.use = NamespaceUse(classes)
        self._bounds: dict[str, NamespaceQuota] = {}
        self._bounds_as_of: tuple[object, int] = (None, -1)
        self._term = -1
        self._coming: deque[tuple[int, str, Growth]] = deque()
        """What was taken and is not applied: its place in the log, and what it adds to a namespace."""
        self._sums: dict[str, Use] = {}
        """Of that, by namespace."""

    def begin(self, term: int) -> None:
        """This node leads in that term. What it took in another one is in the state, or never will be."""
        if term != self._term:
            self._term = term
            self._coming.clear()
            self._sums.clear()

    def bounds(self, state: KeyValueState, namespace: str) -> NamespaceQuota:
        """Its own, or those of all that have none."""
        as_of = (state, state.trust_revision)
        if as_of != self._bounds_as_of:
            self._bounds_as_of = as_of
            self._bounds.clear()
        found = self._bounds.get(namespace)
        if found is None:
            found = self._bounds[namespace] = (
                _stored(state, namespace) or _stored(state, "") or NamespaceQuota()
            )
        return found

    def growth(self, principal: str, transaction: Transaction) -> Mapping[str, Growth]:
        """What is to be asked about, by namespace; nothing of who has no bound."""
        if principal == LOCAL or kind_of(principal) in (BOOKIE, METADATA):
            return NOTHING
        return self.use.growth(transaction)

    def why_not(self, state: KeyValueState, growth: Mapping[str, Growth]) -> NamespaceFull | None:
        """Why that is not taken now."""
        self._forget(state.index)
        for namespace, grown in growth.items():
            if grown.made <= 0 and grown.size_bytes <= 0 and grown.ledgers <= 0:
                continue
            now, bounds = self._now(namespace), self.bounds(state, namespace)
            share = OF_READERS if grown.of_readers else 1.0
            if grown.made > 0 and now.keys + grown.made > bounds.keys * share:
                return _over(namespace, now.keys, "keys", bounds.keys)
            if grown.ledgers > 0 and now.ledgers + grown.ledgers > bounds.ledgers:
                return _over(namespace, now.ledgers, "ledgers", bounds.ledgers)
            then = now.size_bytes + grown.size_bytes
            stays = grown.only_small and grown.made <= 0
            if grown.size_bytes > 0 and then > bounds.size_bytes * share and not stays:
                small = grown.made <= 0 and grown.size_bytes <= CHANGE_BYTES
                if not small or (then > bounds.size_bytes * BEYOND and not grown.ends):
                    return _over(namespace, now.size_bytes, "bytes", bounds.size_bytes)
        return None

    def _now(self, namespace: str) -> Use:
        now = Use()
        for use in (self.use.spaces.get(namespace), self._sums.get(namespace)):
            if use is not None:
                now.add(use.keys, use.size_bytes, use.ledgers)
        return now

    def on_taken(self, index: int, growth: Mapping[str, Growth]) -> None:
        """That was put into the log, at this place."""
        for namespace, grown in growth.items():
            if grown.keys > 0 or grown.size_bytes > 0:
                self._coming.append((index, namespace, grown))
                self._come(namespace, grown, 1)

    def _forget(self, index: int) -> None:
        while self._coming and self._coming[0][0] <= index:
            _, namespace, grown = self._coming.popleft()
            self._come(namespace, grown, -1)

    def _come(self, namespace: str, grown: Growth, times: int) -> None:
        use = self._sums.setdefault(namespace, Use())
        use.add(*(times * max(0, one) for one in (grown.keys, grown.size_bytes, grown.ledgers)))
        if not (use.keys or use.size_bytes):
            del self._sums[namespace]

    def told(self, state: KeyValueState) -> Iterator[tuple[str, Use, NamespaceQuota]]:
        """The namespaces that have anything, or bounds of their own, the fullest first, so many."""
        spaces = dict(self.use.spaces)
        for item in state.range(QUOTA_PREFIX, QUOTA_PREFIX + b"\xff", SHOWN_MAX).items:
            if name := item.key.removeprefix(QUOTA_PREFIX).decode(errors="replace"):
                spaces.setdefault(name, Use())
        rows = [(name, use, self.bounds(state, name)) for name, use in spaces.items()]
        rows.sort(key=lambda row: (-_full(row[1], row[2]), row[0]))
        yield from rows[:SHOWN_MAX]


def _stored(state: KeyValueState, namespace: str) -> NamespaceQuota | None:
    found = state.get(quota_key(namespace))
    try:
        return None if found is None else NamespaceQuota.decode(found.value)
    except (CorruptData, UnsupportedFormat):
        return None


def _full(use: Use, bounds: NamespaceQuota) -> float:
    return max(
        use.keys / max(1, bounds.keys),
        use.size_bytes / max(1, bounds.size_bytes),
        use.ledgers / max(1, bounds.ledgers),
    )


def _over(namespace: str, has: int, what: str, most: int) -> NamespaceFull:
    return NamespaceFull(
        f"namespace {namespace} has {has} {what} in the metadata, allowed are {most}: delete or truncate logs"
        " of it, or have an admin raise that (dlog trust quota)"
    )
