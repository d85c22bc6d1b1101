"""Entry records out of the bytes of a run, as far as they are here and fit (pure).

A run is records back to back; nothing says where one begins but the headers before it. Digests are for
whoever uses a record to check; ids and lengths must fit here, or nothing is believed.
"""

from dataclasses import dataclass

from ..runtime.errors import CorruptData
from . import entry as entries
from .runs import Located


@dataclass(frozen=True, slots=True)
class Cut:
    """Records of a run. ``end``: bytes from the run's beginning to theirs."""

    part: memoryview
    upto: int
    """The last id that is in ``part``; the one before the first asked for where none is."""
    end: int
    short: bool
    """It stopped where the bytes that are here end, not the run, nor what was allowed."""


def cut(
    view: memoryview | bytes,
    ledger_id: int,
    run: Located,
    first: int,
    last: int,
    bytes_max: int,
    at_least_one: bool,
) -> Cut:
    """The records first..last of a run, together at most ``bytes_max``, a first longer one if wanted.

    ``view`` may end before the run does. Raises `CorruptData`.
    """
    view = memoryview(view)
    here = len(view)
    if first == run.first and run.last <= last and run.length <= min(bytes_max, here):
        _check_header(view, 0, run.length, ledger_id, first)
        return Cut(view[: run.length], run.last, run.length, False)
    position = start = end = 0
    upto = first - 1
    short = False
    for entry in range(run.first, min(run.last, last) + 1):
        if here - position < entries.HEADER_BYTES and here < run.length:
            short = True
            break
        length = _check_header(view, position, run.length, ledger_id, entry)
        if entry == first:
            start = end = position
        position += length
        if entry >= first:
            if position - start > bytes_max and not (at_least_one and entry == first):
                break
            if position > here:
                short = True
                break
            end, upto = position, entry
    return Cut(view[start:end], upto, end, short)


def find_record(view: memoryview | bytes, ledger_id: int, run: Located, entry: int) -> memoryview:
    """The record of ``entry`` in all the bytes of a run, unverified. Raises `CorruptData`."""
    return cut(view, ledger_id, run, entry, entry, 0, True).part


def _check_header(
    view: memoryview, position: int, run_bytes: int, ledger_id: int, entry: int
) -> int:
    """The length of the record that must stand there. Raises `CorruptData`."""
    if len(view) - position >= entries.HEADER_BYTES:
        _, length, payload_bytes, _, _, _, ledger, number, _, _ = entries.HEADER.unpack_from(
            view, position
        )
        if (
            ledger == ledger_id
            and number == entry
            and length == entries.record_bytes(payload_bytes)
            and position + length <= run_bytes
        ):
            return int(length)
    raise CorruptData(f"ledger {ledger_id} entry {entry}: the journal holds something else there")
