"""`dlog under-replicated`: which ledgers have fewer copies than they should."""

from dataclasses import asdict
from typing import Any

import click

from .options import Command, Settings, common
from .output import emit, table


@click.command(
    cls=Command,
    examples="""
    dlog under-replicated
    dlog under-replicated --json | wc -l
    """,
)
@common
def command(settings: Settings) -> None:
    """List ledgers that miss copies: noted holes, and all ledgers of bookies that are down.

    With --json one object a line, with the bookie's id. Exit code 0 also where there are some.
    """
    from ..cluster.bookie_names import bookie_names
    from ..cluster.leaving import shortages
    from .connect import ask, quorum

    async def all_of_them(metadata: Any) -> tuple[Any, list[dict[str, Any]]]:
        names = await bookie_names(metadata)
        return names, [asdict(one) async for one in shortages(metadata)]

    names, found = ask(settings, "listing what is missing", all_of_them, quorum)
    if settings.json:
        for one in found:
            emit(one)
        return
    columns = ("ledger", "bookie", "first", "to", "why")
    rows = [
        [(one | {"bookie": names.name(one["bookie"])})[key] for key in columns] for one in found
    ]
    table(columns, rows, empty="every ledger has all its copies")
