"""Frames of any kind at a write proxy end their connection, and harm no other producer (H211)."""

import random
import struct
from typing import Any

import pytest
import trio
import xxhash

from distributedlog.log.format.dlsn import DLSN
from distributedlog.proxy.protocol import proxy_messages as wire
from distributedlog.proxy.write.hosted_log import HostedLog
from distributedlog.proxy.write.log_manager import LogManager
from distributedlog.runtime.interfaces.errors import ConnectionLost, Moved
from distributedlog.runtime.protocol.frames import Op, envelope, pack
from tests.codecs import mutations
from tests.examples import few
from tests.proxy.proxy_world import world
from tests.proxy.raw_producer import RawProducer

CONNECTIONS, FRAMES = 40, 40
EDGES = [0, 1, 2**31, 2**32 - 1, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
LOGS = ["orders", "given", "undecided", "none", "../l", "x" * 300]


def lying(chance: random.Random) -> bytes:
    """The body of a PRODUCE whose digest fits and whose columns are what they are."""
    count = chance.choice([0, 1, 2, 3, 65_536, 65_537, 2**32 - 1])
    body = struct.pack(
        "<QQII",
        chance.choice([0, 0, 1, *EDGES]),
        chance.choice([0, 0, *EDGES]),
        count,
        chance.choice([0, 0, 1, 2, 3, 4, 7, 8, 2**31]),
    )
    words = chance.randrange(12)
    body += struct.pack(f"<{words}I", *chance.choices([0, 1, 2, 5, 2**31, 2**32 - 1], k=words))
    body += chance.randbytes(chance.choice([0, 1, 8, 60]))
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) + body


def produced(chance: random.Random, stream: int) -> bytes:
    """A whole PRODUCE whose columns fit, with numbers of any kind."""
    count = chance.choice([1, 1, 2, 3])
    txids = [chance.choice([0, 1, 2**62, -1, 2**63 - 1]) for _ in range(count)]
    place = DLSN(
        chance.choice([0, 1, 2**63]), chance.choice([-(2**63), 0, 1, 2**62]), chance.choice([-1, 0])
    )
    return wire.encode_produce(
        stream,
        chance.choice([0, 0, 1, 2, 3, 2**62 - 2]),
        0,
        chance.choice([None, None, txids]),
        [chance.randbytes(chance.choice([0, 1, 100])) for _ in range(count)],
        record_flags=chance.choice([None, None, chance.randbytes(count), bytes(count)]),
        expect=chance.choice([None, None, place]),
    )


def call(chance: random.Random) -> bytes:
    name = chance.choice([*wire.LOG_CALLS])
    given: dict[str, list[Any]] = {
        "create": [chance.choice(["standard", "all"]), {"codec": chance.choice(["no", 3])}, {}, ""],
        "page": [chance.choice(["", "\U0010ffff" * 200]), "", chance.choice([1, 10_000])],
        "rename": [chance.choice(LOGS)],
        "delete": [0.0],
        "truncate": [chance.choice([None, [1, 2**62, 5]]), chance.choice([None, 2**63]), None],
        "seal": [chance.random() < 0.5, 0.0],
        "describe": [1000],
        "set": [{chance.choice(LOGS): chance.choice([None, 2**63, float("nan")])}, {}],
        "find": [chance.choice([None, 2**63, 2**64 - 1]), chance.choice([None, 2**63])],
        "count": [None, chance.choice([None, [1, 0, 0]])],
    }
    log = chance.choice(["undecided", "none", "../l", "", "x" * 300])  # not the one that is judged
    return wire.LogCall("default", name, log, "", given.get(name, [])).encode()


def frame(chance: random.Random) -> bytes:
    """Sound words, sound words with other numbers, changed ones, noise."""
    stream = chance.choice([*range(1, 6), *EDGES]) & 2**64 - 1
    strange = chance.random() < 0.2
    ask = pack(
        [
            chance.choice([2**32 - 1, 2**32, 0, 1]) if strange else chance.randrange(4, 2**31),
            chance.choice(["default", "default", "/default/", "no/such", "", "../x"]),
            chance.choice([*LOGS, "", "\ud7ff"]) if strange else chance.choice(LOGS),
            chance.choice(["", "", "", "0" * 16, "no hex digits at"]),
            chance.choice(["", "", "p", "\x00", "~user/p", "x" * 255]),
            chance.choice([2**62, 2**63, 2**64 - 1]) if strange else chance.choice([0, 0, 1]),
            chance.choice([2**62 - 1, 2**62]) if strange else chance.choice([0, 0, 1]),
            chance.choice(["", "", "somebody"]),
            chance.random() < 0.5,
        ]
    )
    body = lying(chance)
    order = chance.choice([["owned", ["", 9]], ["would_refuse", []], ["owned", ["\x00" * 9, 1000]]])
    words = [
        (_of(Op.PRODUCE_OPEN, ask), 4),
        (produced(chance, chance.choice([1, 2, 3])), 20),
        (envelope(Op.PRODUCE, len(body), ident=stream) + body, 1),
        (wire.encode_stream_notice(Op.PRODUCE_PUBLISH, stream), 2),
        (wire.encode_stream_notice(Op.PRODUCE_CLOSE, stream), 1),
        (_of(Op.LOG_CALL, call(chance)), 4),
        (_of(Op.PROXY_CALL, pack(order)), 2),
        (_of(Op.MEMBERS, b""), 1),
    ]
    if chance.random() < 0.1:
        words += [
            (_of(Op.LOG_CALL, next(mutations.random_ones([call(chance)], chance))), 10),
            (_of(Op.PRODUCE_OPEN, next(mutations.random_ones([ask], chance))), 10),
            (_of(chance.choice([Op.SUBSCRIBE, Op.PRODUCE_ACKS, 200]), pack([1])), 10),
            (envelope(Op.PRODUCE, len(body), ident=1) + body, 20),
        ]
    ((found, _),) = chance.choices(words, [weight for _, weight in words])
    return found


def _of(op: int, body: bytes) -> bytes:
    return envelope(op, len(body), ident=9) + body


@pytest.mark.parametrize("seed", few([1, 2], 1))
async def test_no_frame_ends_a_write_proxy(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed)
    async with world() as it:
        proxy = await it.proxy("w1", open_wait_s=0.2)
        good = await it.producer(proxy)
        await good.open(1, "judged")
        await it.namespace.create_log("orders", txids="count")
        await it.namespace.create_log("given", txids="given")
        for ended in range(CONNECTIONS):
            link = await it.endpoint.dial(proxy.address, nursery=it.nursery)
            bad = RawProducer(link)
            link.subscribe(lambda *frame: None)
            for stream, log in enumerate(("orders", "given", "undecided"), 1):
                await bad.open(stream, log, producer=chance.choice(["", "p"]))
            for _ in range(chance.randrange(1, FRAMES)):
                link.send(frame(chance))
                if chance.random() < 0.3:
                    await trio.sleep(chance.choice([0, 0.005]))
            good.send(1, ended, b"%d" % ended)
            await good.acked(ended + 1)
            link.close(ConnectionLost("enough"))

        good.publish(1)
        await good.open(2, "judged")
        assert await it.stored("judged") == [b"%d" % n for n in range(CONNECTIONS)]
        for log in ("orders", "given", "undecided"):  # whatever is in them can be read
            if await it.namespace.log_exists(log):
                await it.stored(log)
    faults = [one for one in caplog.records if one.exc_info or "fault" in one.getMessage()]
    assert not faults, "each was met by an error that is foreseen"


@pytest.mark.parametrize("how", ["its client has gone", "its client has closed it"])
async def test_an_opening_that_nobody_wants_any_more_waits_no_longer(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """H185: who connects, asks for logs that another one has, and goes, again and again, leaves no tasks."""
    waiting = 0

    async def stuck(self: LogManager, request: wire.ProduceOpen) -> HostedLog:
        nonlocal waiting
        waiting += 1
        try:
            await trio.sleep_forever()
        finally:
            waiting -= 1

    monkeypatch.setattr(LogManager, "find_or_open", stuck)
    async with world() as it:
        proxy = await it.proxy("w1")
        link = (await it.producer(proxy)).link
        asked = []
        for stream in range(1, 101):
            request = wire.ProduceOpen(stream, "default", f"log{stream}").encode()
            asked.append(link.start_request(Op.PRODUCE_OPEN, request, timeout_s=60))
        await link.request(Op.INFO, timeout_s=20)
        assert waiting == 100
        if "gone" in how:
            link.close(ConnectionLost("the test wants it"))
        else:
            for stream in range(1, 101):
                link.send(wire.encode_stream_notice(Op.PRODUCE_CLOSE, stream))
            for one in asked:
                with pytest.raises(Moved):
                    await link.wait_reply(one, 20)
        other = (await it.producer(proxy)).link
        with trio.fail_after(20):
            while waiting:
                await other.request(Op.INFO, timeout_s=20)
