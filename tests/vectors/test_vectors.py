"""The formats for clients keep their bytes, and docs/reference/formats.md is enough to read them.

If a test fails because bytes differ, do not write the vectors again. Programs in other languages, stored data
and nodes of other versions depend on these bytes. Undo the change of bytes, or introduce a new version of the
format by the rules of the page: a version number, a flag or a feature, which older programs refuse or ignore.
Then add vectors of the new version. Keep the vectors of the old version while programs read it.

New vectors, and values of a format that was never released, are written by
``python -m tools.make_test_vectors``.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog.bookie.format.entry import verify_record
from distributedlog.cluster.declarations.options import READ_PROXY
from distributedlog.log.format.record import decode_columns, decode_header
from distributedlog.proxy.protocol.proxy_messages import decode_produce
from distributedlog.proxy.protocol.read_messages import SegmentHead
from distributedlog.runtime.disk.checksummed_blocks import block_at
from distributedlog.runtime.interfaces.errors import CorruptData, ProtocolError, UnsupportedFormat
from distributedlog.runtime.interfaces.host import Address
from distributedlog.runtime.protocol.frames import ENVELOPE_BYTES
from tests.proxy.proxy_world import world
from tests.vectors import independent_decoder
from tests.vectors.wire_client import connected
from tools.make_test_vectors import BYTES_FILE, INDEX_FILE, VectorFile, encode_index, make_vectors

FOLDER = Path(__file__).resolve().parent
ROWS: list[dict[str, Any]] = json.loads((FOLDER / INDEX_FILE).read_text())
DATA = (FOLDER / BYTES_FILE).read_bytes()
PLACE = ("offset", "size")
DECODER_LINES_MAX = 200
BYTES_MAX = 200_000
WITH_DIGEST = (
    "entry record",
    "entries",
    "block",
    "produce one record",
    "produce with keys and headers",
    "produce with all columns",
)
VALID = [row for row in ROWS if not row.get("error")]
REFUSED = [row for row in ROWS if row.get("error")]


def decoded(row: dict[str, Any], data: bytes) -> Any:
    """Return the value of a vector as the independent decoder reads it, with the types of JSON."""
    named = {"name", "format", "value", "error", *PLACE}
    inputs = {name: value for name, value in row.items() if name not in named}
    value = independent_decoder.decode(row["format"], data, **inputs)
    return json.loads(json.dumps(value, default=bytes.hex))


def decode_by_project(row: dict[str, Any], data: bytes) -> None:
    """Decode a PRODUCE, an entry record, a log entry or a block with the codecs of the project."""
    match row["format"]:
        case "frame":
            decode_produce(memoryview(data)[ENVELOPE_BYTES:])
        case "entry_record":
            verify_record(data)
        case "log_entry":
            header, head = decode_header(data), SegmentHead(**row["segment"])
            decode_columns(data, header, head.origin(row["entry"] - head.base_entry, header))
        case "block":
            place = (row["seed"], 0, row["file_offset"])
            if block_at(row["file_number"], memoryview(data), *place) is None:
                raise CorruptData("not a block of this place")


def vector_bytes(row: dict[str, Any], data: bytes) -> bytes:
    return data[row["offset"] : row["offset"] + row["size"]]


def is_compressed(row: dict[str, Any]) -> bool:
    return str(row["name"]).startswith("compressed")


@pytest.fixture(scope="module")
def made() -> VectorFile:
    return make_vectors()


def test_vectors_keep_their_bytes(made: VectorFile) -> None:
    """Versions of a compression package may compress differently. Their entries must only have equal values.

    See the docstring of this module before you change any byte.
    """
    assert [row["name"] for row in made.rows] == [row["name"] for row in ROWS]
    for new, old in zip(made.rows, ROWS, strict=True):
        if is_compressed(old):
            assert decoded(new, vector_bytes(new, bytes(made.data))) == old["value"], old["name"]
            new, old = ({k: v for k, v in row.items() if k not in PLACE} for row in (new, old))
        else:
            new_bytes = vector_bytes(new, bytes(made.data))
            assert new_bytes.hex() == vector_bytes(old, DATA).hex(), old["name"]
            assert new["size"] == old["size"]
        assert new | {"offset": 0} == old | {"offset": 0}, old["name"]


def test_vector_files_are_complete_and_small() -> None:
    """The rows cover all bytes, in order."""
    ends = [0, *(row["offset"] + row["size"] for row in ROWS)]
    assert [row["offset"] for row in ROWS] == ends[:-1]
    assert ends[-1] == len(DATA)
    index = (FOLDER / INDEX_FILE).read_text()
    assert index == encode_index(VectorFile(ROWS))
    assert len(index) + len(DATA) < BYTES_MAX


@pytest.mark.parametrize("row", VALID, ids=lambda row: row["name"])
def test_independent_decoder_reads_each_vector(row: dict[str, Any]) -> None:
    assert decoded(row, vector_bytes(row, DATA)) == row["value"]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["name"])
def test_both_decoders_refuse_each_vector_with_an_error(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        decoded(row, vector_bytes(row, DATA))
    with pytest.raises((CorruptData, ProtocolError, UnsupportedFormat)):
        decode_by_project(row, vector_bytes(row, DATA))


@pytest.mark.parametrize("name", WITH_DIGEST)
def test_independent_decoder_refuses_a_changed_byte(name: str) -> None:
    """The vectors with a digest show what it covers."""
    (row,) = (row for row in ROWS if row["name"] == name)
    changed = bytearray(vector_bytes(row, DATA))
    payload_byte = changed.index(b"1,2,") if row["format"] == "block" else len(changed) - 1
    changed[payload_byte] ^= 1
    with pytest.raises(ValueError, match=r"digest|record"):
        decoded(row, bytes(changed))


def test_independent_decoder_is_short_and_imports_nothing_of_the_project() -> None:
    source = (FOLDER / "independent_decoder.py").read_text()
    assert source.count("\n") <= DECODER_LINES_MAX
    for name in ("independent_decoder.py", "wire_client.py"):
        imports = [line for line in (FOLDER / name).read_text().splitlines() if "import " in line]
        assert not [line for line in imports if "distributedlog" in line], name


def append_and_read(
    write_proxy: Address, read_proxy: Address
) -> tuple[list[Any], dict[str, int], list[dict[str, Any]]]:
    with connected(*write_proxy) as client:
        members = client.members()
    with connected(*write_proxy) as writer:
        assert writer.hello["kind"] == "write-proxy"
        ack = writer.append("orders", b"from another language")
    with connected(*read_proxy) as reader:
        assert reader.hello["kind"] == "read-proxy"
        return members, ack, reader.read("orders")


async def test_record_is_appended_and_read_through_real_proxies() -> None:
    """Handshake, append and read, with the independent decoder and a socket."""
    async with world() as cluster:
        write_proxy = await cluster.proxy("writer")
        read_proxy = await cluster.proxy("reader", READ_PROXY)
        members, ack, records = await trio.to_thread.run_sync(
            append_and_read, write_proxy.address, read_proxy.address
        )
    assert ["write", write_proxy.node_id, *write_proxy.address, True] in members
    (record,) = records
    assert record["payload"] == b"from another language"
    assert record["dlsn"] == [ack["segment"], ack["entry"], ack["slot"]]
    assert (record["txid"], record["sequence_id"]) == (ack["txid"], 0)
