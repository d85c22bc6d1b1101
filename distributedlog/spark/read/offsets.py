"""The position of a query in each log, as the canonical JSON that Spark stores in its checkpoint (pure).

    {"ids": {"orders": "<incarnation>"}, "logs": {"orders": "1.13.0"},
     "sequence_ids": {"orders": 4711}, "v": 1}

Each position is the *next* one to read. ``ids`` distinguishes a deleted log from a new one of the same name.
The sequence ID is a function of the position, and later gives the number of records that a truncation
removed. ``searched``, if present, lists logs that had no record at which the query starts (``startingTxid``,
``startingTimestamp``). The query reads nothing of them before such a record exists.

Spark compares offsets as text, so order and spelling are fixed, and offsets contain no time. A source that
spells one position in two ways would cause an infinite number of empty micro-batches.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...log.format.dlsn import DLSN
from ...log.model.position_outcome import HeldPosition
from ...runtime.interfaces.errors import DistributedLogError, InvalidRequest, UnsupportedFormat

FORMAT = 1

Word = Literal["earliest", "latest"]


@dataclass(slots=True)
class Offset:
    """The next position of each log. Immutable once it was given to Spark."""

    logs: dict[str, DLSN] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    sequence_ids: dict[str, int] = field(default_factory=dict)
    """Sequence ID of the record at the position, if known."""
    searched: set[str] = field(default_factory=set)
    """Logs without a record at which the query starts. Their positions are the ends at that time."""

    def put(self, name: str, dlsn: DLSN, identity: str, sequence_id: int | None) -> None:
        """Set the position of one log, while the offset is being built."""
        self.logs[name], self.ids[name] = dlsn, identity
        if sequence_id is not None:
            self.sequence_ids[name] = sequence_id

    def copy_position(self, name: str, other: "Offset") -> None:
        """Copy the position of one log without a change of its spelling."""
        self.put(name, other.logs[name], other.ids[name], other.sequence_ids.get(name))
        if name in other.searched:
            self.searched.add(name)

    def position_of(self, name: str) -> HeldPosition | None:
        """Return the position of one log, or None."""
        if name not in self.logs:
            return None
        return HeldPosition(self.logs[name], self.ids[name], self.sequence_ids.get(name))

    def to_json(self) -> dict[str, Any]:
        """Return the offset for Spark, whose ``json.dumps`` keeps the order of keys."""
        searched = {"searched": sorted(self.searched)} if self.searched else {}
        return {
            "ids": {name: self.ids[name] for name in sorted(self.logs)},
            "logs": {name: str(self.logs[name]) for name in sorted(self.logs)},
            "sequence_ids": {name: self.sequence_ids[name] for name in sorted(self.sequence_ids)},
            **searched,  # older versions ignore it, and read from the position on
            "v": FORMAT,
        }

    @classmethod
    def from_json(cls, value: Any) -> "Offset":
        """Parse an offset.

        Raises:
            UnsupportedFormat: A newer version wrote it.
            InvalidRequest: It belongs to another source or is damaged.
        """
        if not isinstance(value, dict) or "v" not in value:
            raise InvalidRequest(
                f"not an offset of distributedlog: {str(value)[:120]}. The checkpoint belongs to another "
                "source. Use a new checkpointLocation"
            )
        if value["v"] != FORMAT:
            raise UnsupportedFormat(
                f"offset has format {str(value['v'])[:20]}, this version reads format {FORMAT}. A newer "
                "version wrote the checkpoint or the positions"
            )
        logs, ids = value.get("logs"), value.get("ids")
        if not isinstance(logs, dict) or not isinstance(ids, dict) or set(logs) != set(ids):
            raise InvalidRequest(f"an offset without logs and ids: {str(value)[:120]}")
        try:
            return cls(
                {name: DLSN.parse(str(text)) for name, text in logs.items()},
                {name: str(text_value) for name, text_value in ids.items()},
                {
                    name: int(text_value)
                    for name, text_value in dict(value.get("sequence_ids") or {}).items()
                },
                {name for name in value.get("searched") or () if name in logs},
            )
        except (InvalidRequest, ValueError, TypeError) as error:
            raise InvalidRequest(
                f"a damaged offset of distributedlog: {error} in {str(value)[:120]}"
            ) from None


@dataclass(frozen=True, slots=True)
class RequestedPosition:
    """The requested start or end of one log: a word, or a position, possibly of a certain incarnation."""

    word: Word | None = None
    dlsn: DLSN | None = None
    identity: str | None = None
    sequence_id: int | None = None
    """Sequence ID of the record at the position. It gives the number of records that a truncation removed."""


def requested_positions(
    given: Any, names: Iterable[str], option: str, default: Word
) -> dict[str, RequestedPosition]:
    """Return the value of an option such as ``startingPosition`` for each log.

    Args:
        given: None, a word, or JSON by log, in the short form or as from `Offset.to_json`.
        names: The logs that are read.
        option: The name of the option, for errors.
        default: The word for logs that ``given`` does not contain.

    Raises:
        InvalidRequest: A position is invalid, or ``given`` contains a log that is not read.
    """
    names = list(names)
    if given is None or isinstance(given, str):
        word: Word = given if given in ("earliest", "latest") else default  # type: ignore[assignment]
        return dict.fromkeys(names, RequestedPosition(word))
    identities: Mapping[str, str] = {}
    sequence_ids: Mapping[str, int] = {}
    if "v" in given and isinstance(given.get("logs"), dict):
        try:
            offset = Offset.from_json(given)
        except DistributedLogError as error:
            raise error.again(f'option "{option}": {error}') from None
        given, identities, sequence_ids = given["logs"], offset.ids, offset.sequence_ids
    unknown_names = sorted(set(given) - set(names))
    if unknown_names:
        raise InvalidRequest(
            f'option "{option}" contains {unknown_names[0]!r}, which is not among the logs that are read: '
            f"{', '.join(sorted(names)[:20]) or 'none'}"
        )
    requested = {}
    for name in names:
        value = given.get(name, default)
        if value in ("earliest", "latest"):
            requested[name] = RequestedPosition(value)
            continue
        try:
            requested[name] = RequestedPosition(
                dlsn=DLSN.parse(str(value)),
                identity=identities.get(name),
                sequence_id=sequence_ids.get(name),
            )
        except InvalidRequest as error:
            raise InvalidRequest(
                f'option "{option}", log {name!r}: {error}, or earliest, or latest'
            ) from None
    return requested
