"""Frame bodies between clients and metadata nodes."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.metadata.model.command_results import CommandResult
from distributedlog.metadata.model.interface import MemberStatus, RangePage, WatchBatch, WatchEvent
from distributedlog.metadata.model.transaction import KeyValue
from distributedlog.metadata.protocol import client_messages as wire
from distributedlog.runtime.declarations.health_conditions import Code, condition
from distributedlog.runtime.interfaces.errors import CorruptData, ProtocolError
from distributedlog.runtime.protocol.frames import pack
from tests.examples import examples

LOW = condition(Code.METADATA_DISK_LOW, free_bytes=1, needed_bytes=2, log_full=0, snapshot_failed=1)
ITEM = KeyValue(b"k", b"v", 1, 2, 3, 4)


def test_what_is_asked_and_answered_comes_back_from_its_bytes() -> None:
    page = RangePage((ITEM, ITEM), 7, True)
    batch = WatchBatch(9, (WatchEvent("put", ITEM), WatchEvent("delete", ITEM)))
    row = wire.MemberStatusRow(
        MemberStatus("m1", "h:1", "damaged", 2, 3, True, "id", (LOW,), "its log"), {"": "h:1"}
    )
    requests = [wire.RangeRequest(b"k", None), wire.RangeRequest(b"a", b"b", 5)]
    watch = wire.WatchRequest(b"a", b"b", 5)

    assert wire.decode_item(wire.encode_item(5, 6, ITEM)) == (5, ITEM)
    assert wire.decode_item(wire.encode_item(5, 6, None)) == (5, None)
    assert wire.decode_page(wire.encode_page(5, page)) == (5, page)
    assert wire.decode_events(wire.encode_events(batch)) == batch
    assert wire.decode_rows(wire.encode_rows([row])) == [row]
    assert wire.decode_outcome(wire.encode_outcome(5, CommandResult(lease=6))) == (
        5,
        CommandResult(lease=6),
    )
    assert [wire.RangeRequest.decode(request.encode()) for request in requests] == requests
    assert wire.WatchRequest.decode(watch.encode()) == watch


def test_a_page_that_says_more_names_a_key_to_go_on_from() -> None:
    with pytest.raises(ProtocolError, match="to continue from"):
        wire.decode_page(wire.encode_page(5, RangePage((), 7, True)))
    assert wire.decode_page(wire.encode_page(5, RangePage((), 7, False)))[1].items == ()


DECODERS: list[Callable[[bytes], object]] = [
    wire.RangeRequest.decode,
    wire.WatchRequest.decode,
    wire.decode_item,
    wire.decode_page,
    wire.decode_outcome,
    wire.decode_lease,
    wire.decode_events,
    wire.decode_rows,
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-9, 2**64 - 1)
    | st.floats()
    | st.binary(max_size=3)
    | st.sampled_from(["get", "range", "put", "delete", "renew"])
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=8) | st.dictionaries(st.binary(max_size=2), inner, max_size=2)
    ),
    max_leaves=14,
)


@pytest.mark.properties
@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__qualname__)
@settings(max_examples=examples(60))
@given(st.one_of(st.binary(max_size=32), JUNK.map(pack)))
def test_no_bytes_of_a_peer_end_a_node(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decode(data)
    except (ProtocolError, CorruptData):
        return


def test_a_deep_list_or_an_infinite_number_is_refused() -> None:
    deep: object = 1
    for _ in range(900):
        deep = [deep]
    for value in (deep, float("inf")):
        with pytest.raises(ProtocolError):
            wire.decode_rows(pack([[value, "h:1", "leader", value, 0, True, "id", {}]]))
        with pytest.raises(ProtocolError):
            wire.decode_item(pack([value, 1, [b"k", b"v", 1, value, 1, 0]]))


@pytest.mark.parametrize(
    ("sent", "role"),
    [
        ("waiting, empty", ("empty", "")),
        ("leader", ("leader", "")),
        ("leader: steps down", ("leader", "steps down")),
        ("waiting", ("unreachable", "waiting")),
    ],
)
def test_a_role_of_a_version_without_codes_is_read(sent: str, role: tuple[str, str]) -> None:
    assert wire._role_of(sent) == role
