"""Compute the correct results of pipelines over the logs of `change_feed.py`, one record at a time.

The results come only from the records, in log order and with plain dictionaries. Use them to check a pipeline
on data that fits into memory.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
MINUTE_MS = 60_000


@dataclass(slots=True)
class DistinctEvents:
    """The distinct events of a log, in the order of their arrival."""

    events: list[Event] = field(default_factory=list)
    late: set[str] = field(default_factory=set)
    """IDs of events that arrived later than the patience after the latest earlier event. A pipeline with this
    watermark may count or drop them, depending on the ends of its micro-batches."""
    records: int = 0
    latest_ms: int = 0
    """The greatest event time."""


def distinct_events(
    payloads: Iterable[bytes], *, patience_ms: int = 10 * MINUTE_MS
) -> DistinctEvents:
    """Read the records of a log in order, and return its distinct events."""
    found, seen = DistinctEvents(), set()
    for payload in payloads:
        event = json.loads(payload)
        found.records += 1
        if event["event_id"] not in seen:
            seen.add(event["event_id"])
            found.events.append(event)
            if event["event_ms"] < found.latest_ms - patience_ms:
                found.late.add(event["event_id"])
        found.latest_ms = max(found.latest_ms, event["event_ms"])
    return found


@dataclass(slots=True)
class Revenue:
    """The paid orders of one minute and country."""

    orders: int = 0
    cents: int = 0


def revenue(orders: DistinctEvents, *, late: bool) -> dict[tuple[int, str], Revenue]:
    """Return paid orders by (minute of the event in ms, country), with or without late events."""
    found: dict[tuple[int, str], Revenue] = {}
    for event in orders.events:
        row = event["after"]
        if event["op"] != "u" or row["status"] != "paid":
            continue
        if late or event["event_id"] not in orders.late:
            minute = event["event_ms"] // MINUTE_MS * MINUTE_MS
            one = found.setdefault((minute, row["country"]), Revenue())
            one.orders += 1
            one.cents += row["amount_cents"]
    return found


def paid_orders(
    orders: DistinctEvents, payments: DistinctEvents, *, within_ms: int, late: bool
) -> set[tuple[int, str, int, int, int]]:
    """Return (order, payment, ordered ms, paid ms, cents paid) of each payment in time for its order."""
    created = {event["order_id"]: event for event in orders.events if event["op"] == "c"}
    found = set()
    for payment in payments.events:
        order = created.get(payment["order_id"])
        if order is None or not 0 <= payment["event_ms"] - order["event_ms"] <= within_ms:
            continue
        if late or not (order["event_id"] in orders.late or payment["event_id"] in payments.late):
            found.add(
                (payment["order_id"], payment["event_id"], order["event_ms"], payment["event_ms"],
                 payment["amount_cents"])
            )  # fmt: skip
    return found
