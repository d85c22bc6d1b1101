"""The record of a ledger: quorum sizes, state, and the bookies that store its entries (pure).

Only this module defines the state changes of a ledger. Each transition asserts the conditions before and
after it (invariants 1, 2, 6, 10, 18 and 21 of the protocol). The store gives the record a version. Every
change is a compare-and-set on the version that was read last.

    OPEN -> IN_RECOVERY -> CLOSED -> DELETING        OPEN -> CLOSED        any -> DELETING
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...runtime.interfaces.errors import CorruptData
from ...runtime.interfaces.host import Buffer
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import (
    blob,
    decode_versioned,
    fields,
    mapping,
    number,
    one_of,
    optional,
    row,
    rows,
    text,
    verify_round_trip,
)
from ..declarations.options import BOOKIES_MAX
from .ledger_keys import ledger_id_of, ledger_key, printable_key
from .striping import Striping

FORMAT = 1
FORMAT_WITH_LOSSES = 2
"""The format of a record with declared losses. Older versions reject it."""
KEY_BYTES = 16
DIGEST = "xxh3_64"
NO_ENTRY = -1
"""The last entry of an empty ledger, and the LAC while no entry is confirmed."""


class LedgerState(enum.StrEnum):
    """The state of a ledger, which determines its possible changes."""

    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    """A client is finding the end. The writer can no longer change an ensemble (inv. 10)."""
    CLOSED = "closed"
    """The last entry and the length are final (inv. 2)."""
    DELETING = "deleting"
    """The ledger does not exist for readers. Bookies are removing it (H21)."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """The bookies of the entries from ``first_entry`` to the next fragment, one per slot."""

    first_entry: int
    bookies: tuple[str, ...]
    """Bookie IDs, never addresses (H6). The index is the slot."""
    epoch: int
    """Grows by one with each new or replaced fragment. It identifies the add streams of the fragment."""


@dataclass(frozen=True, slots=True)
class DeclaredLoss:
    """Entries ``first`` to ``last``, inclusive, of a closed ledger that an operator declared lost."""

    first: int
    last: int
    declared_by: str
    declared_at_ms: int
    """Wall clock of the client that declared the loss, in milliseconds since 1970."""
    reason: str


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The record of one ledger. It is immutable: transitions return new records."""

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    ensembles: tuple[Fragment, ...]
    key: bytes = field(repr=False)
    """16 random bytes, which clients send to bookies with each stream and read."""
    state: LedgerState = LedgerState.OPEN
    last_entry: int | None = None
    """Set if and only if the state is CLOSED, or DELETING after CLOSED. -1 for an empty ledger."""
    length: int | None = None
    """Payload bytes of all entries. Set together with ``last_entry``."""
    digest: str = DIGEST
    creation_token: int = 0
    """A random number of the creator. It shows whether a creation succeeded or another client has this ID."""
    owner: tuple[int, int] | None = None
    """(log ID, segment number) of the log that refers to this ledger. Deletion requires None (H13)."""
    incarnation: int = 0
    """The incarnation of the log for which this ledger was created."""
    created_ms: int = 0
    """Wall clock of the creator, in milliseconds since 1970. It is never used for ordering."""
    custom: Mapping[str, bytes] = field(default_factory=dict)
    format: int = FORMAT
    lost: tuple[DeclaredLoss, ...] = ()
    """Ascending, without overlap. These entries are neither read nor copied nor missing (G5)."""

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1, (
            f"inv. 1: E {self.ensemble_size} >= Qw {self.write_quorum} >= Qa {self.ack_quorum} >= 1"
        )
        assert self.ensembles, "inv. 1: a ledger has a first fragment"
        assert self.ensembles[0].first_entry == 0, "inv. 1: the first fragment starts at 0"
        previous: Fragment | None = None
        for fragment in self.ensembles:
            assert len(fragment.bookies) == self.ensemble_size, "inv. 1: a bookie in every slot"
            assert len(set(fragment.bookies)) == self.ensemble_size, "inv. 1: distinct bookies"
            if previous is not None:
                assert fragment.first_entry > previous.first_entry, (
                    "inv. 1: first entries strictly increase"
                )
                assert fragment.epoch > previous.epoch, "inv. 1: epochs strictly increase"
            previous = fragment
        assert (self.last_entry is None) == (self.length is None), (
            "inv. 2: last entry and length are set together"
        )
        if self.state is LedgerState.CLOSED:
            assert self.last_entry is not None, "inv. 2: a closed ledger has a last entry"
            assert self.last_entry >= NO_ENTRY, "inv. 2: entry ids count from 0"
        if self.state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
            assert self.last_entry is None, "inv. 2: only a closed ledger has a last entry"
        previous_last = NO_ENTRY
        for loss in self.lost:
            assert previous_last < loss.first <= loss.last, (
                "declared losses are ascending and do not overlap"
            )
            previous_last = loss.last
        assert not self.lost or (
            self.last_entry is not None and previous_last <= self.last_entry
        ), "only entries of a closed ledger are declared lost"
        assert len(self.key) == KEY_BYTES, "a ledger's key is 16 bytes"

    @property
    def striping(self) -> Striping:
        """The quorum sizes of the ledger."""
        return Striping(self.ensemble_size, self.write_quorum, self.ack_quorum)

    @property
    def last_fragment(self) -> Fragment:
        """The fragment to which the writer adds, or added last."""
        return self.ensembles[-1]

    @property
    def closed(self) -> bool:
        """Whether the state is CLOSED, so that the last entry is final."""
        return self.state is LedgerState.CLOSED

    def fragment_index(self, entry: int) -> int:
        """Return the index of the fragment of ``entry``: the last fragment that starts at or below it."""
        low, high = 0, len(self.ensembles)
        while high - low > 1:
            middle = (low + high) // 2
            if self.ensembles[middle].first_entry <= entry:
                low = middle
            else:
                high = middle
        return low

    def fragment_of(self, entry: int) -> Fragment:
        """Return the fragment of ``entry``."""
        return self.ensembles[self.fragment_index(entry)]

    def fragment_end(self, index: int) -> int | None:
        """Return one past the last entry of a fragment; None for the last fragment of an open ledger."""
        if index + 1 < len(self.ensembles):
            return self.ensembles[index + 1].first_entry
        return None if self.last_entry is None else self.last_entry + 1

    def bookies(self) -> tuple[str, ...]:
        """Return all bookies of all ensembles, each once, in order of appearance."""
        return tuple(
            dict.fromkeys(bookie for fragment in self.ensembles for bookie in fragment.bookies)
        )

    def loss_at(self, entry: int) -> DeclaredLoss | None:
        """Return the declared loss that includes ``entry``, or None."""
        return next((loss for loss in self.lost if loss.first <= entry <= loss.last), None)

    def last_before_loss(self, first: int, last: int) -> int:
        """Return the last entry before the first loss after ``first``, at most ``last``.

        ``first`` itself is not lost.
        """
        return min([last, *(loss.first - 1 for loss in self.lost if loss.first > first)])

    # --- transitions ------------------------------------------------------------------------------

    def with_fragment(self, first_entry: int, bookies: Sequence[str]) -> "LedgerMetadata":
        """Add or replace the last fragment, as a writer's ensemble change does (inv. 6)."""
        assert self.state is LedgerState.OPEN, f"inv. 10: no ensemble change while {self.state}"
        return replace(
            self, ensembles=append_or_replace_fragment(self.ensembles, first_entry, bookies)
        )

    def in_recovery(self) -> "LedgerMetadata":
        """Start recovery. Afterwards the writer can neither change ensembles nor close."""
        assert self.state in (LedgerState.OPEN, LedgerState.IN_RECOVERY), (
            f"recovery of a ledger that is {self.state}"
        )
        return replace(self, state=LedgerState.IN_RECOVERY)

    def close_by_writer(self, last_entry: int, length: int) -> "LedgerMetadata":
        """Close as the writer. The state must be OPEN; otherwise the writer has been fenced."""
        assert self.state is LedgerState.OPEN, f"a writer closes an open ledger, not {self.state}"
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length)

    def close_by_recovery(
        self, last_entry: int, length: int, ensembles: tuple[Fragment, ...]
    ) -> "LedgerMetadata":
        """Close at the end of a recovery, with the ensembles that it chose (inv. 18, 19, 21)."""
        assert self.state is LedgerState.IN_RECOVERY, "inv. 19: recovery closes from IN_RECOVERY"
        kept_count = len(self.ensembles) - 1
        assert ensembles[:kept_count] == self.ensembles[:kept_count], (
            "inv. 21: earlier fragments stay"
        )
        assert all(
            f.first_entry >= self.last_fragment.first_entry for f in ensembles[kept_count:]
        ), "inv. 21: recovery starts no fragment below the last one"
        return replace(
            self,
            state=LedgerState.CLOSED,
            last_entry=last_entry,
            length=length,
            ensembles=ensembles,
        )

    def with_bookie_replaced(self, index: int, slot: int, bookie: str) -> "LedgerMetadata":
        """Replace a bookie in a fragment whose end is final, after a repair (inv. 28)."""
        assert self.fragment_end(index) is not None, "inv. 28: repair replaces in closed fragments"
        fragment = self.ensembles[index]
        bookies = list(fragment.bookies)
        bookies[slot] = bookie
        changed = replace(fragment, bookies=tuple(bookies))
        return replace(
            self, ensembles=(*self.ensembles[:index], changed, *self.ensembles[index + 1 :])
        )

    def with_loss(self, loss: DeclaredLoss) -> "LedgerMetadata":
        """Declare entries of a closed ledger lost. Earlier declarations of the same entries remain."""
        assert self.closed, "only entries of a closed ledger are declared lost"
        parts = [loss]
        for previous in self.lost:
            parts = [remainder for part in parts for remainder in _subtract_loss(part, previous)]
        losses = sorted((*self.lost, *parts), key=lambda previous: previous.first)
        return replace(self, lost=tuple(losses))

    def owned_by(self, owner: tuple[int, int] | None) -> "LedgerMetadata":
        """Set the log and segment that refer to this ledger, or None."""
        return replace(self, owner=owner)

    def with_custom(self, custom: Mapping[str, bytes]) -> "LedgerMetadata":
        """Add custom metadata to the existing one."""
        return replace(self, custom={**self.custom, **custom})

    def deleting(self) -> "LedgerMetadata":
        """Set the state to DELETING, which is final. No log may refer to the ledger (H13)."""
        assert self.owner is None, "H13: a ledger that a log refers to is not deleted"
        return replace(self, state=LedgerState.DELETING)

    # --- bytes ------------------------------------------------------------------------------------

    @verify_round_trip(
        lambda record, value: type(record).decode(ledger_key(record.ledger_id), value)
    )
    def encode(self) -> bytes:
        """Encode the record as the value of the ledger's key."""
        losses = [
            [loss.first, loss.last, loss.declared_by, loss.declared_at_ms, loss.reason]
            for loss in self.lost
        ]
        return pack(
            {
                "format": FORMAT_WITH_LOSSES if losses else self.format,
                "ledger": self.ledger_id,
                "state": self.state.value,
                "quorums": [self.ensemble_size, self.write_quorum, self.ack_quorum],
                "ensembles": [[f.first_entry, f.epoch, list(f.bookies)] for f in self.ensembles],
                "last_entry": self.last_entry,
                "length": self.length,
                "key": self.key,
                "digest": self.digest,
                "token": self.creation_token,
                "owner": None if self.owner is None else list(self.owner),
                "incarnation": self.incarnation,
                "created_ms": self.created_ms,
                "custom": dict(self.custom),
                **({"lost": losses} if losses else {}),
            }
        )

    @classmethod
    def decode(cls, key: bytes, value: Buffer) -> "LedgerMetadata":
        """Decode the value of a ledger's key.

        Raises:
            CorruptData: The value is invalid, inconsistent, or belongs to another ledger.
            UnsupportedFormat: The record is of a newer version.
        """
        ledger_id = ledger_id_of(key)
        what = f"the record {printable_key(key)}"
        values = decode_versioned(value, FORMAT_WITH_LOSSES, _RECORD_FIELDS, what)
        if values["ledger"] != ledger_id:
            raise CorruptData(f"{what} is that of ledger {values['ledger']}")
        ensemble_size, write_quorum, ack_quorum = values["quorums"]
        try:
            return cls(
                ledger_id=ledger_id,
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                ensembles=tuple(
                    Fragment(first, bookies, epoch) for first, epoch, bookies in values["ensembles"]
                ),
                key=values["key"],
                state=LedgerState(values["state"]),
                last_entry=values["last_entry"],
                length=values["length"],
                digest=values["digest"],
                creation_token=values["token"],
                owner=values["owner"],
                incarnation=values["incarnation"],
                created_ms=values["created_ms"],
                custom=values["custom"],
                format=min(values["format"], FORMAT),
                lost=tuple(DeclaredLoss(*loss_row) for loss_row in values["lost"]),
            )
        except AssertionError as error:  # the fields contradict each other
            raise CorruptData(f"{what} is inconsistent: {error}") from None


_FRAGMENTS_MAX = 64 * 1024
LOSSES_MAX = 1000
LOSS_BY_CHARS_MAX = 200
LOSS_WHY_CHARS_MAX = 1000
_RECORD_FIELDS = fields(
    {
        "lost": (
            rows(
                row(
                    number(), number(), text(LOSS_BY_CHARS_MAX), number(), text(LOSS_WHY_CHARS_MAX)
                ),
                LOSSES_MAX,
            ),
            (),
        )
    },
    format=number(),
    ledger=number(0, (1 << 64) - 1),
    state=one_of(*LedgerState),
    quorums=row(number(1), number(1), number(1)),
    ensembles=rows(
        row(number(), number(), rows(text(chars_min=1), BOOKIES_MAX, 1)), _FRAGMENTS_MAX, 1
    ),
    last_entry=optional(number(NO_ENTRY)),
    length=optional(number()),
    key=blob(KEY_BYTES, KEY_BYTES),
    digest=text(),
    token=number(0, (1 << 64) - 1),
    owner=optional(row(number(), number())),
    incarnation=number(),
    created_ms=number(),
    custom=mapping(blob(1024 * 1024), 4096, 4096),
)


def _subtract_loss(loss: DeclaredLoss, other: DeclaredLoss) -> list[DeclaredLoss]:
    """Return the parts of ``loss`` that ``other`` does not include."""
    remainders = []
    if loss.first < other.first:
        remainders.append(replace(loss, last=min(loss.last, other.first - 1)))
    if loss.last > other.last:
        remainders.append(replace(loss, first=max(loss.first, other.last + 1)))
    return remainders


def append_or_replace_fragment(
    ensembles: tuple[Fragment, ...], first_entry: int, bookies: Sequence[str]
) -> tuple[Fragment, ...]:
    """Append a fragment, or replace the last one if it starts at the same entry.

    A fragment never starts before the last one (inv. 6). If both start at the same entry, the last one has no
    confirmed entries. The epoch grows in both cases, because it identifies the add streams.
    """
    last = ensembles[-1]
    assert first_entry >= last.first_entry, (
        f"inv. 6: a fragment at {first_entry} below the last one at {last.first_entry}"
    )
    new = Fragment(first_entry, tuple(bookies), last.epoch + 1)
    if first_entry == last.first_entry:
        return (*ensembles[:-1], new)
    return (*ensembles, new)


def lacks_entries(metadata: LedgerMetadata, bookie: str, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether ``bookie`` lacks an entry of a closed ledger that it should store.

    Args:
        metadata: The record of the closed ledger.
        bookie: The bookie's ID.
        ranges: The ranges (first, count) that the bookie stores, ascending.
    """
    assert metadata.last_entry is not None, "the ledger is closed"
    if metadata.last_entry == NO_ENTRY:
        return False
    for index, fragment in enumerate(metadata.ensembles):
        if bookie not in fragment.bookies:
            continue
        slot = fragment.bookies.index(bookie)
        fragment_end = metadata.fragment_end(index)
        stop = metadata.last_entry + 1
        if fragment_end is not None:
            stop = min(stop, fragment_end)
        next_expected = metadata.striping.next_held(slot, fragment.first_entry)
        for first, count in ranges:
            if first > next_expected:
                break  # the missing entry is in the gap before this range
            next_expected = metadata.striping.next_held(slot, max(next_expected, first + count))
        if next_expected < stop:
            return True
    return False
