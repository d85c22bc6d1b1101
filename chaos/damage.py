"""Damage to the files of a node that is down: flipped bits, overwritten stretches, cut tails, lost files."""

from pathlib import Path
from random import Random

from .scenario import Fault

TRIES = 50
SPARE = ("LOCK", "chaos-filler")
"""Files without data."""


def damage(directory: Path, fault: Fault, chance: Random) -> str:
    """Do what the fault says to files below ``directory``; what was done, in words.

    Bits are flipped where there are bytes other than zero: preallocated space holds nothing to lose.
    """
    files = [
        path
        for path in sorted(directory.glob(fault.files))
        if path.is_file() and path.name not in SPARE and path.stat().st_size > 0
    ]
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


def _flip(path: Path, chance: Random) -> bool:
    place = _written_place(path, chance)
    if place is None:
        return False
    with path.open("r+b") as file:
        file.seek(place)
        value = file.read(1)[0]
        file.seek(place)
        file.write(bytes([value ^ (1 << chance.randrange(8))]))
    return True


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
