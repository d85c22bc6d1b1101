#!/usr/bin/env python3
# ruff: noqa: D102, E501, RUF034
"""Rename attributes, methods, parameters and local variables, resolved by their types.

    .ci/house/rename_members.py [--dry-run] TABLE...     run by an interpreter that has mypy and the test extras

A row has an old name, a tab, and the new last part of it:

    distributedlog.bookie.store.add_handler.AddHandler.take         a method or attribute of a class
    distributedlog.bookie.store.add_handler.AddHandler.take(frame)  a parameter
    distributedlog.bookie.store.add_handler.AddHandler.take:found   a local variable

A method is renamed in all classes that share it: bases, subclasses and protocols. Docstrings that name it between
backticks follow. Rows that conflict are reported and skipped. What mypy cannot resolve (``Any``) is reported.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mypy import build
from mypy.config_parser import parse_config_file
from mypy.find_sources import create_source_list
from mypy.nodes import (
    Argument,
    Block,
    CallExpr,
    ClassDef,
    Decorator,
    Expression,
    FuncDef,
    FuncItem,
    MemberExpr,
    MypyFile,
    NameExpr,
    RefExpr,
    Statement,
    StrExpr,
    SuperExpr,
    SymbolNode,
    TupleExpr,
    TypeInfo,
    Var,
)
from mypy.options import Options
from mypy.patterns import ClassPattern, Pattern
from mypy.subtypes import is_subtype
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    LiteralType,
    NoneType,
    Overloaded,
    TupleType,
    Type,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)
from mypy.typevars import fill_typevars_with_any

ROOT = Path(__file__).resolve().parent.parent.parent
OURS = ("distributedlog", "tests", "examples", "pyspark_distributedlog")
CHILD_KINDS = (Statement, Expression, Block, Argument, FuncItem, Pattern)
FOREIGN = (
    list,
    dict,
    set,
    str,
    bytes,
    bytearray,
    memoryview,
    int,
    float,
    tuple,
    Path,
    re.Match,
    re.Pattern,
    BaseException,
    object,
)
"""Types of values whose attributes a name may be where mypy knows no type."""
TEXT_CALLS = {"setattr", "getattr", "delattr", "hasattr", "object"}


@dataclass(frozen=True)
class Use:
    """A name in a file, by line (from 1) and column in bytes (from 0)."""

    path: str
    line: int
    column: int


@dataclass
class Tables:
    """Uses of each name in the tree."""

    members: dict[tuple[str, str], set[Use]] = field(default_factory=lambda: defaultdict(set))
    """By class and name."""
    unions: dict[Use, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The classes that a use may mean."""
    unresolved: dict[str, set[Use]] = field(default_factory=lambda: defaultdict(set))
    variables: dict[int, set[Use]] = field(default_factory=lambda: defaultdict(set))
    """By the identity of mypy's `Var`."""
    locals: dict[tuple[str, str], list[Var]] = field(default_factory=lambda: defaultdict(list))
    """By function and name."""
    keywords: dict[tuple[str, str], set[Use]] = field(default_factory=lambda: defaultdict(set))
    """By function and name."""
    infos: dict[str, TypeInfo] = field(default_factory=dict)
    functions: dict[str, tuple[str, FuncItem]] = field(default_factory=dict)
    docstrings: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Of functions: path, first and last line."""
    module_texts: dict[tuple[str, str], set[Use]] = field(default_factory=lambda: defaultdict(set))
    """By module and name: strings that follow the module in a call."""
    strings: dict[str, set[Use]] = field(default_factory=lambda: defaultdict(set))
    names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """All names that a function uses."""


def definer(info: TypeInfo, name: str) -> TypeInfo | None:
    """Return the class of the method resolution order that has the name."""
    for base in info.mro:
        if name in base.names:
            return base
    return None


NO_CHILDREN = {
    "node",
    "info",
    "analyzed",
    "expanded",
    "unanalyzed_items",
    "defn",
    "definition",
    "metaclass",
}
"""Attributes of mypy's nodes that lead to other nodes than children."""


def children(node: Any, attributes: dict[type, list[str]]) -> list[Any]:
    """Return the child nodes of a node. mypy's own visitor cannot be subclassed where mypy is compiled."""
    kind = type(node)
    if kind not in attributes:
        attributes[kind] = [
            name
            for name in dir(kind)
            if not name.startswith("__")
            and name not in NO_CHILDREN
            and type(getattr(kind, name)).__name__ == "getset_descriptor"
        ]
    found: list[Any] = []

    def add(value: Any) -> None:
        if isinstance(value, list | tuple):
            for item in value:
                add(item)
        elif isinstance(value, CHILD_KINDS) and all(value is not other for other in found):
            found.append(value)

    for name in attributes[kind]:
        try:
            value = getattr(node, name)
        except AttributeError:
            continue
        add(value)
    return found


class Collector:
    """Collects the uses of one file."""

    def __init__(
        self, path: str, module: str, types: dict[Expression, Type], tables: Tables
    ) -> None:
        self.attributes: dict[type, list[str]] = {}
        self.path, self.module, self.types, self.tables = path, module, types, tables
        self.source = Path(path).read_bytes().split(b"\n")
        tree = ast.parse(b"\n".join(self.source))
        self.keyword_places: dict[tuple[int, int, str], tuple[int, int]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg:
                        self.keyword_places[
                            (
                                node.lineno,
                                node.col_offset,
                                node.end_lineno,
                                node.end_col_offset,
                                keyword.arg,
                            )
                        ] = (  # type: ignore[index]
                            keyword.lineno,
                            keyword.col_offset,
                        )
        self.stack: list[str] = [module]
        self.functions: list[str] = []
        self._scan(tree, module, None)

    def _scan(self, node: ast.AST, prefix: str, cls: str | None) -> None:
        """Find definitions, slots and property setters."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                self._scan(child, f"{prefix}.{child.name}", f"{prefix}.{child.name}")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                if cls:
                    line = self.source[child.lineno - 1]
                    found = re.compile(rb"def\s+").search(line, child.col_offset)
                    if found:
                        self.member(cls, child.name, child.lineno, found.end())
                    for decorator in child.decorator_list:
                        if isinstance(decorator, ast.Attribute) and isinstance(
                            decorator.value, ast.Name
                        ):
                            self.member(
                                cls,
                                decorator.value.id,
                                decorator.value.lineno,
                                decorator.value.col_offset,
                            )
                first = child.body[0]
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    self.tables.docstrings[f"{prefix}.{child.name}"] = (
                        self.path,
                        first.lineno,
                        first.end_lineno or first.lineno,
                    )
                self._scan(child, f"{prefix}.{child.name}", None)
            elif (
                isinstance(child, ast.Assign)
                and cls
                and isinstance(child.targets[0], ast.Name)
                and child.targets[0].id == "__slots__"
            ):
                for item in ast.walk(child.value):
                    if isinstance(item, ast.Constant) and isinstance(item.value, str):
                        self.member(cls, item.value, item.lineno, item.col_offset + 1)
            else:
                self._scan(child, prefix, cls)

    def member(self, cls: str, name: str, line: int, column: int) -> None:
        """Note a use of a class's member."""
        use = Use(self.path, line, column)
        self.tables.members[(cls, name)].add(use)
        self.tables.unions[use].add(cls)

    def classes(self, typ: Type | None) -> list[TypeInfo] | None:
        """Return the classes of a value's type; None if it is unknown."""
        typ = get_proper_type(typ) if typ is not None else None
        if typ is None or isinstance(typ, AnyType):
            return None
        if isinstance(typ, Instance):
            return [typ.type]
        if isinstance(typ, UnionType):
            found: list[TypeInfo] = []
            for item in typ.items:
                classes = self.classes(item)
                if classes is None:
                    return None
                found += classes
            return found
        if isinstance(typ, TypeType):
            return self.classes(typ.item)
        if isinstance(typ, CallableType | Overloaded):
            return [typ.type_object()] if typ.is_type_obj() else []
        if isinstance(typ, TupleType):
            return [typ.partial_fallback.type]
        if isinstance(typ, TypeVarType):
            return self.classes(typ.upper_bound)
        if isinstance(typ, LiteralType):
            return [typ.fallback.type]
        return [] if isinstance(typ, NoneType) else []

    def name_at_end(self, o: Expression, name: str) -> tuple[int, int]:
        """Return the place of the name that an attribute ends with."""
        return o.end_line or o.line, (o.end_column or 0) - len(name.encode())

    def visit_member_expr(self, o: MemberExpr) -> None:
        line, column = self.name_at_end(o, o.name)
        if not (isinstance(o.expr, RefExpr) and isinstance(o.expr.node, MypyFile)):
            classes = self.classes(self.types.get(o.expr))
            if (
                classes is None
                and isinstance(o.expr, RefExpr)
                and isinstance(o.expr.node, TypeInfo)
            ):
                classes = [o.expr.node]
            if classes is None:
                self.tables.unresolved[o.name].add(Use(self.path, line, column))
            for info in classes or ():
                owner = definer(info, o.name)
                if owner is not None:
                    self.member(owner.fullname, o.name, line, column)
        self.descend(o)

    def visit_super_expr(self, o: SuperExpr) -> None:
        line, column = self.name_at_end(o, o.name)
        if o.info:
            for base in o.info.mro[1:]:
                if o.name in base.names:
                    self.member(base.fullname, o.name, line, column)
                    break
        self.descend(o)

    def visit_name_expr(self, o: NameExpr) -> None:
        node = o.node
        if isinstance(node, Var):
            use = Use(self.path, o.line, o.column)
            if node.info and node.info is not None and self._is_class_var(node):
                self.member(node.info.fullname, o.name, o.line, o.column)
            else:
                self.tables.variables[id(node)].add(use)
                self._local(node)
        if self.functions:
            self.tables.names[self.functions[-1]].add(o.name)
        self.descend(o)

    def _is_class_var(self, node: Var) -> bool:
        try:
            return bool(node.info.fullname) and node.name in node.info.names
        except (AttributeError, AssertionError):
            return False

    def _local(self, node: Var) -> None:
        if self.functions and all(
            node is not other for other in self.tables.locals[(self.functions[-1], node.name)]
        ):
            self.tables.locals[(self.functions[-1], node.name)].append(node)

    def visit_class_def(self, o: ClassDef) -> None:
        self.tables.infos[o.info.fullname] = o.info
        self.stack.append(f"{self.stack[-1]}.{o.name}")
        self.descend(o)
        self.stack.pop()

    def visit_func(self, o: FuncItem) -> None:
        name = f"{self.stack[-1]}.{o.name}" if isinstance(o, FuncDef) else ""
        if name:
            self.stack.append(name)
            self.functions.append(name)
            self.tables.functions[name] = (self.path, o)
        for argument in o.arguments or ():
            self.tables.variables[id(argument.variable)].add(
                Use(self.path, argument.line, self._argument_column(argument))
            )
            self._local(argument.variable)
            if self.functions:
                self.tables.names[self.functions[-1]].add(argument.variable.name)
        self.descend(o)
        if name:
            self.stack.pop()
            self.functions.pop()

    def _argument_column(self, argument: Any) -> int:
        return int(argument.column)

    def visit_call_expr(self, o: CallExpr) -> None:
        callee = (
            get_proper_type(self.types.get(o.callee))
            if self.types.get(o.callee) is not None
            else None
        )
        names = [name for name in o.arg_names if name]
        if names:
            targets: list[str] = []
            if isinstance(callee, CallableType):
                definition = callee.definition
                if isinstance(definition, Decorator):
                    definition = definition.func
                if callee.is_type_obj():
                    info = callee.type_object()
                    owner = definer(info, "__init__")
                    if owner is not None and owner.names["__init__"].plugin_generated:
                        for name in names:
                            field_owner = definer(info, name)
                            place = self._keyword(o, name)
                            if field_owner is not None and place:
                                self.member(field_owner.fullname, name, *place)
                if isinstance(definition, SymbolNode):
                    targets.append(definition.fullname)
            node = o.callee.node if isinstance(o.callee, RefExpr) else None
            if isinstance(node, Decorator):
                node = node.func
            if isinstance(node, FuncDef):
                targets.append(node.fullname)
            for name in names:
                place = self._keyword(o, name)
                for target in targets:
                    if place:
                        self.tables.keywords[(target, name)].add(Use(self.path, *place))
            if (
                isinstance(o.callee, RefExpr)
                and o.callee.fullname in ("dataclasses.replace", "copy.replace")
                and o.args
            ):
                for info in self.classes(self.types.get(o.args[0])) or ():
                    for name in names:
                        field_owner, place = definer(info, name), self._keyword(o, name)
                        if field_owner is not None and place:
                            self.member(field_owner.fullname, name, *place)
        last = o.callee.name if isinstance(o.callee, MemberExpr | NameExpr) else ""
        if len(o.args) >= 2 and isinstance(o.args[1], StrExpr):
            self._named(o.args[0], o.args[1], any_value=last in TEXT_CALLS)
        self.descend(o)

    def _named(self, target: Expression, text: StrExpr, *, any_value: bool) -> None:
        """Note a name in a string after the class, object or module that it is of."""
        if isinstance(target, RefExpr) and isinstance(target.node, MypyFile):
            self.tables.module_texts[(target.node.fullname, text.value)].add(
                Use(self.path, text.line, text.column + 1)
            )
            return
        classes = (self.classes(self.types.get(target)) or []) if any_value else []
        if isinstance(target, RefExpr) and isinstance(target.node, TypeInfo):
            classes = [target.node]
        for info in classes:
            text_owner = definer(info, text.value)
            if text_owner is not None:
                self.member(text_owner.fullname, text.value, text.line, text.column + 1)

    def visit_tuple(self, o: TupleExpr) -> None:
        if len(o.items) >= 2 and isinstance(o.items[1], StrExpr):
            self._named(o.items[0], o.items[1], any_value=False)
        self.descend(o)

    def visit_str(self, o: StrExpr) -> None:
        self.tables.strings[o.value].add(Use(self.path, o.line, o.column + 1))

    def _keyword(self, o: CallExpr, name: str) -> tuple[int, int] | None:
        return self.keyword_places.get((o.line, o.column, o.end_line, o.end_column, name))  # type: ignore[arg-type]

    def visit_class_pattern(self, o: Any) -> None:
        info = o.class_ref.node
        if isinstance(info, TypeInfo):
            for key, value in zip(o.keyword_keys, o.keyword_values, strict=True):
                owner = definer(info, key)
                line = self.source[value.line - 1]
                at = line.rfind(key.encode() + b"=", 0, value.column + 1)
                if owner is not None and at >= 0:
                    self.member(owner.fullname, key, value.line, at)
        self.descend(o)

    def visit(self, o: Any) -> None:
        """Collect a node and what is in it."""
        for kind, visit in (
            (MemberExpr, self.visit_member_expr),
            (SuperExpr, self.visit_super_expr),
            (NameExpr, self.visit_name_expr),
            (ClassDef, self.visit_class_def),
            (FuncItem, self.visit_func),
            (CallExpr, self.visit_call_expr),
            (ClassPattern, self.visit_class_pattern),
            (TupleExpr, self.visit_tuple),
            (StrExpr, self.visit_str),
        ):
            if isinstance(o, kind):
                visit(o)
                return
        self.descend(o)

    def descend(self, o: Any) -> None:
        """Collect what is in a node."""
        for child in children(o, self.attributes):
            self.visit(child)


def analyzed() -> Tables:
    """Type-check the tree and collect its uses."""
    options = Options()
    import mypy.fscache

    parse_config_file(options, lambda: None, str(ROOT / "pyproject.toml"), sys.stdout, sys.stderr)
    options.incremental = False
    options.export_types = True
    options.preserve_asts = True
    options.check_untyped_defs = True
    options.warn_unreachable = False
    cache = mypy.fscache.FileSystemCache()
    sources = create_source_list(list(options.files or ()), options, cache)
    result = build.build(sources, options, fscache=cache)
    for error in result.errors[:10]:
        print(error)
    tables = Tables()
    for name, state in result.graph.items():
        if name.split(".")[0] in OURS and state.tree is not None and state.path:
            path = str(Path(state.path).resolve().relative_to(ROOT))
            if path.endswith(".py"):
                Collector(path, name, result.types, tables).descend(state.tree)
    return tables


class Families:
    """Which classes share a member: bases, subclasses, protocols and what implements them."""

    def __init__(self, tables: Tables) -> None:
        self.infos = tables.infos

    def of(self, cls: str, name: str) -> set[str]:
        """Return all classes that define the member together with this one."""
        having = {full: info for full, info in self.infos.items() if name in info.names}
        family, todo = set(), [cls]
        while todo:
            one = todo.pop()
            if one in family or one not in having:
                continue
            family.add(one)
            for other, info in having.items():
                if other not in family and self._related(having[one], info, name):
                    todo.append(other)
            # A subclass without the member may join two bases, or a base with a protocol.
            for info in self.infos.values():
                if self.infos[one] in info.mro:
                    todo += [
                        base.fullname
                        for base in info.mro
                        if base.fullname in having and base.fullname not in family
                    ]
                    todo += [
                        other
                        for other, protocol in having.items()
                        if protocol.is_protocol
                        and other not in family
                        and self._fits(info, protocol)
                    ]
        return family

    def _related(self, one: TypeInfo, other: TypeInfo, name: str) -> bool:
        if one in other.mro or other in one.mro:
            return True
        if other.is_protocol and self._fits(one, other):
            return True
        return one.is_protocol and self._fits(other, one)

    def _fits(self, info: TypeInfo, protocol: TypeInfo) -> bool:
        if any(definer(info, member) is None for member in protocol.protocol_members):
            return False
        try:
            return is_subtype(fill_typevars_with_any(info), fill_typevars_with_any(protocol))
        except Exception:
            return True


def plan(rows: list[tuple[str, str]], tables: Tables) -> dict[Use, tuple[str, str]]:
    """Return the edits of all rows; report those that conflict."""
    families, edits = Families(tables), {}

    def put(use: Use, old: str, new: str, row: str) -> None:
        before = edits.get(use)
        if before and before != (old, new):
            print(f"conflict: {row}: {use.path}:{use.line} is {before[1]} already")
            return
        edits[use] = (old, new)

    for row, new in rows:
        if ":" in row or row.endswith(")"):
            function, _, old = row.removesuffix(")").replace("(", ":").partition(":")
            holders = [function]
            owner, _, method = function.rpartition(".")
            if row.endswith(")") and owner in tables.infos:
                holders = [f"{cls}.{method}" for cls in families.of(owner, method)] or [function]
            if not any((holder, old) in tables.locals for holder in holders):
                print(f"not found: {row}")
                continue
            if any(new in tables.names[holder] for holder in holders):
                print(f"in use: {row}: {new}")
                continue
            for holder in holders:
                for variable in tables.locals.get((holder, old), ()):
                    for use in tables.variables[id(variable)]:
                        put(use, old, new, row)
                for use in tables.keywords.get((holder, old), ()):
                    put(use, old, new, row)
                tables.names[holder].add(new)
            continue
        cls, _, old = row.rpartition(".")
        family = families.of(cls, old)
        if not family:
            print(f"not found: {row}")
            continue
        foreign = [
            base.fullname
            for one in family
            for base in tables.infos[one].mro
            if old in base.names and not base.fullname.startswith(OURS)
        ]
        taken = [one for one in family if definer(tables.infos[one], new) is not None]
        if foreign or taken:
            print(f"in use: {row}: {new} in {taken or foreign}")
            continue
        for one in family:
            short = one.rpartition(".")[2]
            for use in tables.strings.get(f"{short}.{old}", ()):
                if use.path.startswith(("tests/", "testing/")) or "testing/" in use.path:
                    put(Use(use.path, use.line, use.column + len(short) + 1), old, new, row)
            for use in tables.members[(one, old)]:
                others = tables.unions[use] - family
                if others:
                    print(f"mixed: {row}: {use.path}:{use.line} may also be of {sorted(others)}")
                put(use, old, new, row)
        is_unique = not any(
            old in info.names for full, info in tables.infos.items() if full not in family
        ) and not any(hasattr(kind, old) for kind in FOREIGN)
        for use in sorted(tables.unresolved.get(old, ()), key=str):
            if is_unique:
                put(use, old, new, row)
            else:
                print(f"unresolved: {row}: {use.path}:{use.line}")
    return edits


def texts(rows: list[tuple[str, str]], tables: Tables) -> dict[str, list[tuple[str, str]]]:
    """Return the replacements between backticks, by file."""
    made: dict[str, list[tuple[str, str]]] = defaultdict(list)
    everywhere = [
        str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    ]
    modules = {path for path, _ in tables.functions.values()}
    for row, new in rows:
        if ":" in row:
            continue
        if row.endswith(")"):
            function, _, old = row.removesuffix(")").partition("(")
            if function in tables.docstrings:
                made[tables.docstrings[function][0] + f"#{function}"].append((old, new))
            continue
        cls, _, old = row.rpartition(".")
        name = cls.rpartition(".")[2]
        for path in [*everywhere, *modules]:
            made[path].append((f"{name}.{old}", f"{name}.{new}"))
        info = tables.infos.get(cls)
        if info is not None:
            module = next(
                (path for path, _ in [tables.functions.get(f"{cls}.{old}", ("", None))]), ""
            )
            if module:
                made[module].append((old, new))
    return made


def main() -> int:
    """Rename, and report what was left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument(
        "--names", nargs="*", type=Path, default=[], help="rename strings that name these"
    )
    given = parser.parse_args()
    rows = [
        (line.split("\t")[0].strip(), line.split("\t")[1].strip())
        for path in given.tables
        for line in path.read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    tables = analyzed()
    edits = plan(rows, tables)
    for path in given.names:
        for line in path.read_text().splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            file, old, new = line.split("\t")[:3]
            module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            if not module.startswith(("distributedlog", "tests")):
                module = f"distributedlog.{module}"
            for use in tables.module_texts.get((module, old), ()):
                edits[use] = (old, new)
            for use in tables.strings.get(f"{module}.{old}", ()):
                edits[Use(use.path, use.line, use.column + len(module) + 1)] = (old, new)
    by_file: dict[str, list[tuple[Use, str, str]]] = defaultdict(list)
    for use, (old, new) in edits.items():
        by_file[use.path].append((use, old, new))
    written = 0
    for path, uses in by_file.items():
        lines = (ROOT / path).read_bytes().split(b"\n")
        for use, old, new in sorted(uses, key=lambda u: (u[0].line, u[0].column), reverse=True):
            line = lines[use.line - 1]
            column = use.column
            while line[column : column + 1] == b"*":
                column += 1
            end = column + len(old.encode())
            if line[column:end] != old.encode():
                print(f"elsewhere: {path}:{use.line}:{column}: {old}")
                continue
            lines[use.line - 1] = line[:column] + new.encode() + line[end:]
            written += 1
        if not given.dry_run:
            (ROOT / path).write_bytes(b"\n".join(lines))
    if not given.dry_run:
        for path, pairs in texts(rows, tables).items():
            path, _, function = path.partition("#")
            text = (ROOT / path).read_text()
            head, part, tail = "", text, ""
            if function:
                _, first, last = tables.docstrings[function]
                split = text.splitlines(keepends=True)
                head, part, tail = (
                    "".join(split[: first - 1]),
                    "".join(split[first - 1 : last]),
                    "".join(split[last:]),
                )
            for old, new in pairs:
                part = re.sub(rf"`{re.escape(old)}(?=[`(])", f"`{new}", part)
            if head + part + tail != text:
                (ROOT / path).write_text(head + part + tail)
        subprocess.run(["ruff", "format", "-q", "."], cwd=ROOT, check=False)
    print(f"{len(rows)} rows, {written} places in {len(by_file)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
