"""The threat table of docs/concepts/security-model.md on processes: users without rights try everything.

One cluster with certificates, in mode ``required``: a metadata node, two bookies, the admin ``root``, ``etl``
who owns ``orders/``. Whatever is tried, nothing changes and no answer holds a word of somebody else's. What a
line needs no process for is shown elsewhere: that page names it.
"""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.bookie.client.bookie_client import BookieClient
from distributedlog.bookie.format import bookie_messages as m
from distributedlog.cluster.coordination.cookie import decode_cookie
from distributedlog.cluster.repair.auditor_election import ELECTION_KEY
from distributedlog.cluster.repair.loss_declaration import declare_lost, force_close
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import DeclaredLoss, LedgerMetadata
from distributedlog.ledger.placement.bookie_pool import BookiePool
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.model import log_keys
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_expiry import (
    CLOCK_KEY,
    SegmentCloseTimes,
    encode_clock,
    stamps_key,
)
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.log.model.stored_settings import StoredSettings, conf_key
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Compare, Delete, Put, Transaction
from distributedlog.metadata.protocol.client_messages import MembersRequest
from distributedlog.runtime.interfaces.errors import (
    CapabilityOutdated,
    ConnectionLost,
    DistributedLogError,
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
)
from distributedlog.runtime.interfaces.host import Address, Host
from distributedlog.runtime.interfaces.principals import Credentials
from distributedlog.runtime.machine import client_host, real_host
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.net.tls import Tls, with_tls
from distributedlog.runtime.protocol.capabilities import CapabilityKind, make_capability
from distributedlog.runtime.protocol.capability_messages import (
    BookieKeysReply,
    BookieKeysRequest,
    CapabilityReply,
    CapabilityRequest,
)
from distributedlog.runtime.protocol.frames import ENVELOPE, ENVELOPE_BYTES, Op, envelope, pack
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.runtime.protocol.operations import ALLOWED_KINDS
from distributedlog.uri import parse_uri
from tests.bookie.session.test_bookie_authorizer import ATTEMPTS, attempt
from tests.cluster.story import Cluster
from tests.runtime.pki import directory_of

pytestmark = pytest.mark.processes

TWO = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2, "metadata_timeout_s": 10.0}
LOG, MARK = "orders/eu", b"a record that only who may is to read"
OPS = sorted(
    {op for name, op in vars(Op).items() if name.isupper() and isinstance(op, int)} | {250}
)
"""Of the enum, and one that there is not."""
NO_REPLY = {Op.ADD, Op.ADD_MANY, Op.WRITE_LAC, Op.WRITE_LACS, Op.META_WATCH_CANCEL, Op.META_RAFT}
T = 5.0


@dataclass
class City:
    """The cluster and what those who once were let in still hold."""

    cluster: Cluster
    ledger: int = 0
    log_id: int = 0
    bookies: dict[str, str] = field(default_factory=dict)
    """Name to id."""
    ex_pass: bytes = b""
    ex_keys: dict[str, dict[CapabilityKind, bytes]] = field(default_factory=dict)
    """Bookie's id to capabilities from before it was revoked."""

    def address(self, name: str) -> Address:
        return next(node.address for node in self.cluster.plan.nodes if node.name == name)


def host_of(principal: str, *more: str) -> Host:
    return client_host("test", f"file:{directory_of(principal, *more)}")


def config_of(principal: str) -> dict[str, Any]:
    return {**TWO, "credentials": f"file:{directory_of(principal)}"}


@asynccontextmanager
async def metadata_of(city: City, principal: str) -> AsyncIterator[MetadataClient]:
    endpoint = Endpoint(host_of(principal), lambda: Hello(kind="client", label="test"))
    async with trio.open_nursery() as nursery:
        client = MetadataClient(
            endpoint, parse_uri(city.cluster.uri).addresses, client_id="test", timeout_s=T
        )
        await nursery.start(client.run)
        yield client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def linked(
    host: Host,
    address: Address,
    hello: Hello | None = None,
    credentials: Credentials | None = None,
) -> AsyncIterator[Any]:
    """A connection. Raises what dialling raises, and what its use raises, as it is and in no group."""
    failed: DistributedLogError | None = None
    async with trio.open_nursery() as nursery:
        try:
            link = await Endpoint(host, lambda: hello or Hello()).dial(
                address, nursery=nursery, credentials=credentials
            )
        except DistributedLogError as error:
            failed = error
        else:
            try:
                yield link
            except DistributedLogError as error:
                failed = error
            link.close(ConnectionLost("asked and answered"))
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def everything(city: City) -> tuple[object, ...]:
    """All keys that say something, and all records."""
    async with metadata_of(city, "user/root") as admin:
        found: list[object] = []
        for prefix in (b"log/", b"name/", b"ledger/", b"trust/", b"audit/", b"delete/", b"cookie/"):
            page = await admin.range(prefix, prefix_end(prefix))
            found += [
                (item.key, item.value) for item in page.items if b"/position/" not in item.key
            ]
    async with (
        open_namespace(city.cluster.uri, config=config_of("user/etl")) as namespace,
        namespace.open_log(LOG).open_reader(to="end") as reader,
    ):
        found += [record.payload async for record in reader]
    return tuple(found)


async def found_city(city: City) -> None:
    async with metadata_of(city, "user/root") as admin:
        await admin.change_authorization("mode", "report", "root")
        path = parse_uri(city.cluster.uri).path
        for name, role in (("etl", "owner"), ("ex", "writer"), ("wri", "writer")):
            await admin.change_authorization("user", name)
            await admin.change_authorization("grant", name, role, path, "orders/")
        await admin.change_authorization("user", "eve")
        await admin.change_authorization("mode", "required", "")
        async with open_namespace(city.cluster.uri, config=config_of("user/etl")) as namespace:
            await namespace.create_log(LOG)
            async with namespace.open_log(LOG).open_writer() as writer:
                for txid in range(3):
                    await writer.write(LogRecord(txid, MARK))
        (ledger,) = (await admin.range(b"ledger/", b"ledger0")).items
        city.ledger = keys.ledger_id_of(ledger.key)
        (named,) = (await admin.range(b"name/", b"name0")).items
        city.log_id = log_keys.decode_log_id(named.value)
        of_name: dict[str, str] = {}
        for one in (await admin.range(b"cookie/", b"cookie0")).items:
            of_name[decode_cookie(one.key, one.value)["label"]] = one.key.decode().partition("/")[2]
        city.bookies = of_name
        async with metadata_of(city, "user/ex") as ex:
            city.ex_keys = {bookie: {} for bookie in of_name.values()}
            for kind in (CapabilityKind.LIST, CapabilityKind.READ, CapabilityKind.ADD):
                question = CapabilityRequest(kind, {city.ledger: tuple(of_name.values())})
                reply = await ex.request(Op.META_CAPS, question.encode())
                answer = CapabilityReply.decode(reply.body)
                city.ex_pass = answer.session_credential
                for bookie, key in zip(of_name.values(), answer.keys[city.ledger], strict=True):
                    city.ex_keys[bookie][kind] = key
        for (
            name,
            bookie,
        ) in of_name.items():  # they were good, whether or not it has heard of the mode yet
            async with linked(host_of("user/ex"), city.address(name)) as link:
                key = city.ex_keys[bookie][CapabilityKind.READ]
                await attempt("read", BookieClient(link, bookie), city.ledger, key, 0)
        await admin.change_authorization("disable", "ex")


async def until_refused(city: City, name: str, bookie: str) -> None:
    """Until the ex-user's capability to read is taken no more: bookies hear of changes by a watch."""
    key = city.ex_keys[bookie][CapabilityKind.READ]
    with trio.fail_after(T):
        while True:
            async with linked(host_of("user/ex"), city.address(name)) as link:
                try:
                    await attempt("read", BookieClient(link, bookie), city.ledger, key, 0)
                except CapabilityOutdated:
                    return
            await trio.sleep(0.1)


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    place = tmp_path_factory.mktemp("city")
    with Cluster.planned(place, bookies=2, metadata_nodes=1) as cluster:
        cluster.more = {
            node.name: ["--tls", str(directory_of(f"{node.kind}/{node.name}"))]
            for node in cluster.plan.nodes
        }
        cluster.start()
        made = City(cluster)
        trio.run(found_city, made)
        yield made


def nothing_changes(city: City, story: Callable[[], Awaitable[None]]) -> None:
    """What is there before the story is there after it, and nothing else."""

    async def both() -> None:
        with trio.fail_after(120):
            before = await everything(city)
            await story()
            assert await everything(city) == before

    trio.run(both)
    for served in city.cluster.served.values():
        assert served.process.poll() is None, f"{served.node.name} has ended"


def bodies(city: City, op: int) -> list[bytes]:
    """What an operation may be asked with, to harm somebody who does not look."""
    key = bytes((CapabilityKind.RECOVER, 1)) + b"x" * 14
    state = log_keys.state_key(city.log_id)
    command = [["c", 1, 1 << 40], [[], [[state, b"stolen", 0]]]]
    asked: dict[int, list[bytes]] = {
        Op.STREAM_OPEN: [
            m.StreamOpenRequest(city.ledger, key, recovery=True, fragment_epoch=0).encode()
        ],
        Op.READ: [
            m.ReadEntriesRequest(
                city.ledger, key, 0, 9, 1 << 20, fence=True, past_lac=True
            ).encode()
        ],
        Op.FENCE: [m.LedgerRequest(city.ledger, key).encode()],
        Op.READ_LAC: [m.LedgerRequest(city.ledger, key).encode()],
        Op.LIST_ENTRIES: [m.LedgerRequest(city.ledger, key).encode()],
        Op.WAIT_LAC: [m.WaitLacRequest(city.ledger, key, -1, 100, 1 << 20).encode()],
        Op.META_READ: [
            pack(["get", state]),
            pack(["range", b"", b"\xff", 1000]),
            pack(["range", b"name/", b"name0", 1000]),
            pack(["get", b"secret/ledgers"]),
        ],
        Op.META_TRANSACT: [pack(["transact", *command]), pack(["trust", *command])],
        Op.META_LEASE: [pack(["renew", 1]), pack(["renew", 2])],
        Op.META_WATCH: [pack([b"log/", b"log0", 0]), pack([b"name/", b"name0", 0])],
        Op.META_MEMBERS: [MembersRequest("remove", "metadata1").encode()],
        Op.META_SAVE: [pack([0, 0])],
        Op.META_CAPS: [
            CapabilityRequest(
                CapabilityKind.READ, {city.ledger: tuple(city.bookies.values())}
            ).encode(),
            BookieKeysRequest(next(iter(city.bookies.values()))).encode(),
        ],
        Op.META_TRUST: [
            pack(["show"]),
            pack(["change", "c", 4, 1 << 40, ["grant", "eve", "admin", "", ""]]),
            pack(["change", "c", 5, 1 << 40, ["mode", "open", ""]]),
            pack(["rescue", "eve"]),
        ],
    }
    return [*asked.get(op, []), b"", pack([])]


def is_silent(city: City, answer: bytes) -> bool:
    """Does it tell nothing of somebody else's?"""
    told = (MARK, LOG.encode(), log_keys.encode_log_id(city.log_id), b"secret")
    return not any(one in answer for one in told) or b"may not" in answer or b"by clients" in answer


async def every_operation(
    city: City, name: str, host: Host, hello: Hello | None = None
) -> dict[int, list[bytes | DistributedLogError]]:
    """All of them over connections of their own to a node; what each comes to."""
    found: dict[int, list[bytes | DistributedLogError]] = {}
    for op in OPS:
        for body in bodies(city, op):
            said = found.setdefault(op, [])
            async with linked(host, city.address(name), hello) as link:
                try:
                    reply = await link.request(op, body, timeout_s=0.3 if op in NO_REPLY else T)
                    said.append(bytes(reply.body))
                except DistributedLogError as error:
                    said.append(error)
            answer = said[-1]
            text = answer if isinstance(answer, bytes) else str(answer).encode()
            assert is_silent(city, text), (name, op, answer)
    return found


async def first_words(host: Host, address: Address, words: bytes) -> bytes:
    """What a node says to who begins with these, until it hangs up."""
    try:
        connection = await host.dial(address)
    except DistributedLogError:
        return b""
    said = bytearray()
    room = memoryview(bytearray(65_536))
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:

                async def speak() -> None:
                    rest = words
                    with suppress(DistributedLogError):
                        while rest:
                            sent = connection.try_send((rest,))
                            rest = rest[sent:]
                            if rest:
                                await connection.wait_writable()

                nursery.start_soon(speak)
                with suppress(DistributedLogError):
                    while got := await connection.receive_into(room):
                        said += room[:got]
                nursery.cancel_scope.cancel()
    finally:
        connection.close()
    return bytes(said)


NODES = ("metadata1", "bookie1")


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("how", ["plain", "tls"])
def test_a_stranger_at_a_port(city: City, name: str, how: str, tmp_path: Path) -> None:
    """Any frame without a proof, each operation first: a sentence or the end, and nothing is done."""
    host = replace(real_host("stranger"), credentials=lambda address: None)
    if how == "tls":
        shutil.copy(directory_of("user/etl") / "ca.pem", tmp_path)
        host = with_tls(host, Tls(tmp_path))

    async def story() -> None:
        words = "over TLS" if how == "plain" else "cert"
        for kind in ("client", "bookie", "metadata", "health"):
            with pytest.raises(NotAuthenticated, match=words):
                async with linked(host, city.address(name), Hello(kind=kind, label=name)):
                    pass
        for op in OPS:
            if op == Op.HELLO:
                continue
            for body in bodies(city, op):
                said = await first_words(
                    host, city.address(name), envelope(op, len(body), ident=7) + body
                )
                assert is_silent(city, said)
                if said:
                    assert ENVELOPE.unpack(said[:ENVELOPE_BYTES])[3], "an error"

    nothing_changes(city, story)


@pytest.mark.parametrize("name", NODES)
def test_a_pass_that_was_overheard_is_nobody_in_clear(city: City, name: str) -> None:
    async def story() -> None:
        host = replace(real_host("stranger"), credentials=lambda address: None)
        shown = Credentials("pass", lambda meeting: city.ex_pass)
        with pytest.raises(NotAuthenticated):
            async with linked(host, city.address(name), None, shown):
                pass

    nothing_changes(city, story)


@pytest.mark.parametrize("name", NODES)
def test_somebody_of_another_authority(city: City, name: str) -> None:
    async def story() -> None:
        for principal in ("user/root", "metadata/metadata1", "bookie/bookie1"):
            with pytest.raises(NotAuthenticated):
                async with linked(host_of(principal, "test", "other"), city.address(name)):
                    pass
            with pytest.raises(NotAuthenticated):
                async with linked(host_of(principal, "elsewhere"), city.address(name)):
                    pass

    nothing_changes(city, story)


@pytest.mark.parametrize("name", NODES)
def test_a_user_without_a_grant(city: City, name: str) -> None:
    """Every operation; those between nodes are not even looked at."""

    async def story() -> None:
        for kind in ("bookie", "metadata", "write-proxy"):
            with pytest.raises(NotAuthenticated, match="user/eve"):
                async with linked(host_of("user/eve"), city.address(name), Hello(kind=kind)):
                    pass
        found = await every_operation(city, name, host_of("user/eve"))
        for op in OPS:
            if "user" not in ALLOWED_KINDS.get(op, ()) and op not in NO_REPLY:
                assert all(isinstance(one, NotAllowed | ConnectionLost) for one in found[op]), op
        if name == "metadata1":
            assert all(isinstance(one, DistributedLogError) for one in found[Op.META_TRANSACT])
            async with metadata_of(city, "user/eve") as eve:
                page = await eve.range(b"name/", prefix_end(b"name/"))
                assert page.items == ()
        else:
            for op in (Op.READ, Op.FENCE, Op.READ_LAC, Op.LIST_ENTRIES, Op.WAIT_LAC):
                assert isinstance(found[op][0], CapabilityOutdated), op

    nothing_changes(city, story)


def test_an_ex_user(city: City) -> None:
    """With its certificate, its pass and each capability that it had: the quorum hangs up, bookies refuse."""

    async def story() -> None:
        # The node hangs up with a reason, before or after it has the question.
        with pytest.raises((NotAuthenticated, ConnectionLost), match="disabled"):
            async with linked(host_of("user/ex"), city.address("metadata1")) as link:
                await link.request(Op.META_READ, pack(["get", b"\0"]), timeout_s=T)
        for name, bookie in city.bookies.items():
            await until_refused(city, name, bookie)
            async with linked(host_of("user/ex"), city.address(name)) as link:
                client = BookieClient(link, bookie)
                for what in ATTEMPTS:
                    for key in city.ex_keys[bookie].values():
                        with pytest.raises(CapabilityOutdated):
                            await attempt(what, client, city.ledger, key, 9)
            shown = Credentials("pass", lambda meeting: city.ex_pass)
            with pytest.raises(NotAuthenticated):
                async with linked(host_of("user/eve"), city.address(name), None, shown):
                    pass
        await every_operation(city, "bookie1", host_of("user/ex"))

    nothing_changes(city, story)


def test_capabilities_of_somebody_else(city: City) -> None:
    """Overheard by a user of the cluster, and shown as its own; another ledger's; made up."""

    async def story() -> None:
        async with metadata_of(city, "user/etl") as etl:
            question = CapabilityRequest(
                CapabilityKind.READ, {city.ledger: tuple(city.bookies.values())}
            )
            answer = CapabilityReply.decode(
                (await etl.request(Op.META_CAPS, question.encode())).body
            )
        for name, key in zip(city.bookies, answer.keys[city.ledger], strict=True):
            bookie = city.bookies[name]
            async with linked(host_of("user/etl"), city.address(name)) as link:
                await attempt("read", BookieClient(link, bookie), city.ledger, key, 9)
            for who in ("user/eve", "bookie/bookie1", "metadata/metadata1"):
                if who == f"bookie/{name}":
                    continue
                async with linked(host_of(who), city.address(name)) as link:
                    client = BookieClient(link, bookie)
                    for what in ATTEMPTS if not who.startswith("metadata") else ("read", "fence"):
                        with pytest.raises((CapabilityOutdated, NotAllowed)):
                            await attempt(what, client, city.ledger, key, 9)
            async with linked(host_of("user/etl"), city.address(name)) as link:
                for ledger in (city.ledger + 1, 1 << 40):
                    with pytest.raises(CapabilityOutdated):
                        await attempt("read", BookieClient(link, bookie), ledger, key, 9)

    nothing_changes(city, story)


def test_a_stolen_bookie(city: City) -> None:
    """With one's certificate and all that the quorum tells it: nothing at the other, nor of its records."""

    async def story() -> None:
        async with metadata_of(city, "user/root") as admin:
            elected = await admin.get(ELECTION_KEY)
        assert elected is not None
        names = sorted(city.bookies, key=lambda name: city.bookies[name].encode() in elected.value)
        mine, other = (
            city.bookies[name] for name in names
        )  # not the one that repairs: it may more
        thief = f"bookie/{names[0]}"
        for hello in (
            Hello(kind="bookie", label=names[1]),
            Hello(kind="metadata", label="metadata1"),
            Hello(kind="write-proxy", label=names[0]),
        ):
            for name in ("metadata1", names[1]):
                with pytest.raises(NotAuthenticated, match=thief):
                    async with linked(host_of(thief), city.address(name), hello):
                        pass
        async with metadata_of(city, thief) as quorum:
            reply = await quorum.request(Op.META_CAPS, BookieKeysRequest(mine).encode())
            held = BookieKeysReply.decode(reply.body).generations
            with pytest.raises(NotAllowed, match=f"not bookie {other}"):
                await quorum.request(Op.META_CAPS, BookieKeysRequest(other).encode())
            state = log_keys.state_key(city.log_id)
            for change in (
                Delete(keys.cookie_key(other)),
                Put(keys.bookie_key(other), b""),
                Delete(state),
                Put(state, b""),
                Put(log_keys.name_key("default", "mine"), log_keys.encode_log_id(city.log_id)),
                Put(b"secret/ledgers", b""),
                Put(b"trust/mode", b""),
            ):
                with pytest.raises(NotAllowed):
                    await quorum.transact(Transaction((), (change,)))
            with pytest.raises(NotAllowed):
                await quorum.change_authorization("grant", "eve", "admin", "", "")
        async with linked(host_of(thief), city.address("metadata1")) as link:
            for op in (Op.META_RAFT, Op.META_FORM, Op.META_DIFFERS, Op.META_RECALL, Op.META_SAVE):
                with pytest.raises(NotAllowed):
                    await link.request(op, b"", timeout_s=T)
        async with linked(host_of(thief), city.address(names[1])) as link:
            client = BookieClient(link, other)
            for what in ATTEMPTS:
                for kind in CapabilityKind:
                    for who in (thief, "user/etl", "user/local"):
                        made_up = make_capability(held[0], kind, city.ledger, who, 0)
                        with pytest.raises(CapabilityOutdated):
                            await attempt(what, client, city.ledger, made_up, 9)

    nothing_changes(city, story)


def test_a_stolen_bookie_that_repairs(city: City) -> None:
    """It has the lease, and a hand in all records: no record at or above a truncation point is lost."""

    async def story() -> None:
        async with metadata_of(city, "user/root") as admin:
            elected = await admin.get(ELECTION_KEY)
        assert elected is not None
        (name,) = [one for one in city.bookies if city.bookies[one].encode() in elected.value]
        other = next(bookie for one, bookie in city.bookies.items() if one != name)
        state_at = log_keys.state_key(city.log_id)
        async with metadata_of(city, f"bookie/{name}") as thief:
            found = await thief.get(state_at)
            segments = await thief.range(
                log_keys.segment_key(city.log_id, 0), log_keys.segment_key(city.log_id, 1 << 60)
            )
            record = await thief.get(keys.ledger_key(city.ledger))
            assert found is not None
            assert record is not None
            state = LogState.decode(found.value)
            assert not state.in_progress
            ledger = LedgerMetadata.decode(record.key, record.value)
            end = DLSN(state.first_open_segment, 0, 0)
            cut = Put(state_at, state.with_truncation(end, 3).encode())
            gone = Put(state_at, replace(state, first_segment=state.first_open_segment).encode())
            deleted = replace(ledger, owner=None).deleting()
            moved = replace(ledger.ensembles[0], bookies=("a", "b"))
            shorter = replace(ledger, last_entry=-1, length=0)
            old = SegmentCloseTimes(((state.first_open_segment - 1, 0),))
            wanted = StoredSettings({"retention_s": 1.0, "retention_segments_min": 0})
            attempts: tuple[tuple[Put | Delete, ...], ...] = (
                (cut,),
                (cut, Put(log_keys.purge_key(city.log_id), b"")),
                (gone, *(Delete(one.key) for one in segments.items)),
                tuple(Delete(one.key) for one in segments.items),
                (Delete(state_at),),
                (Put(state_at, replace(state, deleting=True).encode()),),
                (Put(record.key, deleted.encode()),),
                (Put(record.key, shorter.encode()),),
                (Put(record.key, replace(ledger, ensembles=(moved,)).encode()),),
                (Delete(record.key),),
                (Put(conf_key(city.log_id), wanted.encode()),),
                (Put(stamps_key(city.log_id), old.encode()),),
                (Put(CLOCK_KEY, encode_clock(1 << 40)),),
                (Put(keys.leaving_key(other), b""),),
                (Delete(keys.bookie_key(other)),),
                (Delete(keys.cookie_key(other)),),
            )
            for what in attempts:
                for compares in ((), (Compare.version(state_at, found.version),)):
                    with pytest.raises(NotAllowed):
                        await thief.transact(Transaction(compares, what))
            for own in (Delete(log_keys.purge_key(city.log_id)), Put(keys.scrub_key(other), b"")):
                assert (await thief.transact(Transaction((), (own,)))).succeeded, "it does repair"
        for one in city.bookies:
            if one != name:
                async with metadata_of(city, f"bookie/{one}") as second:
                    with pytest.raises(NotAllowed):  # nor does any other one take its turn
                        await second.transact(Transaction((), (Put(ELECTION_KEY, b"me"),)))

    nothing_changes(city, story)


def test_a_writer_that_speaks_the_metadata_protocol_itself(city: City) -> None:
    """It may append to the log, and no acknowledged record is lost by it: not by any record that it puts."""

    async def story() -> None:
        state_at = log_keys.state_key(city.log_id)
        async with metadata_of(city, "user/wri") as writer:
            found = await writer.get(state_at)
            (one,) = (
                await writer.range(
                    log_keys.segment_key(city.log_id, 0), log_keys.segment_key(city.log_id, 1 << 60)
                )
            ).items
            stored = await writer.get(keys.ledger_key(city.ledger))
            assert found is not None
            assert stored is not None
            state, segment = LogState.decode(found.value), SegmentRecord.decode(one.value)
            ledger = LedgerMetadata.decode(stored.key, stored.value)
            assert segment.closed
            assert ledger.closed
            loss = DeclaredLoss(0, 0, "somebody@elsewhere", 1, "no reason")
            less = replace(segment, last_entry=0, last_user_entry=0, records=1)
            attempts: tuple[tuple[Put | Delete, ...], ...] = (
                (Put(stored.key, ledger.with_loss(loss).encode()),),
                (Put(stored.key, replace(ledger, last_entry=0, length=1).encode()),),
                (Put(stored.key, replace(ledger, owner=None).deleting().encode()),),
                (Put(stored.key, replace(ledger, key=b"x" * 16).encode()),),
                (Delete(stored.key),),
                (Delete(one.key),),
                (Delete(one.key), Put(state_at, state.encode())),
                (Put(one.key, less.encode()),),
                (Put(one.key, less.encode()), Put(state_at, state.encode())),
                (Put(state_at, replace(state, next_sequence_id=0).encode()),),
                (Put(state_at, replace(state, last_segment=0, first_open_segment=1).encode()),),
                (Delete(state_at),),
            )
            as_read = tuple(Compare.version(i.key, i.version) for i in (found, one, stored))
            for what in attempts:
                for compares in ((), as_read):
                    with pytest.raises(NotAllowed):
                        await writer.transact(Transaction(compares, what))
            pool = BookiePool(Endpoint(host_of("user/wri"), Hello), writer)
            with pytest.raises(NotAllowed):
                await declare_lost(writer, pool, city.ledger, loss, force=True)
            with pytest.raises(InvalidRequest, match="is closed"):
                await force_close(writer, pool, city.ledger, 0, by="me", why="", force=True)

    nothing_changes(city, story)


def test_a_stolen_bookie_at_the_address_of_the_metadata(city: City) -> None:
    """Who dials there wants a metadata node: what a bookie says is not heard."""

    async def story() -> None:
        host = with_tls(real_host("thief"), Tls(directory_of("bookie/bookie1")))
        heard: list[int] = []

        class Thief:
            def __init__(self, link: object) -> None:
                pass

            def on_frame(self, op: int, *more: object) -> None:
                heard.append(op)

            def on_batch_end(self) -> None:
                pass

            def on_closed(self) -> None:
                pass

        async with trio.open_nursery() as nursery:
            for kind in ("bookie", "client"):
                listener = await host.listen(("127.0.0.1", 0))
                says = Hello(cluster_id="c", node_id="n", kind=kind, label="bookie1")
                serving = Endpoint(host, partial(replace, says))
                nursery.start_soon(serving.serve, {"": listener}, Thief)
                uri = f"distributedlog://127.0.0.1:{listener.address[1]}/default"
                config = {**config_of("user/etl"), "metadata_timeout_s": 2.0}
                with pytest.raises(NotAuthenticated, match="expected is a metadata node"):
                    async with open_namespace(uri, config=config) as namespace:
                        await namespace.create_log("orders/more")
            nursery.cancel_scope.cancel()
        assert not heard

    nothing_changes(city, story)


def test_somebody_on_the_wire(city: City) -> None:
    """Who passes all bytes on reads no word of them; what it changes ends the connection; what it sends
    again, to the same node or another one, is nothing."""

    async def story() -> None:
        before = city.address("metadata1")
        went: list[bytes] = []
        flips = False

        async def between(stream: trio.SocketStream) -> None:
            there = await trio.open_tcp_stream(*before)
            sent = bytearray()
            went.append(b"")
            mine = len(went) - 1

            async def way(of: trio.SocketStream, to: trio.SocketStream, *, out: bool) -> None:
                passed = 0
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    async for some in of:
                        chunk = bytearray(some)
                        passed += len(chunk)
                        if flips and out and passed > 4000:
                            chunk[len(chunk) // 2] ^= 1
                        if out:
                            sent.extend(chunk)
                            went[mine] = bytes(sent)
                        else:
                            went.append(bytes(chunk))
                        await to.send_all(chunk)
                    await to.send_eof()

            async with stream, there, trio.open_nursery() as both:
                both.start_soon(partial(way, stream, there, out=True))
                both.start_soon(partial(way, there, stream, out=False))

        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listener.socket.getsockname()[1]

            async def unharmed(stream: trio.SocketStream) -> None:
                with suppress(OSError, trio.BrokenResourceError, ExceptionGroup):
                    await between(stream)

            nursery.start_soon(trio.serve_listeners, unharmed, [listener])
            link_host = host_of("user/etl")
            asked = pack(["range", b"name/default\0", b"name/default\x01", 10])
            async with linked(link_host, ("127.0.0.1", port)) as link:
                reply = await link.request(Op.META_READ, asked, timeout_s=T)
                assert LOG.encode() in bytes(reply.body)
            await trio.sleep(0.2)
            assert went
            assert not [one for one in went if LOG.encode() in one or b"user/etl" in one]
            for name in NODES:
                for one in list(went):
                    plain = replace(real_host("replayer"), credentials=lambda address: None)
                    assert is_silent(city, await first_words(plain, city.address(name), one))
            flips = True
            async with linked(link_host, ("127.0.0.1", port)) as link:
                with pytest.raises(ConnectionLost):
                    await link.request(Op.META_READ, asked + b" " * 8000, timeout_s=T)
            nursery.cancel_scope.cancel()

    nothing_changes(city, story)
