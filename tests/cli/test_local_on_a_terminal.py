"""`dlog local` on a terminal: text for people, and a context that is taken back with the data."""

import json
import os
import pty
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from distributedlog.cli.framework import named_clusters
from distributedlog.cli.framework.named_clusters import LOCAL
from distributedlog.cli.server.local import ContextNaming, LocalContext, is_served, ready_text
from distributedlog.runtime.interfaces.errors import AddressInUse
from distributedlog.runtime.net.port_reservation import ReservedPorts

LINE: dict[str, Any] = {
    "uri": "distributedlog://127.0.0.1:41001,127.0.0.1:41002,127.0.0.1:41003/ns",
    "nodes": [
        {"name": "metadata1", "kind": "metadata", "address": "127.0.0.1:41001", "pid": 7},
        {"name": "bookie1", "kind": "bookie", "address": "127.0.0.1:41004", "pid": 7},
    ],
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_no_line_is_wider_than_a_terminal() -> None:
    for named in (
        ContextNaming(),
        ContextNaming(is_chosen=False),
        ContextNaming(is_name_taken=True),
        ContextNaming(problem="/n: Read-only"),
    ):
        lines = ready_text(LINE, named).splitlines()
        assert [line for line in lines if len(line) > 80] == []
        assert (
            len({line.index("127.") for line in lines if "127." in line and "//" not in line}) == 1
        )


def test_an_address_can_be_pasted_into_a_shell() -> None:
    """A shell ends a command at a semicolon, so places are separated by commas, which it leaves alone."""
    proxied = "distributedlog+proxy://127.0.0.1:41005,127.0.0.1:41006/ns"
    lines = ready_text({**LINE, "proxied_uri": proxied}, ContextNaming()).splitlines()

    for uri in (LINE["uri"], proxied):
        (shown,) = (line for line in lines if uri in line)
        assert shlex.split(shown, posix=True) == [uri]
        assert shown.strip() == uri
        assert len(shown) <= 80


def test_nodes_that_can_be_killed_are_shown_with_their_pids() -> None:
    """``--processes`` is for that, and `ps` calls all of them alike."""
    apart = {**LINE, "nodes": [{**one, "pid": 70 + at} for at, one in enumerate(LINE["nodes"])]}

    assert "pid" not in ready_text(LINE, ContextNaming())
    assert "127.0.0.1:41004  pid 71\n" in ready_text(apart, ContextNaming())


def test_a_cluster_that_is_gone_is_no_context_any_more() -> None:
    context = LocalContext(is_kept=False)
    assert context.choose("distributedlog://a:1/ns") == ContextNaming()
    assert named_clusters.current_context()[0] == "distributedlog://a:1/ns"
    context.restore()
    assert named_clusters.load_contexts()["contexts"] == {}
    assert named_clusters.current_context()[0] is None


def test_what_is_chosen_stays_chosen_and_what_is_anothers_stays() -> None:
    named_clusters.store_contexts(
        {"current": "p", "previous": "", "contexts": {"p": "distributedlog://p:1/ns"}}
    )
    context = LocalContext(is_kept=False)
    assert not context.choose("distributedlog://a:1/ns").is_chosen
    assert named_clusters.current_context()[0] == "distributedlog://p:1/ns"
    LocalContext(is_kept=True).choose("distributedlog://b:1/ns")
    context.restore()
    assert named_clusters.load_contexts()["contexts"][LOCAL] == "distributedlog://b:1/ns"


def test_a_cluster_that_had_the_name_before_has_it_again_while_it_serves(tmp_path: Path) -> None:
    """`dlog local --memory` next to a cluster with data took the name of the other one for good."""
    first = LocalContext(is_kept=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = f"distributedlog://127.0.0.1:{server.getsockname()[1]}/ns"
        assert first.choose(theirs) == ContextNaming()
        second = LocalContext(is_kept=False)
        assert second.choose("distributedlog://127.0.0.1:2/ns") == ContextNaming(is_name_taken=True)
        second.restore()
        assert named_clusters.current_context()[0] == theirs
        third = LocalContext(is_kept=False)
        third.choose("distributedlog://127.0.0.1:2/ns")
    third.restore()
    assert named_clusters.load_contexts()["contexts"] == {}


def test_a_cluster_that_has_just_ended_does_not_serve() -> None:
    """Its connections keep its ports for a minute (TIME_WAIT), so they cannot be bound without an option."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        uri = f"distributedlog://127.0.0.1:{port}/ns"
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            assert is_served(uri)
            accepted.close()  # the server's end closes first, so it waits
            assert client.recv(1) == b""
    with pytest.raises(AddressInUse), ReservedPorts() as ports:
        ports.reserve(("127.0.0.1", port))
    assert not is_served(uri)
    assert not is_served("")


def test_a_cluster_serves_where_its_name_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that is not there, or is read-only, ended `dlog local` when it had just begun to serve."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    context = LocalContext(is_kept=False)

    named = context.choose(LINE["uri"])

    assert f"{tmp_path}/file/dlog: Not a directory; set HOME" in named.problem
    said = ready_text(LINE, named)
    assert named.problem in said
    assert "set DLOG_URI" in said
    assert "dlog context" not in said
    context.restore()


@pytest.mark.processes
def test_json_alone_prints_json_and_makes_no_context(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "distributedlog.cli.main", "local", "--memory"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        said, deadline = b"", time.monotonic() + 60
        while b"--seconds 5" not in said and time.monotonic() < deadline:
            if select.select([ours], [], [], 1)[0]:
                said += os.read(ours, 65536)
        found = named_clusters.current_context()[0]
        process.send_signal(signal.SIGINT)
        process.wait(30)
    os.close(ours)
    assert found is not None
    assert found.encode() in said
    assert b"export DLOG_URI=$(dlog context show local)" in said
    assert named_clusters.current_context()[0] is None
    for flags, is_context in (([], True), (["--json"], False)):  # in the background, as under nohup
        ready_file = tmp_path / "ready"
        words = [*command, *flags, "--ready-file", str(ready_file)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            uri = json.loads(ready_file.read_text())["uri"]
            assert named_clusters.current_context()[0] == (uri if is_context else None)
            assert first.startswith(b"3 metadata nodes" if is_context else b'{"uri"')
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    assert named_clusters.load_contexts()["contexts"] == {}


@pytest.mark.processes
def test_a_node_on_a_terminal_prints_text(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    serve = [sys.executable, "-m", "distributedlog.cli.main", "serve", "metadata"]
    words = [*serve, "--metadata", "127.0.0.1:0", "--data", str(tmp_path / "m"), "--listen"]
    with subprocess.Popen([*words, "127.0.0.1:0"], stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said, deadline = b"", time.monotonic() + 60
        while b" until Ctrl-C" not in said and time.monotonic() < deadline:
            if select.select([ours], [], [], 1)[0]:
                said += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        process.wait(30)
    os.close(ours)
    assert b"serves at 127.0.0.1:" in said
    assert b"{" not in said
