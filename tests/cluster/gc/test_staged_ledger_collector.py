"""The collector: unlinked segments go when passed or old; what is linked never does (H13, H18)."""

from trio import sleep
from trio.testing import MockClock

from distributedlog.cluster.gc.staged_ledger_collector import StagedLedgerCollector
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from distributedlog.ledger.model.ledger_transactions import creation_ops
from distributedlog.log.model.log_keys import STAGED_PREFIX, app_version_key, staged_ledger_key
from distributedlog.log.segments.app_versions import AppVersion
from distributedlog.log.segments.staged_ledgers import StagedLedger
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Put, Transaction
from tests.metadata.local_metadata import LocalMetadata

LOG = 7


class Elected:
    async def is_elected(self) -> bool:
        return True


async def unlinked(
    metadata: LocalMetadata,
    ledger_id: int,
    app: str,
    version: int,
    owner: int | None = None,
    made_for: int = LOG,
) -> None:
    made = LedgerMetadata(
        ledger_id, 1, 1, 1, (Fragment(0, ("b1",), 0),), bytes(16),
        owner=None if owner is None else (LOG, owner), incarnation=made_for,
    )  # fmt: skip
    note = Put(staged_ledger_key(LOG, ledger_id), StagedLedger(app, version, 0).encode())
    await metadata.transact(creation_ops(made, ()) + Transaction((), (note,)))


async def states(metadata: LocalMetadata) -> dict[int, LedgerState]:
    page = await metadata.range(keys.LEDGER_PREFIX, prefix_end(keys.LEDGER_PREFIX))
    return {
        keys.ledger_id_of(item.key): LedgerMetadata.decode(item.key, item.value).state
        for item in page.items
    }


async def test_what_is_passed_goes_at_once_and_what_is_old_later(
    autojump_clock: MockClock,
) -> None:
    metadata = LocalMetadata()
    last = AppVersion(5, "", 0, 1, 1)
    await metadata.transact(Transaction((), (Put(app_version_key(LOG, "etl"), last.encode()),)))
    for number, (app, version) in enumerate((("etl", 4), ("etl", 5), ("etl", 6), ("", 0))):
        await unlinked(metadata, number, app, version)
    await unlinked(metadata, 9, "etl", 1, owner=3)  # linked between two looks: it stays

    collector = StagedLedgerCollector(metadata, Elected(), unlinked_s=100)
    gone, there = LedgerState.DELETING, LedgerState.OPEN
    await collector.run_pass()
    assert await states(metadata) == {0: gone, 1: gone, 2: there, 3: there, 9: there}
    await sleep(99)
    await collector.run_pass()
    assert (await states(metadata))[2] is there
    await unlinked(metadata, 4, "", 0)
    await sleep(2)
    await collector.run_pass()
    assert await states(metadata) == {0: gone, 1: gone, 2: gone, 3: gone, 4: there, 9: there}
    page = await metadata.range(STAGED_PREFIX, prefix_end(STAGED_PREFIX))
    assert [item.key for item in page.items] == [
        staged_ledger_key(LOG, 4),
        staged_ledger_key(LOG, 9),
    ]
    assert collector.collected_ledgers == 4


async def test_a_note_alone_deletes_no_ledger(autojump_clock: MockClock) -> None:
    """Whoever wrote ``loose/<log>/<ledger>``: a ledger that was made for no log, or another one, stays."""
    metadata = LocalMetadata()
    await unlinked(metadata, 1, "", 0, made_for=0)
    await unlinked(metadata, 2, "", 0, made_for=LOG + 1)
    poison = (b"loose/x", b"loose/1/2/3", staged_ledger_key(LOG, 3) + b"0", b"loose/\xff/\xfe")
    await metadata.transact(Transaction((), tuple(Put(key, b"") for key in poison)))
    await unlinked(metadata, 4, "", 0)
    collector = StagedLedgerCollector(metadata, Elected(), unlinked_s=100)

    await collector.run_pass()
    await sleep(101)
    await collector.run_pass()

    there, gone = LedgerState.OPEN, LedgerState.DELETING
    assert await states(metadata) == {1: there, 2: there, 4: gone}
