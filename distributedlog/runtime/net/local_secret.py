"""Authenticate the users of a local cluster by a secret in a file that only one user can read.

A node of `dlog local` writes the secret into a file of this user before it listens. The file is named after
the port. Clients that dial a port of this machine look for this file. So the commands of this user need no
flag, other users of the machine are rejected, and no URI, argument or ready line contains a secret. A killed
cluster leaves its file behind. The next cluster of the same user on this port replaces it.

Both ends prove that they have the secret, over nonces of both ends, and never send it. A program that now
listens on the port of a stopped cluster learns nothing from the clients of that cluster.
"""

import contextlib
import hmac
import os
import stat
import tempfile
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from ..disk.output_file import write_file
from ..interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    InvalidRequest,
    NotAuthenticated,
)
from ..interfaces.host import Address, Connection, Host, Listener
from ..interfaces.principals import (
    BY_LOCAL_SECRET,
    LOCAL,
    NONCE_BYTES,
    Credentials,
    HandshakeContext,
    Welcome,
)
from . import tcp

METHOD = BY_LOCAL_SECRET
SECRET_BYTES = 32
HOST, NAME = "127.0.0.1", "localhost"
"""The address on which such a cluster listens, and its other name."""
LOOPBACK = (HOST, "::1", NAME)
_LABEL = b"dlog local 1 "


def with_local_secret(host: Host, secret: bytes) -> Host:
    """Return the host of a node that serves only clients with this secret, and writes the secret files."""

    def verify(context: HandshakeContext, proof: bytes) -> Welcome:
        expected_proof = _proof(secret, context, b"client")
        if len(context.client_nonce) != NONCE_BYTES or not hmac.compare_digest(
            proof, expected_proof
        ):
            raise NotAuthenticated(
                f"{context.peer_address} does not have the secret of this local cluster"
            )
        return Welcome(LOCAL, session_credential=_proof(secret, context, b"server"))

    async def listen(address: Address) -> Listener:
        inner = await tcp.listen(address, on_bound=partial(write_secret_file, secret))
        return _PublishedListener(inner, secret)

    return replace(host, listen=listen, methods={METHOD: verify})


class _PublishedListener:
    """A listener that removes the secret file of its port when it is closed."""

    def __init__(self, inner: Listener, secret: bytes) -> None:
        self.address = inner.address
        self._inner = inner
        self._secret = secret
        self._process = os.getpid()

    async def accept(self) -> Connection:
        """See `Listener.accept`."""
        return await self._inner.accept()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if os.getpid() == self._process:  # a forked child's copy is not the one that listens
            remove_secret_files(self.address, self._secret)
        self._inner.close()


async def dial(address: Address) -> Connection:
    """Connect to an address as `tcp.dial` does; ``localhost`` leads to 127.0.0.1 first.

    Local clusters listen there. A program that listens on the same port of another loopback address could
    forward the client's proof to the cluster as its own.
    """
    if address[0] == NAME:
        with contextlib.suppress(ConnectionLost):
            return await tcp.dial((HOST, address[1]))
    return await tcp.dial(address)


def credentials_for(address: Address) -> Credentials | None:
    """Return the credentials for a port of this machine, or None.

    The result is None if no file of this user has a secret for this port.
    """
    if address[0] not in (HOST, NAME):
        return None  # no local cluster listens there, and a proof could be forwarded (`dial`)
    for directory in secret_directories():
        secret = _read_secret(directory / str(address[1]))
        if secret is not None:
            return _credentials(secret)
    return None


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or ``localhost``.

    Other names do not count, such as 127.example.org, because they may lead to any machine.
    """
    if host in LOOPBACK:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _credentials(secret: bytes) -> Credentials:
    def check(context: HandshakeContext, welcome: Welcome) -> None:
        expected_proof = _proof(secret, context, b"server")
        if not hmac.compare_digest(welcome.session_credential, expected_proof):
            raise NotAuthenticated(
                f"the program at {context.peer_address} does not have the secret of the local cluster"
            )

    return Credentials(METHOD, partial(_proof, secret, side=b"client"), True, check=check)


def _proof(secret: bytes, context: HandshakeContext, side: bytes) -> bytes:
    # With the port in it, a proof for one of a user's clusters is not valid for another one.
    port = context.port.to_bytes(2, "little")
    signed_bytes = _LABEL + side + b"\0" + context.server_nonce + context.client_nonce + port
    return hmac.digest(secret, signed_bytes, "sha256")


# --- files ----------------------------------------------------------------------------------------


def secret_directories() -> list[Path]:
    """Return the directories that may contain secret files, the preferred one first."""
    candidates = []
    if runtime_directory := os.environ.get("XDG_RUNTIME_DIR"):
        candidates.append(Path(runtime_directory) / "dlog")
    with contextlib.suppress(RuntimeError):  # a user without a home
        candidates.append(Path.home() / ".cache" / "dlog" / "local")
    with contextlib.suppress(FileNotFoundError):  # no temporary directory takes files
        candidates.append(Path(tempfile.gettempdir()) / f"dlog-{_user()}")
    return candidates


def write_secret_file(secret: bytes, address: Address) -> None:
    """Write the secret file of a port, readable by this user only.

    Raises:
        InvalidRequest: No directory for it is writable.
    """
    write_private(str(address[1]), secret, "the secret of a local cluster")


def write_private(name: str, content: bytes, what: str) -> Path:
    """Write a file that only this user can read, in the first of `secret_directories` that takes it.

    Args:
        name: The name of the file; it is replaced.
        content: The content of the file.
        what: The content, as an error names it.
    Returns:
        The path of the file.
    Raises:
        InvalidRequest: No directory takes it.
    """
    reasons = []
    for directory in secret_directories():
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(directory)
            write_file(directory / name, content, secret=True)
        except (OSError, DistributedLogError) as error:
            reasons.append(f"{directory}: {error}")
            continue
        return directory / name
    raise InvalidRequest(
        f"{what} is stored in a file that only this user can read, and no directory for it is writable: set"
        " XDG_RUNTIME_DIR, HOME or TMPDIR to one that is"
        + (f" ({'; '.join(reasons)})" if reasons else "")
    )


def remove_secret_files(address: Address, secret: bytes | None = None) -> None:
    """Remove the secret files of a port; with ``secret``, only files that contain it."""
    for directory in secret_directories():
        file = directory / str(address[1])
        with contextlib.suppress(OSError, NotAuthenticated):
            if secret is None or _read_secret(file) == secret:
                file.unlink()


def _read_secret(path: Path) -> bytes | None:
    try:
        _check_owner(path.parent)
        with path.open("rb") as opened_file:
            _check_owner(path, os.fstat(opened_file.fileno()))
            return opened_file.read(SECRET_BYTES + 1)
    except (OSError, NotAuthenticated):
        return (
            None  # none, or one that others could have written: the server's error names its method
        )


def _check_owner(path: Path, file_status: os.stat_result | None = None) -> None:
    """Raise `NotAuthenticated` unless the path belongs to this user and is closed to others."""
    if not hasattr(os, "geteuid"):  # Windows: the files of a profile belong to its user
        return
    status = path.stat() if file_status is None else file_status
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise NotAuthenticated(
            f"{path} belongs to another user or is accessible to others: remove it, or chmod go= it"
        )


def _user() -> str:
    return str(os.geteuid()) if hasattr(os, "geteuid") else os.environ.get("USERNAME", "user")
