"""Who is let in, and what the page may do."""

import json
import re
from itertools import count

import pytest

import distributedlog.console.server as server
from distributedlog.console.access_guard import (
    CHANGE_TOKENS_MAX,
    HEADERS,
    SESSIONS_MAX,
    AccessGuard,
    is_listen_allowed,
)
from distributedlog.console.http import ConsolePage, Request

OPEN = {"/", "/static/main.js"}
TOKEN = "a-token-that-nobody-guesses"


def _guard(*hosts: str) -> AccessGuard:
    drawn = count()
    return AccessGuard(TOKEN, 8490, hosts, lambda: f"session-{next(drawn)}")


def _get(path: str, host: str = "127.0.0.1:8490", **headers: str) -> Request:
    return Request("GET", path, {}, {"host": host, **headers})


def _post(body: object, **headers: str) -> Request:
    named = {"host": "127.0.0.1:8490", "origin": "http://127.0.0.1:8490"}
    named |= {"content-type": "application/json"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request("POST", "/session", {}, named, data)


def _status(page: ConsolePage | None) -> int:
    return 200 if page is None else page.status


def test_the_token_opens_it_and_a_cookie_keeps_it_open() -> None:
    guard = _guard()
    assert _status(guard.check(_get("/events"), OPEN)) == 401

    answer = guard.open_session(_post({"token": TOKEN}))
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert cookie == "dlog-console-8490=session-0; Path=/; HttpOnly; SameSite=Strict"

    let_in = _get("/events", cookie=f"other=1; {cookie.partition(';')[0]}")
    assert guard.check(let_in, OPEN) is None
    assert guard.session(let_in) == "session-0"
    assert _status(guard.check(_get("/events", cookie="dlog-console-8490=session-1"), OPEN)) == 401
    assert _status(guard.check(_get("/events", cookie=f"dlog-console-8490={TOKEN}"), OPEN)) == 401


@pytest.mark.parametrize(
    "body",
    [
        {"token": TOKEN + "x"}, {"token": ""}, {"token": None}, {"token": [TOKEN]}, {}, [], b"", b"\xff",
        TOKEN, b'{"token": "\\ud800"}', b"[" * 4000,
    ],
)  # fmt: skip
def test_what_is_not_the_token_opens_nothing(body: object) -> None:
    answer = _guard().open_session(_post(body))

    assert answer.status == 403
    assert "set-cookie" not in answer.headers


def test_without_a_session_only_what_shows_nothing_is_answered() -> None:
    """H259: whoever else is on this machine reaches the port, too."""
    guard = _guard()
    for path in OPEN:
        assert guard.check(_get(path), OPEN) is None
    for path in (
        "/events",
        "/records",
        "/payload",
        "/tail",
        "/static/../guard.py",
        "/static/",
        "//",
    ):
        assert _status(guard.check(_get(path), OPEN)) == 401
        head = Request("HEAD", path, {}, {"host": "127.0.0.1:8490"})
        assert _status(guard.check(head, OPEN)) == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:80", "localhost:8491", "", "127.0.0.1:8490.evil.example"]
)  # fmt: skip
def test_a_name_that_is_not_ours_is_answered_nothing(host: str) -> None:
    """H258: a page elsewhere points its name here (DNS rebinding)."""
    assert _status(_guard().check(_get("/", host), OPEN)) == 421


def test_names_that_are_ours() -> None:
    for host in ("127.0.0.1:8490", "localhost:8490", "LOCALHOST:8490", "[::1]:8490"):
        assert _guard().check(_get("/", host), OPEN) is None
    for host in ("ops.example:8490", "ops.example"):  # behind a proxy a browser says no port
        assert _guard("ops.example").check(_get("/", host), OPEN) is None
    assert _status(_guard().check(Request("GET", "/", {}, {}), OPEN)) == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "file://", "http://127.0.0.1:9999", "http://127.0.0.1", "ftp://127.0.0.1:8490"]
)  # fmt: skip
def test_another_pages_request_changes_nothing(origin: str) -> None:
    """H258: CSRF. A login by somebody else's form would be one, too."""
    assert _status(_guard().check(_post({"token": TOKEN}, origin=origin), OPEN)) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_asks_for_nothing_of_the_cluster(site: str) -> None:
    """H258: on another port of this address it has our cookie, as Chromium says (test_browser.py)."""
    guard = _guard()
    cookie = guard.open_session(_post({"token": TOKEN})).headers["set-cookie"].partition(";")[0]

    assert guard.check(_get("/", cookie=cookie, **{"sec-fetch-site": site}), OPEN) is None
    for own in ("same-origin", "none"):
        assert guard.check(_get("/tail", cookie=cookie, **{"sec-fetch-site": own}), OPEN) is None
    refused = guard.check(_get("/tail", cookie=cookie, **{"sec-fetch-site": site}), OPEN)
    assert _status(refused) == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_form_cannot_carry_the_token(kind: str) -> None:
    """What a form sends needs no leave of the browser; JSON does."""
    assert _guard().open_session(_post({"token": TOKEN}, content_type=kind)).status == 415


def test_sessions_are_bounded() -> None:
    guard = _guard()
    first = guard.open_session(_post({"token": TOKEN})).headers["set-cookie"].partition(";")[0]
    for _ in range(SESSIONS_MAX):
        last = guard.open_session(_post({"token": TOKEN})).headers["set-cookie"].partition(";")[0]

    assert guard.session(_get("/", cookie=first)) is None
    assert guard.session(_get("/", cookie=last)) is not None
    assert len(guard._sessions) == SESSIONS_MAX


def _change(guard: AccessGuard, cookie: str, token: str) -> int:
    """The status with which a change is refused, or 200."""
    answer = guard.admit_change(_post({}, cookie=cookie, x_dlog_change=token))
    return answer.status if isinstance(answer, ConsolePage) else 200


def _session(guard: AccessGuard, user: bytes) -> tuple[str, str]:
    """The cookie and the name of a new session of a user's token."""
    cookie = guard.admit(user).headers["set-cookie"].partition(";")[0]
    return cookie, cookie.partition("=")[2]


@pytest.mark.parametrize("other", [b"ann", b"bob"])
def test_a_change_token_of_another_session_is_refused(other: bytes) -> None:
    guard = _guard()
    (cookie, session), (other_cookie, other_session) = (
        _session(guard, b"ann"),
        _session(guard, other),
    )
    token, foreign = guard.issue_change_token(session), guard.issue_change_token(other_session)

    assert _change(guard, cookie, foreign) == 403
    assert _change(guard, other_cookie, foreign) == 200, "not used up by the refusal"
    assert _change(guard, cookie, foreign) == 403, "a used token of another session, too"
    assert (_change(guard, cookie, token), _change(guard, cookie, token)) == (200, 409)


def test_change_tokens_of_one_session_do_not_replace_those_of_another() -> None:
    """A viewer that reloads its page made the pages of all others too old for a change."""
    guard = _guard()
    (cookie, session), (_, other_session) = _session(guard, b"ann"), _session(guard, b"bob")
    oldest, token = guard.issue_change_token(session), guard.issue_change_token(session)
    for _ in range(10 * CHANGE_TOKENS_MAX):
        guard.issue_change_token(other_session)
    assert _change(guard, cookie, token) == 200
    for _ in range(CHANGE_TOKENS_MAX):
        guard.issue_change_token(session)
    assert _change(guard, cookie, oldest) == 403, "those of one session are limited"


def test_a_session_that_ends_during_a_change_receives_no_token() -> None:
    """The answer still reports the result of the change."""
    assert _guard().issue_change_token("ended") == ""


def test_sessions_of_one_user_do_not_replace_those_of_another() -> None:
    guard = _guard()
    cookie, session = _session(guard, b"ann")
    token = guard.issue_change_token(session)
    for _ in range(2 * SESSIONS_MAX):
        last, _ = _session(guard, b"bob")

    assert _change(guard, cookie, token) == 200
    assert guard.session(_get("/", cookie=last)) is not None


def test_it_listens_beyond_the_machine_only_by_a_name() -> None:
    assert is_listen_allowed("127.0.0.1", ())
    assert is_listen_allowed("::1", ())
    assert not is_listen_allowed("0.0.0.0", ())
    assert not is_listen_allowed("::", ())
    assert not is_listen_allowed("127.0.0.2.evil.example", ())
    assert is_listen_allowed("0.0.0.0", ("ops.example",))


def test_what_the_page_may_do() -> None:
    policy = dict(
        part.strip().split(" ", 1) for part in HEADERS["content-security-policy"].split(";")
    )

    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert HEADERS["x-content-type-options"] == "nosniff"


FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc|setHTML"
    r"|\beval\b|new Function|javascript:|\bon[a-z]+\s*=\s*[\"'{(]|style\s*=\s*[\"']"
)


def test_nothing_is_ever_parsed_as_markup_and_nothing_comes_from_elsewhere() -> None:
    """H257: our modules make text of all that came from the cluster."""
    pages = server.static_pages()
    assert {"/", "/static/main.js", "/static/style.css"} <= set(pages)
    for path, page in pages.items():
        text = page.body.decode()
        assert not FORBIDDEN.search(text), (path, FORBIDDEN.search(text))
        elsewhere = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not elsewhere, path
    html = pages["/"].body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)", html)
    assert "<style" not in html
