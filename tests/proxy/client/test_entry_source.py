"""A reader's subscription at read proxies whose every frame is the test's."""

from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from distributedlog.bookie.format import entry as entries
from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import build_entry
from distributedlog.log.services.log_metrics import LogMeters
from distributedlog.proxy.client.entry_source import EntrySource, ReadLinks
from distributedlog.proxy.protocol.read_messages import SegmentHead, Subscribe, Subscribed
from distributedlog.runtime.interfaces.errors import ConnectionLost

INCARNATION = "0000000000000007"


def answer(entry: int, incarnation: str = INCARNATION) -> Subscribed:
    """A subscription to segment 1 from this entry on; each entry has one record."""
    return Subscribed("l", incarnation, DLSN(1, entry, 0), entry, None, False)


def frame(*numbers: int, segment: int = 1, base: int = 0, first_id: int | None = None) -> bytes:
    """ENTRIES with these entries of a segment's ledger; ``first_id``: the sequence id of the first record."""
    body = SegmentHead(segment, 0, base, -1, 0, 0).encode()
    first_id = numbers[0] if first_id is None else first_id
    for sequence_id, number in enumerate(numbers, first_id):
        parts, size = build_entry(
            (number,), (b"%d" % number,), records_before=sequence_id, written_ms=1
        )
        body += bytes(entries.encode(7, number, 0, number - 1, parts, size))
    return body


class ScriptedLinks:
    """All connections to one proxy, which answers each subscription with the next one of ``answers``."""

    def __init__(self, *answers: Subscribed) -> None:
        self.answers = list(answers)
        self.asked: list[Subscribe] = []
        self.left: list[int] = []

    def proxies_of(self, path: str, name: str) -> list[tuple[str, int]]:
        return [("proxy", 1)]

    async def link_to(self, address: tuple[str, int]) -> "ScriptedLinks":
        await trio.lowlevel.checkpoint()
        return self

    async def subscribe(self, source: EntrySource, ask: Subscribe) -> tuple[int, Subscribed]:
        await trio.lowlevel.checkpoint()
        self.asked.append(ask)
        return len(self.asked), self.answers.pop(0)

    def grant(self, ident: int, total: int) -> None:
        pass

    def unsubscribe(self, ident: int) -> None:
        self.left.append(ident)


class Reading:
    """A source that is open, and the entries that it has given."""

    def __init__(self, *answers: Subscribed) -> None:
        self.links = ScriptedLinks(*answers)
        self.source = EntrySource(
            cast("ReadLinks", self.links), Subscribe("ns", "l"), LogOptions(), LogMeters(), 1
        )

    async def open(self) -> "Reading":
        self.out = await self.source.open()
        return self

    @property
    def given(self) -> list[int]:
        return [columns.origin.entry for columns in self.out.entries]

    async def follow(self, nursery: trio.Nursery) -> None:
        """Run the source until it waits."""
        nursery.start_soon(self.source.run)
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(frame(0), id="an entry again"),
        pytest.param(frame(0, first_id=2), id="an entry again, counted on"),
        pytest.param(frame(2, base=3), id="an entry before its segment"),
        pytest.param(frame(2, segment=2, base=3), id="an entry before a later segment"),
        pytest.param(frame(3), id="a later entry"),
        pytest.param(frame(2)[:-9] + b"!" + frame(2)[-8:], id="a changed entry"),
    ],
)
async def test_a_subscription_is_left_at_its_first_wrong_entry(
    spoilt: bytes, autojump_clock: MockClock
) -> None:
    """Nothing that the same proxy sends afterwards is given, also if it would fit."""
    reading = await Reading(answer(0)).open()
    reading.source.on_entries(frame(0, 1))

    reading.source.on_entries(spoilt)
    reading.source.on_entries(frame(2, 3))

    assert reading.given == [0, 1]
    assert reading.links.left == [1]
    assert reading.out.error is None


async def test_a_reader_through_a_proxy_has_no_lag(autojump_clock: MockClock) -> None:
    """The proxy does not report the end of the log, so the lag would look small."""
    reading = await Reading(answer(0)).open()
    reading.source.on_entries(frame(0, 1))

    assert reading.given == [0, 1]
    assert reading.out.lag() == []


async def test_entries_of_a_lost_connection_are_not_given(autojump_clock: MockClock) -> None:
    reading = await Reading(answer(0)).open()

    reading.source.on_lost(ConnectionLost("the script"))
    reading.source.on_entries(frame(0))

    assert reading.given == []


async def test_a_subscription_goes_on_after_the_last_entry_that_was_given(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    reading = await Reading(answer(0), answer(2)).open()
    await reading.follow(nursery)
    reading.source.on_entries(frame(0, 1))
    reading.source.on_lost(ConnectionLost("the script"))

    await trio.sleep(1)
    reading.source.on_entries(frame(2))

    assert reading.given == [0, 1, 2]
    resumed = reading.links.asked[1]
    assert (resumed.resumes, resumed.dlsn, resumed.sequence_id) == (True, DLSN(1, 2, 0), 2)
    assert (resumed.incarnation, resumed.proven) == (INCARNATION, True)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(answer(1), id="an earlier position"),
        pytest.param(answer(2, "0000000000000008"), id="another log"),
    ],
)
async def test_an_answer_that_begins_elsewhere_is_refused(
    wrong: Subscribed, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The source subscribes again, at the position that the reader has."""
    reading = await Reading(answer(0), wrong, answer(2)).open()
    await reading.follow(nursery)
    reading.source.on_entries(frame(0, 1))
    reading.source.on_lost(ConnectionLost("the script"))

    await trio.sleep(5)
    reading.source.on_entries(frame(2))

    assert reading.given == [0, 1, 2]
    assert [ask.dlsn for ask in reading.links.asked[1:]] == [DLSN(1, 2, 0)] * 2
    assert 2 in reading.links.left
