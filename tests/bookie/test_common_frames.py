"""ADD_MANY is exactly the ADDs one after another (H165, H1), and who is sent which."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
import trio.testing
import xxhash

from distributedlog.bookie.client.bookie_client import (
    SHARED_BYTES_MAX,
    SHARED_ENTRY_BYTES_MAX,
    AddStream,
    BookieClient,
)
from distributedlog.bookie.declarations.options import BookieOptions
from distributedlog.bookie.format import bookie_messages as m
from distributedlog.bookie.format import entry as entries
from distributedlog.bookie.format.journal_format import DELETED, FENCED, LIMBO
from distributedlog.bookie.server import serve_bookie_protocol
from distributedlog.bookie.session.bookie_session import BookieSession
from distributedlog.bookie.store.add_handler import AddHandler
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.interfaces.errors import DistributedLogError, TooBusy
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, envelope
from distributedlog.runtime.protocol.handshake import FEATURES, Hello
from tests.runtime.pipe import PipeNetwork

from .kit import KEY, OPTIONS, Adder, CutDisk, read_all, record, running

Clock = trio.testing.MockClock
TIGHT = replace(
    OPTIONS, journal_file_bytes=128 << 10, gather_bytes=64 << 10, unsynced_bytes_max=8 << 10
)
"""A ring that fills in the middle of a frame."""


class Bookies:
    """Bookies on a network, and a client connected to each."""

    def __init__(self, nursery: trio.Nursery, seed: int = 1) -> None:
        self.network = PipeNetwork(seed)
        self.nursery = nursery
        self.stores: dict[str, BookieStore] = {}
        host = self.network.host("client")
        self.endpoint = Endpoint(host, lambda: Hello("c1", "", "client"))

    async def start(
        self, name: str, options: BookieOptions, *, sync_s: float = 0.0, features: int = FEATURES
    ) -> BookieClient:
        disk = CutDisk(sync_s=sync_s)
        host = self.network.host(name, journal=disk, index=disk)
        store = self.stores[name] = await open_store(host, options, bookie_id=name)
        await self.nursery.start(store.run)
        hello = Hello("c1", name, "bookie", features=features)
        listener = await host.listen((name, 0))
        server = Endpoint(host, lambda: hello)
        self.nursery.start_soon(serve_bookie_protocol, server, {"": listener}, store)
        link = await self.endpoint.dial(listener.address, nursery=self.nursery)
        return BookieClient(link, name)


@dataclass
class Heard:
    """A stream, and what its bookie said of it."""

    stream: AddStream
    acked: int = 0
    refused: tuple[int, type[DistributedLogError]] | None = None
    sent: list[bytes] = field(default_factory=list)


def opened(client: BookieClient, ledger: int, *, recovery: bool = False) -> Heard:
    def on_acked(count: int) -> None:
        heard.acked = count

    def on_refused(position: int, error: DistributedLogError) -> None:
        heard.refused = (position, type(error))

    stream = client.open_stream(
        ledger, KEY, recovery=recovery, fragment_epoch=0, on_acked=on_acked, on_refused=on_refused
    )
    heard = Heard(stream)
    return heard


Sent = list[tuple[Heard, bytes]]


def one_by_one(client: BookieClient, adds: Sent) -> None:
    for heard, body in adds:
        client.link.send(envelope(Op.ADD, len(body), ident=heard.stream.stream_number), body)


def in_common(client: BookieClient, adds: Sent) -> None:
    items = m.encode_add_many_items(
        [h.stream.stream_number for h, _ in adds], [len(body) for _, body in adds]
    )
    body = items + b"".join([body for _, body in adds])
    client.link.send(envelope(Op.ADD_MANY, len(body), ident=len(adds)), body)


async def outcome(
    seed: int, send: Callable[[BookieClient, Sent], None], options: BookieOptions
) -> tuple[object, int]:
    """What a bookie says and holds after adds of this seed, and how often its ring was full."""
    draw = random.Random(seed)
    deferred: list[int] = []
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery, seed)
        client = await bookies.start("b1", options, sync_s=draw.choice((0.001, 0.02)))
        store = bookies.stores["b1"]
        heard = [opened(client, 1 + n % 4, recovery=n % 5 == 4) for n in range(9)]
        for _ in range(draw.randrange(3, 9)):
            adds: Sent = []
            for _ in range(draw.randrange(1, 40)):
                one = draw.choice(heard)
                ledger = one.stream._open_request.ledger
                made = []
                for _ in range(draw.choice((0, 1, 1, 1, 3))):
                    number, other = draw.randrange(200), draw.random() < 0.01
                    payload = bytes([1 + other]) * (40 + number % 3 * 300)
                    made.append(record(ledger, number, payload))
                if made and draw.random() < 0.01:
                    made[-1] = made[-1][:-1] + bytes([made[-1][-1] ^ 1])
                one.stream.sent_count += len(made)
                one.sent += made
                adds.append((one, b"".join(made)))
            send(client, adds)
            if draw.random() < 0.1:
                await trio.sleep(5)  # a fence goes before adds that wait for the ring
                request = m.LedgerRequest(1 + draw.randrange(4), KEY)
                client.link.start_request(Op.FENCE, request.encode(), timeout_s=9)
            if draw.random() < 0.5:
                await trio.sleep(draw.random() * 0.05)
            deferred.append(store.stats.deferred_bytes)
        await trio.sleep(5)
        assert client.close_error is None
        assert store.stats.deferred_bytes == 0
        for one in heard:
            held = await read_all(store, one.stream._open_request.ledger) if one.acked else {}
            for body in one.sent[: one.acked]:
                assert body in held.values()
            assert one.acked == (len(one.sent) if one.refused is None else one.refused[0])
        said = [(one.acked, one.refused) for one in heard]
        holds = []
        for n in range(1, 5):
            any_acked = any(one.acked for one in heard if one.stream._open_request.ledger == n)
            holds.append(await read_all(store, n) if any_acked else {})
        nursery.cancel_scope.cancel()
    return (said, holds), sum(map(bool, deferred))


@pytest.mark.properties
async def test_an_add_many_is_its_adds_in_order(autojump_clock: Clock) -> None:
    """H165, H1: conflicts, damage, fences, and a ring that fills in the middle; fuzz over both forms."""
    refused = full = 0
    for seed in range(25):
        options = replace(TIGHT, deferred_bytes_max=1 << 20)
        apart, _ = await outcome(seed, one_by_one, options)
        common, deferrals = await outcome(seed, in_common, options)

        assert apart == common, seed
        assert isinstance(common, tuple)
        refused += sum(refusal is not None for _, refusal in common[0])
        full += deferrals
    assert refused > 10
    assert full > 10


async def test_a_refused_stream_of_a_common_frame_poisons_no_neighbour(
    autojump_clock: Clock,
) -> None:
    """H165."""
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        client = await bookies.start("b1", OPTIONS)
        first, bad, last = (opened(client, n) for n in (1, 2, 3))
        for one in (first, bad, last):
            one.stream.sent_count = 2

        in_common(
            client,
            [
                (first, record(1, 0)),
                (bad, record(2, 0)),
                (bad, record(9, 9)),  # of another ledger
                (last, record(3, 0)),
                (bad, record(2, 1)),
                (first, record(1, 1)),
                (last, record(3, 1)),
            ],
        )
        await trio.sleep(1)

        assert [(one.acked, one.refused is None) for one in (first, bad, last)] == [
            (2, True),
            (1, False),
            (2, True),
        ]
        assert bad.refused is not None
        assert bad.refused[0] == 1
        nursery.cancel_scope.cancel()


async def test_what_does_not_fit_refuses_only_its_streams(autojump_clock: Clock) -> None:
    """H165: more waits for the ring than may; counts stay true for each stream by itself."""
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        options = replace(TIGHT, deferred_bytes_max=4 << 10)
        client = await bookies.start("b1", options, sync_s=0.5)
        heard = [opened(client, n) for n in range(1, 31)]
        for one in heard:
            one.stream.sent_count = 1

        in_common(client, [(one, record(n, 0, bytes(1000))) for n, one in enumerate(heard, 1)])
        await trio.sleep(30)

        refused = [one for one in heard if one.refused is not None]
        assert 0 < len(refused) < 30
        for n, one in enumerate(heard, 1):
            assert one.acked == (one.refused is None)
            assert one.refused in (None, (0, TooBusy))
            if one.acked:
                assert list(await read_all(bookies.stores["b1"], n)) == [0]
        nursery.cancel_scope.cancel()


async def test_what_waits_for_room_is_passed_by_nothing_of_its_frame(
    autojump_clock: Clock,
) -> None:
    """Acks are counts (G2): a smaller record of the stream, for which there is room, waits, and its LAC."""
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        client = await bookies.start("b1", TIGHT, sync_s=0.5)
        store = bookies.stores["b1"]
        heard, number = opened(client, 1), 0
        adds: Sent = []
        for number, size in enumerate((6000, 4000, 10)):
            adds.append((heard, record(1, number, bytes(size))))
        heard.stream.sent_count = len(adds)
        in_common(client, adds)
        told = m.encode_lacs([(heard.stream.stream_number, number)])
        client.link.send(envelope(Op.WRITE_LACS, len(told)), told)
        lacs_when_processed: list[int] = []
        heard.stream.call_when_processed(
            lambda: lacs_when_processed.append(store.ledgers.get_known(1, KEY).lac), 30.0
        )
        waited = False
        while heard.acked < len(adds):
            await trio.sleep(0.1)
            held = await read_all(store, 1)
            assert list(held)[: heard.acked] == list(range(heard.acked))
            if store.stats.deferred_bytes:
                waited = True
                assert store.ledgers.get_known(1, KEY).lac < number
        assert waited
        await trio.sleep(1)
        assert store.ledgers.get_known(1, KEY).lac == number
        assert lacs_when_processed == [number], "the answer follows the LAC that waited"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("old", [(), ("b2",), ("b1", "b2", "b3")])
async def test_small_entries_of_many_ledgers_share_frames(
    old: tuple[str, ...], autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To bookies that say they take them, all three; large entries and lone ones go by themselves."""
    ops: dict[str, list[int]] = {name: [] for name in ("b1", "b2", "b3")}
    on_frame = BookieSession.on_frame
    frames_max = 0

    def noted(
        self: BookieSession, op: int, flags: int, status: int, ident: int, ms: int, body: memoryview
    ) -> None:
        nonlocal frames_max
        if op in (Op.ADD, Op.ADD_MANY):
            ops[self._store.bookie_id].append(op)
            frames_max = max(frames_max, len(body) if op == Op.ADD_MANY else 0)
        on_frame(self, op, flags, status, ident, ms, body)

    monkeypatch.setattr(BookieSession, "on_frame", noted)
    draw = random.Random(len(old))
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        roomy = replace(OPTIONS, deferred_bytes_max=16 << 20)
        clients = [
            await bookies.start(name, roomy, features=0 if name in old else FEATURES)
            for name in ops
        ]
        ledgers = []
        for n, client in enumerate(clients):
            for _ in range(n):
                opened(client, 99)  # a ledger's streams have other numbers on each connection
        for ledger in range(1, 41):
            draw.shuffle(clients)  # each ledger has its slots in another order
            heard = [opened(client, ledger) for client in clients]
            streams = [one.stream for one in heard]
            ledgers.append((ledger, heard, streams[0].shared_sender(streams)))
        await trio.sleep(1)
        sent: dict[int, list[bytes]] = {ledger: [] for ledger, _, _ in ledgers}
        for turn in range(12):
            for _ in range(draw.randrange(1, 120)):
                ledger, heard, shared = draw.choice(ledgers)
                size = draw.choice(
                    (100, 3000, SHARED_ENTRY_BYTES_MAX - 100, SHARED_ENTRY_BYTES_MAX)
                )
                made = record(ledger, len(sent[ledger]), bytes(size))
                sent[ledger].append(made)
                if shared is None or not shared(made):
                    for one in heard:
                        one.stream.send(made)
            await trio.sleep(draw.choice((0, 0, 1)) if turn else 1)
        await trio.sleep(5)

        for ledger, heard, shared in ledgers:
            assert (shared is None) == bool(old)
            for one in heard:
                assert (one.acked, one.refused) == (len(sent[ledger]), None)
                assert one.stream.sent_count == one.acked
            for store in bookies.stores.values():
                held = await read_all(store, ledger) if sent[ledger] else {}
                assert list(held.values()) == sent[ledger]
        total = sum(map(len, sent.values()))
        for frames in ops.values():
            if old:
                assert frames == [Op.ADD] * total
            else:
                assert frames.count(Op.ADD_MANY) > 10
                assert len(frames) < total * 0.8
        assert frames_max < SHARED_BYTES_MAX + SHARED_ENTRY_BYTES_MAX + m.ADD_MANY_ITEM_BYTES * 4096
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("old", [(), ("b2",)])
async def test_lacs_of_many_ledgers_are_told_together(
    old: tuple[str, ...], autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H167: one frame a connection and turn, the newest of each ledger, to bookies that take them."""
    ops: list[int] = []
    on_frame = BookieSession.on_frame

    def noted(self: BookieSession, op: int, *rest: Any) -> None:
        ops.append(op)
        on_frame(self, op, *rest)

    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        clients = [
            await bookies.start(name, OPTIONS, features=0 if name in old else FEATURES)
            for name in ("b1", "b2", "b3")
        ]
        for n, client in enumerate(clients):
            for _ in range(n):
                opened(client, 99)  # a ledger's streams have other numbers on each connection
        heard = {
            ledger: [opened(c, ledger) for c in (*clients[ledger % 3 :], *clients[: ledger % 3])]
            for ledger in range(1, 21)
        }
        streams = {n: [one.stream for one in of] for n, of in heard.items()}
        tell = {n: of[0].shared_lac_sender(of) for n, of in streams.items()}
        for ledger, of in streams.items():
            for stream in of:
                for entry in range(3):
                    stream.send(record(ledger, entry))
        await trio.sleep(1)
        monkeypatch.setattr(BookieSession, "on_frame", noted)

        for lac in (0, 1):
            for told in tell.values():
                assert told is None or not told(lac)  # all are idle: it goes by itself, at once
        for client in clients:
            client.link.defer_sends()
        for lac in (1, 2):
            for ledger, told in tell.items():
                assert (told is None) == bool(old)
                if told is None or not told(lac):
                    for stream in streams[ledger]:
                        stream.send_lac(lac)
        for client in clients:
            client.link.send_deferred()
        await trio.sleep(1)

        for store in bookies.stores.values():
            assert [store.ledgers.get_known(n, KEY).lac for n in heard] == [2] * len(heard)
        frames = ops.count(Op.WRITE_LACS), ops.count(Op.WRITE_LAC)
        assert frames == ((2, 2 * len(heard)) if old else (3, 0))
        nursery.cancel_scope.cancel()


async def test_a_connection_that_ends_takes_no_entry_from_the_others(autojump_clock: Clock) -> None:
    """What was gathered for three goes to the two that are left; the third stream is refused."""
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        clients = [await bookies.start(name, OPTIONS) for name in ("b1", "b2", "b3")]
        heard = {ledger: [opened(c, ledger) for c in clients] for ledger in range(1, 6)}
        together = {
            n: of[0].stream.shared_sender([one.stream for one in of]) for n, of in heard.items()
        }
        await trio.sleep(1)
        for client in clients:
            client.link.request_send()
        for ledger, shared in together.items():
            assert shared is not None
            assert shared(record(ledger, 0))

        clients[0].link.close(DistributedLogError("cut"))
        heard[3][1].stream.close()  # and what was given to this one goes before its end
        await trio.sleep(1)

        for ledger, (one, two, three) in heard.items():
            assert one.refused is not None
            assert one.acked == 0
            assert two.acked == (ledger != 3)
            assert three.acked == 1
            assert list(await read_all(bookies.stores["b2"], ledger)) == [0]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("more", [True, False])
async def test_nothing_passes_what_was_gathered_with_other_connections(
    more: bool, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger whose slots change shares with others from then on, whose frame may be full at once.

    Acks are counts: of an entry that came first would be thought that it is the one before (G2).
    """
    came: list[int] = []
    on_frame = BookieSession.on_frame

    def noted(self: BookieSession, op: int, *rest: Any) -> None:
        if op in (Op.ADD, Op.ADD_MANY) and self._store.bookie_id == "b1":
            ident, body = rest[2], rest[4]
            at = m.ADD_MANY_ITEM_BYTES * ident if op == Op.ADD_MANY else 0
            while at < len(body):
                _, size, _, _, _, _, of_ledger, entry, _, _ = entries.HEADER.unpack_from(body, at)
                came.extend([entry] if of_ledger == 1 else [])
                at += size
        on_frame(self, op, *rest)

    monkeypatch.setattr(BookieSession, "on_frame", noted)
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        roomy = replace(OPTIONS, deferred_bytes_max=16 << 20)
        clients = [await bookies.start(name, roomy) for name in ("b1", "b2", "b3")]
        mine, other = ([opened(c, n).stream for c in clients] for n in (1, 2))
        few, all_three = slice(2), slice(3)
        before, after = (few, all_three) if more else (all_three, few)
        await trio.sleep(1)
        for client in clients:
            client.link.request_send()
        for entry, slots in enumerate((before, after)):
            shared = mine[0].shared_sender(mine[slots])
            assert shared is not None
            assert shared(record(1, entry))
        filling = other[0].shared_sender(other[after])
        assert filling is not None
        for entry in range(SHARED_BYTES_MAX // (SHARED_ENTRY_BYTES_MAX - 100) + 1):
            assert filling(record(2, entry, bytes(SHARED_ENTRY_BYTES_MAX - 100)))
        await trio.sleep(5)

        assert came == [0, 1]
        nursery.cancel_scope.cancel()


async def test_what_is_taken_alone_is_what_would_be_taken_in_order(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H165: a plain record's short way and the way of all others, over the same faults."""
    options = replace(TIGHT, deferred_bytes_max=1 << 20)
    taken: list[bool] = []
    take_lone = AddHandler.add_single_entries

    def noted(adds: AddHandler, streams: Any, items: Iterator[tuple[int, int]], *where: Any) -> Any:
        asked: list[tuple[int, int]] = []

        def counted() -> Iterator[tuple[int, int]]:
            for one in items:
                asked.append(one)
                yield one

        found = take_lone(adds, streams, counted(), *where)
        left = found is not None
        taken.extend([True] * (len(asked) - left) + [False] * left)
        return found

    def never(adds: AddHandler, streams: Any, items: Iterator[tuple[int, int]], *where: Any) -> Any:
        return take_lone(adds, {}, items, *where)

    monkeypatch.setattr(AddHandler, "add_single_entries", noted)
    short = [(await outcome(seed, in_common, options))[0] for seed in range(10)]
    monkeypatch.setattr(AddHandler, "add_single_entries", never)
    assert [(await outcome(seed, in_common, options))[0] for seed in range(10)] == short
    assert taken.count(True) > 20
    assert taken.count(False) > 50


async def test_the_short_way_takes_no_more_than_may_be_unsynced(autojump_clock: Clock) -> None:
    """The bound that `take` keeps; what is beyond it is for `take` to decide."""
    async with running(CutDisk(), TIGHT) as store:
        adders = [Adder(store, number) for number in range(1, 6)]
        for adder in adders:
            adder.send(record(adder.ledger, 0))
            await adder.all_acked()
        bodies = [record(adder.ledger, 1, bytes(2500)) for adder in adders]
        streams = {n: adder.stream for n, adder in enumerate(adders, 1)}
        items = iter([(n, len(body)) for n, body in enumerate(bodies, 1)])

        left = store.add_handler.add_single_entries(streams, items, memoryview(b"".join(bodies)), 0)

        assert left is not None
        number, start, stop = left
        assert start == sum(map(len, bodies[: number - 1]))
        assert stop == start + len(bodies[number - 1])
        assert store.add_handler._buffer.unsynced_bytes == start <= TIGHT.unsynced_bytes_max < stop


async def test_what_came_after_what_waits_waits_too(autojump_clock: Clock) -> None:
    """H1: a small record that finds room is not taken before a large one of its stream that found none."""
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        client = await bookies.start("b1", TIGHT, sync_s=1.0)
        store = bookies.stores["b1"]
        heard = [opened(client, ledger) for ledger in (1, 2)]
        for one in heard:
            one.stream.send(record(one.stream._open_request.ledger, 0))
        await trio.sleep(5)

        heard[0].stream.send(record(1, 1, bytes(6000)))
        await trio.sleep(0.5)  # it is being synced
        adds = [(heard[1], record(2, 1, bytes(3000))), (heard[1], record(2, 2, b"small"))]
        heard[1].stream.sent_count += 2
        in_common(client, adds)
        await trio.sleep(0.1)
        assert store.stats.deferred_bytes == sum(len(body) for _, body in adds)
        await trio.sleep(5)

        assert [one.acked for one in heard] == [2, 3]
        assert list(await read_all(store, 2)) == [0, 1, 2]
        assert store.stats.duplicates == 0
        nursery.cancel_scope.cancel()


def _bent(body: bytes, **fields: int) -> bytes:
    """A record with other fields, and a digest that fits."""
    names = (
        "digest",
        "length",
        "payload",
        "version",
        "flags",
        "rest",
        "ledger",
        "entry",
        "so_far",
        "lac",
    )
    header = dict(zip(names, entries.HEADER.unpack_from(body), strict=True)) | fields
    bent = bytearray(entries.HEADER.pack(*header.values()) + body[entries.HEADER_BYTES :])
    if "digest" not in fields:
        bent[:8] = xxhash.xxh3_64_intdigest(memoryview(bent)[8:]).to_bytes(8, "little")
    return bytes(bent)


def _offers(ledger: int) -> dict[str, bytes]:
    """Bodies of one ADD to a ledger that has entries 0 to 2, whose LAC is 1."""
    following = record(ledger, 3)
    return {
        "the next": following,
        "a gap": record(ledger, 9),
        "one that is here": record(ledger, 2),
        "another in its place": record(ledger, 2, b"other"),
        "an older LAC": record(ledger, 3, lac=0),
        "the LAC that is known": record(ledger, 3, lac=1),
        "no LAC": record(ledger, 3, lac=-1),
        "a LAC that is not below it": _bent(following, lac=3),
        "a LAC below none": _bent(following, lac=-2),
        "of another ledger": record(ledger + 1000, 3),
        "an id beyond all": _bent(following, entry=entries.ENTRY_ID_MAX + 1),
        "the last id": _bent(following, entry=entries.ENTRY_ID_MAX),
        "another version": _bent(following, version=2),
        "a wrong digest": _bent(following, digest=7),
        "a length beyond the frame": _bent(following, length=len(following) + 8),
        "a length within the frame": _bent(following, length=len(following) - 8),
        "a payload that does not fit": _bent(following, payload=1),
        "a part of a header": following[:40],
        "something after it": following + bytes(8),
        "two": following + record(ledger, 4),
        "too large": record(ledger, 3, bytes(OPTIONS.gather_bytes)),
        "nothing": b"",
    }  # fmt: skip


async def _offered(state: str, *, short: bool) -> tuple[dict[str, object], int]:
    """What becomes of each offer, each to a ledger of its own in that state; how many went the short way."""
    said: dict[str, object] = {}
    lone = 0
    async with running(CutDisk()) as store:
        names = list(_offers(0))
        adders = []
        for number in range(1, len(names) + 1):
            adder = Adder(store, number, recovery=state == "recovery")
            if state != "unknown":
                adder.send(record(number, 0), record(number, 1), record(number, 2))
                await adder.all_acked()
                store.write_lac(adder.stream, 1)
            adders.append(adder)
        if state == "read-only":
            store.space.requested_read_only = True
        elif state == "no next file":
            store.space.set_next_file_missing(missing=True)
        elif state == "index behind":
            store._index.extents_in_memory += 1 << 40
        store.space.check()
        adds = store.add_handler
        for adder, name in zip(adders, names, strict=True):
            ledger, body = adder.stream.ledger, _offers(adder.ledger)[name]
            flags = {"fenced": FENCED, "limbo": LIMBO | FENCED, "deleted": DELETED}
            if state in flags:
                store.ledgers.set_flags(ledger, ledger.flags | flags[state])
            if state == "closed":
                store.add_handler.close_stream(adder.stream)
            frame = memoryview(b"before" + body + b"after")[: 6 + len(body)]
            lone_one = iter([(1, len(body))])
            taken = short and adds.add_single_entries({1: adder.stream}, lone_one, frame, 6) is None
            lone += taken
            if not taken:
                assert adds.add_records(adder.stream, frame[6:], adder.resume) == len(body)
            store.group_commit.commit_adds(adder)
            owed, refused = ledger.lac_unjournaled, [(type(one), at) for one, at in adder.refused]
            await trio.sleep(0.01)
            there = ledger.is_known and not ledger.deleted
            holds = list((await read_all(store, ledger.id)).values()) if there else []
            stats = store.stats
            said[name] = (
                refused, adder.stream.accepted, adder.acked, owed, ledger.last_added_entry, ledger.lac, holds,
                (stats.entries, stats.bytes, stats.payload_bytes, stats.duplicates, stats.refusals),
            )  # fmt: skip
        store._index.extents_in_memory %= 1 << 40
    return said, lone


@pytest.mark.parametrize(
    ("state", "lone"),
    [
        ("open", 6), ("recovery", 0), ("unknown", 0), ("fenced", 0), ("limbo", 0), ("deleted", 0),
        ("closed", 0), ("read-only", 0), ("no next file", 0), ("index behind", 0),
    ],
)  # fmt: skip
async def test_what_is_taken_alone_is_decided_as_all_else_is(
    autojump_clock: Clock, state: str, lone: int
) -> None:
    """H165: each record that may come, in each state that a ledger and its bookie may be in."""
    apart, none = await _offered(state, short=False)
    short, taken = await _offered(state, short=True)

    assert short == apart
    assert (taken, none) == (lone, 0)


async def test_what_is_gathered_leaves_in_one_call(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on an idle connection: its first entry does not go by itself, nor in a turn of the sender."""
    async with trio.open_nursery() as nursery:
        bookies = Bookies(nursery)
        clients = [await bookies.start(name, OPTIONS) for name in ("b1", "b2", "b3")]
        heard = {ledger: [opened(c, ledger) for c in clients] for ledger in range(1, 21)}
        together = {
            n: of[0].stream.shared_sender([one.stream for one in of]) for n, of in heard.items()
        }
        await trio.sleep(1)
        sends: list[int] = []
        for client in clients:
            connection = client.link._connection
            send = connection.try_send

            def noted(buffers: Any, send: Any = send) -> int:
                sends.append(len(buffers))
                return int(send(buffers))

            monkeypatch.setattr(connection, "try_send", noted)

        for client in clients:
            client.link.defer_sends()
        for ledger, shared in together.items():
            assert shared is not None
            assert shared(record(ledger, 0))
            for one in heard[ledger]:
                one.stream.send_lac(-1)
        assert sends == []
        for client in clients:
            client.link.send_deferred()

        assert [client.link.will_send for client in clients] == [
            bool(client.link.outgoing_bytes) for client in clients
        ]
        first_calls = len(sends)
        assert first_calls <= 6  # a pipe may take a part, and the rest waits for the sender
        await trio.sleep(1)
        for ledger, of in heard.items():
            assert [one.acked for one in of] == [1, 1, 1]
            assert list(await read_all(bookies.stores["b2"], ledger)) == [0]
        nursery.cancel_scope.cancel()
