"""Bytes to records and back (`dlog log write` and `read`)."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.cli.logs.record_formats import (
    FORMATS,
    WRITERS,
    FrameParser,
    JsonLineParser,
    LineParser,
    as_jsonl,
    encodable_count,
    parser,
)
from distributedlog.log.format.record import (
    RECORD_BYTES_MAX,
    Columns,
    Origin,
    build_entry,
    decode_columns,
    decode_header,
)
from distributedlog.log.format.record_headers import split_contents
from distributedlog.runtime.interfaces.errors import InvalidRequest, RecordTooLarge
from tests.examples import examples


def _columns(payloads: list[bytes], origin: Origin) -> Columns:
    """An entry of these payloads, as a reader gives it."""
    buffers, _ = build_entry(range(len(payloads)), payloads, records_before=0, written_ms=0)
    entry = b"".join(buffers)
    return decode_columns(entry, decode_header(entry), origin)


CHUNKS = st.lists(st.binary(max_size=20), max_size=10)


@settings(max_examples=examples(100))
@given(CHUNKS)
def test_lines_are_what_lies_between_newlines_however_the_input_is_cut(chunks: list[bytes]) -> None:
    lines = LineParser()
    found = [line for chunk in chunks for line in lines.feed(chunk)] + lines.finish()

    whole = b"".join(chunks)
    expected = whole.split(b"\n")
    if expected[-1] == b"":
        expected.pop()  # nothing after the last newline, and nothing at all in an empty input
    assert found == expected


@settings(max_examples=examples(100))
@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 7), st.sampled_from(FORMATS))
def test_what_is_written_out_comes_in_again(
    payloads: list[bytes], step: int, format_name: str
) -> None:
    if format_name == "lines":
        payloads = [payload.replace(b"\n", b"") for payload in payloads]
    text = WRITERS[format_name](_columns(payloads, Origin(1, 0, 0))) if payloads else b""

    reader = parser(format_name)
    found = [item for at in range(0, len(text), step) for item in reader.feed(text[at : at + step])]
    found += reader.finish()

    assert reader.error is None
    assert [item if isinstance(item, bytes) else item[1] for item in found] == payloads


def test_an_oversize_line_is_named_and_those_before_it_are_given() -> None:
    lines = LineParser(bytes_max=5)

    assert lines.feed(b"a\nbb\nlong") == [b"a", b"bb"]
    assert lines.feed(b"er than that") == []

    assert isinstance(lines.error, RecordTooLarge)
    assert "line 3" in str(lines.error)
    assert lines.feed(b"\nnext\n") == []


def test_a_line_of_exactly_the_limit_is_taken() -> None:
    lines = LineParser()

    assert lines.feed(b"x" * RECORD_BYTES_MAX + b"\n") == [b"x" * RECORD_BYTES_MAX]
    assert lines.error is None


def test_bad_json_names_its_line() -> None:
    for bad in (
        b"nonsense",
        b"[]",
        b"{}",
        b'{"payload": 1}',
        b'{"payload": "a", "txid": "b"}',
        b'{"payload_base64": "%"}',
    ):
        reader = JsonLineParser()
        found = reader.feed(b'{"payload": "good", "txid": 7}\n' + bad + b"\n")
        assert found == [(7, b"good")]
        assert isinstance(reader.error, InvalidRequest)
        assert "line 2" in str(reader.error)


def test_a_cut_or_oversize_frame_is_named() -> None:
    cut = FrameParser()
    assert cut.feed(b"\x01\0\0\0a\x05\0\0\0ab") == [b"a"]
    assert cut.finish() == []
    assert "within frame 2" in str(cut.error)

    for length in (RECORD_BYTES_MAX + 1, 0xFFFFFFFF):
        oversize = FrameParser()
        assert oversize.feed(length.to_bytes(4, "little")) == []
        assert isinstance(oversize.error, RecordTooLarge)
    largest = FrameParser()
    assert largest.feed(RECORD_BYTES_MAX.to_bytes(4, "little")) == []
    assert largest.error is None


def test_bytes_that_are_no_text_are_base64_in_json() -> None:
    text = WRITERS["jsonl"](_columns([b"", b"\xff"], Origin(2, 3, 100)).cut(1, 2))

    assert json.loads(text) == {
        "dlsn": "2.3.1",
        "txid": 1,
        "sequence_id": 101,
        "payload_base64": "/w==",
    }


def test_json_that_is_nested_too_deep_is_the_fault_of_its_line() -> None:
    lines = JsonLineParser()

    found = lines.feed(b'{"payload": "a"}\n' + b"[" * 100_000 + b"\n")

    assert [payload for _, payload in found] == [b"a"]
    assert isinstance(lines.error, InvalidRequest)
    assert str(lines.error) == "line 2: it is nested too deeply; the lines before it are stored"


def test_keys_and_headers_that_are_written_as_json_come_in_again() -> None:
    pairs = ((b"name", b"value"), (b"\xff", b"\x00\xfe"), (b"name", b""))
    entry, _ = build_entry(
        [7, 8, 9], [b"a", b"\xff", b"c"], records_before=0, written_ms=1,
        keys=[b"key", b"\xff", None], headers=[pairs, (), ()],
    )  # fmt: skip
    body = b"".join(entry)
    lines = as_jsonl(decode_columns(body, decode_header(body), Origin(1, 0, 0)))

    records = JsonLineParser().feed(lines)

    assert b'"headers": [{"name": "name", "value": "value"}' in lines
    assert [txid for txid, _ in records] == [7, 8, 9]
    assert split_contents([content for _, content in records]) == (
        [b"a", b"\xff", b"c"], [b"key", b"\xff", None], [pairs, (), ()],
    )  # fmt: skip


def test_formats_of_payloads_end_before_a_record_with_a_key_or_headers() -> None:
    entry, _ = build_entry(
        [7, 8, 9], [b"a", b"b", b"c"], records_before=0, written_ms=1, keys=[None, b"", None]
    )
    body = b"".join(entry)
    columns = decode_columns(body, decode_header(body), Origin(1, 0, 0))

    assert [encodable_count(name, columns) for name in ("lines", "frames", "jsonl")] == [1, 1, 3]
    assert encodable_count("lines", columns.cut(2, 3)) == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"payload": "", "key": 5}',
        b'{"payload": "", "key_base64": "?"}',
        b'{"payload": "", "headers": {"a": "b"}}',
        b'{"payload": "", "headers": [["a", "b"]]}',
        b'{"payload": "", "headers": [{"name": "a"}]}',
        b'{"payload": "", "headers": [%s]}' % b", ".join([b'{"name": "a", "value": ""}'] * 65),
        b'{"payload": "", "key": "%s"}' % bytes(65_537).replace(b"\0", b"k"),
    ],
)
def test_a_line_with_a_wrong_key_or_headers_is_refused(line: bytes) -> None:
    parser = JsonLineParser()

    assert parser.feed(b'{"payload": "before"}\n' + line + b"\n") == [(None, b"before")]
    assert "line 2" in str(parser.error)
