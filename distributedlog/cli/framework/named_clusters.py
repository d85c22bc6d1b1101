"""Named clusters and the chosen one: ``$XDG_CONFIG_HOME/dlog/contexts.toml``.

Who changes them does so in `changing`: of two at one moment none is lost.
"""

import contextlib
import copy
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ...runtime.disk.output_file import write_file
from ...runtime.interfaces.errors import InvalidRequest

NAME_CHARS_MAX = 64
LOCAL = "local"
"""What the cluster of `dlog local` is called."""
PREVIOUS = "-"
"""Stands for the context that was chosen before."""


def current() -> tuple[str | None, str, str]:
    """The chosen cluster's URI, if any, the credentials that it was named with, or "", and its name."""
    contexts = load()
    name = contexts["current"]
    found = contexts["contexts"].get(name)
    return (str(found) if found else None), str(contexts["credentials"].get(name, "")), name


def path() -> Path:
    """Where it is, or would be. Raises `InvalidRequest` if there is no home directory."""
    if home := os.environ.get("XDG_CONFIG_HOME"):
        return Path(home) / "dlog" / "contexts.toml"
    try:
        return Path.home() / ".server.config" / "dlog" / "contexts.toml"
    except RuntimeError:
        raise InvalidRequest(
            "contexts are stored in the home directory, which is unknown: set HOME or XDG_CONFIG_HOME, or"
            " specify the cluster by --uri or DLOG_URI"
        ) from None


def load() -> dict[str, Any]:
    """``current`` and ``previous``, names; ``contexts``, ``credentials`` by name. Raises a usage error."""
    try:
        value = tomllib.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        value = {}
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path()} cannot be read: {error}") from None
    contexts = value.get("contexts", {})
    credentials = value.get("credentials", {})
    for name, table in (("contexts", contexts), ("credentials", credentials)):
        if not isinstance(table, dict) or not all(isinstance(one, str) for one in table.values()):
            raise click.UsageError(f"{path()}: {name} is not a table of texts")
    return {
        "current": str(value.get("current", "")),
        "previous": str(value.get("previous", "")),
        "contexts": contexts,
        "credentials": credentials,
    }


@contextlib.contextmanager
def changing() -> Iterator[dict[str, Any]]:
    """What `load` gives, for the block to change; stored at its end, where it is another one then."""
    with _alone():
        contexts = load()
        before = copy.deepcopy(contexts)
        yield contexts
        if contexts != before:
            store(contexts)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """No other process is in here, where the system has such locks: they end with their holder."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with _storing():
        there = path().with_suffix(".lock")
        there.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(there, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(
            f"contexts cannot be stored: {error.filename}: {error.strerror}; set HOME or XDG_CONFIG_HOME to a"
            " writable directory"
        ) from None


def check_name(name: str) -> str:
    """The name, or a usage error: it is typed, and stands in a file."""
    if not name or not name.isprintable() or len(name) > NAME_CHARS_MAX or name == PREVIOUS:
        raise click.UsageError(
            f"a context's name has 1 to {NAME_CHARS_MAX} characters that can be shown, and is not"
            f" {PREVIOUS!r}: {name!r} is none"
        )
    return name


def store(contexts: dict[str, Any]) -> None:
    """Write what `load` gave."""
    import json  # a JSON string is a TOML basic string

    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)  # TOML knows no surrogate pairs

    lines = [f"{key} = {quoted(contexts[key])}" for key in ("current", "previous")]
    lines += ["", "[contexts]"]
    lines += [f"{quoted(name)} = {quoted(uri)}" for name, uri in contexts["contexts"].items()]
    kept = {
        name: told
        for name, told in contexts.get("credentials", {}).items()
        if name in contexts["contexts"]
    }
    if kept:
        lines += ["", "[credentials]"]
        lines += [f"{quoted(name)} = {quoted(told)}" for name, told in kept.items()]
    with _storing():
        path().parent.mkdir(parents=True, exist_ok=True)
    write_file(path(), "\n".join(lines) + "\n")
