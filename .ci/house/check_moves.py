#!/usr/bin/env python3
"""Check the table of moves against the tree: files, sizes of folders, and the imports under the new names.

    .ci/house/check_moves.py [CHECKOUT]

Fails if a tracked file has no row, a row no file, two files one place, a folder of the product more than 15
modules, or if imports under the new names go upward, in a circle of modules, or in a circle of folders.
"""

import ast
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from move_table import (
    REMOVED,
    ROOT,
    import_targets,
    new_name,
    old_name,
    package_of,
    read_table,
    tracked,
)

LAYERS = (
    ("runtime",), ("metadata", "bookie"), ("ledger",), ("log",), ("proxy",), ("cluster",), ("",),
    ("testing.verify", "spark"), ("testing.sim", "testing.bench", "testing.chaos", "console", "gateway"),
    ("cli",),
)  # fmt: skip
LAZY_UPWARD = {("distributedlog.blocking", "cluster"), ("distributedlog.aio", "cluster")}
PARTS = [part for layer in LAYERS for part in layer if part]


def part_of(name: str) -> str:
    """Return the part of a module of the product, "" for modules of the package itself."""
    inside = name.removeprefix("distributedlog.")
    return next((p for p in PARTS if inside == p or inside.startswith(p + ".")), "")


def layer_of(part: str) -> int:
    """Return the number of a part's layer, from below."""
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of nodes of which each reaches each."""
    reached = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph.get(waiting.pop(), set()) - seen:
                seen.add(target)
                waiting.append(target)
        reached[start] = seen
    found = {
        tuple(sorted(n for n in seen if start in reached.get(n, ())))
        for start, seen in reached.items()
        if start in seen
    }
    return [list(circle) for circle in sorted(found)]


def main() -> int:
    """Check the table; return the exit status."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    table, files = read_table(), tracked(root)
    wrong = [f"no row: {path}" for path in files if path not in table]
    wrong += [f"no file: {path}" for path in table if path not in files]
    places = Counter(new for new in table.values() if new != REMOVED)
    wrong += [f"{count} files for {new}" for new, count in places.items() if count > 1]

    product = {
        old: new
        for old, new in table.items()
        if new.endswith(".py")
        and new.split("/")[0]
        in ("bookie", "metadata", "ledger", "cluster", "testing", "distributedlog")
    }
    sizes = Counter(n.rpartition("/")[0] for n in product.values() if not n.endswith("__init__.py"))
    wrong += [f"{folder} has {size} modules" for folder, size in sizes.items() if size > 15]
    single = [folder for folder, size in sizes.items() if size == 1]

    names = {old_name(old): new_name(new) for old, new in product.items()}
    modules = set(names)
    imports: dict[str, set[str]] = defaultdict(set)
    for old in product:
        if not (root / old).is_file():
            continue
        tree = ast.parse((root / old).read_text())
        me = old_name(old)
        for target in import_targets(tree, package_of(me, old), modules):
            if names[target] != names[me]:
                imports[names[me]].add(names[target])
    packages = {new_name(n) for n in product.values() if n.endswith("__init__.py")}
    for name, targets in imports.items():
        part = part_of(name)
        for target in targets:
            other = part_of(target)
            upward = other != part and layer_of(other) >= layer_of(part)
            if upward and name.startswith("distributedlog.") and (name, other) not in LAZY_UPWARD:
                wrong.append(f"{name} imports {target}, which is not below")
    wrong += [f"circle of modules: {' '.join(c)}" for c in circles(imports)]

    folders: dict[str, set[str]] = defaultdict(set)
    because: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, targets in imports.items():
        for target in targets:
            a = name if name in packages else name.rpartition(".")[0]
            b = target if target in packages else target.rpartition(".")[0]
            if a != b and part_of(name) == part_of(target) and part_of(name):
                folders[a].add(b)
                because[a, b].append(f"{name.rpartition('.')[2]}->{target.rpartition('.')[2]}")
    for circle in circles(folders):
        wrong.append(f"circle of folders: {' '.join(circle)}")
        for (a, b), why in sorted(because.items()):
            if a in circle and b in circle:
                wrong.append(f"    {a} -> {b} ({len(why)}): {' '.join(sorted(why)[:6])}")
    print(*wrong, sep="\n")
    print(
        f"{len(table)} rows, {len(product)} modules of the product, {len(sizes)} folders;", end=" "
    )
    print(f"largest {max(sizes.values())}, folders with one module: {' '.join(single) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
