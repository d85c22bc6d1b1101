"""Reads that wait until a quorum confirms that their leader still led after they were asked (pure).

Source: thesis 6.4 (read-only queries by read index); hazard H26 (no lease reads). Rounds are the
heartbeats' numbers; a read is confirmed only by a round that began after it was asked.
"""

from collections import deque


class ReadRounds:
    """The reads of one leader's term; request ids are the driver's, unique among those that wait."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._asked: deque[tuple[int, int, list[int]]] = deque()  # (round, read index, requests)

    @property
    def wants_round(self) -> bool:
        """Whether reads wait and no round that would carry some is under way."""
        return bool(self._waiting) and not self._asked

    def ask(self, request_id: int) -> None:
        """A read was asked: it joins the next round."""
        self._waiting.append(request_id)

    def on_round_begun(self, number: int, commit: int) -> None:
        """A round begins: it carries all that wait; they will see at least ``commit``."""
        if self._waiting:
            self._asked.append((number, commit, self._waiting))
            self._waiting = []

    def on_round_confirmed(self, number: int) -> list[tuple[int, int]]:
        """A quorum answered ``number`` or later rounds: (request id, read index) of what that confirms."""
        confirmed: list[tuple[int, int]] = []
        while self._asked and self._asked[0][0] <= number:
            _, index, requests = self._asked.popleft()
            confirmed.extend((request, index) for request in requests)
        return confirmed

    def drop(self) -> list[int]:
        """Leadership ended: the requests that will not be confirmed."""
        lost = [request for _, _, requests in self._asked for request in requests] + self._waiting
        self._asked.clear()
        self._waiting = []
        return lost
