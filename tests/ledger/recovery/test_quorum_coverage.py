"""What the answers of a recovery's reads prove (pure)."""

from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from distributedlog.ledger.model.striping import Striping
from distributedlog.ledger.recovery.ledger_recovery import LedgerRecovery, RecoveryPhase
from distributedlog.ledger.recovery.quorum_coverage import QuorumCoverage
from distributedlog.ledger.recovery.recovery_actions import ReadReplica
from distributedlog.runtime.interfaces.errors import ConnectionLost


def asked() -> tuple[QuorumCoverage, list[ReadReplica]]:
    """Three bookies that were asked for all from entry 0 on; two acks had confirmed an entry."""
    evidence = QuorumCoverage(Striping(3, 3, 2), ("a", "b", "c"))
    evidence.begin(0, 0)
    return evidence, evidence.next_reads(None, 0)


def has_none(evidence: QuorumCoverage, read: ReadReplica, *, known: bool = True) -> None:
    assert evidence.on_read(read.request_id, read.last, known, []) == []


def test_as_many_as_every_ack_quorum_meets_prove_an_absence() -> None:
    """Inv. 16."""
    evidence, (first, second, _) = asked()

    has_none(evidence, first)
    assert evidence.absence(0) is None
    has_none(evidence, second)

    assert evidence.absence(0) is True


def test_bookie_that_answered_from_limbo_once_never_denies_an_entry() -> None:
    """Inv. 22: a later answer that does not mention the limbo state does not end it for this recovery."""
    evidence, (first, second, third) = asked()

    has_none(evidence, first, known=False)
    (again,) = [read for read in evidence.next_reads(None, 0) if read.bookie == "a"]
    has_none(evidence, again)
    has_none(evidence, second)

    assert evidence.absence(0) is None
    assert evidence.on_read_failed(third.request_id, ConnectionLost("silent"))
    assert evidence.absence(0) is False


def test_a_bookie_in_limbo_denies_nothing() -> None:
    """Inv. 22: it may have lost what it does not have, and what it and a silent one had acknowledged."""
    evidence, (first, second, third) = asked()

    has_none(evidence, first)
    has_none(evidence, second, known=False)
    assert evidence.absence(0) is None
    assert not evidence.on_read_failed(99, ConnectionLost("nobody asked"))
    assert evidence.on_read_failed(third.request_id, ConnectionLost("silent"))

    assert evidence.absence(0) is False


def test_fence_that_is_answered_from_limbo_does_not_count() -> None:
    """The bookie may have lost a fence, and entries, of before: a recovery needs two others of three."""
    metadata = LedgerMetadata(
        ledger_id=7,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        ensembles=(Fragment(0, ("a", "b", "c"), 0),),
        key=bytes(16),
        creation_token=1,
        state=LedgerState.IN_RECOVERY,
    )
    recovery = LedgerRecovery(metadata, lambda *_: {})
    recovery.begin()

    recovery.on_fenced(0, 5, False)
    recovery.on_fenced(1, 5, True)
    phases = [recovery.phase]
    recovery.on_fenced(2, 5, True)
    phases.append(recovery.phase)
    assert phases == [RecoveryPhase.FENCING, RecoveryPhase.READING]
