"""Write the rows of a sink task: into segments that belong to no log yet, or through the log's writer.

Each task can run twice, even at the same time, or outlive its job. In mode ``segments``, its results become
visible only when the driver links them. Mode ``append`` guarantees at least once only.
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
"""Maximum wait of a task in mode ``append`` to become the log's writer, in seconds."""
HINT = (
    'txids must not decrease: order them by df.repartitionByRange("txid").sortWithinPartitions("txid"), '
    "or omit the column txid"
)


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """The application and the batch, by which a repeated batch is recognized."""

    app: str
    """"" for a batch job without an application ID. Then only its ledgers identify a repeated link."""
    version: int
    query: str
    """The streaming query that numbers the versions; "" outside a query."""


@dataclass
class TaskMessage(WriterCommitMessage):
    """The report of a task to the driver."""

    partition: int
    identity: SinkIdentity
    segments: list[tuple[str, SegmentToken]] = field(default_factory=list)
    """(log, segment), in the order of writing."""
    records: int = 0
    skipped: list[str] = field(default_factory=list)
    """Logs that already contain this batch."""
    contents: dict[str, LinkContent] = field(default_factory=dict)
    """Content of the batch per log, if the application numbers versions, to compare with the linked batch."""


def identity_of(options: SinkOptions, context: TaskContext, *, streaming: bool) -> SinkIdentity:
    """Return the identity from the options and the local properties that Spark sets for each task."""
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
    """Write the rows of one task. Errors name log, partition and remedy.

    Args:
        options: The options of the sink.
        batches: The rows.
        delegated_token: The token of the driver for this task, if one is required.
        streaming: Whether the task belongs to a streaming query.

    Returns:
        The report for the driver.

    Raises:
        InvalidRequest: A row is invalid.
        TransactionIdOutOfOrder: The transaction IDs decrease.
        LinkOutOfOrder: The application ID belongs to another query.
        DistributedLogError: The write failed.
    """
    context = TaskContext.get()
    assert context is not None, "tasks run in a worker process of Spark"
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
    """The destination of the entries of one log."""

    async def open(self) -> None:
        """Prepare for the first entry."""
        ...

    async def write(self, entries: list[SinkColumns]) -> None:
        """Write entries. Waits only for free buffer space."""
        ...

    async def finish(self) -> list[SegmentToken]:
        """Make all entries durable, and return the written segments."""
        ...

    async def abort(self) -> None:
        """Delete the written data, as far as possible."""
        ...


class _SinkTaskRun:
    """One task. It splits batches by log, and keeps one write pending while Spark computes."""

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
        """Make everything durable, and add the segments to the message."""
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
        """Delete the written data. Data of a killed worker is deleted later, by age."""
        if self._pending is not None:
            self._pending.cancel()
        for target, _ in self._targets.values():
            with suppress(Exception):  # the original error is reported
                self._spark_client.run(target.abort)

    def _add_content(self, name: str, added: LinkContent) -> None:
        before = self._message.contents.get(name, LinkContent(0, 0))
        self._message.contents[name] = before + added

    def _open_all(self, names: Sequence[str]) -> None:
        """Open a target for each log that does not already contain this batch."""
        known = {*self._targets, *self._message.skipped}
        new = [name for name in names if name not in known]
        if not new:
            return
        if self._options.mode == "segments":
            self._spark_client.run(for_each_log, new, self._open_log)
            return
        for name in sorted(new):  # in a fixed order; otherwise two tasks could wait for each other
            self._spark_client.run(self._open_log, name)

    async def _open_log(self, name: str) -> None:
        """Open the target of one log, in the background loop."""
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
        """Call, and retry while the cluster is unavailable. Only for calls before the first write."""
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
    """Writes closed segments that belong to no log yet. After ``segmentBytes``, it starts another one."""

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
        """Write entries in their packed form."""
        for rows in entries:
            if self._writer is not None and self._writer.size_bytes >= self._options.segment_bytes:
                self._tokens.append(await self._writer.aclose())
                self._writer = None
            if self._writer is None:
                await self.open()
            assert self._writer is not None
            if (
                rows.size_bytes > ENTRY_BYTES_MAX
            ):  # one record near the limit, which is too large for a packed entry
                await self._writer.write_columns(rows.listed_txids(), rows.contents())
            else:
                await self._writer.write_packed(*rows.packed(), **rows.packed_keyed())

    async def finish(self) -> list[SegmentToken]:
        """Close the last segment, and return the tokens in order."""
        if self._writer is not None:
            self._tokens.append(await self._writer.aclose())
            self._writer = None
        return self._tokens

    async def abort(self) -> None:
        """Delete the segments, which no other process refers to."""
        if self._writer is not None:
            await self._writer.abort()
        await self._log.discard_segments(self._tokens)


class AppendTarget:
    """Appends through the log's writer: at least once, readable at once, one task at a time."""

    def __init__(self, log: "Log", options: SinkOptions) -> None:
        self._log = log
        self._options = options
        self._writer: LogWriter | None = None

    async def open(self) -> None:
        """Become the log's writer, when the preceding tasks have finished."""
        self._writer = await self._log.open_writer(
            takeover=self._options.takeover, wait_s=APPEND_WAIT_S
        )

    async def write(self, entries: list[SinkColumns]) -> None:
        """Write entries in their packed form. The log's writer sends them unchanged."""
        assert self._writer is not None
        writer = self._writer
        for rows in entries:
            if (
                rows.size_bytes > ENTRY_BYTES_MAX
            ):  # one record near the limit, which is too large for a packed entry
                await (await writer.submit_columns(rows.listed_txids(), rows.contents()))
                continue
            await writer.submit_packed(*rows.packed(), **rows.packed_keyed())

    async def finish(self) -> list[SegmentToken]:
        """Commit, and release the log for the next task."""
        assert self._writer is not None
        await self._writer.aclose()
        return []

    async def abort(self) -> None:
        """End the writer. Sent records remain (at least once)."""
        if self._writer is not None:
            await self._writer.abort()


async def is_already_linked(log: "Log", identity: SinkIdentity) -> bool:
    """Whether the log contains this batch of this application.

    Raises:
        LinkOutOfOrder: The application ID belongs to another query.
    """
    if not identity.app:
        return False
    last = await log.linked_version(identity.app)
    if last is None:
        return False
    if last.identity != identity.query:
        theirs, ours = last.identity or "(none)", identity.query or "(none)"
        raise LinkOutOfOrder(
            f'log "{log.name}": txnAppId {identity.app!r} belongs to query {theirs}, which linked version '
            f"{last.version}; this is query {ours}. A new checkpoint requires a new txnAppId, otherwise its "
            "batches up to this version would be skipped"
        )
    return last.version >= identity.version


async def open_or_create(spark_client: SparkClient, options: SinkOptions, name: str) -> "Log":
    """Return the log to write; create it with ``createLogs``. Raises `LogNotFound`."""
    log = spark_client.namespace.open_log(name, config={"create_if_missing": False})
    if not await spark_client.namespace.log_exists(name):
        if not options.create_logs:
            raise LogNotFound(
                f'log "{name}" does not exist in {options.uri}; create it, or set "createLogs"=true',
                name,
            )
        await spark_client.namespace.create_or_find(name)
    return log
