"""The entries between a reader and its source: whoever waits is woken, however they take turns."""

import random

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import (
    Columns,
    Origin,
    build_entry,
    decode_columns,
    decode_header,
)
from distributedlog.log.read.entry_queue import EntryQueue, ReadRange
from distributedlog.log.services.log_metrics import LogMeters

ENTRIES = 60


def entry(number: int, payload_bytes: int) -> Columns:
    """An entry of one record."""
    buffers, _ = build_entry([number], [bytes(payload_bytes)], records_before=number, written_ms=0)
    stored = b"".join(buffers)
    return decode_columns(stored, decode_header(stored), Origin(0, number, number))


@pytest.mark.parametrize("seed", range(40))
async def test_neither_source_nor_reader_is_left_waiting(
    seed: int, autojump_clock: MockClock
) -> None:
    """Also where entries are put back, and where what may be held changes meanwhile."""
    chance = random.Random(seed)
    queue = EntryQueue(
        "log",
        "1",
        ReadRange(DLSN(0, 0, 0)),
        options=LogOptions(read_ahead_bytes=4096),
        meters=LogMeters(),
    )
    taken: list[int] = []

    async def give() -> None:
        for number in range(ENTRIES):
            queue.add_entry(entry(number, chance.choice((0, 10, 500, 1500, 9000))))
            if chance.random() < 0.7:
                await queue.wait_capacity()
            if chance.random() < 0.2:
                await trio.sleep(chance.random())
        queue.end()

    async def take() -> None:
        while True:
            with trio.move_on_after(chance.choice((0.1, 1000.0))):
                await queue.wait_filled()
            some = []
            while queue.entries and chance.random() < 0.8:
                some.append(queue.pop_entry())
            if some and chance.random() < 0.2:
                queue.return_entries(some)
                some = []
            taken.extend(one.origin.entry for one in some)
            if chance.random() < 0.2:
                queue.limit_bytes(chance.choice((1, 1000, 1 << 20)))
            if queue.ended and not queue.entries:
                return

    with trio.fail_after(900.0):  # of a clock that jumps: whoever is not woken waits for it
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give)
            nursery.start_soon(take)

    assert taken == list(range(ENTRIES))
    assert queue.buffered_bytes == 0
