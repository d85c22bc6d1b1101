"""The build of the interpreter: a rate in Python means little without it.

This module decides which builds count as unoptimized, and the advice for them.
"""

import platform
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass

OF_DEBIAN = "--with-wheel-pkg-dir"
"""Debian and Ubuntu optimize the interpreter, but remove the flags from its configuration, so that modules
built with it do not inherit them."""


@dataclass(frozen=True, slots=True)
class Build:
    """Properties of an interpreter; None if unknown."""

    name: str
    """Implementation and version: ``CPython 3.14.2``."""
    pgo: bool | None
    """Optimized by measured runs (profile-guided optimization)."""
    lto: bool | None
    """Optimized across files by the linker (link-time optimization)."""
    debug: bool
    free_threaded: bool
    jit: bool | None
    """Compiles while it runs. Only Python 3.14 and later report it."""

    def as_json(self) -> dict[str, object]:
        """Return the properties and the advice for a report."""
        return {**asdict(self), "advice": self.advice()}

    def describe(self) -> str:
        """Return the properties as one line."""
        properties = [self.name, _said("PGO", self.pgo), _said("LTO", self.lto)]
        properties += ["a debug build"] * self.debug
        properties += ["free threading"] * self.free_threaded
        properties += ["JIT on"] * (self.jit is True)
        return ", ".join(properties)

    def advice(self) -> str | None:
        """Return advice in one line if a faster interpreter is available, otherwise None."""
        if self.debug:
            return "a debug build of Python, several times slower: use one without --with-pydebug"
        if self.pgo is False:
            return (
                "this Python was built without optimization: use your distribution's or the image"
                " python:3.14-slim, or build with --enable-optimizations --with-lto"
                " (pyenv: PYTHON_CONFIGURE_OPTS)"
            )
        return None


def this_build() -> Build:
    """Return the build of this process's interpreter. The nodes of a cluster may use others."""
    jit = getattr(sys, "_jit", None)
    return build_of(
        f"{platform.python_implementation()} {platform.python_version()}",
        sysconfig.get_config_vars(),
        jit=None if jit is None else jit.is_enabled(),
    )


def build_of(name: str, config_vars: Mapping[str, object], *, jit: bool | None) -> Build:
    """Return the build from the variables of `sysconfig`, which on Windows lack the configuration."""
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
    """Return whether a switch of ``configure`` is on. Without a value it is on."""
    return arguments.get(name, "no") != "no"
