"""Named clusters: ``$XDG_CONFIG_HOME/dlog/contexts.toml``, written aside and renamed."""

import os
import tomllib
from pathlib import Path
from typing import Any

import click

from .options import Command, Group, Settings, common


@click.group(
    cls=Group,
    examples="""
    dlog context set here distributedlog://127.0.0.1:4181/ns
    dlog context use here
    dlog context list
    """,
)
def command() -> None:
    """Name clusters and choose one. A command's --uri or DLOG_URI goes before the chosen context."""


@command.command(
    name="set", cls=Command, examples="dlog context set here distributedlog://127.0.0.1:4181/ns"
)
@click.argument("name")
@click.argument("location", metavar="URI")
@common
def set_(settings: Settings, name: str, location: str) -> None:
    """Name a cluster; the first one named is chosen at once. It need not run now."""
    from ..uri import parse_uri

    parse_uri(location)
    contexts = _load()
    contexts["contexts"][name] = location
    contexts["current"] = contexts["current"] or name
    _store(contexts)


@command.command(cls=Command, examples="dlog context use here")
@click.argument("name")
@common
def use(settings: Settings, name: str) -> None:
    """Choose a named cluster."""
    contexts = _load()
    if name not in contexts["contexts"]:
        known = ", ".join(sorted(contexts["contexts"])) or "none"
        raise click.UsageError(f"there is no context {name!r} in {_path()}; known: {known}")
    contexts["current"] = name
    _store(contexts)


@command.command(name="list", cls=Command, examples="dlog context list --json")
@common
def list_(settings: Settings) -> None:
    """The named clusters; a star marks the chosen one."""
    import json

    contexts = _load()
    for name in sorted(contexts["contexts"]):
        location, chosen = contexts["contexts"][name], name == contexts["current"]
        if settings.json:
            click.echo(json.dumps({"name": name, "uri": location, "current": chosen}))
        else:
            click.echo(f"{'*' if chosen else ' '} {name}  {location}")


def current_uri() -> str | None:
    """The chosen context's URI, if any."""
    contexts = _load()
    found = contexts["contexts"].get(contexts["current"])
    return str(found) if found else None


def _path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "dlog" / "contexts.toml"


def _load() -> dict[str, Any]:
    try:
        value = tomllib.loads(_path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        value = {}
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{_path()} cannot be read: {error}") from None
    contexts = value.get("contexts", {})
    if not isinstance(contexts, dict):
        raise click.UsageError(f"{_path()}: contexts is not a table")
    return {"current": str(value.get("current", "")), "contexts": contexts}


def _store(contexts: dict[str, Any]) -> None:
    import json  # a JSON string is a TOML basic string

    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)

    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)  # TOML knows no surrogate pairs

    lines = [f"current = {quoted(contexts['current'])}", "", "[contexts]"]
    lines += [f"{quoted(name)} = {quoted(uri)}" for name, uri in contexts["contexts"].items()]
    aside = path.with_suffix(".aside")
    aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    aside.rename(path)
