"""Words to a run from outside: a file in its directory a word, which goes when the run has heard it.

`dlog chaos mend` says them: who tries a runbook ends a fault by its last step, and not by the clock.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import trio

MEND = "mend"
"""End the faults that are on now."""
END = "end"
"""The same, and begin no more: the run is judged."""
LOOK_S = 0.1


def is_unheard(directory: Path, word: str) -> bool:
    """Does a word wait to be heard?"""
    return (directory / f"{word}.word").exists()


def say(directory: Path, word: str) -> None:
    """Leave a word."""
    (directory / f"{word}.word").touch()


def take_back(directory: Path, word: str) -> None:
    """Nobody heard it."""
    (directory / f"{word}.word").unlink(missing_ok=True)


async def listen(directory: Path, deeds: Mapping[str, Callable[[], None]]) -> None:
    """Do what is said, until cancelled."""
    while True:
        for word, deed in deeds.items():
            if is_unheard(directory, word):
                take_back(directory, word)
                deed()
        await trio.sleep(LOOK_S)
