"""What is told of all slots together is told of those that have a stream now."""

from collections.abc import Callable, Sequence
from typing import Any

from distributedlog.ledger.model.striping import Striping
from distributedlog.ledger.write.add_streams import AddStreamListener, SlotStreams
from distributedlog.ledger.write.pending_adds import PendingAdds


class Sink:
    """A bookie and its add stream, of which many tell LACs together."""

    has_lac_waiters = False

    def __init__(self, bookie: str, told: list[tuple[str, int]]) -> None:
        self.bookie = bookie
        self._told = told

    def open_stream(self, *_: object, **__: object) -> "Sink":
        return Sink(self.bookie, self._told)

    def shared_sender(self, streams: object) -> None:
        """Records go one by one."""

    def shared_lac_sender(self, streams: Sequence[Any]) -> Callable[[int], bool]:
        def tell(lac: int) -> bool:
            self._told += [(one.bookie, lac) for one in streams]
            return True

        return tell

    def send(self, record: object) -> None: ...

    def send_lac(self, lac: int) -> None: ...

    def call_when_processed(self, on_processed: Callable[[], None], timeout_s: float) -> None: ...

    def close(self) -> None: ...


def test_a_lac_is_told_to_those_who_have_the_slots_now() -> None:
    """Who came into a slot is told, who left it is not; else readers there wait for good."""
    told: list[tuple[str, int]] = []
    window = PendingAdds(Striping(3, 3, 2), ["a", "b", "c"])
    streams = SlotStreams(
        window,
        1,
        b"",
        recovery=False,
        connection_of=lambda bookie: Sink(bookie, told),
        listener=AddStreamListener(
            on_acked=lambda stream, count: None,
            on_failed=lambda slot, bookie, error: None,
            on_internal_error=lambda error: None,
        ),
    )
    for slot in range(3):
        streams.open(slot)
    streams.send_lac(0)
    streams.end(1)
    streams.send_lac(1)
    window.begin_change()
    window.end_change({1: "d"}, 1)
    streams.open(1)
    streams.send_lac(2)
    assert told == [
        (bookie, lac) for lac, all_of in enumerate(("abc", "ac", "adc")) for bookie in all_of
    ]
