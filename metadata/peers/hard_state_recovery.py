"""Recover limits of a node's lost hard state from the reports of all other voters (H106).

A candidate that received this node's vote in a term had stored that term first, and still has it. An entry
that was committed with this node's acknowledgement is durable on at least one other voter, and stays there.
So the highest term and the last entry of *all* other voters limit all votes and acknowledgements that this
node can have given.

The node adopts these limits as its own hard state (`recovered_hard_state.py`). Its new term is far above
the highest one, and its vote in that term counts as given.

A single silent voter may be the one with the highest term or entry, so the node waits until all answer at
the same time. Two nodes without hard state wait for each other, and for an operator.
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
"""Not a valid node ID. It marks a vote that may have been given to any node."""
TERMS_AHEAD = 1000
"""Distance of the new term from the highest term of the others.

The node may have campaigned in later terms that no other node observed. Messages of these terms, and those
about its old log, must be ignored.
"""
QUERY_TIMEOUT_S = 2.0
_FORM = row(
    text(chars_min=1), number(0, TERM_MAX), number(0, TERM_MAX), number(), blob(64 * 1024, 1)
)


@dataclass(frozen=True, slots=True)
class VoterReport:
    """The report of a voter to a node without hard state: its term, and its last entry."""

    node_id: str
    term: int
    last_entry: RaftEntryId
    configuration: Configuration

    def encode(self) -> bytes:
        """Encode the report as a frame body."""
        members = self.configuration.encode()
        return pack(
            [self.node_id, self.term, self.last_entry.term, self.last_entry.log_index, members]
        )

    @classmethod
    def decode(cls, body: Buffer) -> "VoterReport":
        """Decode a frame body, or raise `ProtocolError`."""
        node_id, term, *last, members = decode_message(body, _FORM, "a voter's statement")
        if last[0] > term:
            raise ProtocolError("a voter's statement of an entry newer than its term")
        return cls(node_id, term, RaftEntryId(*last), decode_configuration(members))


def recovered_hard_state(
    node_id: str, reports: Mapping[str, VoterReport]
) -> RecoveredHardState | str:
    """Return the hard state of ``node_id`` that follows from all reports, or why the reports are incomplete.

    ``reports`` are by node ID.
    """
    members = [member for report in reports.values() for member in report.configuration.members]
    others = {m.node_id: m.name for m in members if m.votes and m.node_id != node_id}
    if not any(member.node_id == node_id for member in members):
        return "no node that lists this node as a member has answered"
    silent_voters = sorted(name for voter, name in others.items() if voter not in reports)
    if silent_voters or not others:
        return f"{', '.join(silent_voters) or 'no other voter'} must report the limits of the lost hard state"
    term = min(TERM_MAX, max(report.term for report in reports.values()) + TERMS_AHEAD)
    last = max(report.last_entry for report in reports.values())
    return RecoveredHardState(HardState(term, UNKNOWN_VOTE), last)


def member_addresses(reports: Mapping[str, VoterReport]) -> dict[str, Address]:
    """Return the addresses of all members in the reports, by name."""
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
    """Request the reports of all voters at ``addresses``.

    All voters are queried twice over the same connections, the second time after all have answered once. So
    at one moment between the two rounds, all of them were running and had not restarted since the first
    query. A leader that still counted this node's acknowledgements then reports these entries, and any
    entry committed until then is reported by a node that stores it durably.

    With a single round, a leader could commit an entry after the first voter had answered, and then fail
    before it answers. No report would contain that entry (H106).

    Args:
        endpoint: Dials the voters.
        node_id: The ID of this node, which has lost its hard state.
        addresses: The addresses of all other known nodes. Nodes of other clusters are ignored.
        cluster_id: The cluster of this node.

    Returns:
        The reports of the first round by node ID, and the recovered hard state of ``node_id`` or why there
        is none. The next attempt also queries the members that these reports list.
    """
    first_reports: dict[str, VoterReport] = {}
    second_reports: dict[str, VoterReport] = {}
    links: dict[str, ClientLink] = {}
    recovered: RecoveredHardState | str = ""

    async def ask(address: Address) -> None:
        with suppress(DistributedLogError), trio.move_on_after(QUERY_TIMEOUT_S):
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
    reply = await link.request(Op.META_RECALL, timeout_s=QUERY_TIMEOUT_S)
    return VoterReport.decode(reply.body)


def merge_recovered(
    first: RecoveredHardState, second: RecoveredHardState | str
) -> RecoveredHardState | str:
    """Merge the results of two rounds. ``second`` may be the reason why the second round is incomplete."""
    if isinstance(second, str):
        return second
    term = max(first.hard_state.term, second.hard_state.term)
    return RecoveredHardState(HardState(term, UNKNOWN_VOTE), max(first.last, second.last))
