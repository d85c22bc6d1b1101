"""What a node knows to be wrong with itself, in words for who runs it (pure).

A reason has a name, by which it is replaced and taken back, and a text that says what, where and what to do.
Few and short, whatever goes wrong: they go into a registration, a status and the answer of ``/health``. A
node with reasons serves all the same: only `dlog status` calls the cluster not healthy for them. What is over
stays a reason for a while (`Over`), for damage is healed sooner than anybody looks; for that no cluster is
called anything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

REASONS_MAX = 16
"""Of one node; what comes beyond them is counted, not told."""
TEXT_CHARACTERS_MAX = 300
HEALING = "healing: "
"""So begins a reason that goes by itself: what is wrong is known, and worked on."""
HEALED = "healed: "
"""So begins a reason of what is over: nothing is wrong any more, but somebody may look at the disk."""
HEALED_S = 3600.0
"""So long after the last of it, it is told."""


@dataclass(slots=True)
class Over:
    """How often one kind of damage was healed, until it has not been met for `HEALED_S`."""

    count: int = 0
    at: float = -HEALED_S
    """When it was last."""

    def note(self, now: float) -> None:
        """Once more."""
        if not self.told(now):
            self.count = 0
        self.count += 1
        self.at = now

    def told(self, now: float) -> bool:
        """Is it still to be told?"""
        return self.count > 0 and now < self.at + HEALED_S


class Reasons:
    """The reasons of one node, in the order in which they came up."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._questions: list[Callable[[], str]] = []

    def set(self, name: str, text: str) -> None:
        """It is so now; what was said under the name before is replaced."""
        self._texts[name] = text

    def clear(self, name: str) -> None:
        """It is so no more, or never was."""
        self._texts.pop(name, None)

    def ask(self, question: Callable[[], str]) -> None:
        """Ask at each look, for nobody tells: the answer is a line, or "" while nothing is wrong."""
        self._questions.append(question)

    def texts(self) -> tuple[str, ...]:
        """All of them, each one line."""
        answers = [question() for question in self._questions]
        return bounded((*self._texts.values(), *filter(None, answers)))


def bounded(texts: Iterable[str]) -> tuple[str, ...]:
    """As many as may be told, each on one line and cut at `TEXT_CHARACTERS_MAX`."""
    lines = [" ".join(text.split())[:TEXT_CHARACTERS_MAX] for text in texts]
    if len(lines) > REASONS_MAX:
        left = len(lines) - REASONS_MAX + 1
        lines[REASONS_MAX - 1 :] = [f"and {left} more"]
    return tuple(lines)


def reasons_of(value: object) -> tuple[str, ...]:
    """What a peer says of itself. Raises `ValueError`."""
    if not isinstance(value, list) or len(value) > REASONS_MAX:
        raise ValueError(f"reasons are no list of at most {REASONS_MAX}")
    found = [text for text in value if isinstance(text, str) and len(text) <= TEXT_CHARACTERS_MAX]
    if len(found) != len(value):
        raise ValueError(f"a reason is no text of at most {TEXT_CHARACTERS_MAX} characters")
    return bounded("".join(c if c.isprintable() else "?" for c in text) for text in found)
