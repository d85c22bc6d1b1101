"""What is stored about a log's own settings, and about its namespace's (pure).

    logconf/<log id>          -> StoredSettings: the log's settings, and its user's notes
    bind/<namespace path>     -> StoredSettings: of all logs of the namespace

Two kinds of option. *Shared* ones decide about the log, whoever opens it: they may be stored, and what the
log stores stands over what its namespace stores, and that over the ``config`` of `open_namespace`. *Local*
ones (read-ahead, patience, time limits) belong to the process and are never stored. ``config`` of `open_log`
stands over all for the options of `OVERLAID`; of the others it must not contradict what is stored.

A stored number out of its option's limits is replaced when it is read, for other programs may store it and
one value must not end the work on its log. An option of `RetentionOptions` gets the value that keeps records
(``kept``). Any other one counts as not set.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...ledger.declarations.options import BOOKIES_MAX
from ...runtime.declarations.options import (
    COUNT_LIMIT,
    DURATION_S_MAX,
    check,
    check_whole,
    described,
    finite,
    is_legal,
    is_number,
    legal,
    names,
    option,
    overlaid,
    unknown,
)
from ...runtime.interfaces.errors import CorruptData, InvalidRequest
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import NUMBER_MAX, SchemaError, blob, fit, mapping, row
from ..declarations.options import LogOptions
from .log_state import decode_fields
from .segment_expiry import HOLD_MAX_S_MIN

FORMAT = 1
SETTINGS_BYTES_MAX = 4 * 1024
METADATA_BYTES_MAX = 8 * 1024
COUNT_MAX = 1000
NAME_CHARS_MAX = 256

CONF_PREFIX = b"logconf/"
BIND_PREFIX = b"bind/"

OVERLAID = (
    "entry_bytes_max",
    "segment_bytes_max",
    "segment_age_max_s",
    "codec",
    "rolling",
    "keep_alive_s",
    "bytes_per_s_max",
    "records_per_s_max",
    "at_limit",
)
"""Sizes, limits and the like, of `LogOptions`, which one process may have otherwise for itself."""
SHARED = (*OVERLAID, "max_txid_check")
"""The options of `LogOptions` that may be stored."""
QUORUMS = ("ensemble_size", "write_quorum", "ack_quorum")
"""Of the log's next segments, given and taken back together. They are kept in the log's state as well."""


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """How long a log keeps its records. Stored only: the elected bookie goes by them, no client does."""

    retention: bool = option(
        True,
        "",
        "off: no records are deleted by age or size, in spite of other options; a namespace "
        "can store it for all logs",
    )
    retention_s: float = option(
        0.0,
        "s",
        "records are deleted this long after their segment was closed (0 or `inf`: never)",
        at_least=0,
        infinite=0.0,
        kept=0.0,
    )
    retention_bytes: int = option(
        0,
        "bytes",
        "the oldest closed segments are deleted if the segments after them have this size (0: "
        "never)",
        at_least=0,
        kept=0,
    )
    retention_segments_min: int = option(
        1,
        "segments",
        "number of newest segments that retention never deletes",
        at_least=0,
        kept=COUNT_LIMIT,
    )
    hold_max_s: float = option(
        7 * 86400.0,
        "s",
        "a named position holds records for at most this time after its last change",
        at_least=HOLD_MAX_S_MIN,
        infinite=float(DURATION_S_MAX),
        kept=float(DURATION_S_MAX),
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def wanted(self) -> bool:
        """Does anything go by these?"""
        return self.retention and (self.retention_s > 0 or self.retention_bytes > 0)

    @property
    def retention_ms(self) -> int:
        """`retention_s` for stored times."""
        return int(self.retention_s * 1000)

    @property
    def hold_max_ms(self) -> int:
        """`hold_max_s` for stored times; the longest one never ends."""
        return NUMBER_MAX if self.hold_max_s >= DURATION_S_MAX else int(self.hold_max_s * 1000)


@dataclass(frozen=True, slots=True)
class MergingOptions:
    """Whether a log's small segments are merged. Stored only, as `RetentionOptions`."""

    merging: bool = option(
        False, "", "small closed segments share a ledger; records and positions do not change"
    )

    def __post_init__(self) -> None:
        check(self)


RETENTION = tuple(names(RetentionOptions))
MERGING = tuple(names(MergingOptions))
KNOWN = (*SHARED, *RETENTION, *MERGING, *QUORUMS)
LOCAL = tuple(name for name in names(LogOptions) if name not in SHARED)
"""The other ones of `LogOptions`: of the process that opens the log, and never stored."""


def refuse_stored_only(
    config: Mapping[str, Any] | None, stored_only: Collection[str] = (*RETENTION, *MERGING)
) -> None:
    """Raise `InvalidRequest` for an option that has no effect in the ``config`` of one process.

    Bookies apply retention and merging. The quorums of a log are those that are stored with it; those of
    ``open_namespace(config=)`` are for the logs that it creates.
    """
    for name in config or ():
        if name in stored_only:
            where = "create_log(config=) or Log.set"
            if name in QUORUMS:
                where += "; open_namespace(config=) is for logs that are created"
            else:
                where += ", or with its namespace: Namespace.set"
            raise InvalidRequest(f"option {name} is stored with a log: {where}")


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The value of a ``logconf/`` or ``bind/`` key, and what `Log.settings` gives."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Option name to value; what is not here is the namespace's, or the default. Names that this program
    does not know are kept."""
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    """What the user notes about the log."""
    version: int = field(default=0, compare=False)
    """How often it was changed; 0: nothing is stored."""
    out_of_range: tuple[str, ...] = field(default=(), compare=False)
    """A text about each stored number that is replaced in ``settings``. The next change of the settings
    corrects the store too."""

    def changed(
        self, settings: Mapping[str, Any], metadata: Mapping[str, bytes | None]
    ) -> "StoredSettings":
        """With some set, and those that are None unset. Raises `InvalidRequest`."""
        for name in settings:
            if name in LOCAL:
                raise InvalidRequest(
                    f"option {name} is each process's own: open_namespace(config=) or open_log(config=) "
                    f"sets it, it is not stored; what may be is {', '.join(KNOWN)}"
                )
            if name not in KNOWN:
                raise InvalidRequest(
                    f"{unknown(name, list(KNOWN))}; what is each process's own, also of its client and "
                    "its ledgers, goes to open_namespace(config=) and is not stored"
                )
        new = {**self.settings, **storable(settings)}
        notes = {**self.metadata, **metadata}
        found = replace(
            self,
            settings={name: value for name, value in new.items() if value is not None},
            metadata={name: value for name, value in notes.items() if value is not None},
        )
        found.check()
        return found

    def check(self) -> None:
        """Raise `InvalidRequest` that names what is not legal."""
        for cls in _PARTS:
            overlaid(cls(), self.only(one for one in names(cls) if one in KNOWN))
        _ = self.quorums
        for name, value in self.metadata.items():
            if not (isinstance(name, str) and len(name) <= NAME_CHARS_MAX and type(value) is bytes):
                raise InvalidRequest(
                    f"a log's metadata is text (up to {NAME_CHARS_MAX} characters) to bytes: {name!r:.80}"
                )
        if len(self.metadata) > COUNT_MAX:
            raise InvalidRequest(f"a log has at most {COUNT_MAX} notes")
        for what, said, most in (
            ("settings", self.settings, SETTINGS_BYTES_MAX),
            ("metadata", self.metadata, METADATA_BYTES_MAX),
        ):
            size = len(pack(dict(said)))
            if size > most:
                raise InvalidRequest(f"a log's {what} have {size} bytes, allowed are {most}")

    def only(self, chosen: Iterable[str]) -> dict[str, Any]:
        """Those of these names that are set."""
        return {name: self.settings[name] for name in chosen if name in self.settings}

    @property
    def quorums(self) -> tuple[int, int, int] | None:
        """Ensemble, write and ack quorum; None: not set here. Raises `InvalidRequest`."""
        given = self.only(QUORUMS)
        if not given:
            return None
        if len(given) < len(QUORUMS):
            raise InvalidRequest(f"{', '.join(QUORUMS)}: set all three, or none")
        ensemble, write, ack = (given[name] for name in QUORUMS)
        for name in QUORUMS:
            check_whole(f"option {name}", given[name], 1, BOOKIES_MAX)
        if not ensemble >= write >= ack:
            raise InvalidRequest(
                f"ensemble {ensemble!r} >= write quorum {write!r} >= ack quorum {ack!r} >= 1 does not hold"
            )
        return ensemble, write, ack

    def encode(self) -> bytes:
        """As a packed list with a format number."""
        return pack([FORMAT, dict(self.settings), dict(self.metadata)])

    @classmethod
    def decode(cls, value: bytes, version: int = 0) -> "StoredSettings":
        """Raises `CorruptData`, also for an illegal value, or `UnsupportedFormat`.

        A number that is out of its option's limits is replaced (see the module).
        """
        what = "the settings of a log"
        settings, metadata = fit(decode_fields(value, FORMAT, 3, what)[:2], _STORED, what)
        settings, out_of_range = _usable(settings)
        found = cls(settings, metadata, version, out_of_range)
        try:
            found.check()
        except InvalidRequest as error:
            raise CorruptData(f"{what}: {error}") from None
        return found


_PARTS: tuple[type[LogOptions | RetentionOptions | MergingOptions], ...] = (
    LogOptions,
    RetentionOptions,
    MergingOptions,
)


def _finite(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(settings)
    for cls in _PARTS:
        found = finite(cls, found)
    return found


def storable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings, and return them with infinity in its stored form. Raises `InvalidRequest`.

    None unsets an option. Unknown names are left to the caller.
    """
    found = _finite(settings)
    for cls in _PARTS:
        given = {name: found.get(name) for name in names(cls) if name in KNOWN}
        overlaid(cls(), {name: value for name, value in given.items() if value is not None})
    for name in QUORUMS:
        if found.get(name) is not None:
            check_whole(f"option {name}", found[name], 1, BOOKIES_MAX)
    return found


def _usable(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return stored settings with usable numbers, and a text about each one that is replaced."""
    found, out_of_range = _finite(settings), []
    for one in (one for cls in _PARTS for one in described(cls) if one.name in KNOWN):
        value = found.get(one.name)
        if is_number(one) and type(value) in (int, float) and not is_legal(one, value):
            del found[one.name]
            if "kept" in one.metadata:
                found[one.name] = one.metadata["kept"]
            counts_as = found.get(one.name, "not set")
            out_of_range.append(
                f"option {one.name} is {value!r}, not {legal(one)}: it counts as {counts_as}"
            )
    quorums = [found[name] for name in QUORUMS if name in found]
    if any(type(one) is int and not 1 <= one <= BOOKIES_MAX for one in quorums):
        found = {name: value for name, value in found.items() if name not in QUORUMS}
        out_of_range.append(
            f"{', '.join(QUORUMS)} are {quorums}, not 1 to {BOOKIES_MAX}: they count as not set"
        )
    return found, tuple(out_of_range)


def _plain(value: Any) -> Any:
    if type(value) not in (bool, int, float, str):
        raise SchemaError("a setting is a number, a text, or true or false")
    return value


_STORED = row(mapping(_plain, COUNT_MAX), mapping(blob(METADATA_BYTES_MAX), COUNT_MAX))


def effective(
    options: LogOptions, given: Iterable[str], bind: StoredSettings, own: StoredSettings
) -> LogOptions:
    """What holds for a log: ``options`` with what is stored over them, but for what ``given`` names.

    ``given`` are the options that the caller of `open_log` named, ``options`` has their values. Raises
    `InvalidRequest` where one of them contradicts what is stored and is not the caller's to decide.
    """
    stored = {**bind.only(SHARED), **own.only(SHARED)}
    for name in given:
        if name not in stored:
            continue
        value = stored.pop(name)
        if name not in OVERLAID and value != getattr(options, name):
            raise InvalidRequest(
                f"option {name} of this log is stored as {value!r}: it is changed by Log.set, not by config"
            )
    return overlaid(options, stored)


def retention_of(bind: StoredSettings, own: StoredSettings) -> RetentionOptions:
    """By what a log's records go."""
    return overlaid(RetentionOptions(), {**bind.only(RETENTION), **own.only(RETENTION)})


def merging_of(bind: StoredSettings, own: StoredSettings) -> MergingOptions:
    """Whether a log's segments are merged."""
    return overlaid(MergingOptions(), {**bind.only(MERGING), **own.only(MERGING)})


def conf_key(log_id: int) -> bytes:
    """Where a log's settings are."""
    return CONF_PREFIX + b"%016x" % log_id


def bind_key(namespace: str) -> bytes:
    """Where a namespace's settings are."""
    return BIND_PREFIX + namespace.encode()
