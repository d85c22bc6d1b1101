"""A server that says who asked, and one question to it."""

import trio

from distributedlog.runtime.interfaces.errors import DistributedLogError
from distributedlog.runtime.interfaces.host import Address, Host
from distributedlog.runtime.net.link import Link
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op
from distributedlog.runtime.protocol.handshake import Hello


class Saying:
    """Answers everything with who asks."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def on_frame(
        self, op: int, flags: int, status: int, ident: int, deadline_ms: int, body: memoryview
    ) -> None:
        self.link.reply(ident, f"{self.link.principal} {self.link.rights}".encode())

    def on_batch_end(self) -> None:
        pass

    def on_closed(self) -> None:
        pass


async def asked(host: Host, address: Address, hello: Hello | None = None) -> str:
    """Who the server says that we are. Raises what dialling raises."""
    failure: DistributedLogError | None = None
    answer = ""
    async with trio.open_nursery() as nursery:
        try:
            link = await Endpoint(host, lambda: hello or Hello()).dial(address, nursery=nursery)
            answer = bytes((await link.request(Op.INFO, timeout_s=5)).body).decode()
        except DistributedLogError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return answer
