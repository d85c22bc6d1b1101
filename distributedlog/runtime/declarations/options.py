"""Options: a frozen dataclass for each part, whose fields say unit, default, range and reason (pure).

One description serves the check at construction, the error that says what would be legal, and the tables of
docs/reference/options.md. A new option is a field of its part's dataclass, made by `option`.

Every number of a user or an operator is checked here and only here, options and arguments alike. Each has
finite limits. Not-a-number is refused. Infinity is refused too, except for the few options that define it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields, replace
from functools import partial
from math import inf, isfinite
from typing import Any, TypeVar

from ..interfaces.errors import InvalidRequest

KIB = 1024
MIB = 1024 * KIB
EIB = 1 << 60
DURATION_S_MAX = 10 * 365 * 86_400
"""Ten years, the longest duration that anything accepts. Clocks and timers of all layers can add it."""
DURATION_S_MIN = 0.001
"""The shortest duration of an option that does not define 0. Stored times count milliseconds."""
COUNT_LIMIT = 10**12
LIMITS: Mapping[str, int] = {
    "s": DURATION_S_MAX,
    "ms": DURATION_S_MAX * 1000,
    "bytes": EIB,
    "bytes/s": EIB,
}
"""The largest value of an option by its unit, if it states none; `COUNT_LIMIT` for other units. All of them
fit 63 bits, so that each can be stored and sent."""
QUOTED_CHARS_MAX = 80
REMOVED_OPTION_NAMES: Mapping[str, str] = {
    "cpu_policy": "the one of the process, which its service unit can set",
    "idle_watermark_s": "20 ms",
    "long_poll_s": "1 s",
    "read_bytes_max": "1 MiB",
    "reader_bytes": "256 KiB",
    "tail_wait_s": "1 s",
    "wait_ms_max": "60 s",
}
"""Options of earlier versions that are constants now, and their values. Configurations may name them."""

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
    infinite: float | None = None,
    **extra: object,
) -> Any:
    """A field of an options dataclass; of the default's type. Without ``at_least`` a number is above 0, and
    a duration is a millisecond at least.

    Without ``at_most`` the limit of its unit applies (`LIMITS`). ``infinite``: the value that replaces
    infinity, which is accepted then. ``more``: further facts for tables of the part.
    """
    if at_most is None and isinstance(default, int | float) and not isinstance(default, bool):
        at_most = _limit(unit)
    if at_least is None and unit == "s":
        at_least = DURATION_S_MIN
    rules = {
        "at_least": at_least,
        "at_most": at_most,
        "multiple_of": multiple_of,
        "one_of": one_of,
        "infinite": infinite,
    }
    return field(default=default, metadata={"unit": unit, "reason": reason, **rules, **extra})


def _limit(unit: str) -> int:
    return LIMITS.get(unit, COUNT_LIMIT)


def check(options: object) -> None:
    """What ``__post_init__`` calls. Raises `InvalidRequest` that names the option and what would be legal."""
    for option_field in option_fields(type(options)):
        value = getattr(options, option_field.name)
        if not is_legal(option_field, value):
            unit = f" ({option_field.metadata['unit']})" if option_field.metadata["unit"] else ""
            raise InvalidRequest(
                f"option {option_field.name}: {quoted(value)} is not "
                f"{describe_legal_values(option_field)}{unit}"
            )


def with_overrides(options: Options, overrides: Mapping[str, Any] | None) -> Options:
    """These with some replaced. Raises `InvalidRequest`, also for a name that is not known."""
    if not overrides:
        return options
    known_names = option_names(type(options))
    for name in overrides:
        if name not in known_names:
            raise unknown_option_error(name, known_names)
    return replace(options, **replace_infinity(type(options), overrides))  # type: ignore[type-var]


def replace_infinity(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with infinity replaced where an option of the part defines what it means."""
    converted = dict(values)
    for option_field in option_fields(cls):
        if (
            option_field.metadata["infinite"] is not None
            and converted.get(option_field.name) == inf
        ):
            converted[option_field.name] = option_field.metadata["infinite"]
    return converted


def unknown_option_error(name: str, known: list[str]) -> InvalidRequest:
    """Return the error about an option that does not exist, or no longer."""
    if name in REMOVED_OPTION_NAMES:
        return InvalidRequest(
            f"option {name!r} was removed: the value is always {REMOVED_OPTION_NAMES[name]}. Delete the "
            "option"
        )
    return InvalidRequest(f"unknown option {name!r}; known are {', '.join(known)}")


def option_fields(cls: type) -> list[Field[Any]]:
    """The fields that were made by `option`."""
    return [
        dataclass_field for dataclass_field in fields(cls) if "reason" in dataclass_field.metadata
    ]


def option_names(cls: type) -> list[str]:
    """Of the options of a part."""
    return [option_field.name for option_field in option_fields(cls)]


def describe_legal_values(option_field: Field[Any], *, brief: bool = False) -> str:
    """Describe the values that an option accepts. ``brief``: omit the limits of its unit."""
    if isinstance(option_field.default, bool):
        return "true or false"
    if isinstance(option_field.default, str):
        return ", ".join(f"`{choice}`" for choice in option_field.metadata["one_of"]) or "a text"
    rules, unit = option_field.metadata, option_field.metadata["unit"]
    description = "a whole number" if isinstance(option_field.default, int) else "a number"
    least = None if brief and rules["at_least"] == DURATION_S_MIN else rules["at_least"]
    description += " above 0" if least is None else f" from {format_value(least, unit)}"
    if rules["at_most"] is not None and not (brief and rules["at_most"] == _limit(unit)):
        description += f" to {format_value(rules['at_most'], unit)}"
    if rules["multiple_of"] is not None:
        description += f", a multiple of {format_value(rules['multiple_of'], unit)}"
    if rules["infinite"] is not None:
        description += ", or `inf`"
    return description


def is_number(option_field: Field[Any]) -> bool:
    """Whether an option is a number, and no truth value."""
    return isinstance(option_field.default, int | float) and not isinstance(
        option_field.default, bool
    )


def is_legal(option_field: Field[Any], value: Any) -> bool:
    """Whether an option accepts a value."""
    rules = option_field.metadata
    if not is_number(option_field):
        texts = rules["one_of"]
        return isinstance(value, type(option_field.default)) and (not texts or value in texts)
    low, high, step = rules["at_least"], rules["at_most"], rules["multiple_of"]
    is_whole = isinstance(option_field.default, int)
    return (
        _is_within(value, 0 if low is None else low, high, whole=is_whole)
        and (low is not None or value > 0)
        and (step is None or value % step == 0)
    )


def _is_within(value: Any, low: float, high: float, *, whole: bool) -> bool:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        return False
    return low <= value <= high  # not-a-number is in no range


def quoted(value: Any) -> str:
    """Return a short text of a refused value. Python makes none of a whole number above 4,300 digits, alone
    or in a list."""
    if isinstance(value, int) and not -EIB <= value <= EIB:
        return f"a number of {value.bit_length()} bits"
    try:
        return repr(value)[:QUOTED_CHARS_MAX]
    except Exception:
        return f"an object of {type(value).__name__}"


# --- arguments ------------------------------------------------------------------------------------


def check_seconds(
    what: str, value: Any, *, most_s: float = DURATION_S_MAX, above_0: bool = False
) -> None:
    """Raise `InvalidRequest` unless the value is a number of seconds, from 0 (or above it) to ``most_s``."""
    if not _is_within(value, 0, most_s, whole=False) or (above_0 and value == 0):
        raise InvalidRequest(
            f"{what} is seconds {'above' if above_0 else 'from'} 0 to {format_value(most_s, 's')}, not "
            f"{quoted(value)}"
        )


def check_wait(wait_s: Any, what: str = "wait_s", *, most_s: float = DURATION_S_MAX) -> None:
    """Check how long a caller waits; None: no limit, or the call's default. Raises `InvalidRequest`."""
    if wait_s is not None and not _is_within(wait_s, 0, most_s, whole=False):
        raise InvalidRequest(
            f"{what} is seconds from 0 to {format_value(most_s, 's')}, or None: not {quoted(wait_s)}"
        )


def check_whole(what: str, value: Any, least: int, most: int = COUNT_LIMIT) -> None:
    """Raise `InvalidRequest` unless the value is a whole number from ``least`` to ``most``."""
    if not _is_within(value, least, most, whole=True):
        raise InvalidRequest(
            f"{what} is a whole number from {least} to {most}, not {quoted(value)}"
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
DIGITS_MAX = 100
"""A longer whole number is beyond every limit, and beyond what floating-point arithmetic can hold."""
_NUMBER = re.compile(r"([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([A-Za-z]*)")


def parse_value(text: str) -> bool | int | float | str:
    """Read a typed value: ``true``, ``12``, ``0.5``, ``inf``, ``64MiB``, ``1.5h`` (s); else the text."""
    if text in ("true", "false"):
        return text == "true"
    if text == "inf":
        return inf
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match[2] and match[2] not in UNITS):
        return text
    number = float(match[1])
    digits = match[1].lstrip("+-").replace("_", "")
    integer = int(match[1]) if digits.isdigit() and len(digits) <= DIGITS_MAX else None
    if not match[2]:
        return number if integer is None else integer
    value = number * UNITS[match[2]] if integer is None else integer * UNITS[match[2]]
    return int(value) if isfinite(value) and value == int(value) else value


# --- for people -----------------------------------------------------------------------------------


def format_value(value: object, unit: str) -> str:
    """A default or a limit: bytes in the largest unit that is whole, other numbers with their commas."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value or "none"
    assert isinstance(value, int | float), f"an option of {type(value)}"
    if value in (DURATION_S_MAX, LIMITS["ms"]) and value == LIMITS.get(unit):
        return "10 years"
    if unit in ("bytes", "bytes/s") and value:
        for size, name in ((EIB, "EiB"), (1024 * MIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
            if value % size == 0:
                return f"{value // size:,} {name}"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


Columns = Mapping[str, Callable[[Field[Any]], str]]

COLUMNS: Columns = {
    "option": lambda one: f"`{one.name}`",
    "default": lambda one: format_value(one.default, one.metadata["unit"]),
    "unit": lambda one: one.metadata["unit"] or "–",
    "takes": partial(describe_legal_values, brief=True),
    "why": lambda one: one.metadata["reason"],
}


def markdown_table(cls: type, columns: Columns = COLUMNS) -> str:
    """The options of a part, as Markdown."""
    rows = [[*columns], ["---"] * len(columns)]
    rows += [
        [cell_text(option_field) for cell_text in columns.values()]
        for option_field in option_fields(cls)
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def replace_tables(document: str, contents_by_name: Mapping[str, str]) -> str:
    """A document with what stands between ``<!-- NAME -->`` and ``<!-- end -->`` made anew, by name."""
    for name, content in contents_by_name.items():
        begin, end = f"<!-- {name} -->", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert pattern.search(document), f"the document has no {begin}"
        section = f"{begin}\n{content}\n{end}"
        document = pattern.sub(lambda _, section=section: section, document)  # type: ignore[misc]
    return document
