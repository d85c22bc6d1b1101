"""What a process has under way over all its ledgers is bounded, and each of them gets its turn (H35)."""

import random
from collections import deque

import trio
from trio.testing import MockClock

from distributedlog.ledger.sent_bytes import CALLED_MAX, SentBytes, SentShare

from .model_bookie import model_cluster

ENTRY = 10


class Sender:
    """A ledger that has always more to send, an entry at a time."""

    def __init__(self, everybody: SentBytes, sends: "deque[Sender]") -> None:
        self.share: SentShare = everybody.share(self.send)
        self.under_way = self.sent = 0
        self.over = False
        self._sends = sends

    def send(self) -> None:
        while self.share.room and not self.over:
            self.share.sent(ENTRY)
            self.under_way += 1
            self.sent += 1
            self._sends.append(self)
        self.share.wait()

    def confirm(self) -> None:
        self.under_way -= 1
        self.share.left(self.under_way * ENTRY)
        self.send()


def test_the_bound_holds_and_everybody_gets_the_same() -> None:
    everybody = SentBytes(10 * ENTRY)
    under_way: deque[Sender] = deque()
    senders = [Sender(everybody, under_way) for _ in range(50)]
    for sender in senders:
        sender.send()
    for _ in range(5000):
        assert everybody.bytes == len(under_way) * ENTRY <= (9 + CALLED_MAX) * ENTRY
        under_way.popleft().confirm()

    counts = [sender.sent for sender in senders]
    assert sum(counts) >= 5010
    assert max(counts) - min(counts) <= 10  # the first ones had the bound to themselves


def test_nobody_waits_when_nothing_is_under_way() -> None:
    """Whoever ends, confirms, or was let go and sends nothing, in any order."""
    for seed in range(200):
        chance = random.Random(seed)
        everybody = SentBytes(5 * ENTRY)
        under_way: deque[Sender] = deque()
        senders = [Sender(everybody, under_way) for _ in range(12)]
        for _ in range(300):
            sender = chance.choice(senders)
            step = chance.random()
            if step < 0.5:
                if not sender.over:
                    sender.send()
            elif step < 0.95 and under_way:
                under_way.rotate(chance.randrange(len(under_way)))
                oldest = under_way.popleft()
                if not oldest.over:
                    oldest.confirm()
            elif not sender.over:
                sender.over = True
                sender.share.end()
                senders[senders.index(sender)] = Sender(everybody, under_way)
            assert everybody.bytes <= (4 + CALLED_MAX) * ENTRY
            assert everybody.bytes or all(one.share.room for one in senders)
        for one in senders:
            one.over = True
        while under_way:
            one = under_way.popleft()
            one.under_way = 0
            one.share.left(0)
            one.share.end()
        assert everybody.bytes == 0
        assert everybody.share(lambda: None).room


async def test_writers_of_one_process_take_turns(autojump_clock: MockClock) -> None:
    """Forty logs at full speed never have more than the bound on one connection, and all get through."""
    async with model_cluster(3) as cluster:
        client = await cluster.client(sent_bytes_max=2000)
        writers = [await client.create() for _ in range(40)]
        most = 0

        async def write(number: int) -> None:
            nonlocal most
            writer = writers[number]
            for _ in range(20):
                await writer.wait_room()
                writer.add([bytes(100)], 100)
                most = max(most, sum(one.in_flight_bytes for one in writers))
                await trio.lowlevel.checkpoint()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(write, number)
            while any(writer.lac < 19 for writer in writers):  # noqa: ASYNC110 (virtual time)
                await trio.sleep(0.01)
        assert most <= 2000 + CALLED_MAX * 200
        for writer in writers:
            writer.abort()
        assert client._sent.bytes == 0
