"""The placement policy of a cluster: how far apart the copies of an entry are stored (pure).

The policy is one record, ``conf/placement``. Without it, copies are stored in different racks if possible.
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
"""Labels for the location of a bookie, the narrowest first. Bookies that share a host share the wider ones,
too."""
DOMAINS_MAX = 100
LABEL_CHARS_MAX = 255

_POLICY = fields(
    format=number(), level=one_of(*LEVELS), at_least=number(1, DOMAINS_MAX), enforced=flag
)


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """Each write set spans ``at_least`` different values of ``level``, or as many as it has copies."""

    level: str = "rack"
    at_least: int = 2
    enforced: bool = False
    """Whether ensembles that violate the policy are rejected. Otherwise the policy is a preference."""

    def location(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the labels of a bookie that this policy uses: the host first, ``level`` last."""
        return tuple(labels.get(level, "") for level in LEVELS[: LEVELS.index(self.level) + 1])

    def as_preference(self) -> "PlacementPolicy":
        """Return the same policy as a preference, for copies that must be stored even if they violate it."""
        return replace(self, enforced=False)

    def check_reachable(self, domains: Mapping[str, int]) -> None:
        """Check that the loss of one domain would not stop all writes (H111).

        Args:
            domains: The number of bookies by value of the ``level`` label.

        Raises:
            InvalidRequest: The policy is enforced and there are at most ``at_least`` domains.
        """
        if self.enforced and len(domains) < self.at_least + 1:
            domain_counts = ", ".join(f"{name}: {count}" for name, count in sorted(domains.items()))
            raise InvalidRequest(
                f"an enforced policy of {self.at_least} {self.level}s per write set requires bookies in"
                f" at least {self.at_least + 1} {self.level}s, otherwise the loss of one stops all writes"
                f" (there are {domain_counts or 'none with that label'})"
            )

    @verify_round_trip(lambda record, value: type(record).decode(value))
    def encode(self) -> bytes:
        """Encode the policy as the value of its key."""
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
        """Decode the value of the policy's key.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: The record is of a newer version.
        """
        values = decode_versioned(value, FORMAT, _POLICY, "the placement policy")
        del values["format"]
        return cls(**values)


def parse_labels(texts: Iterable[str], what: str) -> dict[str, str]:
    """Parse repeated ``KEY=VALUE`` texts.

    Args:
        texts: The texts. Each key may occur once.
        what: The option or setting that contains them, for messages.

    Raises:
        InvalidRequest: A text is invalid, a value is too long, or a key is repeated.
    """
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and key and value) or len(value) > LABEL_CHARS_MAX or key in labels:
            raise InvalidRequest(
                f"{what} {text!r}: expected KEY=VALUE with each key once, such as zone=z1"
            )
        labels[key] = value
    return labels
