"""What a stream has answered, for who waits for one frame at a time."""

import trio
from trio.testing import MockClock

from distributedlog.proxy.client.batch_sender import SUSPECT_S, StreamResponses
from distributedlog.proxy.protocol.proxy_messages import Ack


async def test_who_waits_for_nothing_is_not_kept_waiting(autojump_clock: MockClock) -> None:
    """Answers to what was sent on an earlier stream come when this one is opened: after a rest the next
    frame was taken for late at once, and another proxy was asked for its log."""
    heard = StreamResponses()
    heard.handlers.on_ack(Ack(1, 1, 0, 1, 0, 0, 0, -1))
    await trio.sleep(10 * SUSPECT_S)
    heard.handlers.on_sweep(trio.current_time())
    assert not heard.is_late

    heard.waiting_since = trio.current_time()
    await trio.sleep(0.7 * SUSPECT_S)
    heard.handlers.on_ack(Ack(1, 1, 1, 1, 1, 0, 0, -1))
    await trio.sleep(0.7 * SUSPECT_S)
    heard.handlers.on_sweep(trio.current_time())
    assert not heard.is_late, "news came"
    await trio.sleep(0.7 * SUSPECT_S)
    heard.handlers.on_sweep(trio.current_time())
    assert heard.is_late
