"""Makes what needs no hand in the asyncio and blocking faces: ``python -m
tools.generate_api_variants``.

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

from distributedlog import __all__ as exported
from distributedlog.log.consumers.subscription import Subscription
from distributedlog.log.consumers.work_queue import WorkClaim, WorkQueue
from distributedlog.log.log import Log
from distributedlog.log.namespace import Namespace
from distributedlog.log.read.log_reader import LogReader
from distributedlog.log.read.multi_reader import MultiReader
from distributedlog.log.read.range_reader import RangeReader
from distributedlog.log.read.segment_watch import SegmentWatch
from distributedlog.log.segments.external_segment_writer import SegmentWriter
from distributedlog.log.services.log_watch import LogWatch
from distributedlog.log.services.named_positions import Positions
from distributedlog.log.write.log_writer import LogWriter

MethodTexts = dict[str, str]
"""The text of each, by name."""

API_CLASSES: tuple[tuple[type[Any], str, str], ...] = (
    (Namespace, "_namespace", "resolve_name create_or_find start close"),
    (Log, "_log", ""),
    (Positions, "_positions", ""),
    (
        LogWriter,
        "_buffer",
        "error over segment run",
    ),
    (LogReader, "_reader", "read_columns_many ended"),
    (SegmentWriter, "_writer", ""),
    (
        RangeReader,
        "_reader",
        "read_columns read_by_log read_ready start_parallel_read current_range check run",
    ),
    (LogWatch, "_watch", "run"),
    (SegmentWatch, "_watch", "run"),
    (Subscription, "_subscription", "commit_at"),
    (WorkClaim, "_claim", "exit_block return_undelivered"),
    (
        WorkQueue,
        "_queue",
        "store_hold finish return_undelivered return_to_queue extend open_item run",
    ),
    (MultiReader, "_reader", "next_many ended run"),
)
"""Each trio class; where its asyncio class has the object that lives in the loop; what that leaves out."""
THREAD_SAFE_PROPERTIES = {"committed", "ledger_id", "metrics", "size_bytes", "records", "skipped"}
"""Properties that are safe to read from another thread; any other one is by hand, or left out."""
USER_CALLBACK_ARGUMENTS = {"on_skipped": "beside_loop(self._background, on_skipped)"}
"""Arguments that are users' code: a separate thread calls them."""
CLOSING_METHODS = {"aclose", "abort", "mark_end_of_stream"}
"""After these nothing is left to give up when the object is dropped."""

ASYNC_ONLY = {"__await__"}
"""There is none there."""
BLOCKING_SUBSTITUTIONS = (
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

PACKAGE_DIRECTORY = Path(__file__).resolve().parent.parent / "distributedlog"
GENERATED_MARKER = "    # --- made "
"""The line of a class from which on, to its end, all is made."""
LINE_MAX = 110


def main() -> None:
    """Write both faces."""
    for make_module in (asyncio_module, blocking_module):
        path, text = make_module()
        path.write_text(text)


def asyncio_module() -> tuple[Path, str]:
    """`aio.py`, its calls made from the trio classes."""
    return fill_generated(
        PACKAGE_DIRECTORY / "aio.py",
        {face[0].__name__: dict(asyncio_methods(*face)) for face in API_CLASSES},
    )


def blocking_module() -> tuple[Path, str]:
    """`blocking.py`, its calls made from those of `aio.py`."""
    text = (PACKAGE_DIRECTORY / "aio.py").read_text()
    return fill_generated(
        PACKAGE_DIRECTORY / "blocking.py",
        {
            class_node.name: dict(blocking_methods(class_node, text))
            for class_node in class_nodes(text)
        },
    )


def fill_generated(path: Path, methods_by_class: dict[str, MethodTexts]) -> tuple[Path, str]:
    """A face, each of its classes with the calls that it does not have by hand."""
    lines = path.read_text().splitlines()
    for class_node in reversed(class_nodes("\n".join(lines))):
        assert class_node.end_lineno is not None
        markers = (GENERATED_MARKER, "class ", "def ")
        start = next(
            (
                index
                for index in range(class_node.lineno, len(lines))
                if lines[index].startswith(markers)
            ),
            0,
        )
        if lines[start].startswith(GENERATED_MARKER):
            handwritten = {call.name for call in method_nodes(class_node) if call.lineno <= start}
            generated = [
                text
                for name, text in methods_by_class[class_node.name].items()
                if name not in handwritten
            ]
            body = textwrap.indent("\n\n".join(generated), "    ").splitlines()
            lines[start + 1 : max(class_node.end_lineno, start + 1)] = ["", *body]
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    formatted = subprocess.run(
        ruff, input="\n".join(lines), text=True, check=True, stdout=subprocess.PIPE
    )
    return path, formatted.stdout


def class_nodes(text: str) -> list[ast.ClassDef]:
    """Of a module."""
    return [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]


def method_nodes(class_node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Of a class."""
    return [
        node for node in class_node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def asyncio_methods(
    trio_class: type[Any], inner_attribute: str, left_out_names: str
) -> Iterator[tuple[str, str]]:
    """The public calls of a trio class, each as one that hops to the loop."""
    for base in trio_class.__mro__[:-1]:
        for method in method_nodes(*class_nodes(inspect.getsource(base))):
            name, signature, target = (
                method.name,
                method.args,
                f"self.{inner_attribute}.{method.name}",
            )
            is_sync = not isinstance(method, ast.AsyncFunctionDef)
            if name.startswith("_") or name in left_out_names.split():
                continue
            returns = "" if method.returns is None else ast.unparse(method.returns)
            arguments = [argument.arg for argument in signature.args[1:]]
            arguments += [
                f"{argument.arg}={USER_CALLBACK_ARGUMENTS.get(argument.arg, argument.arg)}"
                for argument in signature.kwonlyargs
            ]
            if name in THREAD_SAFE_PROPERTIES:
                body = f"return {target}"
            elif is_sync and returns.startswith("Opening["):
                body = f"opening = {target}({', '.join(arguments)})\n    return Opening(lambda: "
                body += f"opened(self._background, {returns[8:-1]}, opening.open))"
            elif is_sync:
                continue
            else:
                body = f"await run({', '.join(['self._background', target, *arguments])})"
                if returns != "None":
                    body = ("found = " if name in CLOSING_METHODS else "return ") + body
                if name in CLOSING_METHODS and "Raises: nothing." in summary(trio_class, method):
                    body = f"with suppress(AlreadyClosed):  # with its namespace\n        {body}"
                if name in CLOSING_METHODS:
                    body += "\n    self._ended()" + "\n    return found" * (returns != "None")
            header = "@property\n" * (name in THREAD_SAFE_PROPERTIES) + "async " * (not is_sync)
            parameters, docstring = ast.unparse(signature), summary(trio_class, method)
            header += f'def {name}({parameters}) -> {returns}:\n    """{docstring}"""'
            yield name, f"{header}\n    {body}"


def summary(trio_class: type[Any], method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The docstring's first paragraph, if there is room a word of where there is more, and what it raises."""
    first, *other_paragraphs = (ast.get_docstring(method) or "").split("\n\n")
    raises = (
        [other_paragraphs.pop()]
        if other_paragraphs and other_paragraphs[-1].startswith("Raises: ")
        else []
    )
    reference = f" See `distributedlog.{trio_class.__name__}.{method.name}`."
    free_chars = LINE_MAX - len(first.splitlines()[-1]) - len('        """"""')
    if other_paragraphs and trio_class.__name__ in exported and len(reference) <= free_chars:
        first += reference
    text = "\n\n".join([first, *raises]) + "\n" * len(raises)
    return textwrap.indent(text, "    ", lambda line: True).lstrip().rstrip(" ") + "    " * len(
        raises
    )


def blocking_methods(class_node: ast.ClassDef, text: str) -> Iterator[tuple[str, str]]:
    """The calls of an asyncio class, each as one that waits in the thread that calls."""
    for method in method_nodes(class_node):
        if method.name not in ASYNC_ONLY:
            start = min([method.lineno, *(decorator.lineno for decorator in method.decorator_list)])
            method_text = textwrap.dedent(
                "\n".join(text.splitlines()[start - 1 : method.end_lineno])
            )
            for pattern, replacement in BLOCKING_SUBSTITUTIONS:
                method_text = re.sub(pattern, replacement, method_text)
            name = re.search(r"def (\w+)", method_text)
            assert name is not None
            yield name[1], method_text


if __name__ == "__main__":
    main()
