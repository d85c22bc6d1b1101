"""The API reference: pages are current, and every type of a public call is exported and documented."""

import ast
import inspect
import io
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import distributedlog
from distributedlog import aio, blocking
from tools.api_members import all_members
from tools.api_pages import CONSTRUCTORS, ERRORS_PAGE, INTERNAL, INTERNAL_PARAMETERS, PAGES
from tools.generate_api_reference import OVERVIEW, REFERENCE, generated_pages, links_from, page_path
from tools.generate_api_variants import API_CLASSES

VARIANTS = (distributedlog, aio, blocking)
pages = cache(generated_pages)
FILES = [OVERVIEW, *(page_path(name) for name in (ERRORS_PAGE, *(page.name for page in PAGES)))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REFERENCE)))
def test_a_page_is_current_and_has_no_change_by_hand(path: Path) -> None:
    assert path.read_text() == pages()[path], "run `python -m tools.generate_api_reference`"


def test_no_other_page_is_in_the_folder() -> None:
    assert {*pages()} == {*FILES}
    assert {*(REFERENCE / "api").glob("*")} == {*FILES} - {OVERVIEW}


def types_in(call: Any) -> set[type]:
    """Return the classes of this package in the annotations of a call."""
    module = inspect.getmodule(call)
    found = set()
    for name, parameter in inspect.signature(call).parameters.items():
        if name not in ("self", "cls", *INTERNAL_PARAMETERS):
            found |= _classes(parameter.annotation, module)
    return found | _classes(inspect.signature(call).return_annotation, module)


def _classes(annotation: Any, module: Any) -> set[type]:
    found = set()
    words = re.findall(r"\w+", str(annotation).removeprefix("<class "))
    for word in words:
        one = getattr(module, word, None) or getattr(distributedlog, word, None)
        if inspect.isclass(one) and one.__module__.startswith("distributedlog"):
            found.add(one)
    return found


def public_calls(variant: Any) -> list[tuple[str, Any]]:
    """Return the public functions, methods and properties of an API variant, by name."""
    excluded = {one.name: one.excluded for one in API_CLASSES}
    found: list[tuple[str, Any]] = []
    for name in variant.__all__:
        one = getattr(variant, name)
        if not inspect.isclass(one):
            found.append((name, inspect.unwrap(one)))
            continue
        for attribute, member in inspect.getmembers_static(one):
            full_name = f"{name}.{attribute}"
            call = member.fget if isinstance(member, property) else member
            call = getattr(call, "__func__", call)
            if (
                inspect.isfunction(call)
                and not attribute.startswith("_")
                and attribute not in excluded.get(name, ())
                and not INTERNAL.fullmatch(attribute)
                and not INTERNAL.fullmatch(full_name)
            ):
                found.append((full_name, call))
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_every_type_of_a_public_call_is_exported(variant: Any) -> None:
    """So users can name it in annotations. A type of a variant is exported by the variant itself."""
    exported = {
        getattr(module, name) for module in (distributedlog, variant) for name in module.__all__
    }

    missing = {
        f"{name}: {one.__qualname__}"
        for name, call in public_calls(variant)
        for one in types_in(call)
        if one not in exported
    }

    assert missing == set()


def test_every_type_on_a_page_is_documented() -> None:
    """Also those of attributes, such as `LogDescription.state`."""
    documented = links_from(OVERVIEW).targets

    missing = {
        f"{member.full_name}: {one.__name__}"
        for member in all_members()
        for one in _classes(
            member.annotation,
            inspect.getmodule(getattr(distributedlog, member.owner or member.name)),
        )
        if one.__name__ not in documented
    }

    assert missing == set()


def test_every_attribute_on_a_page_has_a_type() -> None:
    assert [one.full_name for one in all_members() if not one.annotation] == []


def test_types_are_written_as_users_write_them() -> None:
    """No names of modules, no `typing.`, no quotes around a whole type, and every name is known to users."""
    for path, text in pages().items():
        for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
            if path != OVERVIEW:
                assert not re.search(
                    r"typing\.|Optional\[|Union\[|distributedlog\.\w+\.|'", block
                ), block


def test_a_signature_is_python() -> None:
    for path, text in pages().items():
        for block in re.findall(r"^```python\n((?:async )?def .*?)^```", text, re.M | re.S):
            ast.parse(re.sub(r"def \w+\.", "def ", block.rstrip()) + ": ...", str(path))


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_constructor_that_is_shown_has_these_parameters(name: str) -> None:
    [call] = ast.parse(re.sub(r"^", "def ", CONSTRUCTORS[name]) + ": ...").body
    assert isinstance(call, ast.FunctionDef)
    cls = getattr(distributedlog, name)
    parameters = list(inspect.signature(cls).parameters)

    assert [one.arg for one in call.args.args] == parameters


def test_an_error_that_a_call_raises_has_a_link() -> None:
    for path, text in pages().items():
        for line in re.findall(r"^Raises: (.*?)\n\n", text, re.M | re.S):
            names = re.sub(r"\[`\w+`\]\([^)]*\)", "", line)
            assert not re.search(r"\w", names), f"{path.name}: {line}"


def shape(one: Any) -> str:
    """Return the kind of a member and the names of its parameters."""
    if not inspect.isfunction(one):
        return "attribute"
    kind = "async " if inspect.iscoroutinefunction(one) else ""
    return kind + ", ".join(inspect.signature(one).parameters)


def test_each_difference_of_the_variants_is_in_the_table() -> None:
    """`close` for `aclose`, and calls without `async`, have rows that are not about one call."""
    table = OVERVIEW.read_text().partition("## Differences")[2].partition("\n## ")[0]
    general = {"aclose", "close", "run", "start"}
    for one in API_CLASSES:
        trio, asyncio_, threads = (
            {
                name: shape(member)
                for name, member in inspect.getmembers_static(getattr(variant, one.name))
                if name[0] != "_" and name not in one.excluded | general
            }
            for variant in VARIANTS
        )
        if issubclass(getattr(blocking, one.name), io.RawIOBase):
            continue
        differing = {name for name in trio if asyncio_.get(name) != trio[name]}
        differing |= {
            name for name in asyncio_ if threads.get(name) != asyncio_[name].removeprefix("async ")
        }
        attributes = {"token", *getattr(one.trio_class, "__slots__", ())}
        missing = {name for name in differing - attributes if f"{one.name}.{name}" not in table}
        assert missing == set(), one.name
