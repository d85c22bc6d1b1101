"""Raft messages and their bytes: what goes in comes out, anything else is a `ProtocolError`."""

import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.metadata.raft import raft_messages as m
from distributedlog.runtime.interfaces.errors import ProtocolError
from tests.examples import examples

EXAMPLES: list[m.WireMessage] = [
    m.PreVote(3, "n1", 7, 2),
    m.PreVoteReply(3, "n1", True),
    m.Vote(3, "n1", 7, 2, True),
    m.VoteReply(3, "n1", False),
    m.AppendRequest(3, "n1", 7, 2, 6, (m.Entry(8, 2, b"x" * 100), m.Entry(9, 3, b""))),
    m.AppendRequest(3, "n1", 0, 0, 0, ()),
    m.AppendReply(3, "n1", False, 7, 5, 2),
    m.Heartbeat(3, "n1", 6, 41),
    m.HeartbeatReply(3, "n1", 41),
    m.TimeoutNow(3, "n1"),
    m.SnapshotChunk(3, "n1", 100, 2, 1 << 20, 5 << 20, b"chunk"),
    m.SnapshotChunkReply(3, "n1", 100, 2, (1 << 20) + 5),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: m.WireMessage) -> None:
    assert m.decode(m.encode(message)) == message
    assert m.decode(memoryview(bytearray(m.encode(message)))) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_each_field_is_checked(message: m.WireMessage) -> None:
    """Reliability reference: fuzz every request schema; only typed errors."""
    wire = msgpack.unpackb(m.encode(message))
    for place in range(len(wire)):
        bad: Any
        for bad in (None, -1, 1 << 63, "", b"", 1.5, [], {}, [[1]], True, "x" * 300):
            broken: list[Any] = [*wire]
            broken[place] = bad
            try:
                decoded = m.decode(msgpack.packb(broken))
            except ProtocolError:
                continue
            field = dataclasses.fields(decoded)[place - 1]
            assert type(getattr(decoded, field.name)).__name__ in str(field.type)


@pytest.mark.parametrize(
    "value",
    [
        [],
        [5],
        [99, 1, "n"],
        ["x"],
        {"term": 1},
        7,
        [3, 1, "n", 5, 2, False],  # a candidate whose last term is above its own
        [5, 3, "n", 0, 1, 0, [], 1],  # a term where no entry is
        [5, 3, "n", 4, 2, 0, [[4, b""]], 1],  # an entry above its leader's term
        [5, 3, "n", 4, 2, 0, [[1, b""]], 1],  # terms that fall
        [5, 3, "n", 4, 2, 0, [[0, b""]], 1],
        [5, 3, "n", 4, 2, 0, [[3, "text"]], 1],
        [5, 3, "n", 4, 2, 0, [[3, b"", 1]], 1],
        [5, 3, "n", 4, 2, 0, [[3, b""]] * 5000, 1],
        [10, 3, "n", 9, 1, 10, 12, b"123"],  # bytes beyond the announced total
    ],
    ids=repr,
)
def test_what_no_honest_peer_sends_is_refused(value: Any) -> None:
    with pytest.raises(ProtocolError):
        m.decode(msgpack.packb(value))


@settings(max_examples=examples(100))
@given(st.binary(max_size=60))
def test_any_bytes_give_a_message_or_a_protocol_error(body: bytes) -> None:
    try:
        message = m.decode(body)
    except ProtocolError:
        return
    assert m.decode(m.encode(message)) == message
