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
from ...runtime.protocol.schema import blob, decode_message, number, row, text
from ..model.configuration import Configuration, decode_configuration, parse_host_port
from ..raft.raft_messages import TERM_MAX
from ..raft.ready import HardState
from ..raft.recovered_hard_state import RaftEntryId, RecoveredHardState

UNKNOWN_VOTE = "?"
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
    last_entry: RaftEntryId
    configuration: Configuration

    def encode(self) -> bytes:
        """As a frame body."""
        members = self.configuration.encode()
        return pack(
            [self.node_id, self.term, self.last_entry.term, self.last_entry.log_index, members]
        )

    @classmethod
    def decode(cls, body: Buffer) -> "VoterReport":
        """Raises `ProtocolError`."""
        node_id, term, *last, members = decode_message(body, _FORM, "a voter's statement")
        if last[0] > term:
            raise ProtocolError("a voter's statement of an entry newer than its term")
        return cls(node_id, term, RaftEntryId(*last), decode_configuration(members))


def recovered_hard_state(
    node_id: str, reports: Mapping[str, VoterReport]
) -> RecoveredHardState | str:
    """The word that ``node_id`` is held to by all that was ``said``, by node id; or why that is not all."""
    members = [member for report in reports.values() for member in report.configuration.members]
    others = {m.node_id: m.name for m in members if m.votes and m.node_id != node_id}
    if not any(member.node_id == node_id for member in members):
        return "nobody who knows this node has answered"
    silent_voters = sorted(name for voter, name in others.items() if voter not in reports)
    if silent_voters or not others:
        return (
            f"{', '.join(silent_voters) or 'nobody else'} must say what this node may have promised"
        )
    term = min(TERM_MAX, max(report.term for report in reports.values()) + TERMS_AHEAD)
    last = max(report.last_entry for report in reports.values())
    return RecoveredHardState(HardState(term, UNKNOWN_VOTE), last)


def member_addresses(reports: Mapping[str, VoterReport]) -> dict[str, Address]:
    """Where the members are that were heard of, by name."""
    addresses: dict[str, Address] = {}
    for report in reports.values():
        for member in report.configuration.members:
            address = parse_host_port(member.address)
            if address is not None:
                addresses[member.name] = address
    return addresses


async def request_voter_reports(
    endpoint: Endpoint, node_id: str, addresses: Iterable[Address], cluster_id: str
) -> tuple[dict[str, VoterReport], RecoveredHardState | str]:
    """What is said there now, by node id; and the word that it holds ``node_id`` to, or why there is none.

    All are asked twice over the same connections, the second time when all have answered once. Between
    the two there was a moment at which all of them lived and had not ended since they were first asked: a
    leader that still counted this node's acknowledgements then has said what it counts, and what
    was committed with them until then is told by who has it durably. Asked one by one, a leader that ends
    in between could have committed, after the first had answered, what it does not have itself (H106).
    """
    first_reports: dict[str, VoterReport] = {}
    second_reports: dict[str, VoterReport] = {}
    links: dict[str, ClientLink] = {}
    recovered: RecoveredHardState | str = ""

    async def ask(address: Address) -> None:
        with suppress(DistributedLogError), trio.move_on_after(ASK_S):
            link = await endpoint.dial(address, nursery=nursery, kind=METADATA)
            if link.peer.cluster_id == cluster_id and link.peer.kind == "metadata":
                report = await _request_report(link)
                if report.node_id == link.peer.node_id:
                    first_reports[report.node_id], links[report.node_id] = report, link

    async def ask_again(link: ClientLink) -> None:
        with suppress(DistributedLogError):
            report = await _request_report(link)
            second_reports[report.node_id] = report

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as first_nursery:
            for address in addresses:
                first_nursery.start_soon(ask, address)
        recovered = recovered_hard_state(node_id, first_reports)
        if isinstance(recovered, RecoveredHardState):
            async with trio.open_nursery() as first_nursery:
                for link in links.values():
                    first_nursery.start_soon(ask_again, link)
            recovered = merge_recovered(recovered, recovered_hard_state(node_id, second_reports))
        nursery.cancel_scope.cancel()
    return first_reports, recovered


async def _request_report(link: ClientLink) -> VoterReport:
    reply = await link.request(Op.META_RECALL, timeout_s=ASK_S)
    return VoterReport.decode(reply.body)


def merge_recovered(
    first: RecoveredHardState, second: RecoveredHardState | str
) -> RecoveredHardState | str:
    """What two rounds of questions hold a node to; ``other`` may say why the second one was not whole."""
    if isinstance(second, str):
        return second
    term = max(first.hard_state.term, second.hard_state.term)
    return RecoveredHardState(HardState(term, UNKNOWN_VOTE), max(first.last, second.last))
