"""Frames of any kind at a read proxy end their connection, and harm no other reader (H211)."""

import random

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.proxy.protocol.read_messages import Subscribe, encode_credit
from distributedlog.runtime.interfaces.errors import ConnectionLost
from distributedlog.runtime.protocol.frames import Op, envelope, pack
from tests.codecs import mutations
from tests.log.conftest import World
from tests.log.records import rec
from tests.proxy.read_kit import proxies

CONNECTIONS, FRAMES = 40, 25
EDGES = [0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def frame(chance: random.Random, incarnation: str) -> bytes:
    """Sound words, sound words with other numbers, changed ones, noise."""
    place = DLSN(
        chance.choice([0, 1, 1, 2, 9]), chance.choice([0, 3, 10**14]), chance.choice([0, 5])
    )
    ask = Subscribe(
        chance.choice(["ns", "ns", "no/such", ""]),
        chance.choice(["l", "l", "none", "../l"]),
        chance.choice(["", incarnation, incarnation, "0" * 16, "no hex digits at"]),
        resumes=chance.random() < 0.1,
        at=chance.choice(["earliest", "latest"]),
        dlsn=chance.choice([None, place]),
        sequence_id=chance.choice([-1, 0, 7, 2**62]),
        proven=chance.random() < 0.5,
        txid=chance.choice([None, None, 3]),
        to=chance.choice([None, place]),
        to_end=chance.random() < 0.3,
        credit=chance.choice([1, 70_000, 1 << 26]),
    ).encode()
    words = [
        (Op.SUBSCRIBE, ask, 12),
        (Op.CREDIT, encode_credit(chance.choice(EDGES)), 2),
        (Op.CREDIT, encode_credit(chance.randrange(1 << 26)), 2),
        (Op.UNSUBSCRIBE, b"", 4),
        (Op.PING, b"", 1),
        (Op.SUBSCRIBE, next(mutations.random_ones([ask], chance)), 1),
        (chance.choice([Op.ENTRIES, Op.SUBSCRIPTION_ENDED, 200]), pack([1]), 1),
    ]
    ((op, body, _),) = chance.choices(words, [weight for *_, weight in words])
    return envelope(op, len(body), ident=chance.choice([*range(12), *EDGES])) + body


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_frame_ends_a_read_proxy(
    nursery: trio.Nursery, autojump_clock: MockClock, seed: int
) -> None:
    chance, world = random.Random(seed), World(nursery)
    async with world.process() as ns, proxies(world) as through:
        log = ns.open_log("l")
        async with log.open_writer() as writer:
            for txid in range(5):
                await writer.write(rec(txid))
            await writer.commit()
            incarnation = f"{(await log.describe()).state.log_id:016x}"
            good = await through.reader("l")
            ended = 0
            for _ in range(CONNECTIONS):
                link = await through.endpoint.dial(through.known[0], nursery=nursery)
                link.subscribe(lambda *frame: None)
                for _ in range(chance.randrange(1, FRAMES)):
                    link.send(frame(chance, incarnation))
                    await trio.sleep(chance.choice([0, 0, 0.01]))
                await trio.sleep(0.2)
                ended += link.closed is not None
                link.close(ConnectionLost("enough"))

            for txid in range(5, 10):
                await writer.write(rec(txid))
            await writer.commit()
            assert [one.txid for one in await good.read_bulk(10, wait_s=5)] == list(range(10))
            assert 0 < ended < CONNECTIONS
            await trio.sleep(1)
            server = through.running[0].server
            assert (
                server.open_subscriptions
                == sum(feed.subscribers for feed in server._all_feeds)
                == 1
            )
