"""Rounds end: a failure that a round has dealt with does not ask for another one (found by sim seed 2)."""

from distributedlog.ledger.model.ledger_metadata import LedgerMetadata
from distributedlog.ledger.write.ensemble_change import EnsembleChange
from tests.ledger.model.test_ledger_metadata import ledger


def nobody(slots: list[int], kept: dict[int, str], taken: list[str]) -> dict[int, str]:
    return {}


def change() -> EnsembleChange:
    value: LedgerMetadata = ledger()
    return EnsembleChange(value, 1)


def test_a_round_without_a_spare_is_not_followed_by_the_same_round() -> None:
    core = change()
    core.on_failure(0, core.metadata.last_fragment.bookies[0])

    core.start_round(5, [], nobody)
    core.on_committed(1)

    assert core.failed_slots == {}


def test_a_failure_during_the_round_waits_for_the_next() -> None:
    core = change()
    bookies = core.metadata.last_fragment.bookies
    core.on_failure(0, bookies[0])
    core.start_round(5, [], nobody)
    core.on_failure(1, bookies[1])
    core.on_failure(0, bookies[0])

    core.on_committed(1)

    assert core.failed_slots == {0: bookies[0], 1: bookies[1]}
