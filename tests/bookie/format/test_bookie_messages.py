"""Frame bodies between clients and bookies: round trips, truncations, junk."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.bookie.format import bookie_messages as m
from distributedlog.runtime.interfaces.errors import EntryConflict, ProtocolError
from distributedlog.runtime.protocol.frames import ENVELOPE_BYTES, Op, envelope
from tests.examples import examples

KEY = bytes(range(16))
REQUESTS = [
    m.StreamOpenRequest(7, KEY, recovery=True, fragment_epoch=3),
    m.StreamOpenRequest(2**64 - 1, KEY, recovery=False, fragment_epoch=0),
    m.StreamOpenRequest(7, KEY, recovery=False, fragment_epoch=0, close=True),
    m.LedgerRequest(7, KEY),
    m.ReadEntriesRequest(7, KEY, 0, 9, 1 << 20, fence=True),
    m.ReadEntriesRequest(7, KEY, 5, 5, 0, past_lac=True),
    m.WaitLacRequest(7, KEY, -1, 1000, 65536),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_requests_come_back(request_: m.ReadEntriesRequest) -> None:
    assert type(request_).decode(request_.encode()) == request_


@pytest.mark.parametrize("request_", REQUESTS)
def test_every_truncation_is_refused(request_: m.ReadEntriesRequest) -> None:
    body = request_.encode()

    for length in range(len(body)):
        with pytest.raises(ProtocolError):
            type(request_).decode(body[:length])
    with pytest.raises(ProtocolError):
        type(request_).decode(body + b"\0")


@settings(max_examples=examples(100))
@given(st.binary(max_size=80))
def test_junk_never_raises_anything_else(body: bytes) -> None:
    view = memoryview(body)
    for decode in (
        m.StreamOpenRequest.decode,
        m.LedgerRequest.decode,
        m.ReadEntriesRequest.decode,
        m.WaitLacRequest.decode,
        m.decode_lac,
        m.decode_lacs,
        lambda junk: m.decode_add_many_items(2, junk),
        m.decode_read,
        m.decode_wait,
        m.decode_lac_and_last,
        lambda junk: m.decode_pairs(junk, "junk"),
        lambda junk: m.decode_refusal(500, junk),
    ):
        try:
            decode(view)
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    "request_",
    [
        m.ReadEntriesRequest(1, KEY, 9, 5, 10),
        m.WaitLacRequest(1, KEY, -2, 0, 0),
        m.ReadEntriesRequest(1, KEY, 0, 1 << 63, 0),
    ],
)
def test_what_cannot_be_meant_is_refused(request_: m.ReadEntriesRequest) -> None:
    with pytest.raises(ProtocolError):
        type(request_).decode(request_.encode())


def test_unknown_flags_are_refused() -> None:
    """A flag that is not understood may change the meaning: never ignored."""
    body = bytearray(m.StreamOpenRequest(7, KEY, recovery=False, fragment_epoch=0).encode())
    body[24] = 4

    with pytest.raises(ProtocolError):
        m.StreamOpenRequest.decode(body)


def test_acks_runs_refusals_and_replies_come_back() -> None:
    assert m.decode_pairs(m.encode_acks([(1, 5), (9, 2**40)]), "acks") == [(1, 5), (9, 2**40)]
    assert m.decode_pairs(m.encode_entry_ranges([(0, 3)]), "runs") == [(0, 3)]
    error, position = m.decode_refusal(
        EntryConflict.code, m.encode_refusal(EntryConflict("ledger 1 entry 2"), 17)
    )
    assert (type(error), str(error), position) == (EntryConflict, "ledger 1 entry 2", 17)
    complete_to, lac, tail = m.decode_read(memoryview(m.encode_read_head(-1, 4) + b"rec"))
    assert (complete_to, lac, bytes(tail)) == (-1, 4, b"rec")
    lac, fenced, tail = m.decode_wait(memoryview(m.encode_wait_head(4, True) + b"rec"))
    assert (lac, fenced, bytes(tail)) == (4, True, b"rec")
    assert m.decode_lac_and_last(m.encode_lac_and_last(-1, 3)) == (-1, 3)
    frame = m.lac_frame(2**40, 7)
    assert frame[:ENVELOPE_BYTES] == envelope(Op.WRITE_LAC, 8, ident=2**40)
    assert m.decode_lac(frame[ENVELOPE_BYTES:]) == 7
    assert m.decode_lac(m.lac_frame(1, -1)[ENVELOPE_BYTES:]) == -1
    lacs = {1: -1, 2**40: 2**62}
    assert m.decode_lacs(m.encode_lacs(lacs.items())) == list(lacs.items())


def test_the_items_of_an_add_many_are_all_that_follows_them() -> None:
    """H165: where one item's bytes are wrong, all after it would be another's."""
    body = m.encode_add_many_items([7, 2**32 - 1, 7], [3, 0, 2]) + b"abcde"

    assert m.decode_add_many_items(3, body) == [(7, 3), (2**32 - 1, 0), (7, 2)]
    for number, wrong in (
        (0, b""),
        (2, body),
        (4, body),
        (3, body[:-1]),
        (3, body + b"f"),
        (2**64 - 1, body),
        (m.ADD_MANY_ITEMS_MAX + 1, bytes(m.ADD_MANY_ITEM_BYTES * (m.ADD_MANY_ITEMS_MAX + 1))),
    ):
        with pytest.raises(ProtocolError, match="ADD_MANY"):
            m.decode_add_many_items(number, wrong)


def test_one_lac_that_cannot_be_refuses_them_all() -> None:
    """H165: nothing of a common frame is taken before all of it is looked at."""
    with pytest.raises(ProtocolError, match="-2 on stream 5"):
        m.decode_lacs(m.encode_lacs({4: 7, 5: -2}.items()))
    with pytest.raises(ProtocolError, match="whole pairs"):
        m.decode_lacs(m.encode_lacs({4: 7}.items())[:-1])
