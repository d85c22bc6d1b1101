"""The three faces: what is made is as it would be made now, and the same calls take the same arguments."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import distributedlog
from distributedlog import aio, blocking
from distributedlog.runtime.interfaces import errors
from tools.generate_api_variants import API_CLASSES, asyncio_module, blocking_module

BY_FACE = {
    ("LogWatch", "logs"): "a property, but of asyncio a call: it hops to the loop",
    ("SegmentWriter", "token"): "of trio a field",
}
"""What differs, and why."""


@pytest.mark.parametrize("made", [asyncio_module, blocking_module])
def test_what_is_made_is_current(made: Any) -> None:
    path, text = made()

    assert path.read_text() == text, "run `python -m tools.generate_api_variants`"


def surface(kind: type[Any], left_out: str = "") -> dict[str, Any]:
    """The public names of a class; of calls their parameters and what they give."""
    found: dict[str, Any] = {}
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") or name in left_out.split() or (kind.__name__, name) in BY_FACE:
            continue
        if inspect.isfunction(member):
            taken = inspect.signature(member)
            gives = str(taken.return_annotation)
            gives = re.sub(r"\b[a-z_.]+\.(?=[A-Z])|<class '|'>|Async", "", gives)  # the name alone
            gives = re.sub(r"^Opening\[(.*)\]$", r"\1", gives)
            found["close" if name == "aclose" else name] = list(taken.parameters.values()), gives
        else:
            found[name] = "property"
    return found


@pytest.mark.parametrize(("kind", "left_out"), [(face[0], face[2]) for face in API_CLASSES])
def test_the_three_faces_have_the_same_calls(kind: type[Any], left_out: str) -> None:
    trio = surface(kind, left_out)

    assert surface(getattr(aio, kind.__name__)) == trio
    assert surface(getattr(blocking, kind.__name__)) == trio


FACED = [(face[0].__name__, face[2]) for face in API_CLASSES]


@pytest.mark.parametrize(("kind", "left_out"), FACED)
def test_every_public_call_says_what_it_raises(kind: str, left_out: str) -> None:
    """The last paragraph of its docstring, in each face the same: ``Raises:``, errors by name, or nothing."""
    said: list[dict[str, str]] = []
    for face in (distributedlog, aio, blocking):
        trio = next(one[0] for one in API_CLASSES if one[0].__name__ == kind)
        of: dict[str, str] = {}
        for name, member in inspect.getmembers(
            trio if face is distributedlog else getattr(face, kind)
        ):
            if name[0] == "_" or not inspect.isfunction(member) or (kind, name) in BY_FACE:
                continue
            if name in left_out.split() and face is distributedlog:
                continue
            last = " ".join((inspect.getdoc(member) or "").split("\n\n")[-1].split())
            assert last.startswith("Raises: "), f"{face.__name__}.{kind}.{name}"
            for error in last.removeprefix("Raises: ").rstrip(".").split(", "):
                assert error == "nothing" or hasattr(errors, error), f"{kind}.{name}: {error}"
            of["close" if name == "aclose" else name] = last
        said.append(of)

    assert said[1] == said[0]
    assert said[2] == said[0]


SCENARIOS = ("test_face_meanings.py", "test_face_pipeline.py")
"""Where each scenario is written once and played by the three faces."""
CALLED = {
    "Namespace": "namespace ns one other",
    "Log": "log free old strict",
    "Positions": "positions",
    "LogWriter": "writer first second third",
    "LogReader": "reader tail",
    "SegmentWriter": "segment late gone",
    "RangeReader": "reader",
    "LogWatch": "watch",
    "Subscription": "subscription",
    "WorkQueue": "queue",
    "WorkClaim": "claim again",
    "MultiReader": "several",
    "PendingWrite": "pending lone one",
    "PendingBulk": "bulk columns",
}
"""The names that the scenarios use for what is of each class."""
NOT_PLAYED = {
    ("SegmentWriter", "aclose"): "the end of an `async with`",
    ("LogReader", "aclose"): "the end of an `async with`",
    ("RangeReader", "aclose"): "the end of an `async with`",
    ("MultiReader", "aclose"): "the end of an `async with`",
    ("LogWatch", "aclose"): "the end of an `async with`",
    ("Subscription", "aclose"): "the end of an `async with`",
    ("WorkQueue", "aclose"): "the end of an `async with`",
    ("LogWriter", "aclose"): "the end of an `async with`, and `Face.close`",
    ("Log", "watch_segments"): "played in `test_segment_watch.py`, in the trio face",
    ("Namespace", "metrics"): "numbers of a process; `tests/log/services/test_log_metrics.py`",
    ("PendingBulk", "count"): "of every sequence",
    ("PendingBulk", "index"): "of every sequence",
}
"""What no scenario calls by name, and why."""


@pytest.mark.parametrize("kind", list(CALLED))
def test_every_public_call_has_a_scenario_that_the_three_faces_play(kind: str) -> None:
    """H171: a call without one fails here; write it beside the others."""
    played = {
        node.attr
        for file in SCENARIOS
        for node in ast.walk(ast.parse((Path(__file__).parent / file).read_text()))
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id in CALLED[kind].split())
            or (isinstance(node.value, ast.Attribute) and node.value.attr in CALLED[kind].split())
        )
    }
    public = {name for name, _ in inspect.getmembers(getattr(aio, kind)) if name[0] != "_"}

    assert public - played - {name for of, name in NOT_PLAYED if of == kind} == set()


def test_the_faces_export_the_same_names() -> None:
    assert set(aio.__all__) == set(blocking.__all__)
    assert set(aio.__all__) <= set(distributedlog.__all__)


@pytest.mark.parametrize(("kind", "left_out"), [(face[0], face[2]) for face in API_CLASSES])
def test_what_a_public_call_gives_is_exported(kind: type[Any], left_out: str) -> None:
    """So it has a name for annotations, and stands in the pages that are made from docstrings."""
    found = set()
    for name, member in inspect.getmembers(kind):
        call = member.fget if isinstance(member, property) else member
        if name.startswith("_") or name in left_out.split() or not inspect.isfunction(call):
            continue
        module = inspect.getmodule(call)
        for word in re.findall(r"\w+", str(inspect.signature(call).return_annotation)):
            one = getattr(module, word, None)
            if inspect.isclass(one) and one.__module__.startswith("distributedlog"):
                found.add(word)

    assert found - set(distributedlog.__all__) == set()
