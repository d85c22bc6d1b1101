"""Check and assign the transaction IDs of one writer's records, and record decreasing ones.

All calls that accept records (`LogWriter`, `SequencedWriter`) share one object, because they share the
greatest transaction ID so far. With a proxy, which assigns omitted transaction IDs, either all records of an
entry have a transaction ID, or none has.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..format.record import TXID_MAX
from ..format.record_headers import KeyedContent
from ..model.log_state import BYTES, GIVEN, LogState
from ..model.txid_policy import NO_FAST_PATH, TxidAssigner
from .entry_batch import EntryBatch
from .record_validation import validate_record, validate_record_set
from .send_queue import SendQueue
from .writer_ownership import WriterOwnership


class TxidAdmission:
    """Checks the transaction IDs of one writer's records. `LogWriter.submit` uses ``assigner`` directly."""

    __slots__ = (
        "_checks_txids",
        "_is_proxied",
        "_send_queue",
        "_writer_ownership",
        "assigner",
        "checks_order",
        "keyed_permitted",
        "unordered_recorded",
    )  # fmt: skip

    def __init__(
        self,
        state: LogState,
        send_queue: SendQueue,
        writer_ownership: WriterOwnership,
        *,
        clock_ms: Callable[[], int],
        checks_order: bool,
    ) -> None:
        """Start after the last transaction ID of the log.

        Args:
            checks_order: The option ``max_txid_check``.
        """
        self.assigner = TxidAssigner(state.policy, state.last_txid, clock_ms, send_queue.name)
        self._checks_txids = checks_order
        self.checks_order = checks_order and state.policy == GIVEN
        """Whether a given transaction ID below the last one is rejected."""
        self.unordered_recorded = state.had_unordered_txids
        """Whether the log's state records that its transaction IDs decrease."""
        self.keyed_permitted = state.has_record_headers
        """Whether the log's state records that its entries may have keys and headers."""
        self._send_queue = send_queue
        self._writer_ownership = writer_ownership
        self._is_proxied = send_queue.sink.conditional_append is not None
        self._set_fast_path()

    def _set_fast_path(self) -> None:
        """Set which records `submit` accepts without `validate_record`.

        The first given transaction ID of an empty log is always validated.
        """
        given = self._send_queue.txids_given
        self.assigner.accepts_bare_payload = not (self._is_proxied and given)
        allows_given = self.assigner.policy != BYTES and self.assigner.last >= 0
        self.assigner.max_fast_txid = (
            TXID_MAX if allows_given and (given or not self._is_proxied) else NO_FAST_PATH
        )

    def separate_given(self, *, given: bool) -> None:
        """Close the open batch if it has records with transaction IDs and the next ones have none, or vice
        versa.

        Only for writers through proxies, where no entry has both kinds.
        """
        send_queue = self._send_queue
        if self._is_proxied and send_queue.txids_given != given:
            if send_queue.batch.txids:
                send_queue.close_batch()
                send_queue.raise_if_over()  # sending the batch may have ended the writer
            send_queue.txids_given = given
            self._set_fast_path()

    def record_given(
        self, batch: EntryBatch, first: int, last: int, greatest: int, *, unordered: bool = False
    ) -> None:
        """Update the greatest transaction ID for given ones, and mark the batch if one decreases."""
        assigner = self.assigner
        if unordered or first < assigner.last:
            batch.is_unordered = True
            assigner.last = max(assigner.last, greatest)
        else:
            assigner.last = last
        if self.assigner.max_fast_txid < 0:
            self._set_fast_path()

    async def validate(self, txid: object, payload: object) -> tuple[int | None, Any]:
        """Validate a record that is not on the fast path.

        Return None for a transaction ID that the log assigns, and the payload, or the `KeyedContent` of a
        record with a key or headers.
        """
        assigner = self.assigner
        min_txid = assigner.last if self.checks_order else 0
        record_txid, record_payload = validate_record(
            txid, payload, min_txid, self._send_queue.name, assigner.policy
        )
        if record_txid is not None and record_txid < assigner.last:
            await self.record_unordered()
        if type(record_payload) is KeyedContent:
            await self.permit_keyed()
        return record_txid, record_payload

    async def validate_set(
        self, txids: Sequence[object], payloads: Sequence[object]
    ) -> tuple[int | None, list[Any]]:
        """Validate a record set, as `validate`."""
        assigner = self.assigner
        min_txid = assigner.last if self.checks_order else 0
        record_txid, set_payloads = validate_record_set(
            txids, payloads, min_txid, self._send_queue.name, assigner.policy
        )
        if record_txid is not None and record_txid < assigner.last:
            await self.record_unordered()
        if KeyedContent in map(type, set_payloads):
            await self.permit_keyed()
        return record_txid, set_payloads

    async def record_unordered(self) -> None:
        """Record in the log's state that transaction IDs decrease, before the first lower one is sent.

        Older programs, which would close its segments with the last transaction ID, cannot change the log
        afterwards.

        Raises:
            UpgradeNotFinalized: The cluster is not finalized for the version of this format. The writer stays
                usable.
            DistributedLogError: As for `WriterOwnership.change_state`.
        """
        if not self.unordered_recorded:
            await self._writer_ownership.record_unordered(checks_txids=self._checks_txids)
            self.unordered_recorded = True

    async def permit_keyed(self) -> None:
        """Check that the log may have keys and headers, and record it in the log's state before the first one
        is sent.

        Older programs, which do not decode them, cannot change the log afterwards.

        Raises:
            UpgradeNotFinalized: The cluster is not finalized for the version of this format. The writer stays
                usable.
            InvalidRequest: The option ``record_headers`` is off. The writer stays usable.
            UnsupportedFormat: The log is owned by a proxy of an older version. The writer stays usable.
            DistributedLogError: As for `WriterOwnership.change_state`.
        """
        if self.keyed_permitted:
            return
        if self._is_proxied:
            self._send_queue.is_direct_write = False  # other tasks can submit during the wait
            await self._send_queue.sink.permit_record_headers()
            self._send_queue.raise_if_over()
        else:
            await self._writer_ownership.permit_record_headers()
        self.keyed_permitted = True
