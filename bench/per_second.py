"""How many records each second of a run had, as the client counts them itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

EVERY_S = 1.0


@asynccontextmanager
async def per_second(namespace: Any, counter: str) -> AsyncIterator[list[float]]:
    """Rates of the block's seconds, the last one shorter; ``counter``: a metric of `NamespaceMetrics`."""
    found: list[float] = []
    at = began = trio.current_time()
    count = namespace.metrics.snapshot()[counter]

    def look() -> None:
        nonlocal at, count
        now, more = trio.current_time(), namespace.metrics.snapshot()[counter]
        # A look that is late has the mean of the seconds it is of.
        seconds = max(1, round((now - at) / EVERY_S))
        found.extend([(more - count) / max(now - at, 1e-9)] * seconds)
        at, count = now, more

    async def run() -> None:
        while True:
            await trio.sleep_until(began + EVERY_S * (len(found) + 1))
            look()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield found
        finally:
            nursery.cancel_scope.cancel()
            if trio.current_time() - at > EVERY_S / 10:  # of less no rate is told
                look()
