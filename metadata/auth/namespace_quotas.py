"""Limits of the metadata of a namespace, applied by the leader in mode "required" (pure; H236).

A client that may write a log can put keys without end, and the metadata of all namespaces are in the memory
of the same nodes. So each namespace has a limit of keys, bytes and ledgers, its own or the default
(`acl_records.NamespaceQuota`). Changes beyond the limit are refused, and deletions never are.

A namespace at its limit continues to work as long as nothing new is created. Reads, truncations, deletions
and the steps that close an open segment are accepted. For these, a change of an existing key may still add
some bytes, up to a quarter beyond the limit. A ledger can be closed and a log claimed or deleted with any
usage, because the limit may have been lowered. Changes by nodes are always accepted: repair, recovery,
retention.

Readers create keys as well, for their own positions. They may use nine tenths of each limit, so that no
reader keeps a writer from a new segment.

Applied and pending commands are both counted, so a burst has the same limit as single commands.
"""

from collections import deque
from collections.abc import Iterator, Mapping

from ...runtime.interfaces.errors import CorruptData, NamespaceFull, UnsupportedFormat
from ...runtime.interfaces.principals import BOOKIE, LOCAL, METADATA, principal_kind
from ..model.acl_records import QUOTA_PREFIX, NamespaceQuota, quota_key
from ..model.transaction import Transaction
from ..state.kv_state import KeyValueState
from .key_space import KeySpace
from .namespace_usage import NamespaceUsage, NamespaceUsageCounter, UsageGrowth

FULL_NAMESPACE_CHANGE_BYTES = 1024
"""A change of existing keys may add this many bytes to a full namespace.

For example, closing a ledger after ensemble changes does.
"""
QUOTA_TOLERANCE_FACTOR = 1.25
"""Factor of the byte limit up to which such changes are accepted."""
READER_QUOTA_FRACTION = 0.9
"""Part of a limit for keys that need only the right to read, such as a reader's positions.

The rest is reserved for writers.
"""
NO_GROWTH: Mapping[str, UsageGrowth] = {}
NAMESPACES_REPORTED_MAX = 1000
"""Number of namespaces in a report, the fullest first."""


class NamespaceQuotas:
    """The quotas of all namespaces on one node."""

    def __init__(self, classes: KeySpace) -> None:
        self.usage = NamespaceUsageCounter(classes)
        self._quota_by_namespace: dict[str, NamespaceQuota] = {}
        self._quotas_version: tuple[object, int] = (None, -1)
        self._term = -1
        self._pending_growth: deque[tuple[int, str, UsageGrowth]] = deque()
        """Accepted commands that are not applied: log index, namespace, and growth."""
        self._pending_by_namespace: dict[str, NamespaceUsage] = {}
        """Sum of this growth by namespace."""

    def begin_term(self, term: int) -> None:
        """Start a term as leader. Commands of earlier terms are in the state, or never will be."""
        if term != self._term:
            self._term = term
            self._pending_growth.clear()
            self._pending_by_namespace.clear()

    def quota_of(self, state: KeyValueState, namespace: str) -> NamespaceQuota:
        """Return the quota of a namespace, or the default if it has none."""
        version = (state, state.authorization_revision)
        if version != self._quotas_version:
            self._quotas_version = version
            self._quota_by_namespace.clear()
        quota = self._quota_by_namespace.get(namespace)
        if quota is None:
            quota = self._quota_by_namespace[namespace] = (
                _stored_quota(state, namespace) or _stored_quota(state, "") or NamespaceQuota()
            )
        return quota

    def growth_by_namespace(
        self, principal: str, transaction: Transaction
    ) -> Mapping[str, UsageGrowth]:
        """Return the growth of namespaces by a transaction, or nothing if the principal has no limit."""
        if principal == LOCAL or principal_kind(principal) in (BOOKIE, METADATA):
            return NO_GROWTH
        return self.usage.growth_by_namespace(transaction)

    def quota_error(
        self, state: KeyValueState, growth_by_namespace: Mapping[str, UsageGrowth]
    ) -> NamespaceFull | None:
        """Return why the growth is not accepted now, or None."""
        self._drop_applied(state.index)
        for namespace, namespace_growth in growth_by_namespace.items():
            if (
                namespace_growth.new_keys <= 0
                and namespace_growth.size_bytes <= 0
                and namespace_growth.ledgers <= 0
            ):
                continue
            current, quota = self._usage_with_pending(namespace), self.quota_of(state, namespace)
            quota_fraction = READER_QUOTA_FRACTION if namespace_growth.by_reader else 1.0
            if (
                namespace_growth.new_keys > 0
                and current.keys + namespace_growth.new_keys > quota.keys * quota_fraction
            ):
                return _namespace_full_error(namespace, current.keys, "keys", quota.keys)
            if (
                namespace_growth.ledgers > 0
                and current.ledgers + namespace_growth.ledgers > quota.ledgers
            ):
                return _namespace_full_error(namespace, current.ledgers, "ledgers", quota.ledgers)
            size_after = current.size_bytes + namespace_growth.size_bytes
            makes_nothing_new = namespace_growth.only_small and namespace_growth.new_keys <= 0
            if (
                namespace_growth.size_bytes > 0
                and size_after > quota.size_bytes * quota_fraction
                and not makes_nothing_new
            ):
                is_small_change = (
                    namespace_growth.new_keys <= 0
                    and namespace_growth.size_bytes <= FULL_NAMESPACE_CHANGE_BYTES
                )
                if not is_small_change or (
                    size_after > quota.size_bytes * QUOTA_TOLERANCE_FACTOR
                    and not namespace_growth.advances_stage
                ):
                    return _namespace_full_error(
                        namespace, current.size_bytes, "bytes", quota.size_bytes
                    )
        return None

    def _usage_with_pending(self, namespace: str) -> NamespaceUsage:
        total = NamespaceUsage()
        for part in (
            self.usage.usage_by_namespace.get(namespace),
            self._pending_by_namespace.get(namespace),
        ):
            if part is not None:
                total.add(part.keys, part.size_bytes, part.ledgers)
        return total

    def on_accepted(self, index: int, growth_by_namespace: Mapping[str, UsageGrowth]) -> None:
        """Count the growth by a command that was added to the log at this index."""
        for namespace, namespace_growth in growth_by_namespace.items():
            if namespace_growth.keys > 0 or namespace_growth.size_bytes > 0:
                self._pending_growth.append((index, namespace, namespace_growth))
                self._add_pending(namespace, namespace_growth, 1)

    def _drop_applied(self, index: int) -> None:
        while self._pending_growth and self._pending_growth[0][0] <= index:
            _, namespace, namespace_growth = self._pending_growth.popleft()
            self._add_pending(namespace, namespace_growth, -1)

    def _add_pending(self, namespace: str, growth: UsageGrowth, step: int) -> None:
        usage = self._pending_by_namespace.setdefault(namespace, NamespaceUsage())
        usage.add(
            *(step * max(0, amount) for amount in (growth.keys, growth.size_bytes, growth.ledgers))
        )
        if not (usage.keys or usage.size_bytes):
            del self._pending_by_namespace[namespace]

    def usage_report(
        self, state: KeyValueState
    ) -> Iterator[tuple[str, NamespaceUsage, NamespaceQuota]]:
        """Yield the namespaces with usage or a quota, the fullest first, up to a maximum."""
        usage_by_namespace = dict(self.usage.usage_by_namespace)
        for item in state.range(
            QUOTA_PREFIX, QUOTA_PREFIX + b"\xff", NAMESPACES_REPORTED_MAX
        ).items:
            if name := item.key.removeprefix(QUOTA_PREFIX).decode(errors="replace"):
                usage_by_namespace.setdefault(name, NamespaceUsage())
        rows = [
            (name, usage, self.quota_of(state, name)) for name, usage in usage_by_namespace.items()
        ]
        rows.sort(key=lambda row: (-_used_fraction(row[1], row[2]), row[0]))
        yield from rows[:NAMESPACES_REPORTED_MAX]


def _stored_quota(state: KeyValueState, namespace: str) -> NamespaceQuota | None:
    item = state.get(quota_key(namespace))
    try:
        return None if item is None else NamespaceQuota.decode(item.value)
    except (CorruptData, UnsupportedFormat):
        return None


def _used_fraction(use: NamespaceUsage, quota: NamespaceQuota) -> float:
    return max(
        use.keys / max(1, quota.keys),
        use.size_bytes / max(1, quota.size_bytes),
        use.ledgers / max(1, quota.ledgers),
    )


def _namespace_full_error(namespace: str, used: int, what: str, limit: int) -> NamespaceFull:
    return NamespaceFull(
        f"namespace {namespace} has {used} {what} in the metadata, allowed are {limit}: delete or "
        "truncate logs"
        " in it, or ask an admin to raise the quota (dlog trust quota)"
    )
