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

from ...log.model.lock_record import owner_of
from ...log.model.segment_ranges import SegmentToken
from ...log.read.state_watch import follow
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
from ..client.retry import retry_unavailable, wait_for
from ..client.spark_client import SparkClient, client, lent_for, run
from ..client.spark_errors import told
from ..options.options import SinkOptions
from ..read.source_logs import each
from .sink_task import (
    HINT,
    Message,
    SinkIdentity,
    already_linked,
    create_if_wanted,
    write_task,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from ...log.log import Log

T = TypeVar("T")

KNOW_S = 120.0
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
        self.lent: DelegatedToken | None = None
        """For the tasks, once it is checked."""

    def check(self) -> None:
        """Before any task: is there a log that can be written? Raises what says why not."""
        options = self.options
        self.lent = lent_for(options, stream=self.streaming)
        if options.log is not None:
            run(
                options.uri,
                options.request_timeout_s,
                self._check,
                patience_s=options.read_timeout_s,
                credentials=options.credentials,
            )

    async def _check(self, held: SparkClient) -> None:
        options = self.options
        assert options.log is not None
        metadata = held.namespace.metadata
        await create_if_wanted(held, options, options.log)
        deadline, backoff = trio.current_time() + OWNER_WAIT_S, Backoff()
        while True:
            log_id = await held.namespace.find(options.log)
            if (await follow(metadata, log_id, options.log)).state.sealed:
                raise EndOfStream(f'log "{options.log}" is sealed: it takes no more records')
            owner = await owner_of(metadata, log_id)
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
        by_log, identity = gathered(messages)
        options = self.options
        if identity is None and not self.overwrite:
            return

        async def link_all(held: SparkClient) -> None:
            contents = contents_of(messages)
            who = identity or SinkIdentity("", 0, "")
            names = {*by_log, *contents}
            if (self.overwrite or self.streaming) and options.log is not None:
                names.add(options.log)  # also by nothing, where no task had a row
            failed: dict[str, DistributedLogError] = {}

            async def link(name: str) -> None:
                tokens, content = by_log.get(name, []), contents.get(name)
                try:
                    if not tokens and (content is not None or self.streaming):
                        # Each task found that this batch is in. It is not overwritten by nothing.
                        await self._compare(held, name, who, content or LinkContent(0, 0))
                    else:
                        nothing = LinkContent(0, 0)
                        await self._link(held, name, tokens, who, content if tokens else nothing)
                except DistributedLogError as error:
                    failed[name] = error  # the others go on: each log's link stands for itself

            await each(sorted(names), link)
            if failed:
                raise of_batch(failed, len(names))

        # Only for the client: `_link` knows by itself what may be asked again.
        wait_for(
            lambda: client(options.uri, options.request_timeout_s, options.credentials),
            options.read_timeout_s,
        )
        run(options.uri, options.request_timeout_s, link_all, credentials=options.credentials)

    async def _compare(
        self, held: SparkClient, name: str, identity: SinkIdentity, content: LinkContent
    ) -> None:
        """A batch that was linked before this job: was it the same one? Raises `LinkMismatch`, or tells."""
        target = held.namespace.open_log(name)
        linked = await self._patiently(partial(target.linked_version, identity.app), name)
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

    async def _link(
        self,
        held: SparkClient,
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
        target = held.namespace.open_log(name, incarnation=incarnation)
        link = partial(
            target.link_segments,
            tokens,
            app=identity.app,
            version=identity.version,
            identity=identity.query,
            takeover=self.options.takeover,
            truncate_before=self.overwrite,
            content=content,
        )
        try:
            result = await self._patiently(link, name)
        except LinkMismatch:
            if not self.streaming or content is None:
                raise
            await self._compare(held, name, identity, content)
            await self._clean(target, tokens)
            return
        except LinkOutOfOrder:
            if not await self._patiently(partial(already_linked, target, identity), name):
                raise
            await self._clean(target, tokens)  # a later batch of this query is in: so is this
            return
        except TransactionIdOutOfOrder as error:
            raise TransactionIdOutOfOrder(f"{error}; {HINT}") from None
        await self._clean(target, tokens if result.already else [])

    async def _clean(self, target: "Log", tokens: Sequence[SegmentToken]) -> None:
        """Delete these that came too late, never what is linked, and what failed attempts left. The batch is
        in: what fails here fails no commit, the next batch tries again."""
        with suppress(DistributedLogError):
            if tokens:
                await target.discard_segments(tokens)
            await target.collect_unlinked(older_than_s=self.options.orphan_ttl_s)

    async def _patiently(self, call: Callable[[], Awaitable[T]], name: str) -> T:
        """While the cluster is away, and until it is known whether a batch is linked: a repetition tells."""
        timeout_s = max(KNOW_S, self.options.read_timeout_s)
        return await retry_unavailable(
            call, timeout_s, f'the link of log "{name}"', repeatable=True
        )

    def discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what is certainly not linked; the rest is left as it is. Raises nothing."""
        by_log, _ = gathered(messages)
        options = self.options

        async def discard_all(held: SparkClient) -> None:
            async def discard(name: str) -> None:
                for incarnation, tokens in by_incarnation(by_log[name]):
                    target: Log = held.namespace.open_log(name, incarnation=incarnation)
                    try:
                        linked = await target.discard_segments(tokens)
                    except DistributedLogError as error:
                        said = 'log "%s": segments are left for the collector: %s'
                        log.warning(said, name, error)
                        continue
                    if linked:
                        log.warning(
                            'log "%s": a failed commit had linked %d segments', name, len(linked)
                        )

            await each(sorted(by_log), discard)

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

    @told
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Message:
        """In a task."""
        return write_task(self.options, iterator, self.lent, streaming=False)

    @told
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are through."""
        self.link(messages)

    @told
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed, or a commit raised."""
        self.discard(messages)


class StreamWriter(SparkSink, DataSourceStreamArrowWriter):
    """``df.writeStream``. The committing process makes a new one, which knows only the messages."""

    streaming = True

    @told
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Message:
        """In a task."""
        return write_task(self.options, iterator, self.lent, streaming=True)

    @told
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a micro-batch are through."""
        self.link(messages)

    @told
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch failed, or its commit raised."""
        self.discard(messages)


def gathered(
    messages: Sequence[Any],
) -> tuple[dict[str, list[SegmentToken]], SinkIdentity | None]:
    """The segments of each log in the order of partitions, and whose they are."""
    found: dict[str, list[SegmentToken]] = {}
    sent = [one for one in messages if isinstance(one, Message)]
    for message in sorted(sent, key=lambda one: one.partition):
        for name, token in message.segments:
            found.setdefault(name, []).append(token)
    return found, sent[0].identity if sent else None


def contents_of(messages: Sequence[Any]) -> dict[str, LinkContent]:
    """What there was for each log, of all tasks together, where they counted it."""
    found: dict[str, LinkContent] = {}
    for message in messages:
        if isinstance(message, Message):
            for name, content in message.contents.items():
                found[name] = found.get(name, LinkContent(0, 0)) + content
    return found


def by_incarnation(tokens: Sequence[SegmentToken]) -> Iterator[tuple[str, list[SegmentToken]]]:
    """(incarnation, its segments): a log may be made again while a batch is written."""
    for incarnation in sorted({token.incarnation for token in tokens}):
        yield incarnation, [one for one in tokens if one.incarnation == incarnation]


def of_batch(failed: Mapping[str, DistributedLogError], logs: int) -> DistributedLogError:
    """The first log's error by name; in a batch for several it says what became of the others."""
    first, *others = sorted(failed)
    error = failed[first]
    if logs == 1:
        return error
    named = [f'"{name}" ({failed[name]!s:.200})' for name in others[:NAMED_MAX]]
    if len(others) > NAMED_MAX:
        named.append(f"{len(others) - NAMED_MAX} more")
    also = f"; not linked either: {', '.join(named)}" if named else ""
    return error.again(
        f'log "{first}" is not linked: {error}; {logs - len(failed)} of the batch\'s {logs} logs are, and '
        f"are found in when it is repeated{also}"
    )
