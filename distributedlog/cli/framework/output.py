"""Output for people and programs: tables, JSON, sizes with units, states in color."""

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

INDENT = 4
"""Indentation of columns that are placed below others."""
PROSE_SPACES = 3
"""A last column with at least this number of spaces in a cell is prose and is wrapped between words,"""
PROSE_MIN = 24
"""if at least this number of terminal columns is left for it."""


GREEN, YELLOW, RED = "\033[32m", "\033[33m", "\033[31m"
RESET = "\033[0m"
COLOR_OF_STATE = {
    **dict.fromkeys(("healthy", "up", "yes", "pass", "OK"), GREEN),
    **dict.fromkeys(("healing", "degraded", "read-only", "draining"), YELLOW),
    **dict.fromkeys(("warn", "VOID"), YELLOW),
    **dict.fromkeys(("at risk", "down", "offline", "no", "FAIL"), RED),
}
"""The color adds nothing to the word, which is always printed."""


class State(str):
    """A table cell whose word has a color on a terminal, by `COLOR_OF_STATE`."""

    __slots__ = ()


def yes_or_no(is_true: bool) -> State:
    """Return the state "yes" or "no"."""
    return State("yes" if is_true else "no")


def paint(text: str, state: str = "") -> str:
    """Return text in the color of ``state``, by default of the text itself.

    It is returned unchanged if stdout is no terminal, and with NO_COLOR or TERM=dumb in the environment.
    """
    color = COLOR_OF_STATE.get(state or text)
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if color is None or is_plain or not sys.stdout.isatty():
        return text
    return f"{color}{text}{RESET}"


class RateEstimate:
    """Estimate the rate at which a remaining number decreases, and the time until it is 0. Pure."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None

    def describe(self, now_s: float, remaining: int) -> str:
        """Return text such as ``, 12.5 a second, about 40 s more``; "" while nothing has decreased.

        If the number increases, the estimate starts again from there.
        """
        if self._start is None or remaining > self._start[1]:
            self._start = (now_s, remaining)
        began_s, first_remaining = self._start
        if remaining == first_remaining or now_s <= began_s:
            return ""
        rate = (first_remaining - remaining) / (now_s - began_s)
        return f", {rate:,.1f} a second, about {math.ceil(remaining / rate):,} s more"


def emit(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of stdout."""
    sys.stdout.write(json.dumps(value, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    empty: str = "",
    optional_columns: Sequence[str] = (),
) -> None:
    """Print a table that fits the terminal. Without a terminal each row is one line.

    Args:
        columns: The headings.
        rows: The cells. None is shown as ``-``, booleans as ``yes`` and ``no``.
        empty: Text that is printed if there are no rows.
        optional_columns: Columns that are omitted, in this order, before a row takes two lines.
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
    """Return the ``optional_columns`` of a `table` with ``name`` and ``id``: ("id",) if all names differ."""
    return ("id",) if len(set(names)) == len(names) else ()


def prose(text: str, *, indent: int = 0, state: str = "") -> None:
    """Print sentences, wrapped at the terminal width; as one line without a terminal.

    Args:
        text: The sentences.
        indent: The indentation of all lines after the first.
        state: A state in the first line that is printed in its color.
    """
    first, *others = map(visible, wrap_text(text, terminal_width(), indent=indent))
    print("\n".join([first.replace(state, paint(state), 1) if state else first, *others]))


def wrap_text(text: str, width: int | None, *, indent: int = 0) -> list[str]:
    """Return the lines of a sentence. It is one line if it fits or ``width`` is None."""
    if width is None or len(text) <= width:
        return [text]
    return textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the width in columns, or None if the stream is no terminal and COLUMNS is not set.

    The default stream is stdout.
    """
    is_known = (stream or sys.stdout).isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if is_known else None


def layout_table(texts: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return the lines of a table, headings first, columns two spaces apart. Cells are never cut.

    If rows are wider than ``width``, empty columns are omitted first. Then prose in the last column is
    wrapped. Otherwise columns are placed below others, in the same way for each row.
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
            if len(row_columns) == 1 and len(indent + row[row_columns[0]]) > width:
                # A list, such as the bookies of a ledger, is wrapped between its items.
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
    return "  ".join(
        (paint(cell) if isinstance(cell, State) else cell) + " " * (width - len(cell))
        for cell, width in zip(row, widths, strict=False)
    ).rstrip()


def rows_or_table(
    as_json: bool, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str
) -> None:
    """Print rows: one JSON object per row with --json, a table otherwise. Columns name the keys."""
    if as_json:
        for row in rows:
            emit(dict(zip(columns, row, strict=True)))
    else:
        table(columns, rows, empty=empty)


def size(count: float) -> str:
    """Return bytes with a unit: ``1.5 MiB``. All commands print sizes and byte rates with it."""
    from ...runtime.declarations.options import format_size

    return format_size(count)


def visible(text: str) -> str:
    """Return text with control characters escaped.

    Names, labels and reasons come from other users and must not control the terminal (H265).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _text(cell: Any) -> str:
    if cell is None or isinstance(cell, State):
        return cell or "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return visible(str(cell))


def plural(count: int, singular: str, many: str = "") -> str:
    """Return ``1 ledger`` or ``2,000 ledgers``; without ``many`` an s is appended to ``singular``."""
    return f"{count:,} {singular if count == 1 else many or f'{singular}s'}"
