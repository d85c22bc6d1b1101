"""A log as its writer holds it: the state, its version, and the one rule of changing it (H12).

Ownership is the epoch and not the key's version. A conflict is answered by reading again: same epoch, and
the change is applied to the new value; another epoch, and this writer has been fenced.
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
"""What else a change writes, given the state it is applied to. What it must know of other keys it reads
itself, at each try: what was read before a conflict belongs to a state that is no more."""


def is_retryable(error: DistributedLogError) -> bool:
    """Is the same step worth another try? An unknown outcome is: `WriterLogState.change` looks before it
    acts."""
    return error.retryable or isinstance(error, OutcomeUnknown)


async def no_extra_ops(_: LogState) -> Transaction:
    """The share of a change that writes the state alone."""
    return Transaction((), ())


class WriterLogState:
    """The state of a log under this writer's epoch."""

    def __init__(self, metadata: Metadata, state: LogState, version: int) -> None:
        self.metadata = metadata
        self.state = state
        self.version = version
        self._is_current = True
        self._lock = trio.Lock()  # version and state move together, also across an await

    @property
    def log_id(self) -> int:
        """The log's id."""
        return self.state.log_id

    async def refresh(self) -> None:
        """Read the state again. Raises `WriterFenced` or `LogNotFound` when the log is not ours."""
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
        """Apply one change in one transaction, once.

        ``apply`` and ``share`` are asked at each try, with the state as it was read last. ``done`` tells
        from a state whether the change is in it already: after an unknown outcome the state is read and not
        the change sent blindly again. Raises `WriterFenced`, `LogNotFound`; `VersionConflict` when not the
        state but a key of the share differs from what it expects; whatever the metadata client raises.
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
            self._is_current = False  # stays so when this call fails or is cancelled
            reply = await self.metadata.transact(update + further_ops)
            self._is_current = True
            if reply.succeeded:
                self.state = state
                self.version += 1
                return
            stored = reply.current[0]
            if stored is not None and stored.version == self.version:
                raise VersionConflict(
                    f'log "{state.name}": a key beside the log\'s state was changed by somebody else'
                )
            self._update(stored)

    def _update(self, stored: KeyValue | None) -> None:
        if stored is None:
            raise LogNotFound(f'log "{self.state.name}" has been deleted under its writer')
        state = LogState.decode(stored.value)
        if state.epoch != self.state.epoch:
            by_text = f" by {state.owner}" if state.owner else ""
            raise WriterFenced(
                f'log "{state.name}" was taken over{by_text}: epoch {state.epoch}, this writer has '
                f"{self.state.epoch}"
            )
        self.state, self.version = state, stored.version
