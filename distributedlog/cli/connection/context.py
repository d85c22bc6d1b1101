"""`dlog context`: name clusters and select one."""

from typing import Any

import click

from ..framework import named_clusters
from ..framework.named_clusters import LOCAL
from ..framework.options import CliCommand, Group, Settings, report_change, without_cluster
from ..framework.output import emit


@click.group(
    cls=Group,
    examples="""
    dlog context set here distributedlog://127.0.0.1:4181/ns
    dlog context use here
    dlog context use -                  select the previous context
    dlog context list
    """,
)
def command() -> None:
    """Name clusters and select one.

    The selected context applies to commands without --uri and DLOG_URI.
    """


@command.command(
    name="set", cls=CliCommand, examples="dlog context set here distributedlog://127.0.0.1:4181/ns"
)
@click.argument("name")
@click.argument("location", metavar="URI")
@without_cluster("credentials")
def set_(settings: Settings, name: str, location: str) -> None:
    """Store a cluster URI under a name.

    The first context is also selected. The cluster need not run. With --credentials, the context stores your
    identity, too.
    """
    from ...uri import parse_uri

    parse_uri(location)
    named_clusters.check_name(name)
    with named_clusters.edit_contexts() as contexts:
        contexts["contexts"][name] = location
        contexts["credentials"].pop(name, None)
        if settings.credentials:
            contexts["credentials"][name] = settings.credentials
        chosen = contexts["current"] = contexts["current"] or name
    detail = (
        " and selected it"
        if chosen == name
        else f"; the selected one is {chosen}. To select it: dlog context use {name}"
    )
    report_change(settings, "stored", "context", name, detail, current=chosen == name)


@command.command(cls=CliCommand, examples="dlog context show")
@click.argument("name", required=False)
@without_cluster()
def show(settings: Settings, name: str | None) -> None:
    """Print the URI of a context.

    Without NAME, the command prints the URI of the selected context.
    """
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
    """Rename a context.

    The command fails if the new name is already used.
    """
    with named_clusters.edit_contexts() as contexts:
        _check_known(contexts, old)
        named_clusters.check_name(new)
        if new in contexts["contexts"]:
            raise click.UsageError(f"context {new!r} already exists: delete it first")
        contexts["contexts"] = {
            new if name == old else name: uri for name, uri in contexts["contexts"].items()
        }
        if old in contexts["credentials"]:
            contexts["credentials"][new] = contexts["credentials"].pop(old)
        for key in ("current", "previous"):
            contexts[key] = new if contexts[key] == old else contexts[key]
    report_change(settings, "renamed", "context", old, f" to {new}", new_name=new)


@command.command(cls=CliCommand, examples="dlog context delete here")
@click.argument("name")
@without_cluster()
def delete(settings: Settings, name: str) -> None:
    """Delete a context.

    The cluster does not change. If the context was selected, no context is selected afterwards.
    """
    with named_clusters.edit_contexts() as contexts:
        del contexts["contexts"][_check_known(contexts, name)]
        for key in ("current", "previous"):
            contexts[key] = "" if contexts[key] == name else contexts[key]
    report_change(settings, "deleted", "context", name)


@command.command(
    cls=CliCommand,
    examples="""
    dlog context use here
    dlog context use -        select the previous context
    """,
)
@click.argument("name")
@without_cluster()
def use(settings: Settings, name: str) -> None:
    """Select a context.

    "-" selects the previous context again.
    """
    with named_clusters.edit_contexts() as contexts:
        if name == "-":
            name = contexts["previous"]
            if not name:
                raise click.UsageError("there is no previous context")
        _check_known(contexts, name)
        if name != contexts["current"]:
            contexts["previous"], contexts["current"] = contexts["current"], name
    location = contexts["contexts"][name]
    report_change(settings, "selected", "context", name, f": {location}", uri=location)


@command.command(name="list", cls=CliCommand, examples="dlog context list --json")
@without_cluster()
def list_(settings: Settings) -> None:
    """List the contexts.

    A star marks the selected one.
    """
    contexts = named_clusters.load_contexts()
    name_width = max(map(len, contexts["contexts"]), default=0)
    for name in sorted(contexts["contexts"]):
        location, chosen = contexts["contexts"][name], name == contexts["current"]
        if settings.json:
            emit({"name": name, "uri": location, "current": chosen})
        else:
            click.echo(f"{'*' if chosen else ' '} {name:{name_width}}  {location}")


def _check_known(contexts: dict[str, Any], name: str) -> str:
    """Return the name if there is such a context. Raises a usage error otherwise."""
    if name not in contexts["contexts"]:
        known = ", ".join(sorted(contexts["contexts"])) or "none"
        problem = f"there is no context {name!r}" if name else "no context is selected"
        hint = ""
        if name == LOCAL:
            hint = '; "dlog local" without --json creates it'
        raise click.UsageError(
            f"{problem} in {named_clusters.contexts_file()}; known: {known}{hint}"
        )
    return name
