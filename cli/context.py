"""`dlog context`: name clusters and choose one."""

import click

from . import named_clusters
from .options import Command, Group, Settings, common
from .output import emit


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
    contexts = named_clusters.load()
    contexts["contexts"][name] = location
    contexts["current"] = contexts["current"] or name
    named_clusters.store(contexts)


@command.command(cls=Command, examples="dlog context use here")
@click.argument("name")
@common
def use(settings: Settings, name: str) -> None:
    """Choose a named cluster."""
    contexts = named_clusters.load()
    if name not in contexts["contexts"]:
        known = ", ".join(sorted(contexts["contexts"])) or "none"
        raise click.UsageError(
            f"there is no context {name!r} in {named_clusters.path()}; known: {known}"
        )
    contexts["current"] = name
    named_clusters.store(contexts)


@command.command(name="list", cls=Command, examples="dlog context list --json")
@common
def list_(settings: Settings) -> None:
    """The named clusters; a star marks the chosen one."""
    contexts = named_clusters.load()
    for name in sorted(contexts["contexts"]):
        location, chosen = contexts["contexts"][name], name == contexts["current"]
        if settings.json:
            emit({"name": name, "uri": location, "current": chosen})
        else:
            click.echo(f"{'*' if chosen else ' '} {name}  {location}")
