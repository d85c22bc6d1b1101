"""Protect the console against other users of the machine and against other web pages.

The console shows records on a port that every page and every user of the machine can reach.

- A token opens it. The link has the token in its fragment, which browsers neither send, log nor refer. The
  page sends it by POST and gets a cookie that scripts cannot read and other sites cannot send.
- Only requests to a configured host name are answered (421 otherwise). A page whose name was redirected to
  this address (DNS rebinding) can read nothing.
- Requests must come from a page of the console, by Sec-Fetch-Site, and by Origin if they are not GET or HEAD
  (403 otherwise).
- A change requires a token that only a page of this session received. A token is for one change, so that a
  form that is submitted twice has one effect. Each session has its own limit of tokens, so that no session
  invalidates the tokens of another.
- Headers of each answer restrict the page: only scripts and styles of the console, no inline scripts or
  styles, no requests to other servers, no embedding in frames.
"""

import hmac
import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from .http import JSON, ConsolePage, Request, as_page

WRONG_TOKEN = "wrong token: open the link that was printed last"
NO_SESSION = "no session: open the link that dlog console printed"
CHANGE_TOKEN_HEADER = "x-dlog-change"
"""Header of a change, with its token. Pages of other sites cannot set it without a preflight request."""
CHANGE_TOKENS_MAX = 64
"""Maximum number of tokens per session. A new one replaces the oldest."""
SESSIONS_MAX = 64
"""Maximum number of sessions. A new one replaces the oldest session of the user token that has the most."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer."""
LOCAL = ("127.0.0.1", "localhost", "[::1]")
FOREIGN_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site for requests by pages of other sites.

To a browser, another port of the same address is the same site. It sends the cookie along, so the request
would be executed, although its answer would not be shown.
"""


@dataclass(slots=True)
class _Session:
    """The session of one browser."""

    presented_token: bytes
    """The user token, or b"" for the console's own token."""
    change_tokens: dict[str, bool] = field(default_factory=dict)
    """Token of a change to whether it was used."""


class AccessGuard:
    """The sessions of one console. ``random_text`` returns an unpredictable string."""

    def __init__(
        self, token: str, port: int, hosts: Collection[str], random_text: Callable[[], str]
    ) -> None:
        named = [*LOCAL, *hosts]
        # Behind a proxy or on port 80, browsers omit the port.
        self._hosts = {f"{name}:{port}".lower() for name in named} | {
            name.lower() for name in hosts
        }
        if port == 80:
            self._hosts |= set(LOCAL)
        self._token = token
        self._random_text = random_text
        self._sessions: dict[str, _Session] = {}
        """The sessions by the values of their cookies, the oldest first."""
        self.cookie_name = f"dlog-console-{port}"
        """With the port, so that consoles of two clusters on one machine do not share a cookie."""

    def check(self, request: Request, open_paths: Collection[str]) -> ConsolePage | None:
        """Check host, origin and session of a request.

        Args:
            request: The request.
            open_paths: Paths that need no session, because they show nothing of the cluster.

        Returns:
            The error page, or None if the request is allowed.
        """
        host = request.headers.get("host", "").lower()
        if host not in self._hosts:
            return as_page(
                421, {"error": f"unknown host {host[:100]!r}. Use --allow-host NAME to add it"}
            )
        is_foreign = request.headers.get("sec-fetch-site", "").lower() in FOREIGN_SITES
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin", "").lower()
            scheme, _, name = origin.partition("://")
            if is_foreign or scheme not in ("http", "https") or name not in self._hosts:
                return as_page(403, {"error": "only pages of the console may send this request"})
        elif request.path not in open_paths:
            if is_foreign:
                return as_page(403, {"error": "only pages of the console may send this request"})
            if self.session(request) is None:
                return as_page(401, {"error": NO_SESSION})
        return None

    def session(self, request: Request) -> str | None:
        """Return the session of a request by its cookie, or None."""
        for part in request.headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie_name and value in self._sessions:
                return value
        return None

    def presented_token(self, request: Request) -> bytes | None:
        """Return the user token of the request's session, or None without a session."""
        session = self.session(request)
        return None if session is None else self._sessions[session].presented_token

    def open_session(self, request: Request) -> ConsolePage:
        """Answer the POST that contains the token."""
        token = self.token_of(request)
        if isinstance(token, ConsolePage):
            return token
        if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token.encode()):
            return as_page(403, {"error": WRONG_TOKEN})
        return self.admit()

    def issue_change_token(self, session: str) -> str:
        """Return a token for one change, which only a page of this session receives.

        It is "" if the session was replaced in the meantime, for example during a change.
        """
        if session not in self._sessions:
            return ""
        token, tokens = self._random_text(), self._sessions[session].change_tokens
        tokens[token] = False
        while len(tokens) > CHANGE_TOKENS_MAX:
            del tokens[next(iter(tokens))]
        return token

    def admit_change(self, request: Request) -> str | ConsolePage:
        """Return the session of a POST that `check` has allowed, and use up its token; or the error page."""
        session = self.session(request)
        if session is None:
            return as_page(401, {"error": NO_SESSION})
        if not is_json(request):
            return as_page(415, {"error": f"a change must be sent as {JSON}"})
        token = request.headers.get(CHANGE_TOKEN_HEADER, "")
        tokens = self._sessions[session].change_tokens
        if token not in tokens:
            return as_page(403, {"error": "the page is too old for a change: reload it"})
        if tokens[token]:
            return as_page(409, {"error": "this change was submitted already: check its effect"})
        tokens[token] = True
        return session

    def token_of(self, request: Request) -> str | ConsolePage:
        """Return the token in a POST, or the error page."""
        if not is_json(request):
            return as_page(415, {"error": f"a token must be sent as {JSON}"})
        try:
            value = json.loads(request.body)["token"]
        except (ValueError, KeyError, TypeError, RecursionError):
            value = None
        return value if isinstance(value, str) else as_page(403, {"error": WRONG_TOKEN})

    def admit(self, presented_token: bytes = b"") -> ConsolePage:
        """Open a session for a presented token, and return the page that sets its cookie."""
        session = self._random_text()
        self._sessions[session] = _Session(presented_token)
        while len(self._sessions) > SESSIONS_MAX:
            counts = Counter(one.presented_token for one in self._sessions.values())
            [(most, _)] = counts.most_common(1)
            oldest = next(
                name for name, one in self._sessions.items() if one.presented_token == most
            )
            del self._sessions[oldest]
        cookie = f"{self.cookie_name}={session}; Path=/; HttpOnly; SameSite=Strict"
        return ConsolePage(200, b"{}", headers={"set-cookie": cookie})


def is_json(request: Request) -> bool:
    """Return whether the body of a request is declared as JSON, which a form of a page cannot send."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON


def is_listen_allowed(host: str, allowed_hosts: Sequence[str]) -> bool:
    """Whether a console may listen on this host. Beyond loopback addresses it requires a host name."""
    return host in ("127.0.0.1", "::1", "localhost") or bool(allowed_hosts)
