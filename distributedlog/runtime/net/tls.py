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
    Meeting,
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
CIPHER_BYTES = 1024 * 1024
"""Of ciphertext, received at once; one buffer a process. As much as plain connections receive: a server does
what came together in one turn."""
RECORD_BYTES = 16 * 1024
FED_BYTES = 32 * 1024
"""Of ciphertext, into OpenSSL at once."""
PIECE_BYTES = 64 * 1024
"""Of plaintext, encrypted at once."""
BURST_BYTES = 256 * 1024
"""Of plaintext, encrypted before the socket is offered it: a call of the system for each piece, and a peer
that is woken for each, cost more than encrypting them."""
RECORD_MORE_BYTES = 64
"""What a record is longer by than its plaintext; at most."""
RETIRE_BYTES = 64 << 30
RETIRE_S = 8 * 3600.0
"""A connection whose keys were used for so much, or so long, ends; a new one has new keys (H222)."""
RETIRE_SPREAD = 0.1
REFUSED_S = 1.0
"""In TLS 1.3 the dialler is done before it is judged: so long a connection that breaks may be a refusal."""
ANSWER_S = 2.0
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
_WORDS = {
    "CERTIFICATE_EXPIRED": "our certificate has expired, says the other side",
    "UNKNOWN_CA": "the other side does not know the authority of our certificate",
    "CERTIFICATE_REVOKED": "our certificate was revoked, says the other side",
    "CERTIFICATE_REQUIRED": "the other side wants a certificate",
    "BAD_CERTIFICATE": "the other side does not take our certificate",
    "CERTIFICATE_UNKNOWN": "the other side does not take our certificate",
}


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One sound state of the files."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext
    own: CertificateIdentity | None


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
        self.cipher = memoryview(bytearray(CIPHER_BYTES))
        """What comes from sockets, of all connections of a host: nothing is left in it across an await."""
        self.chance = random.Random(os.urandom(8))
        self.turns = HandshakeLimiter()
        self._fixed: _Loaded | None = None
        self._files: SettledFiles[_Loaded] | None = None
        if directory is None:
            context = _context(ssl.PROTOCOL_TLS_CLIENT, None, authority=authority)
            self._fixed = _Loaded(None, context, None)
        else:
            self._files = SettledFiles(directory, FILES, self._load)

    @property
    def own(self) -> CertificateIdentity | None:
        """Who we are, by our certificate."""
        return None if self._files is None else self._files.loaded.own

    def own_now(self) -> CertificateIdentity | None:
        """Who we are by the files as they are now."""
        return self._now().own

    def context(self, *, server: bool) -> ssl.SSLContext:
        """For a new connection. Raises `InvalidRequest` for a server without a certificate."""
        now = self._now()
        if not server:
            return now.client
        if now.server is None:
            raise InvalidRequest(f"{self.directory} has no {CERTIFICATE_FILE}: a server needs one")
        return now.server

    def _now(self) -> _Loaded:
        if self._files is not None:
            return self._files.look()
        assert self._fixed is not None, "there are files, or what would be in them"
        return self._fixed

    def _load(self, before: _Loaded | None) -> _Loaded:
        """A process stays who it is while it runs: its rights, its links and its name go by that."""
        assert self.directory is not None, "it is loaded from files"
        loaded = _load(self.directory, shows_certificate=self._shows_certificate)
        was, now = None if before is None else before.own, loaded.own
        if was is not None and (
            now is None or (now.domain, now.principal) != (was.domain, was.principal)
        ):
            is_now = f"is of {now.principal} of {now.domain}" if now else "is not there"
            raise InvalidRequest(
                f"{self.directory}/{CERTIFICATE_FILE} {is_now}, and was of {was.principal} of {was.domain}"
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
        self._begun_until = -inf
        self._inner = inner
        self._cipher = tls.cipher
        self._turns = tls.turns
        self._domain = tls.own.domain if tls.own is not None else ""
        self._dialled = dialled
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object: ssl.SSLObject | None = tls.context(server=not dialled).wrap_bio(
            self._incoming, self._outgoing, server_side=not dialled
        )
        self._undecided = may_be_plain
        self._plain = False
        self._first = b""
        """Of a plain peer: what was read to find out that it is one."""
        self._ready = trio.Event()
        self._gone = trio.Event()
        """Closed here."""
        self._heard = not dialled
        """Has the other end said anything since the handshake? Until then it may still refuse us."""
        self._refused_by = 0.0
        self._inside = False
        """OpenSSL may hold more than was read out of it."""
        self._met: ssl.SSLError | None = None
        """What broke what came: OpenSSL says why once, and what came before it counts."""
        self._rest: list[memoryview] = []
        """Encrypted, and not yet taken by the socket."""
        self._owed = 0
        """So many bytes of what is offered next are in `_rest`, or went with it: they are not taken again."""
        self._lost = ""
        self._denied = False
        """Who is there was refused, or refuses us: what is left to say cannot be said."""
        spread = 1 - tls.chance.random() * RETIRE_SPREAD if dialled else 2.0
        self._bytes_left = int(RETIRE_BYTES * spread)
        self._ends_at = trio.current_time() + RETIRE_S * spread
        watch_forks(self)

    @property
    def has_begun(self) -> bool:
        """See `Connection.has_begun`."""
        return trio.current_time() < self._begun_until

    # --- receiving --------------------------------------------------------------------------------

    async def receive_into(self, *buffers: memoryview) -> int:
        """See `Connection.receive_into`. One task at a time. Raises `NotAuthenticated` too."""
        if not self._ready.is_set():
            await self.shake()
        if self._plain:
            return await self._receive_plain(buffers)
        self._check()
        if self._inside:
            await trio.lowlevel.checkpoint()
            self._check()
            if count := self._read(buffers):
                self._heard = True
                return count
            if self._met is not None:
                raise self._refused(self._met)
        # About as much as fits the caller's buffers: what does not fit stays inside of OpenSSL. Their last
        # record is to come whole: without its end it would be waited for once more.
        room = sum(map(len, buffers))
        room += (room // RECORD_BYTES + 2) * RECORD_MORE_BYTES
        room = max(room, 2 * RECORD_BYTES)
        cipher = self._cipher[:room]
        while True:
            got = await self._inner.receive_into(cipher)
            self._check()
            if not got:
                if not self._heard:
                    raise self._lose("was closed after the handshake: it may not take who we are")
                return 0
            self._bytes_left -= got
            if self._bytes_left < 0 or trio.current_time() > self._ends_at:
                raise self._lose(
                    "has ended: its keys were used for long enough, a new one has new ones"
                )
            count = self._feed(cipher[:got], buffers)
            if self._outgoing.pending:
                with contextlib.suppress(ConnectionLost):  # the next read or write meets it
                    self._flush()
            if count:
                self._heard = True
                return count
            if self._met is not None:
                raise self._refused(self._met)

    def _feed(self, cipher: memoryview, buffers: Sequence[memoryview]) -> int:
        count = 0
        rest: Sequence[memoryview] = buffers
        for at in range(0, len(cipher), FED_BYTES):
            self._incoming.write(cipher[at : at + FED_BYTES])
            more = self._read(rest)
            if more:
                count += more
                rest = _after(rest, more)
        return count

    def _read(self, buffers: Sequence[memoryview]) -> int:
        """Decrypt into the buffers, until they are full or nothing is left."""
        assert self._object is not None, "a live connection has one"
        read, pending, incoming = self._object.read, self._object.pending, self._incoming
        total: int = 0
        if self._met is not None:
            return 0
        self._inside = False
        try:
            for buffer in buffers:
                at, size = 0, len(buffer)
                while at < size:
                    count: Any = read(size - at, buffer[at:])
                    if not count:
                        return total
                    at += count
                    total += count
                    if not incoming.pending and not pending():
                        return total  # asked for more, OpenSSL would say so by an error that costs more
        except ssl.SSLWantReadError:
            return total
        except ssl.SSLZeroReturnError:
            return total
        except ssl.SSLError as error:
            self._met = error
            self._inside = True  # it is looked at again when what came before it has been given
            return total
        self._inside = True
        return total

    async def _receive_plain(self, buffers: Sequence[memoryview]) -> int:
        if not self._first:
            return await self._inner.receive_into(*buffers)
        await trio.lowlevel.checkpoint()
        self._check()
        given = 0
        for buffer in buffers:
            part = self._first[given : given + len(buffer)]
            buffer[: len(part)] = part
            given += len(part)
        self._first = self._first[given:]
        return given

    # --- the handshake ----------------------------------------------------------------------------

    async def shake(self) -> None:
        """Find out who is there, as the first `receive_into` does. Raises `NotAuthenticated` and more."""
        self._check()
        if self._undecided and not await self._begins_tls():
            self.is_secret = False
            self._plain = True
            self._ready.set()
            return
        assert self._object is not None, "nobody has forked or closed it"
        waits = not self._dialled
        while True:
            if waits and self._incoming.pending:  # who is silent takes no turn
                waits, self._begun_until = False, inf
                await self._turns.turn(host_of(self.peer), self._check)
                self._begun_until = trio.current_time() + ANSWER_S
            try:
                self._object.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush_all()
                got = await self._inner.receive_into(self._cipher[:FED_BYTES])
                self._check()
                if not got:
                    raise self._lose(
                        "was closed by the other side before it said who it is"
                    ) from None
                self._incoming.write(self._cipher[:got])
            except ssl.SSLError as error:
                with contextlib.suppress(ConnectionLost):
                    self._flush()  # the other side is told why
                raise self._refused(error) from None
        await self._flush_all()
        certificate: Mapping[str, Any] | None = self._object.getpeercert()
        if certificate:
            self.identity = identity_of(certificate, self.peer)
            self._check_identity(self.identity)
            if self.identity.kind in SERVERS:
                self._turns.on_node(host_of(self.peer))
        self._inside = True  # the first frames may have come with the last of the handshake
        self._refused_by = trio.current_time() + REFUSED_S
        self._ready.set()

    async def _begins_tls(self) -> bool:
        # A plain HELLO cannot begin like a record of TLS: read as a frame's length, 16 03 01 is above 64 KiB.
        while len(self._first) < 3 and b"\x16\x03".startswith(self._first[:2]):
            got = await self._inner.receive_into(self._cipher[:FED_BYTES])
            self._check()
            if not got:
                return False
            self._first += bytes(self._cipher[:got])
        self._undecided = False
        if self._first[:2] != b"\x16\x03" or not 1 <= self._first[2] <= 4:
            return False
        self._incoming.write(self._first)
        self._first = b""
        return True

    def _check_identity(self, identity: CertificateIdentity) -> None:
        if self._domain and identity.domain != self._domain:
            raise self._deny(
                f"{self.peer} is {identity.principal} of {identity.domain}, and this is {self._domain}"
            )
        if self._dialled and identity.kind not in SERVERS:
            raise self._deny(f"{self.peer} is {identity.principal}, and no server")

    def _refused(self, error: ssl.SSLError) -> ConnectionLost | NotAuthenticated:
        code = error.reason or ""  # a constant of OpenSSL
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._deny(
                f"the certificate that {self.peer} shows is not taken here: {error.verify_message}"
            )
        for word, words in _WORDS.items():
            if word in code:
                return self._deny(f"{self.peer}: {words}")
        if "WRONG_VERSION" in code or "UNEXPECTED_MESSAGE" in code or "HTTP_REQUEST" in code:
            return self._lose("broke: the other side does not speak TLS")
        return self._lose(f"broke: {code.lower().replace('_', ' ') or 'TLS failed'}")

    def _deny(self, why: str) -> NotAuthenticated:
        self._lost = why
        self._denied = True
        return NotAuthenticated(why)

    # --- sending ----------------------------------------------------------------------------------

    def try_send(self, buffers: Sequence[Buffer]) -> int:
        """See `Connection.try_send`. What was not taken must be offered again, before anything else."""
        if self._denied:
            return 0
        self._check()
        if self._plain:
            return self._inner.try_send(buffers)
        if not self._ready.is_set():
            return 0
        try:
            return self._send(buffers)
        except ConnectionLost:
            if self._heard or trio.current_time() > self._refused_by:
                raise
            return 0  # why it hung up is still to be read (H221)

    def _send(self, buffers: Sequence[Buffer]) -> int:
        if not self._flush():
            return 0
        assert self._object is not None, "a live connection has one"
        if not self._owed:
            size = sum(map(len, buffers))
            if size <= RECORD_BYTES:  # one record, in few steps: what a lone message waits for
                return self._send_record(buffers, size)
        write, taken, burst = self._object.write, 0, 0
        for piece, size in _pieces(buffers, self._owed):
            if piece is None:  # it went before
                taken += size
                self._owed -= size
                continue
            write(piece)
            self._bytes_left -= size
            self._encrypted()
            burst += size
            if burst >= BURST_BYTES:
                if not self._flush():
                    self._owed = burst
                    return taken
                taken += burst
                burst = 0
        if burst and not self._flush():
            self._owed = burst
            return taken
        return taken + burst

    async def wait_writable(self) -> None:
        """See `Connection.wait_writable`. One task at a time."""
        self._check()
        if not self._ready.is_set():
            await self._ready.wait()
            self._check()
        try:
            while True:
                await self._inner.wait_writable()
                self._check()
                if self._plain or self._flush():
                    return
        except ConnectionLost:
            if self._heard:
                raise
            with trio.move_on_at(self._refused_by):
                await self._gone.wait()  # whoever reads learns why it hung up (H221)
            self._check()
            raise

    def _send_record(self, buffers: Sequence[Buffer], size: int) -> int:
        if not size:
            return 0
        assert self._object is not None, "a live connection has one"
        self._object.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        self._bytes_left -= size
        self._encrypted()
        if self._flush():
            return size
        self._owed = size
        return 0

    def _encrypted(self) -> None:
        """Take what OpenSSL has encrypted: its buffer keeps the largest size it ever had (H219)."""
        if self._outgoing.pending:
            self._rest.append(memoryview(self._outgoing.read()))

    def _flush(self) -> bool:
        """Send what is encrypted; is all of it sent?"""
        self._encrypted()
        while self._rest:
            sent = self._inner.try_send(self._rest)
            if not sent:
                return False
            self._rest = _after(self._rest, sent)
        return True

    async def _flush_all(self) -> None:
        while not self._flush():
            await self._inner.wait_writable()

    # --- its end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close now; whoever waits gets `ConnectionLost`. No goodbye: frames have lengths. Idempotent."""
        self._lost = self._lost or f"the connection to {self.peer} was closed here"
        self._inner.close()
        self._ready.set()
        self._gone.set()

    def on_forked(self) -> None:
        """In a forked child: what it encrypted would be under the parent's key and numbers (H225)."""
        self._lost = forked_message(f"the connection to {self.peer}")
        self._object = None

    def _lose(self, what: str) -> ConnectionLost:
        self._lost = f"the connection to {self.peer} {what}"
        return ConnectionLost(self._lost)

    def _check(self) -> None:
        if self._lost:
            raise ConnectionLost(self._lost)


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
                await connection.shake()
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
        return None if tls.own is None else CERTIFICATE

    methods: dict[str, Verify] = {BY_CERTIFICATE: verify_certificate}
    if transport == EITHER:
        methods["none"] = anonymous
    return replace(
        host,
        dial=dial,
        listen=listen,
        credentials=credentials,
        methods=methods,
        certificate=tls.own_now,
    )


CERTIFICATE = Credentials(BY_CERTIFICATE, lambda meeting: b"", by_tls=True)
"""TLS has shown it: there is nothing to add."""


def token_credentials(read: Callable[[], bytes]) -> Credentials:
    """To prove it by the token that ``read`` gives at that time, to metadata nodes and proxies, under TLS."""

    def prove(meeting: Meeting) -> bytes:
        if not meeting.is_secret:
            raise NotAuthenticated(f"a token is not said in clear, and {meeting.peer_address} is")
        met = meeting.identity
        if met is None or met.kind not in (METADATA, PROXY):
            who = "nobody" if met is None else met.principal
            raise NotAuthenticated(
                f"a token is shown to metadata nodes and proxies, and {meeting.peer_address} is {who}"
            )
        return read()

    # It waits for the server's HELLO: by then TLS has said who is there.
    return Credentials(TOKEN, prove, needs_nonce=True)


def verify_certificate(meeting: Meeting, proof: bytes) -> Welcome:
    """The method ``cert``: whom the certificate names. Raises `NotAuthenticated`."""
    if meeting.identity is None:
        raise NotAuthenticated(f"{meeting.peer_address} showed no certificate")
    return Welcome(meeting.identity.principal)


def is_name(text: str, chars_max: int = NAME_CHARS_MAX) -> bool:
    """May a certificate name a node, a user or a domain so?"""
    return _NAME.fullmatch(text) is not None and len(text) <= chars_max


def identity_of(certificate: Mapping[str, Any], where: str) -> CertificateIdentity:
    """Whom a certificate names, as `ssl` shows it. Raises `NotAuthenticated`."""
    names = certificate.get("subjectAltName", ())
    ours = [value for kind, value in names if kind == "URI" and value.startswith("dlog:")]
    if len(ours) != 1:
        raise NotAuthenticated(
            f"the certificate of {where} has {len(ours)} URIs that begin with dlog:, wanted is one"
        )
    found = _URI.fullmatch(ours[0])
    if found is None:
        raise NotAuthenticated(
            f"the certificate of {where} names nobody of a form like dlog://DOMAIN/KIND/NAME"
        )
    domain, kind, name = found.groups()
    if f"{kind}/{name}" == LOCAL:
        raise NotAuthenticated(f"the certificate of {where} names {LOCAL}, which is nobody's")
    begins_s, ends_s = (
        int(ssl.cert_time_to_seconds(certificate[name])) for name in ("notBefore", "notAfter")
    )
    serial = serial_of(str(certificate["serialNumber"]))
    return CertificateIdentity(domain, kind, name, serial, ends_s, begins_s)


def _pieces(buffers: Sequence[Buffer], owed: int) -> Iterator[tuple[Buffer | None, int]]:
    """The buffers as pieces to encrypt, the first ``owed`` bytes as None.

    What is small is joined to records, the beginning of what is large with what is small before it; the rest
    of what is large goes as it is, `PIECE_BYTES` at a time.
    """
    small: list[Buffer] = []
    small_bytes = 0
    for buffer in buffers:
        size, at = len(buffer), 0
        if owed and size:
            at = min(owed, size)
            owed -= at
            yield None, at
        while at < size:
            whole = not small and size - at >= RECORD_BYTES
            part = min(size - at, PIECE_BYTES if whole else RECORD_BYTES - small_bytes)
            some = buffer if part == size else memoryview(buffer)[at : at + part]
            at += part
            if whole:
                yield some, part
                continue
            small.append(some)
            small_bytes += part
            if small_bytes == RECORD_BYTES:
                yield b"".join(small), small_bytes
                small, small_bytes = [], 0
    if small:
        yield (small[0] if len(small) == 1 else b"".join(small)), small_bytes


def _after(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of the buffers when so many bytes are in them."""
    left = []
    for buffer in buffers:
        size = len(buffer)
        if count < size:
            left.append(buffer[count:])
        count = max(0, count - size)
    return left


# --- files ----------------------------------------------------------------------------------------


def _load(directory: Path, *, shows_certificate: bool) -> _Loaded:
    """The files as contexts that have shaken hands with each other.

    Raises `InvalidRequest`, and `NotAuthenticated` for a certificate outside its time.
    """
    ca, certificate, key = (directory / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE))
    if not ca.is_file():
        raise InvalidRequest(f"{ca}: there is no such file; dlog pki makes directories with it")
    client = _context(ssl.PROTOCOL_TLS_CLIENT, directory)
    if not shows_certificate or not certificate.exists():
        return _Loaded(None, client, None)
    try:
        mode = stat.S_IMODE(key.stat().st_mode)
    except OSError as error:
        raise InvalidRequest(f"{key}: {error.strerror}") from None
    if os.name == "posix" and mode & 0o077:
        raise InvalidRequest(f"{key} may be read by others (mode {mode:04o}): chmod 600 it")
    server = _context(ssl.PROTOCOL_TLS_SERVER, directory)
    for context in (client, server):
        try:
            context.load_cert_chain(certificate, key, unlocked(key))
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"{certificate} and {key} are no pair: {_why(error)}") from None
    return _Loaded(server, client, _shake_with_itself(server, client, certificate))


def unlocked(key: Path) -> Callable[[], str]:
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
            raise InvalidRequest(f"the cluster's {CA_FILE} cannot be used: {_why(error)}") from None
        return context
    for name in (CA_FILE, REVOKED_FILE):
        file = directory / name
        try:
            if name == CA_FILE or file.exists():
                context.load_verify_locations(file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"{file} cannot be used: {_why(error)}") from None
    if (directory / REVOKED_FILE).exists():
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _shake_with_itself(
    server: ssl.SSLContext, client: ssl.SSLContext, file: Path
) -> CertificateIdentity:
    """Do both ends take each other? Then who we are. Raises `InvalidRequest` that names the file.

    Raises `NotAuthenticated` if by this machine's clock a certificate is not valid yet, or no longer.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    left = list(ends)
    for _ in range(6):
        for end in list(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                text = f"{file} is not taken by its own {CA_FILE}: {_why(error)}"
                code = getattr(error, "verify_code", 0)
                # The clock may be the cause: after a boot it may be wrong until NTP corrects it. A
                # service manager does not start a node again after `InvalidRequest`.
                if code == _HAS_EXPIRED:
                    raise NotAuthenticated(f"{text} (dlog pki renew {file.parent})") from None
                if code == _NOT_YET_VALID:
                    raise NotAuthenticated(f"{text} (check this machine's clock)") from None
                raise InvalidRequest(text) from None
    if left:
        raise InvalidRequest(f"{file}: a handshake with itself did not end")
    try:
        return identity_of(ends[0].getpeercert() or {}, str(file))
    except NotAuthenticated as error:
        raise InvalidRequest(str(error)) from None


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not of a form that can be read").lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error)
