"""The sink on the driver: check before any task starts, then link the written segments once.

In mode ``segments``, one metadata transaction per log appends the segments of a batch and records application
and batch number. If the link is repeated, by a replay or after a lost answer, it finds this record. Spark
calls `abort` with the same messages after a `commit` that raised, even if it raised *after* the link.
Therefore `abort` deletes only segments that are not linked according to the metadata (H13).
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ...log.model.lock_record import lock_owner
from ...log.model.segment_ranges import SegmentToken
from ...log.read.state_watch import open_state_watch
from ...log.segments.app_versions import LinkContent
from ...log.segments.segment_link import check_content
from ...runtime.interfaces.errors import (
    DistributedLogError,
    EndOfStream,
    LinkMismatch,
    LinkOutOfOrder,
    LogRecreated,
    OwnershipAcquireFailed,
    TransactionIdOutOfOrder,
)
from ...runtime.primitives.backoff import Backoff
from ..client.delegation_token import DelegatedToken
from ..client.retry import retry_unavailable, retry_unavailable_blocking
from ..client.spark_client import SparkClient, client, delegated_token_for, run
from ..client.spark_errors import marks_errors
from ..options.options import SinkOptions
from ..read.source_logs import for_each_log
from .sink_task import (
    HINT,
    SinkIdentity,
    TaskMessage,
    is_already_linked,
    open_or_create,
    write_task,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from ...log.log import Log

T = TypeVar("T")

LINK_RETRY_S_MIN = 120.0
"""Minimum time, in seconds, for which a link with unknown outcome is retried before the batch fails."""
NAMED_MAX = 10
"""Maximum number of logs that an error names in addition to the first."""
OWNER_WAIT_S = 5.0
"""Seconds after which the holder of a log's lock is considered a writer. Links hold it for milliseconds.
"""

log = logging.getLogger("distributedlog.spark")


class SparkSink:
    """Common part of batch and streaming writers."""

    streaming = False
    """Whether this is a streaming query.

    If a batch is already linked with other rows, a batch job fails. A query, which would fail again and
    again, logs a warning instead.
    """

    def __init__(self, options: SinkOptions, *, overwrite: bool) -> None:
        self.options = options
        self.overwrite = overwrite
        self.delegated_token: DelegatedToken | None = None
        """The token for the tasks, set by `check`."""

    def check(self) -> None:
        """Check that the log can be written, before any task starts.

        Raises:
            LogNotFound, EndOfStream, OwnershipAcquireFailed: The log does not exist, is sealed, or has a
                writer.
            DistributedLogError: The cluster is unavailable or refuses the credentials.
        """
        options = self.options
        self.delegated_token = delegated_token_for(options, is_stream=self.streaming)
        if options.log is not None:
            run(
                options.uri,
                options.request_timeout_s,
                self._check_log,
                retry_s=options.read_timeout_s,
                credentials=options.credentials,
            )

    async def _check_log(self, spark_client: SparkClient) -> None:
        options = self.options
        assert options.log is not None
        metadata = spark_client.namespace.metadata
        await open_or_create(spark_client, options, options.log)
        deadline, backoff = trio.current_time() + OWNER_WAIT_S, Backoff()
        while True:
            log_id = await spark_client.namespace.resolve_name(options.log)
            if (await open_state_watch(metadata, log_id, options.log)).state.sealed:
                raise EndOfStream(f'log "{options.log}" is sealed and accepts no more records')
            owner = await lock_owner(metadata, log_id)
            if owner is None or options.takeover or options.mode == "append":
                return
            if trio.current_time() > deadline:
                raise OwnershipAcquireFailed(
                    f'log "{options.log}" is being written by {owner}. End that writer, or set '
                    '"takeover"=true to fence it',
                    owner,
                )
            await trio.sleep(backoff.next_s())

    # --- linking ----------------------------------------------------------------------------------

    def link(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the batch visible, log by log.

        Raises:
            DistributedLogError: A log is not linked, or its outcome is unknown.
        """
        if self.options.mode != "segments":
            return
        by_log, identity = segments_by_log(messages)
        options = self.options
        if identity is None and not self.overwrite:
            return

        async def link_all(spark_client: SparkClient) -> None:
            contents = content_by_log(messages)
            writer_identity = identity or SinkIdentity("", 0, "")
            names = {*by_log, *contents}
            if (self.overwrite or self.streaming) and options.log is not None:
                names.add(options.log)  # linked even without segments, if no task had a row
            errors: dict[str, DistributedLogError] = {}

            async def link(name: str) -> None:
                tokens, content = by_log.get(name, []), contents.get(name)
                try:
                    if not tokens and (content is not None or self.streaming):
                        # Each task found that this batch is already linked. Do not overwrite it with nothing.
                        await self._compare_linked(
                            spark_client, name, writer_identity, content or LinkContent(0, 0)
                        )
                    else:
                        empty_content = LinkContent(0, 0)
                        await self._link_log(
                            spark_client,
                            name,
                            tokens,
                            writer_identity,
                            content if tokens else empty_content,
                        )
                except DistributedLogError as error:
                    errors[name] = (
                        error  # continue, because the links of other logs are independent
                    )

            await for_each_log(sorted(names), link)
            if errors:
                raise batch_error(errors, len(names))

        # Only for the client: `_link_log` decides itself which calls can be retried.
        retry_unavailable_blocking(
            lambda: client(options.uri, options.request_timeout_s, options.credentials),
            options.read_timeout_s,
        )
        run(options.uri, options.request_timeout_s, link_all, credentials=options.credentials)

    async def _compare_linked(
        self, spark_client: SparkClient, name: str, identity: SinkIdentity, content: LinkContent
    ) -> None:
        """Compare a batch with the one that was linked before this job.

        If they differ, a batch job raises `LinkMismatch`, and a query logs a warning.
        """
        log_handle = spark_client.namespace.open_log(name)
        linked = await self._with_retry(partial(log_handle.linked_version, identity.app), name)
        if linked is None or linked.version != identity.version:
            return
        try:
            check_content(name, identity.app, linked, content)
        except LinkMismatch:
            if not self.streaming:
                raise
            log.warning(
                'log "%s": micro-batch %d of query %s is already linked with %s, and was repeated with %s. '
                "The linked rows remain, the other rows are not written",
                name,
                identity.version,
                identity.query or identity.app,
                linked.content,
                content,
            )

    async def _link_log(
        self,
        spark_client: SparkClient,
        name: str,
        tokens: list[SegmentToken],
        identity: SinkIdentity,
        content: LinkContent | None,
    ) -> None:
        if len({token.incarnation for token in tokens}) > 1:
            raise LogRecreated(
                f'log "{name}" was deleted and created again while the batch was written. Nothing was '
                "linked. Write the batch again"
            )
        incarnation = tokens[0].incarnation if tokens else None
        log_handle = spark_client.namespace.open_log(name, incarnation=incarnation)
        link = partial(
            log_handle.link_segments,
            tokens,
            app=identity.app,
            version=identity.version,
            identity=identity.query,
            takeover=self.options.takeover,
            truncate_before=self.overwrite,
            content=content,
        )
        try:
            result = await self._with_retry(link, name)
        except LinkMismatch:
            if not self.streaming or content is None:
                raise
            await self._compare_linked(spark_client, name, identity, content)
            await self._discard_and_collect(log_handle, tokens)
            return
        except LinkOutOfOrder:
            if not await self._with_retry(partial(is_already_linked, log_handle, identity), name):
                raise
            await self._discard_and_collect(
                log_handle, tokens
            )  # a later batch of this query is linked, so this one is, too
            return
        except TransactionIdOutOfOrder as error:
            raise TransactionIdOutOfOrder(f"{error}; {HINT}") from None
        await self._discard_and_collect(log_handle, tokens if result.already else [])

    async def _discard_and_collect(self, log_handle: "Log", tokens: Sequence[SegmentToken]) -> None:
        """Delete superfluous segments, never linked ones, and those of failed attempts.

        The batch is already linked, so a failure here fails no commit. The next batch retries.
        """
        with suppress(DistributedLogError):
            if tokens:
                await log_handle.discard_segments(tokens)
            await log_handle.collect_unlinked(older_than_s=self.options.orphan_ttl_s)

    async def _with_retry(self, call: Callable[[], Awaitable[T]], name: str) -> T:
        """Retry while the cluster is unavailable or the outcome of a link is unknown.

        A repeated link detects that an earlier one succeeded.
        """
        timeout_s = max(LINK_RETRY_S_MIN, self.options.read_timeout_s)
        return await retry_unavailable(
            call, timeout_s, f'the link of log "{name}"', repeatable=True
        )

    def discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete segments that are certainly not linked. Raises no `DistributedLogError`."""
        by_log, _ = segments_by_log(messages)
        options = self.options

        async def discard_all(spark_client: SparkClient) -> None:
            async def discard(name: str) -> None:
                for incarnation, tokens in by_incarnation(by_log[name]):
                    log_handle: Log = spark_client.namespace.open_log(name, incarnation=incarnation)
                    try:
                        linked = await log_handle.discard_segments(tokens)
                    except DistributedLogError as error:
                        text = 'log "%s": segments remain and are deleted later: %s'
                        log.warning(text, name, error)
                        continue
                    if linked:
                        log.warning(
                            'log "%s": a failed commit had linked %d segments', name, len(linked)
                        )

            await for_each_log(sorted(by_log), discard)

        with suppress(
            DistributedLogError
        ):  # the segments are found later by age; the query's own error matters
            run(
                options.uri,
                options.request_timeout_s,
                discard_all,
                credentials=options.credentials,
            )


class BatchWriter(SparkSink, DataSourceArrowWriter):
    """The writer of ``df.write``. It is pickled for the tasks, and for the process that commits."""

    @marks_errors
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskMessage:
        """Write the rows of a task, in a worker process."""
        return write_task(self.options, iterator, self.delegated_token, streaming=False)

    @marks_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Link the segments after all tasks have finished."""
        self.link(messages)

    @marks_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the segments after the job or its commit failed."""
        self.discard(messages)


class StreamWriter(SparkSink, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``. The committing process creates one that has only the messages."""

    streaming = True

    @marks_errors
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskMessage:
        """Write the rows of a task, in a worker process."""
        return write_task(self.options, iterator, self.delegated_token, streaming=True)

    @marks_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Link the segments after all tasks of a micro-batch have finished."""
        self.link(messages)

    @marks_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the segments after the micro-batch or its commit failed."""
        self.discard(messages)


def segments_by_log(
    messages: Sequence[Any],
) -> tuple[dict[str, list[SegmentToken]], SinkIdentity | None]:
    """Return the segments of each log, ordered by partition, and the identity of the batch."""
    by_log_name: dict[str, list[SegmentToken]] = {}
    task_messages = [one for one in messages if isinstance(one, TaskMessage)]
    for message in sorted(task_messages, key=lambda one: one.partition):
        for name, token in message.segments:
            by_log_name.setdefault(name, []).append(token)
    return by_log_name, task_messages[0].identity if task_messages else None


def content_by_log(messages: Sequence[Any]) -> dict[str, LinkContent]:
    """Return the content of the batch per log, summed over all tasks that counted it."""
    contents: dict[str, LinkContent] = {}
    for message in messages:
        if isinstance(message, TaskMessage):
            for name, content in message.contents.items():
                contents[name] = contents.get(name, LinkContent(0, 0)) + content
    return contents


def by_incarnation(tokens: Sequence[SegmentToken]) -> Iterator[tuple[str, list[SegmentToken]]]:
    """Yield (incarnation, its segments). A log can be created again while a batch is written."""
    for incarnation in sorted({token.incarnation for token in tokens}):
        yield (
            incarnation,
            [segment_token for segment_token in tokens if segment_token.incarnation == incarnation],
        )


def batch_error(errors: Mapping[str, DistributedLogError], logs: int) -> DistributedLogError:
    """Return the error of the first log by name. For several logs, it also describes the others."""
    first, *others = sorted(errors)
    error = errors[first]
    if logs == 1:
        return error
    named = [f'"{name}" ({errors[name]!s:.200})' for name in others[:NAMED_MAX]]
    if len(others) > NAMED_MAX:
        named.append(f"{len(others) - NAMED_MAX} more")
    also = f"; not linked either: {', '.join(named)}" if named else ""
    return error.again(
        f'log "{first}" is not linked: {error}; {logs - len(errors)} of {logs} logs of the batch are linked, '
        f"and are recognized when the batch is repeated{also}"
    )
