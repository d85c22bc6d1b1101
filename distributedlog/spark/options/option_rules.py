"""Reject conflicting options of a reader or writer, and invalid names, before any request to a cluster.

Each error is one line that names the option and the remedy.
"""

from dataclasses import fields
from typing import Any, Literal

from ...log.format.dlsn import DLSN
from ...log.interfaces.log_names import check_log_name
from ...log.segments.segment_link import APP_BYTES_MAX
from ...log.services.named_positions import check_position_name
from ...runtime.interfaces.errors import InvalidRequest
from ...uri import parse_uri

ENTRY_BYTES_MAX = 1_000_000
"""With its columns, an entry of this size is below the log's own limit of 1,040,384 bytes."""

Where = Literal["batch", "stream"]


def check_source(options: Any, where: Where) -> None:
    """Check a reader's options. Raises `InvalidRequest` or `InvalidUri`."""
    parse_uri(options.uri)
    _exactly_one(options, "log", "logs", "log_pattern")
    _at_most_one(options, "starting_position", "starting_txid", "starting_timestamp")
    _at_most_one(options, "ending_position", "ending_txid", "ending_timestamp")
    _at_most_one(options, "max_records_per_trigger", "max_bytes_per_trigger")
    for attribute, names in (("log", (options.log,)), ("logs", options.logs or ())):
        for name in names:
            if name is not None:
                _check_log_name(shown_name(options, attribute), name)
    if where == "stream":
        _check_stream(options)
    else:
        _check_batch(options)
    _check_bounds(options)


def check_sink(options: Any, where: Where) -> None:
    """Check a writer's options. Raises `InvalidRequest` or `InvalidUri`."""
    parse_uri(options.uri)
    if options.log is not None:
        _check_log_name("log", options.log)
    if (options.txn_app_id is None) != (options.txn_version is None) and where == "batch":
        raise InvalidRequest(
            'options "txnAppId" and "txnVersion" require each other: the application and its batch number'
        )
    if options.txn_version is not None and where == "stream":
        raise InvalidRequest(
            'option "txnVersion" is for batch writes (also in foreachBatch): a stream numbers its own '
            "micro-batches"
        )
    if options.mode == "append" and (options.txn_app_id or options.txn_version is not None):
        raise InvalidRequest(
            'mode "append" is at least once and stores no batch numbers: "txnAppId" and "txnVersion" '
            'require mode "segments"'
        )
    if options.txn_app_id is not None and len(options.txn_app_id.encode()) > APP_BYTES_MAX:
        raise InvalidRequest(
            f'option "txnAppId" has {len(options.txn_app_id.encode())} bytes: at most {APP_BYTES_MAX}'
        )
    if options.entry_bytes > ENTRY_BYTES_MAX:
        raise InvalidRequest(
            f'option "entryBytes": an entry has at most {ENTRY_BYTES_MAX} bytes, not '
            f"{options.entry_bytes}"
        )


def shown_name(options: Any, attribute: str) -> str:
    """Return the name of an option as users write it."""
    for option_field in fields(options):
        if option_field.name == attribute:
            return str(option_field.metadata["name"])
    raise AssertionError(attribute)


# --- one kind of reader ---------------------------------------------------------------------------


def _check_stream(options: Any) -> None:
    for attribute in ("ending_position", "ending_txid", "ending_timestamp"):
        if getattr(options, attribute) is not None:
            raise InvalidRequest(
                f'option "{shown_name(options, attribute)}" is only for spark.read: a stream has no end '
                "(trigger(availableNow=True) ends at the records that exist at its start)"
            )
    if options.pushdown:
        raise InvalidRequest('option "pushdown" is only for spark.read: remove it')
    records_max, least = options.max_records_per_trigger, options.min_records_per_trigger
    if records_max is not None and least is not None and least > records_max:
        raise InvalidRequest(
            f'option "minRecordsPerTrigger" ({least}) is above "maxRecordsPerTrigger" ({records_max})'
        )
    if options.subscriber is not None:
        try:
            check_position_name(options.subscriber)
        except InvalidRequest as error:
            raise InvalidRequest(f'option "subscriber": {error}') from None


def _check_batch(options: Any) -> None:
    if options.subscriber is not None:
        raise InvalidRequest('option "subscriber" is only for spark.readStream: remove it')
    for attribute in (
        "max_records_per_trigger",
        "max_bytes_per_trigger",
        "min_records_per_trigger",
    ):
        if getattr(options, attribute) is not None:
            raise InvalidRequest(
                f'option "{shown_name(options, attribute)}" is only for spark.readStream. A batch reads '
                'its whole range, which "endingPosition" or "endingTxid" can shorten'
            )


# --- where to begin and end -----------------------------------------------------------------------


def _check_bounds(options: Any) -> None:
    """Check that each position is valid, and that no range ends before it starts."""
    starts = _positions("startingPosition", options.starting_position)
    ends = _positions("endingPosition", options.ending_position)
    for name in sorted(set(starts) & set(ends)):
        if starts[name] > ends[name]:
            raise InvalidRequest(
                f'option "endingPosition" is {ends[name]} for log "{name}", before "startingPosition", '
                f"{starts[name]}"
            )
    for unit in ("txid", "timestamp"):
        first, last = getattr(options, f"starting_{unit}"), getattr(options, f"ending_{unit}")
        if first is not None and last is not None and first > last:
            option_name = shown_name(options, f"ending_{unit}")
            raise InvalidRequest(
                f'option "{option_name}" is before "{shown_name(options, f"starting_{unit}")}": the range '
                "would be empty"
            )


def _positions(option: str, json_value: Any) -> dict[str, DLSN]:
    """Return the DLSNs of JSON in either form; words such as "earliest" are ignored."""
    if not isinstance(json_value, dict):
        return {}
    logs = json_value.get("logs") if "v" in json_value else json_value
    if not isinstance(logs, dict):
        raise InvalidRequest(
            f'option "{option}": JSON with "v" requires positions by log under "logs"'
        )
    dlsns = {}
    for name, value in logs.items():
        if value in ("earliest", "latest"):
            continue
        try:
            dlsns[name] = DLSN.parse(str(value))
        except InvalidRequest as error:
            raise InvalidRequest(
                f'option "{option}", log {name!r}: {error}, or earliest, or latest'
            ) from None
    return dlsns


# --- names ----------------------------------------------------------------------------------------


def _check_log_name(option: str, name: str) -> None:
    """Check the name of one log. Wildcards and lists have separate options."""
    if option == "log" and "," in name:
        hint = '; several logs: option "logs"'
    elif any(character in name for character in "*?["):
        hint = '; a pattern: option "logPattern"'
    else:
        hint = ""
    try:
        check_log_name(name)
    except InvalidRequest as error:
        raise error.again(f'option "{option}": {error}{hint}') from None


def _exactly_one(options: Any, *attributes: str) -> None:
    given_names = [
        shown_name(options, name) for name in attributes if getattr(options, name) is not None
    ]
    if len(given_names) != 1:
        what = "none is given" if not given_names else f"{' and '.join(given_names)} are given"
        option_names = ", ".join(shown_name(options, name) for name in attributes)
        raise InvalidRequest(f"use exactly one of the options {option_names}: {what}")


def _at_most_one(options: Any, *attributes: str) -> None:
    given_names = [
        shown_name(options, name) for name in attributes if getattr(options, name) is not None
    ]
    if len(given_names) > 1:
        raise InvalidRequest(f"options {' and '.join(given_names)} exclude each other: use one")
