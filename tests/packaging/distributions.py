"""Build the archives of this tree, and install wheels into new environments without the network."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
NAME = "distributedlog-py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: str = PROJECT["project"]["version"]
NOT_COPIED = {"build", "dist", "site", "data"}
"""Folders that builds and tests leave in the tree."""
HIDDEN_COPIED = {".ci", ".dockerignore", ".github"}
SOURCE_DATE = "1767225600"
"""A fixed time of all files in an archive, in seconds since 1970."""
LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Build:
    """The two archives of one version."""

    sdist: Path
    wheel: Path


def run(
    *command: str | Path, cwd: Path | None = None, check: bool = True, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a program without the variables that lead Python or `dlog` to this tree."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "DLOG_", "PIP_"))
    }
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**kept, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if check:
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])
    return done


def copy_tree(target: Path) -> None:
    """Copy what a clone has: no hidden folders of tools, no caches, no earlier builds."""
    target.mkdir()
    for path in ROOT.iterdir():
        if path.name in NOT_COPIED or path.suffix == ".egg-info":
            continue
        if path.name.startswith(".") and path.name not in HIDDEN_COPIED:
            continue
        if path.is_dir():
            shutil.copytree(
                path,
                target / path.name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", ".*cache"),
            )
        else:
            shutil.copy2(path, target / path.name)


def build_archive(kind: str, source: Path, target: Path) -> Path:
    """Build "sdist" or "wheel" from an unpacked source with the declared backend, without the network."""
    target.mkdir(exist_ok=True)
    script = f"import setuptools.build_meta as b, sys; print(b.build_{kind}(sys.argv[1]))"
    done = run(
        sys.executable, "-c", script, target, cwd=source, SOURCE_DATE_EPOCH=SOURCE_DATE
    )  # without isolation: the backend is installed next to pytest
    return target / done.stdout.splitlines()[-1]


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """Write a small wheel, as another project would publish it."""
    stem = f"{name.replace('-', '_')}-{version}"
    information = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if scripts:
        lines = "".join(f"{script} = {target}\n" for script, target in scripts.items())
        information["entry_points.txt"] = f"[console_scripts]\n{lines}"
    content = dict(files) | {f"{stem}.dist-info/{file}": text for file, text in information.items()}
    record = ""
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
        record += f"{path},sha256={digest.rstrip('=')},{len(text.encode())}\n"
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
        archive.writestr(f"{stem}.dist-info/RECORD", f"{record}{stem}.dist-info/RECORD,,\n")
    return wheel


def required(wheel: Path, extras: Iterable[str] = ()) -> set[str]:
    """Return the names of all distributions that a wheel requires, directly and indirectly."""
    with zipfile.ZipFile(wheel) as archive:
        [file] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(file).decode()
    lines = [
        line.removeprefix("Requires-Dist: ")
        for line in text.partition("\n\n")[0].splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    found: set[str] = set()
    wanted = [*extras, ""]
    while lines:
        requirement = Requirement(lines.pop())
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in wanted):
            continue
        name = requirement.name.lower().replace("_", "-")
        if name not in found:
            found.add(name)
            lines += metadata.distribution(name).requires or []
            wanted = [""]  # extras of this wheel are not those of its dependencies
    return found


class Environment:
    """A virtual environment that has the dependencies of a wheel, and nothing else of this one."""

    def __init__(self, folder: Path, dependencies: Iterable[str]) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        self._locate(folder)
        borrowed = folder / "borrowed"
        borrowed.mkdir()
        for name in dependencies:
            _borrow(metadata.distribution(name), borrowed)
        (self.packages / "borrowed.pth").write_text(f"{borrowed}\n")

    def _locate(self, folder: Path) -> None:
        self._folder = folder
        self.python = folder / "bin" / "python"
        self.dlog = folder / "bin" / "dlog"
        [self.packages] = (folder / "lib").glob("python*/site-packages")

    def copy(self, folder: Path) -> "Environment":
        """Copy the environment, which is cheaper than an installation. It borrows from the original."""
        shutil.copytree(self._folder, folder, symlinks=True)
        copied = Environment.__new__(Environment)
        copied._locate(folder)
        for script in (folder / "bin").iterdir():  # each begins with the path of its Python
            if not script.is_symlink():
                script.write_text(script.read_text().replace(str(self._folder), str(folder)))
        return copied

    def install(self, wheel: Path) -> None:
        """Install a wheel without its dependencies. Files of other packages are overwritten."""
        self._pip("install", "--no-index", "--no-deps", "--force-reinstall", "--no-compile", wheel)

    def uninstall(self, name: str) -> None:
        """Remove a distribution and all files that it recorded."""
        self._pip("uninstall", "--yes", name)

    def _pip(self, *arguments: str | Path) -> None:
        run(sys.executable, "-m", "pip", "--quiet", "--python", self.python, *arguments)


def _borrow(distribution: metadata.Distribution, target: Path) -> None:
    """Link the top-level files of an installed distribution."""
    for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        link = target / name
        if not link.exists():
            link.symlink_to(Path(str(distribution.locate_file(name))))
