"""The pages in Chromium: they load, show hostile text as text, and can be used by keyboard.

Where `playwright` or a Chromium is missing they are skipped, with the reason. With DLOG_PICTURES=DIR the
pictures for docs/ are stored there.
"""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distributedlog import DLSN, LogRecord
from distributedlog.blocking import open_namespace
from tests.console.live import Shown, shown

pytestmark = [pytest.mark.processes, pytest.mark.browser]

HOSTILE = '<img src=x onerror="document.title=1">'
TIMEOUT_MS = 30_000
PICTURES = os.environ.get("DLOG_PICTURES", "")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium is here: apt-get install chromium fonts-dejavu-core")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


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
        with namespace.open_log("odd").open_writer() as writer:
            writer.write_bulk(
                [
                    LogRecord(1, HOSTILE.encode()),
                    LogRecord(2, b"\xe2\x80\xaegnp"),
                    LogRecord(3, b"\xff\x00" * 9),
                ]
            )
        namespace.open_log("odd").positions.advance(HOSTILE, DLSN(1, 0, 1))
        with open_namespace(found.cluster.uri, config={"owner": HOSTILE}) as other:
            held = other.open_log("held").open_writer()
            with held as writer:
                writer.write(LogRecord(1, b"x"))
                yield found


@contextmanager
def _page(chromium: Any, world: Shown, **options: Any) -> Iterator[Any]:
    """A browser of its own that is let in; whatever it complains of, or fetches elsewhere, fails the test."""
    context = chromium.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    origin = world.link.partition("/#")[0]
    wrong: list[str] = []

    def heard(message: Any) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    def asked(request: Any) -> None:
        if not request.url.startswith((origin, "data:,")):
            wrong.append(request.url)

    page.on("console", heard)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("request", asked)
    page.goto(world.link)
    _ready(page, "cluster")
    try:
        yield page
    finally:
        context.close()
    assert wrong == []


def _ready(page: Any, name: str) -> None:
    page.wait_for_selector(f"html[data-ready={name}]")


def _texts(page: Any, selector: str) -> str:
    return "\n".join(page.locator(selector).all_inner_texts())


def test_every_page_by_keyboard_in_both_schemes_and_on_a_narrow_screen(
    chromium: Any, world: Shown
) -> None:
    for scheme, width in (("light", 1200), ("dark", 400)):
        with _page(
            chromium, world, color_scheme=scheme, viewport={"width": width, "height": 900}
        ) as page:
            assert "t=" not in page.url, "the token is out of the address"
            assert page.locator("h1").inner_text() == "✓ healthy"
            for key, name in ((2, "logs"), (3, "work"), (4, "quorum"), (1, "cluster")):
                page.keyboard.press(str(key))
                _ready(page, name)
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{name} at {width} px"
                assert page.locator("nav [aria-current=page]").count() == 1
            dark = (
                page.evaluate("getComputedStyle(document.body).backgroundColor")
                != "rgb(255, 255, 255)"
            )
            assert dark == (scheme == "dark")

            page.keyboard.press("/")
            _ready(page, "logs")
            page.wait_for_selector("#search:focus")
            page.keyboard.type("orders/e")
            page.wait_for_selector("text=1 shown")
            page.keyboard.press("Escape")
            page.keyboard.press("j")
            page.keyboard.press("Enter")
            _ready(page, "log")
            assert page.locator("h1").inner_text() == "orders/eu"
            page.wait_for_selector("text=100 records, to the end")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            page.keyboard.press("?")
            page.wait_for_selector("#keys[open]")
            page.keyboard.press("Escape")
            page.wait_for_selector("#keys:not([open])", state="attached")


def test_hostile_text_is_text(chromium: Any, world: Shown) -> None:
    """H257: a position, a writer's name, payloads."""
    with _page(chromium, world) as page:
        page.goto(world.link.partition("#")[0] + "#/logs?prefix=held")
        _ready(page, "logs")
        assert HOSTILE in _texts(page, "td")

        page.goto(world.link.partition("#")[0] + "#/log?name=odd")
        page.wait_for_selector(".payload >> nth=2")
        page.click("text=1 positions as a table")
        page.wait_for_selector("text=goes on at")
        assert HOSTILE in _texts(page, "th")
        shown_ = page.locator(".payload").all_inner_texts()
        assert shown_ == [HOSTILE, "\\u202egnp", " ".join(["ff 00"] * 9)]
        page.select_option("#form", "hex")
        assert page.locator(".payload").first.inner_text().startswith("3c 69 6d 67")

        assert page.locator("main img").count() == 0
        assert page.title() == "odd – dlog console"


def test_a_handler_that_gets_in_all_the_same_does_not_run(chromium: Any, world: Shown) -> None:
    """H257: the second wall, the policy. It is not asked of the complaints: the browser's own is one."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(world.link)
    _ready(page, "cluster")
    page.evaluate("document.body.setAttribute('onclick', 'document.title = \"owned\"')")
    page.click("strong")

    assert page.title() == "Cluster – dlog console"
    context.close()


def test_a_tail_in_a_tab(chromium: Any, world: Shown) -> None:
    with _page(chromium, world) as page, _growing(world, "live"):
        page.goto(world.link.partition("#")[0] + "#/log?name=live")
        _ready(page, "log")
        page.click("#tail")
        page.wait_for_selector("#said:has-text('live')")
        page.wait_for_selector(".payload >> nth=4")
        page.click("#tail")
        assert page.get_attribute("#tail", "aria-pressed") == "false"


def test_eight_tabs_all_load(chromium: Any, world: Shown) -> None:
    """H260: HTTP/1.1 gives an origin six connections."""
    with _page(chromium, world) as page:
        tabs = [page.context.new_page() for _ in range(8)]
        for tab in tabs:
            tab.goto(world.link.partition("#")[0] + "#/cluster")
            _ready(tab, "cluster")


def test_who_is_not_let_in_is_told_how(chromium: Any, world: Shown) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(world.link.partition("#")[0])
    page.wait_for_selector("html[data-ready=refused]")

    assert "Open the link" in page.locator("#notice").inner_text()
    assert page.locator("main").inner_text().strip() == ""
    context.close()


@contextmanager
def _growing(world: Shown, *names: str) -> Iterator[None]:
    """Logs that are written, some records a beat, while the block runs."""
    done = threading.Event()

    def write(name: str) -> None:
        with (
            open_namespace(world.cluster.uri) as namespace,
            namespace.open_log(name).open_writer() as writer,
        ):
            number = 0
            while not done.wait(0.1):
                orders = [json.dumps({"order": number + one}).encode() for one in range(20)]
                writer.write_bulk(orders)
                number += 20

    with open_namespace(world.cluster.uri) as namespace:
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


@pytest.mark.skipif(not PICTURES, reason="pictures for docs/: DLOG_PICTURES=docs")
def test_pictures(chromium: Any, world: Shown) -> None:
    size = {"width": 1100, "height": 760}
    with _page(chromium, world, viewport=size) as page, _growing(world, "orders/eu", "orders/us"):
        page.wait_for_timeout(15_000)
        page.screenshot(path=Path(PICTURES) / "console-cluster.png")
        page.goto(world.link.partition("#")[0] + "#/log?name=orders%2Feu")
        _ready(page, "log")
        page.wait_for_timeout(3_000)
        page.screenshot(path=Path(PICTURES) / "console-log.png")
