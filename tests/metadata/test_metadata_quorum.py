"""What a quorum keeps when its nodes end, come back, come back empty, or lie damaged."""

from collections.abc import Callable, Iterator

import pytest
import trio
from trio.testing import MockClock

from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.commands import Transact, encode_command
from distributedlog.metadata.model.interface import WatchBatch, WatchEvent
from distributedlog.metadata.model.transaction import Compare, Put, Transaction
from distributedlog.metadata.protocol.client_messages import (
    RangeRequest,
    WatchRequest,
    decode_events,
    decode_outcome,
)
from distributedlog.metadata.replica import replica
from distributedlog.metadata.state import kv_snapshot
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    ConnectionLost,
    DiskFailed,
    DistributedLogError,
    InvalidRequest,
    LeaseExpired,
    NotLeader,
    OutcomeUnknown,
    QuorumUnreachable,
)
from distributedlog.runtime.interfaces.host import Buffer, File
from distributedlog.runtime.net.link import Link
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.frames import Op, envelope, pack, unpack
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.runtime.protocol.handshake import encode_hello as encode_hello
from tests.examples import few

from .quorum import Quorum, filled_quorum, put, quorum, serving_quorum
from .storage.test_raft_storage import cannot_read, flip

MIB = 1024 * 1024


async def wait_until(true: Callable[[], bool], within_s: float = 30) -> None:
    with trio.fail_after(within_s):
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.05)


async def applied(nodes: Quorum) -> dict[str, int]:
    return {name: row.applied for name, row in (await nodes.rows()).items()}


async def caught_up(nodes: Quorum) -> None:
    """Wait until all running nodes have applied the same."""
    with trio.fail_after(60):
        while True:
            indexes = await applied(nodes)
            if len(indexes) >= 2 and len(set(indexes.values())) == 1:
                return
            await trio.sleep(0.1)


async def damage(nodes: Quorum, name: str) -> None:
    """Lose a block of the node's log that was synced, with synced ones after it."""
    disk = nodes.disks[name]
    log = next(file for file in disk.list() if file.startswith("log."))
    file = await disk.open(log)
    assert file.size() > 4096 * 3
    file.write_at(4096, [bytes(4096)])
    file.close()


async def count(client: MetadataClient, times: int, won: list[int]) -> None:
    """Increment a counter by compare and set."""
    done = 0
    while done < times:
        found = await client.get(b"n")
        value, version = (int(found.value), found.version) if found else (0, 0)
        operation = Put(b"n", b"%d" % (value + 1))
        change = Transaction((Compare.version(b"n", version),), (operation,))
        if (await client.transact(change)).succeeded:
            won.append(value + 1)
            done += 1
        await trio.sleep(0.01)


@pytest.mark.parametrize("seed", few(range(2), 1))
async def test_no_increment_is_lost_or_done_twice_while_leaders_are_killed(
    seed: int, autojump_clock: object
) -> None:
    """M2, H20: every retry over a leader change finds what became of its first sending."""
    async with quorum(3, seed=seed) as nodes:
        await nodes.start()
        won: list[int] = []
        clients = [await nodes.client() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(count, client, 70, won)
            for _ in range(3):
                await trio.sleep(0.2)
                leader = await nodes.leader()
                await nodes.kill(leader)
                await trio.sleep(0.3)
                await nodes.start(leader)

        assert sorted(won) == list(range(1, 211))
        found = await clients[0].get(b"n")
        assert found is not None
        assert (found.value, found.version) == (b"210", 210)


async def test_all_nodes_come_back_from_their_disks(autojump_clock: object) -> None:
    """M1."""
    async with serving_quorum() as (nodes, client):
        for n in range(20):
            await client.transact(put(b"k%02d" % n, b"v"))
        for _ in range(3):
            await nodes.kill()
            await nodes.start()
        page = await (await nodes.client()).range(b"k", b"l")

        assert [item.key for item in page.items] == [b"k%02d" % n for n in range(20)]
        assert page.revision == 20


async def test_a_request_sent_again_after_a_restart_is_not_done_again(
    autojump_clock: object,
) -> None:
    """H20: what was answered is part of the state, and of the log."""
    async with serving_quorum() as (nodes, client):
        command = encode_command(Transact("c", 1, 0, put(b"k", b"v")))
        first = decode_outcome((await client.request(Op.META_TRANSACT, command)).body)[1]
        await client.transact(put(b"k", b"newer"))
        await nodes.kill()
        await nodes.start()
        again = decode_outcome((await client.request(Op.META_TRANSACT, command)).body)[1]

        assert again == first
        found = await client.get(b"k")
        assert found is not None
        assert found.value == b"newer"


async def test_a_wiped_node_never_helps_to_elect(autojump_clock: object) -> None:
    """H5: A and B have the commit, C lags; B is wiped, and B and C come back without A."""
    async with serving_quorum() as (nodes, client):
        await client.transact(put(b"k", b"1"))
        leader = await nodes.leader()
        a, c = leader, nodes.other_than(leader)
        b = nodes.other_than(a, c)
        await nodes.kill(c)
        await client.transact(put(b"k", b"2"))
        await nodes.kill()
        nodes.wipe(b)
        await nodes.start(b, c)
        await trio.sleep(60)
        roles = {name: row.role for name, row in (await nodes.rows()).items()}
        assert "leader" not in roles.values()
        assert roles[b] == "empty"

        await nodes.start(a)
        found = await client.get(b"k")
        assert found is not None
        assert found.value == b"2"
        assert (await nodes.rows())[b].role == "empty"


async def test_a_cluster_does_not_form_until_all_listed_nodes_are_there(
    autojump_clock: object,
) -> None:
    """H5."""
    async with quorum(3) as nodes:
        await nodes.start("m1", "m2")
        await trio.sleep(60)
        assert {row.role for row in (await nodes.rows()).values()} == {"empty"}
        client = await nodes.client("m1", timeout_s=1.0)
        with pytest.raises(QuorumUnreachable):
            await client.get(b"k")

        await nodes.start("m3")
        with trio.fail_after(10):
            await nodes.leader()
        assert (await client.transact(put(b"k"))).succeeded


async def test_a_follower_that_was_away_is_brought_back_by_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """H39: the log that it lacks is compacted."""
    monkeypatch.setattr(replica, "SNAPSHOT_BYTES", 8 * MIB)
    async with serving_quorum() as (nodes, client):
        leader = await nodes.leader()
        away = nodes.other_than(leader)

        def snapshots(name: str) -> set[str]:
            return {file for file in nodes.disks[name].list() if file.startswith("snapshot.")}

        for _ in range(2):  # a second time as the first
            await nodes.kill(away)
            led, had = snapshots(leader), snapshots(away)
            for n in range(24):
                await client.transact(put(b"k%02d" % n, bytes(MIB - 100)))
            await wait_until(lambda led=led: snapshots(leader) != led)  # type: ignore[misc]
            await nodes.start(away)
            await caught_up(nodes)

            assert snapshots(away) - had
        await nodes.kill(leader)
        page = await client.range(b"k", b"l", limit=1)
        assert page.more
        await nodes.kill(nodes.other_than(leader, away))
        await nodes.start(leader)
        found = [await client.get(b"k%02d" % n) for n in range(24)]
        assert all(item is not None and len(item.value) == MIB - 100 for item in found)


@pytest.mark.parametrize("how", few(["rotten", "unreadable", "not to be opened"], 1))
async def test_a_leader_whose_snapshot_is_damaged_makes_another_one(
    how: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """H106: else whom it should fill up stays away, as long as too little is written for the next one."""
    monkeypatch.setattr(replica, "SNAPSHOT_BYTES", 8 * MIB)
    async with serving_quorum() as (nodes, client):
        leader = await nodes.leader()
        away = nodes.other_than(leader)
        await nodes.kill(away)
        disk = nodes.disks[leader]
        for n in range(24):
            await client.transact(put(b"k%02d" % n, bytes(MIB - 100)))
        await wait_until(lambda: any(name.startswith("snapshot.") for name in disk.list()))
        await trio.sleep(5)  # what is written is written
        (name,) = (name for name in disk.list() if name.startswith("snapshot."))
        if how == "rotten":
            await flip(disk, name, MIB)
        elif how == "unreadable":
            cannot_read(monkeypatch, disk, name, MIB, 1)
        else:
            damaged, open_file = disk._files[name], disk.open

            async def opened(wanted: str) -> File:
                if disk._files.get(wanted) is damaged:
                    raise DiskFailed(f"{wanted}: the file system says that it is damaged")
                return await open_file(wanted)

            monkeypatch.setattr(disk, "open", opened)

        await nodes.start(away)

        with trio.fail_after(60):
            await caught_up(nodes)
        assert await nodes.leader() == leader


async def test_a_restart_after_a_snapshot_finds_everything(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    monkeypatch.setattr(replica, "SNAPSHOT_BYTES", 8 * MIB)
    async with quorum(1) as nodes:
        await nodes.start()
        client = await nodes.client()
        lease = await client.grant_lease(20_000)
        await client.transact(put(b"leased", lease=lease))
        command = encode_command(Transact("c", 1, 0, put(b"once", b"v")))
        await client.request(Op.META_TRANSACT, command)
        for n in range(20):
            await client.transact(put(b"k%02d" % (n % 2), bytes(MIB - 100)))
        await wait_until(lambda: any(f.startswith("snapshot.") for f in nodes.disks["m1"].list()))
        await nodes.kill()
        await nodes.start()

        assert (
            decode_outcome((await client.request(Op.META_TRANSACT, command)).body)[1].error is None
        )
        once = await client.get(b"once")
        assert once is not None
        assert once.version == 1
        await client.renew_lease(lease)
        assert (await client.range(b"k", b"l")).revision == 22


async def test_what_is_written_is_a_few_times_what_is_put(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """A state that grows is written by half of it, not by a constant: else the twentieth time for one put."""
    monkeypatch.setattr(replica, "SNAPSHOT_BYTES", MIB // 8)
    made, sizes = kv_snapshot.snapshot_chunks, list[int]()

    def counted(state: KeyValueState) -> Iterator[bytes]:
        sizes.append(0)
        for chunk in made(state):
            sizes[-1] += len(chunk)
            yield chunk

    monkeypatch.setattr(kv_snapshot, "snapshot_chunks", counted)
    async with quorum(1) as nodes:
        await nodes.start()
        client = await nodes.client()
        for n in range(150):
            keys = tuple(Put(b"/%05d/%03d" % (n * 7919 % 99991, k), bytes(200)) for k in range(100))
            await client.transact(Transaction((), keys))
            await trio.sleep(0.02)  # virtual: the pauses of a snapshot
        (link,) = [client._connections.current_link(place) for place in nodes.peers.values()]
        assert link is not None
        info = unpack((await link.request(Op.INFO, timeout_s=5)).body, "info")

    assert len(sizes) > 4
    put_bytes = 150 * 100 * (10 + 200)
    assert info["bytes_written"] + sum(sizes) < 3.5 * put_bytes


async def test_a_watch_goes_on_over_leader_changes(autojump_clock: object) -> None:
    """M6: no gap, no duplicate."""
    async with quorum(3) as nodes:
        await nodes.start()
        writer, watcher = await nodes.client(), await nodes.client()
        found: list[WatchEvent] = []

        async def follow() -> None:
            async with watcher.watch(b"k", b"l", after_revision=0) as watch:
                while len(found) < 90:
                    batch = await watch.next_batch()
                    found.extend(batch.events)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for n in range(90):
                if n % 30 == 10:
                    leader = await nodes.leader()
                    await nodes.kill(leader)
                if n % 30 == 20:
                    await nodes.start(leader)
                await writer.transact(put(b"k", b"%d" % n))
                await trio.sleep(0.02)
            await wait_until(lambda: len(found) >= 90)

        assert [event.item.value for event in found] == [b"%d" % n for n in range(90)]
        assert [event.item.mod_revision for event in found] == list(range(1, 91))


async def test_a_lease_that_is_renewed_outlives_its_leaders(autojump_clock: object) -> None:
    """H19: a new leader grants every lease its full time; one that nobody renews still ends."""
    async with serving_quorum() as (nodes, client):
        kept, left = await client.grant_lease(2000), await client.grant_lease(2000)
        await client.transact(put(b"kept", lease=kept))
        await client.transact(put(b"left", lease=left))

        async def renew() -> None:
            while True:
                await client.renew_lease(kept)
                await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(renew)
            for _ in range(4):
                await trio.sleep(0.9)
                leader = await nodes.leader()
                await nodes.kill(leader)
                await trio.sleep(0.5)
                await nodes.start(leader)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

        assert await client.get(b"kept") is not None
        assert await client.get(b"left") is None
        with pytest.raises(LeaseExpired):
            await client.renew_lease(left)


async def test_who_leads_again_does_not_go_by_what_it_knew_of_leases(
    autojump_clock: object,
) -> None:
    """H19: they were renewed at others meanwhile, and none of them ends by what it saw long ago."""
    async with serving_quorum() as (nodes, client):
        lease = await client.grant_lease(10_000)
        await client.transact(put(b"k", lease=lease))

        async def renew() -> None:
            while True:
                await client.renew_lease(lease)
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(renew)
            first = await nodes.leader()
            nodes.cut_off(first)
            await trio.sleep(20)
            nodes.join_again(first)
            for _ in range(20):
                leader = await nodes.leader()
                if leader == first:
                    break
                await nodes.kill(leader)
                await trio.sleep(2)
                await nodes.start(leader)
                await trio.sleep(2)
            assert await nodes.leader() == first
            await trio.sleep(1)
            assert await client.get(b"k") is not None
            nursery.cancel_scope.cancel()


async def test_no_lease_ends_because_its_leader_stood_still(autojump_clock: MockClock) -> None:
    """H19: who is not run for half a minute heard nobody in that time."""
    async with quorum(1) as nodes:
        await nodes.start()
        client = await nodes.client()
        lease = await client.grant_lease(10_000)
        await client.transact(put(b"k", lease=lease))
        await trio.sleep(1)
        autojump_clock.jump(30)
        await trio.sleep(5)
        assert await client.get(b"k") is not None
        await trio.sleep(10)
        assert await client.get(b"k") is None


async def test_no_lease_ends_while_there_is_no_quorum(autojump_clock: object) -> None:
    """H19: nobody could renew in that time; ten minutes without a quorum end nothing."""
    async with serving_quorum() as (nodes, client):
        lease = await client.grant_lease(2000)
        await client.transact(put(b"k", lease=lease))
        leader = await nodes.leader()
        others = [name for name in nodes.names if name != leader]
        await nodes.kill(*others)
        await trio.sleep(600)
        await nodes.start(*others)
        await client.renew_lease(lease)

        assert await client.get(b"k") is not None


async def test_without_a_quorum_a_client_is_told_whom_it_asked(autojump_clock: object) -> None:
    async with quorum(3) as nodes:
        await nodes.start()
        client = await nodes.client(timeout_s=5.0)
        await client.transact(put(b"k"))
        await nodes.kill("m1", "m2", "m3")
        began = trio.current_time()
        with pytest.raises(QuorumUnreachable, match="m1:4181, m2:4181, m3:4181"):
            await client.get(b"k")
        with pytest.raises(QuorumUnreachable):  # it was never sent: it certainly did not happen
            await client.transact(put(b"k", b"2"))
        with pytest.raises(QuorumUnreachable, match="m1:4181, m2:4181, m3:4181"):
            await client.status()
        with pytest.raises(QuorumUnreachable, match="m1:4181, m2:4181, m3:4181"):
            await client._connections.any_link()
        assert trio.current_time() - began < 24


async def test_a_change_that_may_have_happened_is_said_to_be_unknown(
    autojump_clock: object,
) -> None:
    async with quorum(3) as nodes:
        await nodes.start()
        client = await nodes.client(timeout_s=5.0)
        await client.transact(put(b"k"))
        leader = await nodes.leader()
        errors: list[DistributedLogError] = []

        async def change() -> None:
            try:
                await client.transact(put(b"k", b"2"))
            except DistributedLogError as error:
                errors.append(error)

        await nodes.kill(*(name for name in nodes.names if name != leader))
        await change()

        assert [type(error) for error in errors] == [OutcomeUnknown]


class _SlowDisk(MemoryDisk):
    """Takes its time over every file of the log and every snapshot that it opens."""

    async def open(self, name: str) -> File:
        if name.startswith(("log.", "snapshot.")):
            await trio.sleep(3)
        return await super().open(name)


async def test_members_that_still_load_do_not_pass_for_empty_ones(autojump_clock: object) -> None:
    """H5: the node that would found has been wiped, and asks while the others read their disks."""
    async with quorum(3) as nodes:
        nodes.disks = {name: _SlowDisk() for name in nodes.names}
        await nodes.start()
        client = await nodes.client()
        await client.transact(put(b"k", b"v"))
        await nodes.kill()
        nodes.wipe("m1")
        async with trio.open_nursery() as nursery:
            for name in nodes.names:
                nursery.start_soon(nodes.start, name)
        found = await (await nodes.client()).get(b"k")

        assert found is not None
        assert (await nodes.rows())["m1"].role == "empty"


async def test_a_watch_on_a_node_that_is_cut_off_is_taken_up_elsewhere(
    autojump_clock: object,
) -> None:
    """M6: silence there says nothing; what happened meanwhile comes from another node, without a gap."""
    async with quorum(3) as nodes:
        await nodes.start()
        writer = await nodes.client()
        await writer.transact(put(b"k", b"0"))
        leader = await nodes.leader()
        alone = nodes.other_than(leader)
        watcher = await nodes.client(alone, *(name for name in nodes.names if name != alone))
        found: list[bytes] = []
        async with watcher.watch(b"k", b"l", after_revision=0) as watch:
            found += [event.item.value for event in (await watch.next_batch()).events]
            nodes.cut_off(alone)
            for n in range(1, 6):
                await writer.transact(put(b"k", b"%d" % n))
            with trio.fail_after(10):
                while len(found) < 6:
                    found += [event.item.value for event in (await watch.next_batch()).events]
            await writer.transact(put(b"k", b"6"))
            with trio.fail_after(1):
                found += [event.item.value for event in (await watch.next_batch()).events]

        assert found == [b"%d" % n for n in range(7)]


async def test_a_watch_that_a_node_cannot_serve_is_taken_elsewhere(autojump_clock: object) -> None:
    async with serving_quorum() as (nodes, client):
        await client.transact(put(b"k", b"1"))
        await nodes.kill("m1")
        await damage(nodes, "m1")
        await nodes.start("m1")
        other = await nodes.client("m1", "m2", "m3")
        async with other.watch(b"k", b"l", after_revision=0) as watch:
            with trio.fail_after(10):
                batch = await watch.next_batch()

        assert [event.item.value for event in batch.events] == [b"1"]


async def test_each_part_of_a_backlog_says_how_far_it_goes(autojump_clock: object) -> None:
    """A watch is taken up after the last part that came in: one that says more would leave a gap (M6)."""
    async with quorum(1) as nodes, trio.open_nursery() as nursery:
        await nodes.start()
        client = await nodes.client()
        for n in range(5):
            await client.transact(put(b"k%d" % n, bytes(400_000)))
        hello = Hello(cluster_id="", node_id="watcher", kind="client")
        link = await Endpoint(nodes.machine("watcher"), lambda: hello).dial(
            nodes.peers["m1"], nursery=nursery
        )
        parts: list[WatchBatch] = []

        def on_frame(op: int, flags: int, status: int, ident: int, body: memoryview) -> None:
            assert (op, status) == (Op.META_WATCH_EVENTS, 0)
            parts.append(decode_events(body))

        link.subscribe(on_frame)
        asked = WatchRequest(b"k", b"l", 0).encode()
        link.send(envelope(Op.META_WATCH, len(asked), ident=1), asked)
        await wait_until(lambda: sum(len(part.events) for part in parts) == 5)

        assert len(parts) > 1
        for part in parts:
            assert part.revision == part.events[-1].item.mod_revision
        nursery.cancel_scope.cancel()


async def test_a_goodbye_after_the_clients_end_is_refused_and_breaks_nothing(
    autojump_clock: object,
) -> None:
    """A shielded task outlives the client for a moment: its connections are gone, none can be made."""
    async with quorum(1) as nodes:
        await nodes.start()
        client = await nodes.client()
        await client.get(b"k")
        async with trio.open_nursery() as nursery:
            await nursery.start(
                lambda task_status: client._connections.run(task_status=task_status)
            )
            nursery.cancel_scope.cancel()
        for link in list(client._connections._links.values()):
            link.close(ConnectionLost("its tasks have ended"))
        with pytest.raises(AlreadyClosed):
            await client.revoke_lease(1)


async def test_answers_that_are_not_read_are_not_made(autojump_clock: object) -> None:
    """Each page is up to a megabyte: who asks for thousands and reads none is told to come again."""
    async with quorum(1) as nodes:
        await nodes.start()
        client = await nodes.client()
        await client.transact(put(b"k", bytes(MIB - 100)))
        connection = await nodes.machine("flood").dial(nodes.peers["m1"])
        hello = encode_hello(Hello(label="flood"))
        question = RangeRequest(b"a", b"s", 9).encode()
        frames = [envelope(Op.HELLO, len(hello)) + hello]
        auth = pack({"method": "none"})
        frames.append(envelope(Op.AUTH, len(auth)) + auth)
        frames += [envelope(Op.META_READ, len(question), ident=n) + question for n in range(1, 301)]
        rest = b"".join(frames)
        while rest:
            rest = rest[connection.try_send([rest]) :]
            await connection.wait_writable()
        await trio.sleep(5)

        answered, buffer = 0, memoryview(bytearray(MIB))
        with trio.move_on_after(20):
            while True:
                answered += await connection.receive_into(buffer)
        assert MIB < answered < 20 * MIB, "300 of a megabyte were asked for"
        assert await client.get(b"k") is not None


async def test_a_read_that_is_refused_is_answered_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """A second answer would come from a state that no quorum round has confirmed."""
    answered: list[tuple[Link, int]] = []
    answer, refuse = Link.reply, Link.reply_error

    def reply(link: Link, ident: int, *body: Buffer, flags: int = 0) -> None:
        answered.append((link, ident))
        answer(link, ident, *body, flags=flags)

    def reply_error(link: Link, ident: int, error: DistributedLogError, **named: int) -> None:
        answered.append((link, ident))
        refuse(link, ident, error, **named)

    async with filled_quorum() as (nodes, _):
        follower = nodes.other_than(await nodes.leader())
        endpoint = Endpoint(nodes.machine("asker"), lambda: Hello(node_id="asker", kind="client"))
        async with trio.open_nursery() as nursery:
            link = await endpoint.dial((follower, 4181), nursery=nursery)
            monkeypatch.setattr(Link, "reply", reply)
            monkeypatch.setattr(Link, "reply_error", reply_error)
            with pytest.raises(NotLeader):
                await link.request(Op.META_READ, pack(["get", b"k00"]), timeout_s=1.0)
            await trio.sleep(1)
            monkeypatch.undo()
            nursery.cancel_scope.cancel()
    assert len(answered) == len(set(answered))


async def test_a_watch_that_cannot_be_is_refused_and_its_connection_stays(
    autojump_clock: object,
) -> None:
    async with serving_quorum() as (nodes, client), trio.open_nursery() as nursery:
        await client.transact(put(b"k", b"v"))
        await caught_up(nodes)
        ended: list[tuple[int, int]] = []
        hello = Hello(cluster_id="", node_id="other", kind="client")
        endpoint = Endpoint(nodes.machine("other"), lambda: hello)
        link = await endpoint.dial(nodes.peers[nodes.names[0]], nursery=nursery)
        link.subscribe(lambda op, flags, status, ident, body: ended.append((ident, status)))
        for ident, asked in enumerate(
            ([b"a", b"b", -1], ["a", b"b", 0], [b"a" * 5000, b"b", 0]), 1
        ):
            body = pack(asked)
            link.send(envelope(Op.META_WATCH, len(body), ident=ident), body)
        await trio.sleep(1)
        assert ended == [(ident, InvalidRequest.code) for ident in (1, 2, 3)]
        assert link.closed is None
        nursery.cancel_scope.cancel()
