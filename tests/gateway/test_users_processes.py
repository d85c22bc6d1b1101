"""A gateway that does what is asked as whom a token names: processes with certificates, rights required."""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypercorn", reason="pip install '.[gateway]'")
pytest.importorskip("starlette", reason="pip install '.[gateway]'")

from distributedlog.cluster.local.child_processes import environment
from tests import preloaded
from tests.cluster.secured import Secured, secured
from tests.cluster.story import dlog
from tests.gateway.https_kit import Caller, certificate, forged
from tests.preloaded import Started
from tests.runtime.pki import authority

pytestmark = [pytest.mark.processes, pytest.mark.extra]

OWN = "the gateway's own token"
EU = "/v1/logs/orders%2Feu"


@contextmanager
def served(it: Secured, *more: str) -> Iterator[tuple[Caller, Started, Path]]:
    """`dlog serve gateway --users` over the proxies, with HTTPS; nobody's token."""
    known, own = it.place / "ca", it.place / "own"
    known.mkdir()
    shutil.copy(authority() / "ca.pem", known)
    own.write_text(OWN)
    https = certificate(it.place / "https")
    said = it.place / "gateway.stderr"
    with said.open("wb") as errors:
        process = preloaded.popen(
            dlog(
                *("--credentials", f"file:{known}", "serve", "gateway", "--users"),
                *("--uri", it.through, "--listen", "127.0.0.1:0", "--tls", str(https)),
                *("--token-file", str(own), *more),
            ),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, said.read_text()
        url = json.loads(line)["url"]
        assert url.startswith("https://")
        yield Caller(url, trusts=https / "cert.pem"), process, said
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert process.stdout is not None
        process.stdout.close()


def outsiders(nobody: Caller, token: str) -> None:
    for given in ("", "secret-of-sixteen", "dlog1_AAAA", OWN, forged(token)):
        answer = nobody.with_token(given).ask("GET", EU)
        assert answer.status == 401, (given, answer)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json["error"]["do"]
    assert nobody.with_token(forged(token)).ask("POST", f"{EU}/records", "x").status == 401
    for path in ("/health", "/openapi.json"):
        assert nobody.ask("GET", path).status == 200
    for given in ("", token):
        assert nobody.with_token(given).ask("GET", "/metrics").status == 401


def rights(etl: Caller, ann: Caller, bob: Caller, narrow: Caller) -> None:
    """Each may what the cluster says of it, and hears it in its words."""
    assert etl.ask("PUT", EU).status == 201
    assert etl.ask("POST", f"{EU}/records", "etl's").status == 200
    assert ann.ask("POST", f"{EU}/records", "ann's").status == 200
    assert narrow.ask("GET", f"{EU}/records").json["records"][1]["payload"] == "ann's"
    assert [one.ask("GET", "/v1/logs").json["logs"] for one in (etl, ann, bob, narrow)] == [
        ["orders/eu"],
        ["orders/eu"],
        [],
        ["orders/eu"],
    ]
    for who, method, path, name in [
        (ann, "PUT", "/v1/logs/orders%2Fus", "user/ann"),
        (ann, "DELETE", EU, "user/ann"),
        (bob, "GET", f"{EU}/records", "user/bob"),
        (bob, "GET", f"{EU}/tail", "user/bob"),
        (bob, "GET", EU, "user/bob"),
        (bob, "POST", f"{EU}/records", "user/bob"),
        (bob, "POST", f"{EU}/producers", "user/bob"),
        (narrow, "POST", f"{EU}/records", "user/etl"),
        (narrow, "DELETE", EU, "user/etl"),
    ]:
        answer = who.ask(method, path, "x" if path.endswith("records") and method == "POST" else "")
        assert (answer.status, answer.error) == (403, "NotAllowed"), (method, path, answer)
        assert name in answer.json["error"]["what"]
    gone = bob.ask("GET", "/v1/logs/nothing/records")
    assert (gone.status, gone.error) == (403, "NotAllowed"), "as if it were there"


def producers(etl: Caller, ann: Caller) -> None:
    """Of one name, of two users: neither fences the other, and what is sent again is stored once."""
    path = f"{EU}/records"
    refs = []
    for who in (etl, ann):
        made = who.ask("POST", f"{EU}/producers", '{"name": "import"}')
        assert made.status == 201, made
        assert (made.json["name"], made.json["known"]) == ("import", False)
        refs.append(made.json["producer"])
    for payload in ("first", "first"):
        for who, ref in zip((etl, ann), refs, strict=True):
            answer = who.ask("POST", path, payload, dlog_producer=ref, dlog_sequence="0")
            assert answer.status == 200, answer
    assert answer.json["repeated"]
    stolen = ann.ask("POST", path, "x", dlog_producer=refs[0], dlog_sequence="1")
    assert (stolen.status, stolen.error) in ((409, "ProducerFenced"), (410, "ProducerForgotten"))
    after = etl.ask("POST", path, "second", dlog_producer=refs[0], dlog_sequence="1")
    assert (after.status, after.json["repeated"]) == (200, False), after
    found = [one["payload"] for one in etl.ask("GET", path).json["records"]]
    assert found == ["etl's", "ann's", "first", "first", "second"]


def revocation(it: Secured, nobody: Caller, etl: Caller, ann: Caller) -> None:
    """A tail that runs ends, what comes after it is refused, and nobody else notices."""
    events: list[tuple[float, str, Any]] = []
    begun = threading.Event()

    def follow() -> None:
        with ann.open("GET", f"{EU}/tail?from=earliest") as answer:
            assert answer.status == 200
            kind = ""
            for raw in answer:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    events.append((time.monotonic(), kind, json.loads(line[6:])))
                    begun.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(60)
    it.dlog("user", "revoke", "ann")
    revoked = time.monotonic()
    for _ in range(1000):  # the proxies hear of it by a watch
        if ann.ask("GET", EU).status == 401:
            break
        time.sleep(0.01)
    late = ann.ask("POST", f"{EU}/records", "an ex-user's")
    assert (late.status, late.error) == (401, "NotAuthenticated"), late
    thread.join(60)
    assert not thread.is_alive()
    at, kind, said = events[-1]
    assert (kind, said["error"]["name"]) == ("error", "NotAuthenticated"), events[-1]
    print(f"the tail ended {1000 * (at - revoked):+.0f} ms from the end of dlog user revoke")
    assert etl.ask("POST", f"{EU}/records", "third").status == 200
    fresh = nobody.with_token(it.token("ann", name="ann2").read_text().strip())
    payloads = [one["payload"] for one in fresh.ask("GET", f"{EU}/records").json["records"]]
    assert payloads[-1] == "third"
    assert "an ex-user's" not in payloads


def test_what_is_asked_is_done_as_the_user_whose_token_is_sent(tmp_path: Path) -> None:
    with secured(tmp_path, bookies=1) as it:
        it.require(
            ("etl", "owner", "orders/"), ("ann", "writer", "orders/eu"), ("bob", "reader", "bills")
        )
        files = [it.token(name) for name in ("etl", "ann", "bob")]
        files.append(it.token("etl", "--path", "orders/", "--role", "reader", name="narrow"))
        tokens = [file.read_text().strip() for file in files]
        with served(it) as (nobody, process, said):
            etl, ann, bob, narrow = map(nobody.with_token, tokens)
            outsiders(nobody, tokens[0])
            rights(etl, ann, bob, narrow)
            producers(etl, ann)
            revocation(it, nobody, etl, ann)
            text = nobody.with_token(OWN).ask("GET", "/metrics").body.decode()
            assert "dlog_gateway_sessions " in text
            plain = Caller(nobody.url.replace("https", "http"))
            with pytest.raises((HTTPException, OSError)):
                plain.ask("GET", "/health")
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        shown = said.read_bytes() + line + it.said
        assert not any(one.encode() in shown for one in tokens), "H240"
