"""The leader's side of changing the quorum's members: what an operator asks, and what follows from it.

A request is one entry (or none, where it is done already), so that it may be sent again. That a learner
which has caught up takes its place needs nobody to ask: whoever leads sees to it. What is allowed is
decided in `membership_rules.py`.
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
from ..model.configuration import Configuration, parse_place
from ..protocol.client_messages import MembersRequest
from ..replica.replica import RaftReplica
from .bootstrap import FormAnswer
from .membership_rules import let_in, next_step, put_out

log = get_logger("distributedlog.metadata.peers.membership_changes")

STEP_S = 0.2
"""So often a leader looks whether a learner has caught up."""
ASK_S = 1.0
COMMIT_S = 5.0
REQUESTS_MAX = 16

Done = Callable[[DistributedLogError | None], None]
"""Told once: None when the change is committed (or was before), or why it is not."""


class MembershipChanges:
    """Changes of the members, one at a time, while this node leads."""

    def __init__(self, replica: RaftReplica, endpoint: Endpoint, cluster_id: str) -> None:
        self._replica = replica
        self._endpoint = endpoint
        self._cluster_id = cluster_id
        self._requests: deque[tuple[MembersRequest, Done]] = deque()
        self._asked = trio.Event()

    def ask(self, request: MembersRequest, done: Done) -> None:
        """An operator wants a change."""
        if not self._replica.leads:
            done(self._replica.not_leader())
        elif len(self._requests) >= REQUESTS_MAX:
            done(TooBusy("too many changes of the quorum's members are asked for"))
        else:
            self._requests.append((request, done))
            self._asked.set()

    async def run(self) -> None:
        """Do what was asked, and let learners take their places, until cancelled."""
        while True:
            with trio.move_on_after(STEP_S):
                await self._asked.wait()
            self._asked = trio.Event()
            while self._requests:
                request, done = self._requests.popleft()
                try:
                    await self._carry_out(request)
                except DistributedLogError as error:
                    done(error)
                except Exception as error:
                    done(NotReady(f"the change failed unexpectedly: {type(error).__name__}"))
                    raise
                else:
                    done(None)
            if self._replica.leads and self._replica.raft.configuration.learners:
                try:
                    await self._step()
                except DistributedLogError as error:
                    log.info("the next step with a new metadata node waits: %s", error)

    async def _carry_out(self, request: MembersRequest) -> None:
        raft = self._replica.raft
        if request.kind == "remove":
            wanted = put_out(raft.configuration, request.name, self._voters_heard())
        else:
            address = request.address or self._address_of(request.name)
            answer = await self._who_is_at(address)
            if not self._replica.leads:
                raise self._replica.not_leader()
            wanted = let_in(
                raft.configuration,
                request.name,
                address,
                answer,
                replace=request.kind == "replace",
                cluster_id=self._cluster_id,
                heard=self._voters_heard(),
            )
        if wanted is not None:
            await self._change(wanted)

    async def _step(self) -> None:
        raft, now = self._replica.raft, trio.current_time()
        if raft.leadership is None:
            return
        caught_up = raft.leadership.learners_caught_up(now)
        wanted = next_step(raft.configuration, caught_up, raft.leadership.voters_heard(now))
        if wanted is not None and raft.commit >= raft.log.configuration_index:
            await self._change(wanted)

    def _voters_heard(self) -> tuple[str, ...]:
        leadership = self._replica.raft.leadership
        return leadership.voters_heard(trio.current_time()) if leadership is not None else ()

    def _address_of(self, name: str) -> str:
        named = self._replica.raft.configuration.named(name)
        if not named:
            known = ", ".join(member.name for member in self._replica.raft.configuration.members)
            raise MembersRefused(f"no metadata node is called {name}; known are {known}")
        return max(named, key=lambda member: member.votes).address

    async def _who_is_at(self, address: str) -> FormAnswer:
        place = parse_place(address)
        if place is None:
            raise MembersRefused(f"the address {address!r} is not HOST:PORT")
        try:
            return await who_is_at(self._endpoint, place)
        except (ConnectionLost, RequestTimeout) as error:
            raise MembersRefused(
                f"nobody answers at {address} ({error}); start the node there with an empty directory first"
            ) from error

    async def _change(self, wanted: Configuration) -> None:
        """Returns when that is committed."""
        before = self._replica.raft.configuration
        outcome: list[CommandResult | DistributedLogError] = []
        told = trio.Event()

        def reply(answer: CommandResult | DistributedLogError) -> None:
            outcome.append(answer)
            told.set()

        self._replica.change_members(wanted, reply)
        self._replica.drain()
        with trio.move_on_after(COMMIT_S):
            await told.wait()
        if not outcome:
            raise NotReady(f"the change was not committed within {COMMIT_S:g} s; it may be later")
        if isinstance(outcome[0], DistributedLogError):
            raise outcome[0]
        was, is_ = told_as(before), told_as(wanted)
        MEMBERS.say(log, "the metadata quorum was %s and is %s", was, is_, after=is_, before=was)


async def who_is_at(endpoint: Endpoint, place: Address) -> FormAnswer:
    """What the node at an address says of itself, whoever it is. Raises what dialling raises."""
    error: DistributedLogError = RequestTimeout(f"{place[0]}:{place[1]} is silent for {ASK_S:g} s")
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(ASK_S):
            try:
                link = await endpoint.dial(place, nursery=nursery, kind=METADATA)
                reply = await link.request(Op.META_FORM, timeout_s=ASK_S)
                return FormAnswer.decode(reply.body)
            except DistributedLogError as found:
                error = found
            finally:
                nursery.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    raise error


def told_as(configuration: Configuration) -> str:
    """Members for a log line."""
    return ", ".join(
        f"{member.name} ({member.node_id[:8]}{'' if member.votes else ', learner'})"
        for member in configuration.members
    )
