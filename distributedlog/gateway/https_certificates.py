"""The gateway's own TLS certificate, which can be replaced while the gateway runs.

A certificate for HTTP contains host names, and an authority that browsers trust has signed it. It is not a
node certificate of `dlog pki`. Clients need no certificate; a token identifies a user.
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
    """``cert.pem``, with intermediate certificates, and ``key.pem`` in a directory.

    Replaced files are used for new connections (`distributedlog/runtime/disk/reloaded_files.py`).

    Raises:
        InvalidRequest: A file is missing or invalid; the error names it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = SettledFiles(directory, (CERTIFICATE_FILE, KEY_FILE), self._load)

    def wrap_tls(self, stream: trio.abc.Stream) -> "trio.SSLStream[trio.abc.Stream]":
        """Return an accepted connection with TLS."""
        context = self._files.reload_if_changed()
        return trio.SSLStream(stream, context, server_side=True, https_compatible=True)

    def _load(self, current_context: ssl.SSLContext | None) -> ssl.SSLContext:
        certificate, key = (self._directory / name for name in (CERTIFICATE_FILE, KEY_FILE))
        try:
            mode = stat.S_IMODE(key.stat().st_mode)
        except OSError as error:
            raise InvalidRequest(f"{key}: {error.strerror}") from None
        if mode & 0o077:
            raise InvalidRequest(
                f"{key} is readable by other users (mode {mode:04o}): chmod 600 it"
            )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(PROTOCOLS)
        try:
            context.load_cert_chain(certificate, key, refuse_passphrase(key))
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"{certificate} and {key} do not match: {error}") from None
        return context
