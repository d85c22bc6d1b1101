"""Strangers at a port: what is no frame of ours, half of one, or nothing at all."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import trio

from distributedlog.runtime.interfaces.host import Address
from distributedlog.runtime.protocol import handshake as hellos
from distributedlog.runtime.protocol.frames import ENVELOPE, Op, envelope, pack
from distributedlog.runtime.protocol.handshake import Hello

REFUSED_WITHIN_S = 15.0
"""The handshake's deadline is 5 s; the rest is for a busy machine."""
IDLE = 200
GIB = 1 << 30

Chunks = Callable[[], AsyncIterator[bytes]]


async def one_gib_announced() -> AsyncIterator[bytes]:
    """A length prefix of 1 GiB, and then bytes and bytes."""
    yield ENVELOPE.pack(GIB, Op.HELLO, 0, 0, 0, 0, 0)
    for _ in range(64):
        yield bytes(1 << 20)


async def one_gib_after_the_greeting() -> AsyncIterator[bytes]:
    """The same by one who has said hello."""
    body = hellos.encode_hello(Hello(kind="client", label="stranger"))
    auth = pack({"method": "none"})
    yield envelope(Op.HELLO, len(body)) + body + envelope(Op.AUTH, len(auth)) + auth
    yield ENVELOPE.pack(GIB, Op.READ, 0, 0, 1, 1000, 0)
    for _ in range(64):
        yield bytes(1 << 20)


async def random_bytes() -> AsyncIterator[bytes]:
    """A megabyte that means nothing."""
    chance = random.Random(7)
    for _ in range(16):
        yield chance.randbytes(1 << 16)


async def frames_before_the_greeting() -> AsyncIterator[bytes]:
    """A sound frame, but nobody knows from whom."""
    yield envelope(Op.READ, 100) + bytes(100)


async def slow_bytes() -> AsyncIterator[bytes]:
    """The beginning of a sound frame, a byte a second."""
    for byte in envelope(Op.HELLO, 60_000) + bytes(60_000):
        yield bytes([byte])
        await trio.sleep(1.0)


async def http() -> AsyncIterator[bytes]:
    """Somebody's browser."""
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def tls() -> AsyncIterator[bytes]:
    """The beginning of a TLS hello."""
    yield bytes.fromhex("16030100c8010000c40303") + random.Random(8).randbytes(190)


async def silence() -> AsyncIterator[bytes]:
    """Nothing."""
    return
    yield b""


KINDS: dict[str, Chunks] = {
    made.__name__: made
    for made in (
        one_gib_announced,
        one_gib_after_the_greeting,
        random_bytes,
        frames_before_the_greeting,
        slow_bytes,
        http,
        tls,
    )
}


async def refused_after(address: Address, chunks: Chunks) -> float:
    """Connect, send all that; seconds until the other side has ended the connection.

    Raises `trio.TooSlowError` if it has not within `REFUSED_WITHIN_S`.
    """
    began = trio.current_time()
    with trio.fail_after(REFUSED_WITHIN_S):
        stream = await trio.open_tcp_stream(*address)
        async with stream, trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    async for chunk in chunks():
                        await stream.send_all(chunk)
                except trio.BrokenResourceError:
                    pass  # refused while we were still talking

            nursery.start_soon(send)
            try:
                while await stream.receive_some(65_536):
                    pass  # an answer that says what was wrong
            except trio.BrokenResourceError:
                pass
            nursery.cancel_scope.cancel()
    return trio.current_time() - began


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that no file is behind."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/smaps_rollup has no line Anonymous")
