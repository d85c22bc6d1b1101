"""Share the limit of a micro-batch among logs, and pack ranges of entries into tasks (pure).

A limit is shared in proportion to the backlog of each log, in whole entries. In turn, each log may take one
entry even if that exceeds its share, so that every log makes progress. A batch is then within its limit, plus
or minus one entry.

A task is a list of ranges in the order of the log, filled to a number of bytes. A task costs Spark 4 to 30 ms
at any size, so a thousand small segments are packed into a few tasks.
"""

from collections.abc import Mapping, Sequence

from ...log.model.segment_ranges import SegmentRange

RANGE_BYTES = 64 * 1024
"""Cost of opening a range, as the bytes that could be read in the same time."""
TASK_BYTES_MIN = 1024 * 1024
"""The option for more tasks creates none that is smaller than this."""


def share_limit(limit: int, backlog: Mapping[str, int]) -> dict[str, int]:
    """Share a limit in proportion to the backlogs, never above a backlog. All numbers have the same unit.

    The rest after rounding is added to the largest remainders, and by name if they are equal.
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
    """Return the log that is next in turn among those with a backlog; None if there is no backlog."""
    waiting = sorted(name for name, waiting_count in backlog.items() if waiting_count > 0)
    return waiting[turn % len(waiting)] if waiting else None


def pack_tasks(
    ranges: Sequence[SegmentRange], bytes_max: int, partitions_min: int | None = None
) -> list[list[SegmentRange]]:
    """Pack ranges into tasks, in order, each of about the same size and at most about ``bytes_max``."""
    total = sum(_weight(segment_range) for segment_range in ranges)
    if not total:
        return []
    size = sum(segment_range.size_bytes for segment_range in ranges)
    # A tenth above the limit does not justify another task, which would run alone after the others.
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
