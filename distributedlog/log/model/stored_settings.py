"""The stored settings of a log and of its namespace (pure).

    logconf/<log id>          -> StoredSettings: the settings of a log, and its user metadata
    bind/<namespace path>     -> StoredSettings: the settings for all logs of the namespace

There are two kinds of option. *Shared* options apply to the log, whichever client opens it, and may be
stored. A value that is stored for the log takes precedence over one for its namespace, and that over the
``config`` of `open_namespace`. *Local* options (read-ahead, retries, time limits) belong to the process and
are never stored. The ``config`` of `open_log` takes precedence over all for the options of `OVERRIDABLE`. For
other options it must not contradict the stored value.

A stored number out of its option's limits is replaced when it is read: other programs may have stored it, and
one value must not stop all work on its log. An option of `RetentionOptions` gets the value that keeps records
(``kept``). Any other option counts as not set.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from ...ledger.declarations.options import BOOKIES_MAX
from ...runtime.declarations.options import (
    COUNT_LIMIT,
    DURATION_S_MAX,
    check,
    check_whole,
    describe_legal_values,
    is_legal,
    is_number,
    option,
    option_fields,
    option_names,
    replace_infinity,
    unknown_option_error,
    with_overrides,
)
from ...runtime.interfaces.errors import CorruptData, InvalidRequest
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import NUMBER_MAX, SchemaError, blob, check_stored, mapping, row
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

OVERRIDABLE = (
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
"""Sizes, limits and similar options of `LogOptions`, which a process may override for itself."""
STORABLE = (*OVERRIDABLE, "max_txid_check")
"""The options of `LogOptions` that may be stored."""
QUORUMS = ("ensemble_size", "write_quorum", "ack_quorum")
"""The quorums of the log's next segments, set and unset together. The log's state contains them as well."""


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """Options for the time that a log keeps its records.

    They can only be stored: the elected bookie applies them, not a client.
    """

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
    def is_limited(self) -> bool:
        """Whether retention can delete any record."""
        return self.retention and (self.retention_s > 0 or self.retention_bytes > 0)

    @property
    def retention_ms(self) -> int:
        """`retention_s` in ms, for comparison with stored times."""
        return int(self.retention_s * 1000)

    @property
    def hold_max_ms(self) -> int:
        """`hold_max_s` in ms, for comparison with stored times. At the maximum, holds never expire."""
        return NUMBER_MAX if self.hold_max_s >= DURATION_S_MAX else int(self.hold_max_s * 1000)


@dataclass(frozen=True, slots=True)
class MergingOptions:
    """Options for merging a log's small segments. They can only be stored, as `RetentionOptions`."""

    merging: bool = option(
        False, "", "small closed segments share a ledger; records and positions do not change"
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """Options for formats that older programs do not read. They can only be stored.

    They permit the first use. Afterwards the log's state requires programs that support the format.
    """

    record_headers: bool = option(
        True,
        "",
        "records may have a key and headers, if the cluster is finalized for 0.2; version 0.1 refuses to "
        "write the log from the first such record on, and to read that record",
    )

    def __post_init__(self) -> None:
        check(self)


RETENTION = tuple(option_names(RetentionOptions))
MERGING = tuple(option_names(MergingOptions))
FORMATS = tuple(option_names(FormatOptions))
STORED_ONLY = (*RETENTION, *MERGING, *FORMATS)
"""The options that have no effect in the ``config`` of a process."""
STORED_OPTIONS = (*STORABLE, *STORED_ONLY, *QUORUMS)
LOCAL_ONLY = tuple(name for name in option_names(LogOptions) if name not in STORABLE)
"""The other options of `LogOptions`, which belong to the process that opens the log and are never stored."""


def reject_stored_only(
    config: Mapping[str, Any] | None, stored_only: Collection[str] = STORED_ONLY
) -> None:
    """Raise `InvalidRequest` for an option that has no effect in the ``config`` of one process.

    Bookies apply retention and merging, and formats concern all clients. The quorums of a log are stored with
    it. Those in
    ``open_namespace(config=)`` apply to the logs that it creates.
    """
    for name in config or ():
        if name in stored_only:
            hint = "create_log(config=) or Log.set"
            if name in QUORUMS:
                hint += "; open_namespace(config=) is for logs that are created"
            else:
                hint += ", or with its namespace: Namespace.set"
            raise InvalidRequest(f"option {name} is stored with a log: {hint}")


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The settings of a log or namespace, stored as the value of a ``logconf/`` or ``bind/`` key."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Option names and values. Options that are absent have the namespace's value or the default. Unknown
    names are kept."""
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    """Metadata that users store for the log."""
    version: int = field(default=0, compare=False)
    """The number of changes so far, or 0 if nothing is stored."""
    out_of_range: tuple[str, ...] = field(default=(), compare=False)
    """One message per stored number that is replaced in ``settings``. The next change of the settings
    corrects the stored value too."""

    def with_changes(
        self, settings: Mapping[str, Any], metadata: Mapping[str, bytes | None]
    ) -> "StoredSettings":
        """Return the settings with changes. A value of None unsets an option or a metadata name.

        Raises:
            InvalidRequest: An option is unknown, cannot be stored, or has an invalid value.
        """
        for name in settings:
            if name in LOCAL_ONLY:
                raise InvalidRequest(
                    f"option {name} is local to each process and cannot be stored; set it with "
                    "open_namespace(config=) or open_log(config=). Options that can be stored: "
                    f"{', '.join(STORED_OPTIONS)}"
                )
            if name not in STORED_OPTIONS:
                raise InvalidRequest(
                    f"{unknown_option_error(name, list(STORED_OPTIONS))}; options that are local to each "
                    "process, also those of its client and ledgers, cannot be stored: set them with "
                    "open_namespace(config=)"
                )
        new_settings = {**self.settings, **validate_settings(settings)}
        new_metadata = {**self.metadata, **metadata}
        result = replace(
            self,
            settings={name: value for name, value in new_settings.items() if value is not None},
            metadata={name: value for name, value in new_metadata.items() if value is not None},
        )
        result.check()
        return result

    def check(self) -> None:
        """Check all values.

        Raises:
            InvalidRequest: A value is invalid. The message names it.
        """
        for cls in _OPTION_CLASSES:
            with_overrides(
                cls(),
                self.select(
                    option_name
                    for option_name in option_names(cls)
                    if option_name in STORED_OPTIONS
                ),
            )
        _ = self.quorums
        for name, value in self.metadata.items():
            if not (isinstance(name, str) and len(name) <= NAME_CHARS_MAX and type(value) is bytes):
                raise InvalidRequest(
                    f"a log's metadata maps names (text up to {NAME_CHARS_MAX} characters) to bytes: "
                    f"{name!r:.80}"
                )
        if len(self.metadata) > COUNT_MAX:
            raise InvalidRequest(f"a log has at most {COUNT_MAX} metadata names")
        for what, mapping_value, bytes_max in (
            ("settings", self.settings, SETTINGS_BYTES_MAX),
            ("metadata", self.metadata, METADATA_BYTES_MAX),
        ):
            size = len(pack(dict(mapping_value)))
            if size > bytes_max:
                raise InvalidRequest(
                    f"a log's {what} have {size} bytes, the maximum is {bytes_max}"
                )

    def select(self, chosen_names: Iterable[str]) -> dict[str, Any]:
        """Return those of these options that are set."""
        return {name: self.settings[name] for name in chosen_names if name in self.settings}

    @property
    def quorums(self) -> tuple[int, int, int] | None:
        """Ensemble size, write quorum and ack quorum, or None if they are not set here.

        Raises:
            InvalidRequest: Only some of them are set, or they are inconsistent.
        """
        quorum_settings = self.select(QUORUMS)
        if not quorum_settings:
            return None
        if len(quorum_settings) < len(QUORUMS):
            raise InvalidRequest(f"{', '.join(QUORUMS)}: set all three, or none")
        ensemble, write, ack = (quorum_settings[name] for name in QUORUMS)
        for name in QUORUMS:
            check_whole(f"option {name}", quorum_settings[name], 1, BOOKIES_MAX)
        if not ensemble >= write >= ack:
            raise InvalidRequest(
                f"ensemble {ensemble!r} >= write quorum {write!r} >= ack quorum {ack!r} >= 1 does not hold"
            )
        return ensemble, write, ack

    def encode(self) -> bytes:
        """Encode the settings as a packed list with a format number."""
        return pack([FORMAT, dict(self.settings), dict(self.metadata)])

    @classmethod
    def decode(cls, value: bytes, version: int = 0) -> "StoredSettings":
        """Decode the settings. A number out of its option's limits is replaced (see the module docstring).

        Raises:
            CorruptData: The value is invalid, or an option has an invalid value.
            UnsupportedFormat: A newer version wrote the value.
        """
        what = "the settings of a log"
        settings, metadata = check_stored(decode_fields(value, FORMAT, 3, what)[:2], _STORED, what)
        settings, out_of_range = _replace_illegal_numbers(settings)
        result = cls(settings, metadata, version, out_of_range)
        try:
            result.check()
        except InvalidRequest as error:
            raise CorruptData(f"{what}: {error}") from None
        return result


_OPTION_CLASSES: tuple[
    type[LogOptions | RetentionOptions | MergingOptions | FormatOptions], ...
] = (
    LogOptions,
    RetentionOptions,
    MergingOptions,
    FormatOptions,
)


def _with_stored_infinity(settings: Mapping[str, Any]) -> dict[str, Any]:
    converted = dict(settings)
    for cls in _OPTION_CLASSES:
        converted = replace_infinity(cls, converted)
    return converted


def validate_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with infinity in its stored form. None unsets an option. Unknown names are not checked.

    Raises:
        InvalidRequest: A value is invalid.
    """
    converted = _with_stored_infinity(settings)
    for cls in _OPTION_CLASSES:
        part_settings = {
            name: converted.get(name) for name in option_names(cls) if name in STORED_OPTIONS
        }
        with_overrides(
            cls(), {name: value for name, value in part_settings.items() if value is not None}
        )
    for name in QUORUMS:
        if converted.get(name) is not None:
            check_whole(f"option {name}", converted[name], 1, BOOKIES_MAX)
    return converted


def infinite_options(value: Buffer) -> list[str]:
    """Return the options that are stored as infinity, and for which it means "never".

    This version stores another number instead. Version 0.1 stored infinity, with which it cannot calculate.

    Raises:
        CorruptData: The value is invalid.
        UnsupportedFormat: A newer version wrote the value.
    """
    fields = decode_fields(value, FORMAT, 3, "the settings of a log")
    settings = check_stored(fields[:2], _STORED, "the settings of a log")[0]
    usable = _with_stored_infinity(settings)
    return [name for name in settings if settings[name] == inf and usable[name] != inf]


def _replace_illegal_numbers(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return stored settings with usable numbers, and a message about each number that was replaced."""
    usable, out_of_range = _with_stored_infinity(settings), []
    for described_option in (
        described_option
        for cls in _OPTION_CLASSES
        for described_option in option_fields(cls)
        if described_option.name in STORED_OPTIONS
    ):
        value = usable.get(described_option.name)
        if (
            is_number(described_option)
            and type(value) in (int, float)
            and not is_legal(described_option, value)
        ):
            del usable[described_option.name]
            if "kept" in described_option.metadata:
                usable[described_option.name] = described_option.metadata["kept"]
            counts_as = usable.get(described_option.name, "not set")
            out_of_range.append(
                f"option {described_option.name} is {value!r}, not "
                f"{describe_legal_values(described_option)}: it counts as {counts_as}"
            )
    quorums = [usable[name] for name in QUORUMS if name in usable]
    if any(
        type(described_option) is int and not 1 <= described_option <= BOOKIES_MAX
        for described_option in quorums
    ):
        usable = {name: value for name, value in usable.items() if name not in QUORUMS}
        out_of_range.append(
            f"{', '.join(QUORUMS)} are {quorums}, not 1 to {BOOKIES_MAX}: they count as not set"
        )
    return usable, tuple(out_of_range)


def _check_scalar(value: Any) -> Any:
    if type(value) not in (bool, int, float, str):
        raise SchemaError("a setting is a number, a text, or true or false")
    return value


_STORED = row(mapping(_check_scalar, COUNT_MAX), mapping(blob(METADATA_BYTES_MAX), COUNT_MAX))


def effective_options(
    options: LogOptions,
    explicit_names: Iterable[str],
    namespace_settings: StoredSettings,
    log_settings: StoredSettings,
) -> LogOptions:
    """Return the options that apply to a log.

    Args:
        options: The options of the process, including those that the caller of `open_log` gave.
        explicit_names: The options that the caller of `open_log` gave.
        namespace_settings: The stored settings of the namespace.
        log_settings: The stored settings of the log.
    Raises:
        InvalidRequest: An explicit option contradicts the stored value and is not in `OVERRIDABLE`.
    """
    stored = {**namespace_settings.select(STORABLE), **log_settings.select(STORABLE)}
    for name in explicit_names:
        if name not in stored:
            continue
        value = stored.pop(name)
        if name not in OVERRIDABLE and value != getattr(options, name):
            raise InvalidRequest(
                f"option {name} of this log is stored as {value!r}: change it with Log.set, not with config"
            )
    return with_overrides(options, stored)


def retention_of(
    namespace_settings: StoredSettings, log_settings: StoredSettings
) -> RetentionOptions:
    """Return the retention options that apply to a log."""
    return with_overrides(
        RetentionOptions(),
        {**namespace_settings.select(RETENTION), **log_settings.select(RETENTION)},
    )


def merging_of(namespace_settings: StoredSettings, log_settings: StoredSettings) -> MergingOptions:
    """Return the merging options that apply to a log."""
    return with_overrides(
        MergingOptions(), {**namespace_settings.select(MERGING), **log_settings.select(MERGING)}
    )


def formats_of(namespace_settings: StoredSettings, log_settings: StoredSettings) -> FormatOptions:
    """Return the format options that apply to a log."""
    return with_overrides(
        FormatOptions(), {**namespace_settings.select(FORMATS), **log_settings.select(FORMATS)}
    )


def conf_key(log_id: int) -> bytes:
    """Return the key of a log's settings."""
    return CONF_PREFIX + b"%016x" % log_id


def bind_key(namespace: str) -> bytes:
    """Return the key of a namespace's settings."""
    return BIND_PREFIX + namespace.encode()
