"""Results of the most recent requests, so that a repeated request is not executed again (pure; H20).

They are part of the replicated state: every node forgets the same request at the same log index. Only the
outcome of a request is kept, because the keys that it read can be read again. Each result is a plain tuple,
which the garbage collector skips, because there are 65,536 of them.
"""

from collections import deque
from typing import NamedTuple

REMEMBERED_REQUESTS = 65_536
MESSAGE_CHARS_MAX = 200
SUCCEEDED = 0
CONDITION_FAILED = 1
"""A compare failed."""


class RememberedRequest(NamedTuple):
    """The outcome of a request that was applied at log index ``log_index``."""

    log_index: int
    client: str
    request: int
    code: int
    """`SUCCEEDED`, `CONDITION_FAILED`, or the code of an error."""
    outcome: int | str
    """On success, the revision of a transaction or the lease. On an error, its message."""


RememberedRow = tuple[int, str, int, int, int | str]
"""The fields of a `RememberedRequest`, in order."""


class RequestDedup:
    """The last ``size`` results, by client and request number."""

    def __init__(self, size: int = REMEMBERED_REQUESTS) -> None:
        self.size = size
        self.forgotten_through = 0
        """The log index of the newest forgotten request, or 0."""
        self._order: deque[RememberedRow] = deque()
        self._by_request: dict[tuple[str, int], RememberedRow] = {}
        self._clients: dict[str, str] = {}  # one str object per client, for all its requests

    def __len__(self) -> int:
        return len(self._order)

    def find(self, client: str, request: int) -> RememberedRequest | None:
        """Return the outcome of a request, or None if it is not remembered."""
        remembered = self._by_request.get((client, request))
        return RememberedRequest(*remembered) if remembered is not None else None

    def may_be_forgotten(self, base_index: int) -> bool:
        """Whether an unknown request, first sent after log index ``base_index``, may have been executed.

        If it was executed, then at an index above its base. All forgotten requests are at or below
        `forgotten_through`.
        """
        return base_index < self.forgotten_through

    def add(self, log_index: int, client: str, request: int, code: int, outcome: int | str) -> None:
        """Add the newest result, with the fields of `RememberedRequest`. Forget the oldest above the size."""
        client = self._clients.setdefault(client, client)
        request_id = (client, request)
        assert request_id not in self._by_request, f"{request_id} is answered twice"
        remembered = self._by_request[request_id] = (log_index, client, request, code, outcome)
        order = self._order
        order.append(remembered)
        while len(order) > self.size:
            self.forgotten_through, forgotten, number, _, _ = order.popleft()
            del self._by_request[forgotten, number]
        if len(self._clients) > 2 * self.size:
            self._clients = {client_name: client_name for _, client_name, _, _, _ in self._order}

    def rows(self) -> tuple[RememberedRow, ...]:
        """Return all remembered results, oldest first."""
        return tuple(self._order)
