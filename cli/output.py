"""What people and programs read: tables, JSON for programs, sizes with units, files that are whole."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def emit(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str = "") -> None:
    """A table for people: columns two spaces apart, no cell cut.

    Where the terminal is narrower it breaks the lines: half of an address or of an id is of no use.
    """
    if not rows:
        if empty:
            print(empty)
        return
    texts = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(columns))]
    for row in texts:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def rows_or_table(
    as_json: bool, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str
) -> None:
    """The rows: with --json an object a line, named by the columns; else a table."""
    if as_json:
        for row in rows:
            emit(dict(zip(columns, row, strict=True)))
    else:
        table(columns, rows, empty=empty)


def write_by_rename(path: Path, text: str) -> None:
    """Whoever sees the file sees all of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    aside.rename(path)


def size(count: float) -> str:
    """Bytes with a unit: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes all")


def visible(text: str) -> str:
    """As a terminal can show it without being moved by it: names, labels and reasons are others' (H265)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return visible(str(cell))
