"""The pages in Chromium: they load, show hostile text as text, can be used by keyboard, and shut others out.

Where `playwright` or a Chromium is missing they are skipped, with the reason.
"""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from distributedlog import DLSN, LogRecord
from distributedlog.blocking import open_namespace
from tests.console.chromium import (
    ELSEWHERE,
    TIMEOUT_MS,
    faults,
    go,
    launched,
    let_in,
    origin,
    ready,
    texts,
)
from tests.console.live import Shown, changing, growing, shown

pytestmark = [pytest.mark.processes, pytest.mark.browser]

HOSTILE = '<img src=x onerror="document.title=1">'
HOSTILE_NAME = "odd/\"onmouseover=alert(1)/&lt;b&gt;'`$(reboot)"
"""As much of it as the name of a log may have."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def world() -> Iterator[Shown]:
    with shown() as found, open_namespace(found.cluster.uri) as namespace:
        for name, segments in (("orders/eu", 6), ("orders/us", 1)):
            log = namespace.open_log(name)
            for _ in range(segments):
                with log.open_writer() as writer:
                    orders = [json.dumps({"order": one, "total": one * 1.25}) for one in range(400)]
                    writer.write_bulk([one.encode() for one in orders])
        namespace.open_log("orders/eu").positions.advance("billing", DLSN(4, 0, 0))
        with namespace.open_log(HOSTILE_NAME).open_writer() as writer:
            writer.write_bulk(
                [
                    LogRecord(1, HOSTILE.encode()),
                    LogRecord(2, b"\xe2\x80\xaegnp"),
                    LogRecord(3, b"\xff\x00" * 9),
                ]
            )
        namespace.open_log(HOSTILE_NAME).positions.advance(HOSTILE, DLSN(1, 0, 1))
        with open_namespace(found.cluster.uri, config={"owner": HOSTILE}) as other:
            held = other.open_log("held").open_writer()
            with held as writer:
                writer.write(LogRecord(1, b"x"))
                yield found


def test_every_page_by_keyboard_in_both_schemes_and_on_a_narrow_screen(
    chromium: Any, world: Shown
) -> None:
    for scheme, width in (("light", 1200), ("dark", 400)):
        size = {"width": width, "height": 900}
        with let_in(chromium, world.link, color_scheme=scheme, viewport=size) as page:
            assert "t=" not in page.url, "the token is out of the address"
            assert page.locator("h1").inner_text() == "✓ healthy"
            pages = ((2, "logs"), (3, "work"), (4, "quorum"), (5, "lag"), (1, "cluster"))
            for key, name in pages:
                page.keyboard.press(str(key))
                ready(page, name)
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{name} at {width} px"
                assert page.locator("nav [aria-current=page]").count() == 1
                assert faults(page) == [], (name, scheme)
            dark = (
                page.evaluate("getComputedStyle(document.body).backgroundColor")
                != "rgb(255, 255, 255)"
            )
            assert dark == (scheme == "dark")

            page.keyboard.press("/")
            ready(page, "logs")
            page.wait_for_selector("#search:focus")
            page.keyboard.type("orders/e")
            page.wait_for_selector("text=1 shown")
            page.keyboard.press("Escape")
            page.keyboard.press("j")
            page.keyboard.press("Enter")
            ready(page, "log")
            assert page.locator("h1").inner_text() == "orders/eu"
            page.wait_for_selector("text=100 records, to the end")
            payload = page.locator(".payload").first.bounding_box()
            assert payload["x"] + 60 < width, "a part of the payload is seen without scrolling"
            assert page.locator("[data-action]").count() == 0, "it is read-only"
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            assert faults(page) == [], ("log", scheme)
            page.keyboard.press("?")
            page.wait_for_selector("#keys[open]")
            assert faults(page) == [], ("keys", scheme)
            page.keyboard.press("Escape")
            page.wait_for_selector("#keys:not([open])", state="attached")


def test_the_keyboard_alone_reaches_everything_and_a_new_state_takes_nothing_away(
    chromium: Any, world: Shown
) -> None:
    with let_in(chromium, world.link) as page:
        page.keyboard.press("Tab")
        page.wait_for_selector("#skip:focus")
        assert page.locator("#skip").bounding_box()["x"] >= 0, "it is seen when it has the focus"
        page.keyboard.press("Enter")
        page.wait_for_selector("main:focus")
        _tab_to(page, "summary")
        page.keyboard.press("Enter")
        _next_state(page)
        assert page.locator("details[open] summary:focus").count() == 1

        go(page, world.link, "logs")
        _tab_to(page, "[data-sort=records]")
        page.keyboard.press("Enter")
        page.wait_for_selector("[aria-sort=descending] [data-sort=records]:focus")
        assert page.locator("tbody tr th").first.inner_text() == "orders/eu"
        page.keyboard.press("j")
        page.wait_for_selector("tbody tr:nth-child(1):focus")
        _next_state(page)
        assert page.locator("tbody tr:nth-child(1):focus").count() == 1
        page.keyboard.press("Enter")
        ready(page, "log")

        _tab_to(page, "#way")
        page.keyboard.type("DLSN")
        page.keyboard.press("Tab")
        page.wait_for_selector("#at:focus")
        page.keyboard.type("2.0.0")
        page.keyboard.press("Enter")
        page.wait_for_selector("#said:has-text('100 records')")
        assert page.locator(".records tbody th").first.inner_text() == "2.0.0"
        _tab_to(page, "#more")
        page.keyboard.press("Enter")
        page.wait_for_selector(".records tbody th:has-text('2.0.100')")

        _tab_to(page, "#theme", back=True)
        page.keyboard.press("Enter")
        page.wait_for_selector("html[data-theme=light]")


def test_a_log_is_created_written_and_deleted_by_keyboard(chromium: Any, world: Shown) -> None:
    size = {"width": 420, "height": 900}
    with (
        changing(world.cluster.uri) as link,
        let_in(chromium, link, viewport=size) as page,
    ):
        go(page, link, "logs")
        page.wait_for_selector("[data-action=create]")
        _tab_to(page, "[data-action=create]")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog [name=log]:focus")
        page.keyboard.type("new/1")
        page.keyboard.press("Enter")
        page.wait_for_selector(".effect:has-text('create log new/1')")
        page.wait_for_selector("dialog .confirm:focus")
        assert faults(page) == []
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog:has-text('created new/1')")
        page.keyboard.press("Enter")
        ready(page, "log")

        page.click("[data-action=append]")
        page.fill("dialog [name=payload]", HOSTILE)
        page.click("dialog .confirm")
        page.wait_for_selector(".effect:has-text('append one record')")
        page.dblclick("dialog .confirm")
        page.wait_for_selector("dialog:has-text('appended 1.0.0')")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=1 record, to the end")
        assert texts(page, "td.payload") == HOSTILE
        assert page.locator("main img").count() == 0

        page.click("[data-action=delete]")
        page.wait_for_selector(".effect:has-text('1 record is deleted')")
        page.wait_for_selector("dialog [name=typed]:focus")
        page.keyboard.type("new")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog:has-text('type exactly: new/1')")
        page.keyboard.type("/1")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog:has-text('deleted new/1')")
        page.keyboard.press("Enter")
        ready(page, "logs")
        assert "new/1" not in texts(page, "tbody th")


def _tab_to(page: Any, selector: str, *, back: bool = False) -> None:
    """As somebody without a mouse does."""
    for _ in range(100):
        if page.locator(f"{selector}:focus").count():
            return
        page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"no way to {selector} by Tab")


def _next_state(page: Any) -> None:
    """Wait until two more have come: the first may have been under way."""
    for _ in range(2):
        page.wait_for_selector(f"#live:not(:text-is('{page.inner_text('#live')}'))")


def test_hostile_text_is_text(chromium: Any, world: Shown) -> None:
    """H257: a log's name, a position, a writer's name, payloads."""
    with let_in(chromium, world.link) as page:
        go(page, world.link, "logs?prefix=held")
        assert HOSTILE in texts(page, "td")

        go(page, world.link, "lag?prefix=odd")
        assert HOSTILE in texts(page, "tbody th")
        assert HOSTILE_NAME in texts(page, "tbody td")
        go(page, world.link, "lag?prefix=held")
        assert HOSTILE in texts(page, "tbody td")

        go(page, world.link, "logs?prefix=odd")
        page.click("tbody th a")
        ready(page, "log")
        assert page.locator("h1").inner_text() == HOSTILE_NAME
        page.wait_for_selector(".payload >> nth=2")
        page.click("text=1 position as a table")
        page.wait_for_selector("text=continues at")
        assert HOSTILE in texts(page, "th")
        shown_ = page.locator(".payload").all_inner_texts()
        assert shown_ == [HOSTILE, "\\u202egnp", " ".join(["ff 00"] * 9)]
        page.select_option("#form", "hex")
        assert page.locator(".payload").first.inner_text().startswith("3c 69 6d 67")

        assert page.locator("main img").count() == 0
        assert page.locator("[data-copy*=reboot]").count() == 0, "no command is made of such a name"
        assert page.title() == f"{HOSTILE_NAME} – dlog console"


def test_a_handler_that_gets_in_all_the_same_does_not_run(chromium: Any, world: Shown) -> None:
    """H257: the second wall, the policy. It is not asked of the complaints: the browser's own is one."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(world.link)
    ready(page, "cluster")
    page.evaluate("document.body.setAttribute('onclick', 'document.title = \"owned\"')")
    page.click("strong")

    assert page.title() == "Cluster – dlog console"
    context.close()


CHART = """async ([rows, span_ms, now_ms]) => {
    const { lines } = await import("/static/chart.js");
    const { bytes } = await import("/static/format.js");
    const points = rows.map(([at, value]) => ({ at, value }));
    points.step_ms = 1000;
    const figure = lines("one", [["in", "value"]], points, span_ms, now_ms, bytes, bytes);
    document.querySelector("main").replaceChildren(figure);
    const boxes = [...figure.querySelectorAll(".axis")].map((one) => one.getBBox());
    return {
        path: figure.querySelector("path").getAttribute("d"),
        times: [...figure.querySelectorAll(".time")].map((one) => one.textContent),
        left: Math.min(...boxes.map((one) => one.x)),
        right: Math.max(...boxes.map((one) => one.x + one.width)),
        width: figure.querySelector("svg").viewBox.baseVal.width,
        rows: figure.querySelectorAll("tbody tr").length,
    };
}"""


def test_a_chart_has_a_time_axis_and_joins_nothing_over_gaps(chromium: Any, world: Shown) -> None:
    """The axis is not cut, also with the widest words that bytes have."""
    now = 1_795_000_000_000 // 3_600_000 * 3_600_000
    for width in (1400, 420):
        with let_in(chromium, world.link, viewport={"width": width, "height": 900}) as page:
            rows: list[list[Any]] = [
                [now - 1000 * back, 1023 * 1024] for back in (9, 8, 7, 4, 3, 0)
            ]
            rows.insert(5, [now - 2000, None])
            chart = page.evaluate(CHART, [rows, 300_000, now])
            assert (chart["path"].count("M"), chart["path"].count("L")) == (3, 3)
            assert chart["times"][-1].endswith(":00")
            assert len(chart["times"]) >= 5
            assert chart["left"] >= 0
            assert chart["right"] <= chart["width"]
            hour = page.evaluate(CHART, [rows, 3_600_000, now])["times"]
            assert hour[-1] == chart["times"][-1]
            assert len(hour) >= 4
            assert page.evaluate(CHART, [[], 300_000, now])["path"] == "M0 0"


def test_charts_are_sampled_while_no_page_is_open(chromium: Any, world: Shown) -> None:
    """There was a gap whenever nobody looked."""
    with let_in(chromium, world.link) as page:
        _next_state(page)
    browser = world.browser()
    while True:
        seconds = browser.json("/points")["points"][0]["rows"]
        if len(seconds) > 8:
            break
        time.sleep(0.2)
    numbers = [row[0] for row in seconds]
    # A busy machine may miss a second. While nobody looked, there was a gap of many.
    assert max(after - before for before, after in itertools.pairwise(numbers)) <= 2
    with let_in(chromium, world.link) as page:
        page.wait_for_selector("figure tbody tr >> nth=7", state="attached")


def test_an_address_that_is_none_says_so_in_one_line(chromium: Any, world: Shown) -> None:
    with let_in(chromium, world.link) as page:
        for where, words, back in (
            ("#/nowhere", "There is no page at the address nowhere.", "cluster"),
            ("#/log?name=absent", "There is no log with the name absent.", "logs"),
        ):
            page.goto(f"{origin(world.link)}/{where}")
            page.wait_for_selector("main h1:has-text('There is no')")
            assert page.inner_text("main").startswith(words)
            assert page.locator("main *:visible").count() <= 4
            assert page.locator("#notice").is_hidden()
            assert faults(page) == [], where
            page.click("main a")
            ready(page, back)
    context = chromium.new_context()
    page = context.new_page()
    assert page.goto(f"{origin(world.link)}/logs").status == 401
    ready(page, "unknown")
    assert page.locator("nav").is_hidden()
    page.click("main a")
    ready(page, "refused")
    context.close()


def test_every_column_and_figure_has_an_explanation_that_the_keyboard_reaches(
    chromium: Any, world: Shown
) -> None:
    with let_in(chromium, world.link) as page:
        for where in ("cluster", "logs", "log?name=orders/eu", "work", "quorum"):
            go(page, world.link, where)
            unexplained = "th[scope=col]:not([title]), .tile:not([title])"
            assert (
                page.locator(f"main section:not([aria-label=Records]) {unexplained}").count() == 0
            )
            headings = page.locator("h1:visible, h2:visible").all_inner_texts()
            assert len(headings) == len(set(headings)), where
            assert page.locator("h1").count() == 1
        go(page, world.link, "cluster")
        page.keyboard.press("?")
        page.wait_for_selector("#columns dt:text-is('sync p99')")
        assert faults(page) == []


def test_a_tail_in_a_tab(chromium: Any, world: Shown) -> None:
    with let_in(chromium, world.link) as page, growing(world.cluster.uri, "live"):
        go(page, world.link, "log?name=live")
        page.click("#tail")
        page.wait_for_selector("#said:has-text('live')")
        page.wait_for_selector(".payload >> nth=4")
        page.click("#tail")
        assert page.get_attribute("#tail", "aria-pressed") == "false"


def test_a_tail_in_a_tab_that_is_hidden_takes_no_connection(chromium: Any, world: Shown) -> None:
    """H260: the page's stream was closed, and the tail's was not: four such tabs put out each other's."""
    with let_in(chromium, world.link) as page, growing(world.cluster.uri, "live"):
        go(page, world.link, "log?name=live")
        with page.expect_request("**/tail?*"):
            page.click("#tail")
        page.wait_for_selector(".payload >> nth=4")
        with page.expect_event("requestfailed", lambda request: "/tail?" in request.url):
            _hide(page, "true")
        assert page.get_attribute("#tail", "aria-pressed") == "true"
        with page.expect_request("**/tail?*"):
            _hide(page, "false")
        page.wait_for_selector("#said:has-text('live')")


def _hide(page: Any, hidden: str) -> None:
    """As when another tab is looked at; without a window there is none."""
    page.evaluate(
        f"Object.defineProperty(document, 'hidden', {{ configurable: true, get: () => {hidden} }});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )


def test_eight_tabs_all_load(chromium: Any, world: Shown) -> None:
    """H260: HTTP/1.1 gives an origin six connections."""
    with let_in(chromium, world.link) as page:
        tabs = [page.context.new_page() for _ in range(8)]
        for tab in tabs:
            go(tab, world.link, "cluster")


def test_who_is_not_let_in_is_told_how(chromium: Any, world: Shown) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(origin(world.link))
    page.wait_for_selector("html[data-ready=refused]")

    assert page.locator("nav").is_hidden()
    assert "dlog console" in page.inner_text("main")
    assert faults(page) == []
    page.wait_for_selector("#token:focus")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#notice:has-text('wrong token')")
    page.keyboard.type(world.link)  # the whole link, or its end
    page.keyboard.press("Enter")
    ready(page, "cluster")
    assert page.locator("nav").is_visible()
    assert page.locator("#notice").is_hidden()
    context.close()


ATTACK = """async (target) => {
    const said = {};
    const attempt = async (name, act) => {
        try { said[name] = await act(); } catch (error) { said[name] = `refused: ${error.name}`; }
    };
    const read = (path, options) => async () => await (await fetch(target + path, options)).text();
    await attempt("read", read("/records?log=held", { credentials: "include" }));
    await attempt("opaque", read("/records?log=held", { credentials: "include", mode: "no-cors" }));
    await attempt("let in", read("/session", { method: "POST", body: '{"token": "x"}', mode: "no-cors" }));
    await attempt("stream", () => new Promise((resolve) => {
        const source = new EventSource(`${target}/events?page=cluster`, { withCredentials: true });
        source.onmessage = () => resolve("told");
        source.onerror = () => { source.close(); resolve("refused: an error"); };
    }));
    await attempt("script", () => new Promise((resolve) => {
        const script = document.createElement("script");
        script.onload = () => resolve("loaded");
        script.onerror = () => resolve("refused: an error");
        script.src = `${target}/events?page=work`;
        document.head.append(script);
    }));
    await attempt("frame", () => new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.onload = () => { try { resolve(frame.contentDocument ? "seen" : "refused: no document"); }
            catch { resolve("refused: an error"); } };
        frame.src = target;
        document.body.append(frame);
    }));
    return said;
}"""


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_another_page_gets_nothing_out_of_a_browser_that_is_let_in(
    chromium: Any, world: Shown, name: str
) -> None:
    """H258. To a browser another port of the address is the same site: it sends the cookie along."""
    context = chromium.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    own = context.new_page()
    own.goto(world.link)
    ready(own, "cluster")
    urls: dict[str, str] = {}
    answered: list[tuple[str, int]] = []

    with _foreign_page() as port:
        page = context.new_page()
        page.goto(f"http://{name}:{port}/")
        asked = context.new_cdp_session(page)  # also tells of what the page itself is not told of
        asked.on(
            "Network.requestWillBeSent",
            lambda one: urls.update({one["requestId"]: one["request"]["url"]}),
        )
        asked.on(
            "Network.responseReceivedExtraInfo",
            lambda one: answered.append((one["requestId"], one["statusCode"])),
        )
        asked.send("Network.enable")
        said = page.evaluate(ATTACK, origin(world.link))

    assert set(said) == {"read", "opaque", "let in", "stream", "script", "frame"}
    assert said.pop("opaque") in ("", "refused: TypeError"), "what came cannot be looked into"
    assert said.pop("let in") in ("", "refused: TypeError")
    assert all(one.startswith("refused") for one in said.values()), said
    ours = f"{origin(world.link)}/"
    seen: dict[str, set[int]] = {}
    for ident, status in answered:
        place, _, path = urls.get(ident, "").partition(ours)
        if not place and path:  # the empty page, for a frame, shows nothing of the cluster
            seen.setdefault(path.partition("?")[0], set()).add(status)
    assert set(seen) == {"records", "session", "events"}
    assert set().union(*seen.values()) <= {401, 403}, "and the console itself gave none of it"
    context.close()


def test_a_name_that_was_pointed_here_is_not_answered(chromium: Any, world: Shown) -> None:
    """H258: DNS rebinding, in a browser whose resolver says so."""
    context = chromium.new_context()
    page = context.new_page()
    port = origin(world.link).rpartition(":")[2]
    answer = page.goto(f"http://{ELSEWHERE}:{port}/")

    assert answer.status == 421
    assert ELSEWHERE in page.inner_text("body")
    context.close()


@contextmanager
def _foreign_page() -> Iterator[int]:
    """Somebody else's page on this machine; its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title><body>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    try:
        yield served.server_address[1]
    finally:
        served.shutdown()
        thread.join()
        served.server_close()
