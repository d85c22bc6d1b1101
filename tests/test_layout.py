"""Lists that say the same agree; what a process does not use it does not load."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import distributedlog
from tests.parts import files_of, package_path, part_folders

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("distributedlog.testing.sim.", "distributedlog.testing.bench.peers.")
"""Packages that are not in the wheel."""


def test_links_and_package_dir_agree() -> None:
    """One forgotten line would break the wheel, or only the type checkers."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    mapped = setuptools["package-dir"]
    package = ROOT / "distributedlog"
    links = {f"distributedlog.{p.name}": p.name for p in package.iterdir() if p.is_symlink()}
    alone = {name: folder for name, folder in mapped.items() if name not in links}
    assert {name: folder for name, folder in mapped.items() if name in links} == links
    assert all((ROOT / folder / "__init__.py").is_file() for folder in alone.values())
    inits = [*package.glob("__init__.py"), *package.glob("*/__init__.py")]
    for part in ("distributedlog", *part_folders()):
        inits += [package_path(path) for path in files_of(part) if path.name == "__init__.py"]
    packages = {".".join(path.relative_to(ROOT).parts[:-1]) for path in inits}
    packages -= {folder.replace("/", ".") for folder in alone.values()}
    left_out = {name for name in packages if f"{name}.".startswith(LEFT_OUT)}
    assert {*setuptools["packages"]} == packages - left_out | {*alone}


def test_a_name_for_users_has_one_home_for_types_and_at_run_time() -> None:
    source = ast.parse((ROOT / "distributedlog" / "__init__.py").read_text())
    for_types = next(node for node in source.body if isinstance(node, ast.If))
    homes = {
        alias.name: f".{node.module}"
        for node in for_types.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert {
        name: home for name, home in homes.items() if name in distributedlog.__all__
    } == distributedlog._HOMES
    assert all(hasattr(distributedlog, name) for name in distributedlog.__all__)
    assert set(distributedlog.__all__) <= set(dir(distributedlog))


def test_type_checkers_see_no_module_that_has_any_name() -> None:
    """They accept whatever a module's ``__getattr__`` might give; it stands where they do not look."""
    parts = [path for path in ROOT.iterdir() if (path / "__init__.py").exists()]
    found = [
        str(path.relative_to(ROOT))
        for part in parts
        if part.name != "tests"
        for path in part.rglob("*.py")
        if "__getattr__" in (text := path.read_text())  # parsing is most of the cost
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
    ]

    assert found == []


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("distributedlog", {"trio", "msgpack", "distributedlog.log.read.log_reader"}),
        ("distributedlog.cli.main", {"trio", "msgpack", "distributedlog.log.read.log_reader"}),
        (
            "distributedlog.cluster.local.node_child",
            {"h11", "tomllib", "distributedlog.log.read.log_reader"},
        ),
        ("distributedlog.connect", {"lmdb", "h11", "click", "distributedlog.metadata.server"}),
    ],
)
def test_starting_costs_only_what_is_used(module: str, unwanted: set[str]) -> None:
    """`dlog --help` in the time of an interpreter, a node without what reads logs."""
    said = subprocess.run(
        [sys.executable, "-c", f"import {module}, sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip

    assert unwanted & set(said.stdout.split()) == set()
