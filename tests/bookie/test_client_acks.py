"""What a bookie tells together is counted first, then told; what breaks at a ledger's end is that one's."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from distributedlog.bookie.client.bookie_client import AddStream, BookieClient
from distributedlog.bookie.format import bookie_messages as m
from distributedlog.runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    LedgerFenced,
    ProtocolError,
)
from distributedlog.runtime.protocol.frames import Op

from .kit import KEY, OPTIONS, record
from .test_common_frames import Bookies

Clock = trio.testing.MockClock


class Owner:
    """Of a stream: what it is told, in the order of all owners of a test."""

    def __init__(
        self, client: BookieClient, ledger: int, told: list[str], *, tells: bool = True
    ) -> None:
        self.name = f"l{ledger}"
        self._told = told
        self._tells = tells
        self.fails: Exception | None = None
        self.fails_later: Exception | None = None
        """When it is told of progress, or of a refusal."""
        self.stream: AddStream = client.open_stream(
            ledger,
            KEY,
            recovery=False,
            fragment_epoch=0,
            on_acked=self._on_acked,
            on_refused=self._on_refused,
            on_progress=self._on_progress,
            on_broken=lambda error: told.append(f"{self.name} broken"),
        )

    def _on_acked(self, count: int) -> bool:
        self._told.append(f"{self.name} {count}")
        if self.fails is not None:
            raise self.fails
        return self._tells

    def _on_progress(self) -> None:
        self._told.append(f"{self.name} progress")
        if self.fails_later is not None:
            raise self.fails_later

    def _on_refused(self, position: int, error: DistributedLogError) -> None:
        self._told.append(f"{self.name} refused at {position}: {type(error).__name__}")
        if self.fails_later is not None:
            raise self.fails_later


Check = Callable[[BookieClient, list[Owner], list[str]], None]


async def _checked(check: Check, *, tells: tuple[bool, ...] = (True, True, True)) -> None:
    """Three ledgers on one connection, to which nothing was acknowledged by itself."""
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        client = await bookies.start("b1", OPTIONS)
        told: list[str] = []
        owners = [Owner(client, n + 1, told, tells=tells[n]) for n in range(3)]
        for n, owner in enumerate(owners):
            owner.stream.send(record(n + 1, 0))
        check(client, owners, told)
        nursery.cancel_scope.cancel()


def _acks(client: BookieClient, *pairs: tuple[Owner, int]) -> None:
    """One frame of the bookie."""
    body = m.encode_acks([(owner.stream.stream_number, count) for owner, count in pairs])
    client._on_frame(Op.ADD_ACKS, 0, 0, 0, memoryview(body))


async def test_all_of_a_frame_is_counted_before_any_of_it_is_told(autojump_clock: Clock) -> None:
    def check(client: BookieClient, owners: list[Owner], told: list[str]) -> None:
        _acks(client, *((owner, 1) for owner in owners))
        assert told == ["l1 1", "l2 1", "l3 1", "l1 progress", "l3 progress"]
        assert [owner.stream.acked_count for owner in owners] == [1, 1, 1]

    await _checked(check, tells=(True, False, True))


async def test_a_count_that_its_owner_does_not_believe_refuses_that_stream_alone(
    autojump_clock: Clock,
) -> None:
    def check(client: BookieClient, owners: list[Owner], told: list[str]) -> None:
        owners[1].fails = ProtocolError("more than there is")
        _acks(client, *((owner, 1) for owner in owners))
        assert told == [
            "l1 1",
            "l2 1",
            "l2 refused at 1: ProtocolError",
            "l3 1",
            "l1 progress",
            "l3 progress",
        ]
        assert client.close_error is None

    await _checked(check)


async def test_what_breaks_at_one_owner_is_told_to_it_alone(autojump_clock: Clock) -> None:
    def check(client: BookieClient, owners: list[Owner], told: list[str]) -> None:
        owners[0].fails = AssertionError("a rule of ours")
        _acks(client, *((owner, 1) for owner in owners))
        assert told == ["l1 1", "l1 broken", "l2 1", "l3 1", "l2 progress", "l3 progress"]
        assert client.close_error is None

    await _checked(check)


async def test_who_breaks_when_told_keeps_it_from_nobody(autojump_clock: Clock) -> None:
    """What was counted is told in any case: no acknowledgement would come after it."""

    def check(client: BookieClient, owners: list[Owner], told: list[str]) -> None:
        owners[0].fails_later = AssertionError("a rule of ours")
        _acks(client, *((owner, 1) for owner in owners))
        assert told[3:] == ["l1 progress", "l1 broken", "l2 progress", "l3 progress"]
        assert client.close_error is None

    await _checked(check)


async def test_who_breaks_at_a_refusal_is_told_of_it_alone(autojump_clock: Clock) -> None:
    """By the bookie's word, or by the end of the connection, of which all others are told, too."""

    def check(client: BookieClient, owners: list[Owner], told: list[str]) -> None:
        closed: list[object] = []
        client.on_closed.append(closed.append)
        owners[0].fails_later = owners[1].fails_later = AssertionError("a rule of ours")
        refusal = m.encode_refusal(LedgerFenced("ledger 1 is fenced"), 0)
        client._on_frame(Op.STREAM_REFUSED, 0, LedgerFenced.code, 1, memoryview(refusal))
        assert told == ["l1 refused at 0: LedgerFenced", "l1 broken"]
        client._on_link_closed(ConnectionLost("the network"))
        assert told[2:] == [
            "l2 refused at 0: ConnectionLost",
            "l2 broken",
            "l3 refused at 0: ConnectionLost",
        ]
        assert closed

    await _checked(check)


async def test_what_was_counted_is_told_though_the_rest_of_the_frame_is_wrong(
    autojump_clock: Clock,
) -> None:
    """Else its writers would wait: the window has moved, and nobody says so."""

    def check(client: BookieClient, owners: list[Owner], told: list[str]) -> None:
        with pytest.raises(ProtocolError, match="9 records acked, 1 sent"):
            _acks(client, (owners[0], 1), (owners[1], 9), (owners[2], 1))
        assert told == ["l1 1", "l1 progress"]

    await _checked(check)


async def test_a_bookie_that_acknowledges_too_much_ends_its_connection(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the wire: nothing counts, and each owner is refused at what was acknowledged before."""
    honest = m.encode_acks
    monkeypatch.setattr(
        m, "encode_acks", lambda acks: honest([(number, count + 6) for number, count in acks])
    )
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        client = await bookies.start("b1", OPTIONS)
        told: list[str] = []
        owner = Owner(client, 1, told)
        owner.stream.send(record(1, 0))
        await trio.sleep(1)
        assert told == ["l1 refused at 0: ConnectionLost"]
        assert isinstance(client.close_error, ProtocolError)
        nursery.cancel_scope.cancel()
