"""`dlog version`: show the versions of this installation, for bug reports and checks of many hosts."""

import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import click

from ...runtime.declarations.versions import VERSION
from ..framework.options import CliCommand, Settings, without_cluster
from ..framework.output import emit, table

DISTRIBUTION = "distributedlog-py"
EXTRA_MARKER = "extra =="


@click.command(
    cls=CliCommand,
    examples="""
    dlog version
    dlog version --json           one object: version, python, system, packages
    """,
)
@without_cluster()
def command(settings: Settings) -> None:
    """Show the versions of dlog, Python, the system and the packages that dlog uses.

    A package of an extra that is not installed has the version null in JSON. The command needs no cluster.
    """
    versions = describe_installation()
    if settings.json:
        emit(versions)
        return
    rows: list[Sequence[Any]] = [("dlog", versions["version"]), ("python", versions["python"])]
    rows += [("system", versions["system"]), ("folder", versions["folder"])]
    rows += [(name, version or "not installed") for name, version in versions["packages"].items()]
    table(("", "version"), rows)


def describe_installation() -> dict[str, Any]:
    """Return the versions of this installation as one JSON object."""
    from ...testing.bench.measure.interpreter_info import this_build

    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return _object(this_build().describe(), {})
    packages: dict[str, str | None] = {}
    for requirement in distribution.requires or ():
        name = _package_name(requirement)
        if EXTRA_MARKER in requirement and not _is_of_users(requirement):
            continue
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return _object(this_build().describe(), packages)


def _object(python: str, packages: dict[str, str | None]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "python": python,
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "folder": __file__.rpartition("/cli/")[0],
        "packages": packages,
    }


USER_EXTRAS = ("compression", "gateway", "pki", "spark")
"""Extras that change what an installation can do. The others are for contributors."""


def _is_of_users(requirement: str) -> bool:
    marker = requirement.partition(EXTRA_MARKER)[2].strip().strip("'\"")
    return marker in USER_EXTRAS


def _package_name(requirement: str) -> str:
    """Return the name of a requirement such as ``trio<0.36,>=0.31`` or ``numpy>=1; extra == "spark"``."""
    end = next(
        (at for at, sign in enumerate(requirement) if not (sign.isalnum() or sign in "-_.")),
        len(requirement),
    )
    return requirement[:end]
