"""`dlog pki`: an authority for one cluster, and the certificates of its nodes and users."""

import datetime
from pathlib import Path
from typing import Any

import click

from ..framework.options import CliCommand, Group, Settings, without_cluster
from ..framework.output import emit

DIRECTORY = click.Path(file_okay=False, path_type=Path)
AUTHORITY = click.option(
    "--authority",
    type=DIRECTORY,
    default=Path("pki"),
    show_default=True,
    help="The authority's directory: whoever reads its ca.key can be anybody in the cluster.",
)
FOR_DAYS = click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=365,
    show_default=True,
    help="How long it is good.",
)


@click.group(
    cls=Group,
    examples="""
    dlog pki init --domain prod                         an authority in ./pki
    dlog pki issue metadata/m1 --out m1.tls             for a node: dlog serve metadata --name m1 --tls m1.tls
    dlog pki issue user/etl --out etl.tls               for a user: dlog --credentials file:etl.tls status
    dlog pki renew m1.tls
    dlog pki show m1.tls
    """,
)
def command() -> None:
    """Make the certificates that nodes and users show each other. Needs the extra "pki"."""


@command.command(cls=CliCommand, examples="dlog pki init --domain prod --authority pki")
@click.option("--domain", required=True, help="The cluster's name among certificates.")
@AUTHORITY
@without_cluster()
def init(settings: Settings, domain: str, authority: Path) -> None:
    """Make an authority: ca.pem, and ca.key, which belongs on no machine that runs a node."""
    from .certificates import make_authority

    make_authority(authority, domain)
    settings.note(
        f"{authority}: the authority of {domain}; keep {authority / 'ca.key'} away from nodes"
    )


@command.command(
    cls=CliCommand,
    examples="""
    dlog pki issue bookie/b4 --out b4.tls
    dlog pki issue user/etl --out etl.tls --days 30
    """,
)
@click.argument("principal", metavar="KIND/NAME")
@click.option(
    "--out", type=DIRECTORY, required=True, help="Its directory, made where there is none."
)
@AUTHORITY
@FOR_DAYS
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Repeatable: a name or an address at which a gateway is reached by HTTPS.",
)
@without_cluster()
def issue(
    settings: Settings,
    principal: str,
    out: Path,
    authority: Path,
    days: int,
    hosts: tuple[str, ...],
) -> None:
    """Make a directory of cert.pem, key.pem, ca.pem. KIND: metadata, bookie, proxy or user."""
    from .certificates import issue_if_own

    issue_if_own(authority, principal, out, days=days, hosts=hosts)
    settings.note(f"{out}: {principal}, for {days} days")


@command.command(
    cls=CliCommand,
    examples="""
    dlog pki renew m1.tls b4.tls
    dlog pki renew --trust-only m1.tls          first at all nodes, after dlog pki roll-ca
    """,
)
@click.argument("directories", nargs=-1, required=True, metavar="DIR…", type=DIRECTORY)
@click.option("--trust-only", is_flag=True, help="Only the authorities that it trusts: ca.pem.")
@AUTHORITY
@FOR_DAYS
@without_cluster()
def renew(
    settings: Settings, directories: tuple[Path, ...], trust_only: bool, authority: Path, days: int
) -> None:
    """Give directories new keys and certificates. Nodes and clients that run use them from then on."""
    from .certificates import renew as make
    from .certificates import trust

    for directory in directories:
        if trust_only:
            trust(authority, directory)
            settings.note(f"{directory}: trusts what {authority} trusts")
        else:
            settings.note(f"{directory}: {make(authority, directory, days=days)}, for {days} days")


@command.command(
    cls=CliCommand,
    examples="""
    dlog pki revoke laptop.tls                  then dlog pki renew --trust-only for all nodes
    dlog pki revoke --serial 3f9a…
    """,
)
@click.argument("directories", nargs=-1, metavar="[DIR…]", type=DIRECTORY)
@click.option("--serial", "serials", multiple=True, help="Of a certificate that is not at hand.")
@AUTHORITY
@without_cluster()
def revoke(
    settings: Settings, directories: tuple[Path, ...], serials: tuple[str, ...], authority: Path
) -> None:
    """Have certificates refused: lost laptops, stolen nodes. The list is the authority's crl.pem.

    Nodes know of it when "dlog pki renew --trust-only" has put it into their directories.
    """
    from .certificates import revoke as make
    from .certificates import show as look

    revoked_serials = [*serials, *(look(directory).serial for directory in directories)]
    if not revoked_serials:
        raise click.UsageError("name a directory, or --serial")
    make(authority, revoked_serials)
    settings.note(
        f"{authority}: refuses {', '.join(revoked_serials)}; now dlog pki renew --trust-only DIR… for all"
    )


@command.command(name="roll-ca", cls=CliCommand, examples="dlog pki roll-ca --authority pki")
@AUTHORITY
@without_cluster()
def roll_ca(settings: Settings, authority: Path) -> None:
    """Replace the authority's key: both are trusted until the old one's certificate has ended.

    After it "dlog pki renew --trust-only" for every directory; when all nodes have that, "dlog pki renew".
    """
    from .certificates import roll_authority

    roll_authority(authority)
    settings.note(f"{authority}: has a new key; now dlog pki renew --trust-only DIR… for all")


@command.command(cls=CliCommand, examples="dlog pki show m1.tls --json")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@without_cluster()
def show(settings: Settings, directory: Path) -> None:
    """Whose directory it is, and until when it is good."""
    from .certificates import show as look

    report = look(directory)
    remaining_time = report.ends - datetime.datetime.now(datetime.UTC)
    output: dict[str, Any] = {
        "principal": report.principal,
        "domain": report.domain,
        "serial": report.serial,
        "ends": report.ends.isoformat(),
        "days_left": remaining_time.days,
        "authority_ends": report.ca_ends.isoformat(),
    }
    if settings.json:
        emit(output)
    else:
        for key, value in output.items():
            click.echo(f"{key:14} {value}")


@command.command(
    cls=CliCommand,
    examples="dlog pki ensure --domain compose --out /pki/nodes bookie/bookie1 user/admin",
)
@click.argument("principals", nargs=-1, required=True, metavar="KIND/NAME…")
@click.option("--domain", required=True, help="The cluster's name among certificates.")
@click.option(
    "--out", type=DIRECTORY, required=True, help="A directory of theirs is made in it, by name."
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="KIND/NAME=HOST,…",
    help="Repeatable: names and addresses at which that one, a gateway, is reached by HTTPS.",
)
@AUTHORITY
@FOR_DAYS
@without_cluster()
def ensure(
    settings: Settings,
    principals: tuple[str, ...],
    domain: str,
    out: Path,
    authority: Path,
    days: int,
    hosts: tuple[str, ...],
) -> None:
    """Make what is missing of all that, and renew what has less than a third of its time left."""
    from .certificates import ensure as make

    hosts_of_principal = {
        principal_name: names.split(",")
        for principal_name, _, names in (host_option.partition("=") for host_option in hosts)
    }
    if unknown_principals := sorted(set(hosts_of_principal) - set(principals)):
        raise click.UsageError(
            f"--host {unknown_principals[0]}=…: nobody of that name is to be made"
        )
    for line in make(authority, domain, principals, out, days=days, hosts=hosts_of_principal):
        settings.note(line)
