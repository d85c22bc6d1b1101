"""What ends a process that serves, and what does not cut its end short."""

import os
import signal
from functools import partial
from typing import Any

import trio
import trio.testing

from distributedlog.cluster.process.process_lifetime import run_until_stopped


def test_a_second_sigterm_does_not_cut_the_end_short() -> None:
    """Ctrl-C reaches a bench and its `dlog local`, which the bench then ends as well: that died of it at
    once, and its nodes wrote on into a directory that was gone until they missed their life line.
    """
    usual: list[int] = []
    steps: list[str] = []

    async def run(status: trio.TaskStatus[dict[str, Any]]) -> None:
        status.started({})
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                os.kill(os.getpid(), signal.SIGTERM)
                await trio.testing.wait_all_tasks_blocked()
            steps.append("ended")

    before = signal.signal(signal.SIGTERM, lambda number, _: usual.append(number))
    try:
        trio.run(
            partial(run_until_stopped, run, stdin=False, ready=lambda line: steps.append("ready"))
        )
    finally:
        signal.signal(signal.SIGTERM, before)

    assert steps == ["ready", "ended"]
    assert usual == [], "what a process does by itself that nobody listens in: it dies"
