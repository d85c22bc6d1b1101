"""What one bookie says of every entry of a log: it has it, it does not know, or there is none."""

from dataclasses import dataclass, field

import trio

from distributedlog import LogRecord, open_namespace
from distributedlog.bookie.format import entry as entries
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata
from distributedlog.log.namespace import Namespace
from distributedlog.runtime.interfaces.errors import CorruptData, LedgerStateUnknown, NoSuchLedger
from distributedlog.runtime.interfaces.host import Address

ASK_S = 10.0
Place = tuple[int, int]
"""A ledger and an entry."""


@dataclass
class Testimony:
    """A bookie's answers, entry by entry."""

    held: set[Place] = field(default_factory=set)
    unknown: set[Place] = field(default_factory=set)
    """It may have had them: limbo, or damage (the honest answer)."""
    denied: set[Place] = field(default_factory=set)
    """"There is no such entry here": for what it had acknowledged, a lie (G3)."""


def write(uri: str, name: str, payloads: list[bytes]) -> None:
    """Write records, each an entry of its own, and close the segment."""

    async def main() -> None:
        async with open_namespace(uri) as namespace:
            log = namespace.open_log(name, config={"max_txid_check": False})
            async with log.open_writer() as writer:
                for number, payload in enumerate(payloads):
                    await writer.write(LogRecord(number, payload))

    trio.run(main)


def ask(uri: str, name: str, address: Address) -> Testimony:
    """Ask the bookie at ``address`` for every entry of the log that any write set gave it."""

    async def main() -> Testimony:
        async with open_namespace(uri) as namespace:
            with trio.fail_after(60):
                return await _ask(namespace, name, address)

    return trio.run(main)


async def _ask(namespace: Namespace, name: str, address: Address) -> Testimony:
    bookie_id = await _at(namespace, address)
    client = await namespace.ledgers.pool.connected(bookie_id, ASK_S)  # type: ignore[attr-defined]
    found = Testimony()
    described = await namespace.open_log(name).describe()
    for segment in described.segments:
        stored = await namespace.metadata.get(keys.ledger_key(segment.ledger_id))
        assert stored is not None
        ledger = LedgerMetadata.decode(stored.key, stored.value)
        if bookie_id not in ledger.bookies():
            continue
        assert ledger.last_entry is not None, "the writer has closed it"
        for number in range(ledger.last_entry + 1):
            place = (ledger.ledger_id, number)
            try:
                said = await client.read(
                    ledger.ledger_id,
                    ledger.key,
                    number,
                    number,
                    1 << 20,
                    past_lac=True,
                    timeout_s=ASK_S,
                )
            except (CorruptData, LedgerStateUnknown):
                found.unknown.add(place)
                continue
            except NoSuchLedger:
                found.denied.add(place)
                continue
            if len(said.body):
                (found.held if _sound(said.body, number) else found.unknown).add(place)
            elif said.proves_absence:
                found.denied.add(place)
            else:
                found.unknown.add(place)
    return found


def _sound(body: memoryview, number: int) -> bool:
    """Records are handed out as they lie on the disk: who reads them checks their digests."""
    try:
        return [record.entry for record in entries.records(body)] == [number]
    except CorruptData:
        return False


async def _at(namespace: Namespace, address: Address) -> str:
    """The id of the bookie that is registered at an address."""
    pool = namespace.ledgers.pool  # type: ignore[attr-defined]
    with trio.fail_after(ASK_S):
        while True:
            for registration in pool.live():
                if tuple(registration.addresses[""]) == tuple(address):
                    return str(registration.id)
            changed = trio.Event()
            stop = pool.subscribe(changed.set)
            await changed.wait()
            stop()
