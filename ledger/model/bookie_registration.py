"""A bookie's registration record: who it is, where it listens, how full it is (pure).

The registration is leased: it says "alive a moment ago", and nothing is decided from it that must be
right. Ensembles hold ids; an address is looked up here, by the name of the listener one comes in on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...runtime.declarations.condition_texts import report_of
from ...runtime.declarations.health_conditions import HealthCondition, conditions_form, legacy_form
from ...runtime.interfaces.errors import CorruptData
from ...runtime.interfaces.host import Address, Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_versioned, fields, flag, mapping, number, row, text
from .ledger_keys import bookie_id_of, printable_key

FORMAT = 1
LISTENERS_MAX = 64
LABELS_MAX = 64
HOST_CHARS_MAX = 255


_REGISTRATION = fields(
    {
        "reasons": (legacy_form, ()),
        "conditions": (conditions_form, None),
        "rot": (row(number(), number(), number()), (0, 0, 0)),
        "pulls": (flag, False),
        "principal": (text(), ""),
        "limbo_below": (number(), 0),
    },
    format=number(),
    id=text(chars_min=1),
    addresses=mapping(row(text(HOST_CHARS_MAX, 1), number(0, 65_535)), LISTENERS_MAX),
    incarnation=number(),
    rack=text(4096),
    labels=mapping(text(4096), LABELS_MAX),
    read_only=flag,
    free_bytes=number(),
    used_bytes=number(),
    ledgers=number(),
)


@dataclass(frozen=True, slots=True)
class BookieRegistration:
    """One live bookie."""

    id: str
    """Made with the data directory, dies with it (H6)."""
    addresses: Mapping[str, Address]
    """By listener name; "" is the default one."""
    incarnation: int = 0
    """How often this data directory was started."""
    rack: str = ""
    """Ensembles spread over racks where they can; "" is a rack as well."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Where else it stands, and whatever its operator says of it (`placement_policy.LEVELS`)."""
    read_only: bool = False
    free_bytes: int = 0
    used_bytes: int = 0
    ledgers: int = 0
    conditions: tuple[HealthCondition, ...] = ()
    """Its health conditions, those of a version without codes as `Code.LEGACY_TEXT`."""
    rot: tuple[int, int, int] = (0, 0, 0)
    """Ledgers with rotten entries; those without a good copy anywhere; entries healed since its start."""
    pulls: bool = False
    """It fetches what it is asked to take (``move/``); one of an older version does not."""
    principal: str = ""
    """Whose certificate who dials it is shown; "": it has none, or is of an older version."""
    limbo_below: int = 0
    """It lost data: ledgers with a lower id that name it are to end soon, to be healed there. 0: none, or it
    is of an older version."""

    def where(self) -> Mapping[str, str]:
        """All labels, the rack among them."""
        return {**self.labels, "rack": self.rack} if self.rack else self.labels

    def address(self, listener: str) -> Address | None:
        """Where to dial, for one who came in on this listener.

        A bookie without such a listener is dialled at its default one, else at the first it names: an
        address that may be out of reach is better than none. None for a bookie that gives no address.
        """
        for name in (listener, "", *self.addresses):
            if name in self.addresses:
                return self.addresses[name]
        return None

    def encode(self) -> bytes:
        """As the value of the bookie's key."""
        return pack(
            {
                "format": FORMAT,
                "id": self.id,
                "incarnation": self.incarnation,
                "addresses": {name: list(address) for name, address in self.addresses.items()},
                "rack": self.rack,
                "labels": dict(self.labels),
                "read_only": self.read_only,
                "free_bytes": self.free_bytes,
                "used_bytes": self.used_bytes,
                "ledgers": self.ledgers,
                **report_of(self.conditions),
                "rot": list(self.rot),
                "pulls": self.pulls,
                "principal": self.principal,
                "limbo_below": self.limbo_below,
            }
        )

    @classmethod
    def decode(cls, key: bytes, value: Buffer) -> "BookieRegistration":
        """Raises `CorruptData`, or `UnsupportedFormat` for the record of a newer version."""
        bookie_id = bookie_id_of(key)
        what = f"the registration {printable_key(key)}"
        values = decode_versioned(value, FORMAT, _REGISTRATION, what)
        if values["id"] != bookie_id:
            raise CorruptData(f"{what} is that of another bookie")
        del values["format"]
        legacy = values.pop("reasons")
        if values["conditions"] is None:
            values["conditions"] = legacy
        return cls(**values)
