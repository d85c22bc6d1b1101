"""Clients of the gateways, which repeat each request until it is answered.

So each record is stored once. HTTP requests run in a thread, with the standard library, as in a program
without this package.
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
from .client_context import ClientLife, after, before, one_line
from .writers import consecutive

ANSWER_S = 30.0
AGAIN_S = 0.2
REQUESTS_PER_S = 20.0
FENCED = 409
REFUSED = range(400, 500)


@dataclass(frozen=True, slots=True)
class Answered:
    """A response; status 0 if there was none."""

    status: int
    body: dict[str, Any]

    @property
    def text(self) -> str:
        """The response as one line for the observations."""
        return f"{self.status} {json.dumps(self.body)}"[:300]


async def post(life: ClientLife, gateways: Sequence[str]) -> None:
    """Post records to a log under a producer's name forever. If the session is fenced, open a new one."""
    log = life.options["log"]
    log_settings = json.dumps(
        {"txids": "given"}
    ).encode()  # the final writer of the run assigns transaction IDs
    while not life.stop.is_set():
        answer = await _call(life, gateways, "PUT", f"/v1/logs/{log}", log_settings)
        if answer.status in (201, FENCED):  # it exists already
            await _session(life, gateways, log)
        await life.wait_or_stop(AGAIN_S)


async def _session(life: ClientLife, gateways: Sequence[str], log: str) -> None:
    number, begun_at = life.new_session(), before()
    producer_body = json.dumps({"name": life.name}).encode()
    answer = await _call(life, gateways, "POST", f"/v1/logs/{log}/producers", producer_body)
    if answer.status != 201:
        life.observations.record("note", after(), f"{log}: no producer: {answer.text}")
        return
    life.observations.record("open", number, log, True, begun_at, after())
    producer, first_sequence = answer.body["producer"], answer.body["next_sequence"]
    records = max(1, int(life.options["rate"] / REQUESTS_PER_S))
    counter, failure = 0, ""
    while not failure and not await life.wait_or_stop(1 / REQUESTS_PER_S):
        failure = await _records(
            life, gateways, number, producer, first_sequence + counter, counter, records
        )
        counter += records
    life.observations.record("end", number, counter, after(), failure)


async def _records(
    life: ClientLife,
    gateways: Sequence[str],
    session: int,
    producer: str,
    sequence: int,
    counter: int,
    records: int,
) -> str:
    """Post records until there is an answer; return "" or the reason why the session ended."""
    begun_at, payload_bytes = before(), life.options["payload_bytes"]
    txid = time.time_ns() // 1_000_000
    payloads = [to_payload(Value(session, counter + n), payload_bytes) for n in range(records)]
    lines = [
        json.dumps({"payload_base64": base64.b64encode(item).decode(), "txid": txid})
        for item in payloads
    ]
    answer = await _call(
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
    if answer.status == 200 and answer.body["dlsns"]:
        runs = consecutive([DLSN.parse(item) for item in answer.body["dlsns"]])
        life.observations.record("ack", session, counter, begun_at, after(), runs)
        return ""
    # Earlier attempts may have been stored although the last one was refused.
    outcome = Outcome.UNKNOWN.value
    life.observations.record(
        "fail", session, counter, records, begun_at, after(), outcome, answer.text
    )
    return answer.text


async def _call(
    life: ClientLife,
    gateways: Sequence[str],
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str] | None = None,
) -> Answered:
    """Send a request to one gateway after another until one accepts or refuses it, or the client must end."""
    attempts = 0
    while True:
        url = gateways[attempts % len(gateways)] + path
        attempts += 1
        send_request = partial(_ask, method, url, body, headers or {})
        answer = await trio.to_thread.run_sync(send_request, abandon_on_cancel=True)
        if 200 <= answer.status < 300 or (answer.status in REFUSED and answer.status != 429):
            return answer
        if await life.wait_or_stop(AGAIN_S):
            return answer


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
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
