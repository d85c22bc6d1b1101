"""Chromium driven by playwright: pages that are let in, what they complain of, and what axe finds on them.

Traps: under the console's policy `wait_for_function` is refused, for it evaluates text: wait for a selector.
Selectors are tried again each half second only: wait for what stays.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

TIMEOUT_MS = 30_000
INSTALL = "pip install '.[browser]'"
ELSEWHERE = "rebound.example"
"""A name that somebody else has, and has let point to this machine."""


@contextmanager
def launched() -> Iterator[Any]:
    """A Chromium; skips, with the reason, where it or playwright is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason=f"playwright is not installed: {INSTALL}"
    )
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium is here: apt-get install chromium fonts-dejavu-core")
    arguments = ["--no-sandbox", f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"]
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


UNAVAILABLE = "the server responded with a status of 503"


@contextmanager
def let_in(chromium: Any, link: str, *, troubled: bool = False, **options: Any) -> Iterator[Any]:
    """Open a signed-in page in a new browser context.

    A complaint of the page, and a request to another server, fail the test. Only the pages of a troubled
    cluster may be refused with 503, because its nodes may answer too late.
    """
    context = chromium.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    wrong: list[str] = []

    def heard(message: Any) -> None:
        if message.type in ("error", "warning") and not (troubled and UNAVAILABLE in message.text):
            wrong.append(message.text)

    def asked(request: Any) -> None:
        if not request.url.startswith((origin(link), "data:,")):
            wrong.append(request.url)

    page.on("console", heard)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("request", asked)
    page.goto(link)
    ready(page, "cluster")
    try:
        yield page
    finally:
        context.close()
    assert not wrong, wrong


def origin(link: str) -> str:
    """Scheme, host and port of a console's link."""
    return link.partition("/#")[0]


def go(page: Any, link: str, where: str) -> None:
    """To a page, ``where`` after the ``#/``, and wait for its first state."""
    page.goto(f"{origin(link)}/#/{where}")
    ready(page, where.partition("?")[0])


def ready(page: Any, name: str) -> None:
    """Wait until the page of that name has a state."""
    page.wait_for_selector(f"html[data-ready={name}]")


def texts(page: Any, selector: str) -> str:
    """What is to be read in all that match, a line each."""
    return "\n".join(page.locator(selector).all_inner_texts())


def faults(page: Any) -> list[str]:
    """What axe finds on the page as it is now: rule, and where."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason=f"axe is not installed: {INSTALL}"
    )
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
        for one in found
    ]
