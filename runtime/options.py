"""Options: a frozen dataclass for each part, whose fields say unit, default, range and reason (pure).

One description serves the check at construction, the error that says what would be legal, and the tables of
docs/options.md. A new option is a field of its part's dataclass, made by `option`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields, replace
from typing import Any, TypeVar

from .errors import InvalidRequest

KIB = 1024
MIB = 1024 * KIB
SHOWN_CHARS_MAX = 80

Options = TypeVar("Options")


def option(
    default: object,
    unit: str,
    reason: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    multiple_of: int | None = None,
    one_of: tuple[str, ...] = (),
    **more: object,
) -> Any:
    """A field of an options dataclass; of the default's type. Without ``at_least`` a number is above 0.

    ``more`` is what a part's own tables say besides.
    """
    rules = {
        "at_least": at_least,
        "at_most": at_most,
        "multiple_of": multiple_of,
        "one_of": one_of,
    }
    return field(default=default, metadata={"unit": unit, "reason": reason, **rules, **more})


def check(options: object) -> None:
    """What ``__post_init__`` calls. Raises `InvalidRequest` that names the option and what would be legal."""
    for one in described(type(options)):
        value = getattr(options, one.name)
        if not _is_legal(one, value):
            unit = f" ({one.metadata['unit']})" if one.metadata["unit"] else ""
            raise InvalidRequest(
                f"option {one.name}: {repr(value)[:SHOWN_CHARS_MAX]} is not {legal(one)}{unit}"
            )


def overlaid(options: Options, given: Mapping[str, Any] | None) -> Options:
    """These with some replaced. Raises `InvalidRequest`, also for a name that is not known."""
    if not given:
        return options
    known = names(type(options))
    for name in given:
        if name not in known:
            raise unknown(name, known)
    return replace(options, **given)  # type: ignore[type-var]


def unknown(name: str, known: list[str]) -> InvalidRequest:
    """The error about an option that there is not."""
    return InvalidRequest(f"unknown option {name!r}; known are {', '.join(known)}")


def described(cls: type) -> list[Field[Any]]:
    """The fields that were made by `option`."""
    return [one for one in fields(cls) if "reason" in one.metadata]


def names(cls: type) -> list[str]:
    """Of the options of a part."""
    return [one.name for one in described(cls)]


def legal(one: Field[Any]) -> str:
    """What an option takes, in words."""
    if isinstance(one.default, bool):
        return "true or false"
    if isinstance(one.default, str):
        return ", ".join(f"`{each}`" for each in one.metadata["one_of"]) or "a text"
    rule, unit = one.metadata, one.metadata["unit"]
    said = "a whole number" if isinstance(one.default, int) else "a number"
    said += " above 0" if rule["at_least"] is None else f" from {shown(rule['at_least'], unit)}"
    if rule["at_most"] is not None:
        said += f" to {shown(rule['at_most'], unit)}"
    if rule["multiple_of"] is not None:
        said += f", a multiple of {shown(rule['multiple_of'], unit)}"
    return said


def _is_legal(one: Field[Any], value: Any) -> bool:
    if isinstance(one.default, bool | str):
        texts = one.metadata["one_of"]
        return isinstance(value, type(one.default)) and (not texts or value in texts)
    kinds = (int,) if isinstance(one.default, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        return False
    rule = one.metadata
    low, high, step = rule["at_least"], rule["at_most"], rule["multiple_of"]
    return bool(
        (value > 0 if low is None else value >= low)
        and (high is None or value <= high)
        and (step is None or value % step == 0)
    )


# --- from people ----------------------------------------------------------------------------------

UNITS: Mapping[str, float] = {
    "KiB": KIB,
    "MiB": MIB,
    "GiB": 1024 * MIB,
    "TiB": 1024 * 1024 * MIB,
    "ms": 0.001,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
}
_NUMBER = re.compile(r"([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([A-Za-z]*)")


def typed(text: str) -> bool | int | float | str:
    """What somebody typed: ``true``, ``12``, ``0.5``, ``64MiB``, ``1.5h`` (seconds); else the text."""
    if text in ("true", "false"):
        return text == "true"
    found = _NUMBER.fullmatch(text.strip())
    if found is None or (found[2] and found[2] not in UNITS):
        return text
    number = float(found[1])
    whole = int(found[1]) if found[1].lstrip("+-").replace("_", "").isdigit() else None
    if not found[2]:
        return number if whole is None else whole
    value = number * UNITS[found[2]] if whole is None else whole * UNITS[found[2]]
    return int(value) if value == int(value) else value


# --- for people -----------------------------------------------------------------------------------


def shown(value: object, unit: str) -> str:
    """A default or a bound: bytes in the largest unit that is whole, other numbers with their commas."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value or "none"
    assert isinstance(value, int | float), f"an option of {type(value)}"
    if unit == "bytes" and value:
        for size, name in ((1024 * MIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
            if value % size == 0:
                return f"{value // size:,} {name}"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


Columns = Mapping[str, Callable[[Field[Any]], str]]

COLUMNS: Columns = {
    "option": lambda one: f"`{one.name}`",
    "default": lambda one: shown(one.default, one.metadata["unit"]),
    "unit": lambda one: one.metadata["unit"] or "–",
    "takes": legal,
    "why": lambda one: one.metadata["reason"],
}


def table(cls: type, columns: Columns = COLUMNS) -> str:
    """The options of a part, as Markdown."""
    rows = [[*columns], ["---"] * len(columns)]
    rows += [[say(one) for say in columns.values()] for one in described(cls)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def with_tables(document: str, made: Mapping[str, str]) -> str:
    """A document with what stands between ``<!-- NAME -->`` and ``<!-- end -->`` made anew, by name."""
    for name, content in made.items():
        begin, end = f"<!-- {name} -->", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert pattern.search(document), f"the document has no {begin}"
        whole = f"{begin}\n{content}\n{end}"
        document = pattern.sub(lambda _, whole=whole: whole, document)  # type: ignore[misc]
    return document
