"""Records, positions and producers in requests and answers, as JSON and as bytes.

A record in a request is a text or an object with ``payload`` (a text) or ``payload_base64``, and ``txid``. In
an answer, it is an object that also has its position. A payload that is not text is sent as
``payload_base64``.
Optional are ``key`` or ``key_base64``, and ``headers``: a list of objects with ``name`` and ``value``, or
``name_base64`` and ``value_base64``.

As bytes, an answer is a sequence of records, little-endian, each with a header of 40 bytes and its payload::

    | payload bytes u32 | slot u32 | segment u64 | entry u64 | txid i64 | time ms u64 | payload |

This layout has no keys and headers, so an answer with a record that has any is refused (406). With
``include_headers=true``, the header has 8 bytes more, and key and headers of the record follow its payload::

    | … | time ms u64 | key bytes i32, -1 for no key | headers u32 | payload | key |
    | name bytes u32 | value bytes u32 | name | value | …                              for each header
"""

import json
import re
import struct
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from ..log.format.dlsn import DLSN
from ..log.format.record import TXID_MAX, LogRecord
from ..log.format.record_headers import KeyedContent
from ..log.write.producer_state_manager import check_producer_name
from ..runtime.interfaces.errors import InvalidRequest, RecordTooLarge
from .error_responses import RejectedRequest

JSON_LINES_NAMES = frozenset(
    ("ndjson", "jsonl", "jsonlines", "json-lines", "json-stream", "stream+json")
)
"""Names of JSON lines, after ``application/`` or ``text/``, each with or without ``x-``."""
UTF_8 = frozenset(("", "utf-8", "utf8", "us-ascii", "ascii"))
JSON = "application/json"
BYTES = "application/octet-stream"
EVENTS = "text/event-stream"
SEQUENCE_MAX = (1 << 62) - 1
NUMBER_MAX = (1 << 64) - 1
TIME_MAX = 1 << 62
SHOWN_CHARS = 60

_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_HEAD = struct.Struct("<IIQQqQ")
_KEYED = struct.Struct("<iI")
_LENGTHS = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class SubmittedRecords:
    """The records of a request."""

    payloads: list[Any]
    """Payloads, or the `KeyedContent` of a record with a key or headers."""
    txids: list[int] | None
    """One per record, or None if the log assigns them."""


@dataclass(frozen=True, slots=True)
class ProducerRef:
    """A producer's number and name."""

    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.number}:{quote(self.name, safe='')}"

    @classmethod
    def parse(cls, text: str) -> "ProducerRef":
        """Parse the result of `str`. Raises `InvalidRequest`."""
        number, colon, name = text.strip().partition(":")
        if not colon:
            raise InvalidRequest(
                f"not a producer: {text[:SHOWN_CHARS]!r}; Dlog-Producer is NUMBER:NAME, as in the answer "
                "that opened it"
            )
        parsed_number = parse_whole("the number in Dlog-Producer", number, 1, NUMBER_MAX)
        try:
            return cls(parsed_number, check_producer_name(unquote(name, errors="strict")))
        except UnicodeDecodeError:
            raise InvalidRequest(
                "the name in Dlog-Producer must be percent-encoded UTF-8"
            ) from None


def is_json_lines(content_type: str) -> bool:
    """Whether a body of this content type is JSON lines; otherwise it is one record.

    Raises `RejectedRequest` for a multipart form, whose parts would be stored with their envelope, and for
    JSON lines in another encoding than UTF-8.
    """
    name, *parameters = (part.strip().lower() for part in content_type.split(";"))
    family, _, subtype = name.partition("/")
    if family == "multipart":
        raise RejectedRequest(
            415,
            f"a body of type {name[:SHOWN_CHARS]!r} is not a record",
            "send the file itself, not a form",
        )
    if family not in ("application", "text") or subtype.removeprefix("x-") not in JSON_LINES_NAMES:
        return False
    for parameter in parameters:
        key, _, charset = parameter.partition("=")
        if key == "charset" and charset.strip('"') not in UTF_8:
            raise RejectedRequest(
                415, f"JSON lines in {charset[:SHOWN_CHARS]!r}", "send them in UTF-8"
            )
    return True


def records_of(is_lines: bool, body: bytes, txid: str | None, records_max: int) -> SubmittedRecords:
    """Return the records of a request's body.

    Args:
        is_lines: Whether it is JSON lines (`is_json_lines`).
        txid: The header Dlog-Txid.
        records_max: The limit for the number of records.

    Raises:
        InvalidRequest: A record or a transaction ID is invalid.
        RecordTooLarge: There are more than ``records_max`` records.
    """
    if not is_lines:
        given_txids = None if txid is None else [parse_whole("Dlog-Txid", txid, 0, TXID_MAX)]
        return SubmittedRecords([body], given_txids)
    if txid is not None:
        raise InvalidRequest("Dlog-Txid is for one record: in JSON lines each has its own txid")
    json_lines = [line for line in body.split(b"\n") if line.strip()]
    if not json_lines:
        raise InvalidRequest("the body has no records")
    if len(json_lines) > records_max:
        raise RecordTooLarge(f"{len(json_lines)} records; the limit per request is {records_max}")
    payloads, txids = [], []
    for number, line in enumerate(json_lines, 1):
        payload, record_txid = _parse_line(number, line)
        payloads.append(payload)
        txids.append(record_txid)
    given_txids = [record_txid for record_txid in txids if record_txid is not None]
    if given_txids and len(given_txids) < len(txids):
        raise InvalidRequest("either all records of a request have a txid, or none")
    return SubmittedRecords(payloads, given_txids or None)


_RECORD_FIELDS = {"payload", "payload_base64", "txid", "key", "key_base64", "headers"}
_HEADER_FIELDS = {"name", "name_base64", "value", "value_base64"}


def _parse_line(number: int, line: bytes) -> tuple[Any, int | None]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"line {number} is not JSON: {line[:SHOWN_CHARS]!r}") from None
    if isinstance(value, str):
        value = {"payload": value}
    if not isinstance(value, dict) or not value.keys() <= _RECORD_FIELDS:
        raise InvalidRequest(
            f"line {number} is neither a text nor an object of payload or payload_base64, txid, key or "
            "key_base64, and headers"
        )
    txid = value.get("txid")
    if txid is not None and (type(txid) is not int or not 0 <= txid <= TXID_MAX):
        raise InvalidRequest(f"line {number}: a txid is a whole number from 0 to {TXID_MAX}")
    payload = _bytes_of(number, value, "payload")
    has_key = value.get("key") is not None or value.get("key_base64") is not None
    key = _bytes_of(number, value, "key") if has_key else None
    headers = value.get("headers")
    if headers is None:
        headers = []
    if not isinstance(headers, list) or not all(
        isinstance(header, dict) and header.keys() <= _HEADER_FIELDS for header in headers
    ):
        raise InvalidRequest(
            f"line {number}: headers must be a list of objects with a name and a value"
        )
    if key is None and not headers:
        return payload, txid
    pairs = [
        (_bytes_of(number, header, "name"), _bytes_of(number, header, "value"))
        for header in headers
    ]
    try:
        return KeyedContent(payload, key, pairs).to_checked(), txid
    except RecordTooLarge as error:
        raise RecordTooLarge(f"line {number}: {error}") from None
    except InvalidRequest as error:
        raise InvalidRequest(f"line {number}: {error}") from None


def _bytes_of(number: int, value: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes of a field, which is a text, or base64 under its name with ``_base64``."""
    text, base64_text = value.get(name), value.get(f"{name}_base64")
    if (text is None) == (base64_text is None) or not isinstance(
        base64_text if text is None else text, str
    ):
        raise InvalidRequest(f"line {number} must have a text either as {name} or as {name}_base64")
    try:
        return text.encode() if text is not None else b64decode(str(base64_text), validate=True)
    except (UnicodeEncodeError, Base64Error, ValueError):
        raise InvalidRequest(
            f"line {number}: the {name} is not valid Unicode text or base64"
        ) from None


def record_to_json(record: LogRecord) -> dict[str, Any]:
    """Return a record as a JSON object."""
    fields: dict[str, Any] = {
        "dlsn": str(record.dlsn),
        "sequence_id": record.sequence_id,
        "txid": record.txid,
        "time_ms": record.time_ms,
    }
    if record.more:
        fields["more"] = True
    fields |= _to_json("payload", bytes(record.payload))
    if record.key is not None:
        fields |= _to_json("key", record.key)
    if record.headers:
        fields["headers"] = [
            {**_to_json("name", name), **_to_json("value", value)} for name, value in record.headers
        ]
    return fields


def _to_json(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


def records_to_bytes(records: Iterable[LogRecord], *, include_headers: bool) -> bytes:
    """Return records as bytes; see the module.

    Args:
        records: The records.
        include_headers: Whether the layout has keys and headers.

    Raises:
        RejectedRequest: It has not, and a record has any.
    """
    parts: list[bytes] = []
    for record in records:
        dlsn, payload, key = record.dlsn, bytes(record.payload), record.key
        parts.append(
            _HEAD.pack(
                len(payload), dlsn.slot, dlsn.segment, dlsn.entry, record.txid, record.time_ms
            )
        )
        if not include_headers:
            if key is not None or record.headers:
                raise RejectedRequest(
                    406,
                    f"record {dlsn} has a key or headers, which this layout does not contain",
                    "add include_headers=true, or accept JSON",
                )
            parts.append(payload)
            continue
        parts += (_KEYED.pack(-1 if key is None else len(key), len(record.headers)), payload)
        if key is not None:
            parts.append(key)
        for name, value in record.headers:
            parts += (_LENGTHS.pack(len(name), len(value)), name, value)
    return b"".join(parts)


def record_event(record: LogRecord) -> bytes:
    """Return a record as a server-sent event, whose ID is its position.

    The JSON is ASCII and contains no newlines.
    """
    return b"id: %s\ndata: %s\n\n" % (
        str(record.dlsn).encode(),
        json.dumps(record_to_json(record)).encode(),
    )


def named_event(name: str, value: Mapping[str, Any], dlsn: DLSN | None = None) -> bytes:
    """Return an event that is not a record, with ``dlsn`` as its ID."""
    identity = b"" if dlsn is None else b"id: %s\n" % str(dlsn).encode()
    return b"%sevent: %s\ndata: %s\n\n" % (identity, name.encode(), json.dumps(value).encode())


def parse_start(
    query: Mapping[str, str], default: str, last_event_id: str | None = None
) -> dict[str, Any]:
    """Return the start of a read as arguments of `Log.open_reader`.

    Args:
        query: The query parameters ``from``, ``txid`` or ``since_ms``. ``from`` may also be a search that
            `next_start` returned, such as ``txid:7``.
        default: The value of ``from`` if all of them are missing.
        last_event_id: The position of the last received record, which takes precedence.

    Raises:
        InvalidRequest: A value is invalid, or several were given.
    """
    if last_event_id is not None:
        return start_after(parse_event_id(last_event_id))
    given_names = [name for name in ("from", "txid", "since_ms") if name in query]
    if len(given_names) > 1:
        raise InvalidRequest(f"give one of {' and '.join(given_names)}, not both")
    start = query.get("from", default)
    name, _, value = start.partition(":")
    if given_names in (["txid"], ["since_ms"]):
        name, value = given_names[0], query[given_names[0]]
    if name == "txid":
        return {"txid": parse_whole("txid", value, 0, TXID_MAX)}
    if name == "since_ms":
        return {"since": parse_whole("since_ms", value, 0, TIME_MAX)}
    return {"at": start} if start in ("earliest", "latest") else {"dlsn": DLSN.parse(start)}


def next_start(start: Mapping[str, Any]) -> str:
    """Return the ``from`` of the next request, after one with this start that found no record.

    A search is repeated, because the log may have later records that do not match it.
    """
    [(name, value)] = start.items()
    if name in ("txid", "since"):
        return f"{'txid' if name == 'txid' else 'since_ms'}:{value}"
    return str(value)


def parse_event_id(text: str) -> DLSN:
    """Parse the ID of an event. Raises `InvalidRequest`."""
    text = text.strip()
    return DLSN.NONE if text == str(DLSN.NONE) else DLSN.parse(text)


def start_after(last: DLSN) -> dict[str, Any]:
    """Return the start after a record, as `parse_start` does; after `DLSN.NONE`, all records of the log."""
    return {"at": "earliest"} if last == DLSN.NONE else {"dlsn": last.next()}


def parse_whole(field: str, text: str, minimum: int, maximum: int) -> int:
    """Parse a decimal integer. Raises `InvalidRequest`."""
    if text.isascii() and text.isdigit() and len(text) <= 20 and minimum <= int(text) <= maximum:
        return int(text)
    raise InvalidRequest(
        f"{field} is a whole number from {minimum} to {maximum}, not {text[:SHOWN_CHARS]!r}"
    )


def parse_flag(field: str, text: str) -> bool:
    """Parse ``true`` or ``false``. Raises `InvalidRequest`."""
    if text not in ("true", "false"):
        raise InvalidRequest(f"{field} is true or false, not {text[:SHOWN_CHARS]!r}")
    return text == "true"


def parse_seconds(field: str, text: str, maximum: float) -> float:
    """Parse seconds, with fractions. Raises `InvalidRequest`."""
    value = float(text) if _SECONDS.fullmatch(text) else -1.0
    if not 0 <= value <= maximum:
        raise InvalidRequest(
            f"{field} is seconds from 0 to {maximum:g}, not {text[:SHOWN_CHARS]!r}"
        )
    return value


def dlsn_texts(dlsns: Sequence[DLSN]) -> list[str]:
    """Return positions as texts."""
    return [str(dlsn) for dlsn in dlsns]
