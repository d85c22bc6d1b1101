"""The public names of the Python API, as the source has them: signatures, types, docstrings, attributes.

A member of a class is public if all API variants have it, unless `tools/api_pages.py` lists it as internal.
"""

import ast
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import distributedlog
from distributedlog import DistributedLogError, aio

from .api_pages import ATTRIBUTE_TYPES, INTERNAL, PAGES, TYPE_ALIASES, ApiPage
from .generate_api_variants import API_CLASSES

EXCLUDED = {one.name: one.excluded for one in API_CLASSES}
PROTOCOL_METHODS = {"__aenter__", "__anext__", "__await__", "__getitem__"}
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Member:
    """A public attribute or call of a class, or a public function."""

    owner: str
    """The class, or "" for a function."""
    name: str
    annotation: str
    """The type of an attribute, or the type that a call returns."""
    doc: str
    node: FunctionNode | None = None
    """The definition of a call. None for an attribute."""
    value: Any = None
    """The function object of a call."""

    @property
    def full_name(self) -> str:
        """Return ``Class.name``, or ``name`` for a function."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


@cache
def members_of(name: str) -> dict[str, Member]:
    """Return the public members of an exported class, in the order of the source, by name."""
    cls = getattr(distributedlog, name)
    variant = getattr(aio, name, cls)
    excluded = EXCLUDED.get(name, frozenset())
    shared = {*dir(variant), *constructor_attributes(variant)}
    found: dict[str, Member] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("distributedlog") or (
            base is not cls and base.__name__ == name  # the fields of a named tuple
        ):
            continue
        for member in _members_in_source(name, base):
            if member.name in PROTOCOL_METHODS or (
                not member.name.startswith("_")
                and member.name not in excluded
                and not INTERNAL.fullmatch(member.name)
                and not INTERNAL.fullmatch(member.full_name)
                and (member.name in shared or variant is cls)
            ):
                found[member.name] = member
    return found


def _members_in_source(owner: str, cls: type) -> Iterator[Member]:
    body = _class_node(cls).body
    if issubclass(cls, tuple):
        for name, kind in cls.__mro__[1].__annotations__.items():
            yield Member(owner, name, kind.__name__, "")
    for name, (annotation, doc) in constructor_attributes(cls).items():
        yield Member(owner, name, annotation, doc)
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            assert isinstance(node.target, ast.Name)
            yield Member(
                owner, node.target.id, annotation_text(node.annotation), _string(following)
            )
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):  # x = cast("T", …)
            assert isinstance(node.targets[0], ast.Name)
            annotation = annotation_text(node.value.args[0])
            yield Member(owner, node.targets[0].id, annotation, _string(following))
        elif isinstance(node, ast.Assign) and issubclass(cls, Enum):
            assert isinstance(node.targets[0], ast.Name)
            yield Member(owner, node.targets[0].id, ast.unparse(node.value), _string(following))
        elif isinstance(node, FunctionNode):
            value = inspect.getattr_static(cls, node.name)
            doc = ast.get_docstring(node) or ""
            is_property = isinstance(value, property)
            yield Member(
                owner,
                node.name,
                re.sub(r"\bSelf\b", owner, annotation_text(node.returns)),
                doc,
                None if is_property else node,
                None if is_property else getattr(value, "__func__", value),
            )


@cache
def constructor_attributes(cls: type) -> dict[str, tuple[str, str]]:
    """Return type and docstring of the public attributes that the constructor of a class sets, by name."""
    found: dict[str, tuple[str, str]] = {}
    for method in _class_node(cls).body:
        if not (isinstance(method, ast.FunctionDef) and method.name == "__init__"):
            continue
        for node, following in zip(method.body, [*method.body[1:], None], strict=True):
            annotation = None
            targets: Sequence[ast.expr] = ()
            if isinstance(node, ast.AnnAssign):
                targets, annotation = [node.target], node.annotation
            elif isinstance(node, ast.Assign):
                targets = node.targets
            for target in targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.Attribute) and not one.attr.startswith("_"):
                        text = annotation_text(annotation) or ATTRIBUTE_TYPES.get(one.attr, "")
                        found[one.attr] = text, _string(following)
    return found


@cache
def _class_node(cls: type) -> ast.ClassDef:
    module = ast.parse(Path(inspect.getfile(cls)).read_text())
    return next(
        node for node in module.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )


def _string(node: ast.stmt | None) -> str:
    """Return the docstring of an attribute, which is the statement after it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return inspect.cleandoc(str(node.value.value))
    return ""


def annotation_text(node: ast.expr | None) -> str:
    """Return an annotation as users write it."""
    if node is None:
        return ""
    text = node.value if isinstance(node, ast.Constant) and node.value else ast.unparse(node)
    text = re.sub(r"^ClassVar\['(.*)'\]$", r"\1", str(text)).replace("'", '"')
    for alias, meaning in TYPE_ALIASES.items():
        text = re.sub(rf"\b{alias}\b", meaning, text)
    return text


def function_member(name: str) -> Member:
    """Return an exported function."""
    function = inspect.unwrap(getattr(distributedlog, name))
    [node] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, FunctionNode)
    returns = annotation_text(node.returns)
    if function is not getattr(distributedlog, name):  # @asynccontextmanager
        returns = re.sub(r"^AsyncIterator\[", "AbstractAsyncContextManager[", returns)
        node = ast.FunctionDef(**{**vars(node)})
    return Member("", name, returns, ast.get_docstring(node) or "", node, function)


def shown_members(page: ApiPage) -> Iterator[tuple[str, list[Member], bool]]:
    """Yield the exported names of a page, their members, and whether the page is the first of the name."""
    for entry in page.names:
        name, *calls = entry.split()
        if not inspect.isclass(getattr(distributedlog, name)):
            yield name, [function_member(name)], True
            continue
        members = members_of(name)
        first = _first_entry(name) is entry
        chosen = [members[call] for call in calls] if calls else list(members.values())
        yield name, [one for one in chosen if one.name not in PROTOCOL_METHODS], first


def _first_entry(name: str) -> str:
    return next(entry for page in PAGES for entry in page.names if entry.split()[0] == name)


def all_members() -> list[Member]:
    """Return all members that the pages show."""
    return [one for page in PAGES for _, members, _ in shown_members(page) for one in members]


def check_pages() -> None:
    """Check that each exported name is on one page, and each call of a name that is split as well."""
    listed: dict[str, list[str]] = defaultdict(list)
    for page in PAGES:
        for entry in page.names:
            name, *calls = entry.split()
            listed[name] += calls
    classes = [getattr(distributedlog, name) for name in distributedlog.__all__]
    errors = {
        one.__name__
        for one in classes
        if inspect.isclass(one) and issubclass(one, DistributedLogError)
    }
    missing = {*distributedlog.__all__} - errors ^ {*listed}
    assert not missing, f"tools/api_pages.py and distributedlog.__all__ differ: {missing}"
    for name, calls in listed.items():
        if calls:
            differing = {*members_of(name)} - PROTOCOL_METHODS ^ {*calls}
            assert not differing, f"tools/api_pages.py and {name} differ: {differing}"
