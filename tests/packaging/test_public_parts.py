"""docs/reference/stability.md and compatibility.md agree with the package."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STABILITY = (ROOT / "docs/reference/stability.md").read_text()
COMPATIBILITY = (ROOT / "docs/reference/compatibility.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def public_modules() -> list[str]:
    table = STABILITY.split("## Public modules\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w.]+)` \|", table, re.M)


def modules_with_public_names() -> set[str]:
    """Return the modules of the two upper levels that declare `__all__`."""
    package = ROOT / "distributedlog"
    files = [package / "__init__.py", *package.glob("[a-z]*.py"), *package.glob("*/__init__.py")]
    found = {file for file in files if re.search(r"^__all__\b", file.read_text(), re.M)}
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in found
    }


def test_stability_page_lists_exactly_the_modules_that_declare_public_names() -> None:
    assert set(public_modules()) == modules_with_public_names()
    assert all(importlib.util.find_spec(module) for module in public_modules())


@pytest.mark.parametrize("part", ["Python", "Packages"])
def test_compatibility_page_names_every_declared_version_and_extra(part: str) -> None:
    text = COMPATIBILITY.split(f"## {part}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `?([\w.]+)`? \|", text, re.M)[1:]
    minors = [
        line.rpartition(" :: ")[2]
        for line in PROJECT["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    contributors = {"test", "browser", "docs", "engines", "release"}
    extras = ["none", *sorted(set(PROJECT["optional-dependencies"]) - contributors)]

    assert rows == {"Python": minors, "Packages": extras}[part]


def test_compatibility_page_names_every_package_of_an_extra_for_users() -> None:
    names = [re.split(r"[\[><=]", text)[0] for text in PROJECT["dependencies"]]
    for extra in ("arrow", "compression", "gateway", "pki", "spark"):
        names += [re.split(r"[\[><=]", text)[0] for text in PROJECT["optional-dependencies"][extra]]

    table = COMPATIBILITY.split("## Packages\n")[1].split("\n## ")[0]

    assert [name for name in names if name not in table] == []
