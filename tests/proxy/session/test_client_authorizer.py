"""What a proxy's clients may do there is what they may do; the proxy's own rights are nobody's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model.log_keys import incarnation_text, name_key
from distributedlog.metadata.model.acl_records import MODE_KEY, User, user_key
from distributedlog.metadata.model.interface import RangePage, Watch
from distributedlog.metadata.model.rights import (
    ALL_LOG_RIGHTS,
    CONSUME,
    MANAGE,
    PRODUCE,
    READ,
    ROLES,
    WRITE,
)
from distributedlog.metadata.model.transaction import Delete, Put
from distributedlog.proxy.protocol import proxy_messages as wire
from distributedlog.proxy.session import client_authorizer as client_rights
from distributedlog.proxy.session.client_authorizer import ClientAuthorizer
from distributedlog.proxy.session.log_calls import NEEDED_RIGHTS, visible_parts
from distributedlog.runtime.interfaces.errors import (
    Compacted,
    DistributedLogError,
    InvalidRequest,
    LogNotFound,
    NotAllowed,
    NotAuthenticated,
    OutcomeUnknown,
    QuorumUnreachable,
    TooBusy,
)
from distributedlog.runtime.interfaces.principals import HandshakeContext, Welcome
from distributedlog.runtime.net.tls import CERTIFICATE, Tls
from distributedlog.runtime.protocol.frames import Op
from tests.examples import examples
from tests.log.conftest import World
from tests.metadata import test_tokens
from tests.metadata.local_metadata import LocalMetadata
from tests.runtime.pki import directory_of

from ..judged_kit import NS, RawReader, judged
from ..raw_producer import RawProducer


@pytest.fixture
async def world(nursery: trio.Nursery, autojump_clock: MockClock) -> World:
    """In virtual time."""
    return World(nursery)


WHO = ("user/pro", "user/con", "user/wri", "user/rea", "user/own", "user/ops")
NOBODIES = ("user/stranger", "anonymous", "proxy/p2", "bookie/b1")


async def everybody(it: Any) -> None:
    """One user of each role, on all logs that begin with a/."""
    for name, role in (
        ("pro", "producer"),
        ("con", "consumer"),
        ("wri", "writer"),
        ("rea", "reader"),
        ("own", "owner"),
    ):
        await it.grant(name, role, "a/")
    await it.grant("ops", "operator", "", "")


async def made(it: Any, *names: str, path: str = NS) -> dict[str, str]:
    """Logs with a record each; their incarnations."""
    found = {}
    async with it.namespace(path) as namespace:
        for name in names:
            async with namespace.open_log(name).open_writer() as writer:
                await writer.write(b"0")
            found[name] = incarnation_text(await namespace.resolve_name(name))
    return found


async def test_who_may_write_and_read_what(world: World, autojump_clock: MockClock) -> None:
    told: set[tuple[str, bool]] = set()
    async with judged(world) as it:
        await everybody(it)
        await made(it, "a/x", "b/x")
        for log in ("a/x", "b/x", "a/none"):
            may_write, may_read = set(), set()
            for principal in (*WHO, *NOBODIES):
                try:
                    await (await it.producer(principal)).open(1, log)
                    may_write.add(principal)
                except LogNotFound:
                    assert log == "a/none", "it may know, and not make it"
                    assert principal in ("user/pro", "user/wri")
                except NotAllowed as error:
                    told.add((principal, principal in str(error)))
                try:
                    await (await it.reader(principal)).subscribe(log)
                    may_read.add(principal)
                except LogNotFound:
                    assert log == "a/none"
                    assert principal in ("user/con", "user/rea", "user/wri")
                except NotAllowed:
                    pass
            if log == "a/x":
                assert may_write == {"user/pro", "user/wri", "user/own"}
                assert may_read == {"user/con", "user/rea", "user/wri", "user/own"}
            elif log == "b/x":
                assert not (may_write | may_read)
            else:
                assert may_write == may_read == {"user/own"}
    assert told == {(principal, True) for principal in (*WHO, *NOBODIES)}, "each is told who he is"


async def test_a_producer_that_is_named_after_a_user_is_opened_by_that_one_alone(
    world: World, autojump_clock: MockClock
) -> None:
    """A gateway names producers so: nobody else fences them, or sends as them."""
    async with judged(world) as it:
        await everybody(it)
        await made(it, "a/x")
        for principal, name, may in (
            ("user/pro", "~pro/import", True),
            ("user/wri", "~pro/import", False),
            ("user/wri", "~pro/", False),
            ("user/wri", "~pro", True),
            ("user/wri", "a~pro/import", True),
            ("user/wri", "~wri/~pro/import", True),
        ):
            producer = await it.producer(principal)
            if may:
                await producer.open(1, "a/x", producer=name)
            else:
                with pytest.raises(NotAllowed, match="reserved for user pro"):
                    await producer.open(1, "a/x", producer=name)
        await it.mode("report")
        await (await it.producer("user/wri")).open(1, "a/x", producer="~pro/import")
        assert any("~pro/" in why for _, why in it.rights.reported_denials)


@pytest.mark.parametrize("mode", ["open", "report"])
async def test_nothing_is_refused_before_it_is_required(
    world: World, autojump_clock: MockClock, mode: str
) -> None:
    """In report it is counted; both become refusals when that is told, also of what is open."""
    async with judged(world, mode=mode) as it:
        await everybody(it)
        await made(it, "b/x")
        producer, reader = await it.producer("user/stranger"), await it.reader("anonymous")
        await producer.open(1, "b/x")
        await reader.subscribe("b/x")
        assert (await it.call("user/con", "exists", "b/x")) is True
        would = it.rights.reported_denials
        assert {who for who, _ in would} == (
            set() if mode == "open" else {"user/stranger", "anonymous", "user/con"}
        )
        producer.send(1, 0, b"taken")
        await producer.acked(1)
        for number in (2, 3):  # who opens what is not there makes it
            await producer.open(number, "b/made")
        makes = [times for (_, why), times in would.items() if 'change log "b/made"' in why]
        assert makes == ([] if mode == "open" else [1])

        await it.mode("required")
        refusal = await producer.refused(1)
        assert isinstance(refusal.error, NotAllowed)
        await trio.sleep(1)
        assert [type(one) for one in reader.ended.values()] == [NotAllowed]
        assert it.rights.info()["rights_ended"] == 4


async def test_a_mode_that_cannot_be_read_lets_nobody_in(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world, mode="open") as it:
        await made(it, "b/x")
        await it.put(Put(MODE_KEY, b"\xc1 rotten"))
        await trio.sleep(1)
        with pytest.raises(NotAllowed):
            await (await it.producer("user/etl")).open(1, "b/x")


# --- revocation -----------------------------------------------------------------------------------


async def test_nothing_is_stored_after_a_revocation_was_heard(
    world: World, autojump_clock: MockClock
) -> None:
    """H241 at a proxy: frames that were taken before are answered, those that come after are not stored."""
    async with judged(world) as it:
        await it.grant("etl", "producer", "x")
        await it.grant("ann", "producer", "x")
        await made(it, "x")
        etl, ann = await it.producer("user/etl"), await it.producer("user/ann")
        await etl.open(1, "x")
        await ann.open(1, "x")
        etl.send(1, 0, b"before")
        await etl.acked(1)

        await it.revoke("etl", "x")
        await it.rights.wait_changed()
        assert it.rights.revoked_count == 1
        for number in range(1, 5):
            etl.send(1, number, b"after")
        refusal = await etl.refused(1)
        assert isinstance(refusal.error, NotAllowed)
        assert (refusal.unknown_from, refusal.refused_from) == (1, 1)
        with pytest.raises(NotAllowed):
            await etl.open(2, "x")
        ann.send(1, 0, b"another's")
        await ann.acked(1)
        assert await it.stored("x") == [b"0", b"before", b"another's"]


async def test_a_frame_that_waits_for_others_is_not_stored_after_it_either(
    world: World, autojump_clock: MockClock
) -> None:
    """It was said to be certainly not stored; so it must not be, when those before it are."""
    async with judged(world) as it:
        await it.grant("etl", "producer", "x")
        await it.grant("ann", "producer", "x")
        await made(it, "x")
        etl, ann = await it.producer("user/etl"), await it.producer("user/ann")
        await etl.open(1, "x")
        await ann.open(1, "x")
        ann.send(1, 0, b"first")
        (ack,) = await ann.acked(1)
        world.ledgers.held = True
        ann.send(1, 1, b"second")
        await trio.sleep(0.1)
        etl.send(1, 0, b"waits", expect=DLSN(ack.segment, ack.entry + 1, 0))
        await trio.sleep(0.1)
        await it.revoke("etl", "x")
        refusal = await etl.refused(1)
        assert (refusal.unknown_from, refusal.refused_from) == (0, 0)
        world.ledgers.release()
        await ann.acked(2)
        assert (ann.acks[1].segment, ann.acks[1].entry) == (ack.segment, ack.entry + 1)
        await trio.sleep(1)
        assert await it.stored("x") == [b"0", b"first", b"second"]


async def test_a_subscription_ends_with_its_right_and_others_go_on(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world) as it:
        for name in ("ann", "bob"):
            await it.grant(name, "consumer", "x")
            await it.grant(name, "consumer", "y")
        await made(it, "x", "y")
        ann, bob = await it.reader("user/ann"), await it.reader("user/bob")
        for reader in (ann, bob):
            for log in ("x", "y"):
                await reader.subscribe(log)
        await trio.sleep(1)
        assert sum(ann.frames.values()) == sum(bob.frames.values()) == 2

        await it.revoke("ann", "x")
        await trio.sleep(1)
        assert [type(one) for one in ann.ended.values()] == [NotAllowed]
        async with it.namespace() as namespace:
            for log in ("x", "y"):
                async with namespace.open_log(log).open_writer() as writer:
                    await writer.write(b"1")
        await trio.sleep(5)
        assert not bob.ended
        assert (sum(ann.frames.values()), sum(bob.frames.values())) == (3, 4)


async def test_who_is_disabled_or_has_a_refused_certificate_is_out(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world) as it:
        await it.grant("etl", "producer", "x")
        producer, other = await it.producer("user/etl"), await it.producer("user/ann")
        await it.put(Put(user_key("etl"), User(disabled=True).encode()))
        await trio.sleep(1)
        assert isinstance(producer.link.closed, NotAuthenticated)
        assert other.link.closed is None
        with pytest.raises(NotAuthenticated):
            await it.link("user/etl", it.writes)
        assert not it.rights._principals.get("user/etl")


async def test_a_call_that_is_under_way_is_given_up(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world) as it:
        await it.grant("own", "owner", "")
        await made(it, "x")
        async with it.namespace() as namespace, trio.open_nursery() as nursery:
            writer = await namespace.open_log("x").open_writer()
            refused: list[DistributedLogError] = []

            async def delete() -> None:
                try:
                    await it.call("user/own", "delete", "x", 60.0)
                except DistributedLogError as error:
                    refused.append(error)

            nursery.start_soon(delete)
            await trio.sleep(5)
            await it.revoke("own", "")
            await trio.sleep(1)
            assert [type(one) for one in refused] == [OutcomeUnknown]
            await writer.aclose()
            await trio.sleep(60)
            assert await namespace.log_exists("x")


async def test_an_opening_that_is_under_way_is_given_up(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world) as it, trio.open_nursery() as nursery:
        await it.grant("etl", "producer", "x")
        await made(it, "x")
        producer, owner = await it.producer("user/etl"), it.owner
        assert owner is not None
        take: Any = owner.find_or_open

        async def slow(request: wire.ProduceOpen) -> Any:
            await trio.sleep(5)
            return await take(request)

        owner.find_or_open = slow  # type: ignore[method-assign]
        refused: list[DistributedLogError] = []

        async def opens() -> None:
            try:
                await producer.open(1, "x")
            except DistributedLogError as error:
                refused.append(error)

        nursery.start_soon(opens)
        await trio.sleep(1)
        await it.revoke("etl", "x")
        await trio.sleep(1)
        assert [type(one) for one in refused] == [NotAllowed]
        assert not owner.logs


# --- grants that come, metadata that go -----------------------------------------------------------


class Unruly:
    """Metadata whose watch is late, or that do not answer."""

    def __init__(self, metadata: LocalMetadata) -> None:
        self.inner: Any = metadata
        self.late_s = 0.0
        self.error: DistributedLogError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        if self.error is not None:
            raise self.error
        found: RangePage = await self.inner.range(start, end, limit=limit)
        return found

    @asynccontextmanager
    async def watch(self, start: bytes, end: bytes, *, after_revision: int) -> AsyncIterator[Watch]:
        async with self.inner.watch(start, end, after_revision=after_revision) as watch:

            class Late:
                async def next_batch(late) -> Any:
                    batch = await watch.next_batch()
                    await trio.sleep(self.late_s)
                    if self.error is not None:
                        raise self.error
                    return batch

            yield Late()


async def test_a_grant_counts_when_it_was_answered_though_the_watch_is_late(
    world: World, autojump_clock: MockClock
) -> None:
    unruly = Unruly(world.metadata)
    async with judged(world, rights=lambda _: ClientAuthorizer(unruly)) as it:
        await made(it, "x")
        producer = await it.producer("user/etl")
        with pytest.raises(NotAllowed):
            await producer.open(1, "x")
        unruly.late_s = 3.0
        await it.grant("etl", "producer", "x")
        await producer.open(2, "x")

        await it.revoke("etl", "x")
        with pytest.raises(NotAllowed):  # asked for this one: nobody was told by the watch yet
            await (await it.reader("user/etl")).subscribe("x")
        with pytest.raises(NotAllowed):
            await producer.open(3, "x")
        assert it.rights.revoked_count == 0
        await trio.sleep(10)
        assert it.rights.revoked_count == 1


async def test_without_a_quorum_nothing_is_opened_and_what_is_open_goes_on(
    world: World, autojump_clock: MockClock
) -> None:
    unruly = Unruly(world.metadata)
    async with judged(world, rights=lambda _: ClientAuthorizer(unruly)) as it:
        await it.grant("etl", "producer", "x")
        await made(it, "x")
        producer = await it.producer("user/etl")
        await producer.open(1, "x")
        unruly.error = QuorumUnreachable("away")
        await producer.open(2, "x")  # asked a moment ago
        await trio.sleep(client_rights.ANSWER_VALID_S)
        with pytest.raises(QuorumUnreachable):
            await producer.open(3, "x")
        producer.send(1, 0, b"goes on")
        await producer.acked(1)

        unruly.error = None
        await it.revoke("etl", "x")
        await producer.refused(1)


async def test_a_proxy_that_may_not_know_who_may_do_what_serves_nobody(
    world: World, autojump_clock: MockClock
) -> None:
    unruly = Unruly(world.metadata)
    async with judged(world, rights=lambda _: ClientAuthorizer(unruly), mode="open") as it:
        await made(it, "x")
        producer = await it.producer("user/etl")
        await producer.open(1, "x")
        unruly.error = NotAllowed("user/p1 may not list trust/")
        await it.mode("report")
        assert isinstance((await producer.refused(1)).error, NotAllowed)
        with pytest.raises(NotAllowed, match="may not list"):
            await producer.open(2, "x")
        assert it.rights.condition() is not None
        unruly.error = None
        await trio.sleep(2)
        assert it.rights.condition() is None
        await producer.open(3, "x")


# --- logs by other words --------------------------------------------------------------------------


async def test_whose_id_somebody_has_is_not_whose_name_he_says(
    world: World, autojump_clock: MockClock
) -> None:
    """A proxy is nobody's deputy: an id in the place of a name's opens no other log."""
    async with judged(world) as it:
        await it.grant("ann", "writer", "mine")
        await it.grant("ann", "writer", "mine", "elsewhere")
        ids = await made(it, "mine", "secret")
        far = (await made(it, "mine", path="far"))["mine"]
        reader, producer = await it.reader("user/ann"), await it.producer("user/ann")
        for held in (ids["secret"], far):
            for resumes in (False, True):
                with pytest.raises(NotAllowed) as refused:
                    await reader.subscribe(
                        "mine", incarnation=held, resumes=resumes, dlsn=DLSN(1, 0, 0), sequence_id=0
                    )
                assert "secret" not in str(refused.value).replace(held, "")
            with pytest.raises(NotAllowed):
                await it.call("user/ann", "count", "mine", None, None, incarnation=held)
            request = wire.ProduceOpen(9, NS, "mine", held)
            with pytest.raises(NotAllowed):
                await producer.link.request(Op.PRODUCE_OPEN, request.encode(), timeout_s=5)
            producer = await it.producer("user/ann")
        assert (await reader.subscribe("mine", incarnation=ids["mine"])).name == "mine"


async def test_a_log_that_got_another_name_is_judged_by_that(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world) as it:
        await it.grant("ann", "consumer", "old")
        await it.grant("bob", "consumer", "new")
        held = (await made(it, "old"))["old"]
        ask: dict[str, Any] = {
            "incarnation": held,
            "resumes": True,
            "dlsn": DLSN(1, 0, 0),
            "sequence_id": 0,
        }
        ann, bob = await it.reader("user/ann"), await it.reader("user/bob")
        await ann.subscribe("old", **ask)
        async with it.namespace() as namespace:
            await namespace.rename_log("old", "new")
        with pytest.raises(NotAllowed):
            await ann.subscribe("old", **ask)
        assert (await bob.subscribe("old", **ask)).name == "new"
        await trio.sleep(1)
        await it.grant("ann", "consumer", "other")  # looked at again: it has not that name any more
        await trio.sleep(1)
        assert [type(one) for one in ann.ended.values()] == [NotAllowed]


# --- calls ----------------------------------------------------------------------------------------

ARGUMENTS: dict[str, list[Any]] = {
    "create": ["standard", {}, {}, "auto"],
    "exists": [],
    "rename": ["a/new"],
    "delete": [0.0],
    "truncate": [[1, 0, 0], None, None],
    "seal": [False, 0.0],
    "describe": [10],
    "settings": [],
    "permit_record_headers": [],
    "set": [{}, {}],
    "find": [0, None],
    "count": [None, None],
}


@pytest.mark.parametrize("call", sorted(NEEDED_RIGHTS))
async def test_each_call_needs_a_right_of_its_own(
    world: World, autojump_clock: MockClock, call: str
) -> None:
    assert {*NEEDED_RIGHTS, "page"} == set(wire.LOG_CALLS), "none is let through for want of a row"
    async with judged(world) as it:
        await everybody(it)
        may = set()
        for number, principal in enumerate((*WHO, *NOBODIES)):
            log = f"a/{number}"
            if call != "create":
                await made(it, log)
            arguments = [f"a/new{number}"] if call == "rename" else ARGUMENTS[call]
            try:
                await it.call(principal, call, log, *arguments)
                may.add(principal)
            except InvalidRequest:  # of a log that does not permit keys and headers
                may.add(principal)
            except NotAllowed:
                pass
        for role, user in (("producer", "pro"), ("consumer", "con"), ("writer", "wri")):
            assert (f"user/{user}" in may) == bool(ROLES[role] & NEEDED_RIGHTS[call])
        assert "user/own" in may
        assert not may & {*NOBODIES, "user/ops"}


async def test_a_log_is_not_renamed_to_where_its_owner_has_nothing(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world) as it:
        await it.grant("own", "owner", "a/")
        await made(it, "a/x")
        with pytest.raises(NotAllowed):
            await it.call("user/own", "rename", "a/x", "b/x")
        await it.call("user/own", "rename", "a/x", "a/y")


async def test_orders_to_a_proxy_are_an_operators(world: World, autojump_clock: MockClock) -> None:
    async with judged(world) as it:
        await everybody(it)
        for principal in ("user/own", "user/stranger", "anonymous", "user/ops"):
            link = await it.link(principal, it.writes)
            for order in (
                wire.ProxyCall("owned", ["", 10]),
                wire.ProxyCall("move", [NS, "x", ""]),
                wire.ProxyCall("drain", []),
                wire.ProxyCall("would_refuse", []),
            ):
                try:
                    await link.request(Op.PROXY_CALL, order.encode(), timeout_s=30)
                    assert principal == "user/ops"
                except NotAllowed:
                    assert principal != "user/ops"


async def test_a_log_is_taken_for_another_proxy_and_for_no_user(
    world: World, autojump_clock: MockClock
) -> None:
    """A proxy that drains asks the next one, which has no right of its own to any log."""
    async with judged(world) as it:
        await everybody(it)
        await made(it, "a/x")
        async with it.namespace() as namespace:
            incarnation = f"{await namespace.resolve_name('a/x'):016x}"
        order = wire.ProxyCall("take", [NS, "a/x", incarnation]).encode()
        for principal in ("user/own", "user/stranger", "anonymous", "bookie/b1"):
            link = await it.link(principal, it.writes)
            with pytest.raises(NotAllowed):
                await link.request(Op.PROXY_CALL, order, timeout_s=30)
        assert it.owner is not None
        assert it.owner.find_hosted(NS, "a/x") is None
        link = await it.link("proxy/p2", it.writes)
        await link.request(Op.PROXY_CALL, order, timeout_s=30)
        assert it.owner.find_hosted(NS, "a/x") is not None


@pytest.mark.parametrize("writes", [True, False])
async def test_a_proxy_tells_an_operator_whom_it_would_refuse(
    world: World, autojump_clock: MockClock, writes: bool
) -> None:
    async with judged(world, mode="report") as it:
        await everybody(it)
        await made(it, "a/x")
        for _ in range(3):
            await it.call("user/rea", "set", "a/x", *ARGUMENTS["set"])
        await it.call("user/stranger", "describe", "a/x", *ARGUMENTS["describe"])
        link = await it.link("user/ops", it.writes if writes else it.reads)
        order = wire.ProxyCall("would_refuse", []).encode()
        said = wire.decode_would_refuse(
            (await link.request(Op.PROXY_CALL, order, timeout_s=30)).body
        )
        assert [(who, times) for who, _, times in said] == [("user/rea", 3), ("user/stranger", 1)]
        assert "it needs" in said[0][1]
        if not writes:
            owned = wire.ProxyCall("owned", ["", 10]).encode()
            with pytest.raises(InvalidRequest, match="this is a read proxy"):
                await link.request(Op.PROXY_CALL, owned, timeout_s=30)
        assert not link.closed


# --- tokens ---------------------------------------------------------------------------------------


def forged(token: bytes) -> bytes:
    return token[:20] + (b"B" if token[20:21] == b"A" else b"A") + token[21:]


async def test_a_narrowed_token_does_its_log_and_no_other(
    world: World, autojump_clock: MockClock
) -> None:
    """What it may is what its user may, and its narrowing too: neither adds to the other."""
    async with judged(world, takes_tokens=True) as it:
        await it.grant("etl", "owner", "")
        await it.grant("pro", "producer", "a/")
        await made(it, "a/x", "a/xy", "b/x")
        reads = it.token("etl", ("a/x", READ))
        reader = RawReader(await it.link_by(reads, it.reads))
        await reader.subscribe("a/x")
        producer = RawProducer(await it.link_by(reads, it.writes))
        for number, log in enumerate(("a/x", "a/xy", "b/x", "none"), 1):
            with pytest.raises(NotAllowed, match="user/etl may not"):
                await producer.open(number, log)
        for log in ("a/xy", "b/x", "a/"):
            with pytest.raises(NotAllowed):
                await reader.subscribe(log)
        for call, arguments in sorted(ARGUMENTS.items()):
            allowed = bool(NEEDED_RIGHTS[call] & READ)
            try:
                await it.call_over(producer.link, call, "a/x", *arguments)
                assert allowed
            except NotAllowed:
                assert not allowed
            with pytest.raises(NotAllowed):
                await it.call_over(producer.link, call, "b/x", *arguments)

        # A narrowing gives nothing: its user writes below a/ through proxies, and that is all.
        wide = it.token("pro", ("", PRODUCE | CONSUME), ("b/", ALL_LOG_RIGHTS))
        producer = RawProducer(await it.link_by(wide, it.writes))
        await producer.open(1, "a/x")
        with pytest.raises(NotAllowed):
            await producer.open(2, "b/x")
        with pytest.raises(NotAllowed):
            await RawReader(await it.link_by(wide, it.reads)).subscribe("a/x")

        # A log that is made by opening a writer is its owner's to make, and not by a token without that.
        writes = RawProducer(await it.link_by(it.token("etl", ("new/", WRITE)), it.writes))
        with pytest.raises(LogNotFound):
            await writes.open(1, "new/1")
        makes = RawProducer(await it.link_by(it.token("etl", ("new/", WRITE | MANAGE)), it.writes))
        await makes.open(1, "new/1")
        with pytest.raises(NotAllowed):
            await it.call_over(makes.link, "rename", "new/1", "old/1")


async def test_a_token_may_through_a_proxy_what_its_users_role_is_worth_there(
    world: World, autojump_clock: MockClock
) -> None:
    """A writer may produce and consume; narrowed to one of these it does that, and nothing else."""
    async with judged(world, takes_tokens=True) as it:
        await it.grant("wri", "writer", "a/")
        await it.grant("rea", "reader", "a/")
        await made(it, "a/x")
        for user, right, writes, reads in (
            ("wri", PRODUCE, True, False),
            ("wri", CONSUME, False, True),
            ("rea", CONSUME, False, True),
            ("rea", PRODUCE, False, False),
        ):
            token = it.token(user, ("a/", right))
            producer = RawProducer(await it.link_by(token, it.writes))
            reader = RawReader(await it.link_by(token, it.reads))
            if writes:
                await producer.open(1, "a/x")
            else:
                with pytest.raises(NotAllowed):
                    await producer.open(1, "a/x")
            if reads:
                await reader.subscribe("a/x")
            else:
                with pytest.raises(NotAllowed):
                    await reader.subscribe("a/x")
            listed = (await it.call_over(producer.link, "page", "", "", "", 10))[0]
            assert listed == (["a/x"] if writes or reads else []), (user, right)


async def test_whose_grant_goes_loses_it_by_a_token_as_well(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world, takes_tokens=True) as it:
        await it.grant("etl", "writer", "x")
        await made(it, "x")
        producer = RawProducer(await it.link_by(it.token("etl", ("", ALL_LOG_RIGHTS)), it.writes))
        await producer.open(1, "x")
        await it.revoke("etl", "x")
        assert isinstance((await producer.refused(1)).error, NotAllowed)
        assert producer.link.closed is None


@pytest.mark.parametrize("mode", ["open", "report", "required"])
async def test_a_revoked_token_ends_in_the_call_that_hears_of_it(
    world: World, autojump_clock: MockClock, mode: str
) -> None:
    """In any mode, as at the metadata; who comes by a certificate, or a newer one, goes on."""
    async with judged(world, mode=mode, takes_tokens=True) as it:
        await it.grant("etl", "writer", "x")
        await made(it, "x")
        old = it.token("etl")
        producer = RawProducer(await it.link_by(old, it.writes))
        reader = RawReader(await it.link_by(old, it.reads))
        other = await it.producer("user/etl")
        await producer.open(1, "x")
        await reader.subscribe("x")
        await other.open(1, "x")
        producer.send(1, 0, b"before")
        await producer.acked(1)

        await it.tokens_from("etl", 7)
        await it.rights.wait_changed()
        assert it.rights.revoked_count == 2
        for number in range(1, 5):
            producer.send(1, number, b"after")
        await trio.sleep(1)
        assert producer.link.closed is not None, "it was sending, and may hear no more than that"
        assert isinstance(reader.link.closed, NotAuthenticated)
        assert "revoked" in str(reader.link.closed)
        with pytest.raises(NotAuthenticated, match="revoked"):
            await it.link_by(old, it.writes)
        newer = RawProducer(await it.link_by(it.token("etl", since=7), it.writes))
        await newer.open(1, "x")
        newer.send(1, 0, b"newer")
        await newer.acked(1)
        other.send(1, 0, b"another's")
        await other.acked(1)
        assert await it.stored("x") == [b"0", b"before", b"newer", b"another's"]

        await it.put(Delete(user_key("etl")))
        await trio.sleep(1)
        assert isinstance(newer.link.closed, NotAuthenticated)


async def test_a_token_ends_by_time_and_with_it_what_it_opened(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world, takes_tokens=True) as it:
        await it.grant("etl", "writer", "x")
        await made(it, "x")
        short, longer = it.token("etl", valid_s=20), it.token("etl", valid_s=2000)
        producer = RawProducer(await it.link_by(short, it.writes))
        reader = RawReader(await it.link_by(short, it.reads))
        stays = RawProducer(await it.link_by(longer, it.writes))
        for one in (producer, stays):
            await one.open(1, "x")
        await reader.subscribe("x")
        ends_at = trio.current_time() + 20
        while producer.link.closed is None or reader.link.closed is None:
            assert trio.current_time() < ends_at + 3
            await trio.sleep(0.5)
        assert trio.current_time() > ends_at - 2
        assert "has ended" in str(producer.link.closed)
        assert it.owner is not None
        assert [len(log.streams) for log in it.owner.logs.values()] == [1]
        stays.send(1, 0, b"stays")
        await stays.acked(1)


async def test_a_token_is_refused_in_clear_and_so_is_what_is_none(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world, takes_tokens=True) as it:
        await it.grant("etl", "writer", "x")
        token = it.token("etl")
        with pytest.raises(NotAuthenticated, match="in clear"):
            await it.link_in_clear_by(token, it.writes)
        with pytest.raises(NotAuthenticated, match="no token"):
            await it.link_by(b"dlog1_nothing", it.reads)
        assert not it.asked, "the quorum has no work with it"
        with pytest.raises(NotAuthenticated, match="has not made"):
            await it.link_by(forged(token), it.reads)
        assert len(it.asked) == 1


async def test_a_list_shows_by_a_token_what_it_was_narrowed_to(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world, takes_tokens=True) as it:
        async with it.namespace() as namespace:
            for name in ("a/1", "a/2", "a/b/1", "b/1", "c"):
                await namespace.create_log(name)
        await it.grant("etl", "writer", "a/")
        await it.grant("etl", "consumer", "c")
        for narrowing, seen in (
            ((), ["a/1", "a/2", "a/b/1", "c"]),
            ((("", READ),), ["a/1", "a/2", "a/b/1"]),
            ((("a/2", READ), ("b/", READ), ("c", CONSUME)), ["a/2", "c"]),
            ((("a/b/", WRITE), ("a/2", MANAGE)), ["a/b/1"]),
            ((("c", READ),), []),
        ):
            link = await it.link_by(it.token("etl", *narrowing), it.writes)
            assert (await it.call_over(link, "page", "", "", "", 10))[0] == seen


async def test_orders_to_a_proxy_are_not_for_a_narrowed_token(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world, takes_tokens=True) as it:
        await it.grant("ops", "admin", "", "")
        await it.grant("ops", "owner", "")
        order = wire.ProxyCall("owned", ["", 10]).encode()
        whole = await it.link_by(it.token("ops"), it.writes)
        await whole.request(Op.PROXY_CALL, order, timeout_s=5)
        cut = await it.link_by(it.token("ops", ("", ALL_LOG_RIGHTS)), it.writes)
        with pytest.raises(NotAllowed, match="operator"):
            await cut.request(Op.PROXY_CALL, order, timeout_s=5)


async def test_a_token_that_the_watch_has_not_heard_of_waits_for_it(
    world: World, autojump_clock: MockClock
) -> None:
    """The metadata say that it is good: the proxy does not call it revoked for what it knows from before."""
    unruly = Unruly(world.metadata)
    async with judged(world, rights=lambda _: ClientAuthorizer(unruly), takes_tokens=True) as it:
        await it.grant("etl", "writer", "x")
        await trio.sleep(1)
        unruly.late_s = 1.0
        await it.tokens_from("etl", 9)
        await it.link_by(it.token("etl", since=9), it.writes)
        await trio.sleep(5)
        unruly.late_s = 3.5
        await it.tokens_from("etl", 10)
        with pytest.raises(TooBusy, match="are changing"):
            await it.link_by(it.token("etl", since=10), it.writes)


async def test_what_the_watch_has_not_heard_is_heard_when_something_is_opened(
    world: World, autojump_clock: MockClock
) -> None:
    unruly = Unruly(world.metadata)
    async with judged(world, rights=lambda _: ClientAuthorizer(unruly), takes_tokens=True) as it:
        await it.grant("etl", "writer", "x")
        await made(it, "x")
        producer = RawProducer(await it.link_by(it.token("etl"), it.writes))
        unruly.late_s = 5.0
        await it.tokens_from("etl", 9)
        with pytest.raises(NotAllowed):
            await producer.open(1, "x")
        assert producer.link.closed is None, "nobody was told by the watch yet"
        await trio.sleep(10)
        assert isinstance(producer.link.closed, NotAuthenticated)


async def test_strangers_who_show_tokens_wait_for_each_other_and_others_do_not(
    world: World, autojump_clock: MockClock
) -> None:
    """Each look at a token is a round of the quorum: one address has so many at once, and all together."""
    async with judged(world) as it:
        token = it.token("etl")
        go, asked, busy = trio.Event(), 0, 0

        async def ask(proof: bytes) -> Welcome:
            nonlocal asked
            asked += 1
            await go.wait()
            raise NotAuthenticated("a token that this cluster has not made")

        async def show(address: str) -> None:
            nonlocal busy
            try:
                await it.rights.verify_token(
                    ask, HandshakeContext(address, 4181, is_secret=True), token
                )
            except TooBusy:
                busy += 1
            except NotAuthenticated:
                pass

        async with trio.open_nursery() as nursery:
            for port in range(100):
                nursery.start_soon(show, f"10.0.0.1:{port}")
            await wait_all_tasks_blocked()
            assert asked == client_rights.TOKEN_CHECKS_PER_HOST
            nursery.start_soon(show, "10.0.0.2:1")
            await wait_all_tasks_blocked()
            assert asked == client_rights.TOKEN_CHECKS_PER_HOST + 1, "another one is looked at"
            for host in range(100):
                nursery.start_soon(show, f"10.0.1.{host}:1")
            await wait_all_tasks_blocked()
            assert asked == client_rights.TOKEN_CHECKS_MAX
            assert busy == 201 - asked
            go.set()
        await show("10.0.0.1:1")
        assert asked == client_rights.TOKEN_CHECKS_MAX + 1, "who is done makes room"


async def test_a_proxy_that_cannot_list_rests_and_lists_again(autojump_clock: MockClock) -> None:
    """What a watch missed is compacted away, and nobody leads: asked at once again it would turn for ever;
    and no watch says what it missed."""
    watched = listed = 0
    is_away = False

    class Away(LocalMetadata):
        def watch(self, start: bytes, end: bytes, *, after_revision: int) -> Any:
            nonlocal watched, is_away
            watched += 1
            is_away = True
            raise Compacted("what came after that is forgotten")

        async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
            nonlocal listed
            listed += 1
            if is_away:
                raise QuorumUnreachable("nobody leads")
            return await super().range(start, end, limit=limit)

    rights = ClientAuthorizer(Away())
    async with trio.open_nursery() as nursery:
        await nursery.start(rights.run)
        await trio.sleep(10.25 * client_rights.RETRY_S)
        assert (listed, watched) == (1 + 11, 1)
        is_away = False
        await trio.sleep(client_rights.RETRY_S)
        assert watched == 2
        nursery.cancel_scope.cancel()


async def test_a_blind_proxy_calls_no_token_revoked(
    world: World, autojump_clock: MockClock
) -> None:
    unruly = Unruly(world.metadata)
    async with judged(world, rights=lambda _: ClientAuthorizer(unruly), takes_tokens=True) as it:
        await it.grant("etl", "writer", "x")
        await made(it, "x")
        producer = RawProducer(await it.link_by(it.token("etl"), it.writes))
        await producer.open(1, "x")
        unruly.error = NotAllowed("user/p1 may not list trust/")
        await it.mode("required")
        assert isinstance((await producer.refused(1)).error, NotAllowed)
        again = RawProducer(await it.link_by(it.token("etl"), it.writes))
        with pytest.raises(NotAllowed, match="may not list"):
            await again.open(1, "x")
        unruly.error = None
        await trio.sleep(2)
        await producer.open(2, "x")


async def test_a_quorums_tokens_are_taken_narrowed_and_revoked(
    world: World, autojump_clock: MockClock
) -> None:
    """With metadata nodes that make and judge them."""
    async with test_tokens.world() as (quorum, root):
        asks = await quorum._client(Tls(directory_of("proxy/p1")), CERTIFICATE, None)
        await root.change_authorization("grant", "etl", "writer", NS, "")
        token = await root.make_token("etl", valid_s=600, token_scope=((NS, "mine", READ | WRITE),))
        async with judged(
            world,
            rights=lambda _: ClientAuthorizer(asks),
            takes_tokens=True,
            whose=asks.verify_token,
        ) as it:
            await made(it, "mine", "other")
            producer = RawProducer(await it.link_by(token, it.writes))
            await producer.open(1, "mine")
            with pytest.raises(NotAllowed, match="user/etl"):
                await producer.open(2, "other")
            with pytest.raises(NotAuthenticated, match="has not made"):
                await it.link_by(forged(token), it.reads)
            await root.change_authorization("tokens", "etl")
            await trio.sleep(1)
            assert isinstance(producer.link.closed, NotAuthenticated)
            with pytest.raises(NotAuthenticated, match="revoked"):
                await it.link_by(token, it.writes)
            newer = await root.make_token("etl", valid_s=600)
            await RawProducer(await it.link_by(newer, it.writes)).open(1, "other")


# --- lists ----------------------------------------------------------------------------------------


async def test_a_list_has_the_names_that_its_asker_may_see(
    world: World, autojump_clock: MockClock
) -> None:
    async with judged(world) as it:
        names = ["a", "a/1", "a/2", "ab", "b/1", "c", "\u00fc/1"]
        async with it.namespace() as namespace:
            for name in names:
                await namespace.create_log(name)
        await it.grant("all", "reader", "")
        await it.grant("one", "consumer", "a/")
        await it.grant("one", "producer", "c")
        await it.grant("one", "producer", "none")
        await it.grant("one", "reader", "b/", "other")

        async def pages(principal: str, prefix: str, limit: int) -> list[str]:
            found: list[str] = []
            after: str | None = ""
            while after is not None:
                some, ids, after = await it.call(principal, "page", "", prefix, after, limit)
                assert len(some) == len(ids) <= limit
                found += some
            return found

        for limit in (1, 2, 10):
            assert await pages("user/all", "", limit) == sorted(names, key=str.encode)
            assert await pages("user/one", "", limit) == ["a/1", "a/2", "c"]
            assert await pages("user/one", "a/2", limit) == ["a/2"]
            assert await pages("user/one", "b", limit) == []
            for nobody in NOBODIES:
                assert await pages(nobody, "", limit) == []
        async with it.namespace() as namespace:
            found = await namespace.log_page("c")
        assert (await it.call("user/one", "page", "", "c", "", 5))[1] == list(found.incarnations)
        assert await world.metadata.get(name_key(NS, "none")) is None


PARTS = st.lists(st.sampled_from("abü"), min_size=1, max_size=3).map("/".join)
GIVEN = st.one_of(st.just(""), PARTS, PARTS.map(lambda path: path + "/"))


@settings(max_examples=examples(300))
@given(st.sets(GIVEN, max_size=5), st.one_of(st.just(""), PARTS, GIVEN), st.sets(PARTS))
def test_parts_of_a_list_hold_each_visible_name_once(
    visible: set[str], prefix: str, names: set[str]
) -> None:
    def seen(name: str) -> bool:
        return any(
            not path or path == name or (path.endswith("/") and name.startswith(path))
            for path in visible
        )

    wanted = sorted(
        (name for name in names if name.startswith(prefix) and seen(name)), key=str.encode
    )
    found = [
        name
        for part, is_log in visible_parts(visible, prefix)
        for name in sorted(names, key=str.encode)
        if (name == part if is_log else name.startswith(part))
    ]
    assert found == wanted
