#!/usr/bin/env python3
"""Rename classes, functions and constants of modules, wherever they are named.

    .ci/house/apply_renames.py [CHECKOUT] --tables members/log.names.tsv,members/cluster.names.tsv

Does nothing for names that have their new form. A row is a file, a name of the module's top level, and the
new name. Renamed are: the definition,
imports of it, attributes of the imported module, names and annotations in strings of modules that have the
name, docstrings and comments there (in backticks), dotted paths in strings, and rows of documents that name
its file. Names of stored, sent and printed things are strings: they stay. mypy reports what was missed.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from module_names import (
    HERE,
    ROOT,
    imported,
    module_name,
    package_of,
    tracked,
)
from wrap_lines import wrap


class Renames:
    """The new names of each module's definitions."""

    def __init__(self, root: Path, tables: list[str]) -> None:
        self.root = root
        self.files = {module_name(path): path for path in tracked(root) if path.endswith(".py")}
        self._bound: dict[str, dict[str, str]] = {}
        self.by_module: dict[str, dict[str, str]] = defaultdict(dict)
        self.by_file: dict[str, dict[str, str]] = defaultdict(dict)
        for table in tables:
            for row in (HERE / table).read_text().splitlines():
                old, name, new = row.split("\t")[:3]
                self.by_module[module_name(old)][name] = new
                self.by_file[old][name] = new

    def bound_in(self, module: str) -> dict[str, str]:
        """Return the new names of what a module defines or imports."""
        if module not in self._bound:
            found = dict(self.by_module.get(module, {}))
            path = self.files.get(module)
            for node in ast.walk(ast.parse((self.root / path).read_text())) if path else ():
                if isinstance(node, ast.ImportFrom):
                    base = imported(node, package_of(module, path or ""))
                    table = self.by_module.get(base, {})
                    news = {new: old for old, new in table.items()}
                    for alias in node.names:
                        old = news.get(alias.name, alias.name)
                        if old in table:
                            found[old] = table[old]
            self._bound[module] = found
        return self._bound[module]


class Renamer:
    """Finds the offsets of names to replace in one file."""

    def __init__(self, path: str, text: str, renames: Renames, modules: set[str]) -> None:
        self.path, self.text, self.renames, self.modules = path, text, renames, modules
        self.edits: dict[tuple[int, int], str] = {}
        lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line))
        self.encoded = [line.encode() for line in lines]
        self.name = module_name(path)
        self.package = package_of(self.name, path)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a place of the syntax tree."""
        return self.starts[line - 1] + len(self.encoded[line - 1][:column].decode())

    def replace(self, start: int, old: str, new: str) -> None:
        """Note a replacement; the old text must be there."""
        assert self.text[start : start + len(old)] == old, (
            self.path,
            self.text[start : start + 40],
        )
        self.edits[start, start + len(old)] = new

    def run(self) -> str:
        """Return the new text."""
        tree = ast.parse(self.text)
        bound = dict(self.renames.by_module.get(self.name, {}))
        bound = {old: new for old, new in bound.items() if self.defines(tree, old)}
        aliases: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self.imports(node, bound, aliases)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname and alias.name in self.modules:
                        aliases[alias.asname] = alias.name
        hidden = self.hidden(tree, {*bound, *aliases})
        for node in ast.walk(tree):
            if id(node) not in hidden:
                self.node(node, bound, aliases)
            if isinstance(node, ast.Call | ast.Tuple):
                self.patched(node, aliases)
            elif isinstance(node, ast.Dict):
                self.by_path(node)
        self.strings(tree, bound)
        self.comments(bound)
        text = self.text
        for (start, end), new in sorted(self.edits.items(), reverse=True):
            text = text[:start] + new + text[end:]
        return text

    @staticmethod
    def defines(tree: ast.Module, name: str) -> bool:
        """Whether a module still defines a name at its top level, or in an `if` there."""
        return any(
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
            for node in ast.walk(tree)
        ) or any(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
            for node in ast.walk(tree)
        )

    def imports(self, node: ast.ImportFrom, bound: dict[str, str], aliases: dict[str, str]) -> None:
        """Rename in one import, and note what it binds."""
        base = imported(node, self.package)
        table = self.renames.by_module.get(base, {})
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            if whole in self.modules:
                aliases[alias.asname or alias.name] = whole
            elif alias.name in table:
                self.replace(
                    self.offset(alias.lineno, alias.col_offset), alias.name, table[alias.name]
                )
                if alias.asname is None:
                    bound[alias.name] = table[alias.name]

    def node(self, node: ast.AST, bound: dict[str, str], aliases: dict[str, str]) -> None:
        """Rename a definition, a name or an attribute of a module."""
        if isinstance(node, ast.Name) and node.id in bound:
            self.replace(self.offset(node.lineno, node.col_offset), node.id, bound[node.id])
        elif (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name in bound
        ):
            if self.is_top(node):
                start = self.offset(node.lineno, node.col_offset)
                word = re.compile(r"(?:class|async\s+def|def)\s+").match(self.text, start)
                assert word, (self.path, node.name)
                self.replace(word.end(), node.name, bound[node.name])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = aliases.get(node.value.id)
            table = self.renames.by_module.get(module or "", {})
            if node.attr in table:
                end = self.offset(node.end_lineno or 0, node.end_col_offset or 0)
                self.replace(end - len(node.attr), node.attr, table[node.attr])

    def is_top(self, node: ast.AST) -> bool:
        """Whether a definition is at the module's top level: methods of the same name stay."""
        return isinstance(node, ast.ClassDef) or getattr(node, "col_offset", 1) == 0

    def strings(self, tree: ast.Module, bound: dict[str, str]) -> None:
        """Rename in strings: annotations, names in backticks, and names after their file or module."""
        annotations = set()
        for node in ast.walk(tree):
            for field in ("annotation", "returns"):
                if isinstance(getattr(node, field, None), ast.expr):
                    annotations |= {id(inner) for inner in ast.walk(getattr(node, field))}
            if isinstance(node, ast.Subscript):
                annotations |= {id(inner) for inner in ast.walk(node.slice)}
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "cast",
                "typing.cast",
                "TypeVar",
            ):
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                annotations |= {id(inner) for value in values for inner in ast.walk(value)}
            if isinstance(node, ast.ClassDef):
                annotations |= {id(inner) for base in node.bases for inner in ast.walk(base)}
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                annotations |= {id(inner) for inner in ast.walk(node.value)}
        exported = self.exported(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            start = self.offset(node.lineno, node.col_offset)
            end = self.offset(node.end_lineno or 0, node.end_col_offset or 0)
            raw = self.text[start:end]
            if id(node) in annotations or id(node) in exported:
                for match in re.finditer(r"[A-Za-z_]\w*", raw):
                    if match[0] in bound:
                        self.replace(start + match.start(), match[0], bound[match[0]])
            else:
                self.marked(start, raw, bound)

    def constant(self, node: ast.expr | None, table: dict[str, str]) -> None:
        """Rename a string that is a name."""
        if isinstance(node, ast.Constant) and node.value in table:
            start = self.offset(node.lineno, node.col_offset)
            if self.text[start + 1 : start + 1 + len(str(node.value))] == node.value:
                self.replace(start + 1, str(node.value), table[str(node.value)])

    def patched(self, node: ast.Call | ast.Tuple, aliases: dict[str, str]) -> None:
        """Rename in ``patch(module, "name", ...)`` and ``(module, "name", ...)``."""
        items = node.args if isinstance(node, ast.Call) else node.elts
        if len(items) > 1 and isinstance(items[0], ast.Name) and items[0].id in aliases:
            module = aliases[items[0].id]
            self.constant(items[1], self.renames.bound_in(module))

    def by_path(self, node: ast.Dict) -> None:
        """Rename in a table from a file to its functions."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Dict):
                for inner in value.keys:
                    self.constant(inner, self.renames.by_file.get(str(key.value), {}))

    @staticmethod
    def hidden(tree: ast.Module, names: set[str]) -> set[int]:
        """Return the names and attributes in functions whose parameter or variable has the same name."""
        found: set[int] = set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            body = [node.body] if isinstance(node, ast.Lambda) else node.body
            inner = [item for statement in body for item in ast.walk(statement)]
            local = {item.arg for item in ast.walk(node.args) if isinstance(item, ast.arg)}
            local |= {
                item.id
                for item in inner
                if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
            }
            local &= names
            for item in inner if local else ():
                name = item.value if isinstance(item, ast.Attribute) else item
                if isinstance(name, ast.Name) and name.id in local:
                    found.add(id(item))
        return found

    @staticmethod
    def exported(tree: ast.Module) -> set[int]:
        """Return the strings of `__all__` and of tables from names to modules."""
        return {
            id(inner)
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and target.id in ("__all__", "_HOMES", "_WHERE")
            for inner in ast.walk(node.value)
        }

    def marked(self, start: int, raw: str, bound: dict[str, str]) -> None:
        """Rename names in backticks, after a file's path, and after a module's dotted name."""
        for match in re.finditer(r"`+([A-Za-z_]\w*)[^`\n]*`", raw):
            if match[1] in bound:
                self.replace(start + match.start(1), match[1], bound[match[1]])
        for match in re.finditer(r"([a-z_/]+\.py)`?(?: |::)`?([A-Za-z_]\w*)", raw):
            table = self.renames.by_file.get(match[1], {})
            if match[2] in table:
                self.replace(start + match.start(2), match[2], table[match[2]])
        for match in re.finditer(r"\b(distributedlog(?:\.[a-z_]\w*)+)\.([A-Za-z_]\w*)", raw):
            table = self.renames.by_module.get(match[1], {})
            if match[2] in table:
                self.replace(start + match.start(2), match[2], table[match[2]])
        for match in re.finditer(r"\bfrom (distributedlog(?:\.\w+)*) import ([^;\n\"']*)", raw):
            table = self.renames.by_module.get(match[1], {})
            for word in re.finditer(r"\w+", match[2]):
                if word[0] in table:
                    self.replace(start + match.start(2) + word.start(), word[0], table[word[0]])

    def comments(self, bound: dict[str, str]) -> None:
        """Rename in comments."""
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                start = self.starts[token.start[0] - 1] + token.start[1]
                self.marked(start, token.string, bound)


def document(text: str, renames: Renames) -> str:
    """Rename in a page: names in backticks on a line that names their file, and not another one's."""
    made = []
    for line in text.splitlines(keepends=True):
        files = [
            name
            for name in re.findall(r"[a-z_]+(?:/[a-z_]+)+\.py", line)
            if name in renames.by_file
        ]
        if files:
            table: dict[str, set[str]] = defaultdict(set)
            for file in dict.fromkeys(files):
                for old, new in renames.by_file[file].items():
                    table[old].add(new)

            def name(match: re.Match[str], table: dict[str, set[str]] = table) -> str:
                found = table.get(match[1], set())
                return f"`{next(iter(found))}{match[2]}`" if len(found) == 1 else match[0]

            line = re.sub(r"`([A-Za-z_]\w*)((?:\.[\w.]+)?(?:\(\))?)`", name, line)
        made.append(line)
    return "".join(made)


def main() -> int:
    """Rename; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--tables", required=True)
    options = parser.parse_args()
    root = options.checkout.resolve()
    renames = Renames(root, options.tables.split(","))
    files = tracked(root)
    modules = {module_name(f) for f in files if f.endswith(".py")}
    changed = 0
    for path in files:
        place = root / path
        if place.is_symlink() or not place.is_file():
            continue
        if path.endswith(".py"):
            text = place.read_text(encoding="utf-8")
            made = Renamer(path, text, renames, modules).run()
        elif path.endswith(".md"):
            text = place.read_text(encoding="utf-8")
            made = document(text, renames)
        else:
            continue
        if made != text:
            place.write_text(made, encoding="utf-8")
            changed += 1
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "-q", "--fix", "--select", "I", "."], cwd=root, check=False)
    subprocess.run([*ruff, "format", "-q", "."], cwd=root, check=False)
    for path in files:
        if path.endswith(".py") and (root / path).is_file() and not (root / path).is_symlink():
            wrap(root / path)
    subprocess.run([*ruff, "format", "-q", "."], cwd=root, check=False)
    print(f"{sum(map(len, renames.by_file.values()))} names, {changed} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
