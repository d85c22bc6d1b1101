"""The core as the directed tests hold it: node a with a log of given terms, and what it sends."""

from typing import TypeVar

from distributedlog.metadata.declarations.options import RaftOptions
from distributedlog.metadata.model.configuration import Configuration
from distributedlog.metadata.raft.raft import DurableState, Raft
from distributedlog.metadata.raft.raft_log import RaftLog
from distributedlog.metadata.raft.raft_messages import (
    AppendReply,
    Entry,
    Message,
    PreVoteReply,
    VoteReply,
)
from distributedlog.metadata.raft.ready import HardState, RaftRole

OPTIONS = RaftOptions(commit_lag_s=0.0)
"""What is committed is told at once: most tests look at one message at a time."""
M = TypeVar("M", bound=Message)


def node(
    *terms: int,
    term: int = 0,
    vote: str = "",
    voters: str = "abc",
    options: RaftOptions = OPTIONS,
    may_vote: bool = True,
    learners: str = "",
    committed: int = 0,
) -> Raft:
    """Node a with a durable log of these terms, in ``term``; its timeouts are the shortest."""
    entries = [Entry(index, of, b"old") for index, of in enumerate(terms, 1)]
    return Raft(
        "a",
        DurableState(
            RaftLog(0, 0, entries, Configuration.from_ids(voters, learners)),
            HardState(max([term, *terms]), vote),
            commit_index=committed,
        ),
        options=options,
        random=lambda: 0.0,
        now=0.0,
        may_vote=may_vote,
    )


def settle(core: Raft) -> list[tuple[str, Message]]:
    """Carry out all that is ready, durably; the messages it sent."""
    sent: list[tuple[str, Message]] = []
    while core.has_ready:
        ready = core.ready()
        sent += [*ready.send_now, *ready.send_after_persist]
        core.on_persisted(ready.ready_number, 0.0)
        if ready.committed:
            core.on_applied(ready.committed[-1].index)
    return sent


def to(sent: list[tuple[str, Message]], peer: str, kind: type[M]) -> list[M]:
    return [message for peer_, message in sent if peer_ == peer and isinstance(message, kind)]


def elected(core: Raft, now: float = 1.0) -> list[tuple[str, Message]]:
    """Let node a win the next term with everybody's votes; what it sends first."""
    core.on_time(max(now, core.deadline))
    settle(core)
    for voter in core.voters:
        core.on_message(PreVoteReply(core.term + 1, voter, True), now)
    settle(core)
    for voter in core.voters:
        core.on_message(VoteReply(core.term, voter, True), now)
    assert core.role is RaftRole.LEADER
    return settle(core)


def acked(core: Raft, peer: str, index: int, now: float = 1.0) -> None:
    core.on_message(AppendReply(core.term, peer, True, index, 0, 0), now)
