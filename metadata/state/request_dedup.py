"""The requests that were answered last, so that one sent again is not done again (pure; H20).

Part of the replicated state: every node forgets the same request at the same log index. Only what cannot be
found out again is kept: what a request came to, not what it saw. Each is kept as a plain tuple, which the
search for cyclic garbage leaves alone, and not as an object of its own: there are 65,536 of them.
"""

from collections import deque
from typing import NamedTuple

REMEMBERED_REQUESTS = 65_536
MESSAGE_CHARS_MAX = 200
SUCCEEDED = 0
CONDITION_FAILED = 1
"""A compare did not hold."""


class RememberedRequest(NamedTuple):
    """What a request came to, at log index ``log_index``."""

    log_index: int
    client: str
    request: int
    code: int
    """`SUCCEEDED`, `CONDITION_FAILED`, or an error's."""
    outcome: int | str
    """Done: the revision of a transaction, or the lease. An error: its message."""


RememberedRow = tuple[int, str, int, int, int | str]
"""The fields of a `RememberedRequest`, in order."""


class RequestDedup:
    """The last ``size`` answered requests by (client, request number)."""

    def __init__(self, size: int = REMEMBERED_REQUESTS) -> None:
        self.size = size
        self.forgotten_through = 0
        """The log index of the newest request that was forgotten; 0: none was."""
        self._order: deque[RememberedRow] = deque()
        self._by_request: dict[tuple[str, int], RememberedRow] = {}
        self._clients: dict[str, str] = {}  # one text object a client, however many its requests

    def __len__(self) -> int:
        return len(self._order)

    def find(self, client: str, request: int) -> RememberedRequest | None:
        """What the request came to, if it is remembered."""
        remembered = self._by_request.get((client, request))
        return RememberedRequest(*remembered) if remembered is not None else None

    def may_be_forgotten(self, base_index: int) -> bool:
        """Whether a request unknown here, first sent after log index ``base_index``, may have been done.

        If it was, then at an index above its base; all that is forgotten is at or below the floor.
        """
        return base_index < self.forgotten_through

    def add(self, log_index: int, client: str, request: int, code: int, outcome: int | str) -> None:
        """Remember the newest answer, as `RememberedRequest`; forget the oldest above the size."""
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
        """All that is remembered, oldest first."""
        return tuple(self._order)
