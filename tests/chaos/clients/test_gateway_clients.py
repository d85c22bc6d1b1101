"""Who posts to gateways posts the same again until it is answered, and notes what was answered, no more."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import trio

from distributedlog.testing.chaos.clients.client_context import ClientLife
from distributedlog.testing.chaos.clients.gateway_clients import post
from distributedlog.testing.verify.history.observations import ObservationWriter

Said = tuple[int, dict[str, Any]]


class Gateway:
    """Answers what it is told to; keeps what it was asked."""

    def __init__(self, records: list[Said]) -> None:
        self.records = records
        """For posts of records, one after the other; the last one again and again."""
        self.asked: list[tuple[str, str, str, bytes]] = []

    def answer(self, method: str, path: str, sequence: str, body: bytes) -> Said:
        self.asked.append((method, path, sequence, body))
        if method == "PUT":
            return 201, {}
        if path.endswith("/producers"):
            return 201, {"producer": "1:p", "next_sequence": 7}
        return self.records.pop(0) if len(self.records) > 1 else self.records[0]

    @property
    def posted(self) -> list[tuple[str, bytes]]:
        return [(sequence, body) for _, _, sequence, body in self.asked if sequence]


@contextmanager
def served(gateway: Gateway) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, said = gateway.answer(
                self.command, self.path, self.headers.get("dlog-sequence", ""), body
            )
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_POST = _do

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def play(gateway: Gateway, kind: str) -> list[list[Any]]:
    """What is noted until the first note of that kind."""
    lines: list[list[Any]] = []
    seen = trio.Event()

    def note(line: bytes) -> None:
        lines.append(json.loads(line))
        if lines[-1][1] == kind:
            seen.set()

    options = {"log": "posted", "rate": 40.0, "payload_bytes": 40}
    life = ClientLife("poster-1", "poster", options, 7, {}, 1, ObservationWriter("poster-1", note))
    with served(gateway) as url:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(post, life, [url])
            with trio.fail_after(60):
                await seen.wait()
            life.stop.set()
    return lines


async def test_what_was_not_answered_is_posted_again_and_noted_once() -> None:
    stored = (200, {"dlsns": ["1.0.0", "1.0.1"]})
    gateway = Gateway([(504, {}), (503, {}), stored])

    lines = await play(gateway, "ack")

    first, again, third = gateway.posted[:3]
    assert first == again == third
    assert first[0] == "7", "it goes on where the name was"
    acks = [line for line in lines if line[1] == "ack"]
    assert acks[0][2:4] == [7, 0]
    assert acks[0][-1] == [[1, 0, 0, 2]]
    assert not [line for line in lines if line[1] == "fail"]


async def test_one_that_is_refused_is_unknown_and_a_new_session_begins() -> None:
    gateway = Gateway([(504, {}), (409, {"error": {"name": "ProducerFenced"}})])

    lines = await play(gateway, "end")

    [failed, *_] = [line for line in lines if line[1] == "fail"]
    assert failed[2:5] == [7, 0, 2]
    assert failed[7] == "unknown", "an earlier try may have been stored"
    assert "ProducerFenced" in failed[8]
