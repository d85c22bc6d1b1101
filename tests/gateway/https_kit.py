"""A certificate for HTTPS, and who speaks it from another thread than a gateway's."""

import base64
import datetime
import ipaddress
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0


def forged(token: str) -> str:
    """Well-formed, and of another seal."""
    raw = base64.urlsafe_b64decode(token[6:] + "=" * (-len(token[6:]) % 4))
    return token[:6] + base64.urlsafe_b64encode(raw[:-32] + bytes(32)).decode().rstrip("=")


def certificate(place: Path, name: str = "gateway") -> Path:
    """``cert.pem`` and ``key.pem`` of a host on this machine, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    place.mkdir(exist_ok=True)
    (place / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (place / "key.pem").touch(0o600)
    (place / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return place


class Asked:
    """An answer, read to its end."""

    def __init__(self, answer: HTTPResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"]["name"])

    def __repr__(self) -> str:
        return f"{self.status} {self.body!r}"


class Caller:
    """Who asks a gateway with one token ("": none)."""

    def __init__(self, url: str, token: str = "", trusts: Path | None = None) -> None:
        self.url = url
        self._place = url.partition("://")[2]
        self._token = token
        self._context = (
            ssl.create_default_context(cafile=trusts) if url.startswith("https://") else None
        )

    def with_token(self, token: str) -> "Caller":
        found = Caller.__new__(Caller)
        found.__dict__.update({**self.__dict__, "_token": token})
        return found

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> Asked:
        """On a connection of its own. Underscores in names of headers are dashes."""
        with self.open(method, path, body, **headers) as answer:
            return Asked(answer)

    @contextmanager
    def open(
        self, method: str, path: str, body: str = "", **headers: str
    ) -> Iterator[HTTPResponse]:
        connection: HTTPConnection
        if self._context is None:
            connection = HTTPConnection(self._place, timeout=TIMEOUT_S)
        else:
            connection = HTTPSConnection(self._place, timeout=TIMEOUT_S, context=self._context)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self._token:
            named["authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, body.encode() or None, named)
            yield connection.getresponse()
        finally:
            connection.close()
