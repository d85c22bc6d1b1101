"""The two lists that name the parts agree."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_links_and_package_dir_agree() -> None:
    """One forgotten line would break the wheel, or only the type checkers."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    mapped = setuptools["package-dir"]
    package = ROOT / "distributedlog"
    links = {f"distributedlog.{p.name}": p.name for p in package.iterdir() if p.is_symlink()}
    assert mapped == links
    inside = {
        f"{name}.{path.parent.name}"
        for name, part in mapped.items()
        for path in (ROOT / part).glob("*/__init__.py")
    }
    assert set(setuptools["packages"]) == {"distributedlog", *mapped, *inside}
