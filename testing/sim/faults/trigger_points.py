"""Detect protocol states from outside, on the network and at the disks.

An ensemble change, a close or a checkpoint lasts a few milliseconds, so faults at random times rarely hit it.
`TriggerPoints` reports when one begins, and `targeted_faults.py` injects a fault. The product code is not
involved: requests are decoded when they are sent, and files are recognized by their names.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from ....bookie.format import bookie_messages as messages
from ....cluster.declarations.options import READ_PROXY, WRITE_PROXY
from ....ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ....metadata.model.commands import RevokeLease, Transact, decode_command
from ....metadata.model.transaction import Put, Transaction
from ....metadata.raft.raft_messages import SnapshotChunk, TimeoutNow, Vote
from ....metadata.raft.raft_messages import decode as decode_raft
from ....runtime.disk.atomic_file import TEMPORARY_SUFFIX
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
"""Transactions that are sent to the metadata nodes."""
MESSAGES = ("vote", "leadership handed over", "snapshot chunk", "fence", "write-back", "copy")
"""Other messages, between metadata nodes and to bookies."""
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
"""Steps of the disks."""
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
"""Trigger points of clusters with proxies: first of a write proxy, in the order of a log's life there, then
of a read proxy.

The actor is the proxy, even if it receives the request, because the fault is injected there.
"""

OnTrigger = Callable[[str, str, str], None]
"""Called with the kind, the machine that acts and the machine that it contacts ("" if there is none)."""


class TriggerPoints:
    """Reports trigger points. It is a `Tap` and a `DiskWatcher`, and ``counts`` has the numbers per kind."""

    def __init__(
        self,
        role_of: Callable[[str], str],
        is_serving: Callable[[str], bool],
        on_trigger: OnTrigger,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._role_of = role_of
        """Returns the role of a machine by name; see `SimCluster.role_of`."""
        self._is_serving = is_serving
        """Returns whether a node serves."""
        self._on_trigger = on_trigger
        self._sent_cutters: dict[int, FrameCutter] = {}
        self._arrived_cutters: dict[int, FrameCutter] = {}
        self._acquiring_proxies: dict[str, None] = {}
        """Write proxies that are acquiring a log now."""

    def _report(self, kind: str, actor: str, peer: str = "") -> None:
        self.counts[kind] += 1
        self._on_trigger(kind, actor, peer)

    # --- the wire -----------------------------------------------------------------------------------

    def on_sent(self, connection: SimConnection, data: bytes) -> None:
        """Read the requests of nodes and the answers of proxies; see `Tap`.

        Answers of other nodes contain no trigger points, and adds of clients are too many to decode.
        """
        peer_role = self._role_of(connection.peer_end.host.name)
        if connection.is_dialer and peer_role == "client":
            return
        if not connection.is_dialer and self._role_of(connection.host.name) not in PROXIES:
            return
        cutter = self._sent_cutters.get(connection.serial)
        if cutter is None:
            cutter = self._sent_cutters[connection.serial] = FrameCutter()
        if not connection.is_dialer:
            on_frame = partial(
                self._read_answer_of_proxy, connection.host.name, connection.peer_end.host.name
            )
        elif peer_role == "metadata":
            on_frame = partial(
                self._read_request_to_metadata, connection.host.name, connection.peer_end.host.name
            )
        elif peer_role in PROXIES:
            on_frame = partial(
                self._read_request_to_proxy, connection.host.name, connection.peer_end.host.name
            )
        else:
            on_frame = partial(
                self._read_request_to_bookie, connection.host.name, connection.peer_end.host.name
            )
        cutter.feed(data, on_frame)

    def on_arrived(self, connection: SimConnection, data: bytes) -> None:
        """Read the answers that proxies receive; see `Tap`."""
        if connection.is_dialer and self._role_of(connection.host.name) in PROXIES:
            cutter = self._arrived_cutters.setdefault(connection.serial, FrameCutter())
            cutter.feed(
                data,
                partial(
                    self._read_answer_to_proxy, connection.host.name, connection.peer_end.host.name
                ),
            )

    def _read_answer_to_proxy(
        self, actor: str, peer: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        if op == Op.ADD_ACKS and self._role_of(actor) == WRITE_PROXY:
            self._report("entry durable", actor, peer)
        elif op == Op.META_WATCH_EVENTS and self._role_of(actor) == READ_PROXY:
            self._report("log changed under a feed", actor, peer)

    def _read_answer_of_proxy(
        self, actor: str, peer: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        kind = FROM_PROXIES.get(op)
        if kind is not None:
            self._report(kind, actor, peer)

    def _read_request_to_proxy(
        self, actor: str, proxy: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        if op == Op.PROXY_CALL:
            self._report("hand-over", proxy, actor)
        elif op == Op.SUBSCRIBE:
            self._report("subscribed", proxy, actor)

    def _read_request_to_metadata(
        self, actor: str, peer: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        if op == Op.META_TRANSACT:
            command = decode_command(bytes(body))
            if isinstance(command, Transact):
                role = self._role_of(actor)
                is_by_node = role in ("metadata", "bookie")
                for kind in dict.fromkeys(kinds_of(command.transaction, by_node=is_by_node)):
                    self._report(kind, actor, peer)
                    if role == WRITE_PROXY:
                        self._report_write_proxy(kind, actor, peer)
            gives_up_log = isinstance(command, RevokeLease) or (
                isinstance(command, Transact) and _ends_lock(command.transaction)
            )
            if gives_up_log and self._role_of(actor) == WRITE_PROXY:
                self._report("log given up", actor, peer)
        elif op == Op.META_RAFT and body[1] in RAFT_KINDS:  # the byte after the list header
            message = decode_raft(body)
            if isinstance(message, Vote):
                self._report("vote", actor, peer)
            elif isinstance(message, TimeoutNow):
                self._report("leadership handed over", actor, peer)
            elif isinstance(message, SnapshotChunk):
                self._report("snapshot chunk", actor, peer)

    def _read_request_to_bookie(
        self, actor: str, peer: str, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        if op == Op.FENCE:
            self._report("fence", actor, peer)
        elif op == Op.STREAM_OPEN:
            stream_open = messages.StreamOpenRequest.decode(body)
            if stream_open.recovery and not stream_open.close:
                is_repair = self._role_of(actor) == "bookie"
                self._report("copy" if is_repair else "write-back", actor, peer)
        elif op == Op.READ:
            role = self._role_of(actor)
            if role == READ_PROXY:
                self._report("range read", actor, peer)
            elif role == WRITE_PROXY and actor in self._acquiring_proxies:
                self._report("producers read", actor, peer)

    def _report_write_proxy(self, kind: str, actor: str, peer: str) -> None:
        """Report the steps of a write proxy that acquires a log."""
        if kind == "lock taken":
            self._acquiring_proxies[actor] = None
            self._report("log taken", actor, peer)
        elif kind == "segment registered" and actor in self._acquiring_proxies:
            del self._acquiring_proxies[actor]
            self._report("log opened", actor, peer)

    # --- the disks ----------------------------------------------------------------------------------

    def on_durable(self, disk: SimDisk, name: str, offset: int, data: bytes) -> None:
        """Ignore durable bytes; see `DiskWatcher`."""

    def on_change_started(self, disk: SimDisk, change: str, name: str) -> None:
        """Report a change of files or maps that is a trigger point; see `DiskWatcher`."""
        trigger = ""
        is_serving = self._is_serving(disk.host.name)
        if change == "map":
            trigger = "checkpoint" if is_serving else "first checkpoint of a start"
        elif name.startswith("journal-"):
            if change == "create":
                trigger = "journal roll" if is_serving else "first file of a start"
            elif change == "delete":
                trigger = "journal file removed"
        elif name.startswith("log."):
            trigger = {"create": "metadata log roll", "delete": "metadata log removed"}.get(
                change, ""
            )
        elif (
            change == "create"
            and name.endswith(TEMPORARY_SUFFIX)
            and name.startswith(("snapshot", "received"))
        ):
            trigger = "snapshot begun"
        elif change == "rename" and name.startswith("snapshot"):
            trigger = "snapshot named"
        if trigger:
            self._report(trigger, disk.host.name)


PROXIES = (WRITE_PROXY, READ_PROXY)
FROM_PROXIES = {
    Op.PRODUCE_ACKS: "frames answered",
    Op.PRODUCE_REFUSED: "stream refused",
    Op.ENTRIES: "entries sent",
}
RAFT_KINDS = (3, 9, 10)
"""Types in `metadata/raft/raft_messages.py` that are decoded: Vote, TimeoutNow, SnapshotChunk."""

PREFIXES = (
    (b"under/", "hole noted", "hole filled"),
    (b"delete/", "", "deletion done"),
    (b"name/", "log created", ""),
    (b"purge/", "purge noted", ""),
    (b"bookie/", "bookie registered", ""),
)
"""Key prefix, the trigger point of its put, and that of its deletion."""


def kinds_of(transaction: Transaction, *, by_node: bool) -> Iterator[str]:
    """Yield the trigger points of a transaction."""
    versions = {
        compare.key: compare.number for compare in transaction.compares if compare.kind == "version"
    }
    for operation in transaction.operations:
        key = operation.key
        is_put = isinstance(operation, Put)
        if key.startswith(b"ledger/"):
            if isinstance(operation, Put):
                yield from _of_record(key, operation.value, versions.get(key), by_node)
        elif key.startswith(b"log/"):
            if is_put and b"/segment/" in key:
                yield "segment registered"
            elif is_put and key.endswith(b"/lock"):
                yield "lock taken"
            elif is_put and b"/txn/" in key:
                yield "link"
        else:
            for prefix, when_put, when_deleted in PREFIXES:
                if key.startswith(prefix) and (trigger := when_put if is_put else when_deleted):
                    yield trigger


def _ends_lock(transaction: Transaction) -> bool:
    return any(
        not isinstance(operation, Put) and operation.key.endswith(b"/lock")
        for operation in transaction.operations
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
