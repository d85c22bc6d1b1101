"""Seven real nodes under everything that a stranger can send: all live, and each kind is told in one line.

python -m pytest -q -s tests/cluster/test_hostile.py
"""

import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.cluster.local.cluster_plan import PlannedNode
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.log.model.log_keys import STAGED_PREFIX, staged_ledger_key
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.metadata.raft.raft_messages import NUMBER_MAX
from distributedlog.runtime.declarations.health_conditions import Code
from distributedlog.runtime.interfaces.errors import ConnectionLost
from distributedlog.runtime.interfaces.host import Address
from distributedlog.runtime.machine import real_host
from distributedlog.runtime.net.client_link import ClientLink
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol import handshake as hellos
from distributedlog.runtime.protocol.frames import Op, envelope, pack
from distributedlog.runtime.protocol.handshake import Hello
from tests.cluster.story import Cluster
from tests.conditions import codes_of

pytestmark = pytest.mark.processes

DESCRIPTORS = 1024
SILENT = 3000
SILENCED = ("bookie1", "bookie2")
GREETED_WITHIN_S = 4.0
ATTEMPTS = 3
"""A busy machine may need more than one."""
PAYLOAD_BYTES = 200_000
RECORDS = 100
NESTED = b"\x91" * 1000 + b"\xc0"
"""msgpack, a thousand deep: 1 KB."""
RAFT_HEARTBEAT = 7


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Three metadata nodes and four bookies, 1,024 descriptors each, small journal files, /health."""
    config = tmp_path / "bookie.toml"
    config.write_text("[store]\njournal_file_bytes = 4194304\n")
    monkeypatch.setenv("DLOG_SERVE_BOOKIE_CONFIG", str(config))
    with Cluster.planned(tmp_path, bookies=4) as made:
        made.descriptors = DESCRIPTORS
        made.more = {node.name: ["--http", _http(node)] for node in made.plan.nodes}
        made.start()
        yield made


def test_hostile_words_and_poisoned_keys_end_no_node(cluster: Cluster) -> None:
    """H210 to H214: nested words, digits that are none, forged terms, bad records, to-dos of nobody."""
    trio.run(_under_words, cluster)

    _all_live(cluster)
    status = cluster.json("status", codes=(0, 6))
    assert Code.DAMAGED_RECORDS in codes_of(status["conditions"]), status["reasons"]
    for name in list(cluster.served):
        told = [line for line in _logged(cluster, name) if line.get("reason") == "malformed"]
        assert len(told) == 1, (name, told)
    cluster.kill("bookie1", "metadata1")
    cluster.start("metadata1", "bookie1")  # what was poison before a start is poison after it
    _all_live(cluster)


def test_silent_connections_stop_neither_rolls_nor_health_nor_newcomers(cluster: Cluster) -> None:
    """3,000 connections that say nothing, at two bookies with 1,024 descriptors each."""
    trio.run(_under_silence, cluster)

    _all_live(cluster)
    for name in SILENCED:
        told = [line for line in _logged(cluster, name) if line.get("reason") == "no place"]
        assert len(told) == 1, (name, told)


# --- words and keys -------------------------------------------------------------------------------


async def _under_words(cluster: Cluster) -> None:
    async with open_namespace(cluster.uri) as namespace:
        await namespace.create_log("kept")
        async with namespace.open_log("kept").open_writer() as writer:
            for number in range(20):
                await writer.write(LogRecord(number, b"%d" % number))
        for node in cluster.plan.nodes:
            await _hostile_words(cluster, node)
        await _poison(cluster)
        await trio.sleep(3.0)  # deletions, repairs and pools have met it
    async with open_namespace(cluster.uri) as namespace:  # whoever comes now meets it first
        log = namespace.open_log("kept")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(20, b"20"))
        async with log.open_reader(to="end") as reader:
            assert [record.txid async for record in reader] == list(range(21))


async def _hostile_words(cluster: Cluster, node: PlannedNode) -> None:
    sound = hellos.encode_hello(Hello(kind="client"))
    auth = pack({"method": "none"})
    cluster_id, node_id = await _who(node.address)
    stranger = hellos.encode_hello(Hello(cluster_id, "0" * 32, "metadata"))
    member = hellos.encode_hello(Hello(cluster_id, node_id, "metadata"))
    beats = [pack([RAFT_HEARTBEAT, NUMBER_MAX, sender, 0, 1]) for sender in ("0" * 32, node_id)]
    words = [(Op.HELLO, NESTED)]
    words += [
        (Op.HELLO, sound.replace(pack(name), pack(name) + NESTED, 1)) for name in ("auth", "label")
    ]
    for word in words:
        await _say(node.address, [word])
    await _say(node.address, [(Op.HELLO, sound), (Op.AUTH, NESTED)])
    for op in (*range(3, 26), *range(64, 80)):
        await _say(node.address, [(Op.HELLO, sound), (Op.AUTH, auth), (op, NESTED)])
    lists = [
        ["add", "mx", "h:²"],
        ["renew", 2**64 - 1],
        [b"", b"\xff" * 9, 0],
        ["range", b"", b"", 1],
    ]
    for op in range(64, 80):
        for said in lists:
            await _say(node.address, [(Op.HELLO, sound), (Op.AUTH, auth), (op, pack(said))])
    for hello, beat in zip((stranger, member), beats, strict=True):
        await _say(node.address, [(Op.HELLO, hello), (Op.AUTH, auth), (Op.META_RAFT, beat)])


async def _say(address: Address, words: list[tuple[int, bytes]]) -> None:
    """Say that, and hang up when nothing more comes."""
    stream = await trio.open_tcp_stream(*address)
    async with stream:
        with suppress(trio.BrokenResourceError):
            for op, body in words:
                await stream.send_all(envelope(op, len(body), ident=1) + body)
            with trio.move_on_after(0.05):
                while await stream.receive_some(65_536):
                    pass


async def _who(address: Address) -> tuple[str, str]:
    async with _dialled(address) as link:
        return link.peer.cluster_id, link.peer.node_id


@asynccontextmanager
async def _dialled(address: Address) -> AsyncIterator[ClientLink]:
    async with trio.open_nursery() as nursery:
        link = await Endpoint(real_host("test"), Hello).dial(address, nursery=nursery)
        yield link
        link.close(ConnectionLost("the test has seen it"))
        nursery.cancel_scope.cancel()


async def _poison(cluster: Cluster) -> None:
    """Keys that anybody may put today."""
    places = [node.address for node in cluster.plan.nodes_of_kind("metadata")]
    endpoint = Endpoint(real_host("test"), lambda: Hello(kind="client"))
    metadata = MetadataClient(endpoint, places, client_id="stranger")
    async with trio.open_nursery() as nursery:
        await nursery.start(metadata.run)
        ledgers = await metadata.range(keys.LEDGER_PREFIX, prefix_end(keys.LEDGER_PREFIX))
        living = [keys.ledger_id_of(item.key) for item in ledgers.items]
        cookies = await metadata.range(keys.COOKIE_PREFIX, prefix_end(keys.COOKIE_PREFIX))
        bookies = [keys.bookie_id_of(item.key) for item in cookies.items]
        assert living
        registration = pack({"format": 1, "id": "evil", "addresses": []})
        poison = {
            **{b"bookie/evil": registration, b"bookie/\xff\xfe": b"", b"bookie/deep": NESTED},
            **{b"cookie/evil": NESTED, b"cookie/\xff": b"", b"leaving/\xff": b""},
            **{
                b"under/x": b"",
                b"under/%016x" % living[0]: NESTED,
                b"purge/x": b"",
                b"purge/": b"",
            },
            **{
                b"ledger/x": b"",
                b"ledger/%016x" % (1 << 60): NESTED,
                b"on/x": b"",
                b"on/\xff/1": b"",
            },
            **{
                STAGED_PREFIX + b"x": b"",
                b"name/default\x00\xff": b"x",
                b"name/default\x00bad": NESTED,
            },
        }
        for bookie in bookies:
            poison[b"delete/%s/x" % bookie.encode()] = b""
            poison[b"on/%s/zz" % bookie.encode()] = b""
            poison |= {keys.delete_key(bookie, ledger): b"" for ledger in living}
        poison |= {staged_ledger_key(7, ledger): b"" for ledger in living}
        for key, value in poison.items():
            await metadata.transact(Transaction((), (Put(key, value),)))
        nursery.cancel_scope.cancel()


# --- silence --------------------------------------------------------------------------------------


async def _under_silence(cluster: Cluster) -> None:
    nodes = [node for node in cluster.plan.nodes if node.name in SILENCED]
    journals = [cluster.directory / name / "journal" for name in SILENCED]
    async with AsyncExitStack() as stack, open_namespace(cluster.uri) as namespace:
        await namespace.create_log("busy")
        before = list(map(_newest, journals))
        for attempt in range(ATTEMPTS):
            await stack.aclose()
            for number in range(SILENT):
                stream = await trio.open_tcp_stream(*nodes[number % len(nodes)].address)
                await stack.enter_async_context(stream)
            # Later, the bookies have ended the silent connections anyway.
            with trio.move_on_after(GREETED_WITHIN_S) as limit:
                for node in nodes:
                    async with _dialled(node.address):
                        print(f"attempt {attempt}: {node.name} greeted a newcomer")
            if not limit.cancelled_caught:
                break
        else:
            pytest.fail(f"no newcomer was greeted in {ATTEMPTS} attempts")
        async with namespace.open_log("busy").open_writer() as writer:
            for number in range(RECORDS):
                await writer.write(LogRecord(number, bytes(PAYLOAD_BYTES)))
        # Three of four bookies are in the ensemble, so one of the two at least.
        assert list(map(_newest, journals)) > before, "their journals roll"
        healths = [await trio.to_thread.run_sync(_health, one) for one in cluster.plan.nodes]
        assert healths == [200] * len(healths)


def _newest(journal: Path) -> int:
    return max(int(file.name.removeprefix("journal-")) for file in journal.glob("journal-*"))


def _http(node: PlannedNode) -> str:
    """Ports beside the nodes' own: those of a plan lie in a row."""
    return f"{node.address[0]}:{node.address[1] + 500}"


def _health(node: PlannedNode) -> int:
    with urllib.request.urlopen(f"http://{_http(node)}/health", timeout=10) as answer:
        return int(answer.status)


# --- what is left ---------------------------------------------------------------------------------


def _all_live(cluster: Cluster) -> None:
    ended = {name: one.process.poll() for name, one in cluster.served.items()}
    assert set(ended.values()) == {None}, ended
    for name in cluster.served:
        said = (cluster.directory / f"{name}.stderr").read_text()
        assert "Traceback" not in said, said[-3000:]
        assert "fault while serving" not in said, said[-3000:]


def _logged(cluster: Cluster, name: str) -> list[dict[str, object]]:
    lines = (cluster.directory / f"{name}.stderr").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
