"""Damage the files of a stopped node: flip bits, overwrite ranges, cut tails or delete files.

It can also corrupt an entry beyond repair: a bit of the same bytes, on all nodes.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from ..model.scenario import Fault

TRIES = 50
MARKS = 1000
"""How many random samples are tried, because most of a preallocated file is empty."""
SPARE = ("LOCK", "chaos-filler")
"""Files without data."""
MARK_BYTES = 256
"""The size of a sample that is searched in the other copies.

It is longer than a record of 100 bytes, so it is unique.
"""
DIFFERENT_MIN = 24
"""The minimum number of different bytes of a sample. Padding with one byte occurs everywhere."""


def damage(directory: Path, fault: Fault, rng: Random) -> str:
    """Apply the fault to files below a directory, and return a description.

    Bits are flipped only at bytes other than zero, because preallocated space contains no data.
    """
    files = _files(directory, fault)
    if not files:
        return f"there is no file {fault.files} to damage"
    match fault.how:
        case "flip":
            flips_by_file: dict[str, int] = {}
            for _ in range(fault.amount):
                path = rng.choice(files)
                if _flip(path, rng):
                    flips_by_file[path.name] = flips_by_file.get(path.name, 0) + 1
            return "flipped bits: " + (
                ", ".join(f"{n} in {name}" for name, n in flips_by_file.items()) or "0"
            )
        case "tear":
            path = rng.choice(files)
            offset = _written_place(path, rng) or 0
            offset -= offset % 512
            with path.open("r+b") as file:
                file.seek(offset)
                length = min(fault.amount, path.stat().st_size - offset)
                file.write(rng.randbytes(length))
            return f"overwrote {length} bytes of {path.name} at {offset}"
        case "cut":
            path = rng.choice(files)
            size = max(0, path.stat().st_size - fault.amount)
            with path.open("r+b") as file:
                file.truncate(size)
            return f"cut {path.name} to {size} bytes"
        case _:
            path = rng.choice(files)
            path.unlink()
            return f"removed {path.name}"


def rot(directories: Sequence[Path], fault: Fault, rng: Random) -> str:
    """Flip a bit of the same bytes in all copies below these directories, and return a description."""
    copies = [
        [(path, path.read_bytes()) for path in _files(directory, fault)]
        for directory in directories
    ]
    for _ in range(MARKS if copies and copies[0] else 0):
        _, content = rng.choice(copies[0])
        sample_offset = rng.randrange(max(1, len(content) - MARK_BYTES))
        sample = content[sample_offset : sample_offset + MARK_BYTES]
        if len(set(sample)) < DIFFERENT_MIN:
            continue
        matches = [_places(files, sample) for files in copies]
        if all(matches):
            for node_matches in matches:
                for path, match_offset in node_matches:
                    _flip_at(path, match_offset + MARK_BYTES // 2, rng)
            return f"a bit of the same bytes in {sum(map(len, matches))} places of {len(matches)} nodes"
    return f"there are no bytes that all of them have in {fault.files}"


def _files(directory: Path, fault: Fault) -> list[Path]:
    return [
        path
        for path in sorted(directory.glob(fault.files))
        if path.is_file() and path.name not in SPARE and path.stat().st_size > 0
    ]


def _places(files: Sequence[tuple[Path, bytes]], sample: bytes) -> list[tuple[Path, int]]:
    """Return the files with these bytes, and the first offset in each."""
    return [(path, offset) for path, content in files if (offset := content.find(sample)) >= 0]


def _flip(path: Path, rng: Random) -> bool:
    offset = _written_place(path, rng)
    if offset is None:
        return False
    _flip_at(path, offset, rng)
    return True


def _flip_at(path: Path, offset: int, rng: Random) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        value = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([value ^ (1 << rng.randrange(8))]))


def _written_place(path: Path, rng: Random) -> int | None:
    """Return the offset of a byte other than zero; None if none was found."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for _ in range(TRIES):
            start = rng.randrange(size)
            file.seek(start)
            chunk = file.read(4096)
            offset = next((n for n, byte in enumerate(chunk) if byte), None)
            if offset is not None:
                return start + offset
    return None
