"""The state of a log in its writer: the value, the version of its key, and how it is changed (H12).

The epoch decides ownership, not the version of the key. After a conflict the state is read again. If the
epoch is unchanged, the change is applied to the new value. Otherwise this writer is fenced. Clients that do
not own the log make idempotent changes with `update_shared_state`.
"""

from collections.abc import Awaitable, Callable

import trio

from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, KeyValue, Put, Transaction
from ...runtime.interfaces.errors import (
    DistributedLogError,
    LogNotFound,
    OutcomeUnknown,
    VersionConflict,
    WriterFenced,
)
from .log_keys import state_key
from .log_state import LogState

ExtraOps = Callable[[LogState], Awaitable[Transaction]]
"""Returns further operations for a change, given the state to which it is applied.

It reads any other keys itself at each attempt, because values that were read before a conflict are outdated.
"""


def is_retryable(error: DistributedLogError) -> bool:
    """Return whether the same step may be tried again.

    This includes an unknown outcome, because `WriterLogState.change` first checks whether the change was
    stored.
    """
    return error.retryable or isinstance(error, OutcomeUnknown)


async def no_extra_ops(_: LogState) -> Transaction:
    """Return no further operations, for a change that writes the state alone."""
    return Transaction((), ())


class WriterLogState:
    """The state of a log under this writer's epoch."""

    def __init__(self, metadata: Metadata, state: LogState, version: int) -> None:
        self.metadata = metadata
        self.state = state
        self.version = version
        self._is_current = True
        self._lock = trio.Lock()  # version and state change together, also across an await

    @property
    def log_id(self) -> int:
        """The log's ID."""
        return self.state.log_id

    async def refresh(self) -> None:
        """Read the state again.

        Raises:
            WriterFenced: Another writer owns the log.
            LogNotFound: The log was deleted.
        """
        async with self._lock:
            await self._refresh()

    async def _refresh(self) -> None:
        stored = await self.metadata.get(state_key(self.log_id))
        self._is_current = True
        self._update(stored)

    async def change(
        self,
        apply: Callable[[LogState], LogState],
        *,
        is_done: Callable[[LogState], bool],
        extra_ops: ExtraOps = no_extra_ops,
    ) -> None:
        """Apply one change in one transaction, exactly once.

        Args:
            apply: Returns the changed state. Called at each attempt with the state that was read last.
            is_done: Whether a state already contains the change. After an unknown outcome, the state is read
                and checked, and the change is not sent again blindly.
            extra_ops: Returns further operations of the transaction, given the state. Called at each attempt.
        Raises:
            WriterFenced: Another writer owns the log.
            LogNotFound: The log was deleted.
            VersionConflict: The state is unchanged, but another key of the transaction differs from its
                expected value.
            DistributedLogError: The metadata client failed.
        """
        async with self._lock:
            await self._change(apply, is_done, extra_ops)

    async def _change(
        self,
        apply: Callable[[LogState], LogState],
        is_done: Callable[[LogState], bool],
        extra_ops: ExtraOps,
    ) -> None:
        while True:
            if not self._is_current:
                await self._refresh()
            if is_done(self.state):
                return
            state = apply(self.state)
            update = Transaction(
                (Compare.version(state_key(self.log_id), self.version),),
                (Put(state_key(self.log_id), state.encode()),),
            )
            further_ops = await extra_ops(self.state)
            self._is_current = False  # remains False if this call fails or is cancelled
            reply = await self.metadata.transact(update + further_ops)
            self._is_current = True
            if reply.succeeded:
                self.state = state
                self.version += 1
                return
            stored = reply.current[0]
            if stored is not None and stored.version == self.version:
                raise VersionConflict(
                    f'log "{state.name}": another client changed a key that this change depends on'
                )
            self._update(stored)

    def _update(self, stored: KeyValue | None) -> None:
        if stored is None:
            raise LogNotFound(f'log "{self.state.name}" was deleted while it had a writer')
        state = LogState.decode(stored.value)
        if state.epoch != self.state.epoch:
            by_text = f" by {state.owner}" if state.owner else ""
            raise WriterFenced(
                f'log "{state.name}" was taken over{by_text}: epoch {state.epoch}, this writer has '
                f"{self.state.epoch}"
            )
        self.state, self.version = state, stored.version


async def update_shared_state(
    metadata: Metadata,
    log_id: int,
    name: str,
    apply: Callable[[LogState], LogState],
    *,
    extra_ops: ExtraOps = no_extra_ops,
) -> LogState:
    """Apply an idempotent change to a log's state and return the changed state.

    After a conflict or an unknown outcome the state is read again and the change is applied again. If the
    state stays equal, nothing is written.

    Args:
        apply: Return the changed state. It must be harmless to apply it twice.
        extra_ops: Return further operations for the same transaction, given the changed state.
    Raises:
        LogNotFound: The log has been deleted or is being deleted.
    """
    while True:
        stored = await metadata.get(state_key(log_id))
        if stored is None:
            raise LogNotFound(f'log "{name}" has been deleted')
        state = LogState.decode(stored.value)
        if state.deleting:
            raise LogNotFound(f'log "{name}" is being deleted')
        changed = apply(state)
        if changed == state:
            return state
        update = Transaction(
            (Compare.version(stored.key, stored.version),), (Put(stored.key, changed.encode()),)
        )
        try:
            if (await metadata.transact(update + await extra_ops(changed))).succeeded:
                return changed
        except OutcomeUnknown:
            continue
