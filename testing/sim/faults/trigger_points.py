"""What the system is doing right now, heard from outside: on the wire and at the disks.

Faults at random times fall into an ensemble change, a close or a checkpoint by luck alone: they last a few
milliseconds of a run. `TriggerPoints` says when one begins, and `targeted_faults.py` strikes there. Nothing
in the product knows of it: requests are read as they leave, and files by their names.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from ....bookie.format import bookie_messages as messages
from ....cluster.declarations.options import READ_PROXY, WRITE_PROXY
from ....ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ....metadata.model.commands import Revoke, Transact, decode_command
from ....metadata.model.transaction import Put, Transaction
from ....metadata.raft.raft_messages import SnapshotChunk, TimeoutNow, Vote
from ....metadata.raft.raft_messages import decode as decode_raft
from ....runtime.disk.atomic_file import ASIDE
from ....runtime.interfaces.errors import DistributedLogError
from ....runtime.protocol.frames import Op
from ...verify.checks.wire_oracles import FrameCutter
from ..world.disk import SimDisk
from ..world.network import SimConnection

REQUESTS = (
    "ledger created",
    "ensemble change",
    "recovery begun",
    "close",
    "swap",
    "hole noted",
    "hole filled",
    "ledger deleted",
    "deletion done",
    "segment registered",
    "lock taken",
    "log created",
    "link",
    "purge noted",
    "bookie registered",
)
"""Transactions on their way to the metadata."""
MESSAGES = ("vote", "leadership handed over", "snapshot chunk", "fence", "write-back", "copy")
"""Others on their way: between metadata nodes, and to bookies."""
STEPS = (
    "first file of a start",
    "journal roll",
    "journal file removed",
    "checkpoint",
    "first checkpoint of a start",
    "snapshot begun",
    "snapshot named",
    "metadata log roll",
    "metadata log removed",
)
"""Of the disks."""
KINDS = (*REQUESTS, *MESSAGES, *STEPS)
AT_PROXIES = (
    "log taken",
    "producers read",
    "log opened",
    "entry durable",
    "frames answered",
    "stream refused",
    "hand-over",
    "log given up",
    "subscribed",
    "range read",
    "entries sent",
    "log changed under a feed",
)
"""Where there are proxies: of a write proxy, in the order of a log's life there; of a read proxy.

The proxy is who does it, also where it is asked: it is who is struck.
"""

OnMoment = Callable[[str, str, str], None]
"""kind, who does it, whom it asks ("" where nobody)."""


class TriggerPoints:
    """A `Tap` and a `DiskWatcher` that tells of each moment; ``heard`` counts them."""

    def __init__(
        self, role_of: Callable[[str], str], serves: Callable[[str], bool], tell: OnMoment
    ) -> None:
        self.heard: Counter[str] = Counter()
        self._role_of = role_of
        """Of a machine, by name: see `SimCluster.role_of`."""
        self._serves = serves
        """Has this node come so far that it serves?"""
        self._tell = tell
        self._sending: dict[int, FrameCutter] = {}
        self._arriving: dict[int, FrameCutter] = {}
        self._taking: dict[str, None] = {}
        """Write proxies that take a log at present."""

    def _hear(self, kind: str, actor: str, asked: str = "") -> None:
        self.heard[kind] += 1
        self._tell(kind, actor, asked)

    # --- the wire -----------------------------------------------------------------------------------

    def on_sent(self, end: SimConnection, data: bytes) -> None:
        """See `Tap`. What nodes answer is no moment, but of proxies; what clients add is too much to read."""
        asked = self._role_of(end.far.host.name)
        if end.dialled and asked == "client":
            return
        if not end.dialled and self._role_of(end.host.name) not in PROXIES:
            return
        cutter = self._sending.get(end.serial)
        if cutter is None:
            cutter = self._sending[end.serial] = FrameCutter()
        if not end.dialled:
            heard = partial(self._from_proxy, end.host.name, end.far.host.name)
        elif asked == "metadata":
            heard = partial(self._to_metadata, end.host.name, end.far.host.name)
        elif asked in PROXIES:
            heard = partial(self._to_proxy, end.host.name, end.far.host.name)
        else:
            heard = partial(self._to_bookie, end.host.name, end.far.host.name)
        cutter.feed(data, heard)

    def on_arrived(self, end: SimConnection, data: bytes) -> None:
        """See `Tap`. What nodes tell proxies."""
        if end.dialled and self._role_of(end.host.name) in PROXIES:
            cutter = self._arriving.setdefault(end.serial, FrameCutter())
            cutter.feed(data, partial(self._at_proxy, end.host.name, end.far.host.name))

    def _at_proxy(
        self, actor: str, asked: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        if op == Op.ADD_ACKS and self._role_of(actor) == WRITE_PROXY:
            self._hear("entry durable", actor, asked)
        elif op == Op.META_WATCH_EVENTS and self._role_of(actor) == READ_PROXY:
            self._hear("log changed under a feed", actor, asked)

    def _from_proxy(
        self, actor: str, asked: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        kind = FROM_PROXIES.get(op)
        if kind is not None:
            self._hear(kind, actor, asked)

    def _to_proxy(
        self, actor: str, asked: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        if op == Op.PROXY_CALL:
            self._hear("hand-over", asked, actor)
        elif op == Op.SUBSCRIBE:
            self._hear("subscribed", asked, actor)

    def _to_metadata(
        self, actor: str, asked: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        if op == Op.META_TRANSACT:
            command = decode_command(bytes(body))
            if isinstance(command, Transact):
                role = self._role_of(actor)
                by_node = role in ("metadata", "bookie")
                for kind in dict.fromkeys(kinds_of(command.transaction, by_node=by_node)):
                    self._hear(kind, actor, asked)
                    if role == WRITE_PROXY:
                        self._of_owner(kind, actor, asked)
            gives_up = isinstance(command, Revoke) or (
                isinstance(command, Transact) and _ends_lock(command.transaction)
            )
            if gives_up and self._role_of(actor) == WRITE_PROXY:
                self._hear("log given up", actor, asked)
        elif op == Op.META_RAFT and body[1] in RAFT_KINDS:  # after the head of the list
            message = decode_raft(body)
            if isinstance(message, Vote):
                self._hear("vote", actor, asked)
            elif isinstance(message, TimeoutNow):
                self._hear("leadership handed over", actor, asked)
            elif isinstance(message, SnapshotChunk):
                self._hear("snapshot chunk", actor, asked)

    def _to_bookie(
        self, actor: str, asked: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        if op == Op.FENCE:
            self._hear("fence", actor, asked)
        elif op == Op.STREAM_OPEN:
            opened = messages.StreamOpen.decode(body)
            if opened.recovery and not opened.close:
                copies = self._role_of(actor) == "bookie"
                self._hear("copy" if copies else "write-back", actor, asked)
        elif op == Op.READ:
            role = self._role_of(actor)
            if role == READ_PROXY:
                self._hear("range read", actor, asked)
            elif role == WRITE_PROXY and actor in self._taking:
                self._hear("producers read", actor, asked)

    def _of_owner(self, kind: str, actor: str, asked: str) -> None:
        """A write proxy changes the metadata of a log."""
        if kind == "lock taken":
            self._taking[actor] = None
            self._hear("log taken", actor, asked)
        elif kind == "segment registered" and actor in self._taking:
            del self._taking[actor]
            self._hear("log opened", actor, asked)

    # --- the disks ----------------------------------------------------------------------------------

    def on_durable(self, disk: SimDisk, name: str, offset: int, data: bytes) -> None:
        """See `DiskWatcher`."""

    def on_begun(self, disk: SimDisk, what: str, name: str) -> None:
        """See `DiskWatcher`."""
        kind = ""
        serves = self._serves(disk.host.name)
        if what == "map":
            kind = "checkpoint" if serves else "first checkpoint of a start"
        elif name.startswith("journal-"):
            if what == "create":
                kind = "journal roll" if serves else "first file of a start"
            elif what == "delete":
                kind = "journal file removed"
        elif name.startswith("log."):
            kind = {"create": "metadata log roll", "delete": "metadata log removed"}.get(what, "")
        elif (
            what == "create" and name.endswith(ASIDE) and name.startswith(("snapshot", "received"))
        ):
            kind = "snapshot begun"
        elif what == "rename" and name.startswith("snapshot"):
            kind = "snapshot named"
        if kind:
            self._hear(kind, disk.host.name)


PROXIES = (WRITE_PROXY, READ_PROXY)
FROM_PROXIES = {
    Op.PRODUCE_ACKS: "frames answered",
    Op.PRODUCE_REFUSED: "stream refused",
    Op.ENTRIES: "entries sent",
}
RAFT_KINDS = (3, 9, 10)
"""What is worth decoding of `metadata/raft/raft_messages.py`: Vote, TimeoutNow, SnapshotChunk."""

PREFIXES = (
    (b"under/", "hole noted", "hole filled"),
    (b"delete/", "", "deletion done"),
    (b"name/", "log created", ""),
    (b"purge/", "purge noted", ""),
    (b"bookie/", "bookie registered", ""),
)
"""Key prefix; what its put means, what its deletion means."""


def kinds_of(transaction: Transaction, *, by_node: bool) -> Iterator[str]:
    """The moments that a transaction is."""
    versions = {one.key: one.number for one in transaction.compares if one.kind == "version"}
    for operation in transaction.operations:
        key = operation.key
        put = isinstance(operation, Put)
        if key.startswith(b"ledger/"):
            if isinstance(operation, Put):
                yield from _of_record(key, operation.value, versions.get(key), by_node)
        elif key.startswith(b"log/"):
            if put and b"/segment/" in key:
                yield "segment registered"
            elif put and key.endswith(b"/lock"):
                yield "lock taken"
            elif put and b"/txn/" in key:
                yield "link"
        else:
            for prefix, when_put, when_deleted in PREFIXES:
                if key.startswith(prefix) and (kind := when_put if put else when_deleted):
                    yield kind


def _ends_lock(transaction: Transaction) -> bool:
    """Does it end a lock?"""
    return any(
        not isinstance(one, Put) and one.key.endswith(b"/lock") for one in transaction.operations
    )


def _of_record(key: bytes, value: bytes, version: int | None, by_node: bool) -> Iterator[str]:
    try:
        state = LedgerMetadata.decode(key, value).state
    except DistributedLogError:
        return
    if version == 0:
        yield "ledger created"
    elif state is LedgerState.OPEN:
        yield "ensemble change"
    elif state is LedgerState.IN_RECOVERY:
        yield "recovery begun"
    elif state is LedgerState.DELETING:
        yield "ledger deleted"
    else:
        yield "swap" if by_node else "close"
