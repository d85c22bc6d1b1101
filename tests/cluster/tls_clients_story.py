"""Hundreds of clients by TLS, the leader killed and started under them: is there one election, are all back?

python -m tests.cluster.tls_clients_story --clients 1000

Three metadata nodes with certificates; the clients are in a process of their own and light: each is a whole
client of the quorum (it looks for the leader, greets, dials again), asks for a key now and then, and nothing
else. They come from addresses of this machine that no node has (127.0.1.1 and on), for who comes from where
nodes are is taken for one of them. Not a test: a minute, and it takes a processor of its own (H224).
"""

import argparse
import errno
import re
import socket
import sys
import time
from collections import Counter
from dataclasses import replace
from multiprocessing import Process, Queue
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.runtime.interfaces.errors import ConnectionLost, DistributedLogError
from distributedlog.runtime.interfaces.host import Address, Connection
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.net.tcp import TcpConnection
from distributedlog.runtime.net.tls import Tls, with_tls
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.uri import parse_uri
from tests.cluster.story import Cluster
from tests.runtime.pki import directory_of

HOSTS = 16
"""Addresses that the clients come from."""
ARRIVE_PER_S = 25
ASK_EVERY_S = 3.0
WATCHED_S = 20.0
"""After all are back: does anybody elect again?"""
MOST_S = 180.0
SAID_EVERY_S = 10.0
LED = re.compile(r"this metadata node (\w+) leads in term (\d+)")


def main() -> None:
    """Play it; ends with 1 where there is another election, or somebody is not back."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    clients = parser.parse_args().clients
    with (
        TemporaryDirectory() as scratch,
        Cluster.planned(Path(scratch), bookies=1, metadata_nodes=3) as cluster,
    ):
        for node in cluster.plan.nodes:
            where = str(directory_of(f"{node.kind}/{node.name}"))
            cluster.more[node.name] = ["--tls", where, "--transport", "tls"]
        cluster.start(*(node.name for node in cluster.plan.nodes_of_kind("metadata")))
        told: Queue[tuple[str, float]] = Queue()
        directories = [str(directory_of("user/crowd"))]
        crowd = Process(target=_crowd, args=(cluster.uri, clients, directories, told), daemon=True)
        try:
            _play(cluster, clients, crowd, told)
        finally:
            if crowd.pid is not None:
                crowd.kill()
                crowd.join()


def _play(cluster: Cluster, clients: int, crowd: Process, told: "Queue[tuple[str, float]]") -> None:
    uri, here = cluster.uri, directory_of("user/admin")
    empty = {name: _rss_bytes(cluster, name) for name in cluster.served}
    crowd.start()
    what, seconds = told.get(timeout=MOST_S)
    print(f"{clients} clients there after {seconds:.1f} s", flush=True)
    before, led = trio.run(_terms, uri, here), _elected(cluster)
    more = _rss_bytes(cluster, before[0]) - empty[before[0]]
    print(f"the leader has {more / clients / 1024:.0f} KiB more a client", flush=True)
    for what in ("killed", "started again"):
        leader, term = before
        print(f"{leader} leads in term {term}", flush=True)
        began = time.monotonic()
        if what == "killed":
            killed = leader
            cluster.kill(killed)
        else:
            cluster.start(killed)
            print(f"{killed} serves after {time.monotonic() - began:.1f} s", flush=True)
        now, slowest = trio.run(_until_back, uri, here, told, began)
        print(
            f"{killed} {what}: all {clients} asked and were answered within {now:.1f} s, the status is"
            f" answered in {slowest * 1000:.0f} ms at most",
            flush=True,
        )
        trio.run(trio.sleep, WATCHED_S)
        before, led_before, led = trio.run(_terms, uri, here), led, _elected(cluster)
        print(f"elected since: {led[len(led_before) :] or 'nobody'}; term {before[1]}", flush=True)
        if len(led) - len(led_before) != (what == "killed"):
            sys.exit("not the one election that there had to be")


def _rss_bytes(cluster: Cluster, name: str) -> int:
    status = Path(f"/proc/{cluster.served[name].process.pid}/status").read_text()
    [kib] = re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.M)
    return int(kib) * 1024


def _elected(cluster: Cluster) -> list[str]:
    """Who came to lead, in which term, as the nodes say it; in the order of the terms."""
    found = []
    for node in cluster.plan.nodes_of_kind("metadata"):
        said = (cluster.directory / f"{node.name}.stderr").read_text()
        found += [(int(term), f"{name} in term {term}") for name, term in LED.findall(said)]
    return [told for _, told in sorted(found)]


async def _until_back(
    uri: str, here: Path, told: "Queue[tuple[str, float]]", began: float
) -> tuple[float, float]:
    """Seconds from ``began`` until each client was answered by what it asked after it; and the longest time
    that an operator waited meanwhile."""
    while not told.empty():
        told.get()
    slowest = 0.0
    with trio.fail_after(MOST_S):
        while True:
            asked = time.monotonic()
            await _terms(uri, here)
            slowest = max(slowest, time.monotonic() - asked)
            while not told.empty():
                what, oldest = told.get()
                if what == "answered" and oldest > began:
                    return time.monotonic() - began, slowest
            await trio.sleep(0.2)


async def _terms(uri: str, here: Path) -> tuple[str, int]:
    """Who leads, and in which term."""
    endpoint = Endpoint(with_tls(real_host("admin"), Tls(here)), lambda: Hello(kind="client"))
    async with trio.open_nursery() as nursery:
        client = MetadataClient(endpoint, parse_uri(uri).addresses, client_id="a", timeout_s=30.0)
        await nursery.start(client.run)
        while True:
            for row in await client.status():
                if row.role == "leader" and row.alive:
                    nursery.cancel_scope.cancel()
                    return row.name, row.term
            await trio.sleep(0.1)
    raise AssertionError("cancelled from outside")


# --- the clients, in a process of their own -------------------------------------------------------


def _crowd(uri: str, count: int, directories: list[str], told: "Queue[tuple[str, float]]") -> None:
    trio.run(_all_of_them, uri, count, directories, told)


async def _all_of_them(
    uri: str, count: int, directories: list[str], told: "Queue[tuple[str, float]]"
) -> None:
    answered = [0.0] * count
    """When each asked what it was answered last."""
    failed: Counter[str] = Counter()
    tls = Tls(Path(directories[0]))
    began = said_at = time.monotonic()
    used_s = time.process_time()
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(_one, uri, number, tls, answered, failed)
            await trio.sleep(1 / ARRIVE_PER_S)  # who comes back at once was let in one by one
        while missing := sum(not one for one in answered):
            await trio.sleep(0.2)
            if time.monotonic() - said_at >= SAID_EVERY_S:
                said_at = time.monotonic()
                print(f"{missing} are not there yet", flush=True)
        told.put(("there", time.monotonic() - began))
        while True:
            await trio.sleep(0.2)
            told.put(("answered", min(answered)))
            if time.monotonic() - said_at >= SAID_EVERY_S:
                now, used = time.monotonic(), time.process_time()
                busy, said_at, used_s = (used - used_s) / (now - said_at), now, used
                late = sum(said_at - one > 4 * ASK_EVERY_S for one in answered)
                if late:
                    used_up = f"the crowd takes {busy:.2f} of a processor"
                    print(
                        f"{late} had no answer for {4 * ASK_EVERY_S:.0f} s; {used_up}", flush=True
                    )
            if failed:
                print(f"asked in vain: {dict(failed)}", flush=True)
                failed.clear()


async def _one(
    uri: str, number: int, tls: Tls, answered: list[float], failed: Counter[str]
) -> None:
    source = f"127.0.1.{1 + number % HOSTS}"

    async def dial(address: Address) -> Connection:
        return await _dial_from(source, address)

    host = with_tls(replace(real_host(f"c{number}"), dial=dial), tls)
    endpoint = Endpoint(host, lambda: Hello(kind="client", label=f"c{number}"))
    async with trio.open_nursery() as nursery:
        client = MetadataClient(
            endpoint, parse_uri(uri).addresses, client_id=f"c{number}", timeout_s=MOST_S
        )
        await nursery.start(client.run)
        while True:
            asked = time.monotonic()
            try:
                await client.get(b"trust/mode")
                answered[number] = asked
            except DistributedLogError as error:
                failed[type(error).__name__] += 1
            await trio.sleep(ASK_EVERY_S * (0.5 + (number * 7919 % 1000) / 1000))


async def _dial_from(source: str, address: Address) -> TcpConnection:
    sock = socket.socket()
    sock.bind((source, 0))
    sock.setblocking(False)
    try:
        with trio.fail_after(5.0):
            if sock.connect_ex(address) == errno.EINPROGRESS:
                await trio.lowlevel.wait_writable(sock)
        failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise ConnectionLost(f"{address}: {errno.errorcode[failed]}")
    except trio.TooSlowError:
        sock.close()
        raise ConnectionLost(f"{address}: nobody takes the connection") from None
    except BaseException:
        sock.close()
        raise
    return TcpConnection(sock, f"{address[0]}:{address[1]}")


if __name__ == "__main__":
    main()
