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
    fields,
    mapping,
    number,
    optional,
    reads_back,
    row,
    rows,
    text,
    versioned,
    word,
)
from ..declarations.options import BOOKIES_MAX
from .ledger_keys import ledger_id_of, ledger_key, shown
from .striping import Striping

FORMAT = 1
FORMAT_LOST = 2
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
    by: str
    at_ms: int
    """Wall clock of who did it, in ms since 1970."""
    why: str


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
        before = NO_ENTRY
        for loss in self.lost:
            assert before < loss.first <= loss.last, "what was given up is in order, each once"
            before = loss.last
        assert not self.lost or (self.last_entry is not None and before <= self.last_entry), (
            "only entries of a closed ledger are given up"
        )
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

    def without_lost(self, first: int, last: int) -> int:
        """As far from ``first``, which is not lost, as nothing is; at most ``last``."""
        return min([last, *(loss.first - 1 for loss in self.lost if loss.first > first)])

    # --- transitions ------------------------------------------------------------------------------

    def with_fragment(self, first_entry: int, bookies: Sequence[str]) -> "LedgerMetadata":
        """The writer's ensemble change: a new last fragment, or the last one replaced (inv. 6)."""
        assert self.state is LedgerState.OPEN, f"inv. 10: no ensemble change while {self.state}"
        return replace(self, ensembles=change_last(self.ensembles, first_entry, bookies))

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
        kept = len(self.ensembles) - 1
        assert ensembles[:kept] == self.ensembles[:kept], "inv. 21: earlier fragments stay"
        assert all(f.first_entry >= self.last_fragment.first_entry for f in ensembles[kept:]), (
            "inv. 21: recovery starts no fragment below the last one"
        )
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

    def given_up(self, loss: DeclaredLoss) -> "LedgerMetadata":
        """Entries of a closed ledger are lost, and somebody says so; what was said before stays."""
        assert self.closed, "the end is known before entries are given up"
        parts = [loss]
        for one in self.lost:
            parts = [left for part in parts for left in _outside(part, one)]
        lost = sorted((*self.lost, *parts), key=lambda one: one.first)
        return replace(self, lost=tuple(lost))

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

    @reads_back(lambda record, value: type(record).decode(ledger_key(record.ledger_id), value))
    def encode(self) -> bytes:
        """As the value of the ledger's key."""
        lost = [[one.first, one.last, one.by, one.at_ms, one.why] for one in self.lost]
        return pack(
            {
                "format": FORMAT_LOST if lost else self.format,
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
                **({"lost": lost} if lost else {}),
            }
        )

    @classmethod
    def decode(cls, key: bytes, value: Buffer) -> "LedgerMetadata":
        """Raises `CorruptData`, or `UnsupportedFormat` for the record of a newer version."""
        ledger_id = ledger_id_of(key)
        what = f"the record {shown(key)}"
        found = versioned(value, FORMAT_LOST, _RECORD, what)
        if found["ledger"] != ledger_id:
            raise CorruptData(f"{what} is that of ledger {found['ledger']}")
        ensemble_size, write_quorum, ack_quorum = found["quorums"]
        try:
            return cls(
                ledger_id=ledger_id,
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                ensembles=tuple(
                    Fragment(first, bookies, epoch) for first, epoch, bookies in found["ensembles"]
                ),
                key=found["key"],
                state=LedgerState(found["state"]),
                last_entry=found["last_entry"],
                length=found["length"],
                digest=found["digest"],
                creation_token=found["token"],
                owner=found["owner"],
                incarnation=found["incarnation"],
                created_ms=found["created_ms"],
                custom=found["custom"],
                format=min(found["format"], FORMAT),
                lost=tuple(DeclaredLoss(*one) for one in found["lost"]),
            )
        except AssertionError as error:  # fields that do not fit each other
            raise CorruptData(f"{what} cannot be: {error}") from None


_FRAGMENTS_MAX = 64 * 1024
LOSSES_MAX = 1000
LOSS_BY_CHARS_MAX = 200
LOSS_WHY_CHARS_MAX = 1000
_RECORD = fields(
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
    state=word(*LedgerState),
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


def _outside(loss: DeclaredLoss, taken: DeclaredLoss) -> list[DeclaredLoss]:
    """What of ``loss`` is not in ``taken``."""
    left = []
    if loss.first < taken.first:
        left.append(replace(loss, last=min(loss.last, taken.first - 1)))
    if loss.last > taken.last:
        left.append(replace(loss, first=max(loss.first, taken.last + 1)))
    return left


def change_last(
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


def lacks(metadata: LedgerMetadata, bookie: str, ranges: Sequence[tuple[int, int]]) -> bool:
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
        wanted = metadata.striping.next_held(slot, fragment.first_entry)
        for first, count in ranges:
            if first > wanted:
                break  # it is in the gap before this stretch
            wanted = metadata.striping.next_held(slot, max(wanted, first + count))
        if wanted < stop:
            return True
    return False
