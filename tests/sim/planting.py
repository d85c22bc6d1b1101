"""What a planted bug is, and the list of them: each replaces one function of the product, from outside."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
    assert hasattr(owner, name), f"{owner} has no {name} any more: the bug is to be planted anew"
    original = inspect.getattr_static(owner, name)
    if inspect.isfunction(original) and inspect.isfunction(value):
        assert _fits(inspect.signature(original), inspect.signature(value)), (
            f"{owner}.{name} takes other arguments: the bug is to be planted anew"
        )
    setattr(owner, name, value)


def _fits(original: inspect.Signature, value: inspect.Signature) -> bool:
    """Return whether a function can be called as the original is: by position, and by its keywords."""
    kinds = {parameter.kind for parameter in value.parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return True
    keywords = [
        {p.name for p in one.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY}
        for one in (original, value)
    ]
    return len(original.parameters) == len(value.parameters) and keywords[0] == keywords[1]
