"""Errors as HTTP clients receive them: a status, and JSON with the problem and the action to take (pure)."""

import json
from collections.abc import Mapping
from typing import Any

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
    NotAuthenticated,
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
STATUS_OF_ERROR: tuple[tuple[type[DistributedLogError], int, str], ...] = (
    (LogDeleted, 410, "the log was deleted: start with the one that has its name now, if any"),
    (LogNotFound, 404, "PUT /v1/logs/{log} creates it"),
    (LogEmpty, 404, "write a record first"),
    (LogTruncated, 410, "the position was truncated: continue at `detail`, or from=earliest"),
    (LogExists, 409, "the log exists already: use it, or choose another name"),
    (EndOfStream, 409, "the log is sealed: it accepts no more records"),
    (
        OwnershipAcquireFailed,
        409,
        "another program writes this log, see `detail`: try again later",
    ),
    (
        ProducerFenced,
        409,
        "another program opened the producer: stop, or open it again and continue with its number",
    ),
    (
        ProducerForgotten,
        410,
        "open the producer by its name, and check which records are in the log",
    ),
    (PositionConflict, 412, "nothing was written: read on from `detail`, and decide again"),
    (TransactionIdOutOfOrder, 409, "txids must not decrease: nothing of the request was written"),
    (RecordTooLarge, 413, "send it in smaller pieces"),
    (UnsupportedFormat, 501, "a newer version wrote the data: upgrade the gateway"),
    (NotAllowed, 403, "ask an admin for the missing right: dlog grant add"),
    (InvalidRequest, 400, "correct the request: repeating it gives the same answer"),
    (
        NamespaceFull,
        409,
        "nothing was done: delete or truncate logs of the namespace, or have an admin raise its quota",
    ),
    (OverQuota, 429, "try again after the seconds of Retry-After: nothing was done"),
    (TooBusy, 429, "try again after the seconds of Retry-After: nothing was done"),
    (AlreadyClosed, 503, "the gateway is stopping: try again, there or at another gateway"),
    (CorruptData, 500, "the stored bytes are damaged: inform the operator of the cluster"),
)
"""The first matching row applies, so a class precedes its base classes."""
UNKNOWN_OUTCOME_ADVICE = (
    "it may have happened: with a producer, send the same number and sequence again, which stores "
    "nothing twice; otherwise, read the log before you send it again"
)
RETRY_ADVICE = "nothing was changed: try again after the seconds of Retry-After"
TOKEN_ADVICE = "send another token: dlog user token makes one"
DEFECT_ADVICE = "inform the operator of the gateway: its log has the reason"


def status_of(
    error: DistributedLogError, *, is_write: bool, by_users: bool = False
) -> tuple[int, str]:
    """Return a status and the action to take.

    Args:
        is_write: Whether the request could have changed something.
        by_users: Whether the request ran with a user's rights. Otherwise, the cluster rejected the gateway
            itself.
    """
    if by_users and isinstance(error, NotAuthenticated):
        return 401, TOKEN_ADVICE
    for kind, status, advice in STATUS_OF_ERROR:
        if isinstance(error, kind):
            return status, advice
    if is_write and not error.definite:
        return 504, UNKNOWN_OUTCOME_ADVICE
    if error.retryable or not error.definite:
        return 503, RETRY_ADVICE
    return 500, DEFECT_ADVICE


def error_response(
    error: DistributedLogError, method_and_path: str, *, is_write: bool, by_users: bool = False
) -> tuple[int, dict[str, Any]]:
    """Return the status, and the object of the body.

    ``method_and_path`` is that of the request, such as ``POST /v1/logs/a/records``.
    """
    status, advice = status_of(error, is_write=is_write, by_users=by_users)
    return status, {
        "error": {
            "code": error.code,
            "name": type(error).__name__,
            "what": str(error)[:TEXT_CHARS_MAX],
            "where": method_and_path[:TEXT_CHARS_MAX],
            "detail": error.detail[:TEXT_CHARS_MAX],
            "retryable": error.retryable,
            "definite": error.definite,
            "do": advice,
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
