"""One client process of a run: uses the cluster as its spec says, writes down what it saw.

Run as ``python -m distributedlog.chaos.client``. The first line on stdin is the spec (JSON); stdin's end,
by a close or by the runner's death, ends it: it stops, waits a little for what is under way, and says so.
A client is a process of its own so that it, too, can be killed and paused.
"""

import contextlib
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import trio

from .. import open_namespace
from ..log.namespace import Namespace
from ..runtime.errors import DistributedLogError
from ..verify.notes import FORMAT, Notebook

SESSIONS_OF_A_LIFE = 1 << 16
GOODBYE_S = 20.0
TIMEOUT_S = 10.0
"""No call of a client may hang for longer without a word."""


@dataclass(slots=True)
class Life:
    """One client process' life: what it was told, and what it writes down."""

    name: str
    kind: str
    options: dict[str, Any]
    """The fields of scenario.Client."""
    first_session: int
    """Sessions of this life are numbered from here on, at most `SESSIONS_OF_A_LIFE`."""
    log_options: dict[str, Any]
    seed: int
    notes: Notebook
    stop: trio.Event = field(default_factory=trio.Event)
    """Set when it is told to end: writers stop handing over, and wait for what is under way."""
    sessions: int = 0
    readings: int = 0

    @property
    def chance(self) -> random.Random:
        """A stream of chance of this life's own."""
        return random.Random(f"{self.seed}/{self.name}/{self.first_session}")

    def new_session(self) -> int:
        """A number that no other session of the run has."""
        number = self.first_session + self.sessions
        self.sessions += 1
        assert self.sessions < SESSIONS_OF_A_LIFE, "numbers of other lives begin there"
        return number

    def new_reading(self) -> int:
        """A number of this life's own."""
        self.readings += 1
        return self.readings

    async def rest(self, seconds: float) -> bool:
        """Wait; True when it is time to end."""
        with trio.move_on_after(seconds):
            await self.stop.wait()
        return self.stop.is_set()


def before() -> float:
    """Now, for the beginning of a call: never later than it was."""
    return int(time.monotonic() * 1e4) / 1e4


def after() -> float:
    """Now, for the end of a call: never earlier than it was."""
    return (int(time.monotonic() * 1e4) + 1) / 1e4


def words(error: BaseException) -> str:
    """An error on one short line."""
    return f"{type(error).__name__}: {error}"[:300]


async def _main(spec: dict[str, Any], descriptor: int) -> None:
    from . import load

    notes = Notebook(spec["name"], lambda line: os.write(descriptor, line))
    life = Life(
        spec["name"],
        spec["kind"],
        spec["options"],
        spec["first_session"],
        spec["log_options"],
        spec["seed"],
        notes,
    )
    notes.note("begin", FORMAT, os.getpid(), before())
    work = load.KINDS[life.kind]
    config = {"metadata_timeout_s": TIMEOUT_S}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_with_stdin, life, nursery.cancel_scope)
        async with contextlib.AsyncExitStack() as stack:
            namespace = await _opened(stack, spec["uri"], config, life)
            if namespace is not None:
                await work(life, namespace)
        nursery.cancel_scope.cancel()


async def _opened(
    stack: contextlib.AsyncExitStack, uri: str, config: dict[str, Any], life: Life
) -> Namespace | None:
    """The namespace, as soon as a quorum answers; None when it is time to end before."""
    while not life.stop.is_set():
        try:
            return await stack.enter_async_context(open_namespace(uri, config=config))
        except DistributedLogError as error:
            life.notes.note("note", after(), f"cannot open: {words(error)}")
            await life.rest(0.2)
    return None


async def _end_with_stdin(life: Life, scope: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(0)) as stream:
        while await stream.receive_some(4096):
            pass
    life.stop.set()
    await trio.sleep(GOODBYE_S)
    scope.cancel()


def main() -> None:
    """Read the spec, work, end."""
    spec = json.loads(sys.stdin.readline())
    descriptor = os.open(spec["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.setswitchinterval(0.0005)
    trio.run(_main, spec, descriptor)


if __name__ == "__main__":
    main()
