"""Store named clusters (contexts) and the selected one in ``$XDG_CONFIG_HOME/dlog/contexts.toml``.

All changes use `edit_contexts`, which prevents lost updates by concurrent processes.
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
"""Name of the context that `dlog local` creates."""
PREVIOUS = "-"
"""Argument that selects the previous context."""


def current_context() -> tuple[str | None, str, str]:
    """Return URI, credentials and name of the selected context.

    The URI is None if no context is selected. The credentials are "" if none are stored.
    """
    contexts = load_contexts()
    name = contexts["current"]
    uri = contexts["contexts"].get(name)
    return (str(uri) if uri else None), str(contexts["credentials"].get(name, "")), name


def contexts_file() -> Path:
    """Return the path of the contexts file, which need not exist.

    Raises:
        InvalidRequest: There is no home directory.
    """
    if home := os.environ.get("XDG_CONFIG_HOME"):
        return Path(home) / "dlog" / "contexts.toml"
    try:
        return Path.home() / ".config" / "dlog" / "contexts.toml"
    except RuntimeError:
        raise InvalidRequest(
            "contexts are stored in the home directory, which is unknown: set HOME or XDG_CONFIG_HOME, or"
            " specify the cluster by --uri or DLOG_URI"
        ) from None


def load_contexts() -> dict[str, Any]:
    """Return the contexts file as a dict.

    Returns:
        ``current`` and ``previous`` are names; ``contexts`` and ``credentials`` are dicts by name.

    Raises:
        click.UsageError: The file cannot be read or is malformed.
    """
    try:
        value = tomllib.loads(contexts_file().read_text(encoding="utf-8"))
    except FileNotFoundError:
        value = {}
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{contexts_file()} cannot be read: {error}") from None
    contexts = value.get("contexts", {})
    credentials = value.get("credentials", {})
    for name, table in (("contexts", contexts), ("credentials", credentials)):
        if not isinstance(table, dict) or not all(
            isinstance(entry, str) for entry in table.values()
        ):
            raise click.UsageError(f"{contexts_file()}: {name} must be a table of strings")
    return {
        "current": str(value.get("current", "")),
        "previous": str(value.get("previous", "")),
        "contexts": contexts,
        "credentials": credentials,
    }


@contextlib.contextmanager
def edit_contexts() -> Iterator[dict[str, Any]]:
    """Yield the dict of `load_contexts`, and store it at the end of the block if it was changed."""
    with _exclusive():
        contexts = load_contexts()
        before = copy.deepcopy(contexts)
        yield contexts
        if contexts != before:
            store_contexts(contexts)


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
    """Hold an exclusive lock among processes, if the system has `fcntl`. It ends with the process."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with _translate_store_errors():
        lock_file = contexts_file().with_suffix(".lock")
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translate_store_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(
            f"contexts cannot be stored: {error.filename}: {error.strerror}; set HOME or XDG_CONFIG_HOME to a"
            " writable directory"
        ) from None


def check_name(name: str) -> str:
    """Return the name if it is valid for a context. Raises `click.UsageError` otherwise."""
    if not name or not name.isprintable() or len(name) > NAME_CHARS_MAX or name == PREVIOUS:
        raise click.UsageError(
            f"invalid context name {name!r}: use 1 to {NAME_CHARS_MAX} printable characters, and not"
            f" {PREVIOUS!r}"
        )
    return name


def store_contexts(contexts: dict[str, Any]) -> None:
    """Write the contexts file from a dict of `load_contexts`."""
    import json  # a JSON string is a TOML basic string

    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)  # TOML has no surrogate pairs

    lines = [f"{key} = {quoted(contexts[key])}" for key in ("current", "previous")]
    lines += ["", "[contexts]"]
    lines += [f"{quoted(name)} = {quoted(uri)}" for name, uri in contexts["contexts"].items()]
    kept_credentials = {
        name: credential
        for name, credential in contexts.get("credentials", {}).items()
        if name in contexts["contexts"]
    }
    if kept_credentials:
        lines += ["", "[credentials]"]
        lines += [
            f"{quoted(name)} = {quoted(credential)}"
            for name, credential in kept_credentials.items()
        ]
    with _translate_store_errors():
        contexts_file().parent.mkdir(parents=True, exist_ok=True)
    write_file(contexts_file(), "\n".join(lines) + "\n")
