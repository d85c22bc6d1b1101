"""TLS 1.3 over any `Connection`: authenticate the other end, and protect the bytes.

Frames, links and servers do not change. A host that is wrapped by `with_tls` dials and accepts connections
whose `identity` comes from the other end's certificate. Certificates carry one URI,
``dlog://DOMAIN/KIND/NAME``. OpenSSL verifies the signature of the cluster's authority. The kind, the name and
the domain are compared here and in `handshake.py` (H227). There are no tickets and no session resumption, so
each connection is authenticated from scratch (H223).

Three properties of OpenSSL and TLS need care:

- OpenSSL's buffers keep the largest size they ever had, so bytes pass through them in chunks (H219).
- OpenSSL can hold decrypted bytes while the socket is empty (H220).
- Bytes that are encrypted but not yet accepted by the socket are not reported as sent, so senders wait for
  them (H218).
"""

import contextlib
import os
import random
import re
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import trio

from ..disk.reloaded_files import SettledFiles
from ..interfaces.errors import ConnectionLost, InvalidRequest, NotAuthenticated
from ..interfaces.host import Address, Buffer, Connection, Host, Listener
from ..interfaces.principals import (
    BY_CERTIFICATE,
    KINDS,
    LOCAL,
    METADATA,
    PROXY,
    SERVERS,
    CertificateIdentity,
    Credentials,
    HandshakeContext,
    Verifier,
    Welcome,
    anonymous,
    serial_of,
)
from ..process.fork_safety import forked_message, watch_forks
from ..protocol.tokens import METHOD as TOKEN
from .handshake_limiter import HandshakeLimiter
from .rejection_log import host_of

FILES = CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE = (
    "ca.pem",
    "cert.pem",
    "key.pem",
    "crl.pem",
)
PLAIN, EITHER, TLS = "plain", "either", "tls"
TRANSPORTS = (PLAIN, EITHER, TLS)
"""``either`` is for the migration from ``plain`` to ``tls``. Both are accepted, and TLS is tried first."""
CIPHERTEXT_BYTES = 1024 * 1024
"""Ciphertext that is received at once, into one buffer per process. Plain connections receive as much, and a
server handles the requests of one receive in one event-loop iteration."""
RECORD_BYTES = 16 * 1024
DECRYPT_CHUNK_BYTES = 32 * 1024
"""Ciphertext that is passed to OpenSSL at once."""
ENCRYPT_CHUNK_BYTES = 64 * 1024
"""Plaintext that is encrypted at once."""
BURST_BYTES = 256 * 1024
"""Plaintext that is encrypted before the socket is tried. A system call and a wakeup of the peer for each
piece would cost more than the encryption."""
RECORD_OVERHEAD_BYTES = 64
"""The largest difference between the length of a TLS record and that of its plaintext."""
KEY_LIFETIME_BYTES = 64 << 30
KEY_LIFETIME_S = 8 * 3600.0
"""A connection whose keys were used for this many bytes, or this long, ends. A new one has new keys (H222).
"""
KEY_LIFETIME_SPREAD = 0.1
REFUSAL_WINDOW_S = 1.0
"""In TLS 1.3, the handshake of the dialing end completes before the server has checked its certificate. A
connection that breaks within this time may be a rejection."""
HANDSHAKE_ANSWER_S = 2.0
"""A peer that has not answered this long after its handshake turn loses its priority for a connection slot.
"""
NAME_CHARS_MAX = 37

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_URI = re.compile(
    rf"dlog://([A-Za-z0-9._-]{{1,64}})/({'|'.join(KINDS)})/([A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}})"
)
_NOT_YET_VALID = 9
"""OpenSSL's code for a certificate that is not valid yet (X509_V_ERR_CERT_NOT_YET_VALID)."""
_HAS_EXPIRED = 10
"""OpenSSL's code for a certificate that has expired (X509_V_ERR_CERT_HAS_EXPIRED)."""
_ALERT_TEXTS = {
    "CERTIFICATE_EXPIRED": "the peer reports that the certificate of this side has expired",
    "UNKNOWN_CA": "the peer does not trust the authority of the certificate of this side",
    "CERTIFICATE_REVOKED": "the peer reports that the certificate of this side was revoked",
    "CERTIFICATE_REQUIRED": "the peer requires a certificate",
    "BAD_CERTIFICATE": "the peer does not accept the certificate of this side",
    "CERTIFICATE_UNKNOWN": "the peer does not accept the certificate of this side",
}


@dataclass(frozen=True, slots=True)
class _LoadedFiles:
    """One valid state of the files."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext
    identity: CertificateIdentity | None


class Tls:
    """A directory with ``ca.pem``, ``cert.pem`` and ``key.pem``, and the TLS contexts made from it.

    Replaced files are used for new connections after they no longer change and after a test handshake in
    memory succeeded. Until then, and if they are invalid, the previous files stay in use (H226). With
    ``ca.pem`` alone, a client verifies its servers and shows no certificate.

    Raises:
        InvalidRequest: A file is missing or invalid; the error names it.
        NotAuthenticated: The certificate is not valid yet or has expired, by the clock of this machine.
    """

    def __init__(
        self, directory: Path | None, *, shows_certificate: bool = True, authority: str = ""
    ) -> None:
        """If ``directory`` is None, ``authority`` is the content of ``ca.pem``, which never changes."""
        self.directory = directory
        self._shows_certificate = shows_certificate
        self.receive_buffer = memoryview(bytearray(CIPHERTEXT_BYTES))
        """Receives bytes from the sockets of all connections of a host. It holds no data across an await."""
        self.rng = random.Random(os.urandom(8))
        self.handshake_limiter = HandshakeLimiter()
        self._static: _LoadedFiles | None = None
        self._files: SettledFiles[_LoadedFiles] | None = None
        if directory is None:
            context = _context(ssl.PROTOCOL_TLS_CLIENT, None, authority=authority)
            self._static = _LoadedFiles(None, context, None)
        else:
            self._files = SettledFiles(directory, FILES, self._load)

    @property
    def identity(self) -> CertificateIdentity | None:
        """The identity in the loaded certificate, or None."""
        return None if self._files is None else self._files.loaded.identity

    def current_identity(self) -> CertificateIdentity | None:
        """Return the identity in the present certificate file, or None."""
        return self._current().identity

    def context_for(self, *, server: bool) -> ssl.SSLContext:
        """Return the TLS context for a new connection.

        Raises:
            InvalidRequest: It is for a server, and there is no certificate.
        """
        current = self._current()
        if not server:
            return current.client
        if current.server is None:
            raise InvalidRequest(f"{self.directory} has no {CERTIFICATE_FILE}: a server needs one")
        return current.server

    def _current(self) -> _LoadedFiles:
        if self._files is not None:
            return self._files.reload_if_changed()
        assert self._static is not None, "there is a directory, or the content of ca.pem"
        return self._static

    def _load(self, previous: _LoadedFiles | None) -> _LoadedFiles:
        """Load the files; the identity must not change.

        The rights and links of a running process depend on its identity.
        """
        assert self.directory is not None, "it is loaded from files"
        loaded = _load(self.directory, shows_certificate=self._shows_certificate)
        old_identity, new_identity = (
            None if previous is None else previous.identity,
            loaded.identity,
        )
        if old_identity is not None and (
            new_identity is None
            or (new_identity.domain, new_identity.principal)
            != (old_identity.domain, old_identity.principal)
        ):
            change_text = (
                f"names {new_identity.principal} of domain {new_identity.domain}"
                if new_identity
                else "is missing"
            )
            raise InvalidRequest(
                f"{self.directory}/{CERTIFICATE_FILE} {change_text}, but named {old_identity.principal} "
                f"of domain {old_identity.domain}"
            )
        return loaded


class TlsConnection:
    """One end of a TLS connection, which owns ``inner``. See `Connection`.

    The handshake runs within the first `receive_into`. Until it is complete, `try_send` accepts nothing.
    Bytes that `try_send` did not accept must be offered again before any others. With ``may_be_plain``, the
    first bytes of the other end select TLS or plain text.
    """

    def __init__(
        self, inner: Connection, tls: Tls, *, dialed: bool, may_be_plain: bool = False
    ) -> None:
        self.peer = inner.peer
        self.identity: CertificateIdentity | None = None
        self.is_secret = True
        self._prioritized_until = -inf
        self._inner = inner
        self._receive_buffer = tls.receive_buffer
        self._handshake_limiter = tls.handshake_limiter
        self._domain = tls.identity.domain if tls.identity is not None else ""
        self._dialed = dialed
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl_object: ssl.SSLObject | None = tls.context_for(server=not dialed).wrap_bio(
            self._incoming, self._outgoing, server_side=not dialed
        )
        self._may_be_plain = may_be_plain
        self._is_plain = False
        self._first_bytes = b""
        """The bytes of a plain peer that were read to detect that it is one."""
        self._ready = trio.Event()
        self._closed_event = trio.Event()
        """Set when this end closes the connection."""
        self._has_received = not dialed
        """Whether the other end has sent anything since the handshake. Until then it may still reject this
        end."""
        self._refusal_deadline = 0.0
        self._may_have_plaintext = False
        """Whether OpenSSL may hold plaintext that was not read yet."""
        self._decrypt_error: ssl.SSLError | None = None
        """The error that ended decryption. OpenSSL reports it once, and the plaintext before it is still
        valid."""
        self._unsent: list[memoryview] = []
        """Ciphertext that the socket has not accepted yet."""
        self._encrypted_ahead = 0
        """The number of bytes, at the start of the next offered buffers, that are encrypted already. They are
        in `_unsent` or were sent, and must not be encrypted again."""
        self._end_reason = ""
        self._is_rejected = False
        """Whether one end rejected the other. Nothing more can be sent then."""
        spread = 1 - tls.rng.random() * KEY_LIFETIME_SPREAD if dialed else 2.0
        self._key_bytes_left = int(KEY_LIFETIME_BYTES * spread)
        self._keys_end_at = trio.current_time() + KEY_LIFETIME_S * spread
        watch_forks(self)

    @property
    def has_begun_handshake(self) -> bool:
        """See `Connection.has_begun_handshake`."""
        return trio.current_time() < self._prioritized_until

    # --- receiving --------------------------------------------------------------------------------

    async def receive_into(self, *buffers: memoryview) -> int:
        """See `Connection.receive_into`. One task at a time. Also raises `NotAuthenticated`."""
        if not self._ready.is_set():
            await self.handshake()
        if self._is_plain:
            return await self._receive_plain(buffers)
        self._check_alive()
        if self._may_have_plaintext:
            await trio.lowlevel.checkpoint()
            self._check_alive()
            if count := self._decrypt_into(buffers):
                self._has_received = True
                return count
            if self._decrypt_error is not None:
                raise self._error_for(self._decrypt_error)
        # About as much as fits into the caller's buffers, because the rest stays inside OpenSSL. With the
        # complete last record, no second wait for its end is necessary.
        ciphertext_max = sum(map(len, buffers))
        ciphertext_max += (ciphertext_max // RECORD_BYTES + 2) * RECORD_OVERHEAD_BYTES
        ciphertext_max = max(ciphertext_max, 2 * RECORD_BYTES)
        ciphertext = self._receive_buffer[:ciphertext_max]
        while True:
            received = await self._inner.receive_into(ciphertext)
            self._check_alive()
            if not received:
                if not self._has_received:
                    raise self._connection_lost(
                        "was closed after the handshake: the peer may have rejected this side"
                    )
                return 0
            self._key_bytes_left -= received
            if self._key_bytes_left < 0 or trio.current_time() > self._keys_end_at:
                raise self._connection_lost(
                    "has ended: its keys reached the end of their lifetime, a new one has new ones"
                )
            count = self._decrypt(ciphertext[:received], buffers)
            if self._outgoing.pending:
                with contextlib.suppress(ConnectionLost):  # the next read or write raises it
                    self._flush()
            if count:
                self._has_received = True
                return count
            if self._decrypt_error is not None:
                raise self._error_for(self._decrypt_error)

    def _decrypt(self, ciphertext: memoryview, buffers: Sequence[memoryview]) -> int:
        count = 0
        free_buffers: Sequence[memoryview] = buffers
        for offset in range(0, len(ciphertext), DECRYPT_CHUNK_BYTES):
            self._incoming.write(ciphertext[offset : offset + DECRYPT_CHUNK_BYTES])
            decrypted = self._decrypt_into(free_buffers)
            if decrypted:
                count += decrypted
                free_buffers = _remaining_buffers(free_buffers, decrypted)
        return count

    def _decrypt_into(self, buffers: Sequence[memoryview]) -> int:
        """Decrypt into the buffers until they are full or no complete record is left."""
        assert self._ssl_object is not None, "a live connection has one"
        read, pending, incoming = self._ssl_object.read, self._ssl_object.pending, self._incoming
        total: int = 0
        if self._decrypt_error is not None:
            return 0
        self._may_have_plaintext = False
        try:
            for buffer in buffers:
                position, size = 0, len(buffer)
                while position < size:
                    count: Any = read(size - position, buffer[position:])
                    if not count:
                        return total
                    position += count
                    total += count
                    if not incoming.pending and not pending():
                        return total  # a further read would raise an error, which costs more
        except ssl.SSLWantReadError:
            return total
        except ssl.SSLZeroReturnError:
            return total
        except ssl.SSLError as error:
            self._decrypt_error = error
            self._may_have_plaintext = (
                True  # the error is raised after the plaintext before it has been returned
            )
            return total
        self._may_have_plaintext = True
        return total

    async def _receive_plain(self, buffers: Sequence[memoryview]) -> int:
        if not self._first_bytes:
            return await self._inner.receive_into(*buffers)
        await trio.lowlevel.checkpoint()
        self._check_alive()
        copied = 0
        for buffer in buffers:
            chunk = self._first_bytes[copied : copied + len(buffer)]
            buffer[: len(chunk)] = chunk
            copied += len(chunk)
        self._first_bytes = self._first_bytes[copied:]
        return copied

    # --- the handshake ----------------------------------------------------------------------------

    async def handshake(self) -> None:
        """Authenticate the other end, as the first `receive_into` does.

        Raises:
            NotAuthenticated: One end rejected the certificate of the other.
            ConnectionLost: The connection ended, or the other end does not use TLS.
        """
        self._check_alive()
        if self._may_be_plain and not await self._peer_speaks_tls():
            self.is_secret = False
            self._is_plain = True
            self._ready.set()
            return
        assert self._ssl_object is not None, "the process has not forked"
        waits = not self._dialed
        while True:
            if waits and self._incoming.pending:  # a silent peer uses no turn
                waits, self._prioritized_until = False, inf
                await self._handshake_limiter.wait_turn(host_of(self.peer), self._check_alive)
                self._prioritized_until = trio.current_time() + HANDSHAKE_ANSWER_S
            try:
                self._ssl_object.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush_all()
                received = await self._inner.receive_into(
                    self._receive_buffer[:DECRYPT_CHUNK_BYTES]
                )
                self._check_alive()
                if not received:
                    raise self._connection_lost(
                        "was closed by the peer before it identified itself"
                    ) from None
                self._incoming.write(self._receive_buffer[:received])
            except ssl.SSLError as error:
                with contextlib.suppress(ConnectionLost):
                    self._flush()  # OpenSSL has queued an alert with the reason
                raise self._error_for(error) from None
        await self._flush_all()
        certificate: Mapping[str, Any] | None = self._ssl_object.getpeercert()
        if certificate:
            self.identity = read_identity(certificate, self.peer)
            self._check_identity(self.identity)
            if self.identity.kind in SERVERS:
                self._handshake_limiter.add_node_host(host_of(self.peer))
        self._may_have_plaintext = (
            True  # the first frames may have come with the last of the handshake
        )
        self._refusal_deadline = trio.current_time() + REFUSAL_WINDOW_S
        self._ready.set()

    async def _peer_speaks_tls(self) -> bool:
        # A plain HELLO cannot begin like a record of TLS: read as a frame's length, 16 03 01 is above 64 KiB.
        while len(self._first_bytes) < 3 and b"\x16\x03".startswith(self._first_bytes[:2]):
            received = await self._inner.receive_into(self._receive_buffer[:DECRYPT_CHUNK_BYTES])
            self._check_alive()
            if not received:
                return False
            self._first_bytes += bytes(self._receive_buffer[:received])
        self._may_be_plain = False
        if self._first_bytes[:2] != b"\x16\x03" or not 1 <= self._first_bytes[2] <= 4:
            return False
        self._incoming.write(self._first_bytes)
        self._first_bytes = b""
        return True

    def _check_identity(self, identity: CertificateIdentity) -> None:
        if self._domain and identity.domain != self._domain:
            raise self._deny(
                f"{self.peer} is {identity.principal} of domain {identity.domain}, not {self._domain}"
            )
        if self._dialed and identity.kind not in SERVERS:
            raise self._deny(f"{self.peer} is {identity.principal}, which is not a server")

    def _error_for(self, error: ssl.SSLError) -> ConnectionLost | NotAuthenticated:
        code = error.reason or ""  # a constant of OpenSSL
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._deny(
                f"the certificate of {self.peer} is not accepted: {error.verify_message}"
            )
        for alert, alert_text in _ALERT_TEXTS.items():
            if alert in code:
                return self._deny(f"{self.peer}: {alert_text}")
        if "WRONG_VERSION" in code or "UNEXPECTED_MESSAGE" in code or "HTTP_REQUEST" in code:
            return self._connection_lost("broke: the peer does not speak TLS")
        return self._connection_lost(f"broke: {code.lower().replace('_', ' ') or 'TLS failed'}")

    def _deny(self, reason: str) -> NotAuthenticated:
        self._end_reason = reason
        self._is_rejected = True
        return NotAuthenticated(reason)

    # --- sending ----------------------------------------------------------------------------------

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        """See `Connection.try_send`. Bytes that it did not accept must be offered again before any others."""
        if self._is_rejected:
            return 0  # not `ConnectionLost`, because the reading task raises the reason
        self._check_alive()
        if self._is_plain:
            return self._inner.try_send(buffers)
        if not self._ready.is_set():
            return 0
        try:
            return self._encrypt_and_send(buffers)
        except ConnectionLost:
            if self._has_received or trio.current_time() > self._refusal_deadline:
                raise
            return 0  # the reason for which the peer disconnected is still to be read (H221)

    def _encrypt_and_send(self, buffers: Sequence[Buffer]) -> int:
        if not self._flush():
            return 0
        assert self._ssl_object is not None, "a live connection has one"
        if not self._encrypted_ahead:
            size = sum(map(len, buffers))
            if size <= RECORD_BYTES:  # one record in few steps, for the latency of a single message
                return self._send_record(buffers, size)
        write, accepted, unflushed = self._ssl_object.write, 0, 0
        for piece, size in _encryption_pieces(buffers, self._encrypted_ahead):
            if piece is None:  # it was encrypted before
                accepted += size
                self._encrypted_ahead -= size
                continue
            write(piece)
            self._key_bytes_left -= size
            self._collect_ciphertext()
            unflushed += size
            if unflushed >= BURST_BYTES:
                if not self._flush():
                    self._encrypted_ahead = unflushed
                    return accepted
                accepted += unflushed
                unflushed = 0
        if unflushed and not self._flush():
            self._encrypted_ahead = unflushed
            return accepted
        return accepted + unflushed

    async def wait_writable(self) -> None:
        """See `Connection.wait_writable`. One task at a time."""
        self._check_alive()
        if not self._ready.is_set():
            await self._ready.wait()
            self._check_alive()
        try:
            while True:
                await self._inner.wait_writable()
                self._check_alive()
                if self._is_plain or self._flush():
                    return
        except ConnectionLost:
            if self._has_received:
                raise
            with trio.move_on_at(self._refusal_deadline):
                await self._closed_event.wait()  # the reading task receives the reason (H221)
            self._check_alive()
            raise

    def _send_record(self, buffers: Sequence[Buffer], size: int) -> int:
        if not size:
            return 0
        assert self._ssl_object is not None, "a live connection has one"
        self._ssl_object.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        self._key_bytes_left -= size
        self._collect_ciphertext()
        if self._flush():
            return size
        self._encrypted_ahead = size
        return 0

    def _collect_ciphertext(self) -> None:
        """Take the ciphertext out of OpenSSL, whose buffer keeps the largest size it ever had (H219)."""
        if self._outgoing.pending:
            self._unsent.append(memoryview(self._outgoing.read()))

    def _flush(self) -> bool:
        """Send the ciphertext, and return whether all of it was sent."""
        self._collect_ciphertext()
        while self._unsent:
            sent = self._inner.try_send(self._unsent)
            if not sent:
                return False
            self._unsent = _remaining_buffers(self._unsent, sent)
        return True

    async def _flush_all(self) -> None:
        while not self._flush():
            await self._inner.wait_writable()

    # --- its end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close now; waiting tasks get `ConnectionLost`. Idempotent.

        No closing message is sent, since frames have lengths.
        """
        self._end_reason = self._end_reason or f"the connection to {self.peer} was closed here"
        self._inner.close()
        self._ready.set()
        self._closed_event.set()

    def on_forked(self) -> None:
        """Disable the copy in a forked child.

        It would encrypt with the parent's key and record numbers (H225).
        """
        self._end_reason = forked_message(f"the connection to {self.peer}")
        self._ssl_object = None

    def _connection_lost(self, event_text: str) -> ConnectionLost:
        self._end_reason = f"the connection to {self.peer} {event_text}"
        return ConnectionLost(self._end_reason)

    def _check_alive(self) -> None:
        if self._end_reason:
            raise ConnectionLost(self._end_reason)


class TlsListener:
    """A listener whose connections use TLS, or may use it.

    The host's methods determine the rights of plain connections.
    """

    def __init__(self, inner: Listener, tls: Tls) -> None:
        self.address = inner.address
        self._inner = inner
        self._tls = tls

    async def accept(self) -> Connection:
        """See `Listener.accept`. The first read authenticates the other end."""
        connection = await self._inner.accept()
        # A plain client receives an error message: it has to authenticate, for which there is no method
        # without TLS.
        return TlsConnection(connection, self._tls, dialed=False, may_be_plain=True)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._inner.close()


def with_tls(host: Host, tls: Tls, transport: str = TLS) -> Host:
    """Return the host with TLS on its connections. Certificates identify both ends.

    Args:
        transport: One of `TRANSPORTS`, except ``plain``.
    """

    async def dial(address: Address) -> Connection:
        connection = TlsConnection(await host.dial(address), tls, dialed=True)
        if transport == EITHER:
            try:
                await connection.handshake()
            except ConnectionLost:  # during the migration, some nodes do not use TLS yet
                connection.close()
                return await host.dial(address)
            except BaseException:
                connection.close()
                raise
        return connection

    async def listen(address: Address) -> Listener:
        return TlsListener(await host.listen(address), tls)

    def credentials(address: Address) -> Credentials | None:
        return None if tls.identity is None else CERTIFICATE

    methods: dict[str, Verifier] = {BY_CERTIFICATE: verify_certificate}
    if transport == EITHER:
        methods["none"] = anonymous
    return replace(
        host,
        dial=dial,
        listen=listen,
        credentials=credentials,
        methods=methods,
        certificate=tls.current_identity,
    )


CERTIFICATE = Credentials(BY_CERTIFICATE, lambda context: b"", proved_by_tls=True)
"""The credentials of an end with a certificate. TLS has verified it, so the proof is empty."""


def token_credentials(read: Callable[[], bytes]) -> Credentials:
    """Return credentials that prove a user with a token, only to metadata nodes and proxies under TLS.

    Args:
        read: Returns the token to use at that time.
    """

    def prove(context: HandshakeContext) -> bytes:
        if not context.is_secret:
            raise NotAuthenticated(
                f"a token is not sent without TLS, which {context.peer_address} does not use"
            )
        peer_identity = context.identity
        if peer_identity is None or peer_identity.kind not in (METADATA, PROXY):
            peer_name = "unauthenticated" if peer_identity is None else peer_identity.principal
            raise NotAuthenticated(
                f"a token is sent to metadata nodes and proxies only: {context.peer_address} is {peer_name}"
            )
        return read()

    # Waiting for the server's HELLO ensures that TLS has identified the server.
    return Credentials(TOKEN, prove, needs_nonce=True)


def verify_certificate(context: HandshakeContext, proof: bytes) -> Welcome:
    """Verify a peer by the method ``cert``: return the principal of its certificate.

    Raises:
        NotAuthenticated: The peer showed no certificate.
    """
    if context.identity is None:
        raise NotAuthenticated(f"{context.peer_address} showed no certificate")
    return Welcome(context.identity.principal)


def is_name(text: str, chars_max: int = NAME_CHARS_MAX) -> bool:
    """Return whether a certificate may contain this name of a node, a user or a domain."""
    return _NAME.fullmatch(text) is not None and len(text) <= chars_max


def read_identity(certificate: Mapping[str, Any], source: str) -> CertificateIdentity:
    """Return the identity in a certificate.

    Args:
        source: The peer or file that it is from, for errors.

    Raises:
        NotAuthenticated: It does not contain exactly one valid URI.
    """
    names = certificate.get("subjectAltName", ())
    dlog_uris = [value for kind, value in names if kind == "URI" and value.startswith("dlog:")]
    if len(dlog_uris) != 1:
        raise NotAuthenticated(
            f"the certificate of {source} has {len(dlog_uris)} URIs that begin with dlog:, expected is one"
        )
    match = _URI.fullmatch(dlog_uris[0])
    if match is None:
        raise NotAuthenticated(
            f"the certificate of {source} has no URI of the form dlog://DOMAIN/KIND/NAME"
        )
    domain, kind, name = match.groups()
    if f"{kind}/{name}" == LOCAL:
        raise NotAuthenticated(f"the certificate of {source} names {LOCAL}, which is reserved")
    begins_s, ends_s = (
        int(ssl.cert_time_to_seconds(certificate[name])) for name in ("notBefore", "notAfter")
    )
    serial = serial_of(str(certificate["serialNumber"]))
    return CertificateIdentity(domain, kind, name, serial, ends_s, begins_s)


def _encryption_pieces(
    buffers: Sequence[Buffer], encrypted_bytes: int
) -> Iterator[tuple[Buffer | None, int]]:
    """Split buffers into pieces to encrypt, with None for bytes that are encrypted already.

    Small buffers are joined to records, together with the beginning of a large one that follows. The rest of
    a large buffer is passed on without a copy, `ENCRYPT_CHUNK_BYTES` at a time.
    """
    small: list[Buffer] = []
    small_bytes = 0
    for buffer in buffers:
        size, position = len(buffer), 0
        if encrypted_bytes and size:
            position = min(encrypted_bytes, size)
            encrypted_bytes -= position
            yield None, position
        while position < size:
            whole = not small and size - position >= RECORD_BYTES
            part_bytes = min(
                size - position, ENCRYPT_CHUNK_BYTES if whole else RECORD_BYTES - small_bytes
            )
            chunk = (
                buffer
                if part_bytes == size
                else memoryview(buffer)[position : position + part_bytes]
            )
            position += part_bytes
            if whole:
                yield chunk, part_bytes
                continue
            small.append(chunk)
            small_bytes += part_bytes
            if small_bytes == RECORD_BYTES:
                yield b"".join(small), small_bytes
                small, small_bytes = [], 0
    if small:
        yield (small[0] if len(small) == 1 else b"".join(small)), small_bytes


def _remaining_buffers(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return the rest of the buffers after their first ``count`` bytes."""
    remaining = []
    for buffer in buffers:
        size = len(buffer)
        if count < size:
            remaining.append(buffer[count:])
        count = max(0, count - size)
    return remaining


# --- files ----------------------------------------------------------------------------------------


def _load(directory: Path, *, shows_certificate: bool) -> _LoadedFiles:
    """Load the files as contexts that have completed a handshake with each other.

    Raises `InvalidRequest`, and `NotAuthenticated` for a certificate that is not valid at this time.
    """
    ca_path, certificate_path, key_path = (
        directory / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)
    )
    if not ca_path.is_file():
        raise InvalidRequest(f"{ca_path}: no such file; dlog pki makes directories with it")
    client = _context(ssl.PROTOCOL_TLS_CLIENT, directory)
    if not shows_certificate or not certificate_path.exists():
        return _LoadedFiles(None, client, None)
    try:
        mode = stat.S_IMODE(key_path.stat().st_mode)
    except OSError as error:
        raise InvalidRequest(f"{key_path}: {error.strerror}") from None
    if os.name == "posix" and mode & 0o077:
        raise InvalidRequest(
            f"{key_path} is readable by other users (mode {mode:04o}): chmod 600 it"
        )
    server = _context(ssl.PROTOCOL_TLS_SERVER, directory)
    for context in (client, server):
        try:
            context.load_cert_chain(certificate_path, key_path, refuse_passphrase(key_path))
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(
                f"{certificate_path} and {key_path} do not match: {_ssl_error_text(error)}"
            ) from None
    return _LoadedFiles(
        server, client, _check_handshake_with_itself(server, client, certificate_path)
    )


def refuse_passphrase(key: Path) -> Callable[[], str]:
    """Return a callback for OpenSSL that raises `InvalidRequest` if the key has a passphrase.

    By default, OpenSSL would prompt for it on the terminal and block the process.
    """

    def refuse() -> str:
        raise InvalidRequest(
            f"{key} is encrypted with a passphrase: openssl pkey -in {key.name} -out FILE decrypts it"
        )

    return refuse


def _context(protocol: int, directory: Path | None, *, authority: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate's URI identifies a node, not its host name
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.verify_mode = ssl.CERT_OPTIONAL  # users can authenticate by other methods
        context.num_tickets = 0
    if directory is None:
        try:
            context.load_verify_locations(cadata=authority)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidRequest(
                f"the cluster's {CA_FILE} cannot be used: {_ssl_error_text(error)}"
            ) from None
        return context
    for name in (CA_FILE, REVOKED_FILE):
        file = directory / name
        try:
            if name == CA_FILE or file.exists():
                context.load_verify_locations(file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"{file} cannot be used: {_ssl_error_text(error)}") from None
    if (directory / REVOKED_FILE).exists():
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _check_handshake_with_itself(
    server: ssl.SSLContext, client: ssl.SSLContext, file: Path
) -> CertificateIdentity:
    """Check that both contexts accept each other, and return the identity of the certificate.

    Raises `InvalidRequest`, which names the file. Raises `NotAuthenticated` if, by the clock of this machine,
    a certificate is not valid yet or has expired.
    """
    client_to_server, server_to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(server_to_client, client_to_server),
        server.wrap_bio(client_to_server, server_to_client, server_side=True),
    ]
    unfinished = list(ends)
    for _ in range(6):
        for end in list(unfinished):
            try:
                end.do_handshake()
                unfinished.remove(end)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                text = f"{file} is not accepted by its own {CA_FILE}: {_ssl_error_text(error)}"
                code = getattr(error, "verify_code", 0)
                # The clock may be the cause: after a boot it may be wrong until NTP corrects it. A
                # service manager does not start a node again after `InvalidRequest`.
                if code == _HAS_EXPIRED:
                    raise NotAuthenticated(f"{text} (dlog pki renew {file.parent})") from None
                if code == _NOT_YET_VALID:
                    raise NotAuthenticated(f"{text} (check this machine's clock)") from None
                raise InvalidRequest(text) from None
    if unfinished:
        raise InvalidRequest(f"{file}: the test handshake did not complete")
    try:
        return read_identity(ends[0].getpeercert() or {}, str(file))
    except NotAuthenticated as error:
        raise InvalidRequest(str(error)) from None


def _ssl_error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it cannot be parsed").lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error)
