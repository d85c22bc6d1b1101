"""The HTTP status of each error: the one table of the gateway and of the console (pure)."""

from ..interfaces.errors import (
    AlreadyClosed,
    ConfirmationRequired,
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

HTTP_STATUSES: tuple[tuple[type[DistributedLogError], int], ...] = (
    (LogDeleted, 410),
    (LogNotFound, 404),
    (LogEmpty, 404),
    (LogTruncated, 410),
    (LogExists, 409),
    (EndOfStream, 409),
    (OwnershipAcquireFailed, 409),
    (ProducerFenced, 409),
    (ProducerForgotten, 410),
    (PositionConflict, 412),
    (TransactionIdOutOfOrder, 409),
    (RecordTooLarge, 413),
    (UnsupportedFormat, 501),
    (NotAllowed, 403),
    (ConfirmationRequired, 409),
    (InvalidRequest, 400),
    (NamespaceFull, 409),
    (OverQuota, 429),
    (TooBusy, 429),
    (AlreadyClosed, 503),
    (CorruptData, 500),
)
"""The first matching row applies, so a class precedes its base classes."""


def http_status(error: DistributedLogError, *, is_write: bool, by_users: bool) -> int:
    """Return the HTTP status of an error.

    Args:
        error: The error.
        is_write: Whether the request could have changed something.
        by_users: Whether the request ran with a user's rights. Otherwise, the cluster rejected the server
            itself, and another token of the client does not help.
    """
    if by_users and isinstance(error, NotAuthenticated):
        return 401
    for kind, status in HTTP_STATUSES:
        if isinstance(error, kind):
            return status
    if is_write and not error.definite:
        return 504
    return 503 if error.retryable or not error.definite else 500
