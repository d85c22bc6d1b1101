"""Where a client of the quorum finds nodes: the addresses it was given, and those that members tell it.

Members come and go, and a client may outlive all that it was given: every node it is connected to is asked
who forms the quorum now, once, and again every minute.
"""

from collections.abc import Sequence

import trio

from ..runtime.client_link import ClientLink
from ..runtime.errors import DistributedLogError
from ..runtime.frames import Op
from ..runtime.host import Address
from .configuration import parse_place
from .wire import MembersRequest, decode_members

ASK_AGAIN_S = 60.0
ASK_S = 2.0


class KnownNodes:
    """Addresses in the order in which they are tried: the members' first, then the given ones."""

    def __init__(self, given: Sequence[Address]) -> None:
        assert given, "a quorum without addresses"
        self.all = list(given)
        self._given = list(given)

    def after(self, asked: Address) -> Address:
        """The one to try after ``asked``."""
        place = self.all.index(asked) if asked in self.all else -1
        return self.all[(place + 1) % len(self.all)]

    def learn(self, members: Sequence[Address]) -> None:
        """These are the members now."""
        if not {*members} <= {*self._given}:  # else the order that was given is as good
            self.all = [*members, *(place for place in self._given if place not in members)]

    async def keep_up(self, link: ClientLink) -> None:
        """Learn from one node for as long as it is connected."""
        ended = trio.Event()
        link.on_closed.append(lambda _: ended.set())
        while link.closed is None:
            try:
                reply = await link.request(
                    Op.META_MEMBERS, MembersRequest("show").encode(), timeout_s=ASK_S
                )
                places = [parse_place(reach.address) for reach in decode_members(reply.body)]
                self.learn([place for place in places if place is not None])
            except DistributedLogError:
                pass  # another node, or the next time
            with trio.move_on_after(ASK_AGAIN_S):
                await ended.wait()
