"""Makes what needs no hand in the asyncio and blocking faces: ``python -m
distributedlog.generate_api_variants``.

A call of a trio class that its class in `aio.py` does not have by hand is made there, after the line "made":
a hop to the loop, with the same signature and the first paragraph of the docstring. Then whatever a class in
`blocking.py` does not have by hand is made from `aio.py`'s, without ``async`` and ``await``.

For contributors: it needs a source tree, and ruff. tests/test_faces.py makes both again and compares.
"""

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import __all__ as exported
from .log.consumers.subscription import Subscription
from .log.consumers.work_queue import WorkClaim, WorkQueue
from .log.log import Log
from .log.namespace import Namespace
from .log.read.log_reader import LogReader
from .log.read.multi_reader import MultiReader
from .log.read.range_reader import RangeReader
from .log.read.segment_watch import SegmentWatch
from .log.segments.external_segment_writer import SegmentWriter
from .log.services.log_watch import LogWatch
from .log.services.named_positions import Positions
from .log.write.log_writer import LogWriter

Calls = dict[str, str]
"""The text of each, by name."""

FACES: tuple[tuple[type[Any], str, str], ...] = (
    (Namespace, "_namespace", "find create_or_find start close"),
    (Log, "_log", ""),
    (Positions, "_positions", ""),
    (
        LogWriter,
        "_buffer",
        "error over segment run",
    ),
    (LogReader, "_reader", "read_columns_many ended"),
    (SegmentWriter, "_writer", ""),
    (RangeReader, "_reader", "read_columns read_by_log take read_from_several next check run"),
    (LogWatch, "_watch", "run"),
    (SegmentWatch, "_watch", "run"),
    (Subscription, "_subscription", "commit_at"),
    (WorkClaim, "_claim", "leave ungiven"),
    (WorkQueue, "_queue", "begin finish ungiven put_back extend open_stretch run"),
    (MultiReader, "_reader", "next_many ended run"),
)
"""Each trio class; where its asyncio class has the object that lives in the loop; what that leaves out."""
PLAIN = {"committed", "ledger_id", "metrics", "size_bytes", "records", "skipped"}
"""Properties that are safe to read from another thread; any other one is by hand, or left out."""
ASIDE = {"on_skipped": "beside_loop(self._background, on_skipped)"}
"""Arguments that are users' code: a separate thread calls them."""
ENDS = {"aclose", "abort", "mark_end_of_stream"}
"""After these nothing is left to give up when the object is dropped."""

NOT_BLOCKING = {"__await__"}
"""There is none there."""
BLOCKING = (
    (
        r" ``await`` what it returns for the DLSN(s?)\.",
        r" `result` of what it returns gives the DLSN\1.",
    ),
    (r"; ``async with`` or ``await`` (what this returns|it)", ", open; use it in a ``with``"),
    ("``async with``", "``with``"),
    (r"await run\(\s*self\._background,\s*", "self._background.run("),
    (r"\b(async|await) ", ""),
    (r"Opening\[(\w+)\]", r"\1"),
    (r"Opening\(lambda: (.*)\)", r"\1"),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"(def |self\.|`)aclose\b", r"\1close"),
    ("Async(Iterator|Iteration)", r"\1"),
    (r"for (\w+) in (.+):\s+yield \1\b", r"yield from \2"),
    (r",(\s*\))", r"\1"),
)
"""From a call of asyncio to the blocking one; the last so that it is laid out anew."""

HERE = Path(__file__).parent
MADE = "    # --- made "
"""The line of a class from which on, to its end, all is made."""
LINE_MAX = 110


def main() -> None:
    """Write both faces."""
    for face in (asyncio_face, blocking_face):
        path, text = face()
        path.write_text(text)


def asyncio_face() -> tuple[Path, str]:
    """`aio.py`, its calls made from the trio classes."""
    return filled(HERE / "aio.py", {face[0].__name__: dict(hops(*face)) for face in FACES})


def blocking_face() -> tuple[Path, str]:
    """`blocking.py`, its calls made from those of `aio.py`."""
    text = (HERE / "aio.py").read_text()
    return filled(HERE / "blocking.py", {k.name: dict(stripped(k, text)) for k in classes(text)})


def filled(path: Path, made: dict[str, Calls]) -> tuple[Path, str]:
    """A face, each of its classes with the calls that it does not have by hand."""
    lines = path.read_text().splitlines()
    for kind in reversed(classes("\n".join(lines))):
        assert kind.end_lineno is not None
        marks = (MADE, "class ", "def ")
        start = next(
            (at for at in range(kind.lineno, len(lines)) if lines[at].startswith(marks)), 0
        )
        if lines[start].startswith(MADE):
            by_hand = {call.name for call in calls(kind) if call.lineno <= start}
            found = [text for name, text in made[kind.name].items() if name not in by_hand]
            body = textwrap.indent("\n\n".join(found), "    ").splitlines()
            lines[start + 1 : max(kind.end_lineno, start + 1)] = ["", *body]
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    done = subprocess.run(
        ruff, input="\n".join(lines), text=True, check=True, stdout=subprocess.PIPE
    )
    return path, done.stdout


def classes(text: str) -> list[ast.ClassDef]:
    """Of a module."""
    return [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]


def calls(kind: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Of a class."""
    return [node for node in kind.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def hops(trio: type[Any], inner: str, left_out: str) -> Iterator[tuple[str, str]]:
    """The public calls of a trio class, each as one that hops to the loop."""
    for base in trio.__mro__[:-1]:
        for call in calls(*classes(inspect.getsource(base))):
            name, args, target = call.name, call.args, f"self.{inner}.{call.name}"
            plain = not isinstance(call, ast.AsyncFunctionDef)
            if name.startswith("_") or name in left_out.split():
                continue
            returns = "" if call.returns is None else ast.unparse(call.returns)
            given = [a.arg for a in args.args[1:]]
            given += [f"{a.arg}={ASIDE.get(a.arg, a.arg)}" for a in args.kwonlyargs]
            if name in PLAIN:
                body = f"return {target}"
            elif plain and returns.startswith("Opening["):
                body = f"opening = {target}({', '.join(given)})\n    return Opening(lambda: "
                body += f"opened(self._background, {returns[8:-1]}, opening.open))"
            elif plain:
                continue
            else:
                body = f"await run({', '.join(['self._background', target, *given])})"
                if returns != "None":
                    body = ("found = " if name in ENDS else "return ") + body
                if name in ENDS and "Raises: nothing." in summary(trio, call):
                    body = f"with suppress(AlreadyClosed):  # with its namespace\n        {body}"
                if name in ENDS:
                    body += "\n    self._ended()" + "\n    return found" * (returns != "None")
            head = "@property\n" * (name in PLAIN) + "async " * (not plain)
            head += (
                f'def {name}({ast.unparse(args)}) -> {returns}:\n    """{summary(trio, call)}"""'
            )
            yield name, f"{head}\n    {body}"


def summary(trio: type[Any], call: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The docstring's first paragraph, if there is room a word of where there is more, and what it raises."""
    first, *more = (ast.get_docstring(call) or "").split("\n\n")
    raises = [more.pop()] if more and more[-1].startswith("Raises: ") else []
    see = f" See `distributedlog.{trio.__name__}.{call.name}`."
    room = LINE_MAX - len(first.splitlines()[-1]) - len('        """"""')
    if more and trio.__name__ in exported and len(see) <= room:
        first += see
    text = "\n\n".join([first, *raises]) + "\n" * len(raises)
    return textwrap.indent(text, "    ", lambda line: True).lstrip().rstrip(" ") + "    " * len(
        raises
    )


def stripped(kind: ast.ClassDef, text: str) -> Iterator[tuple[str, str]]:
    """The calls of an asyncio class, each as one that waits in the thread that calls."""
    for call in calls(kind):
        if call.name not in NOT_BLOCKING:
            start = min([call.lineno, *(one.lineno for one in call.decorator_list)])
            found = textwrap.dedent("\n".join(text.splitlines()[start - 1 : call.end_lineno]))
            for pattern, instead in BLOCKING:
                found = re.sub(pattern, instead, found)
            name = re.search(r"def (\w+)", found)
            assert name is not None
            yield name[1], found


if __name__ == "__main__":
    main()
