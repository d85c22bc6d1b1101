"""Damage to the files of a node that is down: flipped bits, overwritten stretches, cut tails, lost files.

And rot that no copy survives: a bit of the same bytes, on all nodes.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from ..model.scenario import Fault

TRIES = 50
MARKS = 1000
"""Places that are looked at for a mark: most of a preallocated file is empty."""
SPARE = ("LOCK", "chaos-filler")
"""Files without data."""
MARK_BYTES = 256
"""Of one copy, looked for in the others: more than a record of 100 bytes, so that it is there once."""
DIFFERENT_MIN = 24
"""Different bytes of a mark: fillings of one byte are everywhere."""


def damage(directory: Path, fault: Fault, rng: Random) -> str:
    """Do what the fault says to files below ``directory``; what was done, in words.

    Bits are flipped where there are bytes other than zero: preallocated space holds nothing to lose.
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
    """Flip a bit of the same bytes wherever they are below all these directories; what was done, in words."""
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
    """Where these files have the bytes, each file once."""
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
    """An offset where a byte other than zero is; None: none was met."""
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
