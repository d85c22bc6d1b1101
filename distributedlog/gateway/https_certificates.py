"""TLS of a gateway's own: the certificate that it shows to whoever connects, replaced while it runs.

A certificate for HTTP names hosts, as browsers want it, and an authority that they know has signed it: it is
no node's of `dlog pki`. Nobody is asked for one; who a user is, its token says.
"""

import ssl
import stat
from pathlib import Path

import trio

from ..runtime.disk.reloaded_files import SettledFiles
from ..runtime.interfaces.errors import InvalidRequest
from ..runtime.net.tls import CERTIFICATE_FILE, KEY_FILE, refuse_passphrase

PROTOCOLS = ["h2", "http/1.1"]


class Certificates:
    """``cert.pem``, with the authorities between, and ``key.pem`` of a directory.

    Raises `InvalidRequest` that names the file. Files that are replaced are used for the next connection
    (`distributedlog/runtime/disk/reloaded_files.py`).
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = SettledFiles(directory, (CERTIFICATE_FILE, KEY_FILE), self._load)

    def wrap_tls(self, stream: trio.abc.Stream) -> "trio.SSLStream[trio.abc.Stream]":
        """TLS over a connection that was accepted."""
        context = self._files.reload_if_changed()
        return trio.SSLStream(stream, context, server_side=True, https_compatible=True)

    def _load(self, current_context: ssl.SSLContext | None) -> ssl.SSLContext:
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
            context.load_cert_chain(certificate, key, refuse_passphrase(key))
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"{certificate} and {key} are no pair: {error}") from None
        return context
