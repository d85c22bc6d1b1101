"""A producer that speaks the frames itself: what it sends, and all that it is told."""

from dataclasses import dataclass, field

import trio

from distributedlog.log.format.dlsn import DLSN
from distributedlog.proxy.protocol import proxy_messages as wire
from distributedlog.runtime.net.client_link import ClientLink
from distributedlog.runtime.protocol.frames import Op


@dataclass
class RawProducer:
    """Over one connection; any number of streams."""

    link: ClientLink
    acks: list[wire.Ack] = field(default_factory=list)
    refusals: dict[int, wire.Refusal] = field(default_factory=dict)
    ack_frames: int = 0
    _news: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.link.subscribe(self._on_frame)

    async def open(
        self,
        stream: int,
        log: str,
        *,
        through: int = 0,
        suspect: str = "",
        producer: str = "",
        number: int = 0,
    ) -> wire.ProduceOpened:
        request = wire.ProduceOpen(
            stream,
            "default",
            log,
            acked_through=through,
            suspect_proxy_id=suspect,
            producer=producer,
            producer_number=number,
        )
        reply = await self.link.request(Op.PRODUCE_OPEN, request.encode(), timeout_s=20)
        return wire.ProduceOpened.decode(reply.body)

    def send(
        self,
        stream: int,
        first: int,
        *payloads: bytes,
        txids: list[int] | None = None,
        expect: DLSN | None = None,
    ) -> None:
        self.link.send(wire.encode_produce(stream, first, 0, txids, payloads, expect=expect))

    def publish(self, stream: int) -> None:
        self.link.send(wire.encode_stream_notice(Op.PRODUCE_PUBLISH, stream))

    async def commit(self, stream: int) -> None:
        await self.link.request(Op.PRODUCE_COMMIT, wire.encode_commit(stream), timeout_s=20)

    async def acked(self, count: int) -> list[wire.Ack]:
        """So many acknowledgements in sum."""
        while len(self.acks) < count:
            await self._news.wait()
        return self.acks

    async def news(self) -> None:
        """Until anything is told."""
        await self._news.wait()

    async def refused(self, stream: int) -> wire.Refusal:
        """What a stream is refused with."""
        while stream not in self.refusals:
            await self._news.wait()
        return self.refusals[stream]

    def _on_frame(self, op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
        if op == Op.PRODUCE_ACKS:
            self.acks += wire.decode_acks(body)
            self.ack_frames += 1
        else:
            assert op == Op.PRODUCE_REFUSED
            assert ident not in self.refusals, "a stream has one last word"
            self.refusals[ident] = wire.Refusal.decode(status, body)
        self._news.set()
        self._news = trio.Event()
