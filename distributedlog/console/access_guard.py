"""Who is let in. The console shows other people's data on a port that every page and user of the
machine can reach.

- A token opens it. It comes in the link's fragment, which no browser sends, logs or refers; the page hands it
  over by POST and gets a cookie that scripts cannot read and other sites cannot send.
- Only names that are ours are answered (421 else): a page whose name was pointed here reads nothing.
- Whatever is asked comes from a page of ours (Sec-Fetch-Site; where it changes something, Origin; 403 else).
- What the page may do is written into each answer: scripts and styles of ours alone, none within the page, no
  request elsewhere, in nobody's frame.
"""

import hmac
import json
from collections.abc import Callable, Collection, Sequence

from .http import JSON, ConsolePage, Request, as_page

WRONG_TOKEN = "that is not the token: open the link that was printed last"
SESSIONS_MAX = 64
"""The oldest one gives way."""
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
"""On everything that is answered."""
LOCAL = ("127.0.0.1", "localhost", "[::1]")
FOREIGN_SITES = ("cross-site", "same-site")
"""What a browser says in Sec-Fetch-Site of a request by a page that is not ours. To it another port of an
address is the same site: it sends our cookie along, and what was asked would be done, though not shown."""


class AccessGuard:
    """Sessions of one console. ``draw`` gives a text that nobody can guess."""

    def __init__(
        self, token: str, port: int, hosts: Collection[str], random_text: Callable[[], str]
    ) -> None:
        named = [*LOCAL, *hosts]
        # A browser leaves the port of its scheme out: behind a proxy, or on port 80.
        self._hosts = {f"{name}:{port}".lower() for name in named} | {
            name.lower() for name in hosts
        }
        if port == 80:
            self._hosts |= set(LOCAL)
        self._token = token
        self._random_text = random_text
        self._sessions: dict[str, bytes] = {}
        """By cookie: what was shown for it, where that is somebody's own."""
        self.cookie_name = f"dlog-console-{port}"
        """By port: consoles of two clusters on one machine do not put each other out."""

    def check(self, request: Request, open_paths: Collection[str]) -> ConsolePage | None:
        """Why a request is not answered; None: it may be. ``open_paths`` show nothing of the cluster."""
        host = request.headers.get("host", "").lower()
        if host not in self._hosts:
            return as_page(421, {"error": f"this is no {host[:100]!r}; --allow-host NAME adds one"})
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin", "").lower()
            scheme, _, name = origin.partition("://")
            if scheme not in ("http", "https") or name not in self._hosts:
                return as_page(403, {"error": "only pages of the console may ask that"})
        elif request.path not in open_paths:
            if request.headers.get("sec-fetch-site", "").lower() in FOREIGN_SITES:
                return as_page(403, {"error": "only pages of the console may ask that"})
            if self.session(request) is None:
                return as_page(401, {"error": "open the link that dlog console printed"})
        return None

    def session(self, request: Request) -> str | None:
        """Whose request it is, by its cookie; None: nobody's."""
        for part in request.headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie_name and value in self._sessions:
                return value
        return None

    def presented_token(self, request: Request) -> bytes | None:
        """What was shown for the cookie of a request; None: nothing was."""
        session = self.session(request)
        return None if session is None else self._sessions[session]

    def open_session(self, request: Request) -> ConsolePage:
        """Answer the POST that carries the token."""
        token = self.token_of(request)
        if isinstance(token, ConsolePage):
            return token
        if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token.encode()):
            return as_page(403, {"error": WRONG_TOKEN})
        return self.admit()

    def token_of(self, request: Request) -> str | ConsolePage:
        """The token that a POST carries; a page that says that it carries none."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            return as_page(415, {"error": f"a token comes as {JSON}"})
        try:
            value = json.loads(request.body)["token"]
        except (ValueError, KeyError, TypeError, RecursionError):
            value = None
        return value if isinstance(value, str) else as_page(403, {"error": WRONG_TOKEN})

    def admit(self, presented_token: bytes = b"") -> ConsolePage:
        """A cookie for who has shown that."""
        session = self._random_text()
        self._sessions[session] = presented_token
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = f"{self.cookie_name}={session}; Path=/; HttpOnly; SameSite=Strict"
        return ConsolePage(200, b"{}", headers={"set-cookie": cookie})


def is_listen_allowed(host: str, allowed_hosts: Sequence[str]) -> bool:
    """Beyond the machine's own address a console has a name that it is reached by."""
    return host in ("127.0.0.1", "::1", "localhost") or bool(allowed_hosts)
