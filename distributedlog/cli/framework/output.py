"""Output for people and programs: tables, JSON, sizes with units."""

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

INDENT = 4
"""Of columns that stand below others."""
PROSE_SPACES = 3
"""A last column with so many in a cell has sentences, and is broken between words"""
PROSE_MIN = 24
"""if so many columns are left for them."""


class RateEstimate:
    """How fast something becomes less, and how long the rest will take. Pure."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None

    def told(self, now_s: float, left: int) -> str:
        """In words, such as ``, 12.5 a second, about 40 s more``; "" where nothing has gone yet.

        What becomes more instead is counted from there: an estimate from before says nothing.
        """
        if self._began is None or left > self._began[1]:
            self._began = (now_s, left)
        began_s, first = self._began
        if left == first or now_s <= began_s:
            return ""
        rate = (first - left) / (now_s - began_s)
        return f", {rate:,.1f} a second, about {math.ceil(left / rate):,} s more"


def emit(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    empty: str = "",
    spare: Sequence[str] = (),
) -> None:
    """A table for people, as wide as their terminal; where it goes to no terminal, a line a row.

    ``spare``: columns that are left out, in this order, before a row takes two lines.
    """
    if not rows:
        if empty:
            print(empty)
        return
    texts = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    width = terminal_width()
    for name in spare:
        if width is None or _sum(_widths(texts)) <= width:
            break
        at = texts[0].index(name)
        texts = [[*row[:at], *row[at + 1 :]] for row in texts]
    print("\n".join(laid_out(texts, width)))


def spare_ids(names: Sequence[object]) -> Sequence[str]:
    """For ``spare`` of `table` with columns ``name`` and ``id``: of two with one name ids say which."""
    return ("id",) if len(set(names)) == len(names) else ()


def prose(text: str, *, hang: int = 0) -> None:
    """Sentences, broken between words where a terminal ends; what goes to none is one line.

    ``hang``: the column at which they go on.
    """
    print("\n".join(map(visible, broken(text, terminal_width(), hang=hang))))


def broken(text: str, width: int | None, *, hang: int = 0) -> list[str]:
    """The lines of a sentence; one line where it fits, or where ``width`` is None."""
    if width is None or len(text) <= width:
        return [text]
    return textwrap.wrap(
        text, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False
    )


def terminal_width(stream: TextIO | None = None) -> int | None:
    """In columns; None where what is printed goes to no terminal, and nobody has said COLUMNS.

    ``stream``: where it goes (default: stdout).
    """
    told = (stream or sys.stdout).isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if told else None


def laid_out(texts: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The lines of a table, heads first, columns two spaces apart; no cell is cut: half an id is no use.

    Where ``width`` is less than a row wants, columns that say nothing go, sentences in the last one are
    broken, and else columns stand below others, in each row alike.
    """
    widths = _widths(texts)
    if width is not None and _sum(widths) > width:
        full = [at for at in range(len(widths)) if any(row[at] != "-" for row in texts[1:])]
        texts = [[row[at] for at in full] for row in texts]
        widths = _widths(texts)
    if width is None or not widths or _sum(widths) <= width:
        return [_line(row, widths) for row in texts]
    left = width - _sum([*widths[:-1], 0])
    if left >= PROSE_MIN and any(row[-1].count(" ") >= PROSE_SPACES for row in texts[1:]):
        found = []
        for row in texts:
            parts = textwrap.wrap(row[-1], left, break_long_words=False, break_on_hyphens=False)
            found.append(_line([*row[:-1], *parts[:1]], widths))
            found += [" " * (width - left) + part for part in parts[1:]]
        return found
    stacked: list[list[int]] = [[]]
    for at in range(len(widths)):
        room = width - (INDENT if len(stacked) > 1 else 0)
        if stacked[-1] and _sum([widths[one] for one in (*stacked[-1], at)]) > room:
            stacked.append([])
        stacked[-1].append(at)
    found = []
    for row in texts:
        for n, ats in enumerate(stacked):
            line = _line([row[at] for at in ats], [widths[at] for at in ats])
            indent = " " * (INDENT if n else 0)
            if len(ats) == 1 and len(indent + line) > width:
                # A list, such as the bookies of a ledger: between its parts.
                found += textwrap.wrap(
                    line,
                    width,
                    initial_indent=indent,
                    subsequent_indent=" " * INDENT,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            else:
                found.append(indent + line)
    return found


def _widths(texts: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[at]) for row in texts) for at in range(len(texts[0]))]


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()


def rows_or_table(
    as_json: bool, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str
) -> None:
    """The rows: with --json an object a line, named by the columns; else a table."""
    if as_json:
        for row in rows:
            emit(dict(zip(columns, row, strict=True)))
    else:
        table(columns, rows, empty=empty)


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


def plural(count: int, one: str, many: str = "") -> str:
    """Return ``1 ledger`` or ``2,000 ledgers``; without ``many`` an s is appended to ``one``."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
