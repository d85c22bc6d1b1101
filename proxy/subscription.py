"""One reader at a proxy: where it stands, and what it may be sent (pure)."""

from ..runtime.errors import ProtocolError
from .read_wire import CREDIT_MAX
from .ring import Place, Run


class Subscription:
    """A reader's cursor and credit. Credit counts the bytes of ENTRIES in all, and only grows."""

    __slots__ = ("at", "granted", "next_id", "sent")

    def __init__(self, at: Place, next_id: int, credit: int) -> None:
        self.at = at
        """The next entry that it wants."""
        self.next_id = next_id
        """The sequence id of the record that comes next; -1: not known before one was sent."""
        self.granted = credit
        self.sent = 0

    @property
    def credit(self) -> int:
        """Bytes that may be sent now. Not above 0: nothing may; else one entry always may, however large."""
        return self.granted - self.sent

    def on_credit(self, total: int) -> bool:
        """It may be sent ``total`` bytes in all; could it be sent nothing before? Raises `ProtocolError`."""
        if total < self.granted or total - self.sent > CREDIT_MAX:
            raise ProtocolError(
                f"CREDIT of {total} bytes in all, after {self.granted}, with {self.sent} sent"
            )
        waited = self.credit <= 0
        self.granted = total
        return waited and self.credit > 0

    def on_sent(self, run: Run) -> None:
        """These entries were sent. They come at or after its place: nothing is sent twice (H189)."""
        assert run.last >= self.at, "an entry is sent once"
        self.at = run.after
        self.next_id = run.next_id
        self.sent += len(run.body)

    def on_number(self, next_id: int) -> None:
        """The record that comes next has this sequence id: by that it is told whether it loses anything."""
        if self.next_id < 0:
            self.next_id = next_id

    def skip_to(self, at: Place) -> None:
        """Between its place and this one there is nothing to be sent."""
        assert at >= self.at
        self.at = at
