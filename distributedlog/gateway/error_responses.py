"""Errors as a client of HTTP meets them: a status, and JSON that says what, where and what to do (pure)."""

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
    (LogDeleted, 410, "the log is gone for good: begin with the one that has its name now, if any"),
    (LogNotFound, 404, "PUT /v1/logs/{log} makes it"),
    (LogEmpty, 404, "write a record first"),
    (LogTruncated, 410, "what you asked for was truncated: go on at `detail`, or from=earliest"),
    (LogExists, 409, "it is there already: use it, or choose another name"),
    (EndOfStream, 409, "the log is sealed: it takes no more records"),
    (
        OwnershipAcquireFailed,
        409,
        "another program writes this log: `detail` says who; try again later",
    ),
    (
        ProducerFenced,
        409,
        "the producer's name was opened again: stop, or open it anew and go on there",
    ),
    (
        ProducerForgotten,
        410,
        "open the producer by its name, and look which records are in the log",
    ),
    (PositionConflict, 412, "nothing was written: read on from `detail`, and decide again"),
    (TransactionIdOutOfOrder, 409, "txids must not go back: nothing of the request was written"),
    (RecordTooLarge, 413, "send it in smaller pieces"),
    (UnsupportedFormat, 501, "the gateway is older than what wrote this: upgrade it"),
    (NotAllowed, 403, "ask an admin for the right that is missing: dlog grant add"),
    (InvalidRequest, 400, "correct the request: the same one again meets the same answer"),
    (
        NamespaceFull,
        409,
        "nothing was done: delete or truncate logs of the namespace, or have an admin raise its quota",
    ),
    (OverQuota, 429, "try again after the seconds of Retry-After: nothing was done"),
    (TooBusy, 429, "try again after the seconds of Retry-After: nothing was done"),
    (AlreadyClosed, 503, "the gateway is ending: try again, there or elsewhere"),
    (CorruptData, 500, "the stored bytes are damaged: tell whoever runs the cluster"),
)
"""The first that fits counts: a class stands before those that it derives from."""
UNKNOWN_OUTCOME_ADVICE = (
    "it may have happened: of a producer, send the same number and sequence again, which stores "
    "nothing twice; else read the log before you send it again"
)
RETRY_ADVICE = "nothing was changed: try again after the seconds of Retry-After"
TOKEN_ADVICE = "send another token: dlog user token makes one"
DEFECT_ADVICE = "tell whoever runs the gateway: its log has the reason"


def status_of(
    error: DistributedLogError, *, is_write: bool, by_users: bool = False
) -> tuple[int, str]:
    """A status, and what to do about it. ``writing``: the request would have changed something.

    ``by_users``: it was done as a user; else it is the gateway that the cluster did not take.
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
    """The status, and the body's object. ``where``: what was asked, such as ``POST /v1/logs/a/records``."""
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
    """What an answer of this status has besides."""
    if status == 401:
        return {"www-authenticate": "Bearer"}
    return {"retry-after": str(RETRY_AFTER_S)} if status in (429, 503) else {}


class RejectedRequest(Exception):
    """A request that reaches no log: the body's arguments of `rejection_body`, and headers of the answer."""

    def __init__(
        self, status: int, what: str, do: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(what)
        self.status = status
        self.body = rejection_body(status, what, do)
        self.headers = headers or {}


def rejection_body(status: int, what: str, do: str) -> bytes:
    """A body like those of `error_response`, for a request that reached no log."""
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
