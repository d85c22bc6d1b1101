"""Which ledgers exist, asked for many at once (H21)."""

from distributedlog.cluster.node import NEIGHBOURS, missing_ledgers
from distributedlog.ledger import keys
from distributedlog.metadata.interface import RangePage
from distributedlog.metadata.local import LocalMetadata
from distributedlog.metadata.transaction import Put, Transaction

ID_MAX = (1 << 64) - 1


class _Counting(LocalMetadata):
    """How many questions it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        self.questions += 1
        return await super().range(start, end, limit=limit)

    async def hold(self, *ledgers: int, value: bytes = b"...") -> None:
        for ledger in ledgers:
            await self.transact(Transaction((), (Put(keys.ledger_key(ledger), value),)))


async def test_neighbours_are_asked_for_in_one_question() -> None:
    metadata = _Counting()
    await metadata.hold(*range(1000, 2000))

    assert await missing_ledgers(metadata, range(1000, 2000, 3)) == set()
    assert metadata.questions == 1


async def test_what_is_not_there_is_named_wherever_it_lies() -> None:
    """The first, the last, within and beside a range, and the highest id there can be."""
    metadata = _Counting()
    await metadata.hold(1, 2, 4, 900, 901, ID_MAX - 1)
    asked = [0, 1, 2, 3, 4, 5, 899, 900, 901, ID_MAX - 1, ID_MAX]

    assert await missing_ledgers(metadata, asked) == {0, 3, 5, 899, ID_MAX}
    assert await missing_ledgers(metadata, [7]) == {7}
    assert await missing_ledgers(metadata, []) == set()


async def test_what_lies_far_apart_is_not_read_across() -> None:
    metadata = _Counting()
    await metadata.hold(*range(100))

    assert await missing_ledgers(metadata, [1, 1 + NEIGHBOURS + 1, 90]) == set()
    assert metadata.questions == 3


async def test_an_answer_in_pages_is_read_to_its_end() -> None:
    """A page ends at a megabyte; what lies after it is there all the same."""
    metadata = _Counting()
    await metadata.hold(*range(50), value=bytes(100_000))

    assert await missing_ledgers(metadata, range(51)) == {50}
    assert metadata.questions == 5


async def test_a_key_of_no_ledger_between_them_changes_nothing() -> None:
    metadata = _Counting()
    await metadata.hold(1, 3)
    await metadata.transact(Transaction((), (Put(b"ledger/0000000000000001x", b"?"),)))

    assert await missing_ledgers(metadata, [1, 2, 3]) == {2}
