"""What a task of the sink does: its rows become segments that no log refers to yet, or go through the log's
writer. Everything here may run twice, at the same time, or outlive its job: nothing it does can be seen
before the driver links it (mode ``segments``), or is more than at least once (mode ``append``).
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from ...log.model.segment_ranges import SegmentToken
from ...log.segments.app_versions import LinkContent
from ...runtime.interfaces.errors import LinkOutOfOrder, LogNotFound, TransactionIdOutOfOrder
from ..client.delegation_token import DelegatedToken
from ..client.retry import retry_unavailable, retry_unavailable_blocking
from ..client.spark_client import SparkClient, client
from ..options.option_rules import ENTRY_BYTES_MAX
from ..options.options import SinkOptions
from ..read.source_logs import for_each_log
from .sink_columns import Packer, SinkColumns, by_log, sink_columns_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ...log.log import Log
    from ...log.segments.external_segment_writer import SegmentWriter
    from ...log.write.log_writer import LogWriter

T = TypeVar("T")

APPEND_WAIT_S = 60.0
"""How long a task in mode ``append`` waits for its turn as the log's writer."""
HINT = (
    'txids may not go back: df.repartitionByRange("txid").sortWithinPartitions("txid") puts them in order, '
    "or leave the column txid out"
)


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """Who writes which batch: what makes a replay recognizable."""

    app: str
    """"" for a batch job without one: then its ledgers alone tell a link that is asked twice."""
    version: int
    query: str
    """The streaming query that counts the versions; "" outside of one."""


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task reports to the driver."""

    partition: int
    identity: SinkIdentity
    segments: list[tuple[str, SegmentToken]] = field(default_factory=list)
    """(log, segment), in the order written."""
    records: int = 0
    skipped: list[str] = field(default_factory=list)
    """Logs that hold this batch already."""
    contents: dict[str, LinkContent] = field(default_factory=dict)
    """What there was for each log, of whoever counts versions: compared with what is in."""


def identity_of(options: SinkOptions, context: TaskContext, *, streaming: bool) -> SinkIdentity:
    """From the options and the local properties that Spark gives each task."""
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    if streaming:
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        return SinkIdentity(options.txn_app_id or query, batch, query)
    if options.txn_app_id is None:
        return SinkIdentity("", 0, query)
    return SinkIdentity(options.txn_app_id, options.txn_version or 0, query)


def write_task(
    options: SinkOptions,
    batches: "Iterator[pa.RecordBatch]",
    delegated_token: DelegatedToken | None,
    *,
    streaming: bool,
) -> TaskMessage:
    """Write one task's rows. Raises what names log, partition and remedy."""
    context = TaskContext.get()
    assert context is not None, "tasks run in a worker of Spark's"
    message = TaskMessage(context.partitionId(), identity_of(options, context, streaming=streaming))
    spark_client = retry_unavailable_blocking(
        lambda: client(
            options.uri, options.request_timeout_s, options.credentials, delegated_token
        ),
        options.read_timeout_s,
        "a task",
    )
    spark_client.users += 1
    counts_content = options.mode == "segments" and (streaming or options.txn_app_id is not None)
    task = _SinkTaskRun(spark_client, options, message, counts_content=counts_content)
    try:
        for batch in batches:
            if batch.num_rows:
                task.write_batch(batch)
        task.finish()
    except BaseException:
        task.abort()
        raise
    finally:
        spark_client.users -= 1
    return message


class SinkTarget(Protocol):
    """Where the entries of one log go."""

    async def open(self) -> None:
        """Before the first entry."""
        ...

    async def write(self, entries: list[SinkColumns]) -> None:
        """Take entries; waits for room only."""
        ...

    async def finish(self) -> list[SegmentToken]:
        """All is durable."""
        ...

    async def abort(self) -> None:
        """Forget what can be forgotten."""
        ...


class _SinkTaskRun:
    """One task: splits batches by log, and keeps one hand-over to the loop under way while Spark computes."""

    def __init__(
        self,
        spark_client: SparkClient,
        options: SinkOptions,
        message: TaskMessage,
        *,
        counts_content: bool,
    ) -> None:
        self._spark_client = spark_client
        self._options = options
        self._message = message
        self._counts_content = counts_content
        self._targets: dict[str, tuple[SinkTarget, Packer]] = {}
        self._pending: Future[None] | None = None
        self._row = 0

    def write_batch(self, batch: "pa.RecordBatch") -> None:
        """Write one batch."""
        name = self._options.log
        where = f"partition {self._message.partition}, from row {self._row} on"
        self._row += batch.num_rows
        parts = [(name, batch)] if name is not None else list(by_log(batch, where))
        self._open_all([name for name, _ in parts])
        for name, part in parts:
            target_and_packer = self._targets.get(name)
            if target_and_packer is None and not self._counts_content:
                continue
            rows = sink_columns_of(part, f'log "{name}", {where}')
            if self._counts_content:
                self._add_content(name, LinkContent(rows.count, rows.digest()))
            if target_and_packer is None:
                continue
            target, packer = target_and_packer
            self._message.records += rows.count
            self._hand_over(target, list(packer.add(rows)))

    def finish(self) -> None:
        """Make everything durable; the message then says where it is."""
        for target, packer in self._targets.values():
            self._hand_over(target, list(packer.flush()))
        self._wait_pending()
        finished: dict[str, list[SegmentToken]] = {}

        async def finish(name: str) -> None:
            finished[name] = await self._targets[name][0].finish()

        self._spark_client.run(for_each_log, list(self._targets), finish)
        for name in self._targets:
            self._message.segments += [(name, token) for token in finished[name] if token.records]

    def abort(self) -> None:
        """Delete what was begun; what a killed worker leaves is an orphan, for later."""
        if self._pending is not None:
            self._pending.cancel()
        for target, _ in self._targets.values():
            with suppress(Exception):  # the error that brought us here is the one to be told
                self._spark_client.run(target.abort)

    def _add_content(self, name: str, added: LinkContent) -> None:
        before = self._message.contents.get(name, LinkContent(0, 0))
        self._message.contents[name] = before + added

    def _open_all(self, names: Sequence[str]) -> None:
        """Have a target for each log that does not hold this batch already."""
        known = {*self._targets, *self._message.skipped}
        new = [name for name in names if name not in known]
        if not new:
            return
        if self._options.mode == "segments":
            self._spark_client.run(for_each_log, new, self._open_log)
            return
        for name in sorted(
            new
        ):  # in one order: else two tasks may each wait for what the other has
            self._spark_client.run(self._open_log, name)

    async def _open_log(self, name: str) -> None:
        """In the background loop."""
        options = self._options
        log = await self._with_retry(partial(open_or_create, self._spark_client, options, name))
        if options.mode == "segments":
            if await self._with_retry(partial(is_already_linked, log, self._message.identity)):
                self._message.skipped.append(name)
                return
            target: SinkTarget = SegmentTarget(log, options, self._message)
        else:
            target = AppendTarget(log, options)
        self._targets[name] = (target, Packer(options.entry_bytes))
        await self._with_retry(target.open)

    async def _with_retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Before anything is written: asked again while the cluster is away."""
        return await retry_unavailable(call, self._options.read_timeout_s, "a task")

    def _hand_over(self, target: SinkTarget, entries: list[SinkColumns]) -> None:
        if entries:
            self._wait_pending()
            self._pending = self._spark_client.background.submit(target.write, entries)

    def _wait_pending(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            try:
                pending.result()
            except TransactionIdOutOfOrder as error:
                raise TransactionIdOutOfOrder(
                    f"partition {self._message.partition}: {error}; {HINT}"
                ) from None


class SegmentTarget:
    """Sealed segments that no log refers to yet; another one begins at ``segmentBytes``."""

    def __init__(self, log: "Log", options: SinkOptions, message: TaskMessage) -> None:
        self._log = log
        self._options = options
        self._message = message
        self._writer: SegmentWriter | None = None
        self._tokens: list[SegmentToken] = []

    async def open(self) -> None:
        """Create the ledger."""
        identity = self._message.identity
        self._writer = await self._log.open_segment_writer(
            app=identity.app,
            version=identity.version,
            custom={"partition": b"%d" % self._message.partition, "query": identity.query.encode()},
            entry_bytes=self._options.entry_bytes,
        )

    async def write(self, entries: list[SinkColumns]) -> None:
        """Write entries as they are packed."""
        for rows in entries:
            if self._writer is not None and self._writer.size_bytes >= self._options.segment_bytes:
                self._tokens.append(await self._writer.aclose())
                self._writer = None
            if self._writer is None:
                await self.open()
            assert self._writer is not None
            if (
                rows.size_bytes > ENTRY_BYTES_MAX
            ):  # one record near the limit: no packed entry takes it
                await self._writer.write_columns(rows.listed_txids(), rows.payloads())
            else:
                await self._writer.write_packed(*rows.packed())

    async def finish(self) -> list[SegmentToken]:
        """Close the last segment; tokens in order."""
        if self._writer is not None:
            self._tokens.append(await self._writer.aclose())
            self._writer = None
        return self._tokens

    async def abort(self) -> None:
        """Delete them: nobody has been told of them."""
        if self._writer is not None:
            await self._writer.abort()
        await self._log.discard_segments(self._tokens)


class AppendTarget:
    """The log's own writer: at least once, readable as it is written. Tasks take turns."""

    def __init__(self, log: "Log", options: SinkOptions) -> None:
        self._log = log
        self._options = options
        self._writer: LogWriter | None = None

    async def open(self) -> None:
        """Become the log's writer, after the tasks before this one."""
        self._writer = await self._log.open_writer(
            takeover=self._options.takeover, wait_s=APPEND_WAIT_S
        )

    async def write(self, entries: list[SinkColumns]) -> None:
        """Write entries as they are packed, which the log's writer sends as they are."""
        assert self._writer is not None
        writer = self._writer
        for rows in entries:
            if (
                rows.size_bytes > ENTRY_BYTES_MAX
            ):  # one record near the limit: no packed entry takes it
                await (await writer.submit_columns(rows.listed_txids(), rows.payloads()))
                continue
            await writer.submit_packed(*rows.packed())

    async def finish(self) -> list[SegmentToken]:
        """Commit, and let the next task write."""
        assert self._writer is not None
        await self._writer.aclose()
        return []

    async def abort(self) -> None:
        """What is sent stays: at least once."""
        if self._writer is not None:
            await self._writer.abort()


async def is_already_linked(log: "Log", identity: SinkIdentity) -> bool:
    """Is this batch of this application in the log? Raises `LinkOutOfOrder` for another query's app."""
    if not identity.app:
        return False
    last = await log.linked_version(identity.app)
    if last is None:
        return False
    if last.identity != identity.query:
        theirs, ours = last.identity or "(none)", identity.query or "(none)"
        raise LinkOutOfOrder(
            f'log "{log.name}": txnAppId {identity.app!r} belongs to query {theirs}, which linked version '
            f"{last.version}; this is query {ours}: a new checkpoint needs a new txnAppId, or its batches "
            "up to there would be skipped"
        )
    return last.version >= identity.version


async def open_or_create(spark_client: SparkClient, options: SinkOptions, name: str) -> "Log":
    """The log to write, made by ``createLogs``. Raises `LogNotFound`."""
    log = spark_client.namespace.open_log(name, config={"create_if_missing": False})
    if not await spark_client.namespace.log_exists(name):
        if not options.create_logs:
            raise LogNotFound(
                f'log "{name}" does not exist in {options.uri}; create it, or set "createLogs"=true',
                name,
            )
        await spark_client.namespace.create_or_find(name)
    return log
