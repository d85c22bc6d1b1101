"""Measure the records per second of a small namespace, one log at a time.

Bookies count entries, not records. A log's own count costs three reads of the metadata, one request to its
bookies and two entries. Each call therefore reads one log, so that the load does not depend on the number of
logs. The rate of each log is the mean since it was last read.
"""

from collections.abc import Callable

import trio

from ..log.namespace import Namespace
from ..runtime.interfaces.errors import DistributedLogError
from .rate_history import RateHistory

LOGS_MAX = 20
"""With more logs the records are unknown, because each log would be read too rarely. Entries are known."""
NAMES_S = 10.0
"""Seconds after which the names of the logs are read again."""
READ_S = 2.0
"""Timeout of one log, in seconds."""


class RecordRate:
    """Records per second of all logs of a namespace. For one task at a time."""

    def __init__(
        self,
        namespace: Callable[[], Namespace | None],
        sample_time: Callable[[], float] = trio.current_time,
    ) -> None:
        """Create a meter.

        Args:
            namespace: Returns None until a quorum has answered.
            sample_time: Returns the time of a `SampleClock`.
        """
        self._namespace = namespace
        self._sample_time = sample_time
        self._due: dict[str, float] = {}
        """Log to the time at which it is read next."""
        self._is_known = False
        """Whether the names were read, and there are at most `LOGS_MAX`."""
        self._counts = RateHistory()
        self._rates: dict[str, float] = {}
        self._read_names_at = -float("inf")

    async def measure(self) -> float | None:
        """Read one log, and return the sum of the latest rates; None if the rate of a log is unknown."""
        namespace = self._namespace()
        if namespace is None:
            return None
        with trio.move_on_after(READ_S):
            try:
                if trio.current_time() >= self._read_names_at:
                    await self._read_names(namespace)
            except DistributedLogError:
                return None
            if self._due:
                await self._read_log(namespace, min(self._due, key=self._due.__getitem__))
        if self._is_known and len(self._rates) == len(self._due):
            return sum(self._rates.values())
        return None

    async def _read_names(self, namespace: Namespace) -> None:
        page = await namespace.log_page(limit=LOGS_MAX + 1)
        self._is_known = len(page.names) <= LOGS_MAX
        names = page.names if self._is_known else []
        now = trio.current_time()
        self._due = {name: self._due.get(name, now) for name in names}
        self._rates = {name: rate for name, rate in self._rates.items() if name in self._due}
        self._read_names_at = now + NAMES_S

    async def _read_log(self, namespace: Namespace, name: str) -> None:
        self._due[name] = trio.current_time() + len(self._due)  # one log per second
        self._rates.pop(name, None)  # unknown, unless the read succeeds
        try:
            snapshot = await namespace.open_log(name).snapshot(limit=1)
        except DistributedLogError:
            return
        counters = {"records": float(snapshot.end_sequence_id)}
        rate = self._counts.rates(name, self._sample_time(), counters)["records"]
        if rate is None:  # it was read once: the next read gives the rate
            self._due[name] = trio.current_time()
        else:
            self._rates[name] = rate
