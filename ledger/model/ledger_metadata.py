"""A ledger's record: quorum sizes, state, and which bookies hold which entries (pure).

The only place where a ledger's state changes are defined; each transition asserts what must hold before
and after (invariants 1, 2, 6, 10, 18, 21 of the protocol). The store gives the record a version, and every
change is a compare-and-set on the version last read.

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
"""Of a record that says which entries were given up: programs of before refuse it."""
KEY_BYTES = 16
DIGEST = "xxh3_64"
NO_ENTRY = -1
"""The last entry of an empty ledger, and the LAC while nothing is confirmed."""


class LedgerState(enum.StrEnum):
    """What may happen to a ledger next."""

    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    """Somebody is finding the end: the writer can change no ensemble any more (inv. 10)."""
    CLOSED = "closed"
    """The last entry and the length are known and never change (inv. 2)."""
    DELETING = "deleting"
    """Gone for every reader; bookies are removing it (H21)."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries from ``first_entry`` to the next fragment are on these bookies, one a slot."""

    first_entry: int
    bookies: tuple[str, ...]
    """Ids, never addresses (H6); the position is the slot."""
    epoch: int
    """Grows by one with each new or replaced fragment: names the add streams that belong to it."""


@dataclass(frozen=True, slots=True)
class DeclaredLoss:
    """Entries ``first`` to ``last``, inclusive, of a closed ledger that somebody gave up."""

    first: int
    last: int
    declared_by: str
    declared_at_ms: int
    """Wall clock of who did it, in ms since 1970."""
    reason: str


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One ledger. Values are never changed in place: transitions return new ones."""

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    ensembles: tuple[Fragment, ...]
    key: bytes = field(repr=False)
    """16 random bytes, shown to bookies with each stream and read."""
    state: LedgerState = LedgerState.OPEN
    last_entry: int | None = None
    """Known if and only if CLOSED or DELETING from CLOSED; -1 for an empty ledger."""
    length: int | None = None
    """Payload bytes of all entries; known together with ``last_entry``."""
    digest: str = DIGEST
    creation_token: int = 0
    """Drawn by the creator: tells "my create went through" from "somebody else has this id"."""
    owner: tuple[int, int] | None = None
    """(log id, segment number) of the log that refers to this ledger; deletion requires none (H13)."""
    incarnation: int = 0
    """The incarnation of the owner that this ledger was made for."""
    created_ms: int = 0
    """Wall clock of the creator, in ms since 1970; never for ordering."""
    custom: Mapping[str, bytes] = field(default_factory=dict)
    format: int = FORMAT
    lost: tuple[DeclaredLoss, ...] = ()
    """Ascending, without overlap. Nobody reads, copies or wants these entries (G5)."""

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
            "inv. 2: last entry and length are known together"
        )
        if self.state is LedgerState.CLOSED:
            assert self.last_entry is not None, "inv. 2: a closed ledger knows its end"
            assert self.last_entry >= NO_ENTRY, "inv. 2: entry ids count from 0"
        if self.state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
            assert self.last_entry is None, "inv. 2: only a closed ledger knows its end"
        previous_last = NO_ENTRY
        for loss in self.lost:
            assert previous_last < loss.first <= loss.last, (
                "what was given up is in order, each once"
            )
            previous_last = loss.last
        assert not self.lost or (
            self.last_entry is not None and previous_last <= self.last_entry
        ), "only entries of a closed ledger are given up"
        assert len(self.key) == KEY_BYTES, "a ledger's key is 16 bytes"

    @property
    def striping(self) -> Striping:
        """Its quorum sizes, and what follows from them."""
        return Striping(self.ensemble_size, self.write_quorum, self.ack_quorum)

    @property
    def last_fragment(self) -> Fragment:
        """The one that the writer adds to, or did last."""
        return self.ensembles[-1]

    @property
    def closed(self) -> bool:
        """Is the end known for good?"""
        return self.state is LedgerState.CLOSED

    def fragment_index(self, entry: int) -> int:
        """The index of the fragment that holds ``entry``: the last one that starts at or below it."""
        low, high = 0, len(self.ensembles)
        while high - low > 1:
            middle = (low + high) // 2
            if self.ensembles[middle].first_entry <= entry:
                low = middle
            else:
                high = middle
        return low

    def fragment_of(self, entry: int) -> Fragment:
        """The fragment that holds ``entry``."""
        return self.ensembles[self.fragment_index(entry)]

    def fragment_end(self, index: int) -> int | None:
        """One past the last entry of a fragment, or None for the last fragment of an open ledger."""
        if index + 1 < len(self.ensembles):
            return self.ensembles[index + 1].first_entry
        return None if self.last_entry is None else self.last_entry + 1

    def bookies(self) -> tuple[str, ...]:
        """Every bookie that any ensemble names, each once, in order of appearance."""
        return tuple(
            dict.fromkeys(bookie for fragment in self.ensembles for bookie in fragment.bookies)
        )

    def loss_at(self, entry: int) -> DeclaredLoss | None:
        """What was declared of an entry that was given up."""
        return next((loss for loss in self.lost if loss.first <= entry <= loss.last), None)

    def last_before_loss(self, first: int, last: int) -> int:
        """As far from ``first``, which is not lost, as nothing is; at most ``last``."""
        return min([last, *(loss.first - 1 for loss in self.lost if loss.first > first)])

    # --- transitions ------------------------------------------------------------------------------

    def with_fragment(self, first_entry: int, bookies: Sequence[str]) -> "LedgerMetadata":
        """The writer's ensemble change: a new last fragment, or the last one replaced (inv. 6)."""
        assert self.state is LedgerState.OPEN, f"inv. 10: no ensemble change while {self.state}"
        return replace(
            self, ensembles=append_or_replace_fragment(self.ensembles, first_entry, bookies)
        )

    def in_recovery(self) -> "LedgerMetadata":
        """From here on the writer can neither change ensembles nor close."""
        assert self.state in (LedgerState.OPEN, LedgerState.IN_RECOVERY), (
            f"recovery of a ledger that is {self.state}"
        )
        return replace(self, state=LedgerState.IN_RECOVERY)

    def close_by_writer(self, last_entry: int, length: int) -> "LedgerMetadata":
        """The writer's own end; only from OPEN, else it has been fenced."""
        assert self.state is LedgerState.OPEN, f"a writer closes an open ledger, not {self.state}"
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length)

    def close_by_recovery(
        self, last_entry: int, length: int, ensembles: tuple[Fragment, ...]
    ) -> "LedgerMetadata":
        """The one write at the end of a recovery, with the ensembles it chose (inv. 18, 19, 21)."""
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
        """Repair: another bookie now holds this slot of a fragment whose end is known (inv. 28)."""
        assert self.fragment_end(index) is not None, "inv. 28: repair replaces in closed fragments"
        fragment = self.ensembles[index]
        bookies = list(fragment.bookies)
        bookies[slot] = bookie
        changed = replace(fragment, bookies=tuple(bookies))
        return replace(
            self, ensembles=(*self.ensembles[:index], changed, *self.ensembles[index + 1 :])
        )

    def with_loss(self, loss: DeclaredLoss) -> "LedgerMetadata":
        """Entries of a closed ledger are lost, and somebody says so; what was said before stays."""
        assert self.closed, "the end is known before entries are given up"
        parts = [loss]
        for previous in self.lost:
            parts = [remainder for part in parts for remainder in _subtract_loss(part, previous)]
        losses = sorted((*self.lost, *parts), key=lambda previous: previous.first)
        return replace(self, lost=tuple(losses))

    def owned_by(self, owner: tuple[int, int] | None) -> "LedgerMetadata":
        """Referred to by a log's segment, or by none."""
        return replace(self, owner=owner)

    def with_custom(self, custom: Mapping[str, bytes]) -> "LedgerMetadata":
        """More custom metadata, beside what is there."""
        return replace(self, custom={**self.custom, **custom})

    def deleting(self) -> "LedgerMetadata":
        """No way back. Requires that no log refers to it (H13)."""
        assert self.owner is None, "H13: a ledger that a log refers to is not deleted"
        return replace(self, state=LedgerState.DELETING)

    # --- bytes ------------------------------------------------------------------------------------

    @verify_round_trip(
        lambda record, value: type(record).decode(ledger_key(record.ledger_id), value)
    )
    def encode(self) -> bytes:
        """As the value of the ledger's key."""
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
        """Raises `CorruptData`, or `UnsupportedFormat` for the record of a newer version."""
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
        except AssertionError as error:  # fields that do not fit each other
            raise CorruptData(f"{what} cannot be: {error}") from None


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
    """What of ``loss`` is not in ``taken``."""
    remainders = []
    if loss.first < other.first:
        remainders.append(replace(loss, last=min(loss.last, other.first - 1)))
    if loss.last > other.last:
        remainders.append(replace(loss, first=max(loss.first, other.last + 1)))
    return remainders


def append_or_replace_fragment(
    ensembles: tuple[Fragment, ...], first_entry: int, bookies: Sequence[str]
) -> tuple[Fragment, ...]:
    """Append a fragment, or replace the last one if it starts at the same entry (inv. 6)."""
    last = ensembles[-1]
    assert first_entry >= last.first_entry, (
        f"inv. 6: a fragment at {first_entry} below the last one at {last.first_entry}"
    )
    new = Fragment(first_entry, tuple(bookies), last.epoch + 1)
    if first_entry == last.first_entry:
        return (*ensembles[:-1], new)
    return (*ensembles, new)


def lacks_entries(metadata: LedgerMetadata, bookie: str, ranges: Sequence[tuple[int, int]]) -> bool:
    """Is there an entry that ``bookie`` should hold and does not list?

    ``ranges``: stretches (first, count) that it holds, ascending.
    """
    assert metadata.last_entry is not None, "only of a closed ledger it is known"
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
                break  # it is in the gap before this stretch
            next_expected = metadata.striping.next_held(slot, max(next_expected, first + count))
        if next_expected < stop:
            return True
    return False
