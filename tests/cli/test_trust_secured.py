"""`dlog trust` and `dlog user token` where users prove who they are: on processes with certificates."""

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributedlog.cluster.local.child_processes import environment
from tests import preloaded
from tests.cluster.secured import Secured, secured
from tests.cluster.story import dlog
from tests.runtime.pki import authority, directory_of

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured"), bookies=1) as found:
        found.dlog("trust", "set-mode", "report", "--admin", "root")
        found.dlog("user", "add", "etl")
        found.dlog("grant", "add", "etl", "owner", "orders/")
        yield found


def by(
    it: Secured, credentials: Path, *arguments: str, code: int = 0, uri: str = "", stdin: str = ""
) -> "subprocess.CompletedProcess[bytes]":
    done = preloaded.run(
        dlog("--credentials", f"file:{credentials}", "--uri", uri or it.cluster.uri, *arguments),
        input=stdin.encode(),
        timeout=120,
        env=environment(),
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done


def shown(it: Secured) -> Any:
    return json.loads(it.dlog("trust", "show", "--json").stdout)


def act_without_rights(it: Secured, log: str) -> None:
    """Write and read a log through proxies as a user whom mode "required" would refuse."""
    ann = directory_of("user/ann")
    by(it, ann, "log", "write", log, "--create", uri=it.through, stdin="one\n")
    assert by(it, ann, "log", "read", log, uri=it.through).stdout == b"one\n"


def test_whom_proxies_would_refuse_is_shown_with_the_others(it: Secured) -> None:
    act_without_rights(it, "bills")

    said = shown(it)
    assert (said["mode"], said["not_heard"]) == ("report", [])
    by_proxies = {(one["by"], one["principal"]) for one in said["would_refuse"]}
    assert {("w1", "user/ann"), ("r1", "user/ann")} <= by_proxies
    assert all("bills" in one["refused"] for one in said["would_refuse"] if one["by"] == "r1")
    text = it.dlog("trust", "show").stdout.decode()
    assert text.startswith("mode: report\n")
    assert "user/ann" in text
    assert "w1" in text


def test_a_proxy_that_does_not_say_it_is_named(it: Secured) -> None:
    act_without_rights(it, "letters")
    it.cluster.pause("r1")
    try:
        said = shown(it)
        assert [one.partition(":")[0] for one in said["not_heard"]] == ["r1"]
        assert any(one["by"] == "metadata" or one["by"] == "w1" for one in said["would_refuse"])
    finally:
        it.cluster.resume("r1")


def test_a_token_is_made_into_a_file_and_does_what_it_was_narrowed_to(it: Secured) -> None:
    place = it.place / "made"
    place.mkdir()
    file = place / "orders.token"
    made = json.loads(
        it.dlog(
            *("user", "token", "etl", "--days", "3", "--path", "orders/", "--role", "writer"),
            *("--output", str(file), "--json"),
        ).stdout
    )
    assert (made["user"], made["file"]) == ("etl", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (place / "ca.pem").read_bytes() == (authority() / "ca.pem").read_bytes()
    assert file.read_bytes().strip() not in it.said, "H240"
    who = json.loads(by(it, file, "whoami", "--json").stdout)
    assert who["principal"] == "user/etl"
    by(it, file, "user", "token", "--days", "2", code=5)  # of one's own: a day, and not by this one
    by(it, file, "user", "token", "root", code=5)  # not an admin

    again = it.dlog("user", "token", "etl", "--output", str(file), "--force").stderr
    assert b"of user etl, valid until" in again


def test_what_a_token_cannot_be_is_said_in_one_line(it: Secured, tmp_path: Path) -> None:
    other = tmp_path / "notes"
    other.write_text("mine")
    bare = it.cluster.uri.rpartition("/")[0]
    for code, words, arguments in [
        (5, "Use --force", ["user", "token", "etl", "--output", str(other)]),
        (2, "--days", ["user", "token", "etl", "--days", "91", "--output", "x"]),
        (2, "--days", ["user", "token", "etl", "--days", "0", "--output", "x"]),
        (
            2,
            "no namespace",
            ["--uri", bare, "user", "token", "etl", "--path", "a", "--output", "x"],
        ),
        (2, "--role", ["user", "token", "etl", "--role", "operator", "--output", "x"]),
        (
            2,
            "there is no user nobody",
            ["user", "token", "nobody", "--output", str(tmp_path / "n")],
        ),
        (2, "metadata nodes", ["--uri", it.through, "trust", "rotate"]),
        (2, "metadata node addresses", ["--uri", it.through, "trust", "show"]),
    ]:
        said = it.dlog(*arguments, code=code).stderr.decode()
        assert len(said.strip().splitlines()) == 1, said
        assert words in said, said
    assert other.read_text() == "mine"
    assert not (tmp_path / "n").exists()


def test_a_token_on_the_terminal_is_the_only_thing_there(it: Secured) -> None:
    done = by(it, directory_of("user/root"), "user", "token", "etl", "--output", "-")
    assert done.stdout.startswith(b"dlog1_")
    assert len(done.stdout.split()) == 1
    assert done.stderr == b""


def test_secrets_are_drawn_anew_and_what_two_rotations_leave_behind_is_void(it: Secured) -> None:
    old = it.place / "old"
    old.mkdir()
    it.dlog("user", "token", "etl", "--output", str(old / "token"))
    etl = directory_of("user/etl")
    by(it, etl, "log", "write", "orders/a", "--create", uri=it.through, stdin="one\n")

    before = json.loads(it.dlog("trust", "rotate", "--json").stdout)
    assert before["behind"] == []
    text = it.dlog("trust", "rotate").stdout.decode()
    number = before["generation"] + 1
    assert (
        text == f"generation {number}; generation {number - 1} is valid until the next rotation\n"
    )
    assert by(it, old / "token", "log", "read", "orders/a").stdout == b"one\n", "of another secret"

    it.dlog("trust", "rotate", "--tokens")
    assert by(it, old / "token", "log", "read", "orders/a").stdout == b"one\n"
    it.dlog("trust", "rotate", "--tokens")
    said = by(it, old / "token", "log", "read", "orders/a", code=5).stderr
    assert b"NotAuthenticated" in said
    actions = [
        json.loads(line)["action"]
        for line in it.dlog("trust", "audit", "--json").stdout.splitlines()
    ]
    assert actions[-4:] == ["rotate"] * 4
