"""The HTTP status of errors, for the gateway and for the console."""

import pytest

from distributedlog.gateway.error_responses import ADVICE_OF_ERROR
from distributedlog.runtime.declarations.http_statuses import HTTP_STATUSES, http_status
from distributedlog.runtime.interfaces.errors import (
    ConfirmationRequired,
    DistributedLogError,
    LogRecreated,
    NotAuthenticated,
    OutcomeUnknown,
    QuorumUnreachable,
    RecordTooLarge,
    TransactionIdOutOfOrder,
    UnknownBookie,
    WrongLedgerKey,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LogRecreated, 410), (RecordTooLarge, 413), (TransactionIdOutOfOrder, 409), (UnknownBookie, 400),
        (QuorumUnreachable, 503), (OutcomeUnknown, 504), (NotAuthenticated, 401), (WrongLedgerKey, 500),
    ],
)  # fmt: skip
def test_status_of_a_change_with_the_rights_of_its_user(
    error: type[DistributedLogError], status: int
) -> None:
    assert http_status(error(""), is_write=True, by_users=True) == status


def test_unknown_outcome_of_a_read_is_temporary() -> None:
    assert http_status(OutcomeUnknown(""), is_write=False, by_users=True) == 503


def test_rejected_credentials_of_the_server_are_no_missing_token_of_the_client() -> None:
    assert http_status(NotAuthenticated(""), is_write=True, by_users=False) == 500


def test_no_row_is_hidden_by_a_row_of_its_base_class() -> None:
    kinds = [kind for kind, _ in HTTP_STATUSES]
    for index, kind in enumerate(kinds):
        assert not any(issubclass(kind, before) for before in kinds[:index]), kind


def test_the_gateway_has_an_advice_for_each_row() -> None:
    """The console alone asks for a confirmation."""
    kinds = [kind for kind, _ in HTTP_STATUSES if kind is not ConfirmationRequired]

    assert [kind for kind, _ in ADVICE_OF_ERROR] == kinds
