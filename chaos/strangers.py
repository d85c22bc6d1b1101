"""Somebody who is no peer: knocks at a node's port, and speaks something else."""

from collections import Counter

import trio

from ..runtime.host import Address

WORDS = b"GET /metrics HTTP/1.1\r\nHost: somewhere\r\n\r\n" + bytes(64)
WAIT_S = 5.0


async def knock(address: Address, per_s: float, told: Counter[str]) -> None:
    """So many connections a second at most, one after the other, until cancelled; ``told`` counts them."""
    while True:
        told["knocked"] += 1
        try:
            with trio.move_on_after(WAIT_S):
                async with await trio.open_tcp_stream(*address) as stream:
                    await stream.send_all(WORDS)
                    if await stream.receive_some(1):
                        told["answered"] += 1
        except (OSError, trio.BrokenResourceError):
            pass  # hung up on: what is expected
        await trio.sleep(1.0 / per_s)
