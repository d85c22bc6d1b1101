"""A namespace's quota at a quorum: whoever leads, and whatever it began from (H236)."""

import pytest
import trio

from distributedlog.log.model import log_keys
from distributedlog.log.model.log_state import LogState
from distributedlog.metadata.auth import namespace_usage as namespace_use
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.acl_records import AUDIT_PREFIX, AuditLine, quota_key
from distributedlog.metadata.model.commands import Transact, encode_command
from distributedlog.metadata.model.transaction import Compare, Delete, Put, Transaction
from distributedlog.metadata.protocol.client_messages import (
    AuthorizationReport,
    decode_authorization_report,
    decode_outcome,
    encode_authorization_report,
)
from distributedlog.metadata.raft.ready import Snapshot
from distributedlog.metadata.replica import replica
from distributedlog.runtime.interfaces.errors import InvalidRequest, NamespaceFull, NotAllowed
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, pack, unpack
from distributedlog.runtime.protocol.handshake import Hello

from ..quorum import put
from ..test_trust import LOG, STATE, begin
from ..trusted import believe, trusted_quorum


async def fill(client: MetadataClient, first: int = 0, name: str = "p") -> int:
    """Positions of a log, until no more are taken; how many."""
    for number in range(first, first + 100):
        try:
            await client.transact(put(log_keys.position_key(LOG, f"{name}{number:03}"), b"1"))
        except NamespaceFull:
            return number - first
    raise AssertionError("there is no bound")


async def test_a_quota_is_the_same_after_an_election_a_snapshot_and_a_start(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    monkeypatch.setattr(replica, "SNAPSHOT_ENTRIES", 30)
    monkeypatch.setattr(namespace_use, "KEYS_PER_STEP", 3)
    installed: list[str] = []
    install = replica.RaftReplica._install_snapshot

    def seen(one: replica.RaftReplica, snapshot: Snapshot) -> None:
        installed.append(one._name_of(one.raft.node_id))
        install(one, snapshot)

    monkeypatch.setattr(replica.RaftReplica, "_install_snapshot", seen)
    async with trusted_quorum(3) as world:
        admin = await begin(world)
        etl, node = await world.one("user/etl"), await world.one("bookie/b1")
        await admin.change_authorization("quota", "ns", "40", "", "")
        away = world.nodes.other_than(await world.nodes.leader())
        await world.nodes.kill(away)
        made = await fill(etl)
        assert made == 40 - 2  # a name and a state were there
        first = (await admin.authorization_report()).namespaces
        assert first[0][:2] == ("ns", 40)
        assert first[0][4:] == (40, 128 * 1024 * 1024, 100_000)

        async def same_at_whoever_leads() -> None:
            await trio.sleep(0.5)  # it counts what was there when it was started, or got the state
            report = await admin.authorization_report()
            assert report.usage_complete
            assert report.namespaces == first
            assert await fill(etl, first=made) == 0

        with pytest.raises(
            NamespaceFull, match="namespace ns has 40 keys in the metadata, allowed are 40"
        ):
            await etl.transact(put(log_keys.position_key(LOG, "more"), b"1"))
        await world.nodes.start(away)  # it gets another one's snapshot
        await trio.sleep(1)
        for _ in range(8):
            leader = await world.nodes.leader()
            if leader == away:
                break
            await world.nodes.kill(leader)
            await same_at_whoever_leads()
            await world.nodes.start(leader)
        assert await world.nodes.leader() == away
        assert installed == [away]
        await world.nodes.kill(*world.nodes.names)
        await world.nodes.start()
        await same_at_whoever_leads()

        assert (await etl.get(log_keys.position_key(LOG, "p000"))) is not None, "it is read"
        changed = put(log_keys.position_key(LOG, "p000"), b"22")
        assert (await etl.transact(changed)).succeeded, "what is there is changed"
        kept = put(STATE, LogState(LOG, "orders", 0, epoch=1).encode())
        as_read = Transaction((Compare.version(STATE, 1),), kept.operations)
        assert (await etl.transact(as_read)).succeeded, "and taken over"
        await etl.transact(Transaction((), (Delete(log_keys.position_key(LOG, "p001")),)))
        assert await fill(etl, first=made) == 1
        await admin.change_authorization("quota", "ns", "41", "", "")
        await etl.transact(put(log_keys.position_key(LOG, "one"), b""))
        with pytest.raises(NotAllowed):
            await node.transact(put(log_keys.position_key(LOG, "two"), b""))


async def test_nothing_is_bounded_before_rights_are_required_and_what_was_there_counts(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    async with trusted_quorum() as world:
        open_to_all = await world.nodes.client()
        made = tuple(Put(log_keys.position_key(LOG, f"o{n}"), b"1") for n in range(60))
        await open_to_all.transact(Transaction((), made))
        assert (await open_to_all.authorization_report()).namespaces == ()
        admin = await begin(world, "report")
        etl = await world.one("user/etl")
        await admin.change_authorization("quota", "", "40", "", "", force=True)
        assert (await etl.transact(put(log_keys.position_key(LOG, "more"), b"1"))).succeeded
        assert (await admin.authorization_report()).namespaces[0][:2] == ("ns", 63)
        await admin.change_authorization("mode", "required", "")
        with pytest.raises(NamespaceFull, match="has 63 keys"):
            await etl.transact(put(log_keys.position_key(LOG, "again"), b"1"))
        everything = tuple(Delete(one.key) for one in made)
        assert (await etl.transact(Transaction((), everything))).succeeded
        assert (await etl.transact(put(log_keys.position_key(LOG, "again"), b"1"))).succeeded


async def test_what_is_sent_again_while_it_is_under_way_is_not_over_by_itself(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """ "Over quota" would deny what the first sending does (G7): it is the one that takes the last place."""
    believe(monkeypatch)
    async with trusted_quorum(3) as world, trio.open_nursery() as nursery:
        admin = await begin(world)
        await admin.change_authorization("quota", "ns", "3", "", "")
        nodes = world.nodes
        leader = await nodes.leader()
        hello = Hello(cluster_id="", node_id="user/etl again", kind="client")
        endpoint = Endpoint(nodes.machine("other"), lambda: hello)
        link = await endpoint.dial(nodes.peers[leader], nursery=nursery)
        base = (await nodes.rows())[leader].applied
        last = put(log_keys.position_key(LOG, "last"), b"1")
        command = encode_command(Transact("someone", 1, base, last))
        asked = [link.start_request(Op.META_TRANSACT, command, timeout_s=9) for _ in range(2)]
        for pending in asked:
            answer = decode_outcome((await link.wait_reply(pending, 9)).body)[1]
            assert answer.transaction is not None
            assert answer.transaction.succeeded
        nursery.cancel_scope.cancel()


async def test_positions_of_readers_leave_room_for_writers(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """They need the right to read alone: else one reader fills a namespace, and no writer rolls any more."""
    believe(monkeypatch)
    async with trusted_quorum(1) as world:
        admin = await begin(world)
        await admin.change_authorization("user", "mia")
        await admin.change_authorization("grant", "mia", "reader", "ns", "orders")
        reader, writer = await world.one("user/mia"), await world.one("user/etl")
        await admin.change_authorization("quota", "ns", "40", "", "")
        assert await fill(reader, name="~mia/") == 40 * 9 // 10 - 2  # a name and a state were there
        await reader.transact(put(log_keys.position_key(LOG, "~mia/000"), b"2"))
        assert await fill(writer) == 4


async def test_quotas_are_set_by_admins_and_written_down(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    async with trusted_quorum() as world:
        admin = await begin(world)
        etl = await world.one("user/etl")
        with pytest.raises(NotAllowed, match="needs admin"):
            await etl.change_authorization("quota", "ns", "1", "", "")
        for wrong in ("-1", "x", "1e9", "٣", "9" * 19):
            with pytest.raises(InvalidRequest, match="a quota must be a number"):
                await admin.change_authorization("quota", "ns", wrong, "", "")
        await admin.change_authorization("quota", "", "7", "8", "9", force=True)
        await admin.change_authorization("quota", "ns", "", "5", "", force=True)
        assert (await admin.authorization_report()).namespaces[0][4:] == (7, 5, 9)
        await admin.change_authorization("quota", "ns", "", "", "")
        assert (await admin.authorization_report()).namespaces[0][4:] == (7, 8, 9)
        assert await admin.get(quota_key("ns")) is None
        await admin.change_authorization(
            "quota", "empty", "1", "", ""
        )  # shown, though nothing is there
        assert ("empty", 0, 0, 0, 1, 8, 9) in (await admin.authorization_report()).namespaces
        await admin.change_authorization("quota", "empty", "", "", "")
        with pytest.raises(NotAllowed):
            await etl.authorization_report()
        assert (await etl.authorization_report(own=True)).namespaces == ()
        page = await admin.range(AUDIT_PREFIX, AUDIT_PREFIX + b"\xff")
        told = [AuditLine.decode(item.value) for item in page.items]
        assert [one.subject for one in told if one.action == "quota"] == [
            *("7 8 9 force", "ns 5 force", "ns"),
            *("empty 1", "empty"),
        ]


def test_a_report_of_a_leader_of_before_says_nothing_of_namespaces() -> None:
    report = AuthorizationReport(
        "report", "user/a", 7, (("b", "c", 2),), False, (("ns", 1, 2, 3, 4, 5, 6),)
    )
    assert decode_authorization_report(encode_authorization_report(report)) == report
    before = pack(unpack(encode_authorization_report(report), "a report")[:4])
    assert decode_authorization_report(before) == AuthorizationReport(
        "report", "user/a", 7, (("b", "c", 2),)
    )
