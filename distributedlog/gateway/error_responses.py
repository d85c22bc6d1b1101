"""Errors as HTTP clients receive them: a status, and JSON with the problem and the action to take (pure)."""

import json
from collections.abc import Mapping
from typing import Any

from ..runtime.declarations.http_statuses import http_status
from ..runtime.interfaces.errors import (
    AlreadyClosed,
    CorruptData,
    DistributedLogError,
    EndOfStream,
    InvalidRequest,
    LogDeleted,
    LogEmpty,
    LogExists,
    LogNotFound,
    LogTruncated,
    NamespaceFull,
    NotAllowed,
    OverQuota,
    OwnershipAcquireFailed,
    PositionConflict,
    ProducerFenced,
    ProducerForgotten,
    RecordTooLarge,
    TooBusy,
    TransactionIdOutOfOrder,
    UnsupportedFormat,
)

TEXT_CHARS_MAX = 1000
RETRY_AFTER_S = 1
ADVICE_OF_ERROR: tuple[tuple[type[DistributedLogError], str], ...] = (
    (LogDeleted, "the log was deleted: start with the one that has its name now, if any"),
    (LogNotFound, "PUT /v1/logs/{log} creates it"),
    (LogEmpty, "write a record first"),
    (LogTruncated, "the position was truncated: continue at `detail`, or from=earliest"),
    (LogExists, "the log exists already: use it, or choose another name"),
    (EndOfStream, "the log is sealed: it accepts no more records"),
    (OwnershipAcquireFailed, "another program writes this log, see `detail`: try again later"),
    (
        ProducerFenced,
        "another program opened the producer: stop, or open it again and continue with its number",
    ),
    (ProducerForgotten, "open the producer by its name, and check which records are in the log"),
    (PositionConflict, "nothing was written: read on from `detail`, and decide again"),
    (TransactionIdOutOfOrder, "txids must not decrease: nothing of the request was written"),
    (RecordTooLarge, "send it in smaller pieces"),
    (UnsupportedFormat, "a newer version wrote the data: upgrade the gateway"),
    (NotAllowed, "ask an admin for the missing right: dlog grant add"),
    (InvalidRequest, "correct the request: repeating it gives the same answer"),
    (
        NamespaceFull,
        "nothing was done: delete or truncate logs of the namespace, or have an admin raise its quota",
    ),
    (OverQuota, "try again after the seconds of Retry-After: nothing was done"),
    (TooBusy, "try again after the seconds of Retry-After: nothing was done"),
    (AlreadyClosed, "the gateway is stopping: try again, there or at another gateway"),
    (CorruptData, "the stored bytes are damaged: inform the operator of the cluster"),
)
"""The action to take, for the errors of `HTTP_STATUSES` in the same order. The first matching row applies."""
UNKNOWN_OUTCOME_ADVICE = (
    "it may have happened: with a producer, send the same number and sequence again, which stores "
    "nothing twice; otherwise, read the log before you send it again"
)
RETRY_ADVICE = "nothing was changed: try again after the seconds of Retry-After"
TOKEN_ADVICE = "send another token: dlog user token makes one"
DEFECT_ADVICE = "inform the operator of the gateway: its log has the reason"
ADVICE_OF_STATUS = {401: TOKEN_ADVICE, 503: RETRY_ADVICE, 504: UNKNOWN_OUTCOME_ADVICE}
"""The action to take for other errors. `DEFECT_ADVICE` if the status has no row."""


def advice_of(error: DistributedLogError, status: int) -> str:
    """Return the action to take."""
    for kind, advice in ADVICE_OF_ERROR:
        if isinstance(error, kind):
            return advice
    return ADVICE_OF_STATUS.get(status, DEFECT_ADVICE)


def error_response(
    error: DistributedLogError, method_and_path: str, *, is_write: bool, by_users: bool = False
) -> tuple[int, dict[str, Any]]:
    """Return the status, and the object of the body.

    Args:
        error: The error.
        method_and_path: Those of the request, such as ``POST /v1/logs/a/records``.
        is_write: As for `http_status`.
        by_users: As for `http_status`.
    """
    status = http_status(error, is_write=is_write, by_users=by_users)
    return status, {
        "error": {
            "code": error.code,
            "name": type(error).__name__,
            "what": str(error)[:TEXT_CHARS_MAX],
            "where": method_and_path[:TEXT_CHARS_MAX],
            "detail": error.detail[:TEXT_CHARS_MAX],
            "retryable": error.retryable,
            "definite": error.definite,
            "do": advice_of(error, status),
        }
    }


def headers_of(status: int) -> dict[str, str]:
    """Return the additional headers of an answer with this status."""
    if status == 401:
        return {"www-authenticate": "Bearer"}
    return {"retry-after": str(RETRY_AFTER_S)} if status in (429, 503) else {}


class RejectedRequest(Exception):
    """A request that is rejected before it reaches a log, with the arguments of `rejection_body`."""

    def __init__(
        self, status: int, what: str, do: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(what)
        self.status = status
        self.body = rejection_body(status, what, do)
        self.headers = headers or {}


def rejection_body(status: int, what: str, do: str) -> bytes:
    """Return a body like those of `error_response`, for a request that did not reach a log."""
    error = {
        "code": status,
        "name": "TurnedAway",
        "what": what,
        "where": "",
        "detail": "",
        "retryable": status in (429, 503),
        "definite": True,
        "do": do,
    }
    return json.dumps({"error": error}).encode() + b"\n"
