"""Records, places and producers as they stand in requests and answers: JSON, and bytes.

A record of a request is a text or an object: ``payload`` (a text) or ``payload_base64``, and ``txid``.
In an answer it is an object with its place besides; a payload that is no text comes as ``payload_base64``.

As bytes an answer is records back to back, little-endian, 40 bytes and a payload each:

    | payload bytes u32 | slot u32 | segment u64 | entry u64 | txid i64 | time ms u64 | payload |
"""

import json
import struct
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from ..log.format.dlsn import DLSN
from ..log.format.record import TXID_MAX, LogRecord
from ..log.write.producer_state_manager import check_name
from ..runtime.interfaces.errors import InvalidRequest, RecordTooLarge
from .error_responses import TurnedAway

LINES = frozenset(("ndjson", "jsonl", "jsonlines", "json-lines", "json-stream", "stream+json"))
"""Names of JSON lines, after ``application/`` or ``text/``, each with or without ``x-``."""
UTF_8 = frozenset(("", "utf-8", "utf8", "us-ascii", "ascii"))
JSON = "application/json"
BYTES = "application/octet-stream"
EVENTS = "text/event-stream"
SEQUENCE_MAX = (1 << 62) - 1
NUMBER_MAX = (1 << 64) - 1
TIME_MAX = 1 << 62
SHOWN = 60

_HEAD = struct.Struct("<IIQQqQ")


@dataclass(frozen=True, slots=True)
class Given:
    """The records of a request."""

    payloads: list[bytes]
    txids: list[int] | None
    """One a record, or None: the log gives them."""


@dataclass(frozen=True, slots=True)
class ProducerRef:
    """A producer's number, and the name that it was opened by."""

    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.number}:{quote(self.name, safe='')}"

    @classmethod
    def parse(cls, text: str) -> "ProducerRef":
        """Read what `str` gives. Raises `InvalidRequest`."""
        number, colon, name = text.strip().partition(":")
        if not colon:
            raise InvalidRequest(
                f"not a producer: {text[:SHOWN]!r}; Dlog-Producer is NUMBER:NAME, as its opening gave it"
            )
        found = whole("the number in Dlog-Producer", number, 1, NUMBER_MAX)
        try:
            return cls(found, check_name(unquote(name, errors="strict")))
        except UnicodeDecodeError:
            raise InvalidRequest("Dlog-Producer's name is UTF-8, percent-encoded") from None


def is_json_lines(kind: str) -> bool:
    """Whether a body of this content type is JSON lines; otherwise it is one record.

    Raises `TurnedAway` for a multipart form, whose parts would be stored with their envelope, and for JSON
    lines in another encoding than UTF-8.
    """
    name, *parameters = (one.strip().lower() for one in kind.split(";"))
    family, _, form = name.partition("/")
    if family == "multipart":
        raise TurnedAway(
            415, f"a body of {name[:SHOWN]!r} is no record", "send the file itself, not a form"
        )
    if family not in ("application", "text") or form.removeprefix("x-") not in LINES:
        return False
    for parameter in parameters:
        key, _, charset = parameter.partition("=")
        if key == "charset" and charset.strip('"') not in UTF_8:
            raise TurnedAway(415, f"JSON lines in {charset[:SHOWN]!r}", "send them in UTF-8")
    return True


def records_of(lines: bool, body: bytes, txid: str | None, records_max: int) -> Given:
    """Return the records of a request's body.

    Args:
        lines: Whether it is JSON lines (`is_json_lines`).
        body: All of it.
        txid: The header Dlog-Txid.
        records_max: More records raise `RecordTooLarge`.

    Raises: InvalidRequest, RecordTooLarge.
    """
    if not lines:
        given = None if txid is None else [whole("Dlog-Txid", txid, 0, TXID_MAX)]
        return Given([body], given)
    if txid is not None:
        raise InvalidRequest("Dlog-Txid is for one record: in JSON lines each has its own txid")
    found = [line for line in body.split(b"\n") if line.strip()]
    if not found:
        raise InvalidRequest("the body holds no record")
    if len(found) > records_max:
        raise RecordTooLarge(f"{len(found)} records; one request has {records_max} at most")
    payloads, txids = [], []
    for number, line in enumerate(found, 1):
        payload, own = _record(number, line)
        payloads.append(payload)
        txids.append(own)
    given = [own for own in txids if own is not None]
    if given and len(given) < len(txids):
        raise InvalidRequest("all records of a request have a txid, or none has")
    return Given(payloads, given or None)


def _record(number: int, line: bytes) -> tuple[bytes, int | None]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"line {number} is not JSON: {line[:SHOWN]!r}") from None
    if isinstance(found, str):
        found = {"payload": found}
    if not isinstance(found, dict) or not found.keys() <= {"payload", "payload_base64", "txid"}:
        raise InvalidRequest(
            f"line {number} is neither a text nor an object of payload or payload_base64, and txid"
        )
    text, coded, txid = (found.get(key) for key in ("payload", "payload_base64", "txid"))
    if (text is None) == (coded is None) or not isinstance(coded if text is None else text, str):
        raise InvalidRequest(
            f"line {number} has a text as payload or as payload_base64, one of them"
        )
    if txid is not None and (type(txid) is not int or not 0 <= txid <= TXID_MAX):
        raise InvalidRequest(f"line {number}: a txid is a whole number from 0 to {TXID_MAX}")
    try:
        payload = text.encode() if text is not None else b64decode(str(coded), validate=True)
    except (UnicodeEncodeError, Base64Error, ValueError):
        raise InvalidRequest(
            f"line {number}: its payload is no text of Unicode, or no base64"
        ) from None
    return payload, txid


def shown(record: LogRecord) -> dict[str, Any]:
    """A record for an answer."""
    payload = bytes(record.payload)
    found: dict[str, Any] = {
        "dlsn": str(record.dlsn),
        "sequence_id": record.sequence_id,
        "txid": record.txid,
        "time_ms": record.time_ms,
    }
    if record.more:
        found["more"] = True
    try:
        found["payload"] = payload.decode()
    except UnicodeDecodeError:
        found["payload_base64"] = b64encode(payload).decode()
    return found


def as_bytes(records: Iterable[LogRecord]) -> bytes:
    """Records as bytes; see the module."""
    parts: list[bytes] = []
    for one in records:
        at, payload = one.dlsn, bytes(one.payload)
        parts.append(_HEAD.pack(len(payload), at.slot, at.segment, at.entry, one.txid, one.time_ms))
        parts.append(payload)
    return b"".join(parts)


def event(record: LogRecord) -> bytes:
    """A record as a server-sent event; its id is its place. JSON in ASCII has no newlines of its own."""
    return b"id: %s\ndata: %s\n\n" % (str(record.dlsn).encode(), json.dumps(shown(record)).encode())


def named_event(name: str, value: Mapping[str, Any], at: DLSN | None = None) -> bytes:
    """Return another event than a record. ``at``: its id."""
    identity = b"" if at is None else b"id: %s\n" % str(at).encode()
    return b"%sevent: %s\ndata: %s\n\n" % (identity, name.encode(), json.dumps(value).encode())


def begin(query: Mapping[str, str], default: str, after: str | None = None) -> dict[str, Any]:
    """Where to read from, as `Log.open_reader` takes it: ``from``, ``txid`` or ``since_ms`` of a query.

    ``from`` may be a search too, as `again` returns it: ``txid:7``.
    ``after``: the place of the last record that was had, before all of these. Raises `InvalidRequest`.
    """
    if after is not None:
        return following(event_place(after))
    given = [name for name in ("from", "txid", "since_ms") if name in query]
    if len(given) > 1:
        raise InvalidRequest(f"give one of {' and '.join(given)}, not both")
    at = query.get("from", default)
    name, _, wanted = at.partition(":")
    if given in (["txid"], ["since_ms"]):
        name, wanted = given[0], query[given[0]]
    if name == "txid":
        return {"txid": whole("txid", wanted, 0, TXID_MAX)}
    if name == "since_ms":
        return {"since": whole("since_ms", wanted, 0, TIME_MAX)}
    return {"at": at} if at in ("earliest", "latest") else {"dlsn": DLSN.parse(at)}


def again(begins: Mapping[str, Any]) -> str:
    """Return the ``from`` of the next request, after one that began there and found no record.

    A search is repeated: after the last record there may be more that it does not mean.
    """
    [(name, value)] = begins.items()
    if name in ("txid", "since"):
        return f"{'txid' if name == 'txid' else 'since_ms'}:{value}"
    return str(value)


def event_place(text: str) -> DLSN:
    """Read the id of an event. Raises `InvalidRequest`."""
    text = text.strip()
    return DLSN.NONE if text == str(DLSN.NONE) else DLSN.parse(text)


def following(last: DLSN) -> dict[str, Any]:
    """After this record, as `begin`; after `DLSN.NONE` all is that the log has."""
    return {"at": "earliest"} if last == DLSN.NONE else {"dlsn": last.next()}


def whole(what: str, text: str, least: int, most: int) -> int:
    """A whole number in decimal. Raises `InvalidRequest`."""
    if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most:
        return int(text)
    raise InvalidRequest(f"{what} is a whole number from {least} to {most}, not {text[:SHOWN]!r}")


def seconds(what: str, text: str, most: float) -> float:
    """Seconds, with fractions. Raises `InvalidRequest`."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= most:
        raise InvalidRequest(f"{what} is seconds from 0 to {most:g}, not {text[:SHOWN]!r}")
    return found


def places(found: Sequence[DLSN]) -> list[str]:
    """Of records that were written."""
    return [str(one) for one in found]
