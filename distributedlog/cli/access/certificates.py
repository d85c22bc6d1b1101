"""The certificates of a cluster: an authority of its own, and a directory a node or user (`dlog pki`).

Each directory holds ``cert.pem``, ``key.pem`` (for its owner alone) and ``ca.pem``;
`distributedlog/runtime/net/tls.py` uses them. A certificate says who holds it by one URI,
``dlog://DOMAIN/KIND/NAME``. Needs the library `cryptography`, which nothing else here does (the extra
``pki``): nodes and clients need none.
"""

import contextlib
import datetime
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runtime.disk.output_file import write_file
from ...runtime.interfaces.errors import InvalidRequest
from ...runtime.interfaces.principals import KINDS, LOCAL, serial_of
from ...runtime.net.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE, is_name

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_KEY_FILE = "ca.key"
CA_DAYS = 3650
DAYS = 365
_LIST_ENDS = b"-----END X509 CRL-----"
CLOCK_TOLERANCE = datetime.timedelta(minutes=5)
"""A certificate begins so long before it is made: clocks differ."""


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """What `dlog pki show` says of a directory."""

    principal: str
    """Empty for an authority."""
    domain: str
    serial: str
    ends: datetime.datetime
    ca_ends: datetime.datetime


def make_authority(directory: Path, domain: str, *, days: int = CA_DAYS) -> None:
    """A new authority: ``ca.pem`` and ``ca.key``. Raises `InvalidRequest` where one is there already."""
    if not is_name(domain, 64):
        raise InvalidRequest(
            f"a domain is made of letters, digits, . _ and -, at most 64: {domain!r}"
        )
    if (directory / CA_KEY_FILE).exists() or (directory / CA_FILE).exists():
        raise InvalidRequest(f"{directory} holds an authority already: nothing was changed")
    certificate, key = _self_signed(domain, days)
    _write(directory, CA_KEY_FILE, _key_text(key), secret=True)
    _write(directory, CA_FILE, _pem(certificate))


def issue(
    authority: Path, principal: str, out: Path, *, days: int = DAYS, hosts: Sequence[str] = ()
) -> None:
    """A directory for ``principal`` (``bookie/b4``), signed by that authority; replaces what is there.

    ``hosts``: names and addresses at which it is reached by HTTPS, too (a gateway). Raises `InvalidRequest`.
    """
    kind, _, name = principal.partition("/")
    if kind not in KINDS or not is_name(name) or principal == LOCAL:
        raise InvalidRequest(
            f"{principal!r} is nobody: wanted is {' or '.join(f'{kind_name}/NAME' for kind_name in KINDS)}"
        )
    x509, ec = _import_library()
    ca, ca_key = _authority(authority)
    domain = _domain(ca)
    if days > (days_left := (ca.not_valid_after_utc - _now()).days):
        raise InvalidRequest(f"the authority itself ends in {days_left} days: dlog pki roll-ca")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, principal)])
    uses = [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    uri = x509.UniformResourceIdentifier(f"dlog://{domain}/{principal}")
    builder = (
        _certificate_builder(subject, ca.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([uri, *map(_alternative_name, hosts)]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    certificate = _pem(_sign(builder, ca_key))
    _write(out, KEY_FILE, _key_text(key), secret=True)
    _write(out, CERTIFICATE_FILE, certificate)
    _copy_trust(authority, out)


def issue_if_own(
    authority: Path, principal: str, out: Path, *, days: int = DAYS, hosts: Sequence[str] = ()
) -> None:
    """The same, where nothing is there, or what is ``principal``'s own: another one's key would be gone."""
    if _is_complete(out) and (other_principal := show(out).principal) != principal:
        raise InvalidRequest(
            f"{out} is {other_principal}'s, nothing was changed: name another --out, or delete that first"
        )
    issue(authority, principal, out, days=days, hosts=hosts)


def renew(authority: Path, directory: Path, *, days: int = DAYS) -> str:
    """A new key and certificate for whom the directory is; who that is. Raises `InvalidRequest`."""
    principal = show(directory).principal
    issue(authority, principal, directory, days=days, hosts=_hosts_in_certificate(directory))
    return principal


def trust(authority: Path, directory: Path) -> None:
    """Have a directory trust what the authority's ``ca.pem`` names, and not what its ``crl.pem`` does.

    Raises `InvalidRequest`.
    """
    _read(directory / CA_FILE)
    _copy_trust(authority, directory)


def revoke(authority: Path, serials: Sequence[str]) -> None:
    """Put certificates on the list of those that are taken no more, ``crl.pem``. Raises `InvalidRequest`.

    It is good as long as the authority: one that ended would have every node refuse everybody. Each authority
    that is trusted has a list of its own, for OpenSSL wants one of each; that of one before stays as it is.
    """
    x509, _ = _import_library()
    ca, key = _authority(authority)
    own_revoked: dict[int, Any] = {}
    other_lists = []
    for revocation_list in _revocation_lists(authority):
        if revocation_list.is_signature_valid(key.public_key()):
            own_revoked |= {entry.serial_number: entry for entry in revocation_list}
        else:
            other_lists.append(revocation_list)
    for serial in serials:
        number = int(serial_of(serial), 16)
        revoked_certificate = (
            x509.RevokedCertificateBuilder().serial_number(number).revocation_date(_now())
        )
        own_revoked.setdefault(number, revoked_certificate.build())
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.subject)
        .last_update(_now() - CLOCK_TOLERANCE)
        .next_update(ca.not_valid_after_utc)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
    )
    for entry in own_revoked.values():
        builder = builder.add_revoked_certificate(entry)
    _write(authority, REVOKED_FILE, b"".join(map(_pem, [_sign(builder, key), *other_lists])))


def roll_authority(directory: Path) -> None:
    """A new key for the authority; ``ca.pem`` names the new one and those of before that have not ended."""
    old_certificates = _read(directory / CA_FILE)
    domain = _domain(old_certificates[0])
    certificate, key = _self_signed(domain, CA_DAYS)
    still_valid = [
        _pem(old_certificate)
        for old_certificate in old_certificates
        if old_certificate.not_valid_after_utc > _now()
    ]
    _write(directory, CA_KEY_FILE, _key_text(key), secret=True)
    _write(directory, CA_FILE, b"".join([_pem(certificate), *still_valid]))
    if (directory / REVOKED_FILE).exists():
        revoke(directory, ())  # the new one needs a list, too


def ensure(
    authority: Path,
    domain: str,
    principals: Sequence[str],
    out: Path,
    *,
    days: int = DAYS,
    hosts: Mapping[str, Sequence[str]] = {},
) -> list[str]:
    """The authority and a directory each, made or renewed where needed; a line each on what was done.

    ``hosts``: see `issue`, by principal.

    Where the authority was given a new key, a directory trusts both, and is renewed when it is time; where it
    was lost, and another one made, it is renewed at once, for nobody would take it. Raises `InvalidRequest`.
    """
    report_lines = []
    directories = [out / principal.partition("/")[2] for principal in principals]
    for principal, principal_directory in zip(principals, directories, strict=True):
        first_principal = principals[directories.index(principal_directory)]
        if first_principal != principal:
            raise InvalidRequest(
                f"{principal} and {first_principal} would have one directory, {principal_directory}: "
                "give one another name"
            )
    if not (authority / CA_FILE).exists() and not any(
        (principal_directory / CERTIFICATE_FILE).exists() for principal_directory in directories
    ):
        # One that was being made when that was ended: it has signed nothing.
        (authority / CA_KEY_FILE).unlink(missing_ok=True)
    if not (authority / CA_KEY_FILE).exists():
        make_authority(authority, domain)
        report_lines.append(f"{authority}: the authority of {domain}")
    for principal, directory in zip(principals, directories, strict=True):
        if _is_complete(directory):
            report = show(directory)
            is_fresh = (report.ends - _now()).days * 3 > days and report.principal == principal
            is_fresh = is_fresh and set(_hosts_in_certificate(directory)) == set(
                hosts.get(principal, ())
            )
            if is_fresh and _is_signed(authority, directory):
                if not _is_trust_equal(authority, directory):
                    trust(authority, directory)
                    report_lines.append(f"{directory}: trusts what {authority} trusts")
                continue
        issue(authority, principal, directory, days=days, hosts=hosts.get(principal, ()))
        report_lines.append(f"{directory}: {principal}, for {days} days")
    return report_lines


def show(directory: Path) -> CertificateReport:
    """What a directory, or an authority's, holds. Raises `InvalidRequest`."""
    ca = _read(directory / CA_FILE)[0]
    if not (directory / CERTIFICATE_FILE).exists():
        return CertificateReport(
            "", _domain(ca), _serial(ca), ca.not_valid_after_utc, ca.not_valid_after_utc
        )
    x509, _ = _import_library()
    certificate = _read(directory / CERTIFICATE_FILE)[0]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    domain, _, principal = (uris[0] if uris else "").removeprefix("dlog://").partition("/")
    return CertificateReport(
        principal,
        domain,
        _serial(certificate),
        certificate.not_valid_after_utc,
        ca.not_valid_after_utc,
    )


def _is_complete(directory: Path) -> bool:
    """Are all its files there, and is the key that of the certificate? Else making it was ended half way."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key((directory / KEY_FILE).read_bytes(), None)
        certificate, _ = _read(directory / CERTIFICATE_FILE)[0], _read(directory / CA_FILE)[0]
    except (InvalidRequest, IndexError, OSError, TypeError, ValueError):
        return False
    return bool(key.public_key() == certificate.public_key())


def _alternative_name(name: str) -> Any:
    """As a certificate has it. Raises `InvalidRequest`."""
    x509, _ = _import_library()
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not is_name(name, 253):
            raise InvalidRequest(f"{name!r:.80} is no name of a host, nor an address") from None
        return x509.DNSName(name)


def _hosts_in_certificate(directory: Path) -> list[str]:
    """Those in a directory's certificate."""
    x509, _ = _import_library()
    certificate = _read(directory / CERTIFICATE_FILE)[0]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _is_signed(authority: Path, directory: Path) -> bool:
    """Is its certificate one of the authorities' that are trusted?"""
    from cryptography.exceptions import InvalidSignature

    certificate = _read(directory / CERTIFICATE_FILE)[0]
    for ca in _read(authority / CA_FILE):
        with contextlib.suppress(ValueError, InvalidSignature):
            certificate.verify_directly_issued_by(ca)
            return True
    return False


def _is_trust_equal(authority: Path, directory: Path) -> bool:
    """Does it trust whom the authority does, and not whom that does not?"""
    files = [either / REVOKED_FILE for either in (authority, directory)]
    lists = [file.read_bytes() if file.exists() else b"" for file in files]
    own_authorities, trusted = (set(_read(either / CA_FILE)) for either in (directory, authority))
    return own_authorities == trusted and lists[0] == lists[1]


def _copy_trust(authority: Path, directory: Path) -> None:
    lists = _revocation_lists(authority)
    if lists:  # first: a list of an authority that is not known yet harms nobody
        _write(directory, REVOKED_FILE, b"".join(map(_pem, lists)))
    _write(directory, CA_FILE, b"".join(map(_pem, _read(authority / CA_FILE))))


def _revocation_lists(authority: Path) -> "list[x509.CertificateRevocationList]":
    x509, _ = _import_library()
    file = authority / REVOKED_FILE
    try:
        parts = file.read_bytes().split(_LIST_ENDS)[:-1]
        return [x509.load_pem_x509_crl(part + _LIST_ENDS) for part in parts]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror}") from None
    except ValueError:
        raise InvalidRequest(f"{file} holds no list of revoked certificates") from None


def _self_signed(domain: str, days: int) -> tuple[Any, Any]:
    """A new authority's certificate and key."""
    x509, ec = _import_library()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, domain)])
    builder = (
        _certificate_builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _sign(builder, key), key


def _import_library() -> tuple[Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise InvalidRequest(
            "making certificates needs the library cryptography: pip install '.[pki]'"
        ) from None
    return x509, ec


def _authority(directory: Path) -> "tuple[x509.Certificate, ec.EllipticCurvePrivateKey]":
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    ca = _read(directory / CA_FILE)[0]
    try:
        key = load_pem_private_key((directory / CA_KEY_FILE).read_bytes(), None)
    except OSError as error:
        raise InvalidRequest(f"{directory / CA_KEY_FILE}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise InvalidRequest(f"{directory / CA_KEY_FILE} is no private key") from None
    if key.public_key() != ca.public_key():  # what it signs nobody would take
        raise InvalidRequest(
            f"{directory / CA_KEY_FILE} is not the key of {CA_FILE} there: say dlog pki roll-ca once more,"
            " or put the right one there"
        )
    return ca, key  # type: ignore[return-value]


def _read(file: Path) -> "list[x509.Certificate]":
    x509, _ = _import_library()
    try:
        return list(x509.load_pem_x509_certificates(file.read_bytes()))
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror}") from None
    except ValueError:
        raise InvalidRequest(f"{file} holds no certificate") from None


def _domain(ca: "x509.Certificate") -> str:
    x509, _ = _import_library()
    return str(ca.subject.get_attributes_for_oid(x509.oid.NameOID.COMMON_NAME)[0].value)


def _serial(certificate: "x509.Certificate") -> str:
    return f"{certificate.serial_number:x}"


def _certificate_builder(subject: Any, issuer: Any, public_key: Any, days: int) -> Any:
    x509, _ = _import_library()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - CLOCK_TOLERANCE)
        .not_valid_after(_now() + datetime.timedelta(days=days))
    )


def _key_usage(*, signs: bool) -> Any:
    x509, _ = _import_library()
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(builder: Any, key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _key_text(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _write(directory: Path, name: str, content: bytes, *, secret: bool = False) -> None:
    """Write a file of a directory, which is made if it does not exist. Raises `InvalidRequest`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{directory}: {error.strerror}") from None
    write_file(directory / name, content, secret=secret)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
