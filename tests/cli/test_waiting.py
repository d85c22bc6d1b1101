"""A command that gets no answer says what it waits for, once, and before anybody wonders."""

import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest
import trio
import trio.testing

from distributedlog.cli.connection.cluster_connection import (
    REFUSED_S,
    WAIT_NOTICE_S,
    await_answer,
    end_if_refused,
    namespace,
    notice_when_slow,
    quorum,
)
from distributedlog.cli.framework.errors import with_hint
from distributedlog.cli.framework.options import Settings
from distributedlog.runtime.interfaces.errors import QuorumUnreachable, RequestTimeout


def run_at(terminal: bool, main: Callable[[], Awaitable[object]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: terminal)
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def late() -> None:
    await await_answer(Settings(), "listing bookies", partial(trio.sleep, WAIT_NOTICE_S + 1))


def test_what_is_waited_for_is_told_before_the_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    """`dlog log list` at a quorum without a leader said nothing for half a minute."""

    async def main() -> None:
        with pytest.raises(RequestTimeout):
            await await_answer(Settings(), "listing bookies", trio.sleep_forever)

    run_at(True, main)

    shown = capsys.readouterr().err.split("\r")
    assert shown[1] == "no answer yet: listing bookies, 2 of 30 s\033[K"
    assert shown[2] == "no answer yet: listing bookies, 3 of 30 s\033[K"
    assert shown[-1] == "\033[K", "the line is removed"


def test_who_goes_by_a_context_is_told_which_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A context may name a cluster that has long been stopped: nobody typed its address."""

    async def main() -> None:
        await await_answer(
            Settings(context="here"), "the status", partial(trio.sleep, WAIT_NOTICE_S + 1)
        )

    run_at(True, main)
    said = with_hint(QuorumUnreachable("no node answered"), "here")

    assert 'no answer yet: the status, at the context "here", 2 of 30 s' in capsys.readouterr().err
    assert (
        said
        == 'no node answered; the URI is from the context "here". Check whether that cluster is running'
    )
    assert with_hint(QuorumUnreachable("no node answered")) == "no node answered"


def test_opening_is_waited_for_in_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the calls after it were: of `dlog log list` at no cluster nothing was heard for half a minute."""

    async def main() -> None:
        settings = Settings(uri="distributedlog://127.0.0.1:1/ns", timeout_s=WAIT_NOTICE_S + 1)
        settings.ranks["timeout_s"] = 1  # given
        with pytest.raises(QuorumUnreachable):
            async with namespace(settings):
                raise AssertionError("nobody is there")

    run_at(True, main)

    assert "no answer yet: opening the namespace, 2 of 3 s" in capsys.readouterr().err


def test_a_script_is_told_nothing_but_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    run_at(False, late)

    assert capsys.readouterr().err == ""


def test_nothing_is_told_of_what_is_answered_soon_or_to_who_wants_no_remarks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    soon = WAIT_NOTICE_S - 0.1

    async def main() -> None:
        await await_answer(Settings(), "listing bookies", partial(trio.sleep, soon))
        with notice_when_slow(Settings(), "the names") as answered:
            await trio.sleep(soon)
            answered()
            await trio.sleep(100)
        await await_answer(
            Settings(quiet=True), "listing bookies", partial(trio.sleep, WAIT_NOTICE_S + 1)
        )

    run_at(True, main)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("connect", [namespace, quorum])
@pytest.mark.parametrize("scheme", ["distributedlog", "distributedlog+proxy"])
def test_a_cluster_whose_ports_refuse_is_waited_for_as_long_as_a_restart_takes(
    connect: Callable[[Settings], AbstractAsyncContextManager[object]], scheme: str
) -> None:
    """It was half a minute, although each port refuses at once."""
    if (connect, scheme) == (quorum, "distributedlog+proxy"):
        pytest.skip("proxies are not asked about the quorum")

    async def main() -> None:
        settings = Settings(uri=f"{scheme}://127.0.0.1:1,127.0.0.1:2/ns")
        begun = trio.current_time()
        with pytest.raises(QuorumUnreachable, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2.*--timeout"):
            async with connect(settings):
                raise AssertionError("no program is there")
        assert REFUSED_S <= trio.current_time() - begun < REFUSED_S + 1

    run_at(False, main)


def test_a_program_that_listens_is_no_refusal() -> None:
    """A silent one neither: it may be behind a firewall, or busy."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            await end_if_refused(Settings(uri=f"distributedlog://127.0.0.1:1,127.0.0.1:{port}/ns"))

    run_at(False, main)


def test_a_given_timeout_is_how_long_a_cluster_is_waited_for() -> None:
    async def main() -> None:
        settings = Settings(uri="distributedlog://127.0.0.1:1/ns", ranks={"timeout_s": 2})
        begun = trio.current_time()
        await end_if_refused(settings)
        assert trio.current_time() == begun

    run_at(False, main)
