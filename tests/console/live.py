"""A cluster in memory with its console, and a browser's half of HTTP."""

import json
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlencode

from distributedlog.blocking import open_namespace
from distributedlog.cluster.local.child_processes import environment
from tests import preloaded
from tests.cli.live import Cluster
from tests.cluster.story import dlog

TIMEOUT_S = 30.0


class Browser:
    """Let in by the link that was printed; keeps the cookie."""

    def __init__(self, link: str) -> None:
        place, _, self.token = link.partition("/#t=")
        self.place = place.removeprefix("http://")
        self.cookie = ""

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> HTTPResponse:
        """One request on a connection of its own."""
        connection = HTTPConnection(self.place, timeout=TIMEOUT_S)
        named = {"cookie": self.cookie} if self.cookie else {}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, named)
        return connection.getresponse()

    def let_in(self) -> None:
        body = json.dumps({"token": self.token}).encode()
        answer = self.request(
            "POST", "/session", body, origin=f"http://{self.place}", content_type="application/json"
        )
        assert answer.status == 200, answer.read()
        self.cookie = (answer.headers["set-cookie"] or "").partition(";")[0]

    def json(self, path: str, status: int = 200, **query: str) -> Any:
        answer = self.request("GET", f"{path}?{urlencode(query)}")
        body = answer.read()
        assert answer.status == status, body
        return json.loads(body)

    def events(self, path: str, **query: str) -> Generator[Any, None, None]:
        """The states of a stream that is open now, until the caller has enough."""
        answer = self.request("GET", f"{path}?{urlencode(query)}")
        assert answer.status == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream"
        return _events(answer)

    def state(self, **query: str) -> Any:
        """The first state of a page."""
        return next(self.events("/events", **query))


def _events(answer: HTTPResponse) -> Generator[Any, None, None]:
    try:
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[len(b"data: ") :])
    finally:
        answer.close()


class Shown:
    """A cluster, and the link to its console."""

    def __init__(self, cluster: Cluster, link: str) -> None:
        self.cluster = cluster
        self.link = link

    def browser(self) -> Browser:
        """One that is let in."""
        found = Browser(self.link)
        found.let_in()
        return found


@contextmanager
def shown(*options: str) -> Iterator[Shown]:
    """`dlog local --console`, until the block ends; then it ends as it is told to."""
    process = preloaded.popen(
        dlog("local", "--json", "--memory", "--metadata-nodes", "1", "--console", *options),
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    try:
        line = json.loads(process.stdout.readline())
        yield Shown(Cluster(line["uri"]), line["console"])
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        process.stdout.close()


@contextmanager
def changing(uri: str) -> Iterator[str]:
    """A console that permits changes; its link."""
    process = preloaded.popen(
        dlog("console", "--allow-changes", "--listen", "127.0.0.1:0", "--uri", uri, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["console"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        process.stdout.close()


@contextmanager
def growing(uri: str, *names: str) -> Iterator[None]:
    """Logs that are written, some records a beat, while the block runs."""
    done = threading.Event()

    def write(name: str) -> None:
        with open_namespace(uri) as namespace, namespace.open_log(name).open_writer() as writer:
            number = 0
            while not done.wait(0.1):
                orders = [json.dumps({"order": number + one}).encode() for one in range(20)]
                writer.write_bulk(orders)
                number += 20

    with open_namespace(uri) as namespace:
        for name in names:
            if not namespace.log_exists(name):
                namespace.create_log(name)
    threads = [threading.Thread(target=write, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
