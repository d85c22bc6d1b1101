"""The options of the Spark source and sink, in one typed table each.

`doc_tables.py` generates docs/reference/spark-options.md from these tables. Names are case-insensitive. The
error of an unknown name suggests similar names, and the error of an invalid value describes the legal ones. A
new option is a field here. Its conflicts with other options are checked in `option_rules.py`.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from ...log.arrow.arrow_columns import TXID_UNITS
from ...runtime.declarations.options import KIB, MIB
from ...runtime.declarations.options import option as describe
from ...runtime.interfaces.errors import InvalidRequest
from .filter_pushdown import LOG_TIME_UNIT
from .option_rules import Where, check_sink, check_source
from .option_values import (
    InvalidValue,
    duration,
    flag,
    instant,
    name_of_credentials,
    names,
    number,
    one_of,
    position,
    positive_duration,
    size,
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
"""Options that Spark itself adds, in lower case."""


def option(
    name: str,
    read: Callable[[str], Any],
    reason: str,
    *,
    default: Any = None,
    shown: str = "none",
    kafka: str = "–",
) -> Any:
    """Declare an option.

    Args:
        name: The name that users write.
        read: Parses the text of the value.
        reason: The description for the documentation.
        default: The default value.
        shown: The default as a user would write it.
        kafka: The corresponding option of Spark's Kafka source.
    """
    unit = "bytes" if read is size else "s" if read in (duration, positive_duration) else ""
    return describe(default, unit, reason, name=name, read=read, shown=shown, kafka=kafka)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of ``spark.read`` and ``spark.readStream``."""

    uri: str = option(
        "uri", text, "URI of the namespace, also as `.load(uri)`.",
        default="", shown="required", kafka="kafka.bootstrap.servers",
    )  # fmt: skip
    log: str | None = option(
        "log", text, "One log. Give exactly one of `log`, `logs` and `logPattern`.", kafka="assign"
    )
    logs: tuple[str, ...] | None = option(
        "logs", names, "Several logs, separated by commas.", kafka="subscribe"
    )
    log_pattern: str | None = option(
        "logPattern", text, "A glob for the whole name (`orders/*`). A running query finds new logs.",
        kafka="subscribePattern",
    )  # fmt: skip
    starting_position: object = option(
        "startingPosition", position, "Inclusive start of a new query: `earliest`, `latest`, or "
        "JSON with a position per log, "
        "as from `positions()`.", shown="batch `earliest`, stream `latest`", kafka="startingOffsets",
    )  # fmt: skip
    starting_txid: int | None = option(
        "startingTxid", number, "Start at the first record of each log with at least this transaction ID.",
        kafka="startingOffsetsByTimestamp",
    )  # fmt: skip
    starting_timestamp: int | None = option(
        "startingTimestamp", instant, "Start at the first record with at least this `timestamp` (ISO 8601).",
        kafka="startingTimestamp",
    )  # fmt: skip
    ending_position: object = option(
        "endingPosition", position, "Exclusive end, in the form of `startingPosition`. Batch only.",
        shown="`latest`",
        kafka="endingOffsets",
    )  # fmt: skip
    ending_txid: int | None = option(
        "endingTxid", number, "End before the first record with at least this transaction ID. Batch only.",
        kafka="endingOffsetsByTimestamp",
    )  # fmt: skip
    ending_timestamp: int | None = option(
        "endingTimestamp", instant, "End before the first record with at least this `timestamp`. Batch only.",
        kafka="endingTimestamp",
    )  # fmt: skip
    new_logs: str = option(
        "newLogs", one_of("earliest", "latest", "ignore"), "Start of logs that a running query "
        "finds: `earliest`, `latest` or `ignore`.", default="earliest", shown="`earliest`",
        kafka="always earliest",
    )  # fmt: skip
    fail_on_data_loss: bool = option(
        "failOnDataLoss", flag, "If false, continue with the remaining records of a truncated or "
        "deleted log, "
        "and log a warning.", default=True, shown="`true`", kafka="failOnDataLoss",
    )  # fmt: skip
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger", whole, "Maximum records of a micro-batch over all logs, in whole "
        "entries, at least one.", kafka="maxOffsetsPerTrigger",
    )  # fmt: skip
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger", size, "Maximum bytes of entries of a micro-batch.", kafka="–"
    )
    min_records_per_trigger: int | None = option(
        "minRecordsPerTrigger", whole, "Minimum records of a micro-batch. Ignored with "
        "AvailableNow.", kafka="minOffsetsPerTrigger",
    )  # fmt: skip
    max_trigger_delay_s: float = option(
        "maxTriggerDelay", duration, "Maximum wait for `minRecordsPerTrigger`.",
        default=900.0, shown="`15min`",
        kafka="maxTriggerDelay",
    )  # fmt: skip
    max_bytes_per_partition: int = option(
        "maxBytesPerPartition",
        size,
        "Maximum bytes that a task reads.",
        default=128 * MIB,
        shown="`128m`",
    )
    min_partitions: int | None = option(
        "minPartitions", whole, "Hint: more and smaller tasks, of at least 1 MiB.",
        kafka="minPartitions",
    )  # fmt: skip
    batch_bytes: int = option(
        "batchBytes", size, "Approximate size of Arrow batches. Smaller entries are gathered.",
        default=2 * MIB, shown="`2m`",
    )  # fmt: skip
    pushdown: bool = option(
        "pushdown", flag, "Filters on position, txid (if txids never decreased) and time limit the range. "
        "Batch only, needs `spark.sql.python.filterPushdown.enabled`.",
        default=False, shown="`false`",
    )  # fmt: skip
    txid_unit: str | None = option(
        "txidUnit", one_of(*TXID_UNITS), "Unit of txids that are times since 1970: `s`, `ms` or "
        "`us`. The column "
        "`timestamp` then shows them.", shown="none (log time)",
    )  # fmt: skip
    include_headers: bool = option(
        "includeHeaders", flag, "Add the columns `key` and `headers` to a frame without a schema.",
        default=False, shown="`false`", kafka="includeHeaders",
    )  # fmt: skip
    subscriber: str | None = option(
        "subscriber", text, "Named position in which a query stores its progress, one micro-batch late.",
        kafka="kafka.group.id (loosely)",
    )  # fmt: skip
    discovery_interval_s: float = option(
        "discoveryInterval", duration, "Interval of the search for new logs.", default=5.0,
        shown="`5s`", kafka="kafka.metadata.max.age.ms",
    )  # fmt: skip
    credentials: str = option(
        "credentials", name_of_credentials, "Credentials of the driver, as `file:PATH`: a directory of "
        "`dlog pki issue` or a token file of `dlog user token`.",
        default="", shown="value of `DLOG_CREDENTIALS`",
    )  # fmt: skip
    request_timeout_s: float = option(
        "requestTimeout",
        positive_duration,
        "Timeout of one request to the cluster.",
        default=10.0,
        shown="`10s`",
    )
    read_timeout_s: float = option(
        "readTimeout",
        positive_duration,
        "Planning retries for this long if the cluster is unavailable. A task "
        "without progress for this long fails.",
        default=120.0,
        shown="`120s`",
        kafka="kafkaConsumer.pollTimeoutMs",
    )

    @classmethod
    def parse(cls, option_values: Mapping[str, str], where: Where) -> "SourceOptions":
        """Parse and check a reader's options. Raises `InvalidRequest`, one line that names the option."""
        options = cls(**_parse(cls, option_values))
        check_source(options, where)
        return options

    @property
    def names(self) -> tuple[str, ...] | None:
        """The explicitly named logs; None with a pattern."""
        return (self.log,) if self.log is not None else self.logs

    @property
    def start(self) -> "ReadBound":
        """The start, by whichever option was given."""
        return self._bound("starting")

    @property
    def end(self) -> "ReadBound":
        """The end, by whichever option was given."""
        return self._bound("ending")

    def _bound(self, which: str) -> "ReadBound":
        txid = getattr(self, f"{which}_txid")
        at_us, time_ms = getattr(self, f"{which}_timestamp"), None
        # The first transaction ID or log time that is not before the instant: rounded up.
        if at_us is not None and self.txid_unit is not None:
            txid = max(0, -(-at_us // TXID_UNITS[self.txid_unit]))
        elif at_us is not None:
            time_ms = max(0, -(-at_us // LOG_TIME_UNIT))
        return ReadBound(getattr(self, f"{which}_position"), txid, time_ms)


@dataclass(frozen=True, slots=True)
class ReadBound:
    """A start or end: a position option (word or JSON), a transaction ID, a log time, or none."""

    position: Any = None
    txid: int | None = None
    time_ms: int | None = None

    @property
    def is_search(self) -> bool:
        """Whether the log must be searched for the first matching record."""
        return self.txid is not None or self.time_ms is not None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of ``df.write`` and ``df.writeStream``."""

    uri: str = option(
        "uri", text, "URI of the namespace, also as `.save(uri)`.", default="",
        shown="required", kafka="kafka.bootstrap.servers",
    )  # fmt: skip
    log: str | None = option(
        "log", text, "Target log. Without it, the frame must have a column `log`.",
        shown="required, or a column `log`", kafka="topic",
    )  # fmt: skip
    mode: str = option(
        "mode", one_of("segments", "append"), "`segments`: exactly once, in whole batches. "
        "`append`: at least once, through the log's writer.", default="segments",
        shown="`segments`", kafka="at least once only",
    )  # fmt: skip
    txn_app_id: str | None = option(
        "txnAppId", text, "Application ID for `foreachBatch` and "
        "batch jobs, with `txnVersion`.", shown="the query's id",
    )  # fmt: skip
    txn_version: int | None = option(
        "txnVersion", number, "Batch number of the application. A stored batch is skipped.",
        shown="the micro-batch's id",
    )  # fmt: skip
    entry_bytes: int = option(
        "entryBytes", size, "Maximum size of an entry, up to 1,000,000 bytes.",
        default=511 * KIB,  # four entries with their headers fit into a reply of 2 MiB
        shown="`511k`", kafka="kafka.batch.size",
    )  # fmt: skip
    segment_bytes: int = option(
        "segmentBytes", size, "Size at which a task starts another segment.", default=1024 * MIB,
        shown="`1g`",
    )  # fmt: skip
    orphan_ttl_s: float = option(
        "orphanTtl", duration, "Age at which segments of unfinished attempts are deleted.",
        default=86_400.0, shown="`24h`",
    )  # fmt: skip
    create_logs: bool = option(
        "createLogs", flag, "Create missing logs.", default=False, shown="`false`",
        kafka="auto.create.topics.enable",
    )  # fmt: skip
    takeover: bool = option(
        "takeover", flag, "Fence another writer of the log instead of refusing.", default=False,
        shown="`false`",
    )  # fmt: skip
    credentials: str = option(
        "credentials", name_of_credentials, "Credentials of the driver, as `file:PATH`: a directory of "
        "`dlog pki issue` or a token file of `dlog user token`.",
        default="", shown="value of `DLOG_CREDENTIALS`",
    )  # fmt: skip
    request_timeout_s: float = option(
        "requestTimeout",
        positive_duration,
        "Timeout of one request to the cluster.",
        default=10.0,
        shown="`10s`",
    )
    read_timeout_s: float = option(
        "readTimeout", positive_duration, "Time of retries before writing if the cluster is "
        "unavailable.", default=120.0, shown="`120s`",
    )  # fmt: skip

    @classmethod
    def parse(cls, option_values: Mapping[str, str], where: Where) -> "SinkOptions":
        """Parse and check a writer's options. Raises `InvalidRequest`, one line that names the option."""
        options = cls(**_parse(cls, option_values))
        check_sink(options, where)
        return options


def _parse(cls: type[Any], option_values: Mapping[str, str]) -> dict[str, Any]:
    table = {option_field.metadata["name"].lower(): option_field for option_field in fields(cls)}
    values: dict[str, Any] = {}
    for key in sorted(option_values, key=str.lower):
        name, value = key.lower(), str(option_values[key])
        if name in SPARKS_OWN or name.startswith(("__", "spark.")):
            continue
        option_field = table.get(name)
        if option_field is None:
            raise InvalidRequest(_unknown(key, table))
        try:
            values[option_field.name] = option_field.metadata["read"](value)
        except InvalidValue as bad:
            shown_value = f"{value[:80]!r}" if bad.may_show_value else "that"
            problem = f"{shown_value} is not {bad}" if value.strip() else f"empty; expected {bad}"
            raise InvalidRequest(f'option "{option_field.metadata["name"]}": {problem}') from None
    path = next((str(option_values[key]) for key in option_values if key.lower() == "path"), "")
    if path and values.get("uri", path) != path:
        raise InvalidRequest(
            f'option "uri" is {values["uri"]!r}, and load() or save() has {path!r}: use only one of them'
        )
    if path:
        values["uri"] = path
    if not values.get("uri"):
        raise InvalidRequest('option "uri" is missing: use distributedlog://HOST:PORT/NAMESPACE')
    assert all(option_field.default is not MISSING for option_field in fields(cls))
    return values


def _unknown(key: str, table: Mapping[str, Any]) -> str:
    known_names = [str(option_field.metadata["name"]) for option_field in table.values()]
    kafka = {
        option_field.metadata["kafka"].lower(): str(option_field.metadata["name"])
        for option_field in table.values()
    }
    near = difflib.get_close_matches(key.lower(), table, n=3, cutoff=0.6)
    suggestions = (
        [kafka[key.lower()]] if key.lower() in kafka else [table[n].metadata["name"] for n in near]
    )
    hint = f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""
    return f'unknown option "{key}"{hint} (known: {", ".join(known_names)})'
