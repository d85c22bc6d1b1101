"""How a micro-batch's limit is shared among logs, and how ranges of entries are packed into tasks (pure).

A limit is shared in proportion to the backlog of each log, in whole entries. The log whose turn it is may
take one entry even if that is more than its share, so that every log makes progress. A batch is then within
its limit, plus or minus one entry.

A task is a list of ranges in the order of the log, filled to a number of bytes: a task costs Spark 4 to
30 ms whatever it reads, so a thousand small segments are a handful of tasks.
"""

from collections.abc import Mapping, Sequence

from ...log.model.segment_ranges import SegmentRange

RANGE_BYTES = 64 * 1024
"""What opening a range costs, as bytes that would be read in that time."""
TASK_BYTES_MIN = 1024 * 1024
"""A hint for more tasks makes none smaller than this."""


def share_limit(limit: int, backlog: Mapping[str, int]) -> dict[str, int]:
    """The limit in proportion to the backlog, both in records or both in bytes; never above the backlog.

    The rest after rounding is added to the largest remainders, for equal ones by name.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    limits = {name: waiting * limit // total for name, waiting in backlog.items()}
    remainder = limit - sum(limits.values())
    for name in sorted(backlog, key=lambda name: (-(backlog[name] * limit % total), name))[
        :remainder
    ]:
        limits[name] += 1
    return limits


def log_of_turn(turn: int, backlog: Mapping[str, int]) -> str | None:
    """Whose turn it is among the logs that have something waiting; None when none has."""
    waiting = sorted(name for name, waiting_count in backlog.items() if waiting_count > 0)
    return waiting[turn % len(waiting)] if waiting else None


def pack_tasks(
    ranges: Sequence[SegmentRange], bytes_max: int, partitions_min: int | None = None
) -> list[list[SegmentRange]]:
    """The ranges as tasks, in order, each of about the same size and about ``bytes_max`` at most."""
    total = sum(_weight(segment_range) for segment_range in ranges)
    if not total:
        return []
    size = sum(segment_range.size_bytes for segment_range in ranges)
    # A tenth above the limit is no reason for one more task, which would run alone after the others.
    task_count = max(1, -(-size * 10 // (11 * bytes_max)), total // bytes_max)
    if partitions_min is not None:
        task_count = max(task_count, min(partitions_min, size // TASK_BYTES_MIN))
    target = total / max(1, task_count)
    tasks: list[list[SegmentRange]] = [[]]
    filled_weight = 0.0
    remaining = list(reversed(ranges))
    while remaining:
        segment_range = remaining.pop()
        free_weight = target * len(tasks) - filled_weight
        if _weight(segment_range) > free_weight + RANGE_BYTES and len(tasks) < task_count:
            entries_that_fit = int(
                (free_weight - RANGE_BYTES)
                * segment_range.entries
                / max(1, segment_range.size_bytes)
            )
            if 0 < entries_that_fit < segment_range.entries:
                head, rest = segment_range.split(entries_that_fit)
                tasks[-1].append(head)
                filled_weight += _weight(head)
                remaining.append(rest)
                tasks.append([])
                continue
            if tasks[-1] and free_weight < _weight(segment_range) / 2:
                remaining.append(segment_range)
                filled_weight = target * len(tasks)
                tasks.append([])
                continue
        tasks[-1].append(segment_range)
        filled_weight += _weight(segment_range)
    return tasks


def _weight(segment_range: SegmentRange) -> int:
    return segment_range.size_bytes + RANGE_BYTES
