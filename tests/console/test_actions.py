"""Changes from the console: their effects, the checks before them, and attacks on them."""

import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.coordination.repair_settings import read_repair_settings
from distributedlog.console.access_guard import (
    CHANGE_TOKEN_HEADER,
    CHANGE_TOKENS_MAX,
    SESSIONS_MAX,
    AccessGuard,
)
from distributedlog.console.actions import COUNT_S, FIELD_CHARS_MAX, ConsoleActions
from distributedlog.console.cluster_state import ClusterState
from distributedlog.console.http import ConsolePage, Request
from distributedlog.console.server import Console
from distributedlog.console.work_state_poller import WorkStatePoller
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import position_key
from distributedlog.log.namespace import Namespace
from distributedlog.log.segments.log_deletion import delete_log
from distributedlog.metadata.model.interface import RangePage
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import (
    InvalidRequest,
    LogNotFound,
    OutcomeUnknown,
    QuorumUnreachable,
)
from distributedlog.runtime.protocol.frames import pack
from tests.log.conftest import World
from tests.log.records import everything, put
from tests.metadata.local_metadata import LocalMetadata

TOKEN = "a-token-that-nobody-guesses"
HOST = "127.0.0.1:8490"
ORIGIN = f"http://{HOST}"
MARKUP = "<img src=x onerror=alert(1)>"
MARKUP_NAME = "odd/\"onmouseover=alert(1)/&lt;b&gt;'`$(reboot)"
"""As much of it as the name of a log may have."""
BOOKIES = ("b1", "b2", "b3", "b4")


class Page:
    """A page of one browser, with its session and the token of its next change."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.cookie = ""
        self.token = ""

    async def request(
        self, method: str, path: str, query: dict[str, str], body: bytes = b"", **headers: str
    ) -> ConsolePage:
        sent = {"host": HOST, "cookie": self.cookie, "sec-fetch-site": "same-origin"}
        if method == "POST":
            sent |= {"origin": ORIGIN, "content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.console.handle(Request(method, path, query, sent, body, "10.0.0.7:99"))
        assert isinstance(answer, ConsolePage)
        return answer

    async def let_in(self) -> None:
        body = json.dumps({"token": TOKEN}).encode()
        answer = await self.request("POST", "/session", {}, body)
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    async def load(self) -> dict[str, Any]:
        answer = json.loads((await self.request("GET", "/actions", {})).body)
        self.token = answer.get("token", "")
        labels: dict[str, Any] = answer["actions"]
        return labels

    async def effect(self, action: str, **fields: str) -> Any:
        answer = await self.request("GET", "/effect", {"action": action, **fields})
        return json.loads(answer.body)

    async def post(
        self, action: str, fields: object, *, token: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        sent = {CHANGE_TOKEN_HEADER: self.token if token is None else token, **headers}
        body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        answer = await self.request("POST", "/actions", {"action": action}, body, **sent)
        value = json.loads(answer.body)
        self.token = value.get("token", self.token)
        return answer.status, value

    async def confirm(self, action: str, **fields: str) -> tuple[int, Any]:
        """Request the effect and confirm it, as the page does."""
        effect = await self.effect(action, **{k: v for k, v in fields.items() if k != "payload"})
        return await self.post(action, {**fields, **effect["bound"]})


class Shown:
    """A world with a console that permits changes."""

    def __init__(
        self,
        world: World,
        namespace: Namespace,
        *,
        is_read_only: bool = False,
        opened: Callable[[], Namespace] | None = None,
    ) -> None:
        self.world = world
        self.namespace = namespace
        self._drawn = count()
        metadata: Any = world.metadata
        actions = ConsoleActions(
            opened or (lambda: namespace),
            metadata,
            wall_ms=namespace.wall_ms,
            user="ann",
            random_text=self.random_text,
        )
        nodes: Any = None
        self.console = Console(
            ClusterState(nodes, metadata, "here", lambda: 0),
            WorkStatePoller(metadata, lambda: 0),
            lambda: namespace,
            AccessGuard(TOKEN, 8490, (), self.random_text),
            actions=None if is_read_only else actions,
        )

    def random_text(self) -> str:
        return f"drawn-{next(self._drawn)}"

    async def page(self) -> Page:
        page = Page(self.console)
        await page.let_in()
        await page.load()
        return page


@asynccontextmanager
async def shown(**options: Any) -> AsyncIterator[Shown]:
    """A world with a log of ten records. ``options`` are those of `Shown`."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        async with world.process("app-1") as namespace:
            await put(namespace.open_log("orders"), *range(10))
            yield Shown(world, namespace, **options)
        nursery.cancel_scope.cancel()


# --- a read-only console --------------------------------------------------------------------------


async def test_a_read_only_console_has_no_route_for_changes(autojump_clock: MockClock) -> None:
    async with shown(is_read_only=True) as it:
        page = await it.page()

        assert await page.load() == {}
        assert page.token == ""
        assert (await page.request("GET", "/effect", {"action": "delete"})).status == 404
        for path in ("/actions", "/effect", "/events", "/"):
            answer = await page.request("POST", path, {"action": "delete"}, b'{"log": "orders"}')
            assert answer.status == 405
        assert await it.namespace.log_exists("orders")


# --- attacks --------------------------------------------------------------------------------------


async def test_a_change_requires_the_token_of_a_page_of_this_session(
    autojump_clock: MockClock,
) -> None:
    async with shown() as it:
        page, other = await it.page(), await it.page()
        for token in ("", "guessed", other.token, TOKEN, page.cookie.partition("=")[2]):
            status, answer = await page.post("create", {"log": "new"}, token=token)
            assert (status, "token" in answer) == (403, False), token
        headerless = await page.request("POST", "/actions", {"action": "create"}, b'{"log": "new"}')
        assert headerless.status == 403
        assert not await it.namespace.log_exists("new")

        assert (await page.post("create", {"log": "new"}))[0] == 200
        assert await it.namespace.log_exists("new")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"origin": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
async def test_a_change_from_a_page_of_another_origin_is_refused(
    autojump_clock: MockClock, headers: dict[str, str]
) -> None:
    async with shown() as it:
        page = await it.page()
        token = page.token

        assert (await page.post("create", {"log": "new"}, **headers))[0] == 403
        assert not await it.namespace.log_exists("new")
        assert (await page.post("create", {"log": "new"}, token=token))[0] == 200, "not used up"


async def test_a_change_to_another_host_name_is_refused(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page = await it.page()
        status, _ = await page.post("create", {"log": "new"}, host="rebound.example:8490")

        assert status == 421
        assert not await it.namespace.log_exists("new")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_a_form_cannot_make_a_change(autojump_clock: MockClock, content_type: str) -> None:
    async with shown() as it:
        page = await it.page()
        status, _ = await page.post("create", {"log": "new"}, content_type=content_type)

        assert status == 415
        assert not await it.namespace.log_exists("new")


async def test_an_ended_session_makes_no_change(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page = await it.page()
        for _ in range(SESSIONS_MAX):  # the oldest session ends
            await Page(it.console).let_in()

        assert (await page.post("create", {"log": "new"}))[0] == 401
        assert (await page.request("GET", "/actions", {})).status == 401
        assert not await it.namespace.log_exists("new")


async def test_a_change_that_is_submitted_twice_is_made_once(autojump_clock: MockClock) -> None:
    payload = b64encode(b"paid").decode()
    async with shown() as it:
        page = await it.page()
        effect = await page.effect("append", log="orders")
        fields, token = {"log": "orders", "payload": payload, **effect["bound"]}, page.token
        statuses = []

        async def submit() -> None:
            statuses.append((await page.post("append", fields, token=token))[0])

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(submit)
        assert sorted(statuses) == [200, 409, 409]
        records = await everything(it.namespace.open_log("orders"))
        assert [record.payload for record in records].count(b"paid") == 1


async def test_tokens_of_changes_are_bounded(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page = await it.page()
        oldest = page.token
        for _ in range(CHANGE_TOKENS_MAX):
            await page.load()

        assert (await page.post("create", {"log": "new"}, token=oldest))[0] == 403
        assert (await page.post("create", {"log": "new"}))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"1", b'"x"', b"{", b"\xff", b"[" * 60_000, b'{"log":' * 8_000, b"9" * 5_000,
        {}, {"log": 1}, {"log": None}, {"log": ["new"]}, {"log": {"a": "new"}}, {"log": ""},
        {"log": "new", "owner": "x"}, {"log": "new", "incarnation": "1"}, {"log": "\ud800"},
        {"log": "x" * (FIELD_CHARS_MAX + 1)}, {"log": "new", "txids": "fast"},
        {"log": "new", "durability": "none"}, {"log": "new", "force": True},
    ],
)  # fmt: skip
async def test_an_invalid_body_makes_no_change(autojump_clock: MockClock, body: object) -> None:
    async with shown() as it:
        page = await it.page()
        status, answer = await page.post("create", body)

        assert (status, bool(answer["error"])) == (400, True)
        assert [name async for name in it.namespace.logs()] == ["orders"]
        assert (await page.post("create", {"log": "new"}))[0] == 200, "the answer has a token"


@pytest.mark.parametrize("action", ["", "drop", "__init__", "create\n", MARKUP])
async def test_an_unknown_action_is_refused(autojump_clock: MockClock, action: str) -> None:
    async with shown() as it:
        page = await it.page()

        assert (await page.post(action, {"log": "new"}))[0] == 400
        assert "error" in await page.effect(action, log="new")


async def test_names_with_markup_stay_text_in_json(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page = await it.page()

        status, answer = await page.post("create", {"log": MARKUP})
        assert (status, "InvalidLogName" in answer["error"]) == (400, True)
        assert (await page.confirm("create", log=MARKUP_NAME))[0] == 200
        effect = await page.effect("delete", log=MARKUP_NAME)
        assert MARKUP_NAME in effect["sentences"][0]
        answer_page = await page.request("GET", "/effect", {"action": "delete", "log": MARKUP_NAME})
        assert answer_page.content_type == "application/json"
        assert (await page.confirm("delete", log=MARKUP_NAME))[0] == 200
        assert not await it.namespace.log_exists(MARKUP_NAME)


# --- logs -----------------------------------------------------------------------------------------


async def test_a_log_is_created_with_its_policy(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page = await it.page()
        effect = await page.effect("create", log="new", txids="count")
        status, answer = await page.confirm("create", log="new", txids="count", durability="all")

        assert effect["sentences"][0] == "create log new"
        assert (status, answer["done"]) == (200, "created new")
        description = await it.namespace.open_log("new").describe()
        assert (description.txid_policy, description.state.quorums) == ("count", (3, 3, 3))
        assert "LogExists" in (await page.effect("create", log="new"))["error"]
        assert (await page.post("create", {"log": "new"}))[0] == 409


async def test_a_record_is_appended_at_the_end(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page = await it.page()
        payload = b64encode(b"\x00\xff").decode()
        status, answer = await page.confirm("append", log="orders", payload=payload, txid="77")

        last = await it.namespace.open_log("orders").last_record()
        assert (status, answer["done"]) == (200, f"appended {last.dlsn}")
        assert (last.txid, last.payload) == (77, b"\x00\xff")
        wrong_fields: tuple[dict[str, Any], ...] = (
            {"payload": "?"}, {"payload": 0}, {"payload": None}, {"txid": "-1"}, {"txid": "²"}, {"txid": 7},
            {"key": 0}, {"key": []}, {"incarnation": False},
        )  # fmt: skip
        effect = await page.effect("append", log="orders")
        fields: dict[str, Any] = {"log": "orders", **effect["bound"]}
        assert (await page.post("append", fields))[0] == 400, "without a payload"
        for wrong in wrong_fields:
            assert (await page.post("append", {**fields, "payload": payload, **wrong}))[0] == 400
        assert len(await everything(it.namespace.open_log("orders"))) == 11


async def test_an_append_does_not_fence_a_writer(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page = await it.page()
        async with it.namespace.open_log("orders").open_writer() as writer:
            effect = await page.effect("append", log="orders")
            status, answer = await page.confirm("append", log="orders", payload="")
            await writer.write(b"still the writer")

        assert any("app-1" in sentence for sentence in effect["sentences"])
        assert (status, "OwnershipAcquireFailed" in answer["error"]) == (409, True)


async def test_a_record_that_the_log_rejects_opens_no_segment(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page = await it.page()
        await it.namespace.create_log("strict", txids="strict")
        await put(it.namespace.open_log("strict"), 50)
        status, answer = await page.confirm("append", log="strict", payload="", txid="7")

        assert (status, "TransactionIdOutOfOrder" in answer["error"]) == (409, True)
        assert len(await it.namespace.open_log("strict").segments()) == 1


@pytest.mark.parametrize("target", [{"to": "1.4.0"}, {"txid": "4"}, {"position": "billing"}])
async def test_a_truncation_names_the_records_and_positions_that_it_passes(
    autojump_clock: MockClock, target: dict[str, str]
) -> None:
    async with shown() as it:
        page, handle = await it.page(), it.namespace.open_log("orders")
        await handle.positions.advance("audit", DLSN(1, 1, 0))
        await handle.positions.advance("billing", DLSN(1, 4, 0))
        effect = await page.effect("truncate", log="orders", **target)
        text = " | ".join(effect["sentences"])

        assert effect["bound"]["to"] == "1.4.0"
        assert "4 records are deleted before 1.4.0" in text
        assert "audit" in text
        assert "no way back" in text
        bound = {"log": "orders", **effect["bound"]}
        assert (await page.post("truncate", bound))[1]["done"] == "truncated to 1.4.0"
        assert await handle.count() == 6


async def test_a_damaged_position_does_not_prevent_a_truncation(autojump_clock: MockClock) -> None:
    """It may lose records, too: the effect names it."""
    async with shown() as it:
        page, handle = await it.page(), it.namespace.open_log("orders")
        await handle.positions.advance("audit", DLSN(1, 1, 0))
        await handle.positions.advance("later", DLSN(1, 8, 0))
        key = position_key(await it.namespace.resolve_name("orders"), "broken")
        await it.world.metadata.transact(Transaction((), (Put(key, b"\xc1"),)))
        effect = await page.effect("truncate", log="orders", to="1.4.0")

        assert effect["sentences"][2].endswith(": audit, broken (unreadable)")
        assert (await page.post("truncate", {"log": "orders", **effect["bound"]}))[0] == 200


async def test_a_truncation_is_bound_to_the_position_that_was_confirmed(
    autojump_clock: MockClock,
) -> None:
    async with shown() as it:
        page, handle = await it.page(), it.namespace.open_log("orders")
        await handle.positions.advance("billing", DLSN(1, 4, 0))
        effect = await page.effect("truncate", log="orders", position="billing")
        await handle.positions.advance("billing", DLSN(1, 9, 0))
        status, _ = await page.post("truncate", {"log": "orders", **effect["bound"]})

        assert (status, await handle.count()) == (200, 6)
        assert (await page.post("truncate", {"log": "orders", "position": "billing"}))[0] == 400


@pytest.mark.parametrize("action", ["append", "truncate", "delete"])
async def test_a_change_is_bound_to_the_log_that_was_confirmed(
    autojump_clock: MockClock, action: str
) -> None:
    async with shown() as it:
        page = await it.page()
        extra = {"to": "1.4.0"} if action == "truncate" else {}
        effect = await page.effect(action, log="orders", **extra)
        await it.namespace.delete_log("orders")
        await put(it.namespace.open_log("orders"), 1, 2, 3)
        extra |= {"payload": ""} if action == "append" else {}
        status, answer = await page.post(action, {"log": "orders", **extra, **effect["bound"]})

        assert (status, "LogRecreated" in answer["error"]) == (410, True)
        assert await it.namespace.open_log("orders").count() == 3
        unbound = {"log": "orders", **extra}
        assert (await page.post(action, unbound))[0] == 400


@pytest.mark.parametrize(("action", "fields"), [("delete", {}), ("truncate", {"to": "1.4.0"})])
async def test_an_effect_has_an_unknown_number_of_records_while_no_bookie_answers(
    autojump_clock: MockClock, action: str, fields: dict[str, str]
) -> None:
    async with shown() as it:
        page = await it.page()
        async with it.namespace.open_log("orders").open_writer() as writer:
            await writer.write(b"in the open segment")
            it.world.ledgers.read_s = 60.0
            effect = await page.effect(action, log="orders", **fields)
            it.world.ledgers.read_s = 0.0

        assert "an unknown number of records is deleted" in effect["sentences"][1]
        assert "incarnation" in effect["bound"]


async def test_a_deletion_never_deletes_a_later_log_of_the_name(autojump_clock: MockClock) -> None:
    async with shown() as it:
        namespace = it.namespace
        confirmed = await namespace.resolve_name("orders")
        await namespace.delete_log("orders")
        await put(namespace.open_log("orders"), 1, 2, 3)

        with pytest.raises(LogNotFound):
            await delete_log(namespace.context, confirmed, "orders", namespace.path)
        assert await namespace.open_log("orders").count() == 3


async def test_a_deletion_requires_the_name_and_refuses_a_log_with_a_writer(
    autojump_clock: MockClock,
) -> None:
    async with shown() as it:
        page = await it.page()
        effect = await page.effect("delete", log="orders")
        assert (effect["typed"], effect["sentences"][1]) == ("orders", "10 records are deleted")
        async with it.namespace.open_log("orders").open_writer():
            assert (await page.confirm("delete", log="orders"))[0] == 409
        status, answer = await page.confirm("delete", log="orders")

        assert (status, answer["done"]) == (200, "deleted orders")
        assert (await page.post("delete", {"log": "orders", **effect["bound"]}))[0] == 410
        assert "LogNotFound" in (await page.effect("delete", log="orders"))["error"]


# --- bookies --------------------------------------------------------------------------------------


async def _register_bookies(it: Shown) -> None:
    """Register four bookies."""
    for bookie in BOOKIES:
        cookie = pack({"label": f"label-{bookie}", "incarnation": 1})
        registration = BookieRegistration(bookie, {"": ("h", 1)})
        puts = (
            Put(keys.cookie_key(bookie), cookie),
            Put(keys.bookie_key(bookie), registration.encode()),
        )
        await it.world.metadata.transact(Transaction((), puts))


async def test_a_decommission_that_stops_writes_requires_a_second_confirmation(
    autojump_clock: MockClock,
) -> None:
    async with shown() as it:
        page = await it.page()
        await _register_bookies(it)
        for bookie in ("b1", "b2"):  # an ack quorum of two is left
            assert (await page.confirm("decommission", bookie=bookie))[0] == 200
        status, answer = await page.confirm("decommission", bookie="b3")
        assert (status, "confirm" in answer) == (409, True), answer
        assert await it.world.metadata.get(keys.leaving_key("b3")) is None

        fields = {"bookie": "b3", "force": True}
        assert (await page.post("decommission", fields))[1]["done"].endswith("is draining")
        assert await it.world.metadata.get(keys.leaving_key("b3")) is not None
        assert (await page.confirm("cancel-decommission", bookie="b3"))[0] == 200
        assert await it.world.metadata.get(keys.leaving_key("b3")) is None
        assert (await page.post("decommission", {"bookie": "b4", "force": "yes"}))[0] == 400
        assert "UnknownBookie" in (await page.effect("decommission", bookie=MARKUP))["error"]


class SlowPages(LocalMetadata):
    """Each page of the ledgers of a bookie takes ``page_s`` seconds."""

    page_s = 0.0

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        if start.startswith(keys.ON_PREFIX):
            await trio.sleep(self.page_s)
        return await super().range(start, end, limit=limit)


@pytest.mark.parametrize(
    ("ledgers", "page_s", "words"),
    [
        (0, 0.0, "0 ledgers are copied"),
        (1, 0.0, "1 ledger is copied"),
        (1500, 0.0, "1,500 ledgers are copied"),
        (2500, 0.4 * COUNT_S, "at least 2,000 ledgers are copied"),
        (2500, 60.0, "an unknown number of ledgers is copied"),
    ],
)
async def test_the_effect_of_a_decommission_has_no_wrong_number_of_ledgers(
    autojump_clock: MockClock, ledgers: int, page_s: float, words: str
) -> None:
    """A count that took longer than an effect may take left no effect, and so no decommission."""
    metadata = SlowPages()
    metadata.page_s = page_s
    cookie = pack({"label": "one", "incarnation": 1})
    await metadata.transact(Transaction((), (Put(keys.cookie_key("b1"), cookie),)))
    for first in range(0, ledgers, 100):
        puts = [
            Put(keys.bookie_ledger_key("b1", number), b"")
            for number in range(first, min(first + 100, ledgers))
        ]
        await metadata.transact(Transaction((), tuple(puts)))
    slow: Any = metadata
    actions = ConsoleActions(lambda: None, slow, wall_ms=lambda: 0, user="", random_text=lambda: "")
    effect = await actions.effect("decommission", {"bookie": "b1"})

    assert words in effect["sentences"][1]
    assert (effect["bound"], effect["typed"]) == ({"bookie": "b1"}, "one")


async def test_repair_is_paused_for_a_time_and_resumed(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page, metadata = await it.page(), it.world.metadata
        assert "error" in await page.effect("resume-repair")
        effect = await page.effect("pause-repair", duration="2h")
        status, answer = await page.confirm("pause-repair", duration="2h")
        settings = await read_repair_settings(metadata)

        assert status == 200
        assert settings.is_paused(it.namespace.wall_ms() + 7_000_000)
        assert settings.pause_end in effect["sentences"][0]
        assert settings.pause_end in answer["done"]
        for duration in ("", "soon", "-1", "0", "31d", "true", "inf", "nan", "3600", "9MiB"):
            assert "error" in await page.effect("pause-repair", duration=duration), duration
        now_ms = it.namespace.wall_ms()
        for until_ms in ("", "soon", "-1", "0", str(now_ms), str(now_ms + 31 * 86_400_000)):
            fields = {"duration": "2h", "until_ms": until_ms}
            assert (await page.post("pause-repair", fields))[0] == 400, until_ms
        assert (await page.confirm("resume-repair"))[0] == 200
        assert not (await read_repair_settings(metadata)).is_paused(it.namespace.wall_ms())


async def test_a_pause_ends_when_it_was_confirmed_to_end(autojump_clock: MockClock) -> None:
    async with shown() as it:
        page = await it.page()
        effect = await page.effect("pause-repair", duration="2h")
        await trio.sleep(3000)
        await page.post("pause-repair", {"duration": "2h", **effect["bound"]})
        settings = await read_repair_settings(it.world.metadata)

        assert settings.pause_end in effect["sentences"][0]


# --- the log of changes ---------------------------------------------------------------------------


async def test_each_change_is_logged_with_its_user_also_if_it_fails(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with shown() as it:
        page = await it.page()
        await page.confirm("create", log="new")
        await page.post("create", {"log": "new"})
        await page.effect("delete", log="new")
        await page.post("create", {"log": "other"}, token="guessed")

    changes = [vars(one) for one in caplog.records if vars(one).get("event") == "console.change"]
    assert [(one["action"], one["subject"], one["user"]) for one in changes] == [
        ("create", "new", "ann")
    ] * 2
    assert changes[0]["outcome"] == "created new"
    assert changes[1]["outcome"].startswith("LogExists")
    assert len({one["change"] for one in changes}) == 2, "no line is suppressed as a repetition"
    assert {one["client"] for one in changes} == {"10.0.0.7:99"}


async def test_an_answer_states_whether_the_change_may_have_happened(
    autojump_clock: MockClock,
) -> None:
    def unanswered() -> Namespace:
        raise OutcomeUnknown("no answer")

    async with shown(opened=unanswered) as it:
        page = await it.page()
        status, answer = await page.post("create", {"log": "new"})
        _, refused = await page.post("create", {})

        assert (status, answer["definite"]) == (504, False)
        assert refused["definite"] is True


async def test_actions_without_a_quorum_report_it(autojump_clock: MockClock) -> None:
    async with shown() as it:
        metadata: Any = it.world.metadata
        actions = ConsoleActions(
            lambda: None, metadata, wall_ms=lambda: 0, user="", random_text=it.random_text
        )

        with pytest.raises(InvalidRequest):
            await actions.run("create", {}, "")
        with pytest.raises(QuorumUnreachable):
            await actions.run("create", {"log": "new"}, "")
