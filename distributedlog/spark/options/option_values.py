"""Parse option values: sizes, durations, times, names, positions.

Each function takes the text from Spark and raises `InvalidValue`, whose text describes the legal values.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ...runtime.declarations.options import DURATION_S_MAX, KIB, MIB

SIZES = {"": 1, "b": 1, "k": KIB, "m": MIB, "g": 1024 * MIB, "t": 1024 * 1024 * MIB}
SIZE_MAX = 1 << 60
"""A size is passed to Spark as a signed 64-bit number, and no real size is larger."""
TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class InvalidValue(ValueError):
    """An invalid value. The text describes the legal values."""

    def __init__(self, said: str, *, shows: bool = True) -> None:
        """``shows``: whether an error may contain the value."""
        super().__init__(said)
        self.may_show_value = shows


def name_of_credentials(value: str) -> str:
    """Return ``file:PATH``. It is never a secret, because Spark shows options."""
    if not value.startswith("file:") or len(value) <= len("file:"):
        raise InvalidValue("the name of credentials, file:PATH", shows=False)
    return value


def text(value: str) -> str:
    """Return any text that is not blank."""
    if not value.strip():
        raise InvalidValue("some text")
    return value


def flag(value: str) -> bool:
    """Parse ``true`` or ``false``, in any case."""
    if value.strip().lower() not in ("true", "false"):
        raise InvalidValue("true or false")
    return value.strip().lower() == "true"


def whole(value: str) -> int:
    """Parse a whole number of at least 1."""
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", value) or int(value) < 1:
        raise InvalidValue("a whole number from 1 up")
    return int(value)


def number(value: str) -> int:
    """Parse a transaction ID or a version: a whole number of at least 0."""
    if not re.fullmatch(r"\s*[0-9]{1,19}\s*", value) or int(value) > 2**63 - 2:
        raise InvalidValue("a whole number from 0 to 2^63 - 2")
    return int(value)


def size(value: str) -> int:
    """Parse bytes: ``131072``, ``128k``, ``128 MiB``."""
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([bkmgt]?)(?:i?b)?\s*", value.lower())
    size_bytes = 0 if match is None else int(match[1]) * SIZES[match[2]]
    if not 1 <= size_bytes <= SIZE_MAX:
        raise InvalidValue("a size from 1 byte up, whole, such as 131072, 256k or 128m")
    return size_bytes


def duration(value: str) -> float:
    """Parse seconds: ``5``, ``500ms``, ``10s``, ``15 min``, ``24h``."""
    match = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|min|m|h|d|)\s*", value.lower())
    if match is None:
        raise InvalidValue("a duration, such as 5s, 500ms, 15min or 24h (a bare number is seconds)")
    seconds = float(match[1]) * TIMES[match[2]]
    if seconds > DURATION_S_MAX:
        raise InvalidValue("a duration of at most 10 years (3,650d)")
    return seconds


def positive_duration(value: str) -> float:
    """Parse seconds as `duration`, above 0."""
    found = duration(value)
    if found <= 0:
        raise InvalidValue("a duration above 0, such as 10s or 500ms")
    return found


def names(value: str) -> tuple[str, ...]:
    """Parse a comma-separated list, without repetitions, in the given order."""
    parsed_names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not parsed_names:
        raise InvalidValue("names of logs, separated by commas")
    return parsed_names


def one_of(*legal: str) -> Callable[[str], str]:
    """Return a parser of one of several words, in any case."""

    def read(value: str) -> str:
        if value.strip().lower() not in legal:
            raise InvalidValue(" or ".join(legal))
        return value.strip().lower()

    return read


def instant(value: str) -> int:
    """Parse an ISO 8601 time to microseconds since 1970. Without an offset it is UTC."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise InvalidValue("an ISO 8601 time, such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def position(value: str) -> Any:
    """Parse ``earliest``, ``latest``, or JSON of positions by log; see `requested_positions`."""
    word = value.strip()
    if word.lower() in ("earliest", "latest"):
        return word.lower()
    legal = 'earliest, latest, or JSON such as {"orders": "1.12.3"}'
    try:
        decoded = json.loads(word)
    except ValueError as error:
        raise InvalidValue(f"{legal} (invalid JSON: {error})") from None
    except RecursionError:
        raise InvalidValue(f"{legal} (JSON is nested too deeply)") from None
    if not isinstance(decoded, dict) or not decoded:
        raise InvalidValue(legal)
    return decoded
