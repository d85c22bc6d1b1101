"""Docstrings name parameters and exceptions that exist.

The sources are searched as text: parsing all of them would take most of the time of the fast tests.
"""

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

from tests.parts import files_of, part_folders, shown

DOCSTRING = re.compile(r':\n( +"""(?:(?!""").)*?\n *(?:Args|Raises):.*?)"""', re.DOTALL)
SIGNATURE = re.compile(r"^ *((?:async )?def \w+)", re.MULTILINE)
CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\)", re.MULTILINE)
ENTRY = re.compile(r"    (?! )([^:]+):(?= |$)")
ERRORS_ON_ONE_LINE = re.compile(r"^Raises: ([^:]+?)\.$", re.MULTILINE)


class Documented(NamedTuple):
    """A function whose docstring has a section of arguments or errors."""

    where: str
    parameters: frozenset[str]
    text: str


@cache
def sources() -> dict[Path, str]:
    """Return the text of each module of the product."""
    paths = (path for part in ("distributedlog", *part_folders()) for path in files_of(part))
    return {path: path.read_text() for path in paths if not path.is_symlink()}


@cache
def documented() -> list[Documented]:
    """Return all such functions."""
    found = []
    for path, source in sources().items():
        for docstring in DOCSTRING.finditer(source):
            before = source[: docstring.start()]
            *_, start = [0, *(signature.start(1) for signature in SIGNATURE.finditer(before))]
            try:
                function = ast.parse(f"{before[start:]}: pass").body[0]
            except SyntaxError:
                continue  # the docstring of a class or module, as below
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not isinstance(function.body[0], ast.Pass):
                continue
            given = function.args
            every = (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg)
            names = frozenset(parameter.arg for parameter in every if parameter is not None)
            text = cleandoc(docstring[1].strip().removeprefix('"""'))
            found.append(Documented(f"{shown(path)}: {function.name}", names, text))
    return found


def entries(text: str, title: str) -> Iterator[str]:
    """Yield the names in a section."""
    _, _, section = f"\n{text}\n".partition(f"\n{title}:\n")
    for line in section.splitlines():
        if line and not line.startswith(" "):
            return
        if found := ENTRY.match(line):
            yield from found[1].split(", ")


def test_described_arguments_are_parameters() -> None:
    unknown = [
        f"{function.where}: {name}"
        for function in documented()
        for name in entries(function.text, "Args")
        if name.lstrip("*") not in function.parameters
    ]

    assert unknown == []
    assert len(documented()) > 1000


def test_described_errors_are_exceptions() -> None:
    bases: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources().values():
        for name, parents in CLASS.findall(source):
            bases[name] |= set(re.findall(r"\w+", parents))

    @cache
    def is_exception(name: str) -> bool:
        known = getattr(builtins, name, None)
        return (isinstance(known, type) and issubclass(known, BaseException)) or any(
            map(is_exception, bases[name])
        )

    unknown = []
    for function in documented():
        listed = ", ".join(ERRORS_ON_ONE_LINE.findall(function.text))
        for name in (*entries(function.text, "Raises"), *re.findall(r"[\w.]+", listed)):
            if "." not in name and name != "nothing" and not is_exception(name):
                unknown.append(f"{function.where}: {name}")

    assert unknown == []
