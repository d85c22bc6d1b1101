"""What a node promised that has forgotten it, from all other voters' word (H106).

Whoever got this node's vote in a term had stored that term first, and still has it. An entry that was
committed with this node's acknowledgement is durable on one other voter at least, and stays there. So the
highest term, and the last entry, of *all* other voters bound everything that this node can have promised: it
takes them for its own word (`recovered_hard_state.py`), in a term that is safely above, its vote there as
given away. One voter that is silent may be the one that knows: it is waited for, until all answer at one
time. Two that have forgotten wait for each other, and for an operator.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import trio

from ...runtime.interfaces.errors import DistributedLogError, ProtocolError
from ...runtime.interfaces.host import Address, Buffer
from ...runtime.interfaces.principals import METADATA
from ...runtime.net.client_link import ClientLink
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.frames import Op, pack
from ...runtime.protocol.schema import blob, message, number, row, text
from ..model.configuration import Configuration, decode_configuration, parse_place
from ..raft.raft_messages import TERM_MAX
from ..raft.ready import HardState
from ..raft.recovered_hard_state import RaftEntryId, RecoveredHardState

GIVEN_AWAY = "?"
"""Nobody's id: a vote that may have been given to anybody."""
TERMS_AHEAD = 1000
"""Of the others' highest term a node goes on that has forgotten its own: it may have stood in later ones
without anybody hearing of it, and what was said in those, or of its old log, must count for nothing."""
ASK_S = 2.0
_FORM = row(
    text(chars_min=1), number(0, TERM_MAX), number(0, TERM_MAX), number(), blob(64 * 1024, 1)
)


@dataclass(frozen=True, slots=True)
class VoterReport:
    """What a voter says to one that has forgotten: its term, and the last entry that it ever had."""

    node_id: str
    term: int
    last: RaftEntryId
    configuration: Configuration

    def encode(self) -> bytes:
        """As a frame body."""
        members = self.configuration.encode()
        return pack([self.node_id, self.term, self.last.term, self.last.at, members])

    @classmethod
    def decode(cls, body: Buffer) -> "VoterReport":
        """Raises `ProtocolError`."""
        node_id, term, *last, members = message(body, _FORM, "a voter's statement")
        if last[0] > term:
            raise ProtocolError("a voter's statement of an entry newer than its term")
        return cls(node_id, term, RaftEntryId(*last), decode_configuration(members))


def recovered_hard_state(node_id: str, said: Mapping[str, VoterReport]) -> RecoveredHardState | str:
    """The word that ``node_id`` is held to by all that was ``said``, by node id; or why that is not all."""
    members = [member for one in said.values() for member in one.configuration.members]
    others = {m.node_id: m.name for m in members if m.votes and m.node_id != node_id}
    if not any(member.node_id == node_id for member in members):
        return "nobody who knows this node has answered"
    silent = sorted(name for voter, name in others.items() if voter not in said)
    if silent or not others:
        return f"{', '.join(silent) or 'nobody else'} must say what this node may have promised"
    term = min(TERM_MAX, max(one.term for one in said.values()) + TERMS_AHEAD)
    last = max(one.last for one in said.values())
    return RecoveredHardState(HardState(term, GIVEN_AWAY), last)


def places_of(said: Mapping[str, VoterReport]) -> dict[str, Address]:
    """Where the members are that were heard of, by name."""
    found: dict[str, Address] = {}
    for one in said.values():
        for member in one.configuration.members:
            place = parse_place(member.address)
            if place is not None:
                found[member.name] = place
    return found


async def request_voter_reports(
    endpoint: Endpoint, node_id: str, places: Iterable[Address], cluster_id: str
) -> tuple[dict[str, VoterReport], RecoveredHardState | str]:
    """What is said there now, by node id; and the word that it holds ``node_id`` to, or why there is none.

    All are asked twice over the same connections, the second time when all have answered once. Between
    the two there was a moment at which all of them lived and had not ended since they were first asked: a
    leader that still counted this node's acknowledgements then has said what it counts, and what
    was committed with them until then is told by who has it durably. Asked one by one, a leader that ends
    in between could have committed, after the first had answered, what it does not have itself (H106).
    """
    first: dict[str, VoterReport] = {}
    again: dict[str, VoterReport] = {}
    links: dict[str, ClientLink] = {}
    word: RecoveredHardState | str = ""

    async def ask(place: Address) -> None:
        with suppress(DistributedLogError), trio.move_on_after(ASK_S):
            link = await endpoint.dial(place, nursery=nursery, kind=METADATA)
            if link.peer.cluster_id == cluster_id and link.peer.kind == "metadata":
                said = await _statement_of(link)
                if said.node_id == link.peer.node_id:
                    first[said.node_id], links[said.node_id] = said, link

    async def ask_again(link: ClientLink) -> None:
        with suppress(DistributedLogError):
            said = await _statement_of(link)
            again[said.node_id] = said

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as asking:
            for place in places:
                asking.start_soon(ask, place)
        word = recovered_hard_state(node_id, first)
        if isinstance(word, RecoveredHardState):
            async with trio.open_nursery() as asking:
                for link in links.values():
                    asking.start_soon(ask_again, link)
            word = joined(word, recovered_hard_state(node_id, again))
        nursery.cancel_scope.cancel()
    return first, word


async def _statement_of(link: ClientLink) -> VoterReport:
    reply = await link.request(Op.META_RECALL, timeout_s=ASK_S)
    return VoterReport.decode(reply.body)


def joined(one: RecoveredHardState, other: RecoveredHardState | str) -> RecoveredHardState | str:
    """What two rounds of questions hold a node to; ``other`` may say why the second one was not whole."""
    if isinstance(other, str):
        return other
    term = max(one.hard_state.term, other.hard_state.term)
    return RecoveredHardState(HardState(term, GIVEN_AWAY), max(one.last, other.last))
