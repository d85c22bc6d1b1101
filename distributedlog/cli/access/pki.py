"""`dlog pki`: a certificate authority for one cluster, and the certificates of its nodes and users."""

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
    help="Directory of the authority. Its ca.key allows creating any identity: keep it secret.",
)
FOR_DAYS = click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=365,
    show_default=True,
    help="Validity in days.",
)


@click.group(
    cls=Group,
    examples="""
    dlog pki init --domain prod                         create an authority in ./pki
    dlog pki issue metadata/m1 --output m1.tls          for dlog serve metadata --name m1 --tls m1.tls
    dlog pki issue user/etl --output etl.tls            for dlog --credentials file:etl.tls status
    dlog pki renew m1.tls
    dlog pki show m1.tls
    """,
)
def command() -> None:
    """Issue the certificates by which nodes and users authenticate each other.

    The commands require the extra "pki".
    """


@command.command(cls=CliCommand, examples="dlog pki init --domain prod --authority pki")
@click.option("--domain", required=True, help="Name of the cluster in certificates.")
@AUTHORITY
@without_cluster()
def init(settings: Settings, domain: str, authority: Path) -> None:
    """Create a certificate authority.

    The command writes ca.pem and ca.key. Do not store ca.key on a machine that runs a node.
    """
    from .certificates import make_authority

    make_authority(authority, domain)
    settings.note(
        f"{authority}: created the authority of {domain}. Keep {authority / 'ca.key'} away from nodes"
    )


@command.command(
    cls=CliCommand,
    examples="""
    dlog pki issue bookie/b4 --output b4.tls
    dlog pki issue user/etl --output etl.tls --days 30
    """,
)
@click.argument("principal", metavar="KIND/NAME")
@click.option(
    "--output", type=DIRECTORY, required=True, help="Directory to write; created if necessary."
)
@AUTHORITY
@FOR_DAYS
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host name or address of a gateway for HTTPS. Repeatable.",
)
@without_cluster()
def issue(
    settings: Settings,
    principal: str,
    output: Path,
    authority: Path,
    days: int,
    hosts: tuple[str, ...],
) -> None:
    """Create a directory with cert.pem, key.pem and ca.pem for a node or user.

    KIND is metadata, bookie, proxy or user.
    """
    from .certificates import issue_if_own

    issue_if_own(authority, principal, output, days=days, hosts=hosts)
    settings.note(f"{output}: {principal}, for {days} days")


@command.command(
    cls=CliCommand,
    examples="""
    dlog pki renew m1.tls b4.tls
    dlog pki renew --trust-only m1.tls          for all nodes first, after dlog pki roll-ca
    """,
)
@click.argument("directories", nargs=-1, required=True, metavar="DIR…", type=DIRECTORY)
@click.option(
    "--trust-only",
    is_flag=True,
    help="Update only the trusted authorities (ca.pem) and revocations.",
)
@AUTHORITY
@FOR_DAYS
@without_cluster()
def renew(
    settings: Settings, directories: tuple[Path, ...], trust_only: bool, authority: Path, days: int
) -> None:
    """Replace the keys and certificates of directories.

    Running nodes and clients use them automatically.
    """
    from .certificates import renew as make
    from .certificates import trust

    for directory in directories:
        if trust_only:
            trust(authority, directory)
            settings.note(f"{directory}: trusts the authorities of {authority}")
        else:
            settings.note(f"{directory}: {make(authority, directory, days=days)}, for {days} days")


@command.command(
    cls=CliCommand,
    examples="""
    dlog pki revoke laptop.tls                  then run dlog pki renew --trust-only for all nodes
    dlog pki revoke --serial 3f9a…
    """,
)
@click.argument("directories", nargs=-1, metavar="[DIR…]", type=DIRECTORY)
@click.option(
    "--serial", "serials", multiple=True, help="Serial number of a certificate. Repeatable."
)
@AUTHORITY
@without_cluster()
def revoke(
    settings: Settings, directories: tuple[Path, ...], serials: tuple[str, ...], authority: Path
) -> None:
    """Revoke certificates, for example of a lost laptop or a stolen node.

    The command adds them to crl.pem of the authority. Nodes apply it after "dlog pki renew --trust-only" has
    copied it to their directories.
    """
    from .certificates import revoke as make
    from .certificates import show as look

    revoked_serials = [*serials, *(look(directory).serial for directory in directories)]
    if not revoked_serials:
        raise click.UsageError("no certificate specified. Use a directory or --serial")
    make(authority, revoked_serials)
    settings.note(
        f"{authority}: revoked {', '.join(revoked_serials)}. Next, for all nodes: dlog pki renew --trust-only"
    )


@command.command(name="roll-ca", cls=CliCommand, examples="dlog pki roll-ca --authority pki")
@AUTHORITY
@without_cluster()
def roll_ca(settings: Settings, authority: Path) -> None:
    """Replace the key of the authority.

    Nodes trust both keys until the old certificate expires. Afterwards, run "dlog pki renew --trust-only" for
    every directory. When all nodes have it, run "dlog pki renew".
    """
    from .certificates import roll_authority

    roll_authority(authority)
    settings.note(
        f"{authority}: new key created. Next, for all nodes: dlog pki renew --trust-only DIR…"
    )


@command.command(cls=CliCommand, examples="dlog pki show m1.tls --json")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@without_cluster()
def show(settings: Settings, directory: Path) -> None:
    """Show the principal and the validity of a certificate directory."""
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
    examples="dlog pki ensure --domain compose --output /pki/nodes bookie/bookie1 user/admin",
)
@click.argument("principals", nargs=-1, required=True, metavar="KIND/NAME…")
@click.option("--domain", required=True, help="Name of the cluster in certificates.")
@click.option(
    "--output",
    type=DIRECTORY,
    required=True,
    help="Directory to write: parent of the directories, which are named by NAME.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="KIND/NAME=HOST,…",
    help="Host name or address of a gateway for HTTPS (several separated by commas). Repeatable.",
)
@AUTHORITY
@FOR_DAYS
@without_cluster()
def ensure(
    settings: Settings,
    principals: tuple[str, ...],
    domain: str,
    output: Path,
    authority: Path,
    days: int,
    hosts: tuple[str, ...],
) -> None:
    """Create missing certificates, and renew those with less than a third of their time left.

    The command also creates the authority if it does not exist.
    """
    from .certificates import ensure as make

    hosts_of_principal = {
        principal_name: names.split(",")
        for principal_name, _, names in (host_option.partition("=") for host_option in hosts)
    }
    if unknown_principals := sorted(set(hosts_of_principal) - set(principals)):
        raise click.UsageError(
            f"--host {unknown_principals[0]}=…: this principal is not among the arguments"
        )
    for line in make(authority, domain, principals, output, days=days, hosts=hosts_of_principal):
        settings.note(line)
