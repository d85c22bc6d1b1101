"""How the interpreter was built: a rate in Python means little without it.

Rules that live here: which build is called unoptimised, and what its user is told to do.
"""

import platform
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass

OF_DEBIAN = "--with-wheel-pkg-dir"
"""Debian and Ubuntu optimise, and keep that out of what the interpreter says of itself, so that modules
that are built with it do not take the flags over."""


@dataclass(frozen=True, slots=True)
class Build:
    """Of one interpreter. None: it does not say."""

    name: str
    """Implementation and version: ``CPython 3.14.2``."""
    pgo: bool | None
    """Optimised for a measured run (profile-guided optimisation)."""
    lto: bool | None
    """Optimised across files when linked."""
    debug: bool
    free_threaded: bool
    jit: bool | None
    """Compiles while it runs. Only 3.14 and later say."""

    def as_json(self) -> dict[str, object]:
        """For a report."""
        return {**asdict(self), "advice": self.advice()}

    def describe(self) -> str:
        """One line."""
        properties = [self.name, _said("PGO", self.pgo), _said("LTO", self.lto)]
        properties += ["a debug build"] * self.debug
        properties += ["free threading"] * self.free_threaded
        properties += ["JIT on"] * (self.jit is True)
        return ", ".join(properties)

    def advice(self) -> str | None:
        """One line for whoever runs an interpreter that could be faster; None where there is no need."""
        if self.debug:
            return "a debug build of Python, several times slower: take one without --with-pydebug"
        if self.pgo is False:
            return (
                "this Python was built without optimisation: take your distribution's or the image"
                " python:3.14-slim, or build with --enable-optimizations --with-lto"
                " (pyenv: PYTHON_CONFIGURE_OPTS)"
            )
        return None


def this_build() -> Build:
    """Of the interpreter that runs this process; the nodes of a cluster may run on others."""
    jit = getattr(sys, "_jit", None)
    return build_of(
        f"{platform.python_implementation()} {platform.python_version()}",
        sysconfig.get_config_vars(),
        jit=None if jit is None else jit.is_enabled(),
    )


def build_of(name: str, config_vars: Mapping[str, object], *, jit: bool | None) -> Build:
    """From the variables of `sysconfig`, which on Windows do not say how it was configured."""
    configured = config_vars.get("CONFIG_ARGS")
    arguments = dict(
        argument.partition("=")[::2] for argument in shlex.split(str(configured or ""))
    )
    flags = f"{config_vars.get('PY_CFLAGS')} {config_vars.get('PY_CFLAGS_NODIST')}"
    default = None if configured is None or OF_DEBIAN in arguments else False
    return Build(
        name=name,
        pgo=_on(arguments, "--enable-optimizations") or "-fprofile-" in flags or default,
        lto=_on(arguments, "--with-lto") or "-flto" in flags or default,
        debug=bool(config_vars.get("Py_DEBUG")),
        free_threaded=bool(config_vars.get("Py_GIL_DISABLED")),
        jit=jit,
    )


def _said(option: str, is_on: bool | None) -> str:
    if is_on is None:
        return f"{option} unknown"
    return f"with {option}" if is_on else f"without {option}"


def _on(arguments: Mapping[str, str], name: str) -> bool:
    """A switch of ``configure``: alone it means yes."""
    return arguments.get(name, "no") != "no"
