"""Who is made an admin because metadata nodes ask for it, and who is not (H238)."""

from dataclasses import replace

import pytest
import trio

from distributedlog.cluster.auth.cluster_key_space import KEY_CLASSES
from distributedlog.metadata.auth.acl_commands import RECOVER_ADMIN as KIND
from distributedlog.metadata.auth.acl_commands import compose
from distributedlog.metadata.auth.authorizer import Authorizer
from distributedlog.metadata.model.acl_records import AUDIT_PREFIX, AuditLine, User, user_key
from distributedlog.metadata.model.commands import AuthorizationChange
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.metadata.node.admin_recovery import (
    RECOVERY_FILE,
    VOTE_LIFETIME_S,
    AdminRecoveryVotes,
    request_if_configured,
    store_recovery_request,
)
from distributedlog.metadata.node.metadata_node import MetadataNode
from distributedlog.metadata.node.quorum_member import AdminRecoveryResult, MemberNode
from distributedlog.metadata.protocol.client_messages import AuthorizationRequest
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.declarations.health_conditions import Code, NodeConditions
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import InvalidRequest, NotAllowed, ProtocolError
from distributedlog.runtime.interfaces.host import Host
from distributedlog.runtime.interfaces.principals import CertificateIdentity
from distributedlog.runtime.protocol.frames import pack
from distributedlog.runtime.protocol.handshake import FEATURE_ADMIN_RECOVERY, Hello
from tests.conditions import codes_of

from ..auth.test_authorizer import world
from ..quorum import quorum
from ..state.test_kv_state import do
from ..test_trust import begin
from ..trusted import believe, trusted_quorum

THREE = ("n1", "n2", "n3")


def test_a_majority_of_the_voters_has_to_ask_for_the_same_user() -> None:
    wishes = AdminRecoveryVotes()

    assert wishes.on_vote(1, "n1", "ann", THREE, 0.0) == ()
    assert wishes.on_vote(1, "n1", "ann", THREE, 0.0) == (), "one node, however often it asks"
    assert wishes.on_vote(1, "n2", "bob", THREE, 0.0) == ()
    assert wishes.on_vote(1, "n9", "ann", THREE, 0.0) == (), "no voter"
    assert wishes.on_vote(1, "n3", "ann", THREE, 0.0) == ("n1", "n3")


def test_a_node_asks_for_one_user_and_another_leader_hears_all_anew() -> None:
    wishes = AdminRecoveryVotes()
    wishes.on_vote(1, "n1", "ann", THREE, 0.0)
    wishes.on_vote(1, "n1", "bob", THREE, 0.0)
    assert wishes.on_vote(1, "n2", "ann", THREE, 0.0) == ()

    assert wishes.on_vote(2, "n1", "ann", THREE, 0.0) == ()
    assert wishes.on_vote(2, "n2", "ann", THREE, 0.0) == ("n1", "n2")


def test_what_was_asked_for_is_over_when_it_was_done_or_was_long_ago() -> None:
    """Else one node alone would have him made again, when he is no admin any more and the same one leads."""
    wishes = AdminRecoveryVotes()
    wishes.on_vote(1, "n1", "ann", THREE, 0.0)
    assert wishes.on_vote(1, "n2", "ann", THREE, VOTE_LIFETIME_S + 1) == ()
    assert wishes.on_vote(1, "n1", "ann", THREE, VOTE_LIFETIME_S + 2) == ("n1", "n2")
    wishes.on_done()
    assert wishes.on_vote(1, "n3", "ann", THREE, VOTE_LIFETIME_S + 3) == ()


def rescued(judge: Authorizer, state: KeyValueState, user: str) -> None:
    said = (KIND, user, "by m1, m2")
    made = compose(
        judge, state, said, principal="metadata/m1", address="", now_ms=7, index=state.index + 1
    )
    do(state, AuthorizationChange("r", state.index + 1, 0, made))
    judge.refresh(state)


@pytest.mark.parametrize("known", [None, User(), User(disabled=True, revoked_serials=("5f",))])
def test_who_is_asked_for_is_an_admin_whatever_he_was(known: User | None) -> None:
    """Beside those that there are; a refused certificate of his stays so. With a line of the audit."""
    judge, state = world(("root", "admin", "", ""))
    if known is not None:
        puts = Transaction((), (Put(user_key("ann"), known.encode()),))
        do(state, AuthorizationChange("c", 9, 0, puts))
        judge.refresh(state)

    rescued(judge, state, "ann")

    assert sorted(judge.admins()) == ["ann", "root"]
    assert judge.mode == "required"
    user = judge.user("ann")
    assert user is not None
    assert user.revoked_serials == (known.revoked_serials if known is not None else ())
    (line,) = state.range(AUDIT_PREFIX, b"audit0", 10).items
    said = AuditLine.decode(line.value)
    assert (said.principal, said.action, said.subject) == ("metadata/m1", "rescue", "ann by m1, m2")


def test_no_client_asks_for_it_as_for_a_change() -> None:
    """Else it would need nothing: who asks for this one is not judged."""
    for change in (["rescue", "eve"], ["rescue", "eve", "by m1, m2"]):
        with pytest.raises(ProtocolError):
            AuthorizationRequest.decode(pack(["change", "c", 1, 1, change]))


async def test_a_node_asks_until_it_is_done_and_says_so_meanwhile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, conditions = MemoryDisk(), NodeConditions()
    await store_recovery_request(disk, "ann")
    answers: list[tuple[str, ...] | NotAllowed] = [NotAllowed("not yet"), (), (), ("m1", "m2")]
    told: list[list[str]] = []

    async def ask(user: str) -> tuple[str, ...]:
        assert user == "ann"
        assert RECOVERY_FILE in disk.list()
        told.append(codes_of(conditions.current()))
        answer = answers[len(told) - 1]
        if isinstance(answer, NotAllowed):
            raise answer
        return answer

    await request_if_configured(disk, ask, conditions)

    assert len(told) == len(answers)
    assert told == [[Code.ADMIN_REQUESTED]] * len(answers)
    assert RECOVERY_FILE not in disk.list()
    assert conditions.current() == ()


async def test_nobody_is_asked_for_where_the_file_is_none_or_damaged() -> None:
    disk = MemoryDisk()

    async def ask(user: str) -> tuple[str, ...]:
        raise AssertionError("nobody was named")

    await request_if_configured(disk, ask, NodeConditions())
    with pytest.raises(InvalidRequest):
        await store_recovery_request(disk, "not a name")
    file = await disk.create(RECOVERY_FILE)
    await file.write_synced(0, b"12345678" + pack([1, "eve"]))
    file.close()
    await request_if_configured(disk, ask, NodeConditions())


def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, MemberNode]:
    """From here on, the nodes that have their part in a quorum, by name."""
    found: dict[str, MemberNode] = {}
    begin_member = MemberNode.__init__

    def noting(member: MemberNode, *args: object, **named: object) -> None:
        begin_member(member, *args, **named)  # type: ignore[arg-type]
        found[member.endpoint.hello().label] = member

    monkeypatch.setattr(MemberNode, "__init__", noting)
    return found


async def test_a_node_alone_makes_nobody_an_admin_again_that_others_have_asked_for(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """What they asked for was done: it is not for the next one to use, while the same one leads."""
    believe(monkeypatch)
    members = noted(monkeypatch)
    async with trusted_quorum(3) as trusted:
        admin = await begin(trusted)
        leader = members[await trusted.nodes.leader()]
        ids = {one.name: one.node_id for one in leader.replica.raft.configuration.members}

        async def asks(name: str) -> AdminRecoveryResult:
            said: list[AdminRecoveryResult] = []
            told = trio.Event()

            def done(answer: AdminRecoveryResult) -> None:
                said.append(answer)
                told.set()

            leader.recover_admin(f"metadata/{name}", ids[name], "ann", done)
            leader.replica.drain()
            await told.wait()
            return said[0]

        assert await asks("m1") == ()
        assert await asks("m2") == ("m1", "m2")
        assert sorted(leader.authorizer.admins()) == ["ann", "root"]
        await admin.change_authorization("revoke", "ann", "", "")
        assert await asks("m3") == ()
        assert sorted(leader.authorizer.admins()) == ["root"]


async def test_a_leader_that_knows_nothing_of_it_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """It takes the question for none, and hangs up: each second, and what is between voters with it."""
    members = noted(monkeypatch)
    hello = MetadataNode.hello

    def older(node: MetadataNode) -> Hello:
        said = hello(node)
        return replace(said, features=said.features & ~FEATURE_ADMIN_RECOVERY)

    def dressed(name: str, host: Host) -> Host:
        own = CertificateIdentity("d", "metadata", name, "1", 1 << 40, 0)
        return replace(host, certificate=lambda: own)

    monkeypatch.setattr(MetadataNode, "hello", older)
    async with quorum(3, classes=KEY_CLASSES, dress=dressed) as nodes:
        await nodes.start()
        name = nodes.other_than(await nodes.leader())
        with pytest.raises(InvalidRequest, match="is older: upgrade it first"):
            await members[name].request_admin("ann")
