"""The allowed changes of the quorum's members, and the next step of a replacement (pure). Hazard H5.

A lost node is replaced in three entries. First the new node is added as a learner under its own ID. When it
has caught up, the lost node of the same name is removed. Then the new node becomes a voter. So the old
voter counts until its successor has all data, and a replacement that fails has changed nothing.

The usual order, removal first, has no advantage, because two of three voters must answer before and after
it. A single entry that replaces both nodes would require joint consensus. A voter is not removed if the
nodes that answer would not be a majority of the remaining voters.
"""

from collections.abc import Collection

from ...runtime.interfaces.errors import MembersRefused
from ..model.configuration import MEMBERS_MAX, Configuration, Member
from ..raft.quorum import majority
from .bootstrap import BootstrapAnswer


def add_learner(
    configuration: Configuration,
    name: str,
    address: str,
    answer: BootstrapAnswer,
    *,
    replace: bool,
    cluster_id: str,
    active_voters: Collection[str],
) -> Configuration | None:
    """Return the members with the node that gave ``answer`` as a learner, or None if it is a member already.

    Args:
        configuration: The present members.
        name: The name of the new node.
        address: Its address.
        answer: Its answer to the leader.
        replace: Whether it replaces a voter of the same name.
        cluster_id: The ID of this cluster.
        active_voters: The node IDs of the voters that answer the leader.

    Raises:
        MembersRefused: The change is not allowed.
    """
    if answer.name != name:
        raise MembersRefused(f"the node at {address} has the name {answer.name}, not {name}")
    existing = configuration.member(answer.node_id)
    if existing is not None and not (existing.votes and replace):
        return None
    if existing is not None:
        raise MembersRefused(
            f"{name} at {address} still has the node ID of the voter, so there is nothing to replace. If its"
            " disk is damaged, stop it, empty its directory, and start it again"
        )
    if answer.cluster_id:
        whose = "this" if answer.cluster_id == cluster_id else "another"
        raise MembersRefused(
            f"{name} at {address} has data of {whose} cluster ({answer.cluster_id}): only a node with an"
            " empty directory can be added"
        )
    voters = [member for member in configuration.members_named(name) if member.votes]
    if voters and not replace:
        raise MembersRefused(f'there is a metadata node {name}; see "dlog metadata replace"')
    if replace and not voters:
        raise MembersRefused(f'no voter of the quorum has the name {name}; see "dlog metadata add"')
    for old in voters:
        check_majority(configuration, old, active_voters)
    for previous in configuration.members_named(name):
        if not previous.votes:  # an earlier replacement that lost its disk again
            configuration = configuration.without(previous.node_id)
    if len(configuration.members) >= MEMBERS_MAX:
        raise MembersRefused(f"a quorum has at most {MEMBERS_MAX} members")
    return configuration.with_member(Member(answer.node_id, name, address, False))


def remove_member(
    configuration: Configuration, name: str, active_voters: Collection[str]
) -> Configuration | None:
    """Return the members without the named one, or None if there is none.

    If a voter and its replacement have the same name, the replacement is removed.

    Raises:
        MembersRefused: The quorum would be lost.
    """
    named = sorted(configuration.members_named(name), key=lambda member: member.votes)
    if not named:
        return None
    if named[0].votes:
        check_majority(configuration, named[0], active_voters)
    return configuration.without(named[0].node_id)


def next_promotion_step(
    configuration: Configuration, caught_up: Collection[str], active_voters: Collection[str]
) -> Configuration | None:
    """Return the next step for a learner that has caught up, or None. The leader takes it automatically."""
    for member in configuration.members:
        if member.votes or member.node_id not in caught_up:
            continue
        for old in configuration.members_named(member.name):
            if old.votes and has_majority(configuration, old, active_voters):
                return configuration.without(old.node_id)
            if old.votes:
                break
        else:
            return configuration.with_promoted(member.node_id)
    return None


def check_majority(
    configuration: Configuration, lost: Member, active_voters: Collection[str]
) -> None:
    """Raise `MembersRefused` if the quorum would be lost without that voter."""
    if has_majority(configuration, lost, active_voters):
        return
    remaining = [m for m in configuration.without(lost.node_id).members if m.votes]
    if not remaining:
        raise MembersRefused(f"{lost.name} is the last voter of the quorum")
    answering = [m.name for m in remaining if m.node_id in active_voters]
    raise MembersRefused(
        f"without {lost.name} the voters would be {', '.join(m.name for m in remaining)}, and only"
        f" {len(answering)} of them answer ({', '.join(answering) or 'none'}): the quorum would be lost."
        " Start the others first"
    )


def has_majority(
    configuration: Configuration, lost: Member, active_voters: Collection[str]
) -> bool:
    """Whether a majority of the voters that remain without that one is active."""
    remaining = configuration.without(lost.node_id).voters
    return bool(remaining) and sum(voter in active_voters for voter in remaining) >= majority(
        len(remaining)
    )
