"""What a producer's stream says of its frames when it ends: stored, perhaps, certainly not."""

import pytest

from distributedlog.log.format.dlsn import DLSN
from distributedlog.proxy.protocol.proxy_messages import ACK, Ack, Refusal
from distributedlog.proxy.write.producer_stream import ProducerStream
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    Moved,
    RecordTooLarge,
    TooBusy,
    WriteFailed,
)


class Told:
    """A stream, and what its peer hears."""

    def __init__(self) -> None:
        self.acks: list[Ack] = []
        self.refusals: list[Refusal] = []
        self.held = 0
        self.stream = ProducerStream(
            1,
            1 << 20,
            ack=lambda item: self.acks.append(Ack._make(ACK.unpack(item))),
            refuse=lambda _, refusal: self.refusals.append(refusal),
            on_bytes=self._hold,
        )
        for _ in range(4):
            self.stream.accept_frame(self.stream.next_sequence, 10, 100)

    def _hold(self, more: int) -> None:
        self.held += more

    def done(self, error: DistributedLogError | None = None) -> None:
        self.stream.on_done(None if error else DLSN(1, 0, 0), 5, False, error)

    @property
    def said(self) -> tuple[int, int]:
        (refusal,) = self.refusals
        assert not self.held
        return refusal.unknown_from, refusal.refused_from


UNKNOWN, REFUSED = WriteFailed("nobody knows"), RecordTooLarge("for certain")


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([None, UNKNOWN, UNKNOWN, UNKNOWN], (10, 40)),
        ([None, UNKNOWN, REFUSED, REFUSED], (10, 20)),
        ([None, REFUSED, REFUSED, REFUSED], (10, 10)),
        ([UNKNOWN, REFUSED, UNKNOWN, REFUSED], (0, 10)),
        ([ConnectionLost("of a bookie"), UNKNOWN, UNKNOWN, REFUSED], (0, 30)),
        ([None, None, None, UNKNOWN], (30, 40)),
    ],
)
def test_what_may_be_stored_is_never_said_not_to_be(
    outcomes: list[DistributedLogError | None], said: tuple[int, int]
) -> None:
    """G7: a plain producer sends again what is said not to be there, and no more."""
    told = Told()
    for number, error in enumerate(outcomes):
        assert not told.refusals, f"told before frame {number} is answered"
        told.done(error)

    assert told.said == said
    assert len(told.acks) == outcomes.count(None)


def test_a_refusal_is_the_last_word_and_counts_from_the_first_frame_that_is_not_there() -> None:
    told = Told()
    told.stream.refuse(TooBusy("a limit"), 30, retry_ms=7)
    told.stream.refuse(Moved("another one comes later"), 20)
    assert not told.refusals
    told.done()
    told.done(UNKNOWN)

    assert told.said == (10, 20)
    assert isinstance(told.refusals[0].error, TooBusy)
    assert told.refusals[0].retry_ms == 7


def test_what_is_withheld_is_told_in_the_last_words_and_once() -> None:
    told = Told()
    told.stream.refuse(Moved("somewhere"), 40, withhold=True)
    for _ in range(4):
        told.done()
    assert not told.refusals
    told.stream.report_withheld(Moved("to this one", "proxy"))
    told.stream.report_withheld(Moved("again"))

    assert told.said == (40, 40)
    assert told.refusals[0].error.detail == "proxy"


def test_nobody_is_told_after_it_was_dropped() -> None:
    told = Told()
    told.stream.drop()
    for _ in range(4):
        told.done(UNKNOWN)

    assert told.refusals == []
    assert told.held == 0


def test_a_frame_of_an_earlier_stream_holds_nothing_here() -> None:
    """What it holds was counted where it came."""
    told = Told()
    for _ in range(4):
        told.done()
    told.stream.expect_answer(40, 3)
    told.done()

    assert len(told.acks) == 5
    assert (told.held, told.stream.unanswered_bytes) == (0, 0)
