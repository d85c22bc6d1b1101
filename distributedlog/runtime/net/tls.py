"""TLS 1.3 over any `Connection`: who the other end is, and that nobody between reads or changes anything.

Frames, links and servers stay as they are: a host that is wrapped by `with_tls` dials and accepts connections
whose `identity` is what the other end's certificate says. Certificates carry one URI,
``dlog://DOMAIN/KIND/NAME``; OpenSSL proves that an authority of ours signed it, the kind, the name and the
domain are compared here and in `handshake.py` (H227). No tickets and no sessions: each connection is judged
anew (H223).

What costs memory, or hangs, elsewhere: OpenSSL's buffers keep their largest size, so bytes go in and out in
pieces (H219); plaintext may be left inside of it when the socket is dry (H220); and what is encrypted and not
yet taken by the socket is not reported as sent, so that whoever sends waits for it (H218).
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
    Verify,
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
"""``either`` is for the way from one to the other: both are taken, and TLS is tried first."""
CIPHERTEXT_BYTES = 1024 * 1024
"""Of ciphertext, received at once; one buffer a process. As much as plain connections receive: a server does
what came together in one turn."""
RECORD_BYTES = 16 * 1024
DECRYPT_CHUNK_BYTES = 32 * 1024
"""Of ciphertext, into OpenSSL at once."""
ENCRYPT_CHUNK_BYTES = 64 * 1024
"""Of plaintext, encrypted at once."""
BURST_BYTES = 256 * 1024
"""Of plaintext, encrypted before the socket is offered it: a call of the system for each piece, and a peer
that is woken for each, cost more than encrypting them."""
RECORD_OVERHEAD_BYTES = 64
"""What a record is longer by than its plaintext; at most."""
KEY_LIFETIME_BYTES = 64 << 30
KEY_LIFETIME_S = 8 * 3600.0
"""A connection whose keys were used for so much, or so long, ends; a new one has new keys (H222)."""
KEY_LIFETIME_SPREAD = 0.1
REFUSAL_WINDOW_S = 1.0
"""In TLS 1.3 the dialler is done before it is judged: so long a connection that breaks may be a refusal."""
HANDSHAKE_ANSWER_S = 2.0
"""Who had its turn, and has not answered in that time, keeps no place before those who wait for theirs."""
NAME_CHARS_MAX = 37

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_URI = re.compile(
    rf"dlog://([A-Za-z0-9._-]{{1,64}})/({'|'.join(KINDS)})/([A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}})"
)
_NOT_YET_VALID = 9
"""OpenSSL's code of a certificate whose time has not begun (X509_V_ERR_CERT_NOT_YET_VALID)."""
_HAS_EXPIRED = 10
"""OpenSSL's code of a certificate that has expired (X509_V_ERR_CERT_HAS_EXPIRED)."""
_ALERT_TEXTS = {
    "CERTIFICATE_EXPIRED": "our certificate has expired, says the other side",
    "UNKNOWN_CA": "the other side does not know the authority of our certificate",
    "CERTIFICATE_REVOKED": "our certificate was revoked, says the other side",
    "CERTIFICATE_REQUIRED": "the other side wants a certificate",
    "BAD_CERTIFICATE": "the other side does not take our certificate",
    "CERTIFICATE_UNKNOWN": "the other side does not take our certificate",
}


@dataclass(frozen=True, slots=True)
class _LoadedFiles:
    """One sound state of the files."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext
    identity: CertificateIdentity | None


class Tls:
    """A directory of ``ca.pem``, ``cert.pem`` and ``key.pem``, and what they are good for.

    Files that are replaced are used from the next connection on, once they are still and have shaken hands
    with themselves in memory; until then, and if they are no good, those of before (H226).
    Without ``cert.pem``, with ``ca.pem`` alone, a client knows its servers and shows nothing. Raises
    `InvalidRequest` that names the file.
    """

    def __init__(
        self, directory: Path | None, *, shows_certificate: bool = True, authority: str = ""
    ) -> None:
        """``directory`` None: ``authority`` is what would be in ``ca.pem``, and stays."""
        self.directory = directory
        self._shows_certificate = shows_certificate
        self.receive_buffer = memoryview(bytearray(CIPHERTEXT_BYTES))
        """What comes from sockets, of all connections of a host: nothing is left in it across an await."""
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
        """Who we are, by our certificate."""
        return None if self._files is None else self._files.loaded.identity

    def current_identity(self) -> CertificateIdentity | None:
        """Who we are by the files as they are now."""
        return self._current().identity

    def context_for(self, *, server: bool) -> ssl.SSLContext:
        """For a new connection. Raises `InvalidRequest` for a server without a certificate."""
        current = self._current()
        if not server:
            return current.client
        if current.server is None:
            raise InvalidRequest(f"{self.directory} has no {CERTIFICATE_FILE}: a server needs one")
        return current.server

    def _current(self) -> _LoadedFiles:
        if self._files is not None:
            return self._files.reload_if_changed()
        assert self._static is not None, "there are files, or what would be in them"
        return self._static

    def _load(self, previous: _LoadedFiles | None) -> _LoadedFiles:
        """A process stays who it is while it runs: its rights, its links and its name go by that."""
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
                f"is of {new_identity.principal} of {new_identity.domain}"
                if new_identity
                else "is not there"
            )
            raise InvalidRequest(
                f"{self.directory}/{CERTIFICATE_FILE} {change_text}, and was of {old_identity.principal} "
                f"of {old_identity.domain}"
            )
        return loaded


class TlsConnection:
    """One end of a connection that speaks TLS. See `Connection`; ``inner`` becomes this object's own.

    The handshake happens within the first `receive_into`: until then nothing is taken to be sent. What
    `try_send` did not take must be offered again, before anything else. With ``may_be_plain`` the first bytes
    of the other end decide.
    """

    def __init__(
        self, inner: Connection, tls: Tls, *, dialled: bool, may_be_plain: bool = False
    ) -> None:
        self.peer = inner.peer
        self.identity: CertificateIdentity | None = None
        self.is_secret = True
        self._prioritized_until = -inf
        self._inner = inner
        self._receive_buffer = tls.receive_buffer
        self._handshake_limiter = tls.handshake_limiter
        self._domain = tls.identity.domain if tls.identity is not None else ""
        self._dialled = dialled
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl_object: ssl.SSLObject | None = tls.context_for(server=not dialled).wrap_bio(
            self._incoming, self._outgoing, server_side=not dialled
        )
        self._may_be_plain = may_be_plain
        self._is_plain = False
        self._first_bytes = b""
        """Of a plain peer: what was read to find out that it is one."""
        self._ready = trio.Event()
        self._closed_event = trio.Event()
        """Closed here."""
        self._has_received = not dialled
        """Has the other end said anything since the handshake? Until then it may still refuse us."""
        self._refusal_deadline = 0.0
        self._may_have_plaintext = False
        """OpenSSL may hold more than was read out of it."""
        self._decrypt_error: ssl.SSLError | None = None
        """What broke what came: OpenSSL says why once, and what came before it counts."""
        self._unsent: list[memoryview] = []
        """Encrypted, and not yet taken by the socket."""
        self._encrypted_ahead = 0
        """So many bytes of what is offered next are in `_rest`, or went with it: they are not taken again."""
        self._end_reason = ""
        self._is_denied = False
        """Who is there was refused, or refuses us: what is left to say cannot be said."""
        spread = 1 - tls.rng.random() * KEY_LIFETIME_SPREAD if dialled else 2.0
        self._key_bytes_left = int(KEY_LIFETIME_BYTES * spread)
        self._keys_end_at = trio.current_time() + KEY_LIFETIME_S * spread
        watch_forks(self)

    @property
    def has_begun(self) -> bool:
        """See `Connection.has_begun`."""
        return trio.current_time() < self._prioritized_until

    # --- receiving --------------------------------------------------------------------------------

    async def receive_into(self, *buffers: memoryview) -> int:
        """See `Connection.receive_into`. One task at a time. Raises `NotAuthenticated` too."""
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
        # About as much as fits the caller's buffers: what does not fit stays inside of OpenSSL. Their last
        # record is to come whole: without its end it would be waited for once more.
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
                        "was closed after the handshake: it may not take who we are"
                    )
                return 0
            self._key_bytes_left -= received
            if self._key_bytes_left < 0 or trio.current_time() > self._keys_end_at:
                raise self._connection_lost(
                    "has ended: its keys were used for long enough, a new one has new ones"
                )
            count = self._decrypt(ciphertext[:received], buffers)
            if self._outgoing.pending:
                with contextlib.suppress(ConnectionLost):  # the next read or write meets it
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
        """Decrypt into the buffers, until they are full or nothing is left."""
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
                        return total  # asked for more, OpenSSL would say so by an error that costs more
        except ssl.SSLWantReadError:
            return total
        except ssl.SSLZeroReturnError:
            return total
        except ssl.SSLError as error:
            self._decrypt_error = error
            self._may_have_plaintext = (
                True  # it is looked at again when what came before it has been given
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
        """Find out who is there, as the first `receive_into` does. Raises `NotAuthenticated` and more."""
        self._check_alive()
        if self._may_be_plain and not await self._peer_speaks_tls():
            self.is_secret = False
            self._is_plain = True
            self._ready.set()
            return
        assert self._ssl_object is not None, "nobody has forked or closed it"
        waits = not self._dialled
        while True:
            if waits and self._incoming.pending:  # who is silent takes no turn
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
                        "was closed by the other side before it said who it is"
                    ) from None
                self._incoming.write(self._receive_buffer[:received])
            except ssl.SSLError as error:
                with contextlib.suppress(ConnectionLost):
                    self._flush()  # the other side is told why
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
                f"{self.peer} is {identity.principal} of {identity.domain}, and this is {self._domain}"
            )
        if self._dialled and identity.kind not in SERVERS:
            raise self._deny(f"{self.peer} is {identity.principal}, and no server")

    def _error_for(self, error: ssl.SSLError) -> ConnectionLost | NotAuthenticated:
        code = error.reason or ""  # a constant of OpenSSL
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._deny(
                f"the certificate that {self.peer} shows is not taken here: {error.verify_message}"
            )
        for alert, alert_text in _ALERT_TEXTS.items():
            if alert in code:
                return self._deny(f"{self.peer}: {alert_text}")
        if "WRONG_VERSION" in code or "UNEXPECTED_MESSAGE" in code or "HTTP_REQUEST" in code:
            return self._connection_lost("broke: the other side does not speak TLS")
        return self._connection_lost(f"broke: {code.lower().replace('_', ' ') or 'TLS failed'}")

    def _deny(self, reason: str) -> NotAuthenticated:
        self._end_reason = reason
        self._is_denied = True
        return NotAuthenticated(reason)

    # --- sending ----------------------------------------------------------------------------------

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        """See `Connection.try_send`. What was not taken must be offered again, before anything else."""
        if self._is_denied:
            return 0
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
            return 0  # why it hung up is still to be read (H221)

    def _encrypt_and_send(self, buffers: Sequence[Buffer]) -> int:
        if not self._flush():
            return 0
        assert self._ssl_object is not None, "a live connection has one"
        if not self._encrypted_ahead:
            size = sum(map(len, buffers))
            if size <= RECORD_BYTES:  # one record, in few steps: what a lone message waits for
                return self._send_record(buffers, size)
        write, accepted, unflushed = self._ssl_object.write, 0, 0
        for piece, size in _encryption_pieces(buffers, self._encrypted_ahead):
            if piece is None:  # it went before
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
                await self._closed_event.wait()  # whoever reads learns why it hung up (H221)
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
        """Take what OpenSSL has encrypted: its buffer keeps the largest size it ever had (H219)."""
        if self._outgoing.pending:
            self._unsent.append(memoryview(self._outgoing.read()))

    def _flush(self) -> bool:
        """Send what is encrypted; is all of it sent?"""
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
        """Close now; whoever waits gets `ConnectionLost`. No goodbye: frames have lengths. Idempotent."""
        self._end_reason = self._end_reason or f"the connection to {self.peer} was closed here"
        self._inner.close()
        self._ready.set()
        self._closed_event.set()

    def on_forked(self) -> None:
        """In a forked child: what it encrypted would be under the parent's key and numbers (H225)."""
        self._end_reason = forked_message(f"the connection to {self.peer}")
        self._ssl_object = None

    def _connection_lost(self, event_text: str) -> ConnectionLost:
        self._end_reason = f"the connection to {self.peer} {event_text}"
        return ConnectionLost(self._end_reason)

    def _check_alive(self) -> None:
        if self._end_reason:
            raise ConnectionLost(self._end_reason)


class TlsListener:
    """A listener whose connections speak TLS, or may: what a plain one may do, the host's methods say."""

    def __init__(self, inner: Listener, tls: Tls) -> None:
        self.address = inner.address
        self._inner = inner
        self._tls = tls

    async def accept(self) -> Connection:
        """See `Listener.accept`. Who it is, is found out when it is read from."""
        connection = await self._inner.accept()
        # Who speaks plain is told in words that it has to prove who it is, and cannot: without TLS
        # there is no method for it.
        return TlsConnection(connection, self._tls, dialled=False, may_be_plain=True)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._inner.close()


def with_tls(host: Host, tls: Tls, transport: str = TLS) -> Host:
    """The host, whose connections speak TLS; a peer's certificate says who it is, and ours who we are."""

    async def dial(address: Address) -> Connection:
        connection = TlsConnection(await host.dial(address), tls, dialled=True)
        if transport == EITHER:
            try:
                await connection.handshake()
            except ConnectionLost:  # as long as not all nodes speak it
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

    methods: dict[str, Verify] = {BY_CERTIFICATE: verify_certificate}
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


CERTIFICATE = Credentials(BY_CERTIFICATE, lambda meeting: b"", proved_by_tls=True)
"""TLS has shown it: there is nothing to add."""


def token_credentials(read: Callable[[], bytes]) -> Credentials:
    """To prove it by the token that ``read`` gives at that time, to metadata nodes and proxies, under TLS."""

    def prove(meeting: HandshakeContext) -> bytes:
        if not meeting.is_secret:
            raise NotAuthenticated(f"a token is not said in clear, and {meeting.peer_address} is")
        peer_identity = meeting.identity
        if peer_identity is None or peer_identity.kind not in (METADATA, PROXY):
            peer_name = "nobody" if peer_identity is None else peer_identity.principal
            raise NotAuthenticated(
                f"a token is shown to metadata nodes and proxies, and {meeting.peer_address} is {peer_name}"
            )
        return read()

    # It waits for the server's HELLO: by then TLS has said who is there.
    return Credentials(TOKEN, prove, needs_nonce=True)


def verify_certificate(meeting: HandshakeContext, proof: bytes) -> Welcome:
    """The method ``cert``: whom the certificate names. Raises `NotAuthenticated`."""
    if meeting.identity is None:
        raise NotAuthenticated(f"{meeting.peer_address} showed no certificate")
    return Welcome(meeting.identity.principal)


def is_name(text: str, chars_max: int = NAME_CHARS_MAX) -> bool:
    """May a certificate name a node, a user or a domain so?"""
    return _NAME.fullmatch(text) is not None and len(text) <= chars_max


def read_identity(certificate: Mapping[str, Any], source: str) -> CertificateIdentity:
    """Whom a certificate names, as `ssl` shows it. Raises `NotAuthenticated`."""
    names = certificate.get("subjectAltName", ())
    dlog_uris = [value for kind, value in names if kind == "URI" and value.startswith("dlog:")]
    if len(dlog_uris) != 1:
        raise NotAuthenticated(
            f"the certificate of {source} has {len(dlog_uris)} URIs that begin with dlog:, wanted is one"
        )
    match = _URI.fullmatch(dlog_uris[0])
    if match is None:
        raise NotAuthenticated(
            f"the certificate of {source} names nobody of a form like dlog://DOMAIN/KIND/NAME"
        )
    domain, kind, name = match.groups()
    if f"{kind}/{name}" == LOCAL:
        raise NotAuthenticated(f"the certificate of {source} names {LOCAL}, which is nobody's")
    begins_s, ends_s = (
        int(ssl.cert_time_to_seconds(certificate[name])) for name in ("notBefore", "notAfter")
    )
    serial = serial_of(str(certificate["serialNumber"]))
    return CertificateIdentity(domain, kind, name, serial, ends_s, begins_s)


def _encryption_pieces(
    buffers: Sequence[Buffer], encrypted_bytes: int
) -> Iterator[tuple[Buffer | None, int]]:
    """The buffers as pieces to encrypt, the first ``owed`` bytes as None.

    What is small is joined to records, the beginning of what is large with what is small before it; the rest
    of what is large goes as it is, `ENCRYPT_CHUNK_BYTES` at a time.
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
    """What is left of the buffers when so many bytes are in them."""
    remaining = []
    for buffer in buffers:
        size = len(buffer)
        if count < size:
            remaining.append(buffer[count:])
        count = max(0, count - size)
    return remaining


# --- files ----------------------------------------------------------------------------------------


def _load(directory: Path, *, shows_certificate: bool) -> _LoadedFiles:
    """The files as contexts that have shaken hands with each other.

    Raises `InvalidRequest`, and `NotAuthenticated` for a certificate outside its time.
    """
    ca_path, certificate_path, key_path = (
        directory / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)
    )
    if not ca_path.is_file():
        raise InvalidRequest(
            f"{ca_path}: there is no such file; dlog pki makes directories with it"
        )
    client = _context(ssl.PROTOCOL_TLS_CLIENT, directory)
    if not shows_certificate or not certificate_path.exists():
        return _LoadedFiles(None, client, None)
    try:
        mode = stat.S_IMODE(key_path.stat().st_mode)
    except OSError as error:
        raise InvalidRequest(f"{key_path}: {error.strerror}") from None
    if os.name == "posix" and mode & 0o077:
        raise InvalidRequest(f"{key_path} may be read by others (mode {mode:04o}): chmod 600 it")
    server = _context(ssl.PROTOCOL_TLS_SERVER, directory)
    for context in (client, server):
        try:
            context.load_cert_chain(certificate_path, key_path, refuse_passphrase(key_path))
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(
                f"{certificate_path} and {key_path} are no pair: {_ssl_error_text(error)}"
            ) from None
    return _LoadedFiles(
        server, client, _check_handshake_with_itself(server, client, certificate_path)
    )


def refuse_passphrase(key: Path) -> Callable[[], str]:
    """Where OpenSSL would ask the terminal for a passphrase, and all would wait: raises `InvalidRequest`."""

    def refuse() -> str:
        raise InvalidRequest(
            f"{key} is locked by a passphrase: openssl pkey -in {key.name} -out FILE unlocks it"
        )

    return refuse


def _context(protocol: int, directory: Path | None, *, authority: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # nodes are dialled by id, and named by the certificate's URI
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.verify_mode = ssl.CERT_OPTIONAL  # a user may prove who it is by other means
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
    """Do both ends take each other? Then who we are. Raises `InvalidRequest` that names the file.

    Raises `NotAuthenticated` if by this machine's clock a certificate is not valid yet, or no longer.
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
                text = f"{file} is not taken by its own {CA_FILE}: {_ssl_error_text(error)}"
                code = getattr(error, "verify_code", 0)
                # The clock may be the cause: after a boot it may be wrong until NTP corrects it. A
                # service manager does not start a node again after `InvalidRequest`.
                if code == _HAS_EXPIRED:
                    raise NotAuthenticated(f"{text} (dlog pki renew {file.parent})") from None
                if code == _NOT_YET_VALID:
                    raise NotAuthenticated(f"{text} (check this machine's clock)") from None
                raise InvalidRequest(text) from None
    if unfinished:
        raise InvalidRequest(f"{file}: a handshake with itself did not end")
    try:
        return read_identity(ends[0].getpeercert() or {}, str(file))
    except NotAuthenticated as error:
        raise InvalidRequest(str(error)) from None


def _ssl_error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not of a form that can be read").lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error)
