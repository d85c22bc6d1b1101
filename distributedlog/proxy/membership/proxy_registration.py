"""A proxy's registration: ``proxy/write/<id>`` or ``proxy/read/<id>``, under a lease (pure).

An id is drawn at each start and never used again (H6): who dials an address and meets another id knows that
the process it meant is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...runtime.interfaces.errors import CorruptData
from ...runtime.interfaces.host import Address, Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    decode_versioned,
    fields,
    flag,
    mapping,
    number,
    one_of,
    row,
    text,
)

FORMAT = 1
PREFIX = b"proxy/"
WRITE, READ = "write", "read"
KINDS = (WRITE, READ)
LISTENERS_MAX = 64
LEASE_S = 3.0

_REGISTRATION = fields(
    format=number(),
    id=text(64, 1),
    kind=one_of(*KINDS),
    addresses=mapping(row(text(255, 1), number(1, 65_535)), LISTENERS_MAX),
    accepting=flag,
    label=text(),
    rack=text(4096),
)


def proxy_key(kind: str, proxy_id: str) -> bytes:
    """``proxy/<kind>/<id>``."""
    return PREFIX + f"{kind}/{proxy_id}".encode()


@dataclass(frozen=True, slots=True)
class ProxyRegistration:
    """One live proxy."""

    id: str
    kind: str
    """`WRITE` or `READ`."""
    addresses: Mapping[str, Address]
    """By listener name; "" is the default one."""
    accepting: bool = True
    """Does it take logs that it has not yet? Not while it drains."""
    label: str = ""
    """A name for people."""
    rack: str = ""

    @property
    def key(self) -> bytes:
        """Where it is kept."""
        return proxy_key(self.kind, self.id)

    def address(self, listener: str) -> Address | None:
        """Where to dial, for one who came in on this listener; the default one where it has none such."""
        for name in (listener, "", *self.addresses):
            if name in self.addresses:
                return self.addresses[name]
        return None

    def encode(self) -> bytes:
        """As the value of its key."""
        return pack(
            {
                "format": FORMAT,
                "id": self.id,
                "kind": self.kind,
                "addresses": {name: list(address) for name, address in self.addresses.items()},
                "accepting": self.accepting,
                "label": self.label,
                "rack": self.rack,
            }
        )

    @classmethod
    def decode(cls, key: bytes, value: Buffer) -> "ProxyRegistration":
        """Raises `CorruptData`, or `UnsupportedFormat` for the record of a newer version."""
        what = f"the registration {key.decode(errors='backslashreplace')[:80]}"
        decoded = decode_versioned(value, FORMAT, _REGISTRATION, what)
        del decoded["format"]
        registration = cls(**decoded)
        if registration.key != key:
            raise CorruptData(f"{what} is that of another proxy")
        return registration
