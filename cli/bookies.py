"""`dlog bookies`: who stores entries."""

import click

from .options import Command, Settings, common
from .output import emit, size, spare_ids, table


@click.command(cls=Command, examples="dlog bookies\ndlog bookies --json")
@common
def command(settings: Settings) -> None:
    """List the bookies, those that are down included; with --json one object a line.

    Ledgers, used and free are those that a bookie reported last, up to ten seconds ago. Of a bookie that is
    being decommissioned, the ledgers that still need it are counted, and not what its disk still has. A
    narrow terminal shows no ids, unless two have one name; --json has all.
    """
    from ..cluster.overview import bookies
    from .connect import ask, quorum

    found = ask(
        settings,
        "listing the bookies",
        lambda metadata: bookies(metadata, metadata.listener),
        quorum,
    )
    if settings.json:
        for bookie in found:
            emit(bookie)
        return
    rows = [
        [
            bookie["label"],
            bookie["id"],
            bookie["state"],
            bookie["address"],
            bookie["ledgers"],
            bookie["ledgers_missing"] or None,
            None if bookie["used_bytes"] is None else size(bookie["used_bytes"]),
            None if bookie["free_bytes"] is None else size(bookie["free_bytes"]),
            bookie["rack"] or None,
        ]
        for bookie in found
    ]
    columns = ("name", "id", "state", "address", "ledgers", "missing", "used", "free", "rack")
    spare = spare_ids([bookie["label"] for bookie in found])
    table(columns, rows, empty="no bookie has ever joined this cluster", spare=spare)
