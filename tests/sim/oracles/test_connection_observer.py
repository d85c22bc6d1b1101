"""What judges of connections are told: an answer, and what it answers."""

from types import SimpleNamespace
from typing import Any

from distributedlog.runtime.interfaces.principals import Welcome
from distributedlog.runtime.protocol.frames import Op, envelope
from distributedlog.runtime.protocol.handshake import encode_welcome
from distributedlog.testing.sim.oracles.connection_observer import (
    ConnectionObserver,
    ConnectionOracle,
    ObservedConnection,
    SessionFrame,
)


class Answers(ConnectionOracle):
    def __init__(self) -> None:
        self.asked: list[int | None] = []

    def on_answer(self, connection: ObservedConnection, answer: SessionFrame) -> None:
        self.asked.append(None if answer.request is None else answer.request.op)


def test_what_asks_nothing_takes_no_answer() -> None:
    """A watch that its client gives up while the refusal is on its way: the refusal is of the watch."""
    meetings, answers = ConnectionObserver(lambda: 0.0, lambda: 0), Answers()
    meetings.listeners.append(answers)
    client, node = (SimpleNamespace(name=name, stalled=False) for name in ("x5", "m1"))
    end: Any = SimpleNamespace(
        serial=1, is_dialer=False, host=node, peer_end=SimpleNamespace(host=client, is_dialer=True)
    )
    welcome = encode_welcome(Welcome("user/guest"))
    meetings.on_sent(end, envelope(Op.AUTH, len(welcome)) + welcome)

    meetings.on_arrived(end, envelope(Op.META_WATCH, 1, ident=5) + b"w")
    meetings.on_arrived(end, envelope(Op.META_WATCH_CANCEL, 0, ident=5))
    meetings.on_sent(end, envelope(Op.REPLY, 0, ident=5, status=1))

    assert answers.asked == [Op.META_WATCH]
