"""The three faces: what is made is as it would be made now, and the same calls take the same arguments."""

import inspect
import re
from typing import Any

import pytest

import distributedlog
from distributedlog import aio, blocking
from distributedlog.faces import FACES, asyncio_face, blocking_face

BY_FACE = {
    ("LogWatch", "logs"): "a property, but of asyncio a call: it hops to the loop",
    ("SegmentWriter", "token"): "of trio a field",
}
"""What differs, and why."""


@pytest.mark.parametrize("made", [asyncio_face, blocking_face])
def test_what_is_made_is_current(made: Any) -> None:
    path, text = made()

    assert path.read_text() == text, "run `python -m distributedlog.faces`"


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


@pytest.mark.parametrize(("kind", "left_out"), [(face[0], face[2]) for face in FACES])
def test_the_three_faces_have_the_same_calls(kind: type[Any], left_out: str) -> None:
    trio = surface(kind, left_out)

    assert surface(getattr(aio, kind.__name__)) == trio
    assert surface(getattr(blocking, kind.__name__)) == trio


def test_the_faces_export_the_same_names() -> None:
    assert set(aio.__all__) == set(blocking.__all__)
    assert set(aio.__all__) <= set(distributedlog.__all__)
