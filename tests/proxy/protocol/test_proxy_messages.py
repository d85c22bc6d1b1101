"""Frames between clients and proxies: what goes in comes out, and what was changed on its way does not."""

import struct
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.format.record import RECORD_BYTES_MAX
from distributedlog.log.format.record_headers import (
    HEADERS_MAX,
    KEY_BYTES_MAX,
    KeyedContent,
    split_contents,
)
from distributedlog.proxy.membership.rendezvous_hash import rank_proxies
from distributedlog.proxy.protocol import proxy_messages as wire
from distributedlog.runtime.interfaces.errors import CorruptData, ProtocolError, TooBusy
from distributedlog.runtime.protocol.frames import ENVELOPE_BYTES, Op, envelope
from tests.examples import examples

BODY = ENVELOPE_BYTES


def decoded(frame: bytes) -> wire.ProducedFrame:
    return wire.decode_produce(memoryview(frame)[BODY:])


@settings(max_examples=examples(50))
@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=20),
    st.integers(0, 1 << 40),
    st.booleans(),
    st.booleans(),
    st.none() | st.tuples(st.integers(1, 9), st.integers(-1, 9), st.integers(0, 9)),
)
def test_a_frame_is_read_as_it_was_made(
    payloads: list[bytes],
    first: int,
    own: bool,
    flagged: bool,
    expect: tuple[int, int, int] | None,
) -> None:
    txids = list(range(7, 7 + len(payloads))) if own else None
    flags = bytes(len(payloads)) if flagged else None

    found = decoded(
        wire.encode_produce(
            9, first, first // 2, txids, payloads, record_flags=flags, expect=expect
        )
    )

    assert found.payloads == payloads
    assert (found.first_sequence, found.acked_through) == (first, first // 2)
    assert (None if found.txids is None else list(found.txids)) == txids
    assert (found.record_flags, found.expect) == (flags, expect)


keyed_contents = st.builds(
    KeyedContent,
    st.binary(max_size=9),
    st.binary(max_size=9),
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=3).map(tuple),
)


@settings(max_examples=examples(50))
@given(st.lists(keyed_contents | st.binary(max_size=9), min_size=1, max_size=9), st.booleans())
def test_keys_and_headers_in_a_frame_are_read_as_they_were_sent(
    contents: list[Any], own: bool
) -> None:
    txids = list(range(len(contents))) if own else None

    found = decoded(wire.encode_produce(9, 0, 0, txids, contents, has_keyed=True))

    assert [split_contents([one]) for one in found.payloads] == [
        split_contents([one]) for one in contents
    ]


@pytest.mark.parametrize(
    "content",
    [
        KeyedContent(b"", bytes(KEY_BYTES_MAX + 1), ()),
        KeyedContent(b"", None, ((b"", b""),) * (HEADERS_MAX + 1)),
        KeyedContent(bytes(RECORD_BYTES_MAX), b"k", ()),
    ],
)
def test_keys_and_headers_above_their_limits_end_the_connection(content: Any) -> None:
    frame = wire.encode_produce(9, 0, 0, None, [content], has_keyed=True)

    with pytest.raises(ProtocolError):
        decoded(frame)


def test_a_frame_that_was_changed_on_its_way_is_refused_as_such() -> None:
    """Scenario 31: a wrong digest is error 523, and nothing is stored."""
    for payloads in ([b"a record", b"another"], [b"a record"]):
        frame = bytearray(wire.encode_produce(9, 0, 0, None, payloads))
        for at in range(BODY, len(frame)):
            changed = bytearray(frame)
            changed[at] ^= 1
            with pytest.raises(CorruptData):
                decoded(bytes(changed))


def _sealed(body: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + body


def test_the_frame_of_a_lone_record_is_that_of_many() -> None:
    """It is made and read by a shorter way, byte by byte as `docs/reference/formats.md` says."""
    for payload in (b"", b"x", bytes(1000)):
        frame = wire.encode_produce(9, 5, 2, None, [payload])
        body = struct.pack("<QQIII", 5, 2, 1, 0, len(payload)) + payload
        assert frame == envelope(Op.PRODUCE, 8 + len(body), ident=9) + _sealed(body)
        assert decoded(frame) == (5, 2, None, [payload], None, None, 8 + len(body))


@pytest.mark.parametrize(
    "head",
    [(5, 6, 1, 0, 3), (5, 2, 1, 0, 2), (5, 2, 1, 0, 4), (5, 2, 0, 0, 3), (5, 2, 1, 8, 3),
     (wire.SEQUENCE_MAX, 2, 1, 0, 3), (5, 2, 1, wire.FLAG_TXIDS, 3), (5, 2, 2, 0, 3)],
)  # fmt: skip
def test_what_nearly_is_a_lone_record_is_refused(head: tuple[int, ...]) -> None:
    """By the checks of all other frames."""
    with pytest.raises(ProtocolError):
        wire.decode_produce(memoryview(_sealed(struct.pack("<QQIII", *head) + b"abc")))


def test_payloads_fill_the_frame_exactly() -> None:
    """Ends that descend, or leave bytes over, would cut other records than were sent."""
    frame = wire.encode_produce(9, 0, 0, None, [b"abc", b"de"])
    for ends in ((4, 3), (3, 6), (3, 4)):
        body = bytearray(frame[BODY + 8 :])
        body[24:32] = b"".join(end.to_bytes(4, "little") for end in ends)
        with pytest.raises(ProtocolError):
            wire.decode_produce(memoryview(_sealed(bytes(body))))


def test_a_refusal_says_what_may_be_stored_and_what_is_not() -> None:
    refusal = wire.Refusal(TooBusy("later"), 5, 9, 250)

    found = wire.Refusal.decode(517, refusal.encode_frame(3)[BODY:])

    assert isinstance(found.error, TooBusy)
    assert (found.unknown_from, found.refused_from, found.retry_ms) == (5, 9, 250)


def test_logs_move_only_to_and_from_a_proxy_that_comes_or_goes() -> None:
    """Rendezvous: whoever is not first for a log need not know of it."""
    ids = [f"{n:016x}" for n in range(5)]
    logs = [f"log {n}" for n in range(500)]
    before = {log: rank_proxies("ns", log, ids)[0] for log in logs}

    after = {log: rank_proxies("ns", log, ids[:-1])[0] for log in logs}

    moved = {log for log in logs if before[log] != after[log]}
    assert moved == {log for log in logs if before[log] == ids[-1]}
    assert all(60 < list(before.values()).count(one) < 140 for one in ids)
