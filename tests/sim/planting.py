"""What a planted bug is, and the list of them: each replaces one function of the product, from outside."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distributedlog.testing.sim.world.bug_injection import check_replacement


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug."""

    name: str
    layer: str
    """Where it is looked for: ``bookie`` (one bookie's world), ``driver`` or ``cluster`` (the whole)."""
    plant: Callable[[], None]
    seeds: int
    directed: str = ""
    """What finds it where these seeds do not: a directed test, or the seeds of a core; else "" ."""


BUGS: dict[str, Bug] = {}


def bug(layer: str, *, seeds: int = 0, directed: str = "") -> Callable[[Callable[[], None]], None]:
    """Register the function below as a bug; its name, with spaces, is the bug's."""

    def register(plant: Callable[[], None]) -> None:
        name = plant.__name__.replace("_", " ")
        budget = seeds or {"bookie": 150, "driver": 1000, "cluster": 20}[layer]
        BUGS[name] = Bug(name, layer, plant, budget, directed)

    return register


def patch(owner: Any, name: str, value: Any) -> None:
    """Replace a function of the product. A bug that does not fit its place would be found for that alone."""
    check_replacement(owner, name, value)
    setattr(owner, name, value)
