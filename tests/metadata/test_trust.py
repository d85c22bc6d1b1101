"""Who may do what, at a quorum: from open to required and back; what users without a right get."""

import pytest
import trio

from distributedlog.cluster.status.cluster_overview import status
from distributedlog.log.model import log_keys
from distributedlog.log.model.log_state import LogState
from distributedlog.metadata.auth.acl_commands import compose
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.acl_records import (
    AUDIT_PREFIX,
    MODE_KEY,
    AuditLine,
    decode_mode,
    grant_key,
    revoked_key,
)
from distributedlog.metadata.model.interface import Scan, prefix_end
from distributedlog.metadata.model.rights import ADMIN, OPERATOR
from distributedlog.metadata.model.transaction import Compare, Delete, KeyValue, Put, Transaction
from distributedlog.metadata.node.quorum_member import MemberNode
from distributedlog.metadata.protocol.client_messages import MembersRequest
from distributedlog.metadata.storage.backup_format import BackupRequest, decode_backup_start
from distributedlog.runtime.interfaces.errors import (
    ConfirmationRequired,
    ConnectionLost,
    DistributedLogError,
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    NotReady,
    QuorumUnreachable,
)
from distributedlog.runtime.interfaces.principals import BY_CERTIFICATE
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, envelope, pack
from distributedlog.runtime.protocol.handshake import Hello

from .auth.test_authorizer import world
from .quorum import put
from .trusted import Trusted, believe, trusted_quorum

ROOT = ("root", "admin", "", "")
LOG = 0x11
STATE = log_keys.state_key(LOG)
NOTE = log_keys.app_version_key(LOG, "app")
NAME = log_keys.name_key("ns", "orders")


async def begin(world: Trusted, mode: str = "required") -> MetadataClient:
    """A log is made while all is open; then an admin, a writer, and that mode."""
    made = (
        Put(NAME, log_keys.encode_log_id(LOG)),
        Put(STATE, LogState(LOG, "orders", 0).encode()),
    )
    await (await world.nodes.client()).transact(Transaction((), made))
    admin = await world.one("user/root")
    await admin.change_authorization("mode", "report", "root")
    await admin.change_authorization("user", "etl")
    await admin.change_authorization("grant", "etl", "writer", "ns", "orders")
    if mode != "report":
        await admin.change_authorization("mode", mode, "")
    return admin


async def test_from_open_to_required_and_back(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world, "report")
        anonymous = await world.nodes.client()
        etl = await world.one("user/etl")

        assert (await anonymous.transact(put(NOTE, b""))).succeeded
        assert (await etl.transact(put(NOTE, b""))).succeeded
        report = await admin.authorization_report()
        assert report.mode == "report"
        assert report.rights & ADMIN
        assert {who for who, _, _ in report.would_refuse} == {"anonymous"}
        assert any("may not write" in what for _, what, _ in report.would_refuse)

        await admin.change_authorization("mode", "required", "")
        assert (
            decode_mode(one.value if (one := await anonymous.get(MODE_KEY)) else None) == "required"
        )
        with pytest.raises(NotAllowed, match="needs write"):
            await anonymous.transact(put(NOTE, b""))
        with pytest.raises(NotAllowed):
            await anonymous.get(STATE)
        assert (await etl.transact(put(NOTE, b""))).succeeded
        assert (await etl.get(STATE)) is not None

        await admin.change_authorization("mode", "open", "", force=True)
        assert (await anonymous.transact(put(NOTE, b""))).succeeded
        with pytest.raises(NotAllowed):  # but nobody gives himself a right meanwhile
            await anonymous.transact(put(grant_key("eve", "", ""), b""))
        with pytest.raises(NotAllowed, match="needs admin"):
            await anonymous.change_authorization("user", "eve")


async def test_what_was_put_before_it_meant_anything_is_cleared(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Anybody may put a key into an open cluster; it must not be a right afterwards."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        client = await world.nodes.client()
        with monkeypatch.context() as older:  # a node of before took it
            older.setattr("distributedlog.metadata.auth.authorizer.LEADER_ONLY_PREFIXES", ())
            await client.transact(put(grant_key("eve", "", ""), pack([1, "admin"])))
            await client.transact(put(MODE_KEY, pack([1, "required"])))
            assert (await client.transact(put(b"k", b""))).succeeded
        await begin(world)
        eve = await world.one("user/eve")
        with pytest.raises(NotAllowed):
            await eve.change_authorization("user", "more")
        admin = await world.one("user/root")
        assert await admin.get(grant_key("eve", "", "")) is None


async def test_changes_are_for_admins_and_written_down(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """H239: a line cannot be forged; nobody takes one away."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world)
        etl = await world.one("user/etl")
        for change in (
            ("grant", "etl", "admin", "", ""),
            ("disable", "root"),
            ("mode", "open", ""),
        ):
            with pytest.raises(NotAllowed, match="needs admin"):
                await etl.change_authorization(*change)
        await admin.change_authorization("grant", "etl", "reader", "ns", "x\ny\x1b[2J")
        page = await admin.range(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX))
        lines = [AuditLine.decode(item.value) for item in page.items]

        assert [line.action for line in lines] == ["mode", "user", "grant", "mode", "grant"]
        assert {line.principal for line in lines} == {"user/root"}
        assert lines[-1].subject == "etl reader ns x?y?[2J"
        for key in (page.items[0].key, grant_key("etl", "ns", "orders")):
            with pytest.raises(NotAllowed):
                await admin.transact(put(key, b""))
        with pytest.raises(NotAllowed):
            await etl.range(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX))


async def test_the_last_admin_stays(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """H238; nor does somebody who is anonymous shut himself out."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        anonymous = await world.nodes.client()
        with pytest.raises(InvalidRequest, match="no admin yet"):
            await anonymous.change_authorization("mode", "report", "")
        with pytest.raises(NotAllowed, match="anonymous"):
            await anonymous.change_authorization("mode", "required", "root")
        admin = await begin(world)
        for change in (
            ("disable", "root"),
            ("remove", "root"),
            ("revoke", "root", "", ""),
            ("grant", "root", "operator", "", ""),
            ("refuse", "root", "5F:0C"),
        ):
            with pytest.raises(NotAllowed, match="last admin"):
                await admin.change_authorization(*change)
        await admin.change_authorization("user", "second")
        await admin.change_authorization("grant", "second", "admin", "", "")
        await admin.change_authorization("disable", "root")
        second = await world.one("user/second")
        assert (await second.authorization_report(own=True)).rights & (ADMIN | OPERATOR)
        with pytest.raises(NotAllowed, match="last admin"):
            await second.change_authorization("remove", "second")


async def test_a_grant_that_ends_ends_watches_and_a_user_its_connections(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """On every node, as it applies that; and bookies are told by a key that they watch."""
    believe(monkeypatch)
    async with trusted_quorum(3) as world:
        admin = await begin(world)
        etl = await world.one("user/etl")
        revision = (await etl.range(STATE, STATE + b"\0")).revision
        async with etl.watch(STATE, STATE + b"\0", after_revision=revision) as watch:
            async with trio.open_nursery() as nursery:
                ended: list[DistributedLogError] = []

                async def follow() -> None:
                    try:
                        while True:
                            await watch.next_batch()
                    except DistributedLogError as error:
                        ended.append(error)

                nursery.start_soon(follow)
                await trio.sleep(1)
                await admin.change_authorization("revoke", "etl", "ns", "orders")
            assert isinstance(ended[0], NotAllowed)
        with pytest.raises(NotAllowed):
            await etl.transact(put(NOTE, b""))
        bookie = await world.one("bookie/b1")
        first = await bookie.get(revoked_key("user/etl"))
        assert first is not None

        await admin.change_authorization("disable", "etl")
        second = await bookie.get(revoked_key("user/etl"))
        assert second is not None
        assert second.mod_revision > first.mod_revision
        with pytest.raises((NotAuthenticated, QuorumUnreachable)):
            await etl.get(b"\0")


async def test_who_renames_a_log_takes_it_out_of_the_sight_of_who_has_no_right_there(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Grants go by path: a watch of a log that has left the path ends; one that came into it is let in."""
    believe(monkeypatch)
    async with trusted_quorum(3) as world:
        admin = await begin(world)
        await admin.change_authorization("user", "own")
        await admin.change_authorization("grant", "own", "owner", "ns", "")
        etl, own = await world.one("user/etl"), await world.one("user/own")
        revision = (await etl.range(STATE, STATE + b"\0")).revision
        ended: list[DistributedLogError] = []

        async def follow() -> None:
            async with etl.watch(STATE, STATE + b"\0", after_revision=revision) as watch:
                try:
                    while True:
                        await watch.next_batch()
                except DistributedLogError as error:
                    ended.append(error)

        async def rename(before: str, after: str) -> None:
            found = await own.get(STATE)
            assert found is not None
            await own.transact(
                Transaction(
                    (Compare.version(STATE, found.version),),
                    (
                        Delete(log_keys.name_key("ns", before)),
                        Put(log_keys.name_key("ns", after), log_keys.encode_log_id(LOG)),
                        Put(STATE, LogState(LOG, after, 0).encode()),
                    ),
                )
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.sleep(1)
            made = Put(log_keys.name_key("ns", "new"), log_keys.encode_log_id(0x99))
            await own.transact(Transaction((), (made,)))
            await trio.sleep(1)
            assert not ended
            await rename("orders", "hidden")
            await trio.sleep(1)
        assert isinstance(ended[0], NotAllowed)
        await rename("hidden", "orders")
        assert (await etl.get(STATE)) is not None


async def test_who_may_not_see_how_the_cluster_is_is_told_that(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """And not that there is no quorum."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        await begin(world)
        with pytest.raises(NotAllowed, match="user/etl may not list"):
            await status(await world.one("user/etl"), 10.0)
        assert "no metadata quorum" not in str(await status(await world.one("user/root"), 10.0))


async def test_a_save_that_was_begun_is_given_out_to_an_admin_alone(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world)
        await admin.change_authorization("user", "other")
        await admin.change_authorization("grant", "other", "admin", "", "")
        hello = Hello(node_id="user/other saves", kind="client")
        endpoint = Endpoint(world.nodes.machine("user/other saves"), lambda: hello)
        async with trio.open_nursery() as nursery:
            link = await endpoint.dial(("m1", 4181), nursery=nursery)
            body = BackupRequest(0, 0).encode()
            number, _ = decode_backup_start(
                (await link.request(Op.META_SAVE, body, timeout_s=5)).body
            )
            again = BackupRequest(number, 1).encode()
            await admin.change_authorization("revoke", "other", "", "")
            with pytest.raises(NotAllowed, match="fetch a backup"):
                await link.request(Op.META_SAVE, again, timeout_s=5)
            nursery.cancel_scope.cancel()


async def test_rights_are_not_required_where_who_comes_plain_could_be_a_node(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """On the way from plain to TLS (`either`): META_RAFT by somebody anonymous is above all rights."""
    believe(monkeypatch)
    either: dict[str, object] = {}
    begin_member = MemberNode.__init__

    def noting(member: MemberNode, *args: object, **named: object) -> None:
        begin_member(member, *args, **named)  # type: ignore[arg-type]
        either[member.endpoint.hello().label] = member.endpoint.methods

    monkeypatch.setattr(MemberNode, "__init__", noting)
    async with trusted_quorum() as world:
        admin = await begin(world, "report")
        (methods,) = either.values()
        assert isinstance(methods, dict)
        methods[BY_CERTIFICATE] = methods["none"]
        with pytest.raises(InvalidRequest, match="--transport tls"):
            await admin.change_authorization("mode", "required", "")
        del methods["none"]
        await admin.change_authorization("mode", "required", "")


async def test_all_that_takes_something_away_is_told_to_bookies(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """They know of it by a mark: without it the capabilities of before stay good."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world)
        marks: list[int] = []
        for change in (
            ("grant", "etl", "reader", "ns", "orders"),  # less than before
            ("refuse", "etl", "1F"),
            ("tokens", "etl"),
            ("revoke", "etl", "ns", "orders"),
            ("disable", "etl"),
            ("remove", "etl"),
        ):
            await admin.change_authorization(*change)
            found = await admin.get(revoked_key("user/etl"))
            assert found is not None, change
            marks.append(found.mod_revision)
        assert marks == sorted(set(marks))


async def test_a_node_that_is_behind_opens_no_watch_by_what_it_knows(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """It may not have heard yet of the revocation that its client comes from."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        await begin(world)
        hello = Hello(node_id="user/etl watches", kind="client")
        endpoint = Endpoint(world.nodes.machine("user/etl watches"), lambda: hello)
        async with trio.open_nursery() as nursery:
            link = await endpoint.dial(("m1", 4181), nursery=nursery)
            told: list[int] = []
            link.subscribe(lambda op, flags, status, *rest: told.append(status))
            for ident, after in ((1, 1), (2, 1 << 40)):
                body = pack([STATE, STATE + b"\0", after])
                link.send(envelope(Op.META_WATCH, len(body), ident=ident), body)
                await trio.sleep(1)
            assert told == [0, NotReady.code]
            nursery.cancel_scope.cancel()


async def test_what_is_asked_while_a_revocation_is_on_its_way_is_not_judged_by_before(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """H233: the leader has it in its log and not applied yet; what it takes now would stand behind it."""
    believe(monkeypatch)
    async with trusted_quorum(3) as world:
        admin = await begin(world)
        etl = await world.one("user/etl")
        await etl.transact(put(NOTE, b"before"))
        await (await world.one("user/root")).get(b"\0")
        leader = await world.nodes.leader()
        followers = [name for name in world.nodes.names if name != leader]
        refused: list[DistributedLogError] = []

        async def write() -> None:
            try:
                await etl.transact(put(NOTE, b"after"))
            except DistributedLogError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for name in followers:
                world.nodes.silence(name)
            nursery.start_soon(admin.change_authorization, "revoke", "etl", "ns", "orders")
            await trio.sleep(0.1)
            nursery.start_soon(write)
            await trio.sleep(0.1)
            for name in followers:
                world.nodes.end_silence(name)
        assert isinstance(refused[0], NotAllowed)
        found = await admin.get(NOTE)
        assert found is not None
        assert found.value == b"before"


async def test_nobody_is_refused_by_a_state_of_before_what_stands_in_the_leaders_log(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """A grant that the leader has not applied yet: a new one may have all of its log still to apply (sim, a
    bookie whose cookie was in there ended for good)."""
    believe(monkeypatch)
    async with trusted_quorum(3) as world:
        admin = await begin(world)
        etl = await world.one("user/etl")
        await etl.get(NOTE)
        await admin.change_authorization("revoke", "etl", "ns", "orders")
        leader = await world.nodes.leader()
        followers = [name for name in world.nodes.names if name != leader]

        async with trio.open_nursery() as nursery:
            for name in followers:
                world.nodes.silence(name)
            nursery.start_soon(admin.change_authorization, "grant", "etl", "writer", "ns", "orders")
            await trio.sleep(0.1)
            nursery.start_soon(etl.transact, put(NOTE, b"after"))
            await trio.sleep(0.1)
            for name in followers:
                world.nodes.end_silence(name)
        found = await etl.get(NOTE)
        assert found is not None
        assert found.value == b"after"


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_is_done_after_a_revocation_was_answered(
    seed: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """H233: commands in flight, leaders that die; what was applied later than the revocation is nobody's."""
    believe(monkeypatch)
    async with trusted_quorum(3) as world:
        admin = await begin(world)
        etl = await world.one("user/etl")
        done: list[int] = []
        changing = False

        async def write(number: int) -> None:
            key = log_keys.position_key(LOG, f"p{number}")
            while True:
                try:
                    done.append((await etl.transact(put(key, b""))).revision)
                except NotAllowed:
                    assert changing
                    return
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(write, number)
            await trio.sleep(0.3 + 0.1 * seed)
            if seed:
                leader = await world.nodes.leader()
                nursery.start_soon(world.nodes.kill, leader)
            changing = True
            await admin.change_authorization("revoke", "etl", "ns", "orders")
        mark = await admin.get(revoked_key("user/etl"))
        assert mark is not None
        assert done
        assert max(done) < mark.mod_revision
        page = await admin.range(
            log_keys.position_key(LOG, ""), prefix_end(log_keys.position_key(LOG, ""))
        )
        assert all(item.mod_revision < mark.mod_revision for item in page.items)


OPS = {name: op for name, op in vars(Op).items() if name.isupper() and isinstance(op, int)}
COMMAND = ["transact", ["c", 1, 1 << 40], [[], [[NOTE, b"stolen", 0]]]]
ASKED: dict[int, list[bytes]] = {
    Op.META_READ: [
        pack(["get", STATE]),
        pack(["range", b"log/", b"log0", 10]),
        pack(["get", b"secret/ledgers"]),
    ],
    Op.META_TRANSACT: [
        pack(COMMAND),
        pack(["trust", *COMMAND[1:]]),
        pack(["revoke", ["c", 2, 1 << 40], 1]),
        pack(["expire", ["c", 3, 1 << 40], 1]),
    ],
    Op.META_LEASE: [pack(["renew", 1])],
    Op.META_WATCH: [pack([b"log/", b"log0", 0])],
    Op.META_MEMBERS: [MembersRequest("add", "m9", "m9:4181").encode()],
    Op.META_SAVE: [pack([0, 0])],
    Op.META_TRUST: [
        pack(["show"]),
        pack(["change", "c", 4, 1 << 40, ["grant", "eve", "admin", "", ""]]),
    ],
}


@pytest.mark.parametrize("who", ["user/eve", "anonymous", "user/ex"])
async def test_every_operation_of_who_has_no_right(
    who: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """The threat table's "user without a grant", "ex-user" and "stranger" at the metadata: nothing changes,
    and no answer has a key, a name or a record of somebody else."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world)
        for name in ("eve", "ex"):
            await admin.change_authorization("user", name)
        await admin.change_authorization("grant", "ex", "owner", "ns", "")
        holder = await world.one("user/etl")
        lease = await holder.grant_lease(600_000)
        await holder.transact(put(log_keys.lock_key(LOG), b"held", lease=lease))
        await admin.change_authorization("revoke", "ex", "ns", "")

        async def all_keys() -> list[object]:
            found: list[object] = []
            for prefix in (b"log/", b"name/", b"trust/", AUDIT_PREFIX):
                found += (await admin.range(prefix, prefix_end(prefix))).items
            return found

        before = await all_keys()
        hello = Hello(node_id=f"{who} intruder", kind="client")
        endpoint = Endpoint(world.nodes.machine(f"{who} intruder"), lambda: hello)
        for op in OPS.values():
            for body in ASKED.get(op, [b"", pack([]), pack(["get", STATE])]):
                async with trio.open_nursery() as nursery:
                    link = await endpoint.dial(("m1", 4181), nursery=nursery)
                    answer = b""
                    try:
                        answer = bytes((await link.request(op, body, timeout_s=1.0)).body)
                    except DistributedLogError as error:
                        answer = str(error).encode()
                    if op not in (Op.META_READ, Op.META_WATCH, Op.META_TRANSACT, Op.META_TRUST):
                        assert b"orders" not in answer
                    assert b"held" not in answer
                    assert log_keys.encode_log_id(LOG) not in answer or b"may not" in answer
                    link.close(ConnectionLost("asked and answered"))
                    nursery.cancel_scope.cancel()

        assert await all_keys() == before
        await holder.renew_lease(lease)


@pytest.mark.parametrize(
    ("change", "serial", "by_token", "refused"),
    [
        (("refuse", "root", "5F:0C"), "5f0c", False, True),
        (("refuse", "root", "5F:0C"), "", False, True),
        (("refuse", "root", "5F:0C"), "77", True, True),
        (("tokens", "root"), "", True, True),
        (("refuse", "root", "5F:0C"), "77", False, False),
        (("tokens", "root"), "77", False, False),
        (("refuse", "etl", "5F:0C"), "5f0c", False, False),
    ],
)
def test_the_last_admin_keeps_the_credentials_that_it_shows(
    change: tuple[str, ...], serial: str, by_token: bool, refused: bool
) -> None:
    """Another certificate of its own, or the tokens that it does not need, it may revoke."""
    for admins in ((ROOT,), (ROOT, ("second", "admin", "", ""))):
        judge, state = world(*admins, ("etl", "writer", "ns", "orders"))
        outcome = None
        try:
            compose(
                judge,
                state,
                change,
                principal="user/root",
                address="",
                now_ms=1,
                index=state.index + 1,
                serial=serial,
                by_token=by_token,
            )
        except NotAllowed as error:
            outcome = str(error)
        assert (outcome is not None) == (refused and len(admins) == 1)


async def test_lowering_the_protection_requires_a_confirmation(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world)
        for mode in ("report", "open"):
            with pytest.raises(ConfirmationRequired, match="would be executed after the change"):
                await admin.change_authorization("mode", mode, "")
        assert (await admin.authorization_report()).mode == "required"

        await admin.change_authorization("mode", "required", "")  # as it is
        await admin.change_authorization("mode", "report", "", force=True)
        assert (await admin.authorization_report()).mode == "report"
        await admin.change_authorization("mode", "open", "")  # nothing was refused, nothing is
        line = AuditLine.decode((await _audit(admin))[-2].value)
        assert (line.action, line.subject) == ("mode", "report force")


async def test_quota_that_is_used_up_requires_a_confirmation(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world)
        assert (await admin.authorization_report()).namespaces[0][:2] == ("ns", 2)
        for whose, *most in (
            ("ns", "0", "", ""),
            ("ns", "2", "", ""),
            ("ns", "", "0", ""),
            ("ns", "", "", "0"),
            ("", "2", "", ""),
            ("new", "0", "", ""),
        ):
            with pytest.raises(ConfirmationRequired, match="its writers stop at their next"):
                await admin.change_authorization("quota", whose, *most)

        await admin.change_authorization("quota", "ns", "3", "", "")
        await admin.change_authorization(
            "quota", "", "2", "", ""
        )  # only of those without their own
        with pytest.raises(ConfirmationRequired, match="namespace ns uses 2 keys of 3"):
            await admin.change_authorization("quota", "ns", "", "", "")
        await admin.change_authorization("quota", "ns", "", "", "", force=True)
        await admin.change_authorization(
            "quota", "ns", "", "1000000", ""
        )  # what is used up already stays so


async def test_force_is_sent_only_after_a_refusal(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """A node of an older version does not take the word."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await world.one("user/root")

        await admin.change_authorization("mode", "report", "root", force=True)

        assert AuditLine.decode((await _audit(admin))[-1].value).subject == "report root"


async def _audit(admin: MetadataClient) -> list[KeyValue]:
    return [one async for one in Scan(admin, AUDIT_PREFIX)]
