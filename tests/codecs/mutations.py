"""Hostile neighbours of a sound value: every field of it replaced, cut, doubled; every byte flipped.

In order and without chance, but for `random_ones`. Depth is given as bytes, for a packer goes no deeper than
500 itself: a marker is packed in the place, and the bytes put where it stands.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

MARK = "HERE-HERE-HERE"
PACKED_MARK = msgpack.packb(MARK)

HOSTILE = [
    *(b"\xc0", b"\xc2", b"\xc3", b"\x00", b"\x01", b"\xff"),  # None, False, True, 0, 1, -1
    *(
        b"\xce\x80\x00\x00\x00",
        b"\xcf\x7f" + b"\xff" * 7,
        b"\xcf\x80" + bytes(7),
    ),  # 2^31, 2^63-1, 2^63
    *(b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7)),  # 2^64-1, -2^63
    *(b"\xcb\x7f\xf8" + bytes(6), b"\xcb\x7f\xf0" + bytes(6), b"\xcb\x3f\xf8" + bytes(6)),  # floats
    *(
        b"\xa0",
        b"\xa2\xc2\xb2",
        b"\xa3a\x00b",
        b"\xa2\xff\xfe",
        b"\xda\x13\x88" + b"x" * 5000,
    ),  # texts
    *(b"\xa3a/b", b"\xa10", b"\xa5[::1]", b"\xa4put\x00"),
    *(b"\xc4\x00", b"\xc4\x03\xff\x00\xfe", b"\xc4\x10" + bytes(16), b"\xc5\x13\x88" + bytes(5000)),
    *(
        b"\x90",
        b"\x91\x90",
        b"\x93\x01\x02\x03",
        b"\x92\xa1a\xa1b",
        b"\xdc\x00\x64" + b"\x01" * 100,
    ),
    *(b"\x80", b"\x81\xa1a\x01", b"\x81\x01\x01", b"\x81\xc4\x01a\x01", b"\x82\xa1a\x01\xa1a\x02"),
    *(b"\x91" * depth + b"\xc0" for depth in (3, 200, 600, 1000)),
    *(b"\x81\xa1a" * depth + b"\xc0" for depth in (3, 600, 1000)),
    *(
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc7\x00\x05",
        b"\xc1",
    ),
    b"\xd6\xff\x00\x00\x00\x00",  # a time stamp
]
"""msgpack of what a field is not."""

HOSTILE_JSON = [
    *(
        "null",
        "true",
        "false",
        "0",
        "-1",
        str(2**64),
        "1e400",
        "NaN",
        "1.5",
        '""',
        '"\\u0000"',
        '"²"',
    ),
    *('"' + "x" * 5000 + '"', "[]", "{}", "[[]]", '{"a": 1}', "[" * 990 + "]" * 990),
    *("[" * 50_000 + "]" * 50_000, '{"a":' * 900 + "1" + "}" * 900),
]

Tree = Any


def of_msgpack(sample: bytes, prefix: int = 0) -> Iterator[bytes]:
    """Each field of a packed value replaced by each hostile one, left out, and doubled."""
    head, tree = sample[:prefix], msgpack.unpackb(sample[prefix:], strict_map_key=False)
    for marked in _marked(tree):
        packed = msgpack.packb(marked)
        for hostile in HOSTILE:
            yield head + packed.replace(PACKED_MARK, hostile, 1)
    for other in _reshaped(tree):
        yield head + msgpack.packb(other)


def of_json(sample: bytes) -> Iterator[bytes]:
    """The same for JSON."""
    tree = json.loads(sample)
    for marked in _marked(tree):
        text = json.dumps(marked)
        for hostile in HOSTILE_JSON:
            yield text.replace(json.dumps(MARK), hostile, 1).encode()
    for other in _reshaped(tree):
        yield json.dumps(other).encode()


def of_bytes(sample: bytes) -> Iterator[bytes]:
    """Every cut, every flipped byte of the first kilobyte, some bytes more."""
    for end in range(min(len(sample), 1024)):
        yield sample[:end]
    for place in range(min(len(sample), 1024)):
        for flip in (0x01, 0x80, 0xFF):
            yield sample[:place] + bytes([sample[place] ^ flip]) + sample[place + 1 :]
    for more in (b"\x00", b"\xff" * 7, b"\x91" * 900, sample):
        yield sample + more
        yield more + sample
    yield from (bytes(size) for size in (1, 8, 16, 24, 48, 56, 64, 4096))
    yield from (b"\xff" * size for size in (1, 8, 16, 24, 48, 56, 64, 4096))


def random_ones(samples: list[bytes], chance: random.Random) -> Iterator[bytes]:
    """For ever: several bytes of a sample changed, hostile values put in, stretches moved."""
    while True:
        body = bytearray(chance.choice(samples))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(body) + 1)
            kind = chance.randrange(4)
            if kind == 0 and at < len(body):
                body[at] = chance.randrange(256)
            elif kind == 1:
                body[at:at] = chance.choice(HOSTILE)
            elif kind == 2:
                del body[at : at + chance.randint(1, 9)]
            else:
                other = chance.choice(samples)
                start = chance.randrange(len(other) + 1)
                body[at : at + chance.randint(0, 9)] = other[start : start + chance.randint(1, 40)]
        yield bytes(body)


def _marked(tree: Tree) -> Iterator[Tree]:
    """The tree with the mark in the place of each of its parts, the whole and the names included."""
    yield MARK
    if isinstance(tree, list):
        for place, part in enumerate(tree):
            for marked in _marked(part):
                yield [*tree[:place], marked, *tree[place + 1 :]]
    elif isinstance(tree, dict):
        for name, part in tree.items():
            for marked in _marked(part):
                yield {**tree, name: marked}
            yield {(MARK if other == name else other): value for other, value in tree.items()}


def _reshaped(tree: Tree) -> Iterator[Tree]:
    """The tree with a part of a list or map left out, or doubled, or one more at the end."""
    if isinstance(tree, list):
        yield [*tree, None]
        yield [*tree, *tree]
        for place, part in enumerate(tree):
            yield [*tree[:place], *tree[place + 1 :]]
            for other in _reshaped(part):
                yield [*tree[:place], other, *tree[place + 1 :]]
    elif isinstance(tree, dict):
        yield {**tree, "another": 1}
        for name, part in tree.items():
            yield {other: value for other, value in tree.items() if other != name}
            for other in _reshaped(part):
                yield {**tree, name: other}


Mutate = Callable[[bytes], Iterator[bytes]]
