"""`dlog audit`: do the metadata's records refer to each other both ways?"""

from typing import Any

import click

from ..cluster.counted import counted
from .errors import NO, Answer
from .options import Command, Settings, common
from .output import emit, table


@click.command(cls=Command, examples="dlog audit\ndlog audit --json --timeout 600")
@common
def command(settings: Settings) -> None:
    """Compare ledgers, the index of what lies on which bookie, and logs' segments, all of them, both ways.

    Reads every record once and changes nothing. Records that cannot be read are listed, too. Exit code 6 if
    something does not fit. Missing copies are listed by `dlog under-replicated`.
    """
    from ..cluster.bookie_names import bookie_names
    from ..cluster.references import References
    from .connect import ask, quorum

    async def audit(metadata: Any) -> tuple[Any, Any, list[Any]]:
        references = References(metadata)
        names = await bookie_names(metadata)
        return names, references, [one async for one in references.audit()]

    names, references, found = ask(settings, "the audit", audit, quorum)
    if settings.json:
        for one in found:
            emit({"ledger": one.ledger, "what": one.what})
    else:
        table(("ledger", "what"), [[one.ledger, names.in_words(one.what)] for one in found])
        print(
            f"{counted(references.ledgers, 'ledger')}, {counted(references.segments, 'segment')},"
            f" {counted(references.entries, 'entry', 'entries')} of the index:"
            f" {len(found) or 'nothing'} that does not fit"
        )
    if found:
        raise Answer(NO)
