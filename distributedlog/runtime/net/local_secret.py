"""The secret of a cluster on this machine: whoever can read its file owns it, nobody else is let in.

A node of `dlog local` writes the secret into a file of this user, named by the port that it listens on,
before it listens; who dials a port of this machine looks there. So one user's commands need no flag, another
user of the machine is refused, and no URI, argument or ready line holds a secret. A file that says nothing
any more, because its cluster was killed, goes when the same user listens on that port.

Both sides prove that they know it, over nonces of both: nothing of it goes over the wire, and a program that
has taken the port of a cluster which ended hears nothing from its clients.
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
"""Where such a cluster listens, and what else that is called."""
LOOPBACK = (HOST, "::1", NAME)
_LABEL = b"dlog local 1 "


def with_local_secret(host: Host, secret: bytes) -> Host:
    """The host of a node that serves only those who know ``secret``, which its files tell to this user."""

    def verify(meeting: HandshakeContext, proof: bytes) -> Welcome:
        expected_proof = _proof(secret, meeting, b"client")
        if len(meeting.client_nonce) != NONCE_BYTES or not hmac.compare_digest(
            proof, expected_proof
        ):
            raise NotAuthenticated(
                f"{meeting.peer_address} does not know the secret of this cluster on this machine"
            )
        return Welcome(LOCAL, session_credential=_proof(secret, meeting, b"server"))

    async def listen(address: Address) -> Listener:
        inner = await tcp.listen(address, on_bound=partial(write_secret_file, secret))
        return _PublishedListener(inner, secret)

    return replace(host, listen=listen, methods={METHOD: verify})


class _PublishedListener:
    """A listener whose port's file goes with it."""

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
    """As `tcp.dial`. By this machine's name to where such clusters listen, and to no other address before:

    who listens there, on the same port, would hear a proof that it could pass on to the cluster, as its own.
    """
    if address[0] == NAME:
        with contextlib.suppress(ConnectionLost):
            return await tcp.dial((HOST, address[1]))
    return await tcp.dial(address)


def credentials_for(address: Address) -> Credentials | None:
    """What to prove to who listens on that port of this machine; None where no file of ours says anything."""
    if address[0] not in (HOST, NAME):
        return None  # nobody's cluster is there: who listens could pass on what is said (`dial`)
    for directory in secret_directories():
        secret = _read_secret(directory / str(address[1]))
        if secret is not None:
            return _credentials(secret)
    return None


def is_loopback(host: str) -> bool:
    """Does that name this machine for itself alone? A name such as 127.example.org may lead anywhere."""
    if host in LOOPBACK:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _credentials(secret: bytes) -> Credentials:
    def check(meeting: HandshakeContext, welcome: Welcome) -> None:
        expected_proof = _proof(secret, meeting, b"server")
        if not hmac.compare_digest(welcome.session_credential, expected_proof):
            raise NotAuthenticated(
                f"who listens at {meeting.peer_address} does not know the secret of the cluster there"
            )

    return Credentials(METHOD, partial(_proof, secret, side=b"client"), True, check=check)


def _proof(secret: bytes, meeting: HandshakeContext, side: bytes) -> bytes:
    # The port: what is said to one of a user's clusters is no use at another one's.
    port = meeting.port.to_bytes(2, "little")
    signed_bytes = _LABEL + side + b"\0" + meeting.server_nonce + meeting.client_nonce + port
    return hmac.digest(secret, signed_bytes, "sha256")


# --- files ----------------------------------------------------------------------------------------


def secret_directories() -> list[Path]:
    """Where such files may be, the best place first."""
    candidates = []
    if runtime_directory := os.environ.get("XDG_RUNTIME_DIR"):
        candidates.append(Path(runtime_directory) / "dlog")
    with contextlib.suppress(RuntimeError):  # a user without a home
        candidates.append(Path.home() / ".cache" / "dlog" / "local")
    with contextlib.suppress(FileNotFoundError):  # no temporary directory takes files
        candidates.append(Path(tempfile.gettempdir()) / f"dlog-{_user()}")
    return candidates


def write_secret_file(secret: bytes, address: Address) -> None:
    """Write the port's file, for this user alone. Raises `InvalidRequest` if none can be written."""
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
    """Take the port's files away; with ``secret`` only those that hold it."""
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
            None  # none there, or one that others could have written: the server says what it wants
        )


def _check_owner(path: Path, file_status: os.stat_result | None = None) -> None:
    """Is it this user's, and closed to others? Raises `NotAuthenticated`."""
    if not hasattr(os, "geteuid"):  # Windows: what is in a profile is its user's
        return
    status = path.stat() if file_status is None else file_status
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise NotAuthenticated(
            f"{path} is another user's, or open to others: remove it, or chmod go= it"
        )


def _user() -> str:
    return str(os.geteuid()) if hasattr(os, "geteuid") else os.environ.get("USERNAME", "user")
