"""The sink on the driver: checks before any task, then links what the tasks wrote, once.

Mode ``segments``: for each log one metadata transaction appends a batch's segments and notes (application,
batch); asked again, by a replay or after an answer that was lost, it finds the note. Spark calls `abort`
with the same messages after a `commit` that raised, also when it raised *after* the link: so abort deletes
only what the metadata says is linked to nothing (H13).
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
"""How long a link whose outcome is not known is asked for again, at least, before the batch fails."""
NAMED_MAX = 10
"""Logs that an error names beside the first."""
OWNER_WAIT_S = 5.0
"""Another link holds a log's lock for milliseconds; who holds it longer than this is a writer."""

log = logging.getLogger("distributedlog.spark")


class SparkSink:
    """What batch and streaming writers share."""

    streaming = False
    """A batch that is in with other rows fails a batch job. A query, which would fail for ever, is told."""

    def __init__(self, options: SinkOptions, *, overwrite: bool) -> None:
        self.options = options
        self.overwrite = overwrite
        self.delegated_token: DelegatedToken | None = None
        """For the tasks, once it is checked."""

    def check(self) -> None:
        """Before any task: is there a log that can be written? Raises what says why not."""
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
                raise EndOfStream(f'log "{options.log}" is sealed: it takes no more records')
            owner = await lock_owner(metadata, log_id)
            if owner is None or options.takeover or options.mode == "append":
                return
            if trio.current_time() > deadline:
                raise OwnershipAcquireFailed(
                    f'log "{options.log}" is being written by {owner}: end that writer, or set '
                    '"takeover"=true to fence it',
                    owner,
                )
            await trio.sleep(backoff.next_s())

    # --- linking ----------------------------------------------------------------------------------

    def link(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the batch visible, log by log. Raises when something is certainly not linked, or not known."""
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
                names.add(options.log)  # also by nothing, where no task had a row
            errors: dict[str, DistributedLogError] = {}

            async def link(name: str) -> None:
                tokens, content = by_log.get(name, []), contents.get(name)
                try:
                    if not tokens and (content is not None or self.streaming):
                        # Each task found that this batch is in. It is not overwritten by nothing.
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
                    errors[name] = error  # the others go on: each log's link stands for itself

            await for_each_log(sorted(names), link)
            if errors:
                raise batch_error(errors, len(names))

        # Only for the client: `_link_log` knows by itself what may be asked again.
        retry_unavailable_blocking(
            lambda: client(options.uri, options.request_timeout_s, options.credentials),
            options.read_timeout_s,
        )
        run(options.uri, options.request_timeout_s, link_all, credentials=options.credentials)

    async def _compare_linked(
        self, spark_client: SparkClient, name: str, identity: SinkIdentity, content: LinkContent
    ) -> None:
        """A batch that was linked before this job: was it the same one? Raises `LinkMismatch`, or tells."""
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
                'log "%s": micro-batch %d of query %s is in with %s, and was repeated with %s: what is in '
                "stays, the other rows are not written",
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
                f'log "{name}" was deleted and made again while the batch was written: nothing of it is '
                "linked; write it again"
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
            )  # a later batch of this query is in: so is this
            return
        except TransactionIdOutOfOrder as error:
            raise TransactionIdOutOfOrder(f"{error}; {HINT}") from None
        await self._discard_and_collect(log_handle, tokens if result.already else [])

    async def _discard_and_collect(self, log_handle: "Log", tokens: Sequence[SegmentToken]) -> None:
        """Delete these that came too late, never what is linked, and what failed attempts left. The batch is
        in: what fails here fails no commit, the next batch tries again."""
        with suppress(DistributedLogError):
            if tokens:
                await log_handle.discard_segments(tokens)
            await log_handle.collect_unlinked(older_than_s=self.options.orphan_ttl_s)

    async def _with_retry(self, call: Callable[[], Awaitable[T]], name: str) -> T:
        """While the cluster is away, and until it is known whether a batch is linked: a repetition tells."""
        timeout_s = max(LINK_RETRY_S_MIN, self.options.read_timeout_s)
        return await retry_unavailable(
            call, timeout_s, f'the link of log "{name}"', repeatable=True
        )

    def discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what is certainly not linked; the rest is left as it is. Raises nothing."""
        by_log, _ = segments_by_log(messages)
        options = self.options

        async def discard_all(spark_client: SparkClient) -> None:
            async def discard(name: str) -> None:
                for incarnation, tokens in by_incarnation(by_log[name]):
                    log_handle: Log = spark_client.namespace.open_log(name, incarnation=incarnation)
                    try:
                        linked = await log_handle.discard_segments(tokens)
                    except DistributedLogError as error:
                        text = 'log "%s": segments are left for the collector: %s'
                        log.warning(text, name, error)
                        continue
                    if linked:
                        log.warning(
                            'log "%s": a failed commit had linked %d segments', name, len(linked)
                        )

            await for_each_log(sorted(by_log), discard)

        with suppress(
            DistributedLogError
        ):  # orphans are found by age; the query's own error matters
            run(
                options.uri,
                options.request_timeout_s,
                discard_all,
                credentials=options.credentials,
            )


class BatchWriter(SparkSink, DataSourceArrowWriter):
    """``df.write``. Its pickle goes to the tasks, and to the process that commits."""

    @marks_errors
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskMessage:
        """In a task."""
        return write_task(self.options, iterator, self.delegated_token, streaming=False)

    @marks_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are through."""
        self.link(messages)

    @marks_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed, or a commit raised."""
        self.discard(messages)


class StreamWriter(SparkSink, DataSourceStreamArrowWriter):
    """``df.writeStream``. The committing process makes a new one, which knows only the messages."""

    streaming = True

    @marks_errors
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskMessage:
        """In a task."""
        return write_task(self.options, iterator, self.delegated_token, streaming=True)

    @marks_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a micro-batch are through."""
        self.link(messages)

    @marks_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch failed, or its commit raised."""
        self.discard(messages)


def segments_by_log(
    messages: Sequence[Any],
) -> tuple[dict[str, list[SegmentToken]], SinkIdentity | None]:
    """The segments of each log in the order of partitions, and whose they are."""
    by_log_name: dict[str, list[SegmentToken]] = {}
    task_messages = [one for one in messages if isinstance(one, TaskMessage)]
    for message in sorted(task_messages, key=lambda one: one.partition):
        for name, token in message.segments:
            by_log_name.setdefault(name, []).append(token)
    return by_log_name, task_messages[0].identity if task_messages else None


def content_by_log(messages: Sequence[Any]) -> dict[str, LinkContent]:
    """What there was for each log, of all tasks together, where they counted it."""
    contents: dict[str, LinkContent] = {}
    for message in messages:
        if isinstance(message, TaskMessage):
            for name, content in message.contents.items():
                contents[name] = contents.get(name, LinkContent(0, 0)) + content
    return contents


def by_incarnation(tokens: Sequence[SegmentToken]) -> Iterator[tuple[str, list[SegmentToken]]]:
    """(incarnation, its segments): a log may be made again while a batch is written."""
    for incarnation in sorted({token.incarnation for token in tokens}):
        yield (
            incarnation,
            [segment_token for segment_token in tokens if segment_token.incarnation == incarnation],
        )


def batch_error(errors: Mapping[str, DistributedLogError], logs: int) -> DistributedLogError:
    """The first log's error by name; in a batch for several it says what became of the others."""
    first, *others = sorted(errors)
    error = errors[first]
    if logs == 1:
        return error
    named = [f'"{name}" ({errors[name]!s:.200})' for name in others[:NAMED_MAX]]
    if len(others) > NAMED_MAX:
        named.append(f"{len(others) - NAMED_MAX} more")
    also = f"; not linked either: {', '.join(named)}" if named else ""
    return error.again(
        f'log "{first}" is not linked: {error}; {logs - len(errors)} of the batch\'s {logs} logs are, and '
        f"are found in when it is repeated{also}"
    )
