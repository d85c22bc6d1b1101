"""Gateways in this process, on real sockets, and a client that speaks HTTP to them by h11."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
import trio

from distributedlog.gateway.gateway_lifecycle import run_gateway
from distributedlog.gateway.options import GatewayOptions

TIMEOUT_S = 30.0
JSON_LINES = {"content-type": "application/x-ndjson"}


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The name of the error."""
        return str(self.json["error"]["name"])


@dataclass
class Event:
    """A server-sent one."""

    id: str = ""
    name: str = ""
    data: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Client:
    """One connection, kept open; requests one after the other."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self.stream = stream
        self.host = host
        self._http = h11.Connection(h11.CLIENT)

    async def ask(self, method: str, path: str, body: bytes | str = b"", **headers: str) -> Answer:
        """A request and its whole answer. Underscores in names of headers are dashes."""
        with trio.fail_after(TIMEOUT_S):
            answer = await self.begin(method, path, body, **headers)
            while (part := await self._event()) is not None:
                answer.body += part
            self._http.start_next_cycle()
            return answer

    async def begin(
        self, method: str, path: str, body: bytes | str = b"", **headers: str
    ) -> Answer:
        """A request, and its answer's head."""
        data = body.encode() if isinstance(body, str) else body
        named = {"host": self.host, **{k.replace("_", "-"): v for k, v in headers.items()}}
        named.setdefault("content-length", str(len(data)))
        request = h11.Request(method=method, target=path, headers=list(named.items()))
        parts = [request, h11.Data(data=data), h11.EndOfMessage()]
        await self.stream.send_all(b"".join(self._http.send(one) or b"" for one in parts))
        while True:
            found = self._http.next_event()
            if isinstance(found, h11.Response):
                heads = {name.decode(): value.decode() for name, value in found.headers}
                return Answer(found.status_code, heads)
            assert found is h11.NEED_DATA, found
            self._http.receive_data(await self.stream.receive_some(65536))

    async def _event(self) -> bytes | None:
        """The next part of the body; None: its end."""
        while True:
            found = self._http.next_event()
            if isinstance(found, h11.Data):
                return bytes(found.data)
            if isinstance(found, h11.EndOfMessage):
                return None
            assert found is h11.NEED_DATA, found
            self._http.receive_data(await self.stream.receive_some(65536))

    async def part(self) -> bytes:
        """The next part of an answer that has begun."""
        with trio.fail_after(TIMEOUT_S):
            found = await self._event()
        assert found is not None
        return found

    async def events(self, path: str, **headers: str) -> AsyncIterator[Event]:
        """Of a stream, but for comments and pauses; each within the time-out."""
        answer = await self.begin("GET", path, **headers)
        assert answer.status == 200, answer
        assert answer.headers["content-type"] == "text/event-stream"
        text, found = "", Event()
        while True:
            with trio.fail_after(TIMEOUT_S):
                part = await self._event()
            if part is None:
                return
            text += part.decode()
            while "\n" in text:
                line, _, text = text.partition("\n")
                name, _, value = line.partition(": ")
                if name == "id":
                    found.id = value
                elif name == "event":
                    found.name = value
                elif name == "data":
                    found.data = value
                elif not line and found.data:
                    yield found
                    found = Event()

    async def close(self) -> None:
        await self.stream.aclose()


@dataclass
class Gate:
    """A gateway that runs."""

    url: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def place(self) -> tuple[str, int]:
        found = urlsplit(self.url)
        assert found.hostname is not None
        assert found.port is not None
        return found.hostname, found.port

    async def client(self) -> Client:
        host, port = self.place
        return Client(await trio.open_tcp_stream(host, port), f"{host}:{port}")

    async def ask(self, method: str, path: str, body: bytes | str = b"", **headers: str) -> Answer:
        """On a connection of its own."""
        client = await self.client()
        try:
            return await client.ask(method, path, body, **headers)
        finally:
            await client.close()

    async def number(self, name: str) -> float:
        """What it counts."""
        text = (await self.ask("GET", "/metrics")).body.decode()
        [line] = [one for one in text.splitlines() if one.startswith(f"dlog_gateway_{name} ")]
        return float(line.split()[1])

    async def until(self, name: str, value: float) -> None:
        """Until it counts that."""
        with trio.fail_after(TIMEOUT_S):
            while await self.number(name) != value:  # noqa: ASYNC110 (nobody tells)
                await trio.sleep(0.02)

    async def stop(self) -> None:
        """As a signal would; returns when it has ended."""
        self.scope.cancel()
        with trio.fail_after(TIMEOUT_S):
            await self.ended.wait()


async def gate(
    nursery: trio.Nursery,
    uri: str,
    *,
    token: str = "",
    users: bool = False,
    tls: Path | None = None,
    **options: Any,
) -> Gate:
    """Start a gateway over ``uri``."""
    found = Gate("")

    async def run(*, task_status: trio.TaskStatus[dict[str, Any]]) -> None:
        with found.scope:
            await run_gateway(
                uri,
                ("127.0.0.1", 0),
                GatewayOptions(**options),
                token=token,
                users=users,
                tls=tls,
                task_status=task_status,
            )
        found.ended.set()

    found.url = (await nursery.start(run))["url"]
    return found


@asynccontextmanager
async def gates(uri: str, count: int = 1, **options: Any) -> AsyncIterator[list[Gate]]:
    """Some gateways over one URI, until the block ends."""
    async with trio.open_nursery() as nursery:
        yield [await gate(nursery, uri, **options) for _ in range(count)]
        nursery.cancel_scope.cancel()
