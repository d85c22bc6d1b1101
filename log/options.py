"""The options of the log part: unit, default, reason (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..runtime.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class LogOptions:
    """One table of the configuration file, ``[log]``. `open_log` may overlay single options."""

    create_if_missing: bool = field(
        default=True,
        metadata={"unit": "", "why": "a log appears with its first writer, as upstream"},
    )
    max_txid_check: bool = field(
        default=True,
        metadata={"unit": "", "why": "search by txid needs txids that do not decrease"},
    )
    entry_bytes_max: int = field(
        default=256 * 1024 - 256,
        metadata={"unit": "bytes", "why": "of one entry under load: a frame of 256 KiB (H35)"},
    )
    in_flight_bytes_max: int = field(
        default=8 * 1024 * 1024,
        metadata={"unit": "bytes", "why": "not yet durable; above, submit waits"},
    )
    eager_entries: int = field(
        default=2,
        metadata={
            "unit": "entries",
            "why": "while fewer are in flight a batch goes out at once, else it grows",
        },
    )
    segment_bytes_max: int = field(
        default=1024 * 1024 * 1024,
        metadata={"unit": "bytes", "why": "a segment is the unit of retention and of repair"},
    )
    segment_age_max_s: float = field(
        default=2 * 3600.0, metadata={"unit": "s", "why": "upstream's roll by time"}
    )
    lock_lease_s: float = field(
        default=10.0, metadata={"unit": "s", "why": "a killed writer's lock is free after this"}
    )
    recover_timeout_s: float = field(
        default=30.0,
        metadata={"unit": "s", "why": "opening or rolling after an error gives up after this"},
    )
    close_timeout_s: float = field(
        default=30.0,
        metadata={"unit": "s", "why": "close() gives up waiting for writes after this"},
    )
    read_ahead_bytes: int = field(
        default=4 * 1024 * 1024,
        metadata={"unit": "bytes", "why": "fetched and not yet taken by the reader's caller"},
    )
    read_bytes: int = field(
        default=1024 * 1024, metadata={"unit": "bytes", "why": "of one request while catching up"}
    )
    read_retry_s: float = field(
        default=30.0,
        metadata={"unit": "s", "why": "a reader that gets no answer for this long gives up"},
    )
    tail_wait_s: float = field(
        default=1.0, metadata={"unit": "s", "why": "one long poll at the end of the log (H23)"}
    )

    def overlaid(self, config: Mapping[str, Any] | None) -> "LogOptions":
        """These options with some replaced. Raises `InvalidRequest` naming an unknown one."""
        if not config:
            return self
        known = {option.name: option for option in fields(self)}
        for name, value in config.items():
            if name not in known:
                raise InvalidRequest(
                    f"unknown option of a log: {name!r}; known are {', '.join(known)}"
                )
            default = getattr(self, name)
            wanted = (int, float) if isinstance(default, float) else (type(default),)
            if not isinstance(value, wanted) or (
                not isinstance(default, bool) and (isinstance(value, bool) or value <= 0)
            ):
                raise InvalidRequest(
                    f"option {name} of a log: {value!r} is not a positive {type(default).__name__}"
                    if not isinstance(default, bool)
                    else f"option {name} of a log: {value!r} is not true or false"
                )
        return replace(self, **config)
