"""Every metadata key of the ledger part, in one place (pure).

    ledger/<id>            the ledger's record (`ledger_metadata.py`)
    on/<bookie>/<id>       reverse index: this bookie is in an ensemble of that ledger
    under/<id>             what silent slots miss (`missing_range.py`); work for the repairer
    delete/<bookie>/<id>   to do: this bookie must still remove that deleted ledger (H21)
    bookie/<bookie>        registration, leased (`bookie_registration.py`)
    cookie/<bookie>        who this bookie is, until it is decommissioned
    move/<bookie>/<ledger> to be copied to that bookie, which takes another one's place
    leaving/<bookie>       to be drained and decommissioned
    scrub/<bookie>         asked to read all that it holds, until it has (`cluster/node/scrub_requests.py`)
    seen/<bookie>          how far its journal was synced, as it noted itself
    (`cluster/coordination/journal_sync_point.py`) conf/placement         how far apart copies are to be
    (`placement_policy.py`); mostly absent next/ledger            the next ledger id that nobody holds;
    clients take blocks

Ledger ids are 16 hex digits, so that the order of keys is the order of ids. The reverse index changes in
the same transaction as the ensembles that it mirrors.
"""

from ...runtime.interfaces.errors import CorruptData

LEDGER_PREFIX = b"ledger/"
MISSING_RANGES_PREFIX = b"under/"
BOOKIE_PREFIX = b"bookie/"
COOKIE_PREFIX = b"cookie/"
LEAVING_PREFIX = b"leaving/"
SCRUB_PREFIX = b"scrub/"
ON_PREFIX = b"on/"
DELETE_PREFIX = b"delete/"
MOVE_PREFIX = b"move/"
NEXT_LEDGER = b"next/ledger"
PLACEMENT = b"conf/placement"
ID_DIGITS = 16
KEY_SHOWN_BYTES = 100
LEDGER_ID_BLOCK = 1000
"""A client takes this many ids at a time (H40); what it does not use is never used."""


def ledger_key(ledger_id: int) -> bytes:
    """The ledger's record."""
    return b"ledger/%016x" % ledger_id


def bookie_ledgers_prefix(bookie_id: str) -> bytes:
    """All ledgers that name this bookie."""
    return b"on/%s/" % bookie_id.encode()


def bookie_ledger_key(bookie_id: str, ledger_id: int) -> bytes:
    """This bookie is in an ensemble of this ledger; the value is empty."""
    return b"on/%s/%016x" % (bookie_id.encode(), ledger_id)


def missing_ranges_key(ledger_id: int) -> bytes:
    """What silent slots of this ledger miss."""
    return b"under/%016x" % ledger_id


def delete_prefix(bookie_id: str) -> bytes:
    """All deleted ledgers that this bookie must still remove."""
    return b"delete/%s/" % bookie_id.encode()


def delete_key(bookie_id: str, ledger_id: int) -> bytes:
    """This bookie must still remove this ledger; the value is empty."""
    return b"delete/%s/%016x" % (bookie_id.encode(), ledger_id)


def moves_to_prefix(bookie_id: str) -> bytes:
    """All ledgers that are being copied to this bookie, to take another one's place."""
    return b"move/%s/" % bookie_id.encode()


def move_key(bookie_id: str, ledger_id: int) -> bytes:
    """This bookie is to take another one's place in this ledger (`cluster/repair/pull_replication.py`)."""
    return b"move/%s/%016x" % (bookie_id.encode(), ledger_id)


def bookie_key(bookie_id: str) -> bytes:
    """The leased registration of a live bookie."""
    return BOOKIE_PREFIX + bookie_id.encode()


def cookie_key(bookie_id: str) -> bytes:
    """The permanent record of a bookie's identity."""
    return COOKIE_PREFIX + bookie_id.encode()


def leaving_key(bookie_id: str) -> bytes:
    """This bookie is to be drained; the value is empty."""
    return LEAVING_PREFIX + bookie_id.encode()


def scrub_key(bookie_id: str) -> bytes:
    """This bookie is to read all that it holds; the value is empty."""
    return SCRUB_PREFIX + bookie_id.encode()


def sync_point_key(bookie_id: str) -> bytes:
    """How far this bookie's journal was synced, when it last noted it."""
    return b"seen/" + bookie_id.encode()


def ledger_id_of(key: bytes) -> int:
    """The ledger id that ends a ``ledger/``, ``on/``, ``under/``, ``delete/`` or ``move/`` key.

    Raises `CorruptData`.
    """
    parts = key.split(b"/")
    digits = parts[-1]
    if (
        len(parts) != (3 if parts[0] in (b"on", b"delete", b"move") else 2)
        or len(digits) != ID_DIGITS
        or digits.strip(b"0123456789abcdef")  # `int` takes blanks and underscores too
    ):
        raise CorruptData(f"{printable_key(key)} is no key of a ledger: it does not end with an id")
    return int(digits, 16)


def bookie_id_of(key: bytes) -> str:
    """The bookie id in a key of a bookie, ``bookie/``, ``cookie/``, ``on/``, ``move/`` and their like.

    Raises `CorruptData`.
    """
    parts = key.split(b"/")
    try:
        bookie_id = parts[1].decode() if len(parts) in (2, 3) else ""
    except UnicodeDecodeError:
        bookie_id = ""
    if not bookie_id:
        raise CorruptData(f"{printable_key(key)} is no key of a bookie: it holds no id")
    return bookie_id


def printable_key(key: bytes) -> str:
    """A key for messages, whoever wrote it: printable and short."""
    return repr(key[:KEY_SHOWN_BYTES])[1:] + ("…" if len(key) > KEY_SHOWN_BYTES else "")
