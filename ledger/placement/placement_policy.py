"""How far apart the copies of an entry are to be: a cluster's policy, and the labels that it goes by (pure).

It is one record, ``conf/placement``; where there is none, racks are kept apart where that is possible.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...runtime.interfaces.errors import InvalidRequest
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    decode_versioned,
    fields,
    flag,
    number,
    one_of,
    verify_round_trip,
)

FORMAT = 1
LEVELS = ("host", "rack", "zone", "region")
"""Labels that say where a bookie stands, the narrowest first: what shares a host shares the others too."""
DOMAINS_MAX = 100
LABEL_CHARS_MAX = 255

_POLICY = fields(
    format=number(), level=one_of(*LEVELS), at_least=number(1, DOMAINS_MAX), enforced=flag
)


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """Each write set reaches ``at_least`` different ``level``s, or as many as it has copies."""

    level: str = "rack"
    at_least: int = 2
    enforced: bool = False
    """Rather no new ensemble than one that does not; else it is a preference."""

    def location(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Where a bookie stands, as far as this policy looks: its host first, its ``level`` last."""
        return tuple(labels.get(level, "") for level in LEVELS[: LEVELS.index(self.level) + 1])

    def as_preference(self) -> "PlacementPolicy":
        """The same as a preference: for copies that are better stored anywhere than not."""
        return replace(self, enforced=False)

    def check_reachable(self, domains: Mapping[str, int]) -> None:
        """Raise `InvalidRequest` where it would stop all writes with the loss of one domain (H111).

        ``domains`` are the values of the label, with how many bookies have each.
        """
        if self.enforced and len(domains) < self.at_least + 1:
            domain_counts = ", ".join(f"{name}: {count}" for name, count in sorted(domains.items()))
            raise InvalidRequest(
                f"{self.at_least} {self.level}s a write set, enforced, needs bookies in"
                f" {self.at_least + 1} {self.level}s at least, or the loss of one stops all writes; there are"
                f" {domain_counts or 'none with that label'}"
            )

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """As the value of its key."""
        return pack(
            {
                "format": FORMAT,
                "level": self.level,
                "at_least": self.at_least,
                "enforced": self.enforced,
            }
        )

    @classmethod
    def decode(cls, value: Buffer) -> "PlacementPolicy":
        """Raises `CorruptData`, or `UnsupportedFormat` for the record of a newer version."""
        values = decode_versioned(value, FORMAT, _POLICY, "the placement policy")
        del values["format"]
        return cls(**values)


def parse_labels(texts: Iterable[str], what: str) -> dict[str, str]:
    """Repeated ``KEY=VALUE``, each key once. Raises `InvalidRequest`."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and key and value) or len(value) > LABEL_CHARS_MAX or key in labels:
            raise InvalidRequest(
                f"{what} {text!r}: wanted is KEY=VALUE, each key once, such as zone=z1"
            )
        labels[key] = value
    return labels
