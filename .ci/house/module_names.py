"""Names of modules, and what their imports mean."""

import ast
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LINKED = ("bookie", "metadata", "ledger", "cluster", "testing")
"""Folders at the root that are parts of the import package, by a link in `distributedlog/`."""


def tracked(root: Path) -> list[str]:
    """Return the files that git tracks, without this folder's."""
    run = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    return [name for name in run.stdout.split("\0") if name and not name.startswith(".ci/house/")]


def module_name(path: str) -> str:
    """Return the dotted name under which a source file is imported."""
    if path == "distributedlog/cli/launcher/__init__.py":
        return "distributedlog_launcher"
    dotted = path.removesuffix(".py").replace("/", ".")
    if dotted.partition(".")[0] in LINKED and "." in dotted:
        dotted = "distributedlog." + dotted
    return dotted.removesuffix(".__init__")


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
