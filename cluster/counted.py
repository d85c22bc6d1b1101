"""Numbers of things, in the words of people: one ledger, two ledgers."""


def counted(count: int, one: str, many: str = "") -> str:
    """``1 ledger misses``, ``2,000 ledgers miss``; ``many`` is ``one`` and an s where it is not said."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
