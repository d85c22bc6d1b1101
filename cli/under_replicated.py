"""`dlog under-replicated`: which ledgers have fewer copies than they should."""

import json
from dataclasses import asdict

import click

from .options import Command, Settings, common
from .output import table


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

    With --json one object a line. Exit code 0 also where there are some.
    """
    from ..cluster.leaving import shortages
    from .connect import answer, quorum, run

    async def work() -> None:
        async with quorum(settings) as metadata:

            async def all_of_them() -> list[dict[str, object]]:
                return [asdict(one) async for one in shortages(metadata)]

            found = await answer(settings, "listing what is missing", all_of_them)
        if settings.json:
            for one in found:
                print(json.dumps(one))
            return
        columns = ("ledger", "bookie", "first", "to", "why")
        rows = [[one[key] for key in columns] for one in found]
        table(columns, rows, empty="every ledger has all its copies")

    run(work)
