#!/usr/bin/env -S python3 -ISE
"""The health check of the container: queries its node over ``dlog serve … --http``. The exit code is 0 or 1.

It uses only the standard library and few imports, because it runs every few seconds in every container.
"""

import os
import socket
import sys

LIMIT_S = 3.0
KINDS = {
    "metadata": "DLOG_SERVE_METADATA_HTTP",
    "bookie": "DLOG_SERVE_BOOKIE_HTTP",
    "write-proxy": "DLOG_SERVE_WRITE_PROXY_HTTP",
    "read-proxy": "DLOG_SERVE_READ_PROXY_HTTP",
    "gateway": "DLOG_SERVE_GATEWAY_LISTEN",
}


def node_address() -> str:
    """Return the HTTP address of the node, or "".

    Process 1 shows the kind of the node, and the environment has the address for this kind.
    """
    with open("/proc/1/cmdline", "rb") as file:
        words = file.read().decode(errors="replace").split("\0")
    kind = next((kind for kind in KINDS if "serve" in words and kind in words), "")
    return os.environ.get(KINDS.get(kind, ""), "")


def connected(host: str, port: int) -> socket.socket:
    """Connect to the node, with TLS if it is a gateway that uses it.

    The certificate is not verified, because the address belongs to this container.
    """
    sock = socket.create_connection((host, port), timeout=LIMIT_S)
    if "DLOG_SERVE_GATEWAY_TLS" not in os.environ:
        return sock
    import ssl  # imported only if needed

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(sock)


def main() -> int:
    """Query the node and print its answer (shown by `docker inspect`). Return the exit code."""
    where = node_address()
    if not where:
        print("no node with --http in this container")
        return 1
    host, _, port = where.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    try:
        with connected(host, int(port)) as sock:
            # A gateway accepts only its own host names, which include those of this machine.
            named = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            lines = ("GET /health HTTP/1.1", f"Host: {named}", "Connection: close", "", "")
            sock.sendall("\r\n".join(lines).encode())
            answer = b""
            while part := sock.recv(65536):
                answer += part
    except OSError as error:
        print(f"{where}: {error}")
        return 1
    head, _, body = answer.partition(b"\r\n\r\n")
    print(body.decode(errors="replace").strip())
    return 0 if head.split(b" ", 2)[1:2] == [b"200"] else 1


if __name__ == "__main__":
    sys.exit(main())
