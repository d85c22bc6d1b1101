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
        self._start: tuple[float, int] | None = None

    def describe(self, now_s: float, remaining: int) -> str:
        """In words, such as ``, 12.5 a second, about 40 s more``; "" where nothing has gone yet.

        What becomes more instead is counted from there: an estimate from before says nothing.
        """
        if self._start is None or remaining > self._start[1]:
            self._start = (now_s, remaining)
        began_s, first_remaining = self._start
        if remaining == first_remaining or now_s <= began_s:
            return ""
        rate = (first_remaining - remaining) / (now_s - began_s)
        return f", {rate:,.1f} a second, about {math.ceil(remaining / rate):,} s more"


def emit(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    empty: str = "",
    optional_columns: Sequence[str] = (),
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
    for name in optional_columns:
        if width is None or _total_width(_widths(texts)) <= width:
            break
        column = texts[0].index(name)
        texts = [[*row[:column], *row[column + 1 :]] for row in texts]
    print("\n".join(layout_table(texts, width)))


def optional_id_column(names: Sequence[object]) -> Sequence[str]:
    """For ``spare`` of `table` with columns ``name`` and ``id``: of two with one name ids say which."""
    return ("id",) if len(set(names)) == len(names) else ()


def prose(text: str, *, indent: int = 0) -> None:
    """Sentences, broken between words where a terminal ends; what goes to none is one line.

    ``hang``: the column at which they go on.
    """
    print("\n".join(map(visible, wrap_text(text, terminal_width(), indent=indent))))


def wrap_text(text: str, width: int | None, *, indent: int = 0) -> list[str]:
    """The lines of a sentence; one line where it fits, or where ``width`` is None."""
    if width is None or len(text) <= width:
        return [text]
    return textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def terminal_width(stream: TextIO | None = None) -> int | None:
    """In columns; None where what is printed goes to no terminal, and nobody has said COLUMNS.

    ``stream``: where it goes (default: stdout).
    """
    is_known = (stream or sys.stdout).isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if is_known else None


def layout_table(texts: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The lines of a table, heads first, columns two spaces apart; no cell is cut: half an id is no use.

    Where ``width`` is less than a row wants, columns that say nothing go, sentences in the last one are
    broken, and else columns stand below others, in each row alike.
    """
    widths = _widths(texts)
    if width is not None and _total_width(widths) > width:
        filled_columns = [
            column for column in range(len(widths)) if any(row[column] != "-" for row in texts[1:])
        ]
        texts = [[row[column] for column in filled_columns] for row in texts]
        widths = _widths(texts)
    if width is None or not widths or _total_width(widths) <= width:
        return [_line(row, widths) for row in texts]
    last_width = width - _total_width([*widths[:-1], 0])
    if last_width >= PROSE_MIN and any(row[-1].count(" ") >= PROSE_SPACES for row in texts[1:]):
        table_lines = []
        for row in texts:
            parts = textwrap.wrap(
                row[-1], last_width, break_long_words=False, break_on_hyphens=False
            )
            table_lines.append(_line([*row[:-1], *parts[:1]], widths))
            table_lines += [" " * (width - last_width) + part for part in parts[1:]]
        return table_lines
    stacked: list[list[int]] = [[]]
    for column in range(len(widths)):
        free_width = width - (INDENT if len(stacked) > 1 else 0)
        if (
            stacked[-1]
            and _total_width([widths[stacked_column] for stacked_column in (*stacked[-1], column)])
            > free_width
        ):
            stacked.append([])
        stacked[-1].append(column)
    table_lines = []
    for row in texts:
        for n, row_columns in enumerate(stacked):
            line = _line(
                [row[column] for column in row_columns], [widths[column] for column in row_columns]
            )
            indent = " " * (INDENT if n else 0)
            if len(row_columns) == 1 and len(indent + line) > width:
                # A list, such as the bookies of a ledger: between its parts.
                table_lines += textwrap.wrap(
                    line,
                    width,
                    initial_indent=indent,
                    subsequent_indent=" " * INDENT,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            else:
                table_lines.append(indent + line)
    return table_lines


def _widths(texts: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]


def _total_width(widths: Sequence[int]) -> int:
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


def plural(count: int, singular: str, many: str = "") -> str:
    """Return ``1 ledger`` or ``2,000 ledgers``; without ``many`` an s is appended to ``one``."""
    return f"{count:,} {singular if count == 1 else many or f'{singular}s'}"
