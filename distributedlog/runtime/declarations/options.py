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
SHOWN_CHARS_MAX = 80
REMOVED: Mapping[str, str] = {
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
    **more: object,
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
    return field(default=default, metadata={"unit": unit, "reason": reason, **rules, **more})


def _limit(unit: str) -> int:
    return LIMITS.get(unit, COUNT_LIMIT)


def check(options: object) -> None:
    """What ``__post_init__`` calls. Raises `InvalidRequest` that names the option and what would be legal."""
    for one in described(type(options)):
        value = getattr(options, one.name)
        if not is_legal(one, value):
            unit = f" ({one.metadata['unit']})" if one.metadata["unit"] else ""
            raise InvalidRequest(f"option {one.name}: {quoted(value)} is not {legal(one)}{unit}")


def overlaid(options: Options, given: Mapping[str, Any] | None) -> Options:
    """These with some replaced. Raises `InvalidRequest`, also for a name that is not known."""
    if not given:
        return options
    known = names(type(options))
    for name in given:
        if name not in known:
            raise unknown(name, known)
    return replace(options, **finite(type(options), given))  # type: ignore[type-var]


def finite(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with infinity replaced where an option of the part defines what it means."""
    found = dict(given)
    for one in described(cls):
        if one.metadata["infinite"] is not None and found.get(one.name) == inf:
            found[one.name] = one.metadata["infinite"]
    return found


def unknown(name: str, known: list[str]) -> InvalidRequest:
    """Return the error about an option that does not exist, or no longer."""
    if name in REMOVED:
        return InvalidRequest(
            f"option {name!r} was removed: the value is always {REMOVED[name]}. Delete the option"
        )
    return InvalidRequest(f"unknown option {name!r}; known are {', '.join(known)}")


def described(cls: type) -> list[Field[Any]]:
    """The fields that were made by `option`."""
    return [one for one in fields(cls) if "reason" in one.metadata]


def names(cls: type) -> list[str]:
    """Of the options of a part."""
    return [one.name for one in described(cls)]


def legal(one: Field[Any], *, brief: bool = False) -> str:
    """Describe the values that an option accepts. ``brief``: omit the limits of its unit."""
    if isinstance(one.default, bool):
        return "true or false"
    if isinstance(one.default, str):
        return ", ".join(f"`{each}`" for each in one.metadata["one_of"]) or "a text"
    rule, unit = one.metadata, one.metadata["unit"]
    said = "a whole number" if isinstance(one.default, int) else "a number"
    least = None if brief and rule["at_least"] == DURATION_S_MIN else rule["at_least"]
    said += " above 0" if least is None else f" from {shown(least, unit)}"
    if rule["at_most"] is not None and not (brief and rule["at_most"] == _limit(unit)):
        said += f" to {shown(rule['at_most'], unit)}"
    if rule["multiple_of"] is not None:
        said += f", a multiple of {shown(rule['multiple_of'], unit)}"
    if rule["infinite"] is not None:
        said += ", or `inf`"
    return said


def is_number(one: Field[Any]) -> bool:
    """Whether an option is a number, and no truth value."""
    return isinstance(one.default, int | float) and not isinstance(one.default, bool)


def is_legal(one: Field[Any], value: Any) -> bool:
    """Whether an option accepts a value."""
    rule = one.metadata
    if not is_number(one):
        texts = rule["one_of"]
        return isinstance(value, type(one.default)) and (not texts or value in texts)
    low, high, step = rule["at_least"], rule["at_most"], rule["multiple_of"]
    whole = isinstance(one.default, int)
    return (
        _is_within(value, 0 if low is None else low, high, whole=whole)
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
        return repr(value)[:SHOWN_CHARS_MAX]
    except Exception:
        return f"an object of {type(value).__name__}"


# --- arguments ------------------------------------------------------------------------------------


def check_seconds(
    what: str, value: Any, *, most_s: float = DURATION_S_MAX, above_0: bool = False
) -> None:
    """Raise `InvalidRequest` unless the value is a number of seconds, from 0 (or above it) to ``most_s``."""
    if not _is_within(value, 0, most_s, whole=False) or (above_0 and value == 0):
        raise InvalidRequest(
            f"{what} is seconds {'above' if above_0 else 'from'} 0 to {shown(most_s, 's')}, not "
            f"{quoted(value)}"
        )


def check_wait(wait_s: Any, what: str = "wait_s", *, most_s: float = DURATION_S_MAX) -> None:
    """Check how long a caller waits; None: no limit, or the call's default. Raises `InvalidRequest`."""
    if wait_s is not None and not _is_within(wait_s, 0, most_s, whole=False):
        raise InvalidRequest(
            f"{what} is seconds from 0 to {shown(most_s, 's')}, or None: not {quoted(wait_s)}"
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


def typed(text: str) -> bool | int | float | str:
    """Read a typed value: ``true``, ``12``, ``0.5``, ``inf``, ``64MiB``, ``1.5h`` (s); else the text."""
    if text in ("true", "false"):
        return text == "true"
    if text == "inf":
        return inf
    found = _NUMBER.fullmatch(text.strip())
    if found is None or (found[2] and found[2] not in UNITS):
        return text
    number = float(found[1])
    digits = found[1].lstrip("+-").replace("_", "")
    whole = int(found[1]) if digits.isdigit() and len(digits) <= DIGITS_MAX else None
    if not found[2]:
        return number if whole is None else whole
    value = number * UNITS[found[2]] if whole is None else whole * UNITS[found[2]]
    return int(value) if isfinite(value) and value == int(value) else value


# --- for people -----------------------------------------------------------------------------------


def shown(value: object, unit: str) -> str:
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
    "default": lambda one: shown(one.default, one.metadata["unit"]),
    "unit": lambda one: one.metadata["unit"] or "–",
    "takes": partial(legal, brief=True),
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
