"""The registration record of a bookie: identity, addresses and free space (pure).

The registration has a lease. It shows only that the bookie was alive a short time ago, so no decision that
must be correct depends on it. Ensembles contain bookie IDs. A client looks up the address here, by the name
of the listener through which it connects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...runtime.declarations.condition_texts import report_of
from ...runtime.declarations.health_conditions import HealthCondition, conditions_form, legacy_form
from ...runtime.declarations.versions import VERSION_CHARS_MAX
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
        "pulls": (flag, None),
        "principal": (text(), ""),
        "limbo_below": (number(), 0),
        "version": (text(VERSION_CHARS_MAX), ""),
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
    """The registration record of one live bookie."""

    id: str
    """Created with the data directory and deleted with it (H6)."""
    addresses: Mapping[str, Address]
    """By listener name; "" is the default listener."""
    incarnation: int = 0
    """How often this data directory was started."""
    rack: str = ""
    """Ensembles are spread over racks if possible. "" counts as a rack, too."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further locations (`placement_policy.LEVELS`) and any other labels that the operator assigned."""
    read_only: bool = False
    free_bytes: int = 0
    used_bytes: int = 0
    ledgers: int = 0
    conditions: tuple[HealthCondition, ...] = ()
    """The health conditions of the bookie. Those of a version without codes are `Code.LEGACY_TEXT`."""
    corruption_counts: tuple[int, int, int] = (0, 0, 0)
    """Three counts: ledgers with corrupt entries, those without a good copy anywhere, and repaired entries.

    Repaired entries are counted from the start of the bookie.
    """
    copies_assigned_ledgers: bool | None = False
    """Whether the bookie copies the ledgers that are assigned to it (``move/``). None: it has a version that
    never does, and does not state whether it repairs by itself."""
    principal: str = ""
    """The principal in the certificate that the bookie presents to clients. "": no certificate, or an older
    version."""
    limbo_below: int = 0
    """Writers should soon close ledgers with a lower ID that name this bookie.

    The bookie lost data and can repair these ledgers only when they are closed. 0: no such ledgers, or an
    older version.
    """
    version: str = ""
    """The version of its software. "": 0.1 or older (`versions.py`)."""

    def where(self) -> Mapping[str, str]:
        """Return all labels, including the rack."""
        return {**self.labels, "rack": self.rack} if self.rack else self.labels

    def address(self, listener: str) -> Address | None:
        """Return the address for clients that connect through a listener of this name.

        If the bookie has no such listener, return its default address, otherwise the first one. An address
        that may be unreachable is better than none.

        Args:
            listener: The listener's name.

        Returns:
            The address, or None if the bookie has none.
        """
        for name in (listener, "", *self.addresses):
            if name in self.addresses:
                return self.addresses[name]
        return None

    def encode(self, *, codes: bool = True) -> bytes:
        """Encode the record as the value of the bookie's key.

        Args:
            codes: False: the fields of version 0.1, which the simulator also runs. See `report_of`.
        """
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
                **report_of(self.conditions, codes=codes),
                "rot": list(self.corruption_counts),
                **(
                    {}
                    if self.copies_assigned_ledgers is None
                    else {"pulls": self.copies_assigned_ledgers}
                ),
                "principal": self.principal,
                "limbo_below": self.limbo_below,
                **({"version": self.version} if codes else {}),
            }
        )

    @classmethod
    def decode(cls, key: bytes, value: Buffer) -> "BookieRegistration":
        """Decode the value of a bookie's key.

        Raises:
            CorruptData: The value is invalid or belongs to another bookie.
            UnsupportedFormat: The record is of a newer version.
        """
        bookie_id = bookie_id_of(key)
        what = f"the registration {printable_key(key)}"
        values = decode_versioned(value, FORMAT, _REGISTRATION, what)
        if values["id"] != bookie_id:
            raise CorruptData(f"{what} is that of another bookie")
        del values["format"]
        values["corruption_counts"] = values.pop("rot")
        values["copies_assigned_ledgers"] = values.pop("pulls")
        legacy = values.pop("reasons")
        if values["conditions"] is None:
            values["conditions"] = legacy
        return cls(**values)
