"""NATS JetStream: three servers, a stream of three replicas, `sync_interval: always`."""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from ..measure.histogram import Histogram
from .peer import PeerMissing, free_ports, payloads, program, run_server, until

T = TypeVar("T")

SERVERS = 3
WINDOW = 4096
ANSWER_S = 20.0
CONNECT_S = 3.0
SERVER = """
server_name: n{number}
listen: 127.0.0.1:{client}
jetstream {{ store_dir: "{data}", sync_interval: always }}
cluster {{ name: peers, listen: 127.0.0.1:{route}, routes: [{routes}] }}
"""


class Nats:
    """Publishes with its own inbox and counts the answers: the fastest way of the Python client."""

    name = "NATS JetStream"
    settings = "3 servers, replicas 3, file storage, sync_interval always; 4,096 pending"

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._client: Any = None
        self._subject = ""

    def start(self, directory: Path, servers: ExitStack) -> None:
        """Start three servers of one cluster, and a stream."""
        try:
            import nats
        except ImportError:
            raise PeerMissing("no Python package nats-py") from None
        server = program("nats-server")
        clients, routes, started = free_ports(SERVERS), free_ports(SERVERS), []
        for number, (client, route) in enumerate(zip(clients, routes, strict=True)):
            config = directory / f"nats-{number}.conf"
            config.write_text(
                SERVER.format(
                    number=number,
                    client=client,
                    route=route,
                    routes=", ".join(f'"nats://127.0.0.1:{port}"' for port in routes),
                    data=directory / f"nats-{number}",
                )
            )
            log = directory / f"nats-{number}.log"
            started.append(run_server(servers, [server, "-c", str(config)], log))

        def connected() -> bool:
            try:
                addresses = [f"nats://127.0.0.1:{port}" for port in clients]
                # Without this timeout the client retries for minutes, even if a server has ended.
                connecting = nats.connect(addresses, error_cb=_unheard)
                self._client = self._run(asyncio.wait_for(connecting, CONNECT_S))
            except (OSError, nats.errors.Error):
                return False
            return True

        def has_stream() -> bool:
            stream = {"name": "bench", "subjects": ["bench.>"], "num_replicas": SERVERS}
            try:
                self._run(self._client.jetstream().add_stream(**stream))
            except (TimeoutError, nats.errors.Error):
                return False
            return True

        until(connected, "NATS", started)
        servers.callback(lambda: self._run(self._client.close()))
        until(has_stream, "JetStream", started)

    def version(self) -> str:
        """Return the version of the server."""
        return str(self._client._server_info["version"])

    def one_outstanding(self, size: int, seconds: float) -> dict[str, float]:
        """Call `JetStreamContext.publish` one after the other."""
        return self._run(self._publish_one_by_one(size, seconds))

    def throughput(self, size: int, seconds: float) -> float:
        """Publish to the stream with a reply address, and count the acknowledgements."""
        return self._run(self._publish_many(size, seconds))

    async def _publish_one_by_one(self, size: int, seconds: float) -> dict[str, float]:
        histogram = Histogram()
        stream = self._client.jetstream()
        payload = payloads(size, 1)[0]
        end = time.perf_counter() + seconds
        while (begun_at := time.perf_counter()) < end:
            await stream.publish("bench.one", payload)
            histogram.add(time.perf_counter() - begun_at)
        return histogram.summary_ms()

    async def _publish_many(self, size: int, seconds: float) -> float:
        acknowledged = 0
        answer_arrived = asyncio.Event()
        failures: list[bytes] = []

        async def count(message: Any) -> None:
            nonlocal acknowledged
            acknowledged += 1
            if b'"error"' in message.data:
                failures.append(message.data)
            answer_arrived.set()

        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox, cb=count)
        prepared_payloads = payloads(size)
        sent_records = 0
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            while sent_records - acknowledged >= WINDOW:
                answer_arrived.clear()
                await asyncio.wait_for(answer_arrived.wait(), ANSWER_S)
            for _ in range(WINDOW // 8):
                await self._client.publish(
                    "bench.many",
                    prepared_payloads[sent_records % len(prepared_payloads)],
                    reply=inbox,
                )
                sent_records += 1
        while acknowledged < sent_records:
            answer_arrived.clear()
            await asyncio.wait_for(answer_arrived.wait(), ANSWER_S)
        rate = acknowledged / (time.perf_counter() - start)
        await subscription.unsubscribe()
        assert not failures, failures[0]
        return rate

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)


async def _unheard(error: Exception) -> None:
    """Ignore errors of refused connections while the servers start. Later failures raise an error."""
