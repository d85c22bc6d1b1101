"""The table of moves, and what it says about names of modules before and after."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LINKED = ("bookie", "metadata", "ledger", "cluster", "testing")
"""Folders at the root that are parts of the import package, by a link in `distributedlog/`."""
OLD_PARTS = (
    "bench", "bookie", "chaos", "cli", "cluster", "console", "gateway", "ledger", "log", "metadata", "proxy",
    "runtime", "sim", "spark", "verify",
)  # fmt: skip
REMOVED = "-"


def read_table() -> dict[str, str]:
    """Return the new path of each file; `REMOVED` for one that goes."""
    return {}  # the files have moved


def tracked(root: Path) -> list[str]:
    """Return the files that git tracks, without this folder's."""
    run = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    return [name for name in run.stdout.split("\0") if name and not name.startswith(".ci/house/")]


def place_of(path: str, table: dict[str, str]) -> str:
    """Return a file's new path. A test that has no row stays; other new files need one."""
    return table.get(path, path)


def module_name(path: str, parts: tuple[str, ...]) -> str:
    """Return the dotted name under which a source file is imported."""
    dotted = path.removesuffix(".py").replace("/", ".")
    if dotted.partition(".")[0] in parts and "." in dotted:
        dotted = "distributedlog." + dotted
    return dotted.removesuffix(".__init__")


def old_name(path: str) -> str:
    """Return a module's dotted name before the move."""
    return module_name(path, OLD_PARTS)


def new_name(path: str) -> str:
    """Return a module's dotted name after the move."""
    if path == "distributedlog/cli/launcher/__init__.py":
        return "distributedlog_launcher"
    if path == "distributedlog/spark/pyspark_distributedlog/__init__.py":
        return "pyspark_distributedlog"
    return module_name(path, LINKED)


def package_of(name: str, path: str) -> str:
    """Return the package against which a module's relative imports are resolved."""
    return name if path.endswith("/__init__.py") else name.rpartition(".")[0]


def imported(node: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of the module after "from"."""
    if not node.level:
        return node.module or ""
    base = package.split(".")
    base = base[: len(base) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def import_targets(tree: ast.AST, package: str, modules: set[str]) -> Iterator[str]:
    """Yield the modules of the tree that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = imported(node, package)
            for alias in node.names:
                name = f"{base}.{alias.name}"
                if name in modules:
                    yield name
                elif base in modules:
                    yield base
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
