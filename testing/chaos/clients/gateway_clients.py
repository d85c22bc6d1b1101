"""Clients of the gateways: each request again until it is answered, so that each record is stored once.

HTTP is spoken by a thread: what a program without anything of ours would do.
"""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from ....log.format.dlsn import DLSN
from ...verify.history.run_history import Outcome, Value, to_payload
from .client_context import Life, after, before, one_line
from .writers import consecutive

ANSWER_S = 30.0
AGAIN_S = 0.2
REQUESTS_PER_S = 20.0
FENCED = 409
REFUSED = range(400, 500)


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back; status 0: nothing."""

    status: int
    body: dict[str, Any]

    @property
    def words(self) -> str:
        """For the notes."""
        return f"{self.status} {json.dumps(self.body)}"[:300]


async def post(life: Life, gateways: Sequence[str]) -> None:
    """Post records to a log under a producer's name, for ever; a new session where one was fenced."""
    log = life.options["log"]
    made = json.dumps({"txids": "given"}).encode()  # as whoever writes it in the end gives them
    while not life.stop.is_set():
        found = await _call(life, gateways, "PUT", f"/v1/logs/{log}", made)
        if found.status in (201, FENCED):  # there already
            await _session(life, gateways, log)
        await life.rest(AGAIN_S)


async def _session(life: Life, gateways: Sequence[str], log: str) -> None:
    number, begun = life.new_session(), before()
    named = json.dumps({"name": life.name}).encode()
    found = await _call(life, gateways, "POST", f"/v1/logs/{log}/producers", named)
    if found.status != 201:
        life.notes.note("note", after(), f"{log}: no producer: {found.words}")
        return
    life.notes.note("open", number, log, True, begun, after())
    producer, first = found.body["producer"], found.body["next_sequence"]
    records = max(1, int(life.options["rate"] / REQUESTS_PER_S))
    counter, why = 0, ""
    while not why and not await life.rest(1 / REQUESTS_PER_S):
        why = await _records(life, gateways, number, producer, first + counter, counter, records)
        counter += records
    life.notes.note("end", number, counter, after(), why)


async def _records(
    life: Life,
    gateways: Sequence[str],
    session: int,
    producer: str,
    sequence: int,
    counter: int,
    records: int,
) -> str:
    """Post some until they are answered; empty, or what ended the session."""
    begun, size = before(), life.options["payload_bytes"]
    txid = time.time_ns() // 1_000_000
    payloads = [to_payload(Value(session, counter + n), size) for n in range(records)]
    lines = [
        json.dumps({"payload_base64": base64.b64encode(one).decode(), "txid": txid})
        for one in payloads
    ]
    found = await _call(
        life,
        gateways,
        "POST",
        f"/v1/logs/{life.options['log']}/records",
        "\n".join(lines).encode() + b"\n",
        {
            "Content-Type": "application/x-ndjson",
            "Dlog-Producer": producer,
            "Dlog-Sequence": str(sequence),
        },
    )
    if found.status == 200 and found.body["dlsns"]:
        places = consecutive([DLSN.parse(one) for one in found.body["dlsns"]])
        life.notes.note("ack", session, counter, begun, after(), places)
        return ""
    # Earlier tries may have been stored though the last one was refused.
    outcome = Outcome.UNKNOWN.value
    life.notes.note("fail", session, counter, records, begun, after(), outcome, found.words)
    return found.words


async def _call(
    life: Life,
    gateways: Sequence[str],
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str] | None = None,
) -> Answered:
    """Ask one gateway after the other until one says yes or no, or it is time to end."""
    tries = 0
    while True:
        url = gateways[tries % len(gateways)] + path
        tries += 1
        ask = partial(_ask, method, url, body, headers or {})
        found = await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
        if 200 <= found.status < 300 or (found.status in REFUSED and found.status != 429):
            return found
        if await life.rest(AGAIN_S):
            return found


def _ask(method: str, url: str, body: bytes, headers: dict[str, str]) -> Answered:
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return Answered(answer.status, json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        return Answered(error.code, _object(error.read()))
    except (OSError, ValueError) as error:
        return Answered(0, {"error": one_line(error)})


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
