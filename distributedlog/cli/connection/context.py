"""`dlog context`: name clusters and choose one."""

from typing import Any

import click

from ..framework import named_clusters
from ..framework.named_clusters import LOCAL
from ..framework.options import CliCommand, Group, Settings, without_cluster
from ..framework.output import emit


@click.group(
    cls=Group,
    examples="""
    dlog context set here distributedlog://127.0.0.1:4181/ns
    dlog context use here
    dlog context use -                  the one that was chosen before
    dlog context list
    """,
)
def command() -> None:
    """Name clusters and choose one. A command's --uri or DLOG_URI goes before the chosen context."""


@command.command(
    name="set", cls=CliCommand, examples="dlog context set here distributedlog://127.0.0.1:4181/ns"
)
@click.argument("name")
@click.argument("location", metavar="URI")
@without_cluster("credentials")
def set_(settings: Settings, name: str, location: str) -> None:
    """Name a cluster; the first one named is chosen at once. It need not run now."""
    from ...uri import parse_uri

    parse_uri(location)
    named_clusters.check_name(name)
    with named_clusters.edit_contexts() as contexts:
        contexts["contexts"][name] = location
        contexts["credentials"].pop(name, None)
        if settings.credentials:
            contexts["credentials"][name] = settings.credentials
        chosen = contexts["current"] = contexts["current"] or name
    settings.note(
        f"{name} is the chosen context"
        if chosen == name
        else f"{name} is named; the chosen context is {chosen}: dlog context use {name}"
    )


@command.command(cls=CliCommand, examples="dlog context show")
@click.argument("name", required=False)
@without_cluster()
def show(settings: Settings, name: str | None) -> None:
    """A named cluster's URI; without NAME the chosen one's."""
    contexts = named_clusters.load_contexts()
    name = _check_known(contexts, name or contexts["current"])
    location = contexts["contexts"][name]
    if settings.json:
        emit({"name": name, "uri": location, "current": name == contexts["current"]})
    else:
        click.echo(location)


@command.command(cls=CliCommand, examples="dlog context rename here test")
@click.argument("old")
@click.argument("new")
@without_cluster()
def rename(settings: Settings, old: str, new: str) -> None:
    """Give a named cluster another name; refused where that is taken."""
    with named_clusters.edit_contexts() as contexts:
        _check_known(contexts, old)
        named_clusters.check_name(new)
        if new in contexts["contexts"]:
            raise click.UsageError(f"there is a context {new!r} already: delete it first")
        contexts["contexts"] = {
            new if name == old else name: uri for name, uri in contexts["contexts"].items()
        }
        if old in contexts["credentials"]:
            contexts["credentials"][new] = contexts["credentials"].pop(old)
        for key in ("current", "previous"):
            contexts[key] = new if contexts[key] == old else contexts[key]


@command.command(cls=CliCommand, examples="dlog context delete here")
@click.argument("name")
@without_cluster()
def delete(settings: Settings, name: str) -> None:
    """Forget a name; the cluster stays as it is. If it was the chosen one, none is chosen after that."""
    with named_clusters.edit_contexts() as contexts:
        del contexts["contexts"][_check_known(contexts, name)]
        for key in ("current", "previous"):
            contexts[key] = "" if contexts[key] == name else contexts[key]


@command.command(
    cls=CliCommand,
    examples="""
    dlog context use here
    dlog context use -        the one that was chosen before
    """,
)
@click.argument("name")
@without_cluster()
def use(settings: Settings, name: str) -> None:
    """Choose a named cluster."""
    with named_clusters.edit_contexts() as contexts:
        if name == "-":
            name = contexts["previous"]
            if not name:
                raise click.UsageError("no context was chosen before this one")
        _check_known(contexts, name)
        if name != contexts["current"]:
            contexts["previous"], contexts["current"] = contexts["current"], name
    settings.note(f"{name}: {contexts['contexts'][name]}")


@command.command(name="list", cls=CliCommand, examples="dlog context list --json")
@without_cluster()
def list_(settings: Settings) -> None:
    """The named clusters; a star marks the chosen one."""
    contexts = named_clusters.load_contexts()
    name_width = max(map(len, contexts["contexts"]), default=0)
    for name in sorted(contexts["contexts"]):
        location, chosen = contexts["contexts"][name], name == contexts["current"]
        if settings.json:
            emit({"name": name, "uri": location, "current": chosen})
        else:
            click.echo(f"{'*' if chosen else ' '} {name:{name_width}}  {location}")


def _check_known(contexts: dict[str, Any], name: str) -> str:
    """The name, if there is such a context. Raises a usage error."""
    if name not in contexts["contexts"]:
        known = ", ".join(sorted(contexts["contexts"])) or "none"
        problem = f"there is no context {name!r}" if name else "no context is chosen"
        hint = ""
        if name == LOCAL:
            hint = '; "dlog local" on a terminal makes it, elsewhere it prints its URI'
        raise click.UsageError(
            f"{problem} in {named_clusters.contexts_file()}; known: {known}{hint}"
        )
    return name
