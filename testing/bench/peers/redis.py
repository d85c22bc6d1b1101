"""Redis Streams: a primary and two replicas, `appendfsync always`, `WAIT 2`."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..measure.histogram import Histogram
from .peer import PeerMissing, free_ports, payloads, program, run_server, until

REPLICAS = 2
PIPELINE = 1000
WAIT_MS = 10_000


class Redis:
    """Redis with `WAIT`, which counts replicas that have written and, with this setting, synced.

    It is no consensus.
    """

    name = "Redis Streams"
    settings = "1 + 2 replicas, appendfsync always, WAIT 2; pipelines of 1,000"

    def __init__(self) -> None:
        self._client: Any = None

    def start(self, directory: Path, servers: ExitStack) -> None:
        """Start a primary and two replicas."""
        try:
            import redis
        except ImportError:
            raise PeerMissing("no Python package redis") from None
        server = program("redis-server")
        ports, started = free_ports(1 + REPLICAS), []
        for port in ports:
            data = directory / f"redis-{port}"
            data.mkdir()
            command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]
            command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
            if port != ports[0]:
                command += ["--replicaof", f"127.0.0.1 {ports[0]}"]
            started.append(run_server(servers, command, directory / f"redis-{port}.log"))
        self._client = redis.Redis(port=ports[0])
        servers.callback(self._client.close)
        until(self._has_replicas, "Redis", started)

    def _has_replicas(self) -> bool:
        import redis

        try:
            return bool(self._client.wait(REPLICAS, 100) == REPLICAS)
        except redis.exceptions.RedisError:
            return False

    def version(self) -> str:
        """Return the version of the server."""
        return str(self._client.info("server")["redis_version"])

    def one_outstanding(self, size: int, seconds: float) -> dict[str, float]:
        """Send one XADD with its WAIT in one round trip."""
        histogram = Histogram()
        prepared_payloads = payloads(size)
        end = time.perf_counter() + seconds
        while (begun_at := time.perf_counter()) < end:
            self._add_and_wait("one", prepared_payloads[:1])
            histogram.add(time.perf_counter() - begun_at)
        return histogram.summary_ms()

    def throughput(self, size: int, seconds: float) -> float:
        """Send pipelines of XADD, each followed by a WAIT."""
        prepared_payloads = payloads(size)
        records = (prepared_payloads * (PIPELINE // len(prepared_payloads) + 1))[:PIPELINE]
        count = 0
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            self._add_and_wait("many", records)
            count += len(records)
        rate = count / (time.perf_counter() - start)
        self._client.delete("many")  # because Redis keeps it in memory
        return rate

    def _add_and_wait(self, stream: str, records: list[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for record in records:
            pipeline.xadd(stream, {b"p": record})
        pipeline.execute_command("WAIT", REPLICAS, WAIT_MS)
        replicas = pipeline.execute()[-1]
        assert replicas == REPLICAS, f"{replicas} replicas acknowledged"
