"""Namespace URIs: addresses, namespace path, and whether access is direct or through proxies.

    distributedlog://HOST:PORT[,HOST:PORT…]/namespace/path        direct; distributedlog-bk:// is an alias
    distributedlog+proxy://HOST:PORT[,HOST:PORT…]/namespace/path  through write and read proxies

Semicolons instead of commas are accepted too. URIs are written with commas, because a semicolon ends a
command in a shell.
"""

import re
from dataclasses import dataclass
from typing import Final

from .log.interfaces.log_names import check_namespace_path
from .runtime.interfaces.errors import InvalidUri
from .runtime.interfaces.host import Address

DIRECT: Final = ("distributedlog", "distributedlog-bk")
PROXIED: Final = ("distributedlog+proxy",)
URI_FORM = "distributedlog://HOST:PORT[,HOST:PORT...]/NAMESPACE"
_ADDRESS_PATTERN = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[^\[\]:@/?#\s]+)):(?P<port>[0-9]{1,5})"
)


@dataclass(frozen=True, slots=True)
class NamespaceUri:
    """A parsed URI."""

    scheme: str
    addresses: tuple[Address, ...]
    """The addresses of metadata nodes, or of proxies. A client may contact any of them first."""
    path: str
    """The path of the namespace, without outer slashes."""

    @property
    def is_proxied(self) -> bool:
        """Whether the client connects through proxies."""
        return self.scheme in PROXIED

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(map(format_address, self.addresses))}/{self.path}"


def format_address(address: Address) -> str:
    """Return ``HOST:PORT``, with brackets around an IPv6 address."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_uri(uri: str) -> NamespaceUri:
    """Parse a namespace URI.

    Raises:
        InvalidUri: The URI is invalid. The message states the expected form.
    """
    if not isinstance(uri, str):
        raise InvalidUri(f"a namespace URI must be text such as {URI_FORM}, not {uri!r}")
    scheme, separator, after_scheme = uri.partition("://")
    if not separator:
        raise InvalidUri(f"not a namespace URI: {uri[:200]!r}; the form is {URI_FORM}")
    scheme = scheme.lower()
    if scheme not in DIRECT + PROXIED:
        known_schemes = ", ".join(f"{name}://" for name in DIRECT + PROXIED)
        raise InvalidUri(
            f"unknown scheme {scheme[:40]!r} in {uri[:200]!r}; supported are {known_schemes}"
        )
    authority, _, path = after_scheme.partition("/")
    if not authority or not path.strip("/"):
        missing_part = "addresses" if not authority else "a namespace"
        raise InvalidUri(
            f"{uri[:200]!r} names no {missing_part.removeprefix('a ')}; the form is {URI_FORM}"
        )
    if "?" in path or "#" in path:
        raise InvalidUri(f"{uri[:200]!r} has a query or fragment; the form is {URI_FORM}")
    addresses = tuple(_parse_address(text, uri) for text in re.split("[;,]", authority) if text)
    if not addresses:
        raise InvalidUri(f"{uri[:200]!r} names no addresses; the form is {URI_FORM}")
    return NamespaceUri(scheme, tuple(dict.fromkeys(addresses)), check_namespace_path(path))


def _parse_address(text: str, uri: str) -> Address:
    match = _ADDRESS_PATTERN.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise InvalidUri(f"{text[:80]!r} in {uri[:200]!r} is not HOST:PORT")
    return match["v6"] or match["host"], int(match["port"])
