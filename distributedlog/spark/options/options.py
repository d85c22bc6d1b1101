"""The options of the Spark source and sink, in one typed table each.

`docs/spark.md` is generated from these tables (`doc_tables.py`). Names are case-insensitive, as Spark's are;
an unknown one is an error that names its nearest neighbours, and a wrong value one that names what is legal.
A new option is a field here; what it may not be said together with is for `option_rules.py`.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from ...runtime.declarations.options import KIB, MIB
from ...runtime.declarations.options import option as describe
from ...runtime.interfaces.errors import InvalidRequest
from .filter_pushdown import LOG_TIME_UNIT
from .option_rules import Where, check_sink, check_source
from .option_values import (
    Bad,
    duration,
    flag,
    instant,
    name_of_credentials,
    names,
    number,
    one_of,
    position,
    size,
    some_time,
    text,
    whole,
)

SPARKS_OWN = frozenset(
    {
        "path",
        "checkpointlocation",
        "queryname",
        "outputmode",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    }
)
"""What Spark itself puts among the options, lower case."""

TXID_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds a unit, for the column ``timestamp``."""


def option(
    name: str,
    read: Callable[[str], Any],
    reason: str,
    *,
    default: Any = None,
    shown: str = "none",
    kafka: str = "–",
) -> Any:
    """An option whose value comes as text: what reads it, and the default as a user would write it."""
    unit = "bytes" if read is size else "s" if read in (duration, some_time) else ""
    return describe(default, unit, reason, name=name, read=read, shown=shown, kafka=kafka)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What ``spark.read`` and ``spark.readStream`` take."""

    uri: str = option(
        "uri", text, "the namespace: `distributedlog://HOST:PORT[,HOST:PORT…]/NAMESPACE`; also as "
        "`.load(uri)`", default="", shown="required", kafka="kafka.bootstrap.servers",
    )  # fmt: skip
    log: str | None = option(
        "log", text, "one log; exactly one of `log`, `logs`, `logPattern`", kafka="assign"
    )
    logs: tuple[str, ...] | None = option(
        "logs", names, "several logs, separated by commas", kafka="subscribe"
    )
    log_pattern: str | None = option(
        "logPattern", text, "a glob for the whole name (`orders/*`); looked at again while a query runs",
        kafka="subscribePattern",
    )  # fmt: skip
    starting_position: object = option(
        "startingPosition", position, "inclusive; `earliest`, `latest` or JSON "
        '`{"LOG": "1.12.3" or "earliest" or "latest"}`, also what `positions()` returns; only for a new '
        "query", shown="batch `earliest`, stream `latest`", kafka="startingOffsets",
    )  # fmt: skip
    starting_txid: int | None = option(
        "startingTxid", number, "begin at the first record of each log with a txid of at least this",
        kafka="startingOffsetsByTimestamp",
    )  # fmt: skip
    starting_timestamp: int | None = option(
        "startingTimestamp", instant, "the same by the column `timestamp` (ISO 8601)",
        kafka="startingTimestamp",
    )  # fmt: skip
    ending_position: object = option(
        "endingPosition", position, "exclusive; as `startingPosition`; batch only", shown="`latest`",
        kafka="endingOffsets",
    )  # fmt: skip
    ending_txid: int | None = option(
        "endingTxid", number, "end before the first record with a txid of at least this; batch only",
        kafka="endingOffsetsByTimestamp",
    )  # fmt: skip
    ending_timestamp: int | None = option(
        "endingTimestamp", instant, "the same by the column `timestamp`; batch only",
        kafka="endingTimestamp",
    )  # fmt: skip
    new_logs: str = option(
        "newLogs", one_of("earliest", "latest", "ignore"), "where a log that is found while a query "
        "runs begins: `earliest`, `latest`, `ignore`", default="earliest", shown="`earliest`",
        kafka="always earliest",
    )  # fmt: skip
    fail_on_data_loss: bool = option(
        "failOnDataLoss", flag, "`false`: go on with what is left of a log that was truncated or deleted, "
        "with a warning that says what is missing", default=True, shown="`true`", kafka="failOnDataLoss",
    )  # fmt: skip
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger", whole, "of a micro-batch, all logs together, in proportion to what each "
        "has; whole entries, at least one; this or the next one", kafka="maxOffsetsPerTrigger",
    )  # fmt: skip
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger", size, "the same in bytes of entries", kafka="–"
    )
    min_records_per_trigger: int | None = option(
        "minRecordsPerTrigger", whole, "wait for this many before a micro-batch begins; not under "
        "AvailableNow", kafka="minOffsetsPerTrigger",
    )  # fmt: skip
    max_trigger_delay_s: float = option(
        "maxTriggerDelay", duration, "but not longer than this", default=900.0, shown="`15min`",
        kafka="maxTriggerDelay",
    )  # fmt: skip
    max_bytes_per_partition: int = option(
        "maxBytesPerPartition", size, "how much a task reads", default=128 * MIB, shown="`128m`"
    )
    min_partitions: int | None = option(
        "minPartitions", whole, "a hint: more and smaller tasks, of at least 1 MiB",
        kafka="minPartitions",
    )  # fmt: skip
    batch_bytes: int = option(
        "batchBytes", size, "entries below this are gathered into Arrow batches of about this size",
        default=2 * MIB, shown="`2m`",
    )  # fmt: skip
    pushdown: bool = option(
        "pushdown", flag, "filters on position, txid (where txids never went back) and time choose what is "
        "read; batch only, needs `spark.sql.python.filterPushdown.enabled`",
        default=False, shown="`false`",
    )  # fmt: skip
    txid_unit: str | None = option(
        "txidUnit", one_of(*TXID_UNITS), "txids are times: `s`, `ms` or `us` since 1970, and the column "
        "`timestamp` is made of them", shown="`timestamp` is log time",
    )  # fmt: skip
    subscriber: str | None = option(
        "subscriber", text, "a query stores how far it has come under this name, one micro-batch late",
        kafka="kafka.group.id (loosely)",
    )  # fmt: skip
    discovery_interval_s: float = option(
        "discoveryInterval", duration, "between two looks for new logs of a `logPattern`", default=5.0,
        shown="`5s`", kafka="kafka.metadata.max.age.ms",
    )  # fmt: skip
    credentials: str = option(
        "credentials", name_of_credentials, "who the query is, on the driver: `file:PATH`, a directory of "
        "`dlog pki issue` or a token of `dlog user token`; its tasks are lent a token of their logs alone",
        default="", shown="what `DLOG_CREDENTIALS` names",
    )  # fmt: skip
    request_timeout_s: float = option(
        "requestTimeout", some_time, "of one request to the cluster", default=10.0, shown="`10s`"
    )
    read_timeout_s: float = option(
        "readTimeout", some_time, "while the cluster is away, planning asks again for this long; a task "
        "without any progress for this long fails", default=120.0, shown="`120s`",
        kafka="kafkaConsumer.pollTimeoutMs",
    )  # fmt: skip

    @classmethod
    def parse(cls, given: Mapping[str, str], where: Where) -> "SourceOptions":
        """Read and check a reader's options. Raises `InvalidRequest`, one line that names the option."""
        options = cls(**_parse(cls, given))
        check_source(options, where)
        return options

    @property
    def names(self) -> tuple[str, ...] | None:
        """The logs named one by one; None with a pattern."""
        return (self.log,) if self.log is not None else self.logs

    @property
    def start(self) -> "Start":
        """Where to begin, whichever option said it."""
        return self._bound("starting")

    @property
    def end(self) -> "Start":
        """Where to end, whichever option said it."""
        return self._bound("ending")

    def _bound(self, which: str) -> "Start":
        txid = getattr(self, f"{which}_txid")
        at_us, time_ms = getattr(self, f"{which}_timestamp"), None
        # The first txid, or log time, that is not before: rounded up.
        if at_us is not None and self.txid_unit is not None:
            txid = max(0, -(-at_us // TXID_UNITS[self.txid_unit]))
        elif at_us is not None:
            time_ms = max(0, -(-at_us // LOG_TIME_UNIT))
        return Start(getattr(self, f"{which}_position"), txid, time_ms)


@dataclass(frozen=True, slots=True)
class Start:
    """A bound of what is read: a position option (word or JSON), or a txid, or a log time, or none."""

    position: Any = None
    txid: int | None = None
    time_ms: int | None = None

    @property
    def searches(self) -> bool:
        """Whether the log is searched for the first record that this means."""
        return self.txid is not None or self.time_ms is not None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What ``df.write`` and ``df.writeStream`` take."""

    uri: str = option(
        "uri", text, "the namespace, as for the source; also as `.save(uri)`", default="",
        shown="required", kafka="kafka.bootstrap.servers",
    )  # fmt: skip
    log: str | None = option(
        "log", text, "the log that is written; without it the frame has a column `log`",
        shown="required, or a column `log`", kafka="topic",
    )  # fmt: skip
    mode: str = option(
        "mode", one_of("segments", "append"), "`segments`: exactly once, a batch appears whole. "
        "`append`: at least once, through the log's writer, as records come", default="segments",
        shown="`segments`", kafka="at least once only",
    )  # fmt: skip
    txn_app_id: str | None = option(
        "txnAppId", text, "who writes, where that is not the streaming query itself (`foreachBatch`, "
        "batch jobs); with `txnVersion`", shown="the query's id",
    )  # fmt: skip
    txn_version: int | None = option(
        "txnVersion", number, "which batch of that writer; one that is in already is skipped",
        shown="the micro-batch's id",
    )  # fmt: skip
    entry_bytes: int = option(
        "entryBytes", size, "bytes of one entry, up to 1,000,000; a query is limited by whole ones",
        default=511 * KIB,  # four of them, with their headers, are a reply of 2 MiB
        shown="`511k`", kafka="kafka.batch.size",
    )  # fmt: skip
    segment_bytes: int = option(
        "segmentBytes", size, "a task begins another segment at this size", default=1024 * MIB,
        shown="`1g`",
    )  # fmt: skip
    orphan_ttl_s: float = option(
        "orphanTtl", duration, "segments of attempts that never finished are removed after this",
        default=86_400.0, shown="`24h`",
    )  # fmt: skip
    create_logs: bool = option(
        "createLogs", flag, "make logs that do not exist", default=False, shown="`false`",
        kafka="auto.create.topics.enable",
    )  # fmt: skip
    takeover: bool = option(
        "takeover", flag, "fence a live writer of the log instead of refusing", default=False,
        shown="`false`",
    )  # fmt: skip
    credentials: str = option(
        "credentials", name_of_credentials, "who the query is, on the driver: `file:PATH`, a directory of "
        "`dlog pki issue` or a token of `dlog user token`; its tasks are lent a token of their logs alone",
        default="", shown="what `DLOG_CREDENTIALS` names",
    )  # fmt: skip
    request_timeout_s: float = option(
        "requestTimeout", some_time, "of one request to the cluster", default=10.0, shown="`10s`"
    )
    read_timeout_s: float = option(
        "readTimeout", some_time, "while the cluster is away, it is asked again for this long, before and "
        "while a task begins to write", default=120.0, shown="`120s`",
    )  # fmt: skip

    @classmethod
    def parse(cls, given: Mapping[str, str], where: Where) -> "SinkOptions":
        """Read and check a writer's options. Raises `InvalidRequest`, one line that names the option."""
        options = cls(**_parse(cls, given))
        check_sink(options, where)
        return options


def _parse(cls: type[Any], given: Mapping[str, str]) -> dict[str, Any]:
    table = {one.metadata["name"].lower(): one for one in fields(cls)}
    found: dict[str, Any] = {}
    for key in sorted(given, key=str.lower):
        name, value = key.lower(), str(given[key])
        if name in SPARKS_OWN or name.startswith(("__", "spark.")):
            continue
        one = table.get(name)
        if one is None:
            raise InvalidRequest(_unknown(key, table))
        try:
            found[one.name] = one.metadata["read"](value)
        except Bad as bad:
            shown = f"{value[:80]!r}" if bad.shows else "that"
            wrong = f"{shown} is not {bad}" if value.strip() else f"empty; it takes {bad}"
            raise InvalidRequest(f'option "{one.metadata["name"]}": {wrong}') from None
    path = next((str(given[key]) for key in given if key.lower() == "path"), "")
    if path and found.get("uri", path) != path:
        raise InvalidRequest(
            f'option "uri" says {found["uri"]!r} and load() or save() says {path!r}: give one of them'
        )
    if path:
        found["uri"] = path
    if not found.get("uri"):
        raise InvalidRequest(
            'option "uri" is missing: distributedlog://HOST:PORT/NAMESPACE, where the cluster is'
        )
    assert all(one.default is not MISSING for one in fields(cls))
    return found


def _unknown(key: str, table: Mapping[str, Any]) -> str:
    known = [str(one.metadata["name"]) for one in table.values()]
    kafka = {one.metadata["kafka"].lower(): str(one.metadata["name"]) for one in table.values()}
    near = difflib.get_close_matches(key.lower(), table, n=3, cutoff=0.6)
    meant = (
        [kafka[key.lower()]] if key.lower() in kafka else [table[n].metadata["name"] for n in near]
    )
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    return f'unknown option "{key}"{hint} (known: {", ".join(known)})'
