"""A cluster goes from plain to TLS, and to another authority, while a writer writes: none fails or is lost.

python -m tests.cluster.tls_story

Three metadata nodes and three bookies, each killed and started again in turn: with ``either``, with TLS
alone, with both authorities trusted, with certificates of the new one. Minutes on a machine that others use.
"""

import shutil
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.cli.access import certificates
from distributedlog.runtime.disk.reloaded_files import SETTLED_S
from tests.cluster.story import Cluster

LOG = "story"
PAUSE_S = 0.01


def main() -> None:
    """Play it; ends with 1 where a record is missing."""
    with TemporaryDirectory() as scratch, Cluster.planned(Path(scratch), bookies=3) as cluster:
        cluster.start()
        trio.run(_story, cluster, Path(scratch) / "pki")


async def _story(cluster: Cluster, pki: Path) -> None:
    ca = pki / "ca"
    certificates.make_authority(ca, "story")
    places = {node.name: pki / node.name for node in cluster.plan.nodes}
    for node in cluster.plan.nodes:
        certificates.issue(ca, f"{node.kind}/{node.name}", places[node.name])
    user = pki / "user"
    certificates.issue(ca, "user/writer", user)
    named = {"credentials": f"file:{user}"}
    done = 0

    def flags(transport: str) -> Callable[[str], list[str]]:
        return lambda name: ["--tls", str(places[name]), "--transport", transport]

    async with _writing(cluster.uri, {}, done) as written:
        await _roll(cluster, "plain to either", flags("either"), written)
    done = written[0]
    async with _writing(cluster.uri, named, done) as written:
        await _roll(cluster, "either to TLS", flags("tls"), written)
        certificates.roll_authority(ca)
        for place in (*places.values(), user):
            certificates.trust(ca, place)
        await trio.sleep(SETTLED_S + 1)
        await _roll(cluster, "both authorities trusted", flags("tls"), written)
        for place in (*places.values(), user):
            certificates.renew(ca, place)
        await trio.sleep(SETTLED_S + 1)
        await _roll(cluster, "new certificates", flags("tls"), written)
    done = written[0]
    async with (
        open_namespace(cluster.uri, config=named) as namespace,
        namespace.open_log(LOG).open_reader(to="end") as reader,
    ):
        found = [record.txid async for record in reader]
    print(f"{done} written, {len(found)} read")
    if found != list(range(done)):
        sys.exit("records are missing, or twice there")
    shutil.rmtree(pki)


@asynccontextmanager
async def _writing(uri: str, config: dict[str, Any], first: int) -> Any:
    """Writes a record after the other; the next one's number. Raises what a write raises."""
    numbers = [first]
    async with trio.open_nursery() as nursery:
        over = trio.Event()
        ended = trio.Event()

        async def write() -> None:
            async with (
                open_namespace(uri, config=config) as namespace,
                namespace.open_log(LOG).open_writer() as writer,
            ):
                while not over.is_set():
                    await writer.write(LogRecord(numbers[0], b"x" * 100))
                    numbers[0] += 1
                    await trio.sleep(PAUSE_S)
            ended.set()

        nursery.start_soon(write)
        yield numbers
        over.set()
        await ended.wait()


async def _roll(
    cluster: Cluster, what: str, flags: Callable[[str], list[str]], written: list[int]
) -> None:
    """Kill and start each node with these flags, one after the other, while records are written."""
    before = written[0]
    for node in cluster.plan.nodes:
        cluster.more[node.name] = flags(node.name)
        await trio.to_thread.run_sync(cluster.kill, node.name)
        await trio.to_thread.run_sync(cluster.start, node.name)
        seen = written[0]
        with trio.fail_after(60):
            while written[0] < seen + 10:  # noqa: ASYNC110
                await trio.sleep(0.05)
        await trio.sleep(2.0)  # connections come back
    print(f"{what}: {written[0] - before} records meanwhile", flush=True)


if __name__ == "__main__":
    main()
