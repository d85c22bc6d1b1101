"""`dlog bookies`: who stores entries."""

import json

import click

from .options import Command, Settings, common
from .output import size, table


@click.command(cls=Command, examples="dlog bookies\ndlog bookies --json")
@common
def command(settings: Settings) -> None:
    """List the bookies, those that are down included; with --json one object a line."""
    from .cluster_view import bookies
    from .connect import answer, quorum, run

    async def work() -> None:
        async with quorum(settings) as metadata:
            found = await answer(
                settings, "listing the bookies", lambda: bookies(metadata, metadata.listener)
            )
        if settings.json:
            for bookie in found:
                print(json.dumps(bookie))
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
        table(columns, rows, empty="no bookie has ever joined this cluster")

    run(work)
