"""Other systems beside this one: what does not start is left out at once, with its own words."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from distributedlog.testing.bench.peers.peer import PeerMissing, run_server, until


def test_a_server_that_ends_is_not_waited_for_and_its_last_words_are_told(tmp_path: Path) -> None:
    """A nats-server of before 2.10 refuses `sync_interval: always`, and was waited for a minute a turn."""
    program = "raise SystemExit('conf:4: unknown field')"
    with ExitStack() as servers:
        server = run_server(servers, [sys.executable, "-c", program], tmp_path / "nats-0.log")

        with pytest.raises(PeerMissing, match="NATS: nats-0 ended: conf:4: unknown field"):
            until(lambda: False, "NATS", [server])


def test_a_server_that_runs_is_asked_until_it_is_ready(tmp_path: Path) -> None:
    program = "import time; time.sleep(600)"
    with ExitStack() as servers:
        server = run_server(servers, [sys.executable, "-c", program], tmp_path / "s.log")
        asked = iter([False, True])

        until(lambda: next(asked), "it", [server])

        assert server.exit_reason() == ""
