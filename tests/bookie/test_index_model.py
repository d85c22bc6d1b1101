"""The index against a dict: never a false negative, never other bytes (H8, H10, H3, H4)."""

import random
from dataclasses import replace

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.interfaces.errors import EntryConflict, NoSuchLedger
from tests.examples import examples

from .kit import KEY, OPTIONS, Adder, CutDisk, fence, read_all, record, running

TINY = replace(
    OPTIONS,
    journal_file_bytes=64 << 10,
    gather_bytes=64 << 10,
    unsynced_bytes_max=32 << 10,
    checkpoint_runs=7,
)
LEDGERS = (1, 2)


def span(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


ids = st.lists(st.integers(0, 40), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(LEDGERS), ids),
        st.tuples(
            st.just("add"),
            st.sampled_from(LEDGERS),
            st.builds(span, st.integers(0, 40), st.integers(1, 12)),
        ),
        st.tuples(st.just("conflict"), st.sampled_from(LEDGERS), st.integers(0, 40)),
        st.tuples(st.just("fence"), st.sampled_from(LEDGERS), st.none()),
        st.tuples(st.just("checkpoint"), st.just(0), st.booleans()),
        st.tuples(st.just("rest"), st.just(0), st.integers(0, 3)),
        st.tuples(st.just("kill"), st.just(0), st.none()),
        st.tuples(st.just("cut"), st.just(0), st.integers(0, 1000)),
        st.tuples(st.just("lose index"), st.just(0), st.none()),
    ),
    max_size=14,
)


def payload_of(ledger: int, entry: int) -> bytes:
    return random.Random(ledger * 1000 + entry).randbytes(entry * 37 % 900)


@settings(max_examples=examples(80))
@given(steps)
def test_what_was_acked_is_found_whatever_happens(plan: list[tuple[str, int, object]]) -> None:
    trio.run(_run, plan, clock=trio.testing.MockClock(autojump_threshold=0))


async def _run(plan: list[tuple[str, int, object]]) -> None:
    journal, index = CutDisk(sync_s=0.001), CutDisk()
    acked: dict[int, set[int]] = {ledger: set() for ledger in LEDGERS}
    sent: dict[int, set[int]] = {ledger: set() for ledger in LEDGERS}
    fenced: set[int] = set()
    steps = [*plan, ("kill", 0, None), ("lose index", 0, None)]
    while steps:
        async with running(journal, TINY, index) as store:
            for ledger in LEDGERS:
                await _check(store, ledger, acked[ledger], sent[ledger])
                if ledger in fenced:
                    assert store.ledgers.get_known(ledger, KEY).fenced
            assert store.ledgers.limbo_below == 0
            adders: dict[int, Adder] = {}
            positions: dict[int, list[int]] = {ledger: [] for ledger in LEDGERS}
            while steps:
                step, ledger, detail = steps.pop(0)
                if step in ("add", "conflict") and ledger not in adders:
                    adders[ledger] = Adder(store, ledger, recovery=ledger in fenced)
                if step == "add":
                    assert isinstance(detail, list)
                    adders[ledger].send(*(record(ledger, n, payload_of(ledger, n)) for n in detail))
                    positions[ledger] += detail
                    sent[ledger] |= set(detail)
                elif step == "conflict" and detail in acked[ledger]:
                    liar = Adder(store, ledger, recovery=True)
                    liar.send(record(ledger, detail, b"other bytes than before"))
                    await trio.sleep(0.1)
                    assert isinstance(liar.refused[0][0], EntryConflict)
                    assert liar.acked == 0
                elif step == "fence":
                    await fence(store, ledger)
                    fenced.add(ledger)
                    old = adders.pop(ledger, None)
                    if old is not None:
                        _count(old, positions[ledger], acked[ledger])
                        positions[ledger] = []
                elif step == "checkpoint":
                    if detail:  # of what is durable; else while it is gathered
                        await trio.sleep(0.01)
                    await store.checkpoint()
                elif step == "rest":
                    await trio.sleep((0.0005, 0.0015, 0.03, 6.0)[detail])  # type: ignore[call-overload]
                elif step in ("kill", "cut", "lose index"):
                    break
            for ledger, adder in adders.items():
                assert not adder.refused
                _count(adder, positions[ledger], acked[ledger])
            for ledger in LEDGERS:  # with runs in memory, in the map, and being written
                await _check(store, ledger, acked[ledger], sent[ledger])
            if step == "cut":
                assert isinstance(detail, int)
                journal = journal.cut(random.Random(detail))
        if step == "lose index":
            index = CutDisk()


def _count(adder: Adder, positions: list[int], acked: set[int]) -> None:
    acked |= set(positions[: adder.acked])


async def _check(store: BookieStore, ledger: int, acked: set[int], sent: set[int]) -> None:
    try:
        found = await read_all(store, ledger)
    except NoSuchLedger:
        found = {}
    assert acked <= set(found) <= sent, (ledger, sorted(acked - set(found)))
    for entry, raw in found.items():
        assert raw == record(ledger, entry, payload_of(ledger, entry))
    for entry in acked:  # a read may begin anywhere
        assert list(await read_all(store, ledger, entry, entry)) == [entry], (ledger, entry)
