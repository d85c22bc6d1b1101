"""A console where each reads with his own rights: on processes with certificates, rights required."""

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distributedlog.cluster.local.child_processes import environment
from tests import preloaded
from tests.cluster.secured import Secured, secured
from tests.cluster.story import dlog
from tests.console.chromium import faults, launched, ready
from tests.console.live import Browser
from tests.gateway.https_kit import forged
from tests.runtime.pki import authority, directory_of

pytestmark = pytest.mark.processes

FIRST: dict[str, Any] = {"log": "orders/eu", "from": "first"}


class Guest(Browser):
    """Who gives the page a token."""

    def __init__(self, link: str, token: str) -> None:
        super().__init__(link)
        self.place = link.removeprefix("http://").strip("/")
        self.token = token

    def give(self) -> Any:
        """The answer; with the cookie, if there is one."""
        answer = self.request(
            "POST",
            "/session",
            json.dumps({"token": self.token}).encode(),
            origin=f"http://{self.place}",
            content_type="application/json",
        )
        self.cookie = (answer.headers["set-cookie"] or "").partition(";")[0]
        return answer.status, json.loads(answer.read())


@contextmanager
def console(it: Secured) -> Iterator[str]:
    known = it.place / "ca"
    known.mkdir()
    shutil.copy(authority() / "ca.pem", known)
    with (it.place / "console.stderr").open("wb") as errors:
        process = preloaded.popen(
            dlog(
                *("--credentials", f"file:{known}", "--uri", it.cluster.uri, "--json"),
                *("console", "--users", "--allow-changes", "--listen", "127.0.0.1:0"),
            ),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (it.place / "console.stderr").read_text()
        yield json.loads(line)["console"]
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
        process.stdout.close()


@dataclass
class World:
    """A cluster that requires rights, its console, and a token of each user."""

    it: Secured
    link: str
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with secured(tmp_path_factory.mktemp("secured"), bookies=1) as it:
        it.require(("etl", "owner", "orders/"), ("ann", "reader", "bills"), ("ops", "operator", ""))
        etl = it.cluster.run(
            *("--credentials", f"file:{directory_of('user/etl')}", "--uri", it.through),
            *("log", "write", "orders/eu", "--create"),
            input=b"one\ntwo\n",
        )
        assert etl.returncode == 0, etl.stderr
        tokens = {user: it.token(user).read_text().strip() for user in ("etl", "ann", "ops")}
        with console(it) as link:
            yield World(it, link, tokens)


@pytest.mark.browser
def test_the_page_asks_for_a_token_and_keeps_it_nowhere(world: World) -> None:
    with launched() as chromium:
        page = chromium.new_context().new_page()
        page.goto(world.link)
        field = page.locator("#token")
        field.fill("dlog1_AAAA")
        field.press("Enter")
        page.wait_for_selector("#notice:has-text('no token')")
        assert faults(page) == []
        field.fill(world.tokens["ops"])
        page.get_by_role("button", name="Read as this user").click()
        ready(page, "cluster")
        assert "bookie1" in page.content()
        assert world.tokens["ops"] not in page.url + page.content()
        kept = page.evaluate(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        )
        assert "dlog1_" not in kept


def _change(guest: Guest, action: str, **fields: object) -> tuple[int, str]:
    """Make a change with the token of a new page; returns the status and the result or error."""
    page = guest.json("/actions")
    answer = guest.request(
        "POST",
        f"/actions?action={action}",
        json.dumps(fields).encode(),
        origin=f"http://{guest.place}",
        content_type="application/json",
        x_dlog_change=page["token"],
    )
    value = json.loads(answer.read())
    return answer.status, value.get("done") or value["error"]


def test_a_user_makes_only_changes_that_the_rights_permit(world: World) -> None:
    guests = {user: Guest(world.link, token) for user, token in world.tokens.items()}
    assert all(guest.give()[0] == 200 for guest in guests.values())
    etl, ann, ops = guests["etl"], guests["ann"], guests["ops"]

    assert _change(etl, "create", log="orders/us") == (200, "created orders/us")
    incarnation = etl.json("/effect", action="delete", log="orders/us")["bound"]["incarnation"]
    bound = {"log": "orders/us", "incarnation": incarnation}
    effect = etl.json("/effect", action="truncate", log="orders/eu", to="1.0.1")
    cut = {"log": "orders/eu", **effect["bound"]}
    for guest in (ann, ops):
        for action, fields in (
            ("create", {"log": "orders/asia"}),
            ("append", {**bound, "payload": ""}),
            ("truncate", cut),
            ("delete", bound),
        ):
            status, error = _change(guest, action, **fields)
            assert status in (403, 404, 410), (action, error)
            assert error.startswith(("NotAllowed", "LogNotFound", "LogRecreated")), error
    bookie = {"bookie": "bookie1", "force": True}
    pause = {"duration": "1h"} | ops.json("/effect", action="pause-repair", duration="1h")["bound"]
    for guest in (ann, etl):
        assert _change(guest, "decommission", **bookie)[0] == 403
        assert _change(guest, "pause-repair", **pause)[0] == 403
    assert _change(ops, "pause-repair", **pause)[0] == 200
    assert _change(ops, "resume-repair")[0] == 200
    assert _change(ops, "decommission", **bookie) == (200, "bookie bookie1 is draining")
    assert _change(ops, "cancel-decommission", bookie="bookie1")[0] == 200
    assert _change(etl, "delete", **bound) == (200, "deleted orders/us")

    audit = world.it.dlog("trust", "audit").stdout.decode()
    for action, user in (("delete-log", "etl"), ("decommission", "ops"), ("recommission", "ops")):
        assert any(action in line and f"user/{user}" in line for line in audit.splitlines()), audit
    events = [
        json.loads(line)
        for line in (world.it.place / "console.stderr").read_text().splitlines()
        if '"console.change"' in line
    ]
    shown = {
        (event["user"], event["action"], event["outcome"].partition(":")[0]) for event in events
    }
    assert ("etl", "delete", "deleted orders/us") in shown
    assert ("ann", "decommission", "NotAllowed") in shown


def test_each_reads_what_he_may(world: World) -> None:
    it, link, tokens = world.it, world.link, world.tokens
    assert "#" not in link, "it lets nobody in by itself"
    for given in ("", "x", "dlog1_AAAA", forged(tokens["etl"])):
        stranger = Guest(link, given)
        status, said = stranger.give()
        assert (status, said["asks"], stranger.cookie) == (401, "token", "")
    assert Guest(link, "").json("/events", 401, page="logs")["asks"] == "token"

    mine = Guest(link, tokens["etl"])
    assert mine.give()[0] == 200
    assert [one["name"] for one in mine.state(page="logs")["logs"]] == ["orders/eu"]
    assert mine.state(page="lag")["checked"] == 1
    found = mine.json("/records", **FIRST)
    assert [one["bytes"] for one in found["records"]] == [3, 3]
    assert "NotAllowed" in mine.state(page="cluster")["error"]

    hers = Guest(link, tokens["ann"])
    assert hers.give()[0] == 200
    assert hers.state(page="logs")["logs"] == []
    assert hers.state(page="lag")["checked"] == 0
    denied = hers.json("/records", 403, **FIRST)
    assert "NotAllowed" in denied["error"], denied
    theirs = Guest(link, tokens["ops"])
    assert theirs.give()[0] == 200
    assert [one["label"] for one in theirs.state(page="cluster")["bookies"]] == ["bookie1"]

    it.dlog("user", "revoke", "etl")
    states = mine.events("/events", page="logs")  # the first may be one that was there before
    assert any("error" in one for one in itertools.islice(states, 20))
    assert mine.json("/records", 401, **FIRST)["asks"] == "token"
    assert theirs.state(page="cluster")["known"]
    assert not any(
        one.encode() in (it.place / "console.stderr").read_bytes() for one in tokens.values()
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--users"], "ca.pem"),
        (["--listen", "0.0.0.0:0", "--allow-host", "h"], "--insecure"),
        (
            [
                *("--listen", "0.0.0.0:0", "--allow-host", "h", "--insecure"),
                *("--credentials", "file:USER"),
            ],
            "--users",
        ),
    ],
)
def test_what_a_console_wants_to_know_before_it_starts(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    given = [one.replace("USER", str(directory_of("user/etl"))) for one in arguments]
    done = preloaded.run(
        dlog("console", "--uri", "distributedlog://127.0.0.1:1/ns", *given),
        timeout=60,
        env={**environment(), "HOME": str(tmp_path)},
    )
    said = done.stderr.decode()

    assert done.returncode == 2, said
    assert words in said
    assert len(said.strip().splitlines()) == 1, said
