"""`dlog user`: who there is."""

import click

from .options import Command, Group, Settings, common, consent, yes_option
from .output import rows_or_table
from .trust import asked, change, time_of, users_and_grants


@click.group(
    cls=Group,
    examples="""
    dlog user add etl
    dlog user list
    dlog user disable etl                     at once, everywhere
    """,
)
def command() -> None:
    """Make, list, disable and remove users. NAME is what stands in a certificate or a token after user/."""


@command.command(cls=Command, examples="dlog user add etl")
@click.argument("name")
@common
def add(settings: Settings, name: str) -> None:
    """A user without any right."""
    change(settings, "user", name)


@command.command(name="list", cls=Command, examples="dlog user list\ndlog user list --json")
@common
def list_users(settings: Settings) -> None:
    """The users, with the number of their grants; with --json one object a line."""
    users, grants = asked(settings, "the users", users_and_grants)
    rows = [
        [name, one.disabled, sum(grant[0] == name for grant in grants), time_of(one.made_ms)]
        for name, one in users.items()
    ]
    columns = ("name", "disabled", "grants", "made")
    rows_or_table(settings.json, columns, rows, empty="there are no users")


@command.command(cls=Command, examples="dlog user disable etl")
@click.argument("name")
@common
def disable(settings: Settings, name: str) -> None:
    """End all that it may do, and its connections; its grants stay."""
    change(settings, "disable", name)


@command.command(cls=Command, examples="dlog user enable etl")
@click.argument("name")
@common
def enable(settings: Settings, name: str) -> None:
    """It may do again what its grants say."""
    change(settings, "enable", name)


@command.command(cls=Command, examples="dlog user remove etl --yes")
@click.argument("name")
@yes_option
@common
def remove(settings: Settings, name: str, yes: bool) -> None:
    """With all its grants."""
    consent(f"remove user {name} and all its grants", yes)
    change(settings, "remove", name)


@command.command(cls=Command, examples="dlog user revoke etl\ndlog user revoke etl --serial 5f0c")
@click.argument("name")
@click.option("--serial", default="", help="Of a certificate, that alone; default: all tokens.")
@common
def revoke(settings: Settings, name: str, serial: str) -> None:
    """Take no token any more that was issued up to now; or one certificate."""
    if serial:
        change(settings, "refuse", name, serial)
    else:
        change(settings, "tokens", name)
