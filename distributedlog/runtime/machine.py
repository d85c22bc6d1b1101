"""Implement `Host` on the real machine."""

import os
import random
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from .interfaces.errors import InvalidRequest, UnsupportedPlatform
from .interfaces.host import Address, Connection, Disk, Host
from .interfaces.principals import Credentials
from .net import local_secret, tcp
from .process import descriptor_limit as descriptors
from .protocol.tokens import TEXT_BYTES_MAX, is_token

CREDENTIALS_VARIABLE = "DLOG_CREDENTIALS"
"""The environment variable that names a client's credentials, if no option does."""


def real_host(name: str, *, disks: Mapping[str, Disk] | None = None) -> Host:
    """Return a host with this machine's network and clock, a new random seed, and the given disks."""
    return Host(
        name=name,
        dial=local_secret.dial,
        listen=partial(tcp.listen, on_bound=local_secret.remove_secret_files),
        disks=dict(disks or {}),
        random=random.Random(os.urandom(32)),
        wall_ms=_clock_ms,
        connections_max=descriptors.connections_max(),
        secret_bytes=os.urandom,
        credentials=local_secret.credentials_for,
    )


def client_host(name: str, credentials: str = "") -> Host:
    """Return a host for a client, which uses only TLS if it has credentials (H228).

    Args:
        credentials: ``file:DIR`` for a directory that `dlog pki issue` made, or ``file:FILE`` for a token
            next to the cluster's ``ca.pem``. By default, the value of `CREDENTIALS_VARIABLE`, or none.

    Raises:
        InvalidRequest: The credentials cannot be used.
    """
    named_credentials = credentials or os.environ.get(CREDENTIALS_VARIABLE, "")
    if not named_credentials:
        return real_host(name)
    from .net.tls import Tls, token_credentials, with_tls  # imports OpenSSL only if it is used

    scheme, _, named = named_credentials.partition(":")
    if scheme != "file" or not named:
        raise InvalidRequest(
            "credentials are invalid: use file:DIR, a directory of dlog pki issue, or file:FILE, a token"
        )
    path = expand_path(named)
    host = real_host(name)
    if path.is_dir() or not path.exists():
        return _with_local_clusters(host, with_tls(host, Tls(path)))
    read_token_file(path)  # reports an invalid file at once
    tls = Tls(path.parent, shows_certificate=False)
    token_proof = token_credentials(partial(read_token_file, path))
    return _with_local_clusters(
        host, replace(with_tls(host, tls), credentials=lambda address: token_proof)
    )


def authority_text(credentials: str) -> str:
    """Return the content of ``ca.pem`` of the named credentials, or "" without credentials.

    Args:
        credentials: The credentials; "" for those that `CREDENTIALS_VARIABLE` names.

    Raises:
        InvalidRequest: The file cannot be read.
    """
    named_credentials = credentials or os.environ.get(CREDENTIALS_VARIABLE, "")
    if not named_credentials:
        return ""
    path = expand_path(named_credentials.partition(":")[2])
    file = (path if path.is_dir() else path.parent) / "ca.pem"
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file}: {error}") from None


def authority_host(name: str, credentials: str = "") -> Host:
    """Return a host for a client that verifies the cluster by ``ca.pem`` and has no identity.

    `with_token` returns the host of a user with a token. It never uses the secret of a local cluster.
    Otherwise, requests of a user would have the rights of the user who runs this program.

    Raises:
        InvalidRequest: There is no usable ``ca.pem``.
    """
    from .net.tls import Tls, with_tls

    named_credentials = credentials or os.environ.get(CREDENTIALS_VARIABLE, "")
    scheme, _, named = named_credentials.partition(":")
    if scheme != "file" or not named:
        raise InvalidRequest(
            "the ca.pem of the cluster is required: --credentials file:DIR names a directory with it"
        )
    path = expand_path(named)
    directory = path if path.is_dir() else path.parent
    return with_tls(real_host(name), Tls(directory, shows_certificate=False))


def with_token(host: Host, token: bytes) -> Host:
    """Return a copy of the host that authenticates with this token."""
    from .net.tls import token_credentials

    token_proof = token_credentials(lambda: token)
    return replace(host, credentials=lambda address: token_proof)


def token_host(name: str, read_token: Callable[[], bytes], authority: str) -> Host:
    """Return a host for a client with a token and the cluster's ``ca.pem`` in memory.

    Raises:
        InvalidRequest: The authority is invalid.
    """
    from .net.tls import Tls, token_credentials, with_tls

    host, token_proof = real_host(name), token_credentials(read_token)
    tls_host = with_tls(host, Tls(None, authority=authority))
    return replace(tls_host, credentials=lambda address: token_proof)


def read_token_file(file: Path) -> bytes:
    """Return the token in a file.

    Raises:
        InvalidRequest: The file has no token, or other users can read it.
    """
    try:
        with file.open("rb") as opened_file:
            mode = stat.S_IMODE(os.fstat(opened_file.fileno()).st_mode)
            content = opened_file.read(TEXT_BYTES_MAX + 2).strip()
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror}") from None
    if os.name == "posix" and mode & 0o077:
        raise InvalidRequest(f"{file} is readable by other users (mode {mode:04o}): chmod 600 it")
    if not is_token(content):
        raise InvalidRequest(f"{file} does not contain a token: dlog user token makes one")
    return content


def _with_local_clusters(host: Host, tls_host: Host) -> Host:
    """Return the TLS host, which connects to local clusters of this user with their secret."""

    async def dial(address: Address) -> Connection:
        # A local cluster of this user authenticates with a secret, because it has no certificates.
        return await (host if host.credentials(address) else tls_host).dial(address)

    def prove(address: Address) -> Credentials | None:
        return host.credentials(address) or tls_host.credentials(address)

    return replace(tls_host, dial=dial, credentials=prove)


def expand_path(path_text: str) -> Path:
    """Return a path that a user named, with ``~`` expanded.

    Raises:
        InvalidRequest: The home directory is unknown.
    """
    try:
        return Path(path_text).expanduser()
    except RuntimeError:
        raise InvalidRequest(
            f"{path_text}: the home directory is unknown: set HOME, or give the whole path"
        ) from None


def require_linux(purpose: str) -> None:
    """Raise `UnsupportedPlatform` on other systems: a node needs O_DIRECT, fdatasync and eventfd."""
    if sys.platform != "linux":
        raise UnsupportedPlatform(
            f"{purpose} needs Linux, this is {sys.platform}: run nodes on Linux (docker/README.md, a virtual"
            " machine, WSL 2); clients run here with --uri"
        )


def process_name() -> str:
    """Return the name of this process for people: ``host.example pid 4242``."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def machine_id() -> str:
    """Return an ID of the physical machine that is the same in all of its containers, or "".

    It changes when the machine is booted.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id_file:
            return boot_id_file.read(64).strip()
    except (OSError, ValueError):
        return ""


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
