#!/usr/bin/env python3
"""Move the files of a checkout to their places in moves.tsv, and rewrite all that names them.

    .ci/house/apply_moves.py [CHECKOUT]      the checkout has no uncommitted changes

Does nothing if the files have moved already. Rewritten are: imports, module names and paths in strings,
comments and documents, ``Path(__file__)``, pyproject.toml, and the places of `edits.py`. Then ruff sorts
the imports. What it cannot rewrite it reports, and exits with 1.
"""

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent))
from edits import EDITS, FOLDERS
from move_table import (
    LINKED,
    OLD_PARTS,
    REMOVED,
    ROOT,
    imported,
    new_name,
    old_name,
    package_of,
    place_of,
    read_table,
    tracked,
)
from wrap_lines import wrap

TEXTS = (".py", ".md", ".toml", ".yml", ".yaml", ".json", ".in", ".svg", ".txt", ".js", ".html", "")
NOT_REWRITTEN = ("tests/versions/samples_", "tests/versions/health_")
"""What an older build wrote."""
KEEP = "\0"
"""Before a name that is new."""
DOTTED = re.compile(r"(?<![\w./-])(?:distributedlog|tests)(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"\bfrom (distributedlog(?:\.\w+)*) import (\w+(?:, \w+)*)(?![\w,(])")
"""In a program within a string. What is imported is a module, or a name of one."""
PATH = re.compile(r"(?<![\w-])(?<!\w/)(?<!\w\.)[a-z_]+(?:/[a-z_0-9-]+)+(?:\.[a-z]+)?(?![\w-])")


@dataclass(frozen=True)
class Edit:
    """Text to put in the place of an offset range."""

    start: int
    end: int
    text: str


class Names:
    """Old names of modules and paths, and their new ones."""

    def __init__(self, table: dict[str, str], files: list[str]) -> None:
        self.paths = {old: place_of(old, table) for old in files}
        self.modules: dict[str, str] = {}
        self.files: dict[str, str] = {}
        for old, new in self.paths.items():
            if old.endswith(".py") and new != REMOVED:
                self.modules[old_name(old)] = new_name(new)
                self.files[old_name(old)] = old
        for part in OLD_PARTS:
            part_new = self.modules[f"distributedlog.{part}"]
            self.modules.setdefault(f"distributedlog.{part}", part_new)
        self.folders = self._folders()
        self.by_base: dict[str, set[str]] = defaultdict(set)
        for old in self.paths:
            if old.endswith(".py"):
                self.by_base[old.rpartition("/")[2]].add(old)

    def _folders(self) -> dict[str, str]:
        found = {"": "", "tests": "tests", "distributedlog": "distributedlog"}
        for old in self.paths:
            folder = old.rpartition("/")[0]
            if folder and folder not in found and not folder.startswith("distributedlog/"):
                init = self.paths.get(f"{folder}/__init__.py")
                found[folder] = init.rpartition("/")[0] if init else folder
        for folder in ("chaos/scenarios", "console/static"):
            part = folder.partition("/")[0]
            found[folder] = found[part] + folder[len(part) :]
        return found

    def module(self, name: str) -> str:
        """Return the new dotted name of a module or of something that is in none."""
        return self.modules.get(name, name)


def relative(target: str, package: str) -> str:
    """Return how a module of the package is named relatively: dots, then the rest."""
    here, there = package.split("."), target.split(".")
    common = 0
    while common < min(len(here), len(there)) and here[common] == there[common]:
        common += 1
    return "." * (len(here) - common + 1) + ".".join(there[common:])


class Rewriter:
    """Rewrites the text of one file."""

    def __init__(self, old: str, new: str, text: str, names: Names, problems: list[str]) -> None:
        self.old, self.new, self.text, self.names, self.problems = old, new, text, names, problems
        self.edits: list[Edit] = []

    def source(self) -> str:
        """Rewrite a Python file."""
        lines = self.text.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        encoded = [line.encode() for line in lines]

        def offset(line: int, column: int) -> int:
            return starts[line - 1] + len(encoded[line - 1][:column].decode())

        tree = ast.parse(self.text)
        old_module, new_module = old_name(self.old), new_name(self.new)
        old_package, new_package = (
            package_of(old_module, self.old),
            package_of(new_module, self.new),
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                start = offset(node.lineno, node.col_offset)
                end = offset(node.end_lineno or 0, node.end_col_offset or 0)
                self.import_from(node, start, end, old_package, new_package)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.lazy_name(node, offset(node.lineno, node.col_offset), old_package, new_package)
        self.file_paths()
        made, at = [], 0
        for edit in sorted(
            self.edits, key=lambda e: e.start
        ):  # what is written is not rewritten again
            made += [self.prose(self.text[at : edit.start]), edit.text]
            at = edit.end
        return "".join([*made, self.prose(self.text[at:])])

    def import_from(
        self, node: ast.ImportFrom, start: int, end: int, old_package: str, new_package: str
    ) -> None:
        """Rewrite one ``from … import …``; into several if the modules part."""
        base = imported(node, old_package)
        if not base.startswith(("distributedlog", "tests", "examples", "dlog", "pyspark_d")):
            return
        groups: dict[str, list[str]] = defaultdict(list)
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            bound = alias.asname or alias.name
            if whole in self.names.modules and whole in self.names.files:
                target = self.names.module(whole)
                package, _, name = target.rpartition(".")
                groups[package].append(name if name == bound else f"{name} as {bound}")
            else:
                shown = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
                groups[self.names.module(base)].append(shown)
        made = []
        for target, imports in groups.items():
            in_package = new_package.partition(".")[0] == target.partition(".")[0]
            written = relative(target, new_package) if node.level and in_package else target
            made.append((written, imports))
        before = "." * node.level + (node.module or "")
        same_names = [a.name if a.asname is None else f"{a.name} as {a.asname}" for a in node.names]
        if len(made) == 1 and made[0][1] == same_names:
            if made[0][0] != before:
                at = self.text.index(before, start + 4)
                assert at < end, (self.old, node.lineno)
                text = self.text[start:at] + made[0][0] + self.text[at + len(before) : end]
                self.edits.append(Edit(start, end, text))
            else:
                self.edits.append(Edit(start, end, self.text[start:end]))
            return
        indent = " " * node.col_offset
        noqa = self.text[end : self.text.find("\n", end)]
        if "#" in self.text[start:end]:
            self.problems.append(f"{self.old}:{node.lineno}: a comment in an import is lost")
        lines = [f"from {target} import {', '.join(imports)}" for target, imports in made]
        lines = [line + (noqa if "#" in noqa and n else "") for n, line in enumerate(lines)]
        self.edits.append(Edit(start, end, ("\n" + indent).join(lines)))

    def lazy_name(self, node: ast.Constant, start: int, old_package: str, new_package: str) -> None:
        """Rewrite a relative module name in a string: ``".log"``, `_HOMES`, `lazy=`."""
        value = str(node.value)
        if not self.old.startswith(("cli/", "distributedlog/__init__", "spark/__init__")):
            return
        name = value.removeprefix(".")
        if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", name) or (
            value == name and self.old != "spark/__init__.py"
        ):
            return
        base_old = "distributedlog.cli" if self.old.startswith("cli/") else old_package
        base_new = "distributedlog.cli" if self.old.startswith("cli/") else new_package
        target = self.names.modules.get(f"{base_old}.{name}")
        if target is None:
            return
        new = relative(target, base_new)
        literal = self.text[start : start + len(value) + 2]
        if literal[1:-1] != value:
            return
        text = new if value.startswith(".") else new.removeprefix(".")
        self.edits.append(Edit(start + 1, start + 1 + len(value), text))

    def file_paths(self) -> None:
        """Rewrite ``Path(__file__).parent…`` so that it names the same folder."""
        pattern = re.compile(
            r"Path\(__file__\)(\.resolve\(\)|\.absolute\(\))?((?:\.parent\b(?!s)|\.parents\[\d+\])+)"
        )
        for match in pattern.finditer(self.text):
            steps = sum(
                int(s[9:-1]) + 1 if s.startswith(".parents") else 1
                for s in re.findall(r"\.parents\[\d+\]|\.parent", match[2])
            )
            if match[1] != ".resolve()" and self.old.split("/")[0] in OLD_PARTS:
                old, new = f"distributedlog/{self.old}", self.import_space(self.new)
            else:
                old, new = self.old, self.new
            old_folder = "/".join(old.split("/")[:-steps])
            if match[1] != ".resolve()" and self.old.split("/")[0] in OLD_PARTS:
                inside = old_folder.removeprefix("distributedlog/")
                folder = (
                    "distributedlog"
                    if old_folder == "distributedlog"
                    else self.import_space(self.names.folders.get(inside, inside))
                )
            else:
                folder = self.names.folders.get(old_folder, old_folder)
            following = re.match(r' / "([\w.]+)"', self.text[match.end() :])
            if following:  # beside the file: where that has moved to
                target = f"{old_folder}/{following[1]}".strip("/")
                moved = self.names.paths.get(target)
                if moved:
                    folder = moved.rpartition("/")[0]
            parents = [str(p) for p in PurePosixPath(new).parents]
            if (folder or ".") not in parents:
                self.problems.append(f"{self.old}: {match[0]} was {old_folder or 'the root'}, now?")
                continue
            count = parents.index(folder or ".")
            chain = ".parent" * (count + 1) if count < 2 else f".parents[{count}]"
            new_text = f"Path(__file__){match[1] or ''}{chain}"
            if new_text != match[0] and count + 1 != steps:
                self.edits.append(Edit(match.start(), match.end(), new_text))

    @staticmethod
    def import_space(path: str) -> str:
        """Return the path through the links in `distributedlog/`."""
        return f"distributedlog/{path}" if path.split("/")[0] in LINKED else path

    def prose(self, text: str) -> str:
        """Rewrite dotted names and paths in any text of a file."""
        if self.old.startswith(NOT_REWRITTEN):
            return text
        text = IMPORT.sub(self._import, text)
        text = DOTTED.sub(self._dotted, text)
        text = PATH.sub(self._path, text)
        if self.old.endswith((".py", ".md")):
            text = re.sub(r"(?<![\w/.*{}-])([a-z_][a-z0-9_]*\.py)\b", self._bare, text)
        if self.old.endswith(".md"):
            text = re.sub(r"(?<![\w/.])test_\w+(?![\w.])", self._test_file, text)
        return text.replace(KEEP, "")

    def _test_file(self, match: re.Match[str]) -> str:
        """A test file that is named without its ending."""
        found = self.names.by_base.get(f"{match[0]}.py", set())
        if len(found) != 1:
            return match[0]
        return self.names.paths[next(iter(found))].rpartition("/")[2].removesuffix(".py")

    def _import(self, match: re.Match[str]) -> str:
        """An import of modules in a string: into one or more imports, with their old names."""
        base, names = match[1], match[2].split(", ")
        if not any(f"{base}.{name}" in self.names.files for name in names):
            return match[0]
        groups: dict[str, list[str]] = defaultdict(list)
        for name in names:
            package, _, new = self.names.module(f"{base}.{name}").rpartition(".")
            groups[package].append(name if name == new else f"{new} as {name}")
        return "; ".join(
            f"from {KEEP}{package} import {', '.join(n)}" for package, n in groups.items()
        )

    def _dotted(self, match: re.Match[str]) -> str:
        """A dotted name: its longest beginning that is a module."""
        if match.string[match.start() - 1 : match.start()] == KEEP:
            return match[0]
        words = match[0].split(".")
        for count in range(len(words), 1, -1):
            new = self.names.modules.get(".".join(words[:count]))
            if new is not None:
                return ".".join([new, *words[count:]])
        return match[0]

    def _path(self, match: re.Match[str]) -> str:
        """A path from the root, also through a link, also without its ending in backticks."""
        old = match[0].removeprefix("distributedlog/")
        if match[0] in self.names.paths:
            old = match[0]
        new = self.names.paths.get(old)
        if new is None and f"{old}.py" in self.names.paths and f"`{old}`" in match.string:
            new = self.names.paths[f"{old}.py"].removesuffix(".py")
        if new is None or new == REMOVED:
            return match[0]
        if old != match[0] and not new.startswith("distributedlog/"):
            return f"distributedlog/{new}"
        return new

    def _bare(self, match: re.Match[str]) -> str:
        """A file's name without a folder: of the same folder, else the only one of that name."""
        folder = self.old.rpartition("/")[0]
        old = f"{folder}/{match[1]}" if f"{folder}/{match[1]}" in self.names.paths else None
        if old is None:
            is_test = match[1].startswith("test_")
            found = [p for p in self.names.by_base[match[1]] if p.startswith("tests/") == is_test]
            before = match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()]
            found.sort(key=lambda p: (-before.rfind(p.partition("/")[0]), p))
            old = found[0] if len(found) == 1 or (found and self.old.endswith(".md")) else None
        if old is None or self.names.paths[old] == REMOVED:
            return match[0]
        new = self.names.paths[old]
        if self.old.endswith("/__init__.py") and folder in OLD_PARTS:
            here = self.new.rpartition("/")[0]
            return new.removeprefix(here + "/")
        return new.rpartition("/")[2]


def apply(root: Path) -> int:
    """Move and rewrite; return the exit status."""
    table, files = read_table(), tracked(root)
    run = ["git", "-C", str(root)]
    if not any(old in files for old, new in table.items() if new not in (old, REMOVED)):
        print("the files have moved already")
        return 0
    if subprocess.run(
        [*run, "status", "--porcelain", "-uno"], capture_output=True, check=True
    ).stdout:
        print("there are uncommitted changes")
        return 1
    problems = [
        f"no row in moves.tsv: {f}" for f in files if f not in table and not f.startswith("tests/")
    ]
    names = Names(table, files)
    written: dict[str, str] = {}
    for old, new in names.paths.items():
        path = root / old
        if new == REMOVED or path.is_symlink() or PurePosixPath(old).suffix not in TEXTS:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        rewriter = Rewriter(old, new, text, names, problems)
        changed = rewriter.source() if old.endswith(".py") else rewriter.prose(text)
        if changed != text:
            written[new] = changed

    removed = [old for old, new in names.paths.items() if new == REMOVED]
    for start in range(0, len(removed), 100):
        subprocess.run([*run, "rm", "-q", *removed[start : start + 100]], check=True)
    for old, new in names.paths.items():
        if new not in (old, REMOVED):
            (root / new).parent.mkdir(parents=True, exist_ok=True)
            os.rename(root / old, root / new)
    for new, text in written.items():
        (root / new).write_text(text, encoding="utf-8")
    for folder, doc in FOLDERS.items():
        init = root / folder / "__init__.py"
        if not init.exists():
            init.write_text(f'"""{doc}"""\n', encoding="utf-8")
    places = {
        n
        for n in names.paths.values()
        if n.endswith(".py") and n.split("/")[0] in ("distributedlog", *LINKED)
    }
    problems += [
        f"no row in FOLDERS: {folder}"
        for folder in sorted({place.rpartition("/")[0] for place in places})
        if not (root / folder / "__init__.py").exists()
    ]
    link = root / "distributedlog" / "testing"
    if not link.is_symlink():
        link.symlink_to("../testing")
    for place, pairs in EDITS.items():
        path = root / place
        if not path.exists():
            problems.append(f"edits.py: no {place}")
            continue
        text = path.read_text(encoding="utf-8")
        for before, after in pairs:
            if before not in text:
                problems.append(f"edits.py: {place} has no {before!r}")
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
    packages(root)
    for folder in (*OLD_PARTS,):
        if folder not in LINKED:
            subprocess.run(
                [
                    "find",
                    str(root / folder),
                    "-depth",
                    "-name",
                    "__pycache__",
                    "-exec",
                    "rm",
                    "-r",
                    "{}",
                    "+",
                ],
                check=False,
                stderr=subprocess.DEVNULL,
            )
            subprocess.run(
                ["find", str(root / folder), "-depth", "-type", "d", "-empty", "-delete"],
                check=False,
                stderr=subprocess.DEVNULL,
            )
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "-q", "--fix", "--select", "I", "."], cwd=root, check=False)
    subprocess.run([*ruff, "format", "-q", "."], cwd=root, check=False)
    for place in written:
        if place.endswith(".py"):
            wrap(root / place)
    subprocess.run([*ruff, "format", "-q", "."], cwd=root, check=False)
    subprocess.run([*run, "add", "-A"], check=True)
    print(
        f"{sum(n not in (o, REMOVED) for o, n in names.paths.items())} files moved, {len(written)} rewritten"
    )
    print(*problems, sep="\n")
    return 1 if problems else 0


def packages(root: Path) -> None:
    """Write the packages of pyproject.toml: those of the tree, without what no user runs."""
    left_out = (
        "testing/sim",
        "testing/bench/peers",
        "distributedlog/cli/launcher",
        "distributedlog/spark/pyspark_distributedlog",
    )
    found = []
    for top in ("distributedlog", *LINKED):
        for where, _, inside in os.walk(root / top):
            folder = Path(where).relative_to(root).as_posix()
            if "__init__.py" in inside and not any(
                f"{folder}/".startswith(f"{out}/") for out in left_out
            ):
                found.append(
                    (folder if top == "distributedlog" else f"distributedlog/{folder}").replace(
                        "/", "."
                    )
                )
    path = root / "pyproject.toml"
    text = path.read_text()
    listed = "".join(f'    "{name}",\n' for name in sorted(found))
    extra = '    "distributedlog_launcher",\n    "pyspark_distributedlog",\n'
    text = re.sub(
        r"^packages = \[\n(?:    .*\n)*\]\n", f"packages = [\n{listed}{extra}]\n", text, flags=re.M
    )
    mapped = {f"distributedlog.{part}": part for part in LINKED}
    mapped["distributedlog_launcher"] = "distributedlog/cli/launcher"
    mapped["pyspark_distributedlog"] = "distributedlog/spark/pyspark_distributedlog"
    rows = "".join(f'"{name}" = "{folder}"\n' for name, folder in sorted(mapped.items()))
    text = re.sub(
        r"^\[tool\.setuptools\.package-dir\]\n(?:.+\n)*",
        f"[tool.setuptools.package-dir]\n{rows}",
        text,
        flags=re.M,
    )
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(apply(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT))
