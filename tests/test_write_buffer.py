"""The buffer between a caller of the blocking and asyncio APIs and its writer, in one loop."""

from typing import Any

import pytest
import trio
import trio.testing

from distributedlog.runtime.interfaces.errors import AlreadyClosed, WriteFailed
from distributedlog.write_buffer import open_buffer
from tests.face_world import model_namespace

from .test_face_interrupts import Late, rec


def test_a_write_buffer_counts_what_it_has_not_handed_over_as_not_durable() -> None:
    """The exit reports this number. Records of an aborted writer do not count."""

    async def main() -> None:
        background: Any = Late()
        async with model_namespace() as namespace:
            log = namespace.open_log("l")
            buffer = await open_buffer(background, namespace, log, log.open_writer())
            for txid in (1, 2, 3):
                buffer.append(rec(txid))
            assert buffer.not_durable == 3
            await buffer.abort()
            assert buffer.not_durable == 0
            with pytest.raises(AlreadyClosed):
                buffer.append(rec(4))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_write_buffer_refuses_records_with_the_error_that_ended_its_writer() -> None:
    async def main() -> None:
        background: Any = Late()
        async with model_namespace() as namespace:
            log = namespace.open_log("l")
            buffer = await open_buffer(background, namespace, log, log.open_writer())
            found = buffer.append(rec(1))
            assert found is not None
            chunk, _ = found
            buffer.writer.send_queue.fail(WriteFailed("the model"))
            await buffer.abort()
            for callback in background.posted:
                callback()
            await trio.testing.wait_all_tasks_blocked()
            assert isinstance(chunk.error, WriteFailed)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
