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


def shares(limit: int, backlog: Mapping[str, int]) -> dict[str, int]:
    """The limit in proportion to the backlog, both in records or both in bytes; never above the backlog.

    The rest after rounding is added to the largest remainders, for equal ones by name.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    found = {name: waiting * limit // total for name, waiting in backlog.items()}
    left = limit - sum(found.values())
    for name in sorted(backlog, key=lambda name: (-(backlog[name] * limit % total), name))[:left]:
        found[name] += 1
    return found


def turn_of(turn: int, backlog: Mapping[str, int]) -> str | None:
    """Whose turn it is among the logs that have something waiting; None when none has."""
    waiting = sorted(name for name, number in backlog.items() if number > 0)
    return waiting[turn % len(waiting)] if waiting else None


def pack(
    ranges: Sequence[SegmentRange], bytes_max: int, partitions_min: int | None = None
) -> list[list[SegmentRange]]:
    """The ranges as tasks, in order, each of about the same size and about ``bytes_max`` at most."""
    total = sum(_weight(one) for one in ranges)
    if not total:
        return []
    size = sum(one.size_bytes for one in ranges)
    # A tenth above the limit is no reason for one more task, which would run alone after the others.
    number = max(1, -(-size * 10 // (11 * bytes_max)), total // bytes_max)
    if partitions_min is not None:
        number = max(number, min(partitions_min, size // TASK_BYTES_MIN))
    target = total / max(1, number)
    tasks: list[list[SegmentRange]] = [[]]
    filled = 0.0
    left = list(reversed(ranges))
    while left:
        one = left.pop()
        room = target * len(tasks) - filled
        if _weight(one) > room + RANGE_BYTES and len(tasks) < number:
            fits = int((room - RANGE_BYTES) * one.entries / max(1, one.size_bytes))
            if 0 < fits < one.entries:
                head, rest = one.cut(fits)
                tasks[-1].append(head)
                filled += _weight(head)
                left.append(rest)
                tasks.append([])
                continue
            if tasks[-1] and room < _weight(one) / 2:
                left.append(one)
                filled = target * len(tasks)
                tasks.append([])
                continue
        tasks[-1].append(one)
        filled += _weight(one)
    return tasks


def _weight(one: SegmentRange) -> int:
    return one.size_bytes + RANGE_BYTES
