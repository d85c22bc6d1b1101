"""The change feed: the same bytes for a seed, whatever the batch, and true to what its page says."""

import json
from collections import Counter
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("numpy", reason="pip install '.[spark]'")

from examples.spark.change_feed import ChangeFeed, FeedRecords

pytestmark = pytest.mark.extra

FEED = ChangeFeed(seed=7, orders_per_minute=100)
DIGEST = "1c38af38f7931cebf71864a304971bb14432a2b9c1cf6435cc292ac506909fcb"
"""Of its first 60,000 records."""


def joined(feed: ChangeFeed, records: int, **options: int) -> tuple[FeedRecords, FeedRecords]:
    """All of a feed, by log."""
    found = (FeedRecords([], []), FeedRecords([], []))
    for part in feed.parts(records, **options):
        for all_of, some in zip(found, (part.orders, part.payments), strict=True):
            all_of.txids += some.txids
            all_of.payloads += some.payloads
    return found


def digest(found: tuple[FeedRecords, FeedRecords]) -> str:
    """Of every txid and payload, in order."""
    made = sha256()
    for records in found:
        made.update(repr(records.txids).encode())
        made.update(b"\n".join(records.payloads))
    return made.hexdigest()


def parsed(records: FeedRecords) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in records.payloads]


def test_the_same_bytes_for_a_seed() -> None:
    """On any machine, under any PYTHONHASHSEED, whatever is rendered at a time."""
    assert digest(joined(FEED, 60_000)) == DIGEST
    assert digest(joined(FEED, 60_000, batch=777)) == DIGEST
    assert digest(joined(ChangeFeed(seed=8, orders_per_minute=100), 60_000)) != DIGEST


def test_a_feed_goes_on_where_it_ended() -> None:
    whole = joined(FEED, 50_000)
    begin, rest = joined(FEED, 20_001), joined(FEED, 29_999, first=20_001)

    for all_of, one, two in zip(whole, begin, rest, strict=True):
        assert all_of.txids == one.txids + two.txids
        assert all_of.payloads == one.payloads + two.payloads
    assert sum(len(records.txids) for records in begin) == 20_001


def test_it_is_in_the_order_of_writing_and_events_are_not() -> None:
    orders, payments = joined(FEED, 50_000)

    for records in (orders, payments):
        assert all(a <= b for a, b in pairwise(records.txids))
        delays = [
            txid - event["event_ms"]
            for txid, event in zip(records.txids, parsed(records), strict=True)
        ]
        assert min(delays) >= 0
        assert 0.03 < sum(10_000 <= delay < 180_000 for delay in delays) / len(delays) < 0.08
        assert 0 < sum(delay >= 1_800_000 for delay in delays) / len(delays) < 0.004
    times = [event["event_ms"] for event in parsed(orders)]
    assert sum(a > b for a, b in pairwise(times)) > len(times) // 20


def test_changes_of_an_order_are_a_story() -> None:
    """Versions count from 1 without gaps, a duplicate is the same bytes, a deletion is the end."""
    orders, _ = joined(FEED, 50_000)
    stories: dict[int, dict[int, bytes]] = {}
    for event, payload in zip(parsed(orders), orders.payloads, strict=True):
        known = stories.setdefault(event["order_id"], {})
        assert known.setdefault(event["version"], payload) == payload
    finished = [known for order, known in stories.items() if order < 5_000]
    kinds: Counter[str] = Counter()
    for known in finished:
        story = [json.loads(known[version]) for version in sorted(known)]
        kinds["".join(event["op"] for event in story)] += 1
        times = [event["event_ms"] for event in story]
        assert all(b - a >= 1_000 for a, b in pairwise(times))
        assert all((event["after"] is None) == (event["op"] == "d") for event in story)
        assert sorted(known) == list(range(1, len(known) + 1))
    assert {"c", "cu", "cuu", "cud", "cd", "cuud"} <= set(kinds)
    assert len(orders.payloads) - len(set(orders.payloads)) > len(orders.payloads) // 100


def test_payments_refer_to_orders() -> None:
    orders, payments = joined(FEED, 50_000)
    paid = {
        event["order_id"]: event["after"]["amount_cents"]
        for event in parsed(orders)
        if event["op"] == "u" and event["after"]["status"] == "paid"
    }
    kinds: Counter[str] = Counter()
    for event in parsed(payments):
        if event["order_id"] >= 10**12:
            kinds["unknown order"] += 1
        elif event["order_id"] not in paid:
            kinds["order not yet told"] += 1
        elif event["amount_cents"] != paid[event["order_id"]]:
            kinds["half"] += 1
        else:
            kinds["right"] += 1

    assert kinds["right"] > 10_000
    assert 50 < kinds["unknown order"] < 500
    assert 50 < kinds["half"] < 500
    assert kinds["order not yet told"] < 100


def test_without_late_and_duplicate_events_the_last_record_is_the_highest_version() -> None:
    feed = ChangeFeed(seed=7, late_share=0, very_late_share=0, duplicate_share=0)
    orders, _ = joined(feed, 50_000)
    versions: dict[int, int] = {}

    for event in parsed(orders):
        assert event["version"] == versions.get(event["order_id"], 0) + 1
        versions[event["order_id"]] = event["version"]


def test_few_customers_have_many_orders() -> None:
    orders, _ = joined(FEED, 50_000)
    counts = Counter(e["after"]["customer_id"] for e in parsed(orders) if e["op"] == "c")

    assert sum(count for _, count in counts.most_common(16)) > counts.total() // 8
    assert len(counts) > 3_000
