#!/usr/bin/env python3
"""Count where the source tree breaks its laws: folders, files, names and calls that are too large or unclear.

    .ci/house_check.py                       the figures of the tree; --show RULE lists the places
    .ci/house_check.py --ratchet             fail if a count is above .ci/house_limits.json
    .ci/house_check.py --ratchet --update    lower the limits to the present counts

The limits may only fall. The product is each package at the root except tests; links are not followed.
"""

import argparse
import ast
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = ROOT / ".ci" / "house_limits.json"

MODULES_MAX = 15
LINES_MIN = 60
METHODS_MAX = 25
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 8
POSITIONAL_MAX = 3
"""A public call with more than eight parameters takes all but three of them by keyword."""

NOT_PARTICIPLES = {
    "blocking": "the API for plain threads; the field's term",
    "feed": "a noun",
    "ring": "a noun",
    "seed": "a noun",
    "striping": "BookKeeper's term for entries over an ensemble",
    "under_replicated": "BookKeeper's term, and the command's name",
}
"""File names that end in -ing or -ed and may, and why. `change_feed` is judged by its last word."""

FACADES = {"Log", "Namespace"}
"""The users' classes, in three API variants: they have as many methods as users have calls."""
API_VARIANTS = {"aio", "blocking"}
"""Modules that repeat the classes of the trio API."""

CLICK = {"argument", "command", "group", "option", "pass_context"}
PRONOUNS = {"one", "found", "own", "said", "left", "held", "at", "mine", "told", "here", "there"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file and its syntax tree."""

    path: str
    """From the root, with slashes."""
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, the module first."""
        return list(ast.walk(ast.parse(self.text, self.path)))

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """All classes, nested ones included."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @property
    def stem(self) -> str:
        """The file's name without its ending."""
        return self.path.rpartition("/")[2].removesuffix(".py")

    @property
    def folder(self) -> str:
        """The folder from the root."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True)
class Tree:
    """The modules that are counted."""

    product: list[Module]
    examples: list[Module]

    @cached_property
    def tests(self) -> list[Module]:
        """The modules of the tests, which have no limits."""
        return list(modules_below(ROOT / "tests"))


Places = Iterator[str]
"""Where a law is broken, one string per count."""


def modules_below(folder: Path) -> Iterator[Module]:
    """Read the modules of a folder and of those below it, without those behind links."""
    for where, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(where) / name
            if name.endswith(".py") and not path.is_symlink():
                yield Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


def read_tree() -> Tree:
    """Read product and examples."""
    packages = sorted(
        path.parent
        for path in ROOT.glob("*/__init__.py")
        if path.parent.name not in ("tests", "examples") and not path.parent.is_symlink()
    )
    return Tree(
        [module for package in packages for module in modules_below(package)],
        list(modules_below(ROOT / "examples")),
    )


def is_entry(module: Module) -> bool:
    """Whether a module has its name from Python."""
    return module.stem in ("__init__", "__main__")


def large_folders(tree: Tree) -> Places:
    """Folders with more than 15 modules."""
    sizes: dict[str, int] = defaultdict(int)
    for module in tree.product:
        sizes[module.folder] += module.stem != "__init__"
    yield from (f"{folder}: {size}" for folder, size in sizes.items() if size > MODULES_MAX)


def shared_class_names(tree: Tree) -> Places:
    """Public class names with more than one class."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in [*tree.product, *tree.examples]:
        for node in module.classes if module.stem not in API_VARIANTS else ():
            if not node.name.startswith("_"):
                places[node.name].append(f"{module.path}:{node.lineno}")
    yield from (f"{name}: {' '.join(w)}" for name, w in sorted(places.items()) if len(w) > 1)


def outside_callbacks(tree: Tree) -> Places:
    """Callbacks of an object that are assigned from outside of it."""
    kinds: dict[str, set[bool]] = defaultdict(set)
    for module in tree.product:
        for node in module.nodes:
            if isinstance(node, ast.AnnAssign):
                kinds[name_of(node.target)].add(is_callable(node.annotation))
    callbacks = {name for name, is_callback in kinds.items() if is_callback == {True}}
    for module in tree.product:
        for node in module.nodes:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if (
                    isinstance(target, ast.Attribute)
                    and name_of(target.value) != "self"
                    and (target.attr.startswith("on_") or target.attr in callbacks)
                ):
                    yield f"{module.path}:{target.lineno}: {ast.unparse(target)}"


def is_callable(annotation: ast.expr) -> bool:
    """Whether an annotation is ``Callable[…]``, or that or None."""
    if isinstance(annotation, ast.BinOp):
        return is_callable(annotation.left)
    return isinstance(annotation, ast.Subscript) and name_of(annotation.value) == "Callable"


def name_of(node: ast.AST) -> str:
    """Return the last name of ``name`` or ``object.name``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def small_modules(tree: Tree) -> Places:
    """Modules below 60 lines, without `__init__`."""
    for module in tree.product:
        lines = module.text.count("\n")
        if lines < LINES_MIN and module.stem != "__init__":
            yield f"{module.path}: {lines} lines"


def large_classes(tree: Tree) -> Places:
    """Classes with more than 25 public methods, properties included, except the users' facades."""
    for module in tree.product:
        for node in module.classes:
            methods = {
                item.name
                for item in node.body
                if isinstance(item, Function) and not item.name.startswith("_")
            }
            if len(methods) > METHODS_MAX and node.name not in FACADES:
                yield f"{module.path}:{node.lineno}: {node.name}: {len(methods)} methods"


def long_functions(tree: Tree) -> Places:
    """Functions of more than 60 lines, without their docstring."""
    for module, node in functions(tree):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{module.path}:{node.lineno}: {node.name}: {lines} lines"


def functions(tree: Tree) -> Iterator[tuple[Module, Function]]:
    """Yield the functions and methods of the product."""
    for module in tree.product:
        for node in module.nodes:
            if isinstance(node, Function):
                yield module, node


def many_parameters(tree: Tree) -> Places:
    """Functions of more than eight parameters, except commands and public calls with keywords."""
    for module, node in functions(tree):
        given = node.args
        positional = [*given.posonlyargs, *given.args]
        if positional and positional[0].arg in ("self", "cls"):
            del positional[0]
        count = len(positional) + len(given.kwonlyargs)
        public = not node.name.startswith("_") and len(positional) <= POSITIONAL_MAX
        if count > PARAMETERS_MAX and not public and not is_command(node):
            yield f"{module.path}:{node.lineno}: {node.name}: {count} parameters"


def is_command(node: Function) -> bool:
    """Whether a function is a command of the command line: its parameters are options."""
    named = {
        name_of(inner)
        for decorator in node.decorator_list
        for inner in ast.walk(decorator)
        if isinstance(inner, ast.Attribute | ast.Name)
    }
    return bool(named & CLICK) or "common_options" in named


def participles(tree: Tree) -> Places:
    """File names that end in -ing or -ed."""
    for module in tree.product:
        last = module.stem.rpartition("_")[2]
        if last.endswith(("ing", "ed")) and not {module.stem, last} & NOT_PARTICIPLES.keys():
            yield module.path


def private_reads(modules: list[Module]) -> Places:
    """Private attributes of other objects."""
    for module in modules:
        for node in module.nodes:
            if (
                isinstance(node, ast.Attribute)
                and re.match(r"_[a-z]", node.attr)
                and name_of(node.value) not in ("self", "cls")
                and not (isinstance(node.value, ast.Call) and name_of(node.value.func) == "super")
            ):
                yield f"{module.path}:{node.lineno}: {ast.unparse(node)}"


def pronouns(tree: Tree) -> Places:
    """Variables that are named by a pronoun."""
    for module in tree.product:
        for node in module.nodes:
            is_binding = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            if is_binding and name_of(node) in PRONOUNS:
                yield f"{module.path}:{node.lineno}: {name_of(node)}"


RULES: dict[str, Callable[[Tree], Places]] = {
    "large_folders": large_folders,
    "shared_class_names": shared_class_names,
    "outside_callbacks": outside_callbacks,
    "small_modules": small_modules,
    "large_classes": large_classes,
    "long_functions": long_functions,
    "many_parameters": many_parameters,
    "participles": participles,
}
"""Counts with limits."""
REPORTED: dict[str, Callable[[Tree], Places]] = {
    "private_reads": lambda tree: private_reads(tree.product),
    "private_reads_in_tests": lambda tree: private_reads(tree.tests),
    "pronouns": pronouns,
}
"""Counts without limits: they are to fall by better names and shapes, not by edits for the count."""


def ratchet(tree: Tree, update: bool) -> int:
    """Compare the counts with the limits; return the exit status."""
    present = {name: [*rule(tree)] for name, rule in RULES.items()}
    counts = {name: len(places) for name, places in present.items()}
    limits = json.loads(LIMITS.read_text()) if LIMITS.exists() else counts
    above = [name for name, count in counts.items() if count > limits[name]]
    for name in above:
        print(f"{name}: {counts[name]}, at most {limits[name]}", *present[name], sep="\n  ")
    if update and not above:
        LIMITS.write_text(json.dumps(counts, indent=2) + "\n")
    return 1 if above else 0


def main() -> int:
    """Run the checker; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", choices=[*RULES, *REPORTED], action="append", default=[])
    parser.add_argument("--ratchet", action="store_true")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    tree = read_tree()
    if options.ratchet:
        return ratchet(tree, options.update)
    for name, rule in (RULES | REPORTED).items():
        places = [*rule(tree)]
        summary = (rule.__doc__ or "").partition("\n")[0]
        print(f"{len(places):6}  {name:24}{summary if name in RULES else '(no limit)'}")
        if name in options.show:
            print(*(f"        {place}" for place in places), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
