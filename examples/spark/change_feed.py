"""Generate a change feed to test pipelines: orders and payments, with late and duplicate events.

    python examples/spark/change_feed.py --uri URI --records 1000000 --seed 7

There are two logs of JSON records. `orders` has the changes of a table, as a database connector writes them:

    {"event_id":"o17-2","op":"u","order_id":17,"version":2,"event_ms":1767225612345,"before":null,
     "after":{"customer_id":42,"country":"DE","status":"paid","amount_cents":1999,"items":3}}

``op`` is ``c`` (created), ``u`` (amount changed, paid or cancelled) or ``d`` (deleted: ``before`` has the
row,
``after`` is null). ``version`` counts the changes of an order from 1, without gaps. A record of `payments`:

    {"event_id":"p17","order_id":17,"event_ms":1767225611345,"amount_cents":1999,"method":"card"}

The feed has these properties of real feeds:

- An event is written after it happened. The transaction ID is the time of the write in ms, ``event_ms`` that
  of
  the event. The delay is mostly below a second, sometimes up to two minutes, rarely half an hour to an hour.
- Some events are written twice, with the same ``event_id``.
- A few customers have many of the orders.
- A payment may be very late, may be half of the amount, or may be for an unknown order.

Therefore take the state of an order from its highest version, not from its last record. Without late and
duplicate events (all three shares 0) both are the same.

All values are computed with integers from the seed and the order number, so the bytes are the same on any
machine. A shorter feed is the beginning of a longer one. --first N continues after N records.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio

from distributedlog import Log, open_namespace

MINUTE_MS = 60_000
START_MS = 1_767_225_600_000  # 2026-01-01 00:00 UTC
UNKNOWN_ORDERS = 10**12
"""Order IDs from here on belong to payments for orders that were never created."""

CREATED, CHANGED, PAID, CANCELLED, DELETED, PAYMENT, STRAY = range(7)
"""The kinds of events. The first five are changes of an order, the others payments."""
KINDS = 8

COUNTRIES = np.array(
    [*["DE"] * 4, *["FR"] * 3, *["GB", "NL", "IT"] * 2, "ES", "PL", "SE"], dtype=object
)
METHODS = np.array([*["card"] * 3, *["paypal"] * 2, *["invoice"] * 2, "transfer"], dtype=object)
STATUS = np.array(["open", "open", "paid", "cancelled"], dtype=object)  # after CREATED to CANCELLED

_ROW = '{"customer_id":%d,"country":"%s","status":"%s","amount_cents":%d,"items":%d}'
_CHANGE = '{"event_id":"o%d-%d","op":"%s","order_id":%d,"version":%d,"event_ms":%d,'
ORDER = _CHANGE + '"before":null,"after":' + _ROW + "}"
DELETION = _CHANGE + '"before":' + _ROW + ',"after":null}'
PAYMENT_RECORD = '{"event_id":"p%d","order_id":%d,"event_ms":%d,"amount_cents":%d,"method":"%s"}'


@dataclass(slots=True)
class FeedRecords:
    """Consecutive records of one log."""

    txids: list[int]
    """When each record was written, in ms since 1970. Never decreases."""
    payloads: list[bytes]


@dataclass(slots=True)
class FeedPart:
    """The next records of the feed, by log."""

    orders: FeedRecords
    payments: FeedRecords


@dataclass(frozen=True, slots=True)
class ChangeFeed:
    """The parameters that determine the feed (pure). Shares are fractions of all events, from 0 to 1."""

    seed: int = 1
    orders_per_minute: int = 600
    """Orders per minute of event time. An order has about three records."""
    start_ms: int = START_MS
    late_share: float = 0.05
    """Share of events that are written 10 s to 2 min after they happen."""
    very_late_share: float = 0.002
    """Share of events that are written 30 min to 1 h after they happen."""
    duplicate_share: float = 0.02
    """Share of events that are written again within the minute after the first time."""

    def parts(self, records: int, *, first: int = 0, batch: int = 50_000) -> Iterator[FeedPart]:
        """Yield ``records`` records of both logs together, after the ``first`` ones.

        The result does not depend on ``batch``, the maximum number of records per part. Records before
        ``first``
        are computed as well, but not rendered.
        """
        at, end = 0, first + records
        for arrivals, idents, events in self._in_order():
            low, high = max(first - at, 0), min(end - at, len(arrivals))
            for i in range(low, high, batch):
                some = slice(i, min(i + batch, high))
                yield self._rendered(arrivals[some], idents[some], events[some])
            at += len(arrivals)
            if at >= end:
                return

    # --- the events and their times ---------------------------------------------------------------

    def _in_order(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield arrays of the write time (ms), the event and its time (ms), in the order of writing, without
        end.

        An event is a number that encodes the order, the kind and whether it is a duplicate.
        """
        size = max(16_384, 10 * self.orders_per_minute)
        waiting: tuple[Any, ...] = tuple(np.empty(0, dtype=np.int64) for _ in range(3))
        at = 0
        while True:
            made = self._events_of(np.arange(at, at + size, dtype=np.int64))
            waiting = tuple(np.concatenate(pair) for pair in zip(waiting, made, strict=True))
            at += size
            # No record of a later order is written before the next order is created.
            ready = waiting[0] < self._created_from(at)
            now = tuple(column[ready] for column in waiting)
            waiting = tuple(column[~ready] for column in waiting)
            order = np.lexsort((now[1], now[0]))
            yield now[0][order], now[1][order], now[2][order]

    def _events_of(self, orders: Any) -> tuple[Any, Any, Any]:
        """Return all events of these orders, unsorted."""
        created = self._created_from(orders) + self._draw("created", orders, 1_000)
        changed = self._changed(orders)
        outcome = self._outcome(orders)
        decided = created + 61_000 + self._draw("decided", orders, 540_000)
        patient = (outcome == PAID) & (self._draw("patient", orders, 100) < 2)
        decided[patient] = (created + 1_200_000 + self._draw("decided", orders, 600_000))[patient]
        happened: tuple[tuple[int, Any, Any], ...] = (
            (CREATED, created, np.ones(len(orders), dtype=bool)),
            (CHANGED, created + 1_000 + self._draw("changes", orders, 59_000), changed),
            (PAID, decided, outcome == PAID),
            (CANCELLED, decided, outcome == CANCELLED),
            (DELETED, decided + 10_000 + self._draw("deletes", orders, 600_000),
             self._draw("deleted", orders, 100) < 5),
            (PAYMENT, decided - 50 - self._draw("pays", orders, 1_950), outcome == PAID),
            (STRAY, created + self._draw("strays", orders, 600_000),
             self._draw("stray", orders, 100) < 1),
        )  # fmt: skip
        which = np.concatenate([orders[there] * KINDS + kind for kind, _, there in happened])
        events = np.concatenate([when[there] for _, when, there in happened])
        written = events + self._delay(which)
        twice = self._below("duplicate", which, self.duplicate_share)
        again = (written + 1 + self._draw("again", which, MINUTE_MS))[twice]
        return (
            np.concatenate([written, again]),
            np.concatenate([which * 2, which[twice] * 2 + 1]),
            np.concatenate([events, events[twice]]),
        )

    def _delay(self, which: Any) -> Any:
        """Return the delays from events to their first records in ms.

        Delays of punctual events are shorter than the time between two changes of an order.
        """
        found = self._draw("delay", which, 1_000)
        late = self._below("late", which, self.late_share)
        found[late] = (10_000 + self._draw("later", which, 110_000))[late]
        very = self._below("very late", which, self.very_late_share)
        found[very] = (1_800_000 + self._draw("much later", which, 1_800_000))[very]
        return found

    def _created_from(self, orders: Any) -> Any:
        """Return the earliest time at which an order may be created."""
        return self.start_ms + orders * MINUTE_MS // self.orders_per_minute

    def _changed(self, orders: Any) -> Any:
        return self._draw("changed", orders, 100) < 30

    def _outcome(self, orders: Any) -> Any:
        """Return PAID, CANCELLED, or CREATED for an order that stays open."""
        drawn = self._draw("outcome", orders, 100)
        return np.where(drawn < 70, PAID, np.where(drawn < 85, CANCELLED, CREATED))

    # --- the contents of the events ---------------------------------------------------------------

    def _rendered(self, arrivals: Any, idents: Any, events: Any) -> FeedPart:
        orders, kinds = idents // (2 * KINDS), idents // 2 % KINDS
        pays = kinds >= PAYMENT
        changes = ~pays
        return FeedPart(
            FeedRecords(
                arrivals[changes].tolist(),
                self._changes(orders[changes], kinds[changes], events[changes]),
            ),
            FeedRecords(
                arrivals[pays].tolist(), self._payments(orders[pays], kinds[pays], events[pays])
            ),
        )

    def _changes(self, orders: Any, kinds: Any, events: Any) -> list[bytes]:
        changed = self._changed(orders).astype(np.int64)
        outcome = self._outcome(orders)
        versions = np.choose(
            kinds, (1, 2, 2 + changed, 2 + changed, 2 + changed + (outcome != CREATED))
        )
        customers = self._customers(orders)
        keys, numbers = orders.tolist(), versions.tolist()
        rows = zip(
            keys,
            numbers,
            np.array(["c", "u", "u", "u", "d"], dtype=object)[kinds].tolist(),
            keys,
            numbers,
            events.tolist(),
            customers.tolist(),
            COUNTRIES[self._draw("country", customers, 16)].tolist(),
            STATUS[np.where(kinds == DELETED, outcome, kinds)].tolist(),
            self._amounts(orders, (kinds != CREATED) & (changed == 1)).tolist(),
            (1 + self._draw("items", orders, 5)).tolist(),
            strict=True,
        )
        templates = np.array([ORDER] * 4 + [DELETION], dtype=object)[kinds].tolist()
        return [(made % row).encode() for made, row in zip(templates, rows, strict=True)]

    def _payments(self, orders: Any, kinds: Any, events: Any) -> list[bytes]:
        ids = np.where(kinds == STRAY, UNKNOWN_ORDERS + orders, orders)
        amounts = self._amounts(orders, self._changed(orders))
        amounts = np.where(self._draw("half", orders, 100) < 1, amounts // 2, amounts)
        keys = ids.tolist()
        rows = zip(
            keys,
            keys,
            events.tolist(),
            amounts.tolist(),
            METHODS[self._draw("method", orders, 8)].tolist(),
            strict=True,
        )
        return [(PAYMENT_RECORD % row).encode() for row in rows]

    def _customers(self, orders: Any) -> Any:
        """Return one of 65,536 customers per order.

        The 16 with the lowest numbers have a sixth of all orders.
        """
        return self._draw("customer", orders, 1 << 62) & (
            (1 << (4 + self._draw("fame", orders, 13))) - 1
        )

    def _amounts(self, orders: Any, changed: Any) -> Any:
        """Return amounts from 4.00 to 1,023.99, in cents. Most are small."""
        drawn = self._draw("amount", np.where(changed, -1 - orders, orders), 1 << 62)
        low = 400 << (drawn & 7)
        return low + (drawn >> 3) % low

    # --- randomness -------------------------------------------------------------------------------

    def _below(self, what: str, which: Any, share: float) -> Any:
        return self._draw(what, which, 1 << 32) < int(share * (1 << 32))

    def _draw(self, what: str, which: Any, sides: int) -> Any:
        """Return a random number per input, from 0 to ``sides`` - 1 (at most 2**62): SplitMix64's
        finalizer."""
        salt = self.seed & (1 << 64) - 1
        for byte in what.encode():
            salt = (salt ^ byte) * 0x100000001B3 & (1 << 64) - 1
        found = which.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
        found = (found ^ found >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ found >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return (((found ^ found >> np.uint64(31)) >> np.uint64(2)) % np.uint64(sides)).astype(
            np.int64
        )


# --- writing to the logs --------------------------------------------------------------------------


async def write(uri: str, logs: Sequence[str], feed: ChangeFeed, records: int, first: int) -> str:
    """Write the feed to two logs, which are created if necessary. Return a summary in one line."""
    started = time.perf_counter()
    counts, size = [0, 0], 0
    async with open_namespace(uri) as namespace:
        for name in logs:
            if not await namespace.log_exists(name):
                await namespace.create_log(name)
        opened: list[Log] = [namespace.open_log(name) for name in logs]
        async with opened[0].open_writer() as orders, opened[1].open_writer() as payments:
            for part in feed.parts(records, first=first):
                for i, (writer, some) in enumerate(
                    ((orders, part.orders), (payments, part.payments))
                ):
                    await writer.submit_columns(some.txids, some.payloads)
                    counts[i] += len(some.txids)
                    size += sum(map(len, some.payloads))
                await trio.lowlevel.checkpoint()  # rendering a part takes a tenth of a second
            await orders.commit()
            await payments.commit()
    took = time.perf_counter() - started
    return (
        f"{counts[0]} records in {logs[0]}, {counts[1]} in {logs[1]}, {size / 1e6:.1f} MB "
        f"in {took:.1f} s: {sum(counts) / took:.0f} records/s"
    )


def main() -> None:
    """Run the command."""
    usual = ChangeFeed()
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--uri", default=os.environ.get("DLOG_URI"), help="default: $DLOG_URI")
    ask.add_argument("--orders-log", default="orders")
    ask.add_argument("--payments-log", default="payments")
    ask.add_argument("--records", type=int, default=100_000, help="records of both logs together")
    ask.add_argument("--first", type=int, default=0, help="records to skip at the beginning")
    ask.add_argument("--seed", type=int, default=usual.seed)
    ask.add_argument("--orders-per-minute", type=int, default=usual.orders_per_minute)
    ask.add_argument("--start-ms", type=int, default=usual.start_ms, help="time of the first order")
    ask.add_argument("--late-share", type=float, default=usual.late_share)
    ask.add_argument("--very-late-share", type=float, default=usual.very_late_share)
    ask.add_argument("--duplicate-share", type=float, default=usual.duplicate_share)
    given = ask.parse_args()
    if not given.uri:
        ask.error("set --uri or DLOG_URI to the URI of the cluster")
    feed = ChangeFeed(
        seed=given.seed,
        orders_per_minute=given.orders_per_minute,
        start_ms=given.start_ms,
        late_share=given.late_share,
        very_late_share=given.very_late_share,
        duplicate_share=given.duplicate_share,
    )
    logs = (given.orders_log, given.payments_log)
    print(trio.run(write, given.uri, logs, feed, given.records, given.first))


if __name__ == "__main__":
    main()
