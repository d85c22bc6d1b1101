"""Create a certificate authority for a cluster, and a directory per node or user (`dlog pki`).

Each directory has ``cert.pem``, ``key.pem`` (readable by its owner only) and ``ca.pem``, which
`distributedlog/runtime/net/tls.py` uses. A certificate identifies its owner by one URI,
``dlog://DOMAIN/KIND/NAME``. This module requires the library `cryptography` (the extra ``pki``). Nodes and
clients do not require it.
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
"""A certificate is valid from this long before its creation, because clocks differ."""


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """The content of a directory, as `dlog pki show` prints it."""

    principal: str
    """Empty for an authority."""
    domain: str
    serial: str
    ends: datetime.datetime
    ca_ends: datetime.datetime


def make_authority(directory: Path, domain: str, *, days: int = CA_DAYS) -> None:
    """Create an authority: ``ca.pem`` and ``ca.key``.

    Raises:
        InvalidRequest: The domain is invalid, or the directory already has an authority.
    """
    if not is_name(domain, 64):
        raise InvalidRequest(
            f"invalid domain {domain!r}: use at most 64 letters, digits, . _ and -"
        )
    if (directory / CA_KEY_FILE).exists() or (directory / CA_FILE).exists():
        raise InvalidRequest(f"{directory} already has an authority: nothing was changed")
    certificate, key = _self_signed(domain, days)
    _write(directory, CA_KEY_FILE, _key_text(key), secret=True)
    _write(directory, CA_FILE, _pem(certificate))


def issue(
    authority: Path, principal: str, out: Path, *, days: int = DAYS, hosts: Sequence[str] = ()
) -> None:
    """Create a directory for a principal such as ``bookie/b4``, signed by an authority.

    Existing files of the directory are replaced.

    Args:
        authority: The directory of the authority.
        principal: KIND/NAME.
        out: The directory to write.
        days: Validity in days. It cannot exceed that of the authority.
        hosts: Names and addresses under which the principal, a gateway, is reached by HTTPS.

    Raises:
        InvalidRequest: The principal or a host is invalid, or the authority ends too soon.
    """
    kind, _, name = principal.partition("/")
    if kind not in KINDS or not is_name(name) or principal == LOCAL:
        raise InvalidRequest(
            f"invalid principal {principal!r}: use {' or '.join(f'{kind_name}/NAME' for kind_name in KINDS)}"
        )
    x509, ec = _import_library()
    ca, ca_key = _authority(authority)
    domain = _domain(ca)
    if days > (days_left := (ca.not_valid_after_utc - _now()).days):
        raise InvalidRequest(
            f"the authority ends in {days_left} days. Renew it with dlog pki roll-ca"
        )
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
    """As `issue`, but never replace the directory of another principal, whose key would be lost."""
    if _is_complete(out) and (other_principal := show(out).principal) != principal:
        raise InvalidRequest(
            f"{out} belongs to {other_principal}: nothing was changed. Use another --output, or delete it"
        )
    issue(authority, principal, out, days=days, hosts=hosts)


def renew(authority: Path, directory: Path, *, days: int = DAYS) -> str:
    """Replace key and certificate of a directory.

    Returns:
        The principal of the directory.

    Raises:
        InvalidRequest: The directory or the authority is invalid.
    """
    principal = show(directory).principal
    issue(authority, principal, directory, days=days, hosts=_hosts_in_certificate(directory))
    return principal


def trust(authority: Path, directory: Path) -> None:
    """Copy the trusted authorities (``ca.pem``) and revocations (``crl.pem``) of an authority to a directory.

    Raises:
        InvalidRequest: The directory or the authority is invalid.
    """
    _read(directory / CA_FILE)
    _copy_trust(authority, directory)


def revoke(authority: Path, serials: Sequence[str]) -> None:
    """Add certificates to the revocation list ``crl.pem`` of an authority.

    The list is valid as long as the authority, because nodes with an expired list would refuse every client.
    OpenSSL requires one list per trusted authority. The list of a previous authority is kept unchanged.

    Raises:
        InvalidRequest: A serial number or the authority is invalid.
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
    """Replace the key of an authority.

    ``ca.pem`` then contains the new certificate and the previous ones that have not expired.
    """
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
        revoke(directory, ())  # the new authority also needs a list


def ensure(
    authority: Path,
    domain: str,
    principals: Sequence[str],
    out: Path,
    *,
    days: int = DAYS,
    hosts: Mapping[str, Sequence[str]] = {},
) -> list[str]:
    """Create or renew an authority and a directory per principal, as needed.

    A directory is renewed if its certificate has less than a third of its time left, or if its hosts changed.
    If the authority has a new key, the directory trusts both keys and is renewed when due. If the authority
    was replaced by another one, the directory is renewed at once, because no node would accept its
    certificate.

    Args:
        authority: The directory of the authority.
        domain: The domain of the cluster.
        principals: KIND/NAME, each.
        out: The parent of the directories.
        days: Validity in days.
        hosts: As for `issue`, by principal.

    Returns:
        One line per change. Raises `InvalidRequest` if an argument or a directory is invalid.
    """
    report_lines = []
    directories = [out / principal.partition("/")[2] for principal in principals]
    for principal, principal_directory in zip(principals, directories, strict=True):
        first_principal = principals[directories.index(principal_directory)]
        if first_principal != principal:
            raise InvalidRequest(
                f"{principal} and {first_principal} would use the same directory, {principal_directory}: "
                "rename one of them"
            )
    if not (authority / CA_FILE).exists() and not any(
        (principal_directory / CERTIFICATE_FILE).exists() for principal_directory in directories
    ):
        # The creation of this authority was interrupted. It has signed nothing.
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
                    report_lines.append(f"{directory}: trusts the authorities of {authority}")
                continue
        issue(authority, principal, directory, days=days, hosts=hosts.get(principal, ()))
        report_lines.append(f"{directory}: {principal}, for {days} days")
    return report_lines


def show(directory: Path) -> CertificateReport:
    """Describe the certificate of a directory or of an authority. Raises `InvalidRequest`."""
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
    """Whether all files exist and the key belongs to the certificate. Otherwise creation was interrupted."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key((directory / KEY_FILE).read_bytes(), None)
        certificate, _ = _read(directory / CERTIFICATE_FILE)[0], _read(directory / CA_FILE)[0]
    except (InvalidRequest, IndexError, OSError, TypeError, ValueError):
        return False
    return bool(key.public_key() == certificate.public_key())


def _alternative_name(name: str) -> Any:
    """Return the form of a host name or address in a certificate. Raises `InvalidRequest`."""
    x509, _ = _import_library()
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not is_name(name, 253):
            raise InvalidRequest(f"{name!r:.80} is neither a host name nor an address") from None
        return x509.DNSName(name)


def _hosts_in_certificate(directory: Path) -> list[str]:
    """Return the hosts in the certificate of a directory."""
    x509, _ = _import_library()
    certificate = _read(directory / CERTIFICATE_FILE)[0]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _is_signed(authority: Path, directory: Path) -> bool:
    """Whether a trusted authority has signed the certificate of the directory."""
    from cryptography.exceptions import InvalidSignature

    certificate = _read(directory / CERTIFICATE_FILE)[0]
    for ca in _read(authority / CA_FILE):
        with contextlib.suppress(ValueError, InvalidSignature):
            certificate.verify_directly_issued_by(ca)
            return True
    return False


def _is_trust_equal(authority: Path, directory: Path) -> bool:
    """Whether a directory has the same trusted authorities and revocations as the authority."""
    files = [either / REVOKED_FILE for either in (authority, directory)]
    lists = [file.read_bytes() if file.exists() else b"" for file in files]
    own_authorities, trusted = (set(_read(either / CA_FILE)) for either in (directory, authority))
    return own_authorities == trusted and lists[0] == lists[1]


def _copy_trust(authority: Path, directory: Path) -> None:
    lists = _revocation_lists(authority)
    if lists:  # first, because a list of an authority that is not trusted yet has no effect
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
        raise InvalidRequest(f"{file} contains no list of revoked certificates") from None


def _self_signed(domain: str, days: int) -> tuple[Any, Any]:
    """Return certificate and key of a new authority."""
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
            "certificates require the library cryptography: pip install '.[pki]'"
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
        raise InvalidRequest(f"{directory / CA_KEY_FILE} is not a private key") from None
    if key.public_key() != ca.public_key():  # no node would accept its signatures
        raise InvalidRequest(
            f"{directory / CA_KEY_FILE} is not the key of {CA_FILE} there. Run dlog pki roll-ca again,"
            " or restore the matching key"
        )
    return ca, key  # type: ignore[return-value]


def _read(file: Path) -> "list[x509.Certificate]":
    x509, _ = _import_library()
    try:
        return list(x509.load_pem_x509_certificates(file.read_bytes()))
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror}") from None
    except ValueError:
        raise InvalidRequest(f"{file} contains no certificate") from None


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
    """Write a file of a directory, which is created if necessary. Raises `InvalidRequest`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{directory}: {error.strerror}") from None
    write_file(directory / name, content, secret=secret)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
