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


def damage(directory: Path, fault: Fault, chance: Random) -> str:
    """Do what the fault says to files below ``directory``; what was done, in words.

    Bits are flipped where there are bytes other than zero: preallocated space holds nothing to lose.
    """
    files = _files(directory, fault)
    if not files:
        return f"there is no file {fault.files} to damage"
    match fault.how:
        case "flip":
            hit: dict[str, int] = {}
            for _ in range(fault.amount):
                path = chance.choice(files)
                if _flip(path, chance):
                    hit[path.name] = hit.get(path.name, 0) + 1
            return "flipped bits: " + (
                ", ".join(f"{n} in {name}" for name, n in hit.items()) or "0"
            )
        case "tear":
            path = chance.choice(files)
            place = _written_place(path, chance) or 0
            place -= place % 512
            with path.open("r+b") as file:
                file.seek(place)
                length = min(fault.amount, path.stat().st_size - place)
                file.write(chance.randbytes(length))
            return f"overwrote {length} bytes of {path.name} at {place}"
        case "cut":
            path = chance.choice(files)
            size = max(0, path.stat().st_size - fault.amount)
            with path.open("r+b") as file:
                file.truncate(size)
            return f"cut {path.name} to {size} bytes"
        case _:
            path = chance.choice(files)
            path.unlink()
            return f"removed {path.name}"


def rot(directories: Sequence[Path], fault: Fault, chance: Random) -> str:
    """Flip a bit of the same bytes wherever they are below all these directories; what was done, in words."""
    copies = [
        [(path, path.read_bytes()) for path in _files(directory, fault)]
        for directory in directories
    ]
    for _ in range(MARKS if copies and copies[0] else 0):
        _, content = chance.choice(copies[0])
        at = chance.randrange(max(1, len(content) - MARK_BYTES))
        mark = content[at : at + MARK_BYTES]
        if len(set(mark)) < DIFFERENT_MIN:
            continue
        found = [_places(files, mark) for files in copies]
        if all(found):
            for places in found:
                for path, place in places:
                    _flip_at(path, place + MARK_BYTES // 2, chance)
            return f"a bit of the same bytes in {sum(map(len, found))} places of {len(found)} nodes"
    return f"there are no bytes that all of them have in {fault.files}"


def _files(directory: Path, fault: Fault) -> list[Path]:
    return [
        path
        for path in sorted(directory.glob(fault.files))
        if path.is_file() and path.name not in SPARE and path.stat().st_size > 0
    ]


def _places(files: Sequence[tuple[Path, bytes]], mark: bytes) -> list[tuple[Path, int]]:
    """Where these files have the bytes, each file once."""
    return [(path, at) for path, content in files if (at := content.find(mark)) >= 0]


def _flip(path: Path, chance: Random) -> bool:
    place = _written_place(path, chance)
    if place is None:
        return False
    _flip_at(path, place, chance)
    return True


def _flip_at(path: Path, place: int, chance: Random) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        value = file.read(1)[0]
        file.seek(place)
        file.write(bytes([value ^ (1 << chance.randrange(8))]))


def _written_place(path: Path, chance: Random) -> int | None:
    """An offset where a byte other than zero is; None: none was met."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for _ in range(TRIES):
            start = chance.randrange(size)
            file.seek(start)
            stretch = file.read(4096)
            offset = next((n for n, byte in enumerate(stretch) if byte), None)
            if offset is not None:
                return start + offset
    return None
