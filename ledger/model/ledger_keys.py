"""All metadata keys of the ledger part (pure).

The keys and their values::

    ledger/<id>             record of the ledger (`ledger_metadata.py`)
    on/<bookie>/<id>        reverse index, if the bookie is in an ensemble of the ledger
    under/<id>              entries that detached slots lack (`missing_range.py`), for repair
    delete/<bookie>/<id>    task of the bookie to remove the deleted ledger (H21)
    bookie/<bookie>         registration, leased (`bookie_registration.py`)
    cookie/<bookie>         identity of the bookie, until it is decommissioned
    move/<bookie>/<ledger>  task to copy the ledger to the bookie, which replaces another one
    leaving/<bookie>        request to drain and decommission the bookie
    scrub/<bookie>          request to scrub the bookie, until that is done (`cluster/node/scrub_requests.py`)
    seen/<bookie>           progress record of its journal (`cluster/coordination/journal_sync_point.py`)
    conf/placement          placement policy (`placement_policy.py`), usually absent
    next/ledger             the lowest ledger ID that is not allocated

Ledger IDs have 16 hexadecimal digits, so that the order of keys is the order of IDs. The reverse index
changes in the same transaction as the ensembles that it mirrors.
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
"""A client allocates this many IDs at a time (H40). IDs that it does not use are never used."""


def ledger_key(ledger_id: int) -> bytes:
    """Return the key of the ledger's record."""
    return b"ledger/%016x" % ledger_id


def bookie_ledgers_prefix(bookie_id: str) -> bytes:
    """Return the prefix of the keys of all ledgers that name this bookie."""
    return b"on/%s/" % bookie_id.encode()


def bookie_ledger_key(bookie_id: str, ledger_id: int) -> bytes:
    """Return the key of the reverse index for a bookie in an ensemble of this ledger. Its value is empty."""
    return b"on/%s/%016x" % (bookie_id.encode(), ledger_id)


def missing_ranges_key(ledger_id: int) -> bytes:
    """Return the key of the record of entries that detached slots of this ledger lack."""
    return b"under/%016x" % ledger_id


def delete_prefix(bookie_id: str) -> bytes:
    """Return the prefix of the keys of all deleted ledgers that this bookie must still remove."""
    return b"delete/%s/" % bookie_id.encode()


def delete_key(bookie_id: str, ledger_id: int) -> bytes:
    """Return the key of the bookie's task to remove this ledger. Its value is empty."""
    return b"delete/%s/%016x" % (bookie_id.encode(), ledger_id)


def moves_to_prefix(bookie_id: str) -> bytes:
    """Return the prefix of the keys of all ledgers that are to be copied to this bookie."""
    return b"move/%s/" % bookie_id.encode()


def move_key(bookie_id: str, ledger_id: int) -> bytes:
    """Return the key of the task to copy this ledger to this bookie (`pull_replication.py`)."""
    return b"move/%s/%016x" % (bookie_id.encode(), ledger_id)


def bookie_key(bookie_id: str) -> bytes:
    """Return the key of a live bookie's leased registration."""
    return BOOKIE_PREFIX + bookie_id.encode()


def cookie_key(bookie_id: str) -> bytes:
    """Return the key of the permanent record of a bookie's identity."""
    return COOKIE_PREFIX + bookie_id.encode()


def leaving_key(bookie_id: str) -> bytes:
    """Return the key of the request to drain this bookie. Its value is empty."""
    return LEAVING_PREFIX + bookie_id.encode()


def scrub_key(bookie_id: str) -> bytes:
    """Return the key of the request to scrub this bookie. Its value is empty."""
    return SCRUB_PREFIX + bookie_id.encode()


def sync_point_key(bookie_id: str) -> bytes:
    """Return the key of the progress record of this bookie's journal."""
    return b"seen/" + bookie_id.encode()


def ledger_id_of(key: bytes) -> int:
    """Return the ledger ID at the end of a ``ledger/``, ``on/``, ``under/``, ``delete/`` or ``move/`` key.

    Raises:
        CorruptData: The key does not end with a ledger ID.
    """
    parts = key.split(b"/")
    digits = parts[-1]
    if (
        len(parts) != (3 if parts[0] in (b"on", b"delete", b"move") else 2)
        or len(digits) != ID_DIGITS
        or digits.strip(b"0123456789abcdef")  # `int` accepts whitespace and underscores, too
    ):
        raise CorruptData(
            f"{printable_key(key)} is not the key of a ledger: it does not end with an ID"
        )
    return int(digits, 16)


def bookie_id_of(key: bytes) -> str:
    """Return the bookie ID in a key of a bookie, such as ``bookie/``, ``cookie/``, ``on/`` or ``move/``.

    Raises:
        CorruptData: The key contains no bookie ID.
    """
    parts = key.split(b"/")
    try:
        bookie_id = parts[1].decode() if len(parts) in (2, 3) else ""
    except UnicodeDecodeError:
        bookie_id = ""
    if not bookie_id:
        raise CorruptData(f"{printable_key(key)} is not the key of a bookie: it contains no ID")
    return bookie_id


def printable_key(key: bytes) -> str:
    """Return a key for messages, printable and short even if the key is corrupt."""
    return repr(key[:KEY_SHOWN_BYTES])[1:] + ("…" if len(key) > KEY_SHOWN_BYTES else "")
