"""The settings of a client process, and its recorder of observations; see `client_main.py`."""

import random
import time
from dataclasses import dataclass, field
from typing import Any

import trio

from ...verify.history.observations import ObservationWriter

SESSIONS_OF_A_LIFE = 1 << 16


@dataclass(slots=True)
class ClientLife:
    """One life of a client process: its settings and its observations."""

    name: str
    kind: str
    options: dict[str, Any]
    """The fields of `ClientSpec`."""
    first_session: int
    """The first of at most `SESSIONS_OF_A_LIFE` session numbers of this life."""
    log_options: dict[str, Any]
    seed: int
    observations: ObservationWriter
    stop: trio.Event = field(default_factory=trio.Event)
    """Set when the client must end: writers stop submitting, and wait for pending records."""
    session_count: int = 0
    reading_count: int = 0

    @property
    def make_rng(self) -> random.Random:
        """A new random generator of this life, always with the same seed."""
        return random.Random(f"{self.seed}/{self.name}/{self.first_session}")

    def new_session(self) -> int:
        """Return a session number that is unique in the run."""
        number = self.first_session + self.session_count
        self.session_count += 1
        assert self.session_count < SESSIONS_OF_A_LIFE, "numbers of other lives begin there"
        return number

    def new_reading(self) -> int:
        """Return a reading number that is unique in this life."""
        self.reading_count += 1
        return self.reading_count

    async def wait_or_stop(self, seconds: float) -> bool:
        """Wait, and return whether the client must end."""
        with trio.move_on_after(seconds):
            await self.stop.wait()
        return self.stop.is_set()


def before() -> float:
    """Return the present time rounded down, as the start of a call."""
    return int(time.monotonic() * 1e4) / 1e4


def after() -> float:
    """Return the present time rounded up, as the end of a call."""
    return (int(time.monotonic() * 1e4) + 1) / 1e4


def one_line(error: BaseException) -> str:
    """Return an error as one short line."""
    return f"{type(error).__name__}: {error}"[:300]
