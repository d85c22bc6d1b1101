"""A client of one connection to a proxy, from docs/reference/formats.md and the independent decoder alone.

It imports no module of this project. It writes the few messages that are necessary to append a record and to
read it back.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
from xxhash import xxh3_64_intdigest

from tests.vectors.independent_decoder import decode_frame

HELLO, AUTH, REPLY, MEMBERS, PRODUCE_OPEN, PRODUCE, PRODUCE_ACKS = 1, 2, 3, 97, 98, 99, 100
PRODUCE_COMMIT, SUBSCRIBE, ENTRIES = 108, 112, 113
ENVELOPE = struct.Struct("<IBBHQII")


class WireClient:
    """A connection after its handshake. Every frame is decoded by the independent decoder."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._requests = 0
        hello = dict.fromkeys(
            ("cluster", "node", "label", "durability", "expected", "listener"), ""
        )
        hello |= {"magic": "distributedlog", "protocol_min": 1, "protocol_max": 1, "kind": "client"}  # type: ignore[dict-item]
        hello |= {"features_required": [], "features": 4 | 32, "auth": ["none"]}  # type: ignore[dict-item]
        self.send(HELLO, msgpack.packb(hello))
        self.send(AUTH, msgpack.packb({"method": "none"}))
        self.hello = self.receive(HELLO)["body"]
        assert self.hello["magic"] == "distributedlog"
        self.receive(AUTH)

    def send(self, op: int, body: bytes, ident: int = 0) -> None:
        self._connection.sendall(ENVELOPE.pack(24 + len(body), op, 0, 0, ident, 0, 0) + body)

    def receive(self, op: int) -> Any:
        """Return the next frame, which must have this operation and no error."""
        length = self._receive_bytes(4)
        frame = decode_frame(length + self._receive_bytes(int.from_bytes(length, "little") - 4))
        assert (frame["envelope"]["op"], frame["envelope"]["status"]) == (op, 0), frame
        return frame

    def _receive_bytes(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            piece = self._connection.recv(size - len(received))
            assert piece, "the server closed the connection"
            received += piece
        return bytes(received)

    def request(self, op: int, body: bytes) -> Any:
        """Send a request and return the body of its reply."""
        self._requests += 1
        self.send(op, body, self._requests)
        reply = self.receive(REPLY)
        assert reply["envelope"]["ident"] == self._requests
        return reply["body"]

    def members(self) -> list[Any]:
        """Return the list of proxies. The connection is of no other use afterwards: more replies follow."""
        rows: list[Any] = self.request(MEMBERS, b"")
        return rows

    def append(self, log: str, payload: bytes) -> dict[str, int]:
        """Append a record on a new stream, make it readable, and return its acknowledgement."""
        opening = [1, "default", log, "", "", 0, 0, "", True]
        _, _, _, sequence, *_ = self.request(PRODUCE_OPEN, msgpack.packb(opening))
        body = struct.pack("<QQIII", sequence, 0, 1, 0, len(payload)) + payload
        digest = struct.pack("<Q", xxh3_64_intdigest(body))
        self.send(PRODUCE, digest + body, 1)
        (ack,) = self.receive(PRODUCE_ACKS)["body"]
        self.request(PRODUCE_COMMIT, struct.pack("<I", 1))
        return dict(ack)

    def read(self, log: str) -> list[dict[str, Any]]:
        """Return the records of the first frame of entries."""
        start = {
            "path": "default",
            "name": log,
            "incarnation": "",
            "resumes": False,
            "at": "earliest",
        }
        start |= {"dlsn": None, "sequence_id": -1, "proven": False, "txid": None, "since_ms": None}
        start |= {"to": None, "to_end": False, "credit": 65_536}
        answer = self.request(SUBSCRIBE, msgpack.packb(start))
        assert answer["name"] == log
        entries = self.receive(ENTRIES)
        assert entries["envelope"]["ident"] == self._requests
        return list(entries["body"]["records"])


@contextmanager
def connected(host: str, port: int) -> Iterator[WireClient]:
    """Connect to a proxy and complete the handshake."""
    with socket.create_connection((host, port), timeout=20) as connection:
        yield WireClient(connection)
