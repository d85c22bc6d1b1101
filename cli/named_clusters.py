"""Named clusters and the chosen one: ``$XDG_CONFIG_HOME/dlog/contexts.toml``."""

import os
import tomllib
from pathlib import Path
from typing import Any

import click

from .output import write_by_rename


def current_uri() -> str | None:
    """The chosen cluster's URI, if any."""
    contexts = load()
    found = contexts["contexts"].get(contexts["current"])
    return str(found) if found else None


def path() -> Path:
    """Where it is, or would be."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "dlog" / "contexts.toml"


def load() -> dict[str, Any]:
    """``current`` and ``previous``, names or "", and ``contexts``, names to URIs. Raises a usage error."""
    try:
        value = tomllib.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        value = {}
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path()} cannot be read: {error}") from None
    contexts = value.get("contexts", {})
    if not isinstance(contexts, dict):
        raise click.UsageError(f"{path()}: contexts is not a table")
    return {
        "current": str(value.get("current", "")),
        "previous": str(value.get("previous", "")),
        "contexts": contexts,
    }


def store(contexts: dict[str, Any]) -> None:
    """Write what `load` gave."""
    import json  # a JSON string is a TOML basic string

    there = path()
    there.parent.mkdir(parents=True, exist_ok=True)

    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)  # TOML knows no surrogate pairs

    lines = [f"{key} = {quoted(contexts[key])}" for key in ("current", "previous")]
    lines += ["", "[contexts]"]
    lines += [f"{quoted(name)} = {quoted(uri)}" for name, uri in contexts["contexts"].items()]
    write_by_rename(there, "\n".join(lines) + "\n")
