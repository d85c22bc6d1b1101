"""Options: a frozen dataclass per part, whose fields define unit, default, range and reason (pure).

One definition is used by the check at construction, the error that lists legal values, and the tables of
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
"""The largest value of an option by its unit, if it defines none; `COUNT_LIMIT` for other units. All of them
fit into 63 bits, so that each can be stored and sent."""
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
    """Return a field of an options dataclass, of the type of its default.

    Args:
        default: The default value.
        unit: The unit for people and for the limits.
        reason: The reason for the default.
        at_least: The minimum. By default, a number must be above 0, and a duration at least 1 ms.
        at_most: The maximum. By default, the limit of the unit (`LIMITS`).
        multiple_of: The value must be a multiple of this number.
        one_of: The accepted texts.
        infinite: The value that replaces infinity, which is accepted then.
        extra: Further facts for the tables of the part.
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
    """Check the options, as ``__post_init__`` does.

    Raises:
        InvalidRequest: An option is invalid. The message names it and its legal values.
    """
    for option_field in option_fields(type(options)):
        value = getattr(options, option_field.name)
        if not is_legal(option_field, value):
            raise _illegal_value_error(option_field, value)


def _illegal_value_error(option_field: Field[Any], value: object) -> InvalidRequest:
    unit = f" ({option_field.metadata['unit']})" if option_field.metadata["unit"] else ""
    return InvalidRequest(
        f"option {option_field.name}: {quoted(value)} is not "
        f"{describe_legal_values(option_field)}{unit}"
    )


def with_overrides(options: Options, overrides: Mapping[str, Any] | None) -> Options:
    """Return the options with some values replaced.

    Raises:
        InvalidRequest: A name is unknown, or a value is invalid.
    """
    if not overrides:
        return options
    known_names = option_names(type(options))
    for name in overrides:
        if name not in known_names:
            raise unknown_option_error(name, known_names)
    return replace(options, **replace_infinity(type(options), overrides))  # type: ignore[type-var]


def replace_infinity(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with infinity replaced for options that define its meaning."""
    converted = dict(values)
    for option_field in option_fields(cls):
        if (
            option_field.metadata["infinite"] is not None
            and converted.get(option_field.name) == inf
        ):
            converted[option_field.name] = option_field.metadata["infinite"]
    return converted


def unknown_option_error(name: str, known: list[str]) -> InvalidRequest:
    """Return the error about an option that does not exist or was removed."""
    if name in REMOVED_OPTION_NAMES:
        return InvalidRequest(
            f"option {name!r} was removed: the value is always {REMOVED_OPTION_NAMES[name]}. Delete the "
            "option"
        )
    return InvalidRequest(f"unknown option {name!r}; known are {', '.join(known)}")


def option_fields(cls: type) -> list[Field[Any]]:
    """Return the fields that were made by `option`."""
    return [
        dataclass_field for dataclass_field in fields(cls) if "reason" in dataclass_field.metadata
    ]


def option_names(cls: type) -> list[str]:
    """Return the names of the options of a part."""
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
    """Return whether an option is a number, and not a truth value."""
    return isinstance(option_field.default, int | float) and not isinstance(
        option_field.default, bool
    )


def is_legal(option_field: Field[Any], value: Any) -> bool:
    """Return whether an option accepts a value."""
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
    """Return a short text of a refused value.

    Python cannot print a whole number above 4,300 digits, alone or in a list.
    """
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
    """Check how long a caller waits; None means no limit, or the default of the call.

    Raises `InvalidRequest`.
    """
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

TIME_UNITS: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
UNITS: Mapping[str, float] = {
    "KiB": KIB,
    "MiB": MIB,
    "GiB": 1024 * MIB,
    "TiB": 1024 * 1024 * MIB,
    **TIME_UNITS,
}
DIGITS_MAX = 100
"""A longer whole number is beyond every limit, and beyond what floating-point arithmetic can hold."""
_NUMBER = re.compile(r"([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([A-Za-z]*)")


def parse_value(text: str) -> bool | int | float | str:
    """Parse a typed value: ``true``, ``12``, ``0.5``, ``inf``, ``64MiB`` or ``1.5h`` (in seconds).

    Any other input is returned as text.
    """
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


def parse_option(option_field: Field[Any], text: str) -> bool | int | float | str:
    """Parse the value of an option, as `parse_value` does.

    Raises:
        InvalidRequest: The value has a unit of size and the option is not a size, or a unit of time and
            the option is not in seconds.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is not None and match[2] in UNITS:
        accepted_units = ("s",) if match[2] in TIME_UNITS else ("bytes", "bytes/s")
        if option_field.metadata["unit"] not in accepted_units:
            raise _illegal_value_error(option_field, text)
    return parse_value(text)


def parse_duration(text: str) -> float | None:
    """Parse a duration with its unit, such as ``1.5h``, to seconds. Any other input returns None.

    A number without a unit is not accepted, because it could be a date (20260131) or a time in ms.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in TIME_UNITS:
        return None
    return float(parse_value(text))


# --- for people -----------------------------------------------------------------------------------


def format_value(value: object, unit: str) -> str:
    """Return a default or limit as text: bytes in the largest exact unit, other numbers with commas."""
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


def format_size(count: float) -> str:
    """Return a measured number of bytes with one decimal: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < KIB or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= KIB
    raise AssertionError("the last unit takes all")


Columns = Mapping[str, Callable[[Field[Any]], str]]

COLUMNS: Columns = {
    "option": lambda one: f"`{one.name}`",
    "default": lambda one: format_value(one.default, one.metadata["unit"]),
    "unit": lambda one: one.metadata["unit"] or "–",
    "takes": partial(describe_legal_values, brief=True),
    "why": lambda one: one.metadata["reason"],
}


def markdown_table(cls: type, columns: Columns = COLUMNS) -> str:
    """Return the options of a part as a Markdown table."""
    rows = [[*columns], ["---"] * len(columns)]
    rows += [
        [cell_text(option_field) for cell_text in columns.values()]
        for option_field in option_fields(cls)
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def replace_tables(document: str, contents_by_name: Mapping[str, str]) -> str:
    """Return a document with new content between ``<!-- NAME -->`` and ``<!-- end -->``, by name."""
    for name, content in contents_by_name.items():
        begin, end = f"<!-- {name} -->", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert pattern.search(document), f"the document has no {begin}"
        section = f"{begin}\n{content}\n{end}"
        document = pattern.sub(lambda _, section=section: section, document)  # type: ignore[misc]
    return document
