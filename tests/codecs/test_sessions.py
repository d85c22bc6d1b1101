"""Frames of any kind at a served bookie and a served metadata node: they end connections, never a node.

H211: no assert of a core may be in reach of a peer's bytes, and no session does what nobody foresaw. The
frames are drawn from a seed: sound words with fields changed, sound words in the wrong order, noise.
"""

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing

from distributedlog.bookie.format import bookie_messages as m
from distributedlog.bookie.server import serve_bookie_protocol
from distributedlog.bookie.store.startup import open_store
from distributedlog.metadata.model import commands
from distributedlog.metadata.model.configuration import Configuration
from distributedlog.metadata.model.transaction import Compare, Delete, Put, Transaction
from distributedlog.metadata.protocol import client_messages as wire
from distributedlog.metadata.raft.raft_messages import encode as encode_raft
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import ConnectionLost
from distributedlog.runtime.net.client_link import ClientLink
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, envelope, pack
from distributedlog.runtime.protocol.handshake import Hello
from tests.bookie.kit import KEY, OPTIONS
from tests.examples import examples
from tests.metadata.quorum import Quorum
from tests.runtime.pipe import PipeNetwork

from . import mutations
from .registry import RAFT, RECORD

CONNECTIONS = 60
FRAMES = 40
EDGES = [0, 1, 2, 7, 255, 2**31, 2**32 - 1, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def bookie_words(chance: random.Random) -> tuple[int, int, int, bytes]:
    """(operation, flags, ident, body)"""

    def some(bits: int = 64) -> int:
        drawn: int = chance.choice([*range(4), *EDGES])
        return drawn % (1 << bits)

    signed = some() - (1 << 63) if chance.random() < 0.02 else chance.choice([-1, some(63)])
    key = KEY if chance.random() < 0.8 else bytes(16)
    ledger = chance.choice([7, 7, 7, 8, some()])
    first, last = sorted((some(63), some(63)))
    words = [
        (Op.STREAM_OPEN, m._STREAM_OPEN.pack(ledger, key, chance.randrange(5), some(32))),
        (Op.ADD, RECORD),
        (Op.ADD, RECORD[: len(RECORD) // 2]),
        (Op.WRITE_LAC, m._LAC.pack(signed)),
        (
            Op.ADD_MANY,
            m.encode_add_many_items([1, chance.choice([1, 2, 3])], [len(RECORD)] * 2) + 2 * RECORD,
        ),
        (Op.ADD_MANY, m.encode_add_many_items([1, some(32)], [len(RECORD), 0]) + RECORD),
        (Op.WRITE_LACS, m._STREAM_LAC.pack(some(), signed) + m._STREAM_LAC.pack(1, some(40))),
        (Op.READ, m._READ.pack(ledger, key, first, last, some(32), chance.randrange(4))),
        (Op.READ, m._READ.pack(7, KEY, 0, some(63), some(32), chance.randrange(4))),
        (Op.FENCE, m._LEDGER.pack(ledger, key)),
        (Op.READ_LAC, m._LEDGER.pack(ledger, key)),
        (Op.LIST_ENTRIES, m._LEDGER.pack(ledger, key)),
        (Op.WAIT_LAC, m._WAIT_LAC.pack(ledger, key, signed, some(32), some(32))),
        (Op.INFO, b""),
    ]
    op, body = chance.choice(words)
    if op == Op.STREAM_OPEN:
        return op, 0, some(), body
    return op, chance.randrange(2), chance.choice([1, 1, 2]), body


def metadata_words(chance: random.Random) -> tuple[int, int, int, bytes]:
    """(operation, flags, ident, body)"""
    number = chance.choice(EDGES if chance.random() < 0.03 else EDGES[:9])
    transaction = Transaction(
        (Compare.version(b"a", chance.randrange(3)),),
        (
            Put(b"a", b"v", chance.choice([0, 0, 1, 2**63 - 1])),
            Delete(chance.choice([b"b", b"\xff"])),
        ),
    )
    client = chance.choice(["x", "y"])
    sound = min(number, 2**63 - 1)
    words = [
        (Op.META_READ, wire.RangeRequest(b"a", None).encode()),
        (Op.META_READ, wire.RangeRequest(b"", b"\xff", max(1, sound)).encode()),
        (Op.META_READ, wire.RangeRequest(b"\xff", b"", 5).encode()),
        (
            Op.META_TRANSACT,
            commands.encode_command(commands.Transact(client, sound, sound, transaction)),
        ),
        (Op.META_TRANSACT, commands.encode_command(commands.GrantLease(client, sound, 0, sound))),
        (Op.META_TRANSACT, commands.encode_command(commands.RevokeLease(client, sound, 0, sound))),
        (Op.META_LEASE, pack(["renew", number])),
        (Op.META_WATCH, pack([b"", b"\xff", chance.choice([0, 1, number])])),
        (Op.META_WATCH_CANCEL, b""),
        (Op.META_STATUS, pack([chance.choice(["self", "all"])])),
        (Op.META_MEMBERS, pack(["show"])),
        (
            Op.META_MEMBERS,
            pack(["add", "mx", chance.choice(["h:²", "a..b:1", "h:99999", ":", "h\0:1"])]),
        ),
        (Op.META_MEMBERS, pack(["remove", chance.choice(["n9", "\0", ""])])),
        (Op.META_FORM, b""),
        (Op.META_FORM, pack(["c9", {"n1": "0" * 32}])),
        (Op.INFO, b""),
    ]
    ending = [
        (Op.META_TRANSACT, commands.encode_command(commands.ExpireLease(lease=sound))),
        (Op.META_TRANSACT, Configuration.from_ids(["evil"]).encode()),
        (Op.META_RAFT, encode_raft(chance.choice(RAFT))),
    ]
    op, body = chance.choice(ending if chance.random() < 0.02 else words)
    return op, 0, chance.choice([1, 2, 3, number]), body


Words = Callable[[random.Random], tuple[int, int, int, bytes]]


async def storm(
    dial: Callable[[], Awaitable[ClientLink]],
    words: Words,
    chance: random.Random,
    beginning: Sequence[bytes] = (),
) -> int:
    """Connections, each with frames until one of them ends it; how many were ended."""
    ended = 0
    for _ in range(CONNECTIONS):
        link = await dial()
        for ident, kept in enumerate(beginning, 1):
            link.send(envelope(Op.STREAM_OPEN, len(kept), ident=ident), kept)
        for _ in range(FRAMES):
            op, flags, ident, body = words(chance)
            kind = chance.random()
            if kind < 0.02:
                body = next(mutations.random_ones([body or b"\0"], chance))
            elif kind < 0.03:
                op = chance.randrange(256)
            if link.closed is not None:
                break
            link.send(envelope(op, len(body), ident=ident, flags=flags), body)
            if chance.random() < 0.2:
                await trio.sleep(0.01)
        await trio.sleep(0.05)
        ended += link.closed is not None
        link.close(ConnectionLost("the next one"))
    return ended


@pytest.mark.parametrize("seed", range(6))
async def test_no_frame_ends_a_bookie(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    network, disk = PipeNetwork(seed), MemoryDisk()
    host = network.host("b", journal=disk, index=disk)
    store = await open_store(host, OPTIONS, bookie_id="b1")
    server = Endpoint(host, lambda: Hello("c1", "b1", "bookie"))
    stranger = Endpoint(network.host("s"), Hello)
    listener = await host.listen(("b", 1))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await nursery.start(serve_bookie_protocol, server, {"": listener}, store)

        ended = await storm(
            lambda: stranger.dial(("b", 1), nursery=nursery),
            bookie_words,
            random.Random(seed),
            [m._STREAM_OPEN.pack(7, KEY, flags, 0) for flags in (0, m.STREAM_RECOVERY)],
        )

        link = await stranger.dial(("b", 1), nursery=nursery)
        await link.request(Op.INFO, timeout_s=5)
        assert ended > 0
        assert server.rejection_log.counts_by_reason.get("fault while serving", 0) == 0
        nursery.cancel_scope.cancel()


@pytest.mark.properties
@pytest.mark.parametrize("seed", range(examples(2)))
async def test_no_frame_ends_a_metadata_node(
    seed: int, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with trio.open_nursery() as nursery:
        quorum = Quorum(["n1", "n2", "n3"], nursery, seed=seed)
        await quorum.start()
        await quorum.leader()
        chance = random.Random(seed)
        # As nobody, as somebody who says that he is a metadata node, and as one of the members.
        hellos = [Hello(), Hello(node_id="0" * 32, kind="metadata")]
        ended = 0
        for hello in hellos:
            stranger = Endpoint(quorum._network.host("s"), lambda hello=hello: hello)  # type: ignore[misc]
            for name in quorum.names:
                ended += await storm(
                    lambda name=name, stranger=stranger: stranger.dial(  # type: ignore[misc]
                        (name, 4181), nursery=nursery
                    ),
                    metadata_words,
                    chance,
                )

        assert ended > 0
        with trio.fail_after(60):
            await quorum.leader()
        assert "fault while serving" not in caplog.text
        nursery.cancel_scope.cancel()
