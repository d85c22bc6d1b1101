"""Replace every text of health conditions and every text parameter by random words: no decision changes.

Decided are the health of a cluster, its conditions, the exit code of `dlog status`, whether nodes may be
stopped, whether a metadata leader refuses writes, what of a registration is sent at once, and the commands
that the console gives.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from distributedlog.cluster.coordination.gc_hold import hold_deletions
from distributedlog.cluster.node.bookie_assembly import urgent_parts
from distributedlog.cluster.repair import decommission as leaving
from distributedlog.cluster.status import cluster_overview as overview
from distributedlog.cluster.status.safe_to_stop import check_stop
from distributedlog.console.suggested_command import command_for
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange, encode_missing_ranges
from distributedlog.metadata.model.interface import MemberStatus
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.metadata.protocol import client_messages as wire
from distributedlog.metadata.storage.metadata_disk_space import is_disk_low
from distributedlog.runtime.declarations import condition_texts
from distributedlog.runtime.declarations.health_conditions import (
    CONDITIONS_MAX,
    NODE_PARAMETERS,
    Code,
    HealthCondition,
    from_map,
)
from distributedlog.runtime.protocol.frames import pack
from tests.conditions import every_condition
from tests.metadata.local_metadata import LocalMetadata

WORDS = (
    *("moon", "river", "nine", "is down", "no room", "healed: ", "healing: ", "limbo", "damaged"),
    *("read-only", "without a good copy: ", "metadata node m1", "dlog metadata gc resume", "rot"),
)
"""Words from which versions without codes decide are among them."""
IDS = [f"{n:032x}" for n in range(1, 8)]


class Texts:
    """Gives each text as it is, or random words instead."""

    def __init__(self, seed: int | None) -> None:
        self._chance = None if seed is None else random.Random(seed)

    def of(self, text: str) -> str:
        if self._chance is None:
            return text
        return " ".join(self._chance.sample(WORDS, 3))

    def changed(self, conditions: Iterable[HealthCondition]) -> tuple[HealthCondition, ...]:
        """The conditions with other texts in the place of their text parameters."""
        return tuple(
            replace(
                one,
                parameters={
                    name: self.of(value) if isinstance(value, str) else value
                    for name, value in one.parameters.items()
                },
            )
            for one in conditions
        )


class World(LocalMetadata):
    """A cluster with something of everything, and metadata nodes in each state."""

    listener = ""

    def __init__(self, texts: Texts) -> None:
        super().__init__()
        of_nodes = texts.changed(every_condition())
        low = [one for one in of_nodes if one.code == Code.METADATA_DISK_LOW]
        rows = [
            MemberStatus("m1", "h:1", "leader", 1, 1, True, "1", tuple(low)),
            MemberStatus("m2", "h:2", "damaged", 1, 1, True, "2", (), texts.of("torn")),
            MemberStatus("m3", "h:3", "unreachable", 0, 0, False, "3", (), texts.of("WrongPeer")),
            MemberStatus("m4", "h:4", "empty", 0, 0, True, "4"),
            MemberStatus("m5", "h:5", "follower", 1, 1, True, "5", (*low, *of_nodes[:15])),
            MemberStatus("m6", "h:6", "follower", 1, 1, True, "6", of_nodes[-CONDITIONS_MAX:]),
        ]
        sent = wire.encode_rows([wire.MemberStatusRow(one, {}) for one in rows])
        self.rows = [row.status for row in wire.decode_rows(sent)]
        self.registrations: list[BookieRegistration] = []
        self._texts = texts

    async def status(self) -> list[MemberStatus]:
        return self.rows

    async def put(self, key: bytes, value: bytes) -> None:
        await self.transact(Transaction((), (Put(key, value),)))

    async def build(self) -> None:
        """Seven bookies: each sends some conditions; one is down, one leaves, one is read-only."""
        conditions = self._texts.changed(every_condition())
        for n, bookie in enumerate(IDS):
            mine = conditions[n :: len(IDS)][:CONDITIONS_MAX]
            one = BookieRegistration(
                bookie,
                {"": ("h", n)},
                read_only=n == 2,
                conditions=mine,
                copies_assigned_ledgers=True,
            )
            self.registrations.append(one)
            await self.put(keys.cookie_key(bookie), pack({"label": f"b{n}", "incarnation": 1}))
            await self.put(keys.bookie_key(bookie), one.encode())
        await self.transact(Transaction((), (Delete(keys.bookie_key(IDS[0])),)))
        for ledger_id, first in ((5, 0), (6, 1), (7, 2), (8, 3)):
            bookies = tuple(IDS[first : first + 3])
            made = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, bookies, 0),), bytes(16))
            await self.transact(transactions.creation_ops(made, ()))
            if ledger_id != 6:
                closed = made.close_by_writer(9, 100)
                await self.transact(transactions.close_ops(closed, 1, ()))
        await leaving.request_decommission(self, IDS[1])
        await self.put(
            keys.missing_ranges_key(8),
            encode_missing_ranges([MissingRange(IDS[3], 0, 5), MissingRange(IDS[4], 0, 5)]),
        )
        await hold_deletions(self, self._texts.of("restored from a save"))


async def decisions(texts: Texts) -> dict[str, Any]:
    """All that programs decide from conditions, without the texts."""
    world: Any = World(texts)
    await world.build()
    status = await overview.status(world, 30.0)
    conditions = [from_map(one) for one in status["conditions"]]
    stops: dict[str, Any] = {}
    for name in ("m1", "m5", *IDS[1:], "b1 b2"):
        named = [IDS[1], IDS[2]] if name == "b1 b2" else [name]
        found = await check_stop(world, world.rows, named)
        stops[name] = (found.is_safe, [(one.code, _integers(one)) for one in found.conditions])
    return {
        "health": (status["health"], status["healthy"]),
        "conditions": [(one.code, one.severity, _integers(one)) for one in conditions],
        "about": [(one.bookie, one.node) for one in conditions],
        "commands": [command_for(one) for one in conditions],
        "states": [(row["state"], row["draining"]) for row in status["bookies"]],
        "roles": [row["role"] for row in status["metadata"]],
        "low": [is_disk_low(row.conditions) for row in world.rows],
        "urgent": [urgent_parts(one) for one in world.registrations],
        "stops": stops,
    }


def _integers(one: HealthCondition) -> dict[str, int]:
    return {
        name: value
        for name, value in one.parameters.items()
        if isinstance(value, int) and name not in NODE_PARAMETERS
    }


@pytest.mark.parametrize("seed", range(4))
async def test_random_texts_change_no_decision(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await decisions(Texts(None))
    assert len({code for code, _, _ in expected["conditions"]}) > 40, "most codes are there"
    assert {may for may, _ in expected["stops"].values()} == {True, False}
    assert expected["low"].count(True) == 2

    texts = Texts(seed)
    for code in Code:
        monkeypatch.setitem(condition_texts.TEXTS, code, texts.of(""))

    assert await decisions(texts) == expected
