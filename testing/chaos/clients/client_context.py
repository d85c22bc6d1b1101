"""What a client process is told, and what it needs to note what it saw; see `client_main.py`."""

import random
import time
from dataclasses import dataclass, field
from typing import Any

import trio

from ...verify.history.observations import Notebook

SESSIONS_OF_A_LIFE = 1 << 16


@dataclass(slots=True)
class Life:
    """One client process' life: what it was told, and what it writes down."""

    name: str
    kind: str
    options: dict[str, Any]
    """The fields of scenario.Client."""
    first_session: int
    """Sessions of this life are numbered from here on, at most `SESSIONS_OF_A_LIFE`."""
    log_options: dict[str, Any]
    seed: int
    notes: Notebook
    stop: trio.Event = field(default_factory=trio.Event)
    """Set when it is told to end: writers stop handing over, and wait for what is under way."""
    session_count: int = 0
    reading_count: int = 0

    @property
    def make_rng(self) -> random.Random:
        """A stream of chance of this life's own."""
        return random.Random(f"{self.seed}/{self.name}/{self.first_session}")

    def new_session(self) -> int:
        """A number that no other session of the run has."""
        number = self.first_session + self.session_count
        self.session_count += 1
        assert self.session_count < SESSIONS_OF_A_LIFE, "numbers of other lives begin there"
        return number

    def new_reading(self) -> int:
        """A number of this life's own."""
        self.reading_count += 1
        return self.reading_count

    async def wait_or_stop(self, seconds: float) -> bool:
        """Wait; True when it is time to end."""
        with trio.move_on_after(seconds):
            await self.stop.wait()
        return self.stop.is_set()


def before() -> float:
    """Now, for the beginning of a call: never later than it was."""
    return int(time.monotonic() * 1e4) / 1e4


def after() -> float:
    """Now, for the end of a call: never earlier than it was."""
    return (int(time.monotonic() * 1e4) + 1) / 1e4


def one_line(error: BaseException) -> str:
    """An error on one short line."""
    return f"{type(error).__name__}: {error}"[:300]
