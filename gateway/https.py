"""TLS of a gateway's own: the certificate that it shows to whoever connects, replaced while it runs.

A certificate for HTTP names hosts, as browsers want it, and an authority that they know has signed it: it is
no node's of `dlog pki`. Nobody is asked for one; who a user is, its token says.
"""

import logging
import ssl
import stat
import time
from pathlib import Path

import trio

from ..runtime.errors import InvalidRequest
from ..runtime.tls import unlocked

CERTIFICATE_FILE, KEY_FILE = "cert.pem", "key.pem"
PROTOCOLS = ["h2", "http/1.1"]
SETTLED_S = 2.0
"""Files that changed later than this before may still be changing: those of before are used."""
AGAIN_S = 10.0
"""Files that were no good are tried again after: a chmod, or free descriptors, do not change their times."""

Stamp = tuple[tuple[int, int, int], ...]

log = logging.getLogger("distributedlog.gateway")


class Certificates:
    """``cert.pem``, with the authorities between, and ``key.pem`` of a directory.

    Raises `InvalidRequest` that names the file. Files that are replaced are used for the next connection.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._context = self._load()
        self._stamp = self._bad = self._look()
        self._again_at_s = 0.0

    def speak(self, stream: trio.abc.Stream) -> "trio.SSLStream[trio.abc.Stream]":
        """TLS over a connection that was accepted."""
        self._reload()
        return trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)

    def _reload(self) -> None:
        stamp = self._look()
        now_s = time.monotonic()
        if stamp == self._stamp or (stamp == self._bad and now_s < self._again_at_s):
            return
        if any(abs(time.time_ns() - changed_ns) < SETTLED_S * 1e9 for *_, changed_ns in stamp):
            return
        try:
            self._context = self._load()
        except InvalidRequest as error:
            self._bad, self._again_at_s = stamp, now_s + AGAIN_S
            log.error("a new certificate is not used, the one of before is: %s", error)
            return
        self._stamp = stamp
        log.info("a new certificate is used from now on: %s", self._directory)

    def _look(self) -> Stamp:
        found = []
        for name in (CERTIFICATE_FILE, KEY_FILE):
            try:
                status = (self._directory / name).stat()
            except OSError:
                continue
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        certificate, key = (self._directory / name for name in (CERTIFICATE_FILE, KEY_FILE))
        try:
            mode = stat.S_IMODE(key.stat().st_mode)
        except OSError as error:
            raise InvalidRequest(f"{key}: {error.strerror}") from None
        if mode & 0o077:
            raise InvalidRequest(f"{key} may be read by others (mode {mode:04o}): chmod 600 it")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(PROTOCOLS)
        try:
            context.load_cert_chain(certificate, key, unlocked(key))
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"{certificate} and {key} are no pair: {error}") from None
        return context
