"""The leader's part of changes of the quorum's members: requests of operators, and the steps that follow.

A request adds at most one entry to the log, and none if it is done already, so it may be sent again. When a
learner has caught up, the leader promotes it without a further request. `membership_rules.py` decides which
changes are allowed.
"""

from collections import deque
from collections.abc import Callable

import trio

from ...runtime.interfaces.errors import (
    ConnectionLost,
    DistributedLogError,
    MembersRefused,
    NotReady,
    RequestTimeout,
    TooBusy,
)
from ...runtime.interfaces.host import Address
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.interfaces.principals import METADATA
from ...runtime.net.rpc import Endpoint
from ...runtime.protocol.frames import Op
from ..declarations.events import MEMBERS
from ..model.command_results import CommandResult
from ..model.configuration import Configuration, parse_host_port
from ..protocol.client_messages import MembersRequest
from ..replica.replica import RaftReplica
from .bootstrap import BootstrapAnswer
from .membership_rules import add_learner, next_promotion_step, remove_member

log = get_logger("distributedlog.metadata.peers.membership_changes")

LEARNER_CHECK_S = 0.2
"""Interval at which the leader checks whether a learner has caught up."""
REQUEST_TIMEOUT_S = 1.0
COMMIT_TIMEOUT_S = 5.0
REQUESTS_MAX = 16

OnChanged = Callable[[DistributedLogError | None], None]
"""Called once, with None if the change is committed (now or earlier), otherwise with the error."""


class MembershipChanges:
    """Changes of the members, one at a time, while this node leads."""

    def __init__(self, replica: RaftReplica, endpoint: Endpoint, cluster_id: str) -> None:
        self._replica = replica
        self._endpoint = endpoint
        self._cluster_id = cluster_id
        self._requests: deque[tuple[MembersRequest, OnChanged]] = deque()
        self._wake = trio.Event()

    def submit(self, request: MembersRequest, done: OnChanged) -> None:
        """Queue a change that an operator requests. ``done`` receives the outcome."""
        if not self._replica.is_leader:
            done(self._replica.not_leader_error())
        elif len(self._requests) >= REQUESTS_MAX:
            done(TooBusy("too many changes of the quorum's members are pending"))
        else:
            self._requests.append((request, done))
            self._wake.set()

    async def run(self) -> None:
        """Execute requests and promote learners, until cancelled."""
        while True:
            with trio.move_on_after(LEARNER_CHECK_S):
                await self._wake.wait()
            self._wake = trio.Event()
            while self._requests:
                request, done = self._requests.popleft()
                try:
                    await self._execute(request)
                except DistributedLogError as error:
                    done(error)
                except Exception as error:
                    done(NotReady(f"the change failed unexpectedly: {type(error).__name__}"))
                    raise
                else:
                    done(None)
            if self._replica.is_leader and self._replica.raft.configuration.learners:
                try:
                    await self._promote_learners()
                except DistributedLogError as error:
                    log.info("the next step with a new metadata node waits: %s", error)

    async def _execute(self, request: MembersRequest) -> None:
        raft = self._replica.raft
        if request.kind == "remove":
            new_configuration = remove_member(
                raft.configuration, request.name, self._active_voters()
            )
        else:
            address = request.address or self._address_of(request.name)
            answer = await self._query_node(address)
            if not self._replica.is_leader:
                raise self._replica.not_leader_error()
            new_configuration = add_learner(
                raft.configuration,
                request.name,
                address,
                answer,
                replace=request.kind == "replace",
                cluster_id=self._cluster_id,
                active_voters=self._active_voters(),
            )
        if new_configuration is not None:
            await self._commit_change(new_configuration)

    async def _promote_learners(self) -> None:
        raft, now = self._replica.raft, trio.current_time()
        if raft.leader_state is None:
            return
        caught_up = raft.leader_state.caught_up_learners(now)
        new_configuration = next_promotion_step(
            raft.configuration, caught_up, raft.leader_state.active_voters(now)
        )
        if new_configuration is not None and raft.commit >= raft.log.configuration_index:
            await self._commit_change(new_configuration)

    def _active_voters(self) -> tuple[str, ...]:
        leadership = self._replica.raft.leader_state
        return leadership.active_voters(trio.current_time()) if leadership is not None else ()

    def _address_of(self, name: str) -> str:
        named = self._replica.raft.configuration.members_named(name)
        if not named:
            member_names = ", ".join(
                member.name for member in self._replica.raft.configuration.members
            )
            raise MembersRefused(
                f"no metadata node has the name {name}. The members are {member_names}"
            )
        return max(named, key=lambda member: member.votes).address

    async def _query_node(self, address: str) -> BootstrapAnswer:
        parsed_address = parse_host_port(address)
        if parsed_address is None:
            raise MembersRefused(f"the address {address!r} is not HOST:PORT")
        try:
            return await query_node(self._endpoint, parsed_address)
        except (ConnectionLost, RequestTimeout) as error:
            raise MembersRefused(
                f"no node answers at {address} ({error}). Start the node there with an empty directory first"
            ) from error

    async def _commit_change(self, new_configuration: Configuration) -> None:
        old_configuration = self._replica.raft.configuration
        outcome: list[CommandResult | DistributedLogError] = []
        answered = trio.Event()

        def reply(answer: CommandResult | DistributedLogError) -> None:
            outcome.append(answer)
            answered.set()

        self._replica.change_members(new_configuration, reply)
        self._replica.drain()
        with trio.move_on_after(COMMIT_TIMEOUT_S):
            await answered.wait()
        if not outcome:
            raise NotReady(
                f"the change was not committed within {COMMIT_TIMEOUT_S:g} s. It may be committed later"
            )
        if isinstance(outcome[0], DistributedLogError):
            raise outcome[0]
        members_before, members_after = (
            describe_members(old_configuration),
            describe_members(new_configuration),
        )
        MEMBERS.emit(
            log,
            "the metadata quorum was %s and is %s",
            members_before,
            members_after,
            after=members_after,
            before=members_before,
        )


async def query_node(endpoint: Endpoint, address: Address) -> BootstrapAnswer:
    """Return the answer of the node at an address, whichever node it is.

    Raises:
        RequestTimeout, ConnectionLost: No node answered within `REQUEST_TIMEOUT_S`.
        DistributedLogError: Another error of the connection.
    """
    error: DistributedLogError = RequestTimeout(
        f"{address[0]}:{address[1]} is silent for {REQUEST_TIMEOUT_S:g} s"
    )
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(REQUEST_TIMEOUT_S):
            try:
                link = await endpoint.dial(address, nursery=nursery, kind=METADATA)
                reply = await link.request(Op.META_FORM, timeout_s=REQUEST_TIMEOUT_S)
                return BootstrapAnswer.decode(reply.body)
            except DistributedLogError as dial_error:
                error = dial_error
            finally:
                nursery.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    raise error


def describe_members(configuration: Configuration) -> str:
    """Return the members as text for a log line."""
    return ", ".join(
        f"{member.name} ({member.node_id[:8]}{'' if member.votes else ', learner'})"
        for member in configuration.members
    )
