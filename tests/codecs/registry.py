"""Every decoder of the tree, with sound samples and the errors that it may raise.

`test_decoders.py` fails where a function takes bytes apart and is not covered here. ``seal`` puts a
checksum on what was changed, for what is behind one is read as well: rot is one thing, a program gone wrong
another.
"""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import xxhash

from distributedlog.bookie.format import bookie_messages as bm
from distributedlog.bookie.format import compacted_format as cb
from distributedlog.bookie.format import entry as entries
from distributedlog.bookie.format import index_format as ix
from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.format import record_slices as cutting
from distributedlog.bookie.format.extent_map import ExtentLocation
from distributedlog.cluster.coordination import cookie
from distributedlog.cluster.coordination.journal_sync_point import JournalSyncPoint
from distributedlog.cluster.coordination.repair_settings import RepairSettings
from distributedlog.cluster.local import cluster_plan as plan
from distributedlog.cluster.repair.pull_replication import ReplicaMove
from distributedlog.cluster.status.damaged_records import ALL_RECORDS
from distributedlog.ledger.model import ledger_ids as ids
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_metadata import DeclaredLoss, Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import (
    MissingRange,
    decode_missing_ranges,
    encode_missing_ranges,
)
from distributedlog.ledger.placement.placement_policy import PlacementPolicy
from distributedlog.log.consumers.work_state import WorkItem, WorkItemStatus, WorkState
from distributedlog.log.declarations.compression_codecs import CODEC_NAMES, LZ4, ZSTD
from distributedlog.log.format import record
from distributedlog.log.format.compression import Compression
from distributedlog.log.format.control_record import (
    LastRecord,
    build_control_entry,
    decode_last_record,
)
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.producer_section import encode_section as encode_producers
from distributedlog.log.format.producer_section import read_producer_section
from distributedlog.log.format.producer_table import (
    FrameSpan,
    Producer,
    ProducerOpening,
    ProducerTable,
    StoredFrame,
)
from distributedlog.log.format.record_headers import KeyedContent
from distributedlog.log.model import deleted_log as tombstone
from distributedlog.log.model import log_keys
from distributedlog.log.model.lock_record import LockRecord
from distributedlog.log.model.log_state import LogEnd, LogState
from distributedlog.log.model.segment_expiry import SegmentCloseTimes, decode_clock, encode_clock
from distributedlog.log.model.segment_record import (
    SegmentBegin,
    SegmentEnd,
    SegmentRecord,
    segment_begin,
)
from distributedlog.log.model.stored_settings import StoredSettings
from distributedlog.log.segments.app_versions import AppVersion
from distributedlog.log.segments.staged_ledgers import StagedLedger
from distributedlog.log.services.named_positions import PositionRecord
from distributedlog.metadata.auth import quorum_secrets as secret_keys
from distributedlog.metadata.model import acl_records as trust_records
from distributedlog.metadata.model import cluster_version, commands, configuration
from distributedlog.metadata.model import command_results as answers
from distributedlog.metadata.model.interface import MemberStatus, RangePage, WatchBatch, WatchEvent
from distributedlog.metadata.model.transaction import (
    Compare,
    Delete,
    KeyValue,
    Put,
    Transaction,
    TransactionReply,
)
from distributedlog.metadata.node import admin_recovery as rescuing
from distributedlog.metadata.peers import bootstrap as forming
from distributedlog.metadata.peers import hard_state_recovery as recalling
from distributedlog.metadata.protocol import client_messages as wire
from distributedlog.metadata.protocol import token_messages
from distributedlog.metadata.raft import raft_messages as messages
from distributedlog.metadata.raft import recovered_hard_state as ghost
from distributedlog.metadata.raft.ready import HardState
from distributedlog.metadata.state.kv_snapshot import (
    KEY_ROW,
    KEYS_CHUNK_MARKER,
    SnapshotBuilder,
    snapshot_chunks,
)
from distributedlog.metadata.state.kv_state import VALUE_HEADER, KeyValueState
from distributedlog.metadata.storage import backup_format as saves
from distributedlog.metadata.storage import member_identity as members
from distributedlog.metadata.storage.log_replay import RaftLogReplay
from distributedlog.proxy.membership.proxy_registration import ProxyRegistration
from distributedlog.proxy.protocol import proxy_messages as pw
from distributedlog.proxy.protocol import read_messages as prw
from distributedlog.runtime.declarations.health_conditions import Code, condition
from distributedlog.runtime.declarations.versions import Version
from distributedlog.runtime.disk import checksummed_blocks as blocks
from distributedlog.runtime.disk import node_identity as identity
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    ForeignData,
    InvalidRequest,
    NotAuthenticated,
    OutcomeUnknown,
    ProtocolError,
    TransactionTooLarge,
    UnsupportedFormat,
)
from distributedlog.runtime.interfaces.principals import Token, Welcome
from distributedlog.runtime.protocol import capability_messages, frames, schema
from distributedlog.runtime.protocol import handshake as hello
from distributedlog.runtime.protocol.capabilities import (
    CapabilityKind,
    Generation,
    issue_session_credential,
    verify_session_credential,
)
from distributedlog.runtime.protocol.frames import ENVELOPE_BYTES, pack, unpack
from distributedlog.runtime.protocol.schema import SchemaError
from distributedlog.runtime.protocol.tokens import encode_token, verify_token
from distributedlog.spark.archive.manifest import ArchiveFile, Manifest, _digest_of

PEER = (ProtocolError, UnsupportedFormat)
GENERATION = Generation(1, b"k" * 32, b"p" * 32)
TOKEN = encode_token(
    Token("etl", 1_800_000_000, 9, 1, "ab" * 16, b"n" * 8, (("ns", "a/", 1),)), GENERATION.key
)
STORED = (CorruptData, UnsupportedFormat)


@dataclass(frozen=True)
class Codec:
    """One decoder: what it reads, what it may raise, and which functions of the tree that covers."""

    name: str
    decode: Callable[[bytes], Any]
    samples: list[bytes]
    errors: tuple[type[Exception], ...]
    covers: tuple[str, ...]
    kind: str = "msgpack"
    """``msgpack``, ``json``, or ``bytes`` for what has fixed places."""
    seal: Callable[[bytes], bytes] = field(default=lambda body: body)
    """The mutated body as it is given to ``decode``."""


def sealed(key: bytes) -> Callable[[bytes], bytes]:
    return lambda body: ix.with_digest(key, body)


def restored(chunk: bytes) -> object:
    """A snapshot of this one chunk after a head, or with this head."""
    builder = SnapshotBuilder(KeyValueState())
    if chunk[:1] not in (b"\x92", b"K"):
        builder.add(chunk)
        return builder.finish()
    builder.add(pack([1, 9, 9, 5, 0, 2, 2, 1]))
    builder.add(pack(["leases", [[3, 1000]]]))
    builder.add(chunk)
    return None


def snapshot_row(key: bytes, version: int, lease: int) -> bytes:
    content = VALUE_HEADER.pack(version, lease, 2, 3) + b"value"
    return KEY_ROW.pack(len(key), len(content)) + key + content


def replayed(body: bytes) -> object:
    replay = RaftLogReplay()
    replay.apply_operations(unpack(body, "a block"))
    return replay.hard_state, replay.log.last_index


def entry_of(body: bytes) -> object:
    header = record.decode_header(body)
    columns = record.decode_columns(body, header, record.Origin(1, 0, 0))
    return columns.tuples(), columns.keys, columns.headers


def last_record_of(body: bytes) -> object:
    return decode_last_record(6, body, record.decode_header(body))


def resealed_entry(body: bytes) -> bytes:
    """Entry records with the digests that their bytes have, as far as they can be cut."""
    made, at = bytearray(body), 0
    while at + entries.HEADER_BYTES <= len(made):
        length = int.from_bytes(made[at + 8 : at + 12], "little")
        if length < entries.HEADER_BYTES or at + length > len(made):
            break
        digest = xxhash.xxh3_64_intdigest(bytes(made[at + 8 : at + length]))
        made[at : at + 8] = digest.to_bytes(8, "little")
        at += length
    return bytes(made)


def sealed_manifest(body: bytes) -> bytes:
    try:
        value = json.loads(body)
        value["xxh3"] = _digest_of({k: v for k, v in value.items() if k != "xxh3"})
        return json.dumps(value).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return body


HELLO = hello.encode_hello(
    hello.Hello("c1", "n1", "bookie", "b1", "fdatasync"), expected_node_id="n2"
)
GREETED = hello.encode_hello(
    hello.Hello("c1", "n1", "metadata"), nonce=bytes(16), methods=["cert", "local"]
)
LEDGER = LedgerMetadata(
    7, 3, 3, 2, (Fragment(0, ("b1", "b2", "b3"), 0), Fragment(9, ("b1", "b4", "b3"), 1)), bytes(16),
    owner=(5, 1), custom={"a": b"1"},
)  # fmt: skip
CLOSED = LEDGER.in_recovery().close_by_recovery(12, 99, LEDGER.ensembles)
LOST = CLOSED.with_loss(DeclaredLoss(3, 9, "op", 17, "two disks"))
STATE = LogState(
    5, "a/log", 17, 5, 3, "me", "w1", 2, 4, 5, 8, 40, DLSN(2, 1, 0), 3, quorums=(3, 3, 2)
)
ITEM = KeyValue(b"k", b"v", 1, 2, 3, 0)
TRANSACTION = Transaction(
    (Compare.version(b"a", 1), Compare.exists(b"b")), (Put(b"a", b"v"), Delete(b"c"))
)
MEMBERS = configuration.Configuration.from_ids(["n1", "n2"], ["n3"])
ENTRIES = (
    messages.Entry(6, 2, b"x"),
    messages.Entry(7, 2, MEMBERS.encode()),
)
STATE_REPLY = messages.AppendReply(3, "n1", True, 5, 0, 0, 9, 64, 1 << 60)
RAFT: list[messages.WireMessage] = [
    messages.PreVote(3, "n1", 5, 2),
    messages.Vote(3, "n1", 5, 2, True),
    messages.VoteReply(3, "n1", True),
    messages.AppendRequest(3, "n1", 5, 2, 4, ENTRIES, 9),
    messages.AppendReply(3, "n1", False, 5, 4, 2, 9),
    messages.Heartbeat(3, "n1", 4, 1),
    messages.HeartbeatReply(3, "n1", 1),
    messages.TimeoutNow(3, "n1"),
    messages.SnapshotChunk(3, "n1", 5, 2, 0, 9, b"abc"),
    messages.SnapshotChunkReply(3, "n1", 5, 2, 3),
]
STALE = answers.CommandResult(error=OutcomeUnknown(answers.STALE_REQUEST, OutcomeUnknown.STALE))
FULL = condition(Code.JOURNAL_DISK_LOW, free_bytes_min=1 << 20)
STATUS = MemberStatus("m1", "h:1", "damaged", 3, 9, True, "n1", (FULL,), "its log", "0.2.0")
RUN_KEY = ix.EXTENT_KEY.pack(b"r", 7, 0)
STATE_KEY = ix.STATE_KEY.pack(b"s", 7)
RECORD = bytes(entries.encode(7, 0, 3, -1, [b"abc"], 3)) + bytes(
    entries.encode(7, 1, 9, 0, [b"abcdef"], 6)
)
NODE = identity.NodeIdentity("c1", "n1", "bookie", "b1", 2, "this", starts="a b")
WORD = ghost.RecoveredHardState(HardState(3, "n1"), ghost.RaftEntryId(2, 9))
PLAN = plan.ClusterPlan((plan.PlannedNode("m", "metadata", ("127.0.0.1", 1)),))
MANIFEST = Manifest(
    "0" * 16, 1, "log", "0" * 16, DLSN(1, 0, 0), DLSN(1, 0, 3), 0, 2,
    (ArchiveFile("a.parquet", 2, 6, DLSN(1, 0, 0), DLSN(1, 0, 1), 0, 77, 400, 8),),
)  # fmt: skip


PRODUCERS = ProducerTable(
    [
        Producer(1, "first", 7, 8, deque([StoredFrame(4, 2, 1, 3, 0), StoredFrame(6, 1, 2, 0, 5)])),
        Producer(3, "an other", 0, 9),
    ],
    next_number=4,
    clock_ms=9,
)


HEADERS = ((b"name", b"value"), (b"name", b""))
"""Of one record."""
KEYED: list[Any] = [KeyedContent(b"a", b"key", HEADERS), b"b", KeyedContent(b"", None, HEADERS[:1])]


def entry_bytes(flags: int = 0, **options: Any) -> bytes:
    parts, _ = record.build_entry(
        (3, 4), (b"ab", b"c"), records_before=7, written_ms=9, flags=flags, **options
    )
    return b"".join(parts)


def compressed_entry(codec: int, **options: Any) -> bytes:
    payloads = [b"a payload that comes again and again"] * 30
    parts = record.build_entry(range(30), payloads, records_before=7, written_ms=9, **options)
    made, _ = Compression("l", CODEC_NAMES[codec]).compress(*parts)
    return b"".join(made)


def a_block() -> bytes:
    body = bytearray(8192)
    body[blocks.HEADER_BYTES : blocks.HEADER_BYTES + 5] = b"hello"
    length = blocks.write_header(
        body, 0, kind=1, payload_bytes=5, start_count=1, sequence=4, durable_to=3, file_number=2,
        file_offset=0, seed=9,
    )  # fmt: skip
    return bytes(body[:length])


def identity_file(body: bytes) -> bytes:
    return body + b"\n" + b"xxh3_64 " + xxhash.xxh3_64_hexdigest(body).encode() + b"\n"


def cut_of(body: bytes) -> object:
    run = ExtentLocation(0, 2, 1, 0, len(RECORD))
    whole = cutting.slice_extent(body, 7, run, 0, 1, 1 << 20, True)
    return whole.last_entry, cutting.find_record(body, 7, run, 1).nbytes


CODECS = [
    # --- runtime
    Codec(
        "HELLO",
        lambda b: hello.decode_hello(b, "peer"),
        [HELLO, GREETED],
        PEER,
        ("distributedlog/runtime/protocol/handshake.py decode_hello",),
    ),
    Codec(
        "AUTH",
        lambda b: hello.decode_auth(b, "peer"),
        [pack({"method": "none"}), hello.encode_auth("local", bytes(32))],
        PEER,
        ("distributedlog/runtime/protocol/handshake.py decode_auth",),
    ),
    Codec(
        "the answer to AUTH",
        lambda b: hello.decode_welcome(b, "peer"),
        [hello.encode_welcome(Welcome("user/etl", 3, 1, bytes(32)))],
        PEER,
        ("distributedlog/runtime/protocol/handshake.py decode_welcome",),
    ),
    Codec(
        "an error reply",
        lambda b: frames.error_from(517, b),
        [pack(["no room", ""]), pack(["ask n2", "n2"])],
        (),
        ("distributedlog/runtime/protocol/frames.py error_from",),
    ),
    Codec(
        "FORMAT",
        identity.identity_of,
        [json.dumps({f: getattr(NODE, f) for f in NODE.__slots__}).encode()],
        STORED,
        ("distributedlog/runtime/disk/node_identity.py identity_of",),
        "json",
        identity_file,
    ),
    Codec(
        "a block",
        lambda b: list(blocks.scan(2, memoryview(b), 9)),
        [a_block()],
        STORED,
        (
            "distributedlog/runtime/disk/checksummed_blocks.py block_at",
            "distributedlog/runtime/disk/checksummed_blocks.py announced_length",
        ),
        "bytes",
    ),
    # --- metadata
    Codec(
        "a Raft message",
        messages.decode,
        [messages.encode(one, codes=False) for one in (*RAFT, STATE_REPLY)],
        PEER,
        ("metadata/raft/raft_messages.py decode",),
    ),
    Codec(
        "a Raft message to a peer with FEATURE_CODES",
        messages.decode,
        [messages.encode(STATE_REPLY)],
        PEER,
        ("metadata/raft/raft_messages.py decode",),
    ),
    Codec(
        "a command",
        commands.decode_command,
        [
            commands.encode_command(commands.Transact("c", 1, 2, TRANSACTION)),
            commands.encode_command(commands.GrantLease("c", 1, 2, 1000)),
            commands.encode_command(commands.RevokeLease("c", 1, 2, 7)),
            commands.encode_command(commands.AuthorizationChange("c", 1, 2, TRANSACTION)),
        ],
        (*PEER, TransactionTooLarge, InvalidRequest),
        ("metadata/model/commands.py decode_command",),
    ),
    Codec(
        "an answer",
        answers.decode_answer,
        [
            answers.encode_answer(answers.CommandResult(TransactionReply(False, 4, (ITEM, None)))),
            answers.encode_answer(answers.CommandResult(lease=4)),
            answers.encode_answer(answers.CommandResult(error=InvalidRequest("no"))),
        ],
        (*PEER, CorruptData),
        ("metadata/model/command_results.py decode_answer",),
    ),
    Codec(
        "a configuration",
        configuration.decode_configuration,
        [MEMBERS.encode()],
        PEER,
        ("metadata/model/configuration.py decode_configuration",),
        "marked",
    ),
    Codec(
        "an answer about forming",
        forming.BootstrapAnswer.decode,
        [forming.BootstrapAnswer("m1", "n1", "", (("m1", "h:1"), ("m2", "h:2"))).encode()],
        PEER,
        ("metadata/peers/bootstrap.py BootstrapAnswer.decode",),
    ),
    Codec(
        "a founding",
        forming.Bootstrap.decode,
        [
            forming.Bootstrap("c1", {"m1": "n1", "m2": "n2"}).encode(),
            forming.Bootstrap("c1", {"m1": "n1"}, is_addition=True).encode(),
        ],
        PEER,
        ("metadata/peers/bootstrap.py Bootstrap.decode",),
    ),
    Codec(
        "a snapshot",
        restored,
        [
            *snapshot_chunks(KeyValueState()),
            pack(["leases", [[4, 1000]]]),
            pack(["items", [[b"a", b"v", 1, 2, 3, 3], [b"b", b"", 1, 2, 3, 0]]]),
            pack(["requests", [[3, "client", 1, 0, 7], [4, "client", 2, 517, "busy"]]]),
        ],
        STORED,
        ("metadata/state/kv_snapshot.py SnapshotBuilder.add",),
    ),
    Codec(
        "a snapshot's keys",
        restored,
        [KEYS_CHUNK_MARKER + b"".join(map(snapshot_row, (b"a", b"b"), (1, 2), (3, 0)))],
        STORED,
        (
            "metadata/state/kv_snapshot.py SnapshotBuilder._take_keys",
            "metadata/state/kv_snapshot.py SnapshotBuilder._take",
        ),
        "bytes",
    ),
    Codec(
        "MEMBERS",
        members.decode_member_identity,
        [pack([1, "c1", {"m1": "n1"}, True, 77])],
        STORED,
        ("metadata/storage/member_identity.py decode_member_identity",),
    ),
    Codec(
        "GHOST",
        ghost.decode_hard_state,
        [ghost.encode_hard_state(WORD)],
        STORED,
        ("metadata/raft/recovered_hard_state.py decode_hard_state",),
    ),
    Codec(
        "a voter's statement",
        recalling.VoterReport.decode,
        [recalling.VoterReport("n1", 3, WORD.last, MEMBERS).encode()],
        PEER,
        ("metadata/peers/hard_state_recovery.py VoterReport.decode",),
    ),
    Codec(
        "a save's head",
        saves.BackupHeader.decode,
        [saves.BackupHeader("c1", 9, 2, MEMBERS).encode()],
        STORED,
        ("metadata/storage/backup_format.py BackupHeader.decode",),
    ),
    Codec(
        "META_CAPS",
        capability_messages.decode_request,
        [
            capability_messages.CapabilityRequest(
                CapabilityKind.ADD, {7: ("b1", "b2"), 8: ()}
            ).encode(),
            capability_messages.BookieKeysRequest("b1").encode(),
        ],
        PEER,
        ("distributedlog/runtime/protocol/capability_messages.py decode_request",),
    ),
    Codec(
        "capabilities",
        capability_messages.CapabilityReply.decode,
        [capability_messages.CapabilityReply("report", b"pass", {7: (b"c" * 16,), 8: ()}).encode()],
        PEER,
        ("distributedlog/runtime/protocol/capability_messages.py CapabilityReply.decode",),
    ),
    Codec(
        "what a bookie checks by",
        capability_messages.BookieKeysReply.decode,
        [capability_messages.BookieKeysReply("required", (GENERATION,), {"user/a": 9}).encode()],
        PEER,
        ("distributedlog/runtime/protocol/capability_messages.py BookieKeysReply.decode",),
    ),
    Codec(
        "a pass",
        lambda body: verify_session_credential(body, (GENERATION,)),
        [issue_session_credential(GENERATION, "user/a", 9)],
        (NotAuthenticated,),
        ("distributedlog/runtime/protocol/capabilities.py verify_session_credential",),
        "bytes",
    ),
    Codec(
        "the secrets of ledgers",
        secret_keys.decode_generations,
        [secret_keys.encode_generations((GENERATION,))],
        STORED,
        ("metadata/auth/quorum_secrets.py decode_generations",),
    ),
    Codec(
        "META_SAVE",
        saves.BackupRequest.decode,
        [saves.BackupRequest().encode(), saves.BackupRequest(3, 4).encode()],
        PEER,
        ("metadata/storage/backup_format.py BackupRequest.decode",),
    ),
    Codec(
        "the beginning of a save",
        saves.decode_backup_start,
        [saves.encode_backup_start(1, b"chunk")],
        PEER,
        ("metadata/storage/backup_format.py decode_backup_start",),
    ),
    Codec(
        "a chunk of a save",
        saves.decode_chunk,
        [saves.encode_chunk(b"chunk"), saves.encode_chunk(b"")],
        PEER,
        ("metadata/storage/backup_format.py decode_chunk",),
    ),
    Codec(
        "operations of the log",
        replayed,
        [
            pack(
                [
                    ["begin", 1],
                    ["hard", 3, "n1"],
                    ["snapshot", 4, 2, MEMBERS.encode()],
                    ["entry", 5, 2, b"x"],
                    ["truncate", 5],
                    ["entry", 5, 3, MEMBERS.encode()],
                    ["begun"],
                ]
            )
        ],
        (*PEER, SchemaError),
        ("metadata/storage/raft_storage.py RaftStorage._replay",),
    ),
    Codec(
        "META_READ",
        wire.RangeRequest.decode,
        [wire.RangeRequest(b"a", None).encode(), wire.RangeRequest(b"a", b"b", 10).encode()],
        PEER,
        ("metadata/protocol/client_messages.py RangeRequest.decode",),
    ),
    Codec(
        "META_TRUST",
        token_messages.decode_authorization_request,
        [
            token_messages.TokenRequest("etl", 3600, (("ns", "a/", 1),)).encode(),
            token_messages.VerifyRequest(TOKEN).encode(),
            token_messages.RotateRequest("tokens").encode(),
            token_messages.AdminRecoveryRequest("ann").encode(),
            wire.AuthorizationRequest(True).encode(),
            wire.AuthorizationRequest(
                False, "c", 1, 2, ("grant", "etl", "writer", "ns", "a/")
            ).encode(),
        ],
        PEER,
        (
            "metadata/protocol/client_messages.py AuthorizationRequest.decode",
            "metadata/protocol/token_messages.py decode_authorization_request",
        ),
    ),
    Codec(
        "the answer about a token",
        token_messages.decode_remaining,
        [token_messages.encode_remaining(60.5)],
        PEER,
        ("metadata/protocol/token_messages.py decode_remaining",),
    ),
    Codec(
        "the answer to a rescue",
        token_messages.decode_requesting_nodes,
        [token_messages.encode_requesting_nodes(["m1", "m2"])],
        PEER,
        ("metadata/protocol/token_messages.py decode_requesting_nodes",),
    ),
    Codec(
        "RESCUE",
        rescuing.decode_recovery_request,
        [rescuing.encode_recovery_request("ann")],
        STORED,
        ("metadata/node/admin_recovery.py decode_recovery_request",),
    ),
    Codec(
        "the answer to a rotation",
        token_messages.decode_number,
        [token_messages.encode_number(3)],
        PEER,
        ("metadata/protocol/token_messages.py decode_number",),
    ),
    Codec(
        "a token",
        lambda body: verify_token(body, lambda key: GENERATION.key),
        [TOKEN],
        (NotAuthenticated,),
        ("distributedlog/runtime/protocol/tokens.py _parse",),
        "bytes",
    ),
    Codec(
        "the secrets of tokens",
        secret_keys.decode_token_secrets,
        [secret_keys.encode_token_secrets({2: b"t" * 32, 1: b"s" * 32})],
        STORED,
        ("metadata/auth/quorum_secrets.py decode_token_secrets",),
    ),
    Codec(
        "the answer to META_TRUST",
        wire.decode_authorization_report,
        [
            wire.encode_authorization_report(
                wire.AuthorizationReport("report", "user/a", 64, (("user/b", "no", 2),))
            )
        ],
        PEER,
        ("metadata/protocol/client_messages.py decode_authorization_report",),
    ),
    Codec(
        "a user",
        trust_records.User.decode,
        [trust_records.User(1, True, 2, ("ab",), "q").encode()],
        (CorruptData,),
        ("metadata/model/acl_records.py User.decode",),
    ),
    Codec(
        "the quota of a namespace",
        trust_records.NamespaceQuota.decode,
        [trust_records.NamespaceQuota(1, 2, 3).encode()],
        (CorruptData,),
        ("metadata/model/acl_records.py NamespaceQuota.decode",),
    ),
    Codec(
        "a line of the audit",
        trust_records.AuditLine.decode,
        [trust_records.AuditLine(1, "user/a", "h:1", "grant", "b reader").encode()],
        (CorruptData,),
        ("metadata/model/acl_records.py AuditLine.decode",),
    ),
    Codec(
        "a mode of trust",
        trust_records.decode_mode,
        [trust_records.encode_mode("report")],
        (CorruptData,),
        ("metadata/model/acl_records.py decode_mode",),
    ),
    Codec(
        "a grant",
        trust_records.decode_grant,
        [trust_records.encode_grant("writer")],
        (CorruptData,),
        ("metadata/model/acl_records.py decode_grant",),
    ),
    Codec(
        "META_WATCH",
        wire.WatchRequest.decode,
        [wire.WatchRequest(b"a", b"b", 9).encode()],
        PEER,
        ("metadata/protocol/client_messages.py WatchRequest.decode",),
    ),
    Codec(
        "a key's answer",
        wire.decode_item,
        [wire.encode_item(4, 5, ITEM), wire.encode_item(4, 5, None)],
        PEER,
        ("metadata/protocol/client_messages.py decode_item",),
    ),
    Codec(
        "a range's answer",
        wire.decode_page,
        [wire.encode_page(4, RangePage((ITEM, ITEM), 5, True))],
        PEER,
        ("metadata/protocol/client_messages.py decode_page",),
    ),
    Codec(
        "a command's answer",
        wire.decode_outcome,
        [
            wire.encode_outcome(4, answers.CommandResult(lease=4)),
            wire.encode_outcome(4, STALE, codes=False),
        ],
        (*PEER, CorruptData),
        ("metadata/protocol/client_messages.py decode_outcome",),
    ),
    Codec(
        "a command's answer to a peer with FEATURE_CODES",
        wire.decode_outcome,
        [wire.encode_outcome(4, STALE)],
        (*PEER, CorruptData),
        ("metadata/protocol/client_messages.py decode_outcome",),
    ),
    Codec(
        "META_DIFFERS",
        wire.decode_digest,
        [wire.encode_digest(64, 1 << 61)],
        PEER,
        ("metadata/protocol/client_messages.py decode_digest",),
    ),
    Codec(
        "META_LEASE",
        wire.decode_lease,
        [pack(["renew", 7])],
        PEER,
        ("metadata/protocol/client_messages.py decode_lease",),
    ),
    Codec(
        "META_WATCH_EVENTS",
        wire.decode_events,
        [wire.encode_events(WatchBatch(5, (WatchEvent("put", ITEM), WatchEvent("delete", ITEM))))],
        PEER,
        ("metadata/protocol/client_messages.py decode_events",),
    ),
    Codec(
        "META_STATUS",
        wire.decode_rows,
        [wire.encode_rows([wire.MemberStatusRow(STATUS, {"": "h:1"})])],
        PEER,
        ("metadata/protocol/client_messages.py decode_rows",),
    ),
    Codec(
        "META_MEMBERS",
        wire.MembersRequest.decode,
        [
            wire.MembersRequest("show").encode(),
            wire.MembersRequest("add", "m4", "h:4").encode(),
            wire.MembersRequest("remove", "m4").encode(),
        ],
        PEER,
        ("metadata/protocol/client_messages.py MembersRequest.decode",),
    ),
    Codec(
        "the members",
        wire.decode_members,
        [wire.encode_members([wire.MemberAddress(m, "h:1") for m in MEMBERS.members])],
        PEER,
        ("metadata/protocol/client_messages.py decode_members",),
    ),
    Codec(
        "the question for a status",
        lambda b: schema.decode_message(b, wire.STATUS_REQUEST, "META_STATUS"),
        [pack(["self"])],
        PEER,
        ("metadata/node/metadata_session.py MetadataSession._status",),
    ),
    # --- bookie
    Codec(
        "STREAM_OPEN",
        bm.StreamOpenRequest.decode,
        [bm.StreamOpenRequest(7, bytes(16), True, 3).encode()],
        PEER,
        ("bookie/format/bookie_messages.py _unpack_exact",),
        "bytes",
    ),
    Codec(
        "READ",
        bm.ReadEntriesRequest.decode,
        [bm.ReadEntriesRequest(7, bytes(16), 0, 9, 100).encode()],
        PEER,
        (),
        "bytes",
    ),
    Codec(
        "WAIT_LAC",
        bm.WaitLacRequest.decode,
        [bm.WaitLacRequest(7, bytes(16), -1, 9, 100).encode()],
        PEER,
        (),
        "bytes",
    ),
    Codec(
        "FENCE",
        bm.LedgerRequest.decode,
        [bm.LedgerRequest(7, bytes(16)).encode()],
        PEER,
        (),
        "bytes",
    ),
    Codec(
        "ADD_ACKS",
        lambda b: bm.decode_pairs(b, "ADD_ACKS"),
        [bm.encode_acks([(1, 2), (3, 4)])],
        PEER,
        ("bookie/format/bookie_messages.py decode_pairs",),
        "bytes",
    ),
    Codec(
        "STREAM_REFUSED",
        lambda b: bm.decode_refusal(517, b),
        [bm.encode_refusal(InvalidRequest("no"), 5)],
        PEER,
        ("bookie/format/bookie_messages.py decode_refusal",),
    ),
    Codec(
        "MEMBERS",
        pw.decode_members,
        [pw.encode_members([pw.MemberRow("write", "9f", "h7", 4183, True)])],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py decode_members",),
    ),
    Codec(
        "PRODUCE_OPEN",
        pw.ProduceOpen.decode,
        [pw.ProduceOpen(1, "ns", "orders", "", "me", 3, 9, "9f").encode()],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py ProduceOpen.decode",),
    ),
    Codec(
        "the reply to PRODUCE_OPEN",
        pw.ProduceOpened.decode,
        [pw.ProduceOpened("00", 3, True, 9, 65_536, "ms", -1).encode()],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py ProduceOpened.decode",),
    ),
    Codec(
        "PRODUCE",
        lambda b: pw.decode_produce(memoryview(b)),
        [
            pw.encode_produce(1, 5, 2, None, [b"one", b"", b"three"])[24:],
            pw.encode_produce(
                1, 5, 2, [7, 8], [b"a", b"b"], record_flags=b"\x01\x00", expect=(1, 0, 2)
            )[24:],
            pw.encode_produce(1, 5, 2, None, KEYED, has_keyed=True)[24:],
        ],
        (*PEER, CorruptData),
        (
            "distributedlog/proxy/protocol/proxy_messages.py decode_produce",
            "distributedlog/proxy/protocol/proxy_messages.py _unpack_columns",
        ),
        "bytes",
    ),
    Codec(
        "PRODUCE, sealed",
        lambda b: pw.decode_produce(memoryview(b)),
        [
            pw.encode_produce(1, 5, 2, [7, 8], [b"a", b"b"], expect=(1, 0, 2))[24:],
            pw.encode_produce(1, 5, 2, None, KEYED, has_keyed=True)[24:],
        ],
        PEER,
        (),
        "bytes",
        seal=lambda b: xxhash.xxh3_64_intdigest(b[8:]).to_bytes(8, "little") + b[8:],
    ),
    Codec(
        "PRODUCE_ACKS",
        lambda b: list(pw.decode_acks(memoryview(b))),
        [pw.encode_acks([pw.ACK.pack(1, 2, 5, 1, 7, 0, 0, 9)] * 2)[24:]],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py decode_acks",),
        "bytes",
    ),
    Codec(
        "PRODUCE_COMMIT",
        pw.decode_commit,
        [pw.encode_commit(7)],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py decode_commit",),
        "bytes",
    ),
    Codec(
        "PRODUCE_REFUSED",
        lambda b: pw.Refusal.decode(517, b),
        [pw.Refusal(InvalidRequest("no"), 5, 7, 100).encode_frame(1)[24:]],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py Refusal.decode",),
    ),
    Codec(
        "LOG_CALL",
        pw.LogCall.decode,
        [
            pw.LogCall("ns", "set", "orders", "", [{"codec": "lz4"}, {"note": b"n"}]).encode(),
            pw.LogCall("ns", "truncate", "orders", "", [[1, 0, 0], None, None]).encode(),
        ],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py LogCall.decode",),
    ),
    Codec(
        "the reply to LOG_CALL",
        lambda b: pw.decode_answer(b, schema.row(schema.number(), schema.text()), "the reply"),
        [pack([1, "orders"])],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py decode_answer",),
    ),
    Codec(
        "the logs of a proxy",
        pw.decode_owned,
        [pack([["ns", "orders", 3, 7]])],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py decode_owned",),
    ),
    Codec(
        "whom a proxy would refuse",
        pw.decode_would_refuse,
        [pack([["user/etl", "it needs write", 3]])],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py decode_would_refuse",),
    ),
    Codec(
        "PROXY_CALL",
        pw.ProxyCall.decode,
        [pw.ProxyCall("owned", ["", 100]).encode()],
        PEER,
        ("distributedlog/proxy/protocol/proxy_messages.py ProxyCall.decode",),
    ),
    Codec(
        "SUBSCRIBE",
        prw.Subscribe.decode,
        [
            prw.Subscribe("ns", "orders").encode(),
            prw.Subscribe(
                "ns",
                "orders",
                "9f3a0b6c12d4e5f7",
                resumes=True,
                dlsn=DLSN(3, 4, 5),
                sequence_id=7,
                proven=True,
                to=DLSN(9, 0, 0),
            ).encode(),
            prw.Subscribe("ns", "orders", at="latest", txid=5, since_ms=7, to_end=True).encode(),
        ],
        PEER,
        ("distributedlog/proxy/protocol/read_messages.py Subscribe.decode",),
    ),
    Codec(
        "the answer to SUBSCRIBE",
        prw.Subscribed.decode,
        [
            prw.Subscribed(
                "orders", "9f3a0b6c12d4e5f7", DLSN(3, 4, 5), 7, DLSN(9, 0, 0), False
            ).encode()
        ],
        PEER,
        ("distributedlog/proxy/protocol/read_messages.py Subscribed.decode",),
    ),
    Codec(
        "ENTRIES",
        prw.SegmentHead.decode,
        [
            prw.SegmentHead(3, 100, 5, -1, 1_700_000_000_000, 0).encode() + RECORD,
            prw.SegmentHead(3, 100, 0, 44, 0, 2).encode() + RECORD,
        ],
        PEER,
        ("distributedlog/proxy/protocol/read_messages.py SegmentHead.decode",),
        "bytes",
    ),
    Codec(
        "CREDIT",
        prw.decode_credit,
        [prw.encode_credit(65_536)],
        PEER,
        ("distributedlog/proxy/protocol/read_messages.py decode_credit",),
        "bytes",
    ),
    Codec(
        "a proxy's registration",
        lambda b: ProxyRegistration.decode(b"proxy/write/9f", b),
        [ProxyRegistration("9f", "write", {"": ("h7", 4183)}, version="0.2.0").encode()],
        STORED,
        ("distributedlog/proxy/membership/proxy_registration.py ProxyRegistration.decode",),
    ),
    Codec("WRITE_LAC", bm.decode_lac, [bm.lac_frame(1, 5)[ENVELOPE_BYTES:]], PEER, (), "bytes"),
    Codec(
        "ADD_MANY",
        lambda b: bm.decode_add_many_items(2, b),
        [bm.encode_add_many_items([1, 2], [len(RECORD), len(RECORD)]) + 2 * RECORD],
        PEER,
        ("bookie/format/bookie_messages.py decode_add_many_items",),
        "bytes",
    ),
    Codec(
        "WRITE_LACS",
        bm.decode_lacs,
        [bm.encode_lacs({1: 5, 2: -1}.items())],
        PEER,
        ("bookie/format/bookie_messages.py decode_lacs",),
        "bytes",
    ),
    Codec("the ends", bm.decode_lac_and_last, [bm.encode_lac_and_last(5, 6)], PEER, (), "bytes"),
    Codec(
        "a READ reply",
        lambda b: bm.decode_read(memoryview(b))[:2],
        [bm.encode_read_head(5, 6) + RECORD],
        PEER,
        ("bookie/format/bookie_messages.py _unpack_prefix",),
        "bytes",
    ),
    Codec(
        "a WAIT_LAC reply",
        lambda b: bm.decode_wait(memoryview(b))[:2],
        [bm.encode_wait_head(5, True) + RECORD],
        PEER,
        (),
        "bytes",
    ),
    Codec(
        "entry records",
        lambda b: [one.entry for one in entries.records(b)],
        [RECORD],
        STORED,
        ("bookie/format/entry.py records",),
        "bytes",
        resealed_entry,
    ),
    Codec(
        "records of a run",
        cut_of,
        [RECORD],
        STORED,
        ("bookie/format/record_slices.py _check_header",),
        "bytes",
    ),
    Codec(
        "the sound records of a run",
        lambda b: list(cutting.valid_parts(b, 7, ExtentLocation(0, 3, 1, 0, len(b)))),
        [RECORD],
        STORED,
        (),
        "bytes",
    ),
    Codec(
        "JOURNAL",
        jb.decode_identity,
        [jb.JournalIdentity("b1", 77, True).encode()[:-8]],
        STORED,
        ("bookie/format/journal_format.py decode_identity",),
        seal=lambda body: body + xxhash.xxh3_64_digest(body),
    ),
    Codec(
        "the index's position",
        lambda b: ix.IndexCheckpoint.decode(ix.verified_value(ix.META_KEY, b)),
        [
            ix.IndexCheckpoint("b1", 7, 1, 2, 3, 4, 5, 6, 7, [(1, 2, 3)]).encode(),
            ix.IndexCheckpoint(
                "b1", 7, 1, 2, 3, 4, 5, 6, 7, [], 0, 0, [(9, 8192, 5000, 2)]
            ).encode(),
        ],
        STORED,
        ("bookie/format/index_format.py IndexCheckpoint.decode",),
        seal=sealed(ix.META_KEY),
    ),
    Codec(
        "a run of the index",
        lambda b: ix.decode_extent(RUN_KEY, b),
        [ix.EXTENT_VALUE.pack(1, 2, 3, 4)],
        STORED,
        ("bookie/format/index_format.py decode_extent",),
        "bytes",
        sealed(RUN_KEY),
    ),
    Codec(
        "a state of the index",
        lambda b: ix.decode_state(STATE_KEY, b),
        [ix.STATE_VALUE.pack(1, 2, bytes(16))],
        STORED,
        ("bookie/format/index_format.py decode_state",),
        "bytes",
        sealed(STATE_KEY),
    ),
    Codec(
        "the scrub's place",
        ix.ScrubProgress.decode,
        [ix.ScrubProgress(1, 2, True, 3, 4, 5, 6).encode()],
        STORED,
        ("bookie/format/index_format.py ScrubProgress.decode",),
    ),
    Codec(
        "a note of rot",
        lambda b: ix.decode_corruption_records({b[:9]: b[9:]}),
        [ix.CORRUPTION_KEY.pack(b"x", 7) + ix.CORRUPTION_VALUE.pack(1, 2)],
        STORED,
        ("bookie/format/index_format.py decode_corruption_records",),
        "bytes",
    ),
    Codec(
        "keys of the index",
        lambda b: ix.decode_extent(b, ix.with_digest(b, bytes(ix.EXTENT_VALUE.size))),
        [RUN_KEY],
        STORED,
        (),
        "bytes",
    ),
    Codec(
        "a journal's HEAD",
        lambda b: jb.Head.decode(memoryview(b), "journal-1"),
        [
            jb.Head("b1", 1, 0, 0, 5, ((1, 2, 3),), 1).encode(),
            jb.Head("b1", 1, 0, 0, 5, (), 1, 2, 0, ((9, 8192, 5000, 2),)).encode(),
        ],
        STORED,
        ("bookie/format/journal_format.py Head.decode",),
    ),
    Codec(
        "a COMMIT",
        lambda b: jb.split_commit(memoryview(b), "a block"),
        [RECORD + jb.state_record(7, 1, 2, bytes(16)) + jb.commit_end(jb.CONTROL_BYTES)],
        STORED,
        ("bookie/format/journal_format.py split_commit",),
        "bytes",
    ),
    Codec(
        "records of a COMMIT",
        lambda b: jb.extents_of(memoryview(b), 0, "a block"),
        [RECORD],
        STORED,
        ("bookie/format/journal_format.py extents_of",),
        "bytes",
    ),
    Codec(
        "a FOOTER",
        lambda b: list(jb.unpack_extents(memoryview(b), "a block")),
        [jb.pack_extent_row(7, 0, 56, 112, 2)],
        STORED,
        ("bookie/format/journal_format.py iter_extent_rows",),
        "bytes",
    ),
    Codec(
        "a TRAILER",
        lambda b: jb.Trailer.decode(memoryview(b), "a block"),
        [jb.Trailer(1, 2, 3, 4).encode()],
        STORED,
        ("bookie/format/journal_format.py Trailer.decode",),
        "bytes",
    ),
    Codec(
        "a cold file's head",
        lambda b: cb.decode_head(memoryview(b), "a block"),
        [cb.encode_head("b1", 9)],
        STORED,
        ("bookie/format/compacted_format.py decode_head",),
    ),
    Codec(
        "a cold file's runs",
        lambda b: list(cb.unpack_extents(memoryview(b), "a block")),
        [cb.footer_payload([jb.JournalExtent(7, 0, 2, 4096, 112)])],
        (CorruptData,),
        ("bookie/format/compacted_format.py iter_extent_rows",),
        "bytes",
    ),
    Codec(
        "a cold file's trailer",
        lambda b: cb.CompactedFileTrailer.decode(memoryview(b), "a block"),
        [cb.CompactedFileTrailer(8192, 1, 5000, 2, 7).encode()],
        (CorruptData,),
        ("bookie/format/compacted_format.py CompactedFileTrailer.decode",),
        "bytes",
    ),
    # --- records of the store, each with its key
    Codec(
        "a ledger's record",
        lambda b: LedgerMetadata.decode(keys.ledger_key(7), b),
        [LEDGER.encode(), CLOSED.encode(), LOST.encode()],
        STORED,
        ("ledger/model/ledger_metadata.py LedgerMetadata.decode",),
    ),
    Codec(
        "a registration",
        lambda b: BookieRegistration.decode(keys.bookie_key("b1"), b),
        [
            BookieRegistration(
                "b1",
                {"": ("h", 1), "out": ("o", 2)},
                labels={"a": "b"},
                conditions=(condition(Code.JOURNAL_FILE_NO_SPACE),),
                version="0.2.0",
            ).encode()
        ],
        STORED,
        ("ledger/model/bookie_registration.py BookieRegistration.decode",),
    ),
    Codec(
        "the version of the cluster",
        cluster_version.ClusterVersion.decode,
        [cluster_version.ClusterVersion(Version(0, 2)).encode()],
        STORED,
        ("metadata/model/cluster_version.py ClusterVersion.decode",),
    ),
    Codec(
        "a move of a ledger",
        ReplicaMove.decode,
        [ReplicaMove("b1", 0, 1 << 30, 3).encode()],
        STORED,
        ("cluster/repair/pull_replication.py ReplicaMove.decode",),
    ),
    Codec(
        "the placement policy",
        PlacementPolicy.decode,
        [PlacementPolicy("zone", 3, True).encode()],
        STORED,
        ("ledger/placement/placement_policy.py PlacementPolicy.decode",),
    ),
    Codec(
        "the repair settings",
        RepairSettings.decode,
        [RepairSettings(1 << 40, 600_000).encode(), RepairSettings(1).encode()],
        STORED,
        ("cluster/coordination/repair_settings.py RepairSettings.decode",),
    ),
    Codec(
        "a note of holes",
        decode_missing_ranges,
        [encode_missing_ranges([MissingRange("b1", 0, 5), MissingRange("b2", 3, None)])],
        STORED,
        ("ledger/model/missing_range.py decode_missing_ranges",),
    ),
    Codec(
        "a cookie",
        lambda b: cookie.decode_cookie(keys.cookie_key("b1"), b),
        [
            pack({"cluster": "c1", "incarnation": 3, "label": "b", "start": "0a"}),
            pack({"incarnation": 3, "label": "b", "principal": "bookie/b"}),
        ],
        STORED,
        ("cluster/coordination/cookie.py decode_cookie",),
    ),
    Codec(
        "how far a journal was synced",
        lambda b: JournalSyncPoint.decode(keys.sync_point_key("b1"), b),
        [JournalSyncPoint(2, 77).encode()],
        STORED,
        ("cluster/coordination/journal_sync_point.py JournalSyncPoint.decode",),
    ),
    Codec(
        "a log's state",
        LogState.decode,
        [STATE.encode()],
        STORED,
        (
            "distributedlog/log/model/log_state.py LogState.decode",
            "distributedlog/log/model/log_state.py decode_fields",
            "distributedlog/log/model/log_state.py format_and_fields",
        ),
    ),
    Codec(
        "the end of a log",
        lambda b: LogEnd.from_list(unpack(b, "an end")),
        [pack(LogEnd(DLSN(1, 2, 3), 4, True).to_list())],
        (*STORED, ProtocolError),
        ("distributedlog/log/model/log_state.py LogEnd.from_list",),
    ),
    Codec(
        "tombstones",
        tombstone.decode_deleted_logs,
        [
            tombstone.encode_deleted_logs(
                [tombstone.DeletedLog(5, LogEnd(DLSN(1, 2, 3), 4, True), 0, 9)]
            )
        ],
        STORED,
        (
            "distributedlog/log/model/deleted_log.py decode_deleted_logs",
            "distributedlog/log/model/deleted_log.py _decode_one",
        ),
    ),
    Codec(
        "a segment's record",
        SegmentRecord.decode,
        [
            SegmentRecord(1, 7, 3, 9).encode(),
            SegmentRecord(1, 7, 3, 9, 0, True, 8, txid_base=4, txid_rule=1).encode(),
            SegmentRecord(1, 7, 3, 9, 0, True, 8, base_entry=5, base_bytes=6).encode(),
        ],
        STORED,
        ("distributedlog/log/model/segment_record.py SegmentRecord.decode",),
    ),
    Codec(
        "a segment's end",
        SegmentEnd.decode,
        [SegmentEnd(1, 2, 3, 4, 5, 6, 7).encode()],
        STORED,
        ("distributedlog/log/model/segment_record.py SegmentEnd.decode",),
    ),
    Codec(
        "a lock",
        LockRecord.decode,
        [LockRecord("me", "w1", 9).encode(), LockRecord("me", "w1", 9, "9f").encode()],
        STORED,
        ("distributedlog/log/model/lock_record.py LockRecord.decode",),
    ),
    Codec(
        "an unlinked ledger",
        StagedLedger.decode,
        [StagedLedger("etl", 4, 9).encode()],
        STORED,
        ("distributedlog/log/segments/staged_ledgers.py StagedLedger.decode",),
    ),
    Codec(
        "a link's note",
        AppVersion.decode,
        [AppVersion(4, "q", 9, 1, 2).encode()],
        STORED,
        ("distributedlog/log/segments/app_versions.py AppVersion.decode",),
    ),
    Codec(
        "a position",
        PositionRecord.decode,
        [
            PositionRecord(DLSN(1, 2, 3), 9).encode(),
            PositionRecord(DLSN(1, 2, 3), 9, 4, 5).encode(),
            PositionRecord(DLSN(1, 2, 3), 9, 4, 5, 6).encode(),
        ],
        STORED,
        ("distributedlog/log/services/named_positions.py PositionRecord.decode",),
    ),
    Codec(
        "a work queue",
        WorkState.decode,
        [
            WorkState(DLSN(1, 2, 3), 9).encode(),
            WorkState(
                DLSN(1, 2, 3),
                9,
                3,
                (WorkItem(1, DLSN(1, 2, 3), DLSN(2, 0, 0), WorkItemStatus.CLAIMED, 7, 1),),
                (WorkItem(2, DLSN(1, 0, 0), DLSN(1, 1, 0), WorkItemStatus.DEAD_LETTERED, 0, 5),),
                4,
            ).encode(),
        ],
        STORED,
        ("distributedlog/log/consumers/work_state.py WorkState.decode",),
    ),
    Codec(
        "a log's settings",
        StoredSettings.decode,
        [StoredSettings({"retention_s": 60.0, "rolling": False}, {"team": b"x"}).encode()],
        STORED,
        ("distributedlog/log/model/stored_settings.py StoredSettings.decode",),
    ),
    Codec(
        "a log's stamps",
        SegmentCloseTimes.decode,
        [SegmentCloseTimes(((3, 10), (5, 20)), 6, 15).encode()],
        STORED,
        ("distributedlog/log/model/segment_expiry.py SegmentCloseTimes.decode",),
    ),
    Codec(
        "the retention clock",
        decode_clock,
        [encode_clock(123456)],
        STORED,
        ("distributedlog/log/model/segment_expiry.py decode_clock",),
    ),
    Codec("the next ledger's id", ids.decode_next_ledger, [b"1000"], STORED, (), "bytes"),
    Codec("a log's id", log_keys.decode_log_id, [b"%016x" % 7], STORED, (), "bytes"),
    *(
        Codec(f"a key below {prefix.decode()}", decode, [key], STORED, (), "bytes")
        for prefix, key, decode in [
            (b"ledger/", keys.ledger_key(7), keys.ledger_id_of),
            (
                b"on/",
                keys.bookie_ledger_key("b1", 7),
                lambda b: (keys.ledger_id_of(b), keys.bookie_id_of(b)),
            ),
            (
                b"delete/",
                keys.delete_key("b1", 7),
                lambda b: (keys.ledger_id_of(b), keys.bookie_id_of(b)),
            ),
            (b"cookie/", keys.cookie_key("b1"), keys.bookie_id_of),
            (b"purge/", log_keys.purge_key(7), log_keys.parse_purge_key),
            (b"loose/", log_keys.staged_ledger_key(7, 8), log_keys.parse_staged_key),
            (b"retired/", log_keys.replaced_ledger_key(7, 8), log_keys.parse_replaced_key),
            (b"name/", log_keys.name_key("ns", "log"), lambda b: log_keys.log_name_in_key("ns", b)),
        ]
    ),
    *(
        Codec(
            f"any record below {prefix.decode()}",
            lambda b, prefix=prefix, decode=decode: decode(prefix + b[:9] + b"/state", b),  # type: ignore[misc]
            [STATE.encode(), b"0000000000000007"],
            STORED,
            (),
            "bytes",
        )
        for prefix, decode in ALL_RECORDS.items()
    ),
    # --- a log's entries, and files
    Codec(
        "a log entry",
        entry_of,
        [
            entry_bytes(),
            entry_bytes(sections=((9, 0, b"more"),)),
            entry_bytes(record_flags=b"\x01\x00"),
            entry_bytes(keys=[b"key", None]),
            entry_bytes(headers=[HEADERS, ()]),
            entry_bytes(keys=[None, b""], headers=[(), HEADERS]),
        ],
        STORED,
        (
            "distributedlog/log/format/record_headers.py _decode_keys",
            "distributedlog/log/format/record_headers.py _decode_headers",
            "distributedlog/log/format/record.py decode_header",
            "distributedlog/log/format/record.py _check_sections",
        ),
        "bytes",
    ),
    Codec(
        "a control entry",
        last_record_of,
        [
            b"".join(
                build_control_entry(LastRecord(5, 0, 3), 4, records_before=7, written_ms=9)[0]
            ),
            entry_bytes(flags=record.FLAG_CONTROL, sections=((9, 0, b"more"), (4, 0, bytes(24)))),
        ],
        STORED,
        ("distributedlog/log/format/control_record.py decode_last_record",),
        "bytes",
    ),
    Codec(
        "the first entry of a segment",
        segment_begin,
        [
            b"".join(SegmentBegin(5, 7).add_to_entry([entry_bytes()], len(entry_bytes()))[0]),
            entry_bytes(sections=((9, 0, b"more"), (5, 0, bytes(16)))),
        ],
        STORED,
        (
            "distributedlog/log/model/segment_record.py segment_begin",
            "distributedlog/log/format/record.py find_section",
        ),
        "bytes",
    ),
    Codec(
        "what an entry says of producers",
        lambda b: read_producer_section(7, b),
        [
            entry_bytes(
                sections=(
                    (
                        1,
                        0,
                        encode_producers(
                            3, 9, 4, spans=[FrameSpan(1, 5, 0, 1), FrameSpan(2, 0, 1, 1)]
                        ),
                    ),
                )
            ),
            entry_bytes(flags=record.FLAG_CONTROL, sections=((1, 0, encode_producers(-1, 9, 4)),)),
            entry_bytes(
                flags=record.FLAG_CONTROL,
                sections=(
                    (
                        1,
                        0,
                        encode_producers(
                            3, 9, 4, openings=[ProducerOpening(3, "p"), ProducerOpening(2, "q", 1)]
                        ),
                    ),
                ),
            ),
            entry_bytes(
                flags=record.FLAG_CONTROL,
                sections=((1, 0, encode_producers(7, 9, 4, table=PRODUCERS)),),
            ),
        ],
        STORED,
        (
            "distributedlog/log/format/producer_section.py _SectionReader.read",
            "distributedlog/log/format/producer_section.py _SectionReader.read_many",
        ),
        "bytes",
    ),
    Codec(
        "a compressed log entry",
        entry_of,
        [
            compressed_entry(LZ4),
            compressed_entry(ZSTD),
            compressed_entry(ZSTD, keys=[b"k"] * 30, headers=[HEADERS] * 30),
        ],
        STORED,
        (
            "distributedlog/log/format/record.py _decompress_columns",
            "distributedlog/log/declarations/compression_codecs.py _Lz4.decompress",
            "distributedlog/log/declarations/compression_codecs.py _Zstd.decompress",
        ),
        "bytes",
    ),
    Codec(
        "a plan",
        lambda b: plan.decode(b.decode(errors="replace"), "plan"),
        [plan.encode(PLAN).encode()],
        STORED,
        ("cluster/local/cluster_plan.py decode",),
        "json",
    ),
    Codec(
        "an archive's manifest",
        lambda b: Manifest.decode(b, "manifest"),
        [MANIFEST.encode()],
        (*STORED, ForeignData),
        ("distributedlog/spark/archive/manifest.py Manifest.decode",),
        "json",
        sealed_manifest,
    ),
]

EXEMPT = {
    "distributedlog/cli/launcher/foreign_packages.py _reinstall": (
        "a file that pip wrote at the installation; only the advice of a message depends on it"
    ),
    "bookie/format/index_format.py sum_of_digests": (
        "values that this process made, or that `checked` verified"
    ),
    "distributedlog/log/model/segment_record.py stores_bool_txid": (
        "the fields that `SegmentRecord.decode` accepted"
    ),
    "distributedlog/log/model/segment_record.py end_stores_bool_txid": (
        "as `SegmentEnd.decode` reads them; test_reference_check.py"
    ),
    "distributedlog/log/model/log_state.py stores_bool_last_txid": (
        "the fields that `LogState.decode` accepted"
    ),
    "distributedlog/log/model/stored_settings.py infinite_options": (
        "the fields that `StoredSettings.decode` accepted"
    ),
    "distributedlog/runtime/protocol/frames.py unpack": "gives trees; whoever takes them apart is above",
    "distributedlog/runtime/protocol/schema.py decode_message": (
        "gives what its form allows; its users are above"
    ),
    "distributedlog/runtime/protocol/schema.py decode_stored": "as `message`",
    "distributedlog/runtime/protocol/schema.py decode_versioned": "as `message`",
    "distributedlog/runtime/protocol/schema.py _unpack_stored": "as `message`",
    "distributedlog/runtime/net/frame_reader.py FrameReader.parse_received": (
        "envelopes; test_frame_reader.py sends garbage"
    ),
    "metadata/peers/raft_peers.py RaftPeers.send_snapshot": "a number, matched by its type",
    "metadata/state/kv_state.py _item": "what this process packed, or `SnapshotBuilder._take` looked at",
    "metadata/state/kv_state.py KeyValueState._put": "as `_item`",
    "metadata/state/kv_state.py KeyValueState._delete": "as `_item`",
    "metadata/state/kv_state.py KeyValueState._release_stored": "as `_item`",
    "metadata/auth/authorizer.py _is_outdated": "as `_item`",
    "metadata/raft/recovered_hard_state.py HardStateScanner.take_mark": (
        "what does not fit is no word; `test_rot.py`"
    ),
    "metadata/storage/snapshot_store.py checked_chunks": (
        "after digests; `test_raft_storage.py` damages files"
    ),
    "bookie/store/add_handler.py AddHandler.add_records": "records of an ADD; `test_sessions.py` sends them",
    "bookie/storage/index.py Index.recount": "the length of a run's key was looked at by `located`",
    "bookie/storage/index.py Index.extents_from": "likewise",
    "bookie/client/bookie_client.py BookieClient.info": "a map for people; only its type is looked at",
    "bookie/gc/extent_relocation.py ExtentRelocation.extents_in": "`located` looks at the length of a key",
    "bookie/replay/compacted_file_scan.py _sound_record_at": (
        "looked for in rot; `entry.check` is above, and test_compactor.py"
    ),
    "ledger/write/ledger_writer.py LedgerWriter._confirmed_length": "a record of our own",
    "distributedlog/log/format/compression.py Compression.compress": (
        "a header that this process has just made"
    ),
    "distributedlog/log/format/record.py with_section": "as `Compression.compress`",
    "cluster/status/node_health.py query_info_over": (
        "a map of names; what shows its values looks at each one's type"
    ),
    "bookie/format/journal_format.py decode_controls": (
        "after a block's digest; only the number of bytes counts"
    ),
    "bookie/store/journal_verifier.py _record_bytes": "checked; `test_compaction_faults.py` rots lengths",
    "cluster/local/node_child.py main": "a parent's word to its child",
    "cluster/local/fork_server.py ForkServer._request": "a child's word to its parent, over a socket pair",
    "cluster/local/fork_server.py _Server._fork": "a parent's word to its child, over a socket pair",
    "cluster/local/fork_server.py ForkedProcess._read_exit_code": (
        "a child's word to its parent, by its length"
    ),
    "cluster/declarations/config.py parse_file": "an operator's file, read once at a start",
    "cluster/local/child_processes.py start_child": "a child's word to its parent",
    "distributedlog/cli/framework/named_clusters.py load_contexts": (
        "a user's own file; the command ends with one line"
    ),
    "distributedlog/cli/logs/record_formats.py JsonLineParser._parse": (
        "a user's own input; tests/cli/logs/test_record_formats.py"
    ),
    "distributedlog/cli/logs/record_formats.py FrameParser.feed": (
        "a user's own input; tests/cli/logs/test_record_formats.py"
    ),
    "distributedlog/spark/archive/archive_source.py ArchiveSource.writer": "Spark's word to its own worker",
    "distributedlog/spark/monitor/query_metrics.py _offset": (
        "Spark's word to its own driver; another source's is no offset"
    ),
    "distributedlog/spark/monitor/query_metrics.py query_listener.QueryListener.onQueryProgress": (
        "Spark's word to its own driver"
    ),
    "distributedlog/spark/monitor/consumer_lag.py _json": "a caller's own argument, refused by name",
    "distributedlog/spark/options/option_values.py position": "an option, refused by name",
}
"""Functions that take bytes apart and are in nobody's reach, or only hand on to what is above."""
