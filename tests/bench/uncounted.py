"""A `dlog` that measures no durations for its metrics: to see what counting costs (`metrics_cost`).

    python -m tests.bench.uncounted serve bookie …

Histograms take no observation, and nobody asks for the time on their behalf. Plain counters, an integer each,
stay: nothing could be left out for them.
"""

from typing import Any

from distributedlog.cli.main import main
from distributedlog.runtime.declarations.meters import DurationHistogram


def stop_counting() -> None:
    """Observations cost a call that does nothing."""
    assert hasattr(DurationHistogram, "observe"), "durations are counted elsewhere"

    def nothing(self: Any, value: float, count: int = 1) -> None:
        """Not counted."""

    DurationHistogram.observe = nothing  # type: ignore[method-assign]


if __name__ == "__main__":
    stop_counting()
    main()
