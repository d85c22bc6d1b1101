"""What a proxy's clients may do there is what they may do; the proxy's own rights are nobody's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.log.dlsn import DLSN
from distributedlog.log.keys import incarnation_text, name_key
from distributedlog.metadata.interface import RangePage, Watch
from distributedlog.metadata.local import LocalMetadata
from distributedlog.metadata.rights import ROLES
from distributedlog.metadata.transaction import Put
from distributedlog.metadata.trust_records import MODE_KEY, User, user_key
from distributedlog.proxy import client_rights, wire
from distributedlog.proxy.client_rights import ClientRights
from distributedlog.proxy.log_calls import NEEDED, parts_within
from distributedlog.runtime.errors import (
    DistributedLogError,
    LogNotFound,
    NotAllowed,
    NotAuthenticated,
    OutcomeUnknown,
    QuorumUnreachable,
)
from distributedlog.runtime.frames import Op
from tests.examples import examples
from tests.log.conftest import World

from .judged_kit import NS, judged


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
            found[name] = incarnation_text(await namespace.find(name))
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
        would = it.rights.would_refuse
        assert {who for who, _ in would} == (
            set() if mode == "open" else {"user/stranger", "anonymous", "user/con"}
        )
        producer.send(1, 0, b"taken")
        await producer.acked(1)

        await it.mode("required")
        refusal = await producer.refused(1)
        assert isinstance(refusal.error, NotAllowed)
        await trio.sleep(1)
        assert [type(one) for one in reader.ended.values()] == [NotAllowed]
        assert it.rights.info()["rights_ended"] == 2


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
        await it.rights.changed()
        assert it.rights.ended == 1
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
        take: Any = owner.take

        async def slow(request: wire.ProduceOpen) -> Any:
            await trio.sleep(5)
            return await take(request)

        owner.take = slow  # type: ignore[method-assign]
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
                async def next(late) -> Any:
                    batch = await watch.next()
                    await trio.sleep(self.late_s)
                    if self.error is not None:
                        raise self.error
                    return batch

            yield Late()


async def test_a_grant_counts_when_it_was_answered_though_the_watch_is_late(
    world: World, autojump_clock: MockClock
) -> None:
    unruly = Unruly(world.metadata)
    async with judged(world, rights=lambda _: ClientRights(unruly)) as it:
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
        assert it.rights.ended == 0
        await trio.sleep(10)
        assert it.rights.ended == 1


async def test_without_a_quorum_nothing_is_opened_and_what_is_open_goes_on(
    world: World, autojump_clock: MockClock
) -> None:
    unruly = Unruly(world.metadata)
    async with judged(world, rights=lambda _: ClientRights(unruly)) as it:
        await it.grant("etl", "producer", "x")
        await made(it, "x")
        producer = await it.producer("user/etl")
        await producer.open(1, "x")
        unruly.error = QuorumUnreachable("away")
        await producer.open(2, "x")  # asked a moment ago
        await trio.sleep(client_rights.KEEP_S)
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
    async with judged(world, rights=lambda _: ClientRights(unruly), mode="open") as it:
        await made(it, "x")
        producer = await it.producer("user/etl")
        await producer.open(1, "x")
        unruly.error = NotAllowed("user/p1 may not list trust/")
        await it.mode("report")
        assert isinstance((await producer.refused(1)).error, NotAllowed)
        with pytest.raises(NotAllowed, match="may not list"):
            await producer.open(2, "x")
        assert it.rights.reasons()
        unruly.error = None
        await trio.sleep(2)
        assert not it.rights.reasons()
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
    "set": [{}, {}],
    "find": [0, None],
    "count": [None, None],
}


@pytest.mark.parametrize("call", sorted(NEEDED))
async def test_each_call_needs_a_right_of_its_own(
    world: World, autojump_clock: MockClock, call: str
) -> None:
    assert {*NEEDED, "page"} == set(wire.LOG_CALLS), "none is let through for want of a row"
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
            except NotAllowed:
                pass
        for role, user in (("producer", "pro"), ("consumer", "con"), ("writer", "wri")):
            assert (f"user/{user}" in may) == bool(ROLES[role] & NEEDED[call])
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
            ):
                try:
                    await link.request(Op.PROXY_CALL, order.encode(), timeout_s=30)
                    assert principal == "user/ops"
                except NotAllowed:
                    assert principal != "user/ops"


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
        for part, is_log in parts_within(visible, prefix)
        for name in sorted(names, key=str.encode)
        if (name == part if is_log else name.startswith(part))
    ]
    assert found == wanted
