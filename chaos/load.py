"""The kinds of clients by name, and the one that works at the end of a run."""

from collections.abc import Awaitable, Callable
from functools import partial

from ..log.namespace import Namespace
from ..runtime.errors import DistributedLogError
from .client import Life, after, words
from .readers import catch_up, read_whole, registers, tail, truncate
from .writers import Session, duel, many_logs, write


async def finish(life: Life, namespace: Namespace) -> None:
    """After the faults: take each log over, write, and read all of it back.

    Tries again until it succeeds; the runner bounds how long that may take.
    """
    for log in life.options["logs"]:
        while not await _prove(life, namespace, log):
            if await life.rest(0.5):
                return
        while not life.stop.is_set():
            try:
                await read_whole(life, namespace, log)
                break
            except DistributedLogError as error:
                life.notes.note("note", after(), f"the last reading ended: {words(error)}")
                await life.rest(0.5)
    life.notes.note("note", after(), "finished")


async def _prove(life: Life, namespace: Namespace, log: str) -> bool:
    session = await Session.open(life, namespace, log, takeover=True)
    if session is None:
        return False
    await session.run(partial(session.feed_at, 200.0, 100, 0.2))
    return session.failure is None


KINDS: dict[str, Callable[[Life, Namespace], Awaitable[None]]] = {
    "writer": write,
    "duel": duel,
    "many-logs": many_logs,
    "tail": tail,
    "catch-up": catch_up,
    "registers": registers,
    "truncate": truncate,
    "finish": finish,
}
