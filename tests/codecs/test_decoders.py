"""What comes from a peer, a disk or the store becomes a bounded value or one class of error, whatever it is.

Deterministic: the same cases at each run. More, and by chance:

    python -m tests.codecs.campaign --minutes 10
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts import files_of, shown

from . import mutations
from .registry import CODECS, EXEMPT, Codec

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("runtime", "metadata", "bookie", "ledger", "log", "proxy", "cluster", "cli", "spark")
TAKES_APART = {
    "unpack", "unpackb", "unpack_from", "iter_unpack", "loads",
    "decode_stored", "decode_versioned", "decode_message", "check_stored", "decode_fields",
    "format_and_fields", "decompress",
}  # fmt: skip
"""Calls by which bytes, or what msgpack and JSON made of them, are taken apart."""
ERROR_CHARS_MAX = 1000


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_sound_samples_are_read(codec: Codec) -> None:
    for sample in codec.samples:
        if not codec.name.startswith("any record"):
            codec.decode(codec.seal(sample))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_decoder_raises_what_it_says_and_nothing_else(codec: Codec) -> None:
    """Depth 1 to 1,000, every type in every field, numbers beyond 64 bits, cuts, flips."""
    cases = 0
    for body in cases_of(codec):
        check(codec, body)
        cases += 1
    assert cases >= 40


def test_every_decoder_of_the_tree_is_here() -> None:
    """A function that takes bytes apart is registered, or it is said why it need not be."""
    covered = {name for codec in CODECS for name in codec.covers}
    found = set(decoders())

    assert found - covered - set(EXEMPT) == set()
    assert covered - found == set(), "these are no decoders any more"
    assert set(EXEMPT) - found == set(), "these need no excuse any more"


def cases_of(codec: Codec) -> Iterator[bytes]:
    for sample in codec.samples:
        if codec.kind == "msgpack":
            yield from mutations.of_msgpack(sample)
        elif codec.kind == "marked":
            yield from mutations.of_msgpack(sample, prefix=1)
        elif codec.kind == "json":
            yield from mutations.of_json(sample)
        yield from mutations.of_bytes(sample)


def check(codec: Codec, body: bytes) -> None:
    """Decode one hostile body. What is accepted can be shown, so it is not deep."""
    try:
        repr(codec.decode(codec.seal(body)))
    except codec.errors as error:
        shown = str(error)
        if len(shown) >= ERROR_CHARS_MAX:
            raise AssertionError(f"{codec.name} shows what came in: {shown[:200]}") from None
    except Exception as error:
        raise AssertionError(f"{codec.name}: {body[:200].hex()}: {type(error)}") from error


def decoders() -> Iterator[str]:
    """``path function`` of all that take bytes apart."""
    for part in PARTS:
        for path in files_of(part):
            if shown(path) != "distributedlog/spark/read/table_schema.py":
                yield from _in(shown(path), ast.parse(path.read_text()), [])


def _in(path: str, node: ast.AST, names: list[str]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _in(path, child, [*names, child.name])
        elif names and any(_takes_apart(one) for one in ast.walk(child)):
            yield f"{path} {'.'.join(names)}"


def _takes_apart(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in TAKES_APART
