"""Which change of the quorum's members is allowed, and which comes next (pure). Hazard H5.

A lost node is replaced in three entries: the new one is let in as a learner under its own id; when it has
caught up, the lost one of the same name is put out; then the new one becomes a voter. So the old voter
counts until its successor has everything, and a replacement that comes to nothing has changed nothing.
The usual order, removal first, has no advantage: of three voters two must answer before and after it.
One entry that swaps both nodes would need joint consensus.
No voter is put out where those that answer would be no majority of those that are left.
"""

from collections.abc import Collection

from ...runtime.interfaces.errors import MembersRefused
from ..model.configuration import MEMBERS_MAX, Configuration, Member
from ..raft.quorum import majority
from .bootstrap import FormAnswer


def let_in(
    configuration: Configuration,
    name: str,
    address: str,
    answer: FormAnswer,
    *,
    replace: bool,
    cluster_id: str,
    heard: Collection[str],
) -> Configuration | None:
    """The members with the node that gave ``answer`` as a learner; None if it is one already.

    ``heard``: the ids of the voters that answer the leader. Raises `MembersRefused`.
    """
    if answer.name != name:
        raise MembersRefused(f"the node at {address} calls itself {answer.name}, not {name}")
    known = configuration.member(answer.node_id)
    if known is not None and not (known.votes and replace):
        return None
    if known is not None:
        raise MembersRefused(
            f"{name} at {address} still has the id that it votes under: there is nothing to replace; if its"
            " disk is damaged, stop it, empty its directory, and start it again"
        )
    if answer.cluster_id:
        ours = "this" if answer.cluster_id == cluster_id else "another"
        raise MembersRefused(
            f"{name} at {address} has data of {ours} cluster ({answer.cluster_id}): only a node with an"
            " empty directory is let in"
        )
    voters = [member for member in configuration.named(name) if member.votes]
    if voters and not replace:
        raise MembersRefused(f'there is a metadata node {name}; see "dlog metadata replace"')
    if replace and not voters:
        raise MembersRefused(f'no voter of the quorum is called {name}; see "dlog metadata add"')
    for old in voters:
        check_majority(configuration, old, heard)
    for earlier in configuration.named(name):
        if not earlier.votes:  # it was let in, and then lost its disk again
            configuration = configuration.without(earlier.node_id)
    if len(configuration.members) >= MEMBERS_MAX:
        raise MembersRefused(f"a quorum has at most {MEMBERS_MAX} members")
    return configuration.with_member(Member(answer.node_id, name, address, False))


def put_out(
    configuration: Configuration, name: str, heard: Collection[str]
) -> Configuration | None:
    """The members without that one; None if there is none. Of a voter and its replacement, the latter.

    Raises `MembersRefused`.
    """
    named = sorted(configuration.named(name), key=lambda member: member.votes)
    if not named:
        return None
    if named[0].votes:
        check_majority(configuration, named[0], heard)
    return configuration.without(named[0].node_id)


def next_step(
    configuration: Configuration, caught_up: Collection[str], heard: Collection[str]
) -> Configuration | None:
    """What the leader does by itself with a learner that has caught up; None: nothing now."""
    for member in configuration.members:
        if member.votes or member.node_id not in caught_up:
            continue
        for old in configuration.named(member.name):
            if old.votes and has_majority(configuration, old, heard):
                return configuration.without(old.node_id)
            if old.votes:
                break
        else:
            return configuration.promoted(member.node_id)
    return None


def check_majority(configuration: Configuration, lost: Member, heard: Collection[str]) -> None:
    """Raises `MembersRefused` where the quorum would be lost without that voter."""
    if has_majority(configuration, lost, heard):
        return
    left = [m for m in configuration.without(lost.node_id).members if m.votes]
    if not left:
        raise MembersRefused(f"{lost.name} is the last voter of the quorum")
    answering = [m.name for m in left if m.node_id in heard]
    raise MembersRefused(
        f"without {lost.name} the voters would be {', '.join(m.name for m in left)}, and only"
        f" {len(answering)} of them answer ({', '.join(answering) or 'none'}): the quorum would be lost;"
        " start the others first"
    )


def has_majority(configuration: Configuration, lost: Member, heard: Collection[str]) -> bool:
    """Whether the voters that are left without that one answer as a majority."""
    left = configuration.without(lost.node_id).voters
    return bool(left) and sum(voter in heard for voter in left) >= majority(len(left))
