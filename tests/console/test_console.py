"""The console of a cluster that runs, asked as a browser asks."""

import json
import re
import signal
import subprocess
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from distributedlog import LogRecord
from distributedlog.blocking import open_namespace
from distributedlog.cli.main import run
from distributedlog.cluster.local.child_processes import environment
from distributedlog.console.log_states import LOGS_SHOWN
from distributedlog.console.rate_history import SERIES
from distributedlog.console.record_browser import PAYLOAD_SHOWN, RECORDS_MAX, TAIL_RECORDS_S
from distributedlog.console.server import STREAMS_MAX, STREAMS_PER_BROWSER
from distributedlog.runtime.machine import CREDENTIALS_VARIABLE
from tests import preloaded
from tests.cluster.story import dlog
from tests.console.live import Browser, Shown, shown

pytestmark = pytest.mark.processes

HOSTILE = b"<script>alert(1)</script>\r\n\xe2\x80\xae\x00data: x\n\n"


@pytest.fixture(scope="module")
def world() -> Iterator[Shown]:
    with shown() as found, open_namespace(found.cluster.uri) as namespace:
        with namespace.open_log("orders/eu").open_writer() as writer:
            writer.write_bulk([LogRecord(10 * one, b"record %d" % one) for one in range(300)])
        with namespace.open_log("odd").open_writer() as writer:
            writer.write_bulk([LogRecord(1, HOSTILE), LogRecord(2, b"\xff" * 5000)])
        for number in range(LOGS_SHOWN + 2):
            namespace.create_log(f"many/{number:03d}")
        yield found


@pytest.fixture
def browser(world: Shown) -> Browser:
    return world.browser()


def test_without_the_token_nothing_of_the_cluster_is_shown(world: Shown) -> None:
    """H259."""
    stranger = Browser(world.link)
    page = stranger.request("GET", "/")
    assert page.status == 200
    assert b"orders" not in page.read()
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for path in ("events?page=cluster", "records?log=odd", "payload?log=odd", "tail?log=odd", "x"):
        assert stranger.request("GET", f"/{path}").status == 401
    html = stranger.request("GET", "/").read().decode()
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', html):
        assert stranger.request("GET", path).status == 200
    assert stranger.request("GET", "/", host="evil.example").status == 421
    assert stranger.request("POST", "/session", b"{}", origin="http://evil.example").status == 403


def test_nothing_is_changed_here(browser: Browser) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (
            browser.request(method, "/records?log=odd", origin=f"http://{browser.place}").status
            == 405
        )


def test_the_cluster(browser: Browser) -> None:
    states = browser.events("/events", page="cluster")
    first, second = next(states), next(states)

    assert (first["health"], first["healthy"], first["conditions"]) == ("healthy", True, [])
    assert first["logs"] == 2 + LOGS_SHOWN + 2
    assert [one["role"] for one in first["metadata"]] == ["leader"]
    assert [one["label"] for one in first["bookies"]] == ["bookie1", "bookie2", "bookie3"]
    assert all(one["answers"] and one["state"] == "up" for one in first["bookies"])
    assert all(one["in_bytes_s"] is not None for one in second["bookies"])
    assert [ring["step_ms"] for ring in second["points"]] == [1000, 10_000]
    assert set(second["rates"]) == {*SERIES, "counted", "bookies"}
    assert second["now_ms"] > first["now_ms"]


def test_the_logs(browser: Browser) -> None:
    found = browser.state(page="logs", prefix="o", after="")
    assert [one["name"] for one in found["logs"]] == ["odd", "orders/eu"]
    assert [one["records"] for one in found["logs"]] == [2, 300]
    assert all(one["bytes"] > 0 and one["segments"] == 1 for one in found["logs"])
    assert found["next"] is None

    assert [one["name"] for one in browser.state(page="logs", prefix="ord")["logs"]] == [
        "orders/eu"
    ]
    assert browser.state(page="logs", prefix="zzz")["logs"] == []


def test_many_logs_are_a_page_and_a_next_one(browser: Browser) -> None:
    names = [f"many/{number:03d}" for number in range(LOGS_SHOWN + 2)]

    first = browser.state(page="logs", prefix="many/")
    assert [one["name"] for one in first["logs"]] == names[:LOGS_SHOWN]
    assert all(one["records"] == 0 and one["end"] is None for one in first["logs"])
    rest = browser.state(page="logs", prefix="many/", after=first["next"])
    assert [one["name"] for one in rest["logs"]] == names[LOGS_SHOWN:]
    assert rest["next"] is None


def test_one_log(world: Shown, browser: Browser) -> None:
    found = browser.state(page="log", name="orders/eu")

    assert (found["records"], found["first_dlsn"]) == (300, "1.0.0")
    [segment] = found["segments"]
    assert (segment["state"], segment["records"], segment["missing"]) == ("closed", 300, [])
    [fragment] = segment["ensembles"]
    assert sorted(found["bookies"][one] for one in fragment["bookies"]) == [
        "bookie1",
        "bookie2",
        "bookie3",
    ]
    assert "LogNotFound" in browser.state(page="log", name="nobody")["error"]
    assert "InvalidLogName" in browser.json("/events", 400, page="log", name="<b>")["error"]
    assert "InvalidRequest" in browser.json("/events", 400, page="<b>")["error"]


@pytest.mark.parametrize(
    ("where", "first", "count"),
    [
        ({"from": "first"}, "record 0", RECORDS_MAX),
        ({"from": "last"}, f"record {300 - RECORDS_MAX}", RECORDS_MAX),
        ({"from": "txid", "at": "2950"}, "record 295", 5),
        ({"from": "txid", "at": "99999"}, None, 0),
        ({"from": "time", "at": "0"}, "record 0", RECORDS_MAX),
    ],
)  # fmt: skip
def test_records_from_anywhere(
    browser: Browser, where: dict[str, str], first: str | None, count: int
) -> None:
    found = browser.json("/records", 200, log="orders/eu", **where)["records"]

    assert len(found) == count
    assert [b64decode(one["payload"]).decode() for one in found[:1]] == ([first] if first else [])


def test_records_page_by_page_are_all_records(browser: Browser) -> None:
    seen: list[int] = []
    at, ended = "1.0.0", False
    while not ended:
        page = browser.json("/records", 200, log="orders/eu", **{"from": "dlsn", "at": at})
        seen += [int(one["txid"]) // 10 for one in page["records"]]
        ended = page["ended"]
        for last in page["records"][-1:]:
            segment, entry, slot = map(int, last["dlsn"].split("."))
            at = f"{segment}.{entry}.{slot + 1}"
    assert seen == list(range(300))


@pytest.mark.parametrize(
    "query",
    [
        {"from": "dlsn", "at": "x"}, {"from": "txid", "at": "-1"}, {"from": "time", "at": "²"},
        {"from": "nowhere"}, {"from": "txid", "at": "9" * 30},
    ],
)  # fmt: skip
def test_a_place_that_is_none_is_refused_with_words(
    browser: Browser, query: dict[str, str]
) -> None:
    assert "InvalidRequest" in browser.json("/records", 400, log="orders/eu", **query)["error"]


def test_a_payload_is_cut_until_it_is_asked_for(browser: Browser) -> None:
    """H262."""
    first, second = browser.json("/records", log="odd")["records"]
    assert b64decode(first["payload"]) == HOSTILE
    assert (len(b64decode(second["payload"])), second["bytes"]) == (PAYLOAD_SHOWN, 5000)

    whole = browser.request("GET", f"/payload?log=odd&dlsn={second['dlsn']}")
    assert whole.read() == b"\xff" * 5000
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert browser.json("/payload", 400, log="odd", dlsn="1.900.0")


def test_a_tail_shows_what_comes_and_counts_what_it_passes_over(
    world: Shown, browser: Browser
) -> None:
    """H262: a fast log is not read whole."""
    seen = list[int]()
    looks = passed = 0
    with _written("fast", world.cluster.uri):
        for found in browser.events("/tail", log="fast"):
            looks += 1
            ids = [one["sequence_id"] for one in found["records"]]
            assert ids == list(range(ids[0], ids[0] + len(ids)))
            assert [int(b64decode(one["payload"])) for one in found["records"]] == ids
            if seen:
                assert ids[0] == seen[-1] + 1 + found["passed_over"]
            passed += found["passed_over"]
            seen += ids
            if passed:
                break
        [segment] = browser.state(page="log", name="fast")["segments"]
        assert segment["state"] == "in progress"
        assert segment["bytes"] > len(seen)  # also while it is written
    assert len(seen) <= TAIL_RECORDS_S * looks


@contextmanager
def _written(name: str, uri: str) -> Iterator[None]:
    """Some 20,000 records a second, each its own number, while the block runs."""
    done = threading.Event()

    def write() -> None:
        with open_namespace(uri) as namespace, namespace.open_log(name).open_writer() as writer:
            number = 0
            while not done.wait(0.02):
                writer.write_bulk([b"%d" % one for one in range(number, number + 400)])
                number += 400

    with open_namespace(uri) as namespace:
        namespace.create_log(name)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_streams_are_bounded_and_the_tab_that_comes_is_served(world: Shown) -> None:
    """H260: a browser has six connections for all its tabs."""
    browser = world.browser()
    tabs = []
    for _ in range(STREAMS_PER_BROWSER + 2):
        tabs.append(browser.events("/events", page="work"))
        assert next(tabs[-1])["draining"] == []
    for tab in tabs[:2]:
        assert list(tab) is not None, "it ends: it made room"

    others = [world.browser() for _ in range(STREAMS_MAX // STREAMS_PER_BROWSER)]
    held = []
    refused = 0
    for other in others:
        for _ in range(STREAMS_PER_BROWSER):
            answer = other.request("GET", "/events?page=work")
            refused += answer.status == 503
            held.append(answer)
    assert refused == STREAMS_PER_BROWSER
    for answer in held:
        answer.close()
    for tab in tabs:
        tab.close()
    deadline = time.monotonic() + 10
    while (answer := browser.request("GET", "/events?page=work")).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    answer.close()


def test_a_console_of_a_cluster_that_is_away_says_so() -> None:
    process = preloaded.popen(
        dlog("console", "--listen", "127.0.0.1:0", "--no-payloads", "--json"),
        stdout=subprocess.PIPE,
        env={**environment(), "DLOG_URI": "distributedlog://127.0.0.1:1/ns"},
    )
    assert process.stdout is not None
    browser = Browser(json.loads(process.stdout.readline())["console"])
    browser.let_in()

    state = browser.state(page="cluster")
    assert (state["health"], state["healthy"], state["known"], state["logs"]) == (
        "down",
        False,
        False,
        None,
    )
    assert state["conditions"][0]["code"].startswith("no_metadata_")
    assert state["conditions"][0]["command"] == "dlog metadata show"
    assert "QuorumUnreachable" in browser.json("/records", 503, log="x")["error"]

    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == 0
    process.stdout.close()


def test_it_listens_beyond_the_machine_only_by_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["console", "--uri", "distributedlog://127.0.0.1:1/ns", "--listen", "0.0.0.0:0"]

    assert run(arguments) == 2
    assert "--allow-host" in capsys.readouterr().err
    arguments += ["--allow-host", "ops", "--insecure", "--allow-changes"]
    assert run(arguments) == 2
    assert "--users" in capsys.readouterr().err
    behind_a_proxy = ["console", "--uri", arguments[2], "--allow-host", "ops", "--allow-changes"]
    assert run(behind_a_proxy) == 2
    assert "--users" in capsys.readouterr().err


def test_a_tunnel_or_tls_proxy_does_not_open_the_credentials_of_the_console_to_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listens on loopback, but a host name means that other machines reach it."""
    monkeypatch.setenv(CREDENTIALS_VARIABLE, "file:/nowhere")
    behind_a_proxy = ["console", "--uri", "distributedlog://127.0.0.1:1/ns", "--allow-host", "ops"]

    assert run(behind_a_proxy) == 2
    assert "--users" in capsys.readouterr().err
