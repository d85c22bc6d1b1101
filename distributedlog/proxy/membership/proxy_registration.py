"""The leased registration of a proxy, ``proxy/write/<id>`` or ``proxy/read/<id>`` (pure).

A proxy generates a new ID at each start (H6). A client that finds another ID at an address can conclude
that the earlier process has ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...runtime.declarations.versions import VERSION_CHARS_MAX
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
    {"version": (text(VERSION_CHARS_MAX), "")},
    format=number(),
    id=text(64, 1),
    kind=one_of(*KINDS),
    addresses=mapping(row(text(255, 1), number(1, 65_535)), LISTENERS_MAX),
    accepting=flag,
    label=text(),
    rack=text(4096),
)


def proxy_key(kind: str, proxy_id: str) -> bytes:
    """Return the key ``proxy/<kind>/<id>``."""
    return PREFIX + f"{kind}/{proxy_id}".encode()


@dataclass(frozen=True, slots=True)
class ProxyRegistration:
    """The registration of one live proxy."""

    id: str
    kind: str
    """`WRITE` or `READ`."""
    addresses: Mapping[str, Address]
    """By listener name; "" is the default listener."""
    accepting: bool = True
    """Whether it accepts additional logs. False while it drains."""
    label: str = ""
    """A name for users."""
    rack: str = ""
    version: str = ""
    """The version of its software. "": 0.1 or older (`versions.py`)."""

    @property
    def key(self) -> bytes:
        """The key of the registration."""
        return proxy_key(self.kind, self.id)

    def address(self, listener: str) -> Address | None:
        """Return the address for clients that connect through a listener of this name.

        If the proxy has no such listener, return its default address, otherwise its first one.
        """
        for name in (listener, "", *self.addresses):
            if name in self.addresses:
                return self.addresses[name]
        return None

    def encode(self) -> bytes:
        """Encode the registration as the value of its key."""
        return pack(
            {
                "format": FORMAT,
                "id": self.id,
                "kind": self.kind,
                "addresses": {name: list(address) for name, address in self.addresses.items()},
                "accepting": self.accepting,
                "label": self.label,
                "rack": self.rack,
                "version": self.version,
            }
        )

    @classmethod
    def decode(cls, key: bytes, value: Buffer) -> "ProxyRegistration":
        """Decode the value of a proxy's key.

        Raises:
            CorruptData: The value is invalid or belongs to another proxy.
            UnsupportedFormat: The record is of a newer version.
        """
        what = f"the registration {key.decode(errors='backslashreplace')[:80]}"
        decoded = decode_versioned(value, FORMAT, _REGISTRATION, what)
        del decoded["format"]
        registration = cls(**decoded)
        if registration.key != key:
            raise CorruptData(f"{what} is that of another proxy")
        return registration
