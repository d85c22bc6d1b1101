"""The parts of the product: their folders, and the dotted names of their modules.

A part is a package directly below `distributedlog` or `distributedlog.testing`. Its folder may be elsewhere,
behind a link.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "distributedlog"


@cache
def part_folders() -> dict[str, Path]:
    """Return the folder of each part, by the part's name."""
    found = {}
    for above in (PACKAGE, PACKAGE / "testing"):
        for path in sorted(above.iterdir()) if above.is_dir() else ():
            if path.name != "testing" and (path / "__init__.py").is_file():
                found[path.name] = path.resolve()
    return found


@cache
def files_of(part: str) -> list[Path]:
    """Return the modules of a part; for "distributedlog" those of the package itself."""
    if part == PACKAGE.name:
        return sorted(PACKAGE.glob("*.py"))
    return sorted(part_folders()[part].rglob("*.py"))


def shown(path: Path) -> str:
    """Return a file's path from the root, with slashes."""
    return path.relative_to(ROOT).as_posix()


@cache
def part_of(path: Path) -> str:
    """Return the part of a file or folder of the product, or "distributedlog"."""
    return next(
        (part for part, folder in part_folders().items() if path.is_relative_to(folder)),
        PACKAGE.name,
    )


@cache
def package_path(path: Path) -> Path:
    """Return the path below `distributedlog` through which a file is imported."""
    part = part_of(path)
    if part == PACKAGE.name:
        return path
    folder = part_folders()[part]
    above = PACKAGE if (PACKAGE / part).exists() else PACKAGE / "testing"
    return above / part / path.relative_to(folder)


def imported_files(node: ast.ImportFrom, path: Path) -> list[Path]:
    """Return the modules of the product that a relative import in a file names, one per name or fewer."""
    base = package_path(path).parents[node.level - 1]
    base = base.joinpath(*(node.module or "").split(".")) if node.module else base
    found = []
    for alias in node.names:
        for candidate in (base / f"{alias.name}.py", base.with_suffix(".py"), base / "__init__.py"):
            if candidate.is_file() and not (
                candidate.name == "__init__.py" and node.module is None
            ):
                found.append(candidate.resolve())
                break
    return list(dict.fromkeys(found))
