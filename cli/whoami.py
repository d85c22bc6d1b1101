"""`dlog whoami`: who the cluster takes one for."""

import click

from .options import Command, Settings, common
from .output import emit
from .trust import WORDS, asked


@click.command(cls=Command, examples="dlog whoami")
@common
def command(settings: Settings) -> None:
    """Who the cluster takes you for, and what you may do on it."""
    from ..metadata.rights import ADMIN, OPERATOR

    report = asked(settings, "who this is", lambda metadata: metadata.trust_report(own=True))
    held = [
        word for word, right in (("operator", OPERATOR), ("admin", ADMIN)) if report.rights & right
    ]
    if settings.json:
        emit({"principal": report.principal, "mode": WORDS[report.mode], "cluster": held})
    else:
        print(f"{report.principal}, {' and '.join(held) or 'no role of the cluster'}")
