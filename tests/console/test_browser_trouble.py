"""The pages in Chromium of a cluster in trouble: one killed, one in limbo, a drain, 10,000 logs."""

import json
import re
import subprocess
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import trio

from distributedlog import DLSN, open_namespace
from distributedlog.blocking import open_namespace as open_blocking
from distributedlog.console.log_states import LOGS_SHOWN
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.protocol.frames import pack
from tests.cluster.many_logs import A_TRANSACTION, make
from tests.cluster.story import Cluster
from tests.console.chromium import faults, go, launched, let_in, texts

pytestmark = [pytest.mark.processes, pytest.mark.browser]

LOGS = 10_000
LOOK_MS = 120_000.0
HOSTILE = '<img src=x onerror="document.title=1">'
PAIR = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def troubled(
    chromium: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, str]]:
    """The cluster, and the link to its console. All of its troubles stay.

    bookie1 is killed. bookie2 has lost its journal, and of one log the other copies are on bookie1: that
    stays in limbo. bookie3 is to leave, and no bookie can take what it has of the other logs.
    """
    with Cluster.planned(tmp_path_factory.mktemp("troubled"), bookies=4) as cluster:
        nodes = [node.name for node in cluster.plan.nodes_of_kind("metadata")]
        cluster.start(*nodes, "bookie1", "bookie2")
        with open_blocking(cluster.uri) as namespace:
            namespace.create_log("audit", config=PAIR)
            with namespace.open_log("audit").open_writer() as writer:
                writer.write_bulk([b"on bookie1 and bookie2 alone"] * 100)
            cluster.start("bookie3", "bookie4")
            cluster.kill("bookie1")
            for name, segments in (("orders/eu", 6), ("orders/us", 2)):
                namespace.create_log(name)
                log = namespace.open_log(name)
                for segment in range(segments):
                    with log.open_writer() as writer:
                        for one in range(400 + 300 * (segment % 3)):
                            writer.submit(json.dumps({"order": one, "total": one * 1.25}).encode())
            positions = namespace.open_log("orders/eu").positions
            positions.advance("billing", DLSN(4, 0, 0))
            positions.advance("search", DLSN(6, 100, 0))
        trio.run(_many_logs, cluster.uri)
        cluster.kill("bookie2")
        for path in (cluster.directory / "bookie2").rglob("journal-*"):
            path.write_bytes(b"")
        cluster.start("bookie2")
        assert cluster.run("decommission", "bookie3").returncode in (0, 6)
        console = cluster.popen(
            "console", "--listen", "127.0.0.1:0", "--json", stdout=subprocess.PIPE
        )
        assert console.stdout is not None
        try:
            yield cluster, json.loads(console.stdout.readline())["console"]
        finally:
            console.terminate()
            console.wait()
            console.stdout.close()


async def _many_logs(uri: str) -> None:
    chance = Random(1)
    names = [f"tenant-{n % 100:02}/log-{n:05}" for n in range(LOGS)]
    async with open_namespace(uri) as namespace:
        for at in range(0, LOGS, A_TRANSACTION):
            await make(namespace, names[at : at + A_TRANSACTION], chance)


def test_what_is_wrong_is_named_first_with_what_to_type(
    chromium: Any, troubled: tuple[Cluster, str]
) -> None:
    with let_in(
        chromium, troubled[1], troubled=True, viewport={"width": 1200, "height": 900}
    ) as page:
        page.wait_for_selector("tr:has-text('bookie2'):has-text('◒ limbo')")
        assert page.locator("h1").inner_text() == "▲ NOT healthy: degraded"
        said = texts(page, ".verdict li")
        assert not re.search("[0-9a-f]{32}", re.sub(r"\$ dlog .*", "", said)), "bookies have names"
        for words in (
            "bookie1",
            "is offline",
            "may have lost entries",
            "bookie3",
            "is being decommissioned",
        ):
            assert words in said
        page.wait_for_selector("tr:has-text('bookie1'):has-text('✕ offline')")
        page.wait_for_selector("tr:has-text('bookie3'):has-text('◔ draining')")
        page.wait_for_selector("tr:has-text('bookie4'):has-text('● up')")
        page.wait_for_selector(".tile:has-text('10,003'):has-text('logs')")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.click("[data-copy^='dlog ledger list']")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("dlog ledger list --bookie ")
        assert troubled[0].run(*copied.split()[1:]).returncode == 0, "it is a command"


def test_work_says_what_waits_and_for_whom(chromium: Any, troubled: tuple[Cluster, str]) -> None:
    with let_in(chromium, troubled[1], troubled=True) as page:
        go(page, troubled[1], "work")
        page.wait_for_selector("h3:has-text('bookie3'):has-text('ledgers need it')")
        assert "no bookie can take its place" in texts(page, "main td")
        page.wait_for_selector("tr:has-text('bookie1') code:has-text('dlog ledger list --bookie')")
        page.wait_for_selector("tr:has-text('bookie2'):has-text('may have lost entries')")


def test_ten_thousand_logs_are_found_by_their_names(
    chromium: Any, troubled: tuple[Cluster, str]
) -> None:
    with let_in(chromium, troubled[1], troubled=True) as page:
        go(page, troubled[1], "logs")
        page.wait_for_selector(f"text={LOGS_SHOWN} shown")
        assert page.locator("tbody tr").count() == LOGS_SHOWN
        page.click("text=next page")
        page.wait_for_selector("text=after tenant-00/")
        page.wait_for_selector("text=only these are sorted, the pages are ordered by name")
        page.fill("#search", "tenant-99/log-09999")
        page.wait_for_selector("text=1 shown")
        page.wait_for_selector("tbody th:has-text('tenant-99/log-09999')")


def test_the_quorum(chromium: Any, troubled: tuple[Cluster, str]) -> None:
    with let_in(chromium, troubled[1], troubled=True) as page:
        go(page, troubled[1], "quorum")
        page.wait_for_selector(".tile.good:has-text('1'):has-text('can be stopped')")
        assert page.locator("tbody tr:has-text('★ leader')").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_of_it_shuts_anybody_out(
    chromium: Any, troubled: tuple[Cluster, str], scheme: str
) -> None:
    """axe finds nothing; and nothing is wider than a telephone."""
    link = troubled[1]
    with let_in(chromium, link, troubled=True, color_scheme=scheme) as page:
        for where in ("cluster", "logs", "work", "quorum", "log?name=orders/eu", "log?name=audit"):
            go(page, link, where)
            for summary in page.locator("summary").all():
                summary.click()
            assert faults(page) == [], where
            page.set_viewport_size({"width": 400, "height": 800})
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, where
            page.set_viewport_size({"width": 1200, "height": 900})


def test_a_bookie_whose_name_is_markup(chromium: Any, troubled: tuple[Cluster, str]) -> None:
    """H257: whoever reaches the metadata may have put it there. The last test, for it stays."""
    cluster, link = troubled
    trio.run(_hostile_bookie, cluster.uri)
    with let_in(chromium, link, troubled=True) as page:
        page.wait_for_selector("tbody th:has-text('onerror')")
        assert HOSTILE in texts(page, "tbody th")
        assert HOSTILE in texts(page, ".verdict li")
        go(page, link, "work")
        # A page is looked at again after four times as long as a look takes: long with 10,000 logs.
        page.wait_for_selector("h3:has-text('onerror')", timeout=LOOK_MS)
        assert HOSTILE in texts(page, "tbody th")

        assert page.locator("main img").count() == 0
        assert page.title() == "Work – dlog console"


async def _hostile_bookie(uri: str) -> None:
    """Down, and to leave: it is in every list."""
    ident = "0" * 32
    cookie = pack({"label": HOSTILE, "incarnation": 1})
    puts = (Put(keys.cookie_key(ident), cookie), Put(keys.leaving_key(ident), b""))
    async with open_namespace(uri) as namespace:
        await namespace.metadata.transact(Transaction((), puts))
