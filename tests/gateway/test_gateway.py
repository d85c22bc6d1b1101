"""Logs over HTTP, as a client of it meets them: on real sockets, over proxies and over the cluster itself."""

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

pytest.importorskip("hypercorn", reason="pip install '.[gateway]'")
pytest.importorskip("starlette", reason="pip install '.[gateway]'")

from distributedlog.cluster.declarations.options import READ_PROXY
from distributedlog.gateway.request_format import BYTES
from distributedlog.log.format.record import LogRecord
from distributedlog.uri import format_address

from ..proxy.proxy_world import ONE, World, world
from .http_kit import JSON_LINES, Gate, gate

pytestmark = pytest.mark.extra
FORM = {"content-type": "multipart/form-data; boundary=x"}


@asynccontextmanager
async def behind(*writers: str) -> AsyncIterator[tuple[World, str]]:
    """A cluster with write proxies of these names and a read proxy; the URI through them."""
    async with world() as found:
        nodes = [await found.proxy(name) for name in writers]
        nodes.append(await found.proxy("r1", READ_PROXY))
        places = ";".join(format_address(one.address) for one in nodes)
        yield found, f"distributedlog+proxy://{places}/{found.namespace.path}"


async def opened(gate: Gate, log: str, name: str = "") -> dict[str, str]:
    """A producer; what its requests carry, at sequence 0."""
    answer = await gate.ask(
        "POST", f"/v1/logs/{log}/producers", json.dumps({"name": name} if name else {})
    )
    assert answer.status == 201, answer
    return {"dlog_producer": answer.json["producer"], "dlog_sequence": "0"}


async def read(gate: Gate, log: str, query: str, number: int) -> dict[str, Any]:
    """A page of a log, once it has so many: a writer that rests tells what can be read some ms later."""
    with trio.fail_after(10):
        while True:
            answer = await gate.ask("GET", f"/v1/logs/{log}/records{query}")
            assert answer.status == 200, answer
            if len(answer.json["records"]) >= number:
                return dict(answer.json)
            await trio.sleep(0.01)


async def payloads(gate: Gate, log: str, number: int) -> list[str]:
    """All that is in a log."""
    found = await read(gate, log, "", number)
    assert found["end"]
    return [one["payload"] for one in found["records"]]


async def test_an_answer_has_one_record_more_than_read_bytes_max() -> None:
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri, read_bytes_max=250)
        assert (await one.ask("PUT", "/v1/logs/a", '{"txids": "count"}')).status == 201
        lines = "".join(json.dumps("x" * 100) + "\n" for _ in range(5))
        assert (await one.ask("POST", "/v1/logs/a/records", lines, **JSON_LINES)).status == 200

        page = await read(one, "a", "", 3)

        assert len(page["records"]) == 3
        assert not page["end"]


async def test_keys_and_headers_count_for_read_bytes_max() -> None:
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri, read_bytes_max=250)
        assert (await one.ask("PUT", "/v1/logs/a", '{"txids": "count"}')).status == 201
        lines = 5 * (json.dumps({"payload": "", "key": "k" * 100}) + "\n")
        assert (await one.ask("POST", "/v1/logs/a/records", lines, **JSON_LINES)).status == 200

        page = await read(one, "a", "", 2)

        assert len(page["records"]) == 2
        assert not page["end"]


@pytest.mark.parametrize("proxied", [True, False])
async def test_keys_and_headers_are_written_and_read(proxied: bool) -> None:
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri if proxied else w.uri)
        config = {**ONE, "record_headers": False}
        await w.namespace.create_log("a", txids="count", config=config)
        headers = [{"name": "n", "value_base64": "/w=="}, {"name": "n", "value": ""}]
        record = {"payload": "x", "key": "k", "headers": headers}
        lines = f'{json.dumps(record)}\n"plain"\n{{"payload": "y", "key_base64": "/w=="}}\n'
        refused = await one.ask("POST", "/v1/logs/a/records", lines, **JSON_LINES)
        assert refused.status == 400, refused
        await w.namespace.open_log("a").set({"record_headers": True})
        assert (await one.ask("POST", "/v1/logs/a/records", lines, **JSON_LINES)).status == 200
        producer = await opened(one, "a", "p")
        body = json.dumps(record)
        sent = await one.ask("POST", "/v1/logs/a/records", body, **JSON_LINES, **producer)
        assert sent.status == 200, sent

        page = await read(one, "a", "", 4)

        fields = [
            (found["payload"], found.get("key"), found.get("headers")) for found in page["records"]
        ]
        assert fields == [
            ("x", "k", headers), ("plain", None, None), ("y", None, None), ("x", "k", headers),
        ]  # fmt: skip
        assert page["records"][2]["key_base64"] == "/w=="


async def test_records_are_written_and_read() -> None:
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri)
        assert (await one.ask("PUT", "/v1/logs/a%2Fb", '{"txids": "count"}')).status == 201
        first = await one.ask("POST", "/v1/logs/a%2Fb/records", b"\xff\x00")
        assert first.status == 200, first
        lines = '"two"\n{"payload": "three"}\n\n{"payload_base64": "Zm91cg=="}\n'
        more = await one.ask("POST", "/v1/logs/a%2Fb/records", lines, **JSON_LINES)
        assert more.status == 200, more
        assert len(more.json["dlsns"]) == 3

        shown = await read(one, "a%2Fb", "?limit=2", 2)
        assert [found.get("payload") for found in shown["records"]] == [None, "two"]
        assert shown["records"][0]["payload_base64"] == "/wA="
        assert [found["dlsn"] for found in shown["records"]] == [
            *first.json["dlsns"],
            more.json["dlsns"][0],
        ]
        assert not shown["end"]
        rest = await one.ask("GET", f"/v1/logs/a%2Fb/records?from={shown['next']}", accept=BYTES)
        assert rest.headers["dlog-end"] == "true"
        size, slot, segment, entry, txid, time_ms = struct.unpack_from("<IIQQqQ", rest.body)
        assert f"{segment}.{entry}.{slot}" == more.json["dlsns"][1]
        assert (rest.body[40 : 40 + size], txid) == (b"three", 2)
        assert time_ms > 0
        assert rest.body.endswith(b"four")
        past = (
            await one.ask("GET", f"/v1/logs/a%2Fb/records?from={rest.headers['dlog-next']}")
        ).json
        assert past == {"records": [], "next": rest.headers["dlog-next"], "end": True}
        upto = f"/v1/logs/a%2Fb/records?txid=1&to={more.json['dlsns'][1]}"
        assert [r["txid"] for r in (await one.ask("GET", upto)).json["records"]] == [1, 2]

        about = (await one.ask("GET", "/v1/logs/a%2Fb")).json
        assert (about["log"], about["txids"], about["sealed"]) == ("a/b", "count", False)
        assert about["last"] == more.json["dlsns"][-1]
        assert (await one.ask("GET", "/v1/logs?prefix=a")).json == {"logs": ["a/b"], "next": None}
        assert await one.number("records_written_total") == 4
        await one.stop()
        two = await gate(w.nursery, uri)
        assert (await two.ask("DELETE", "/v1/logs/a%2Fb?wait_s=10")).status == 204
        assert (await two.ask("GET", "/v1/logs")).json["logs"] == []


async def test_who_wrote_a_log_here_may_delete_it_here() -> None:
    """What the gateway keeps open for the next request held the log for a minute: 503, 409."""
    async with behind("w1") as (w, uri):
        for place in (uri, w.uri):
            one = await gate(w.nursery, place)
            for log in ("plain", "counted"):
                config = json.dumps({"config": ONE})
                assert (await one.ask("PUT", f"/v1/logs/{log}", config)).status == 201
                told = await opened(one, log, "p") if log == "counted" else {}
                assert (await one.ask("POST", f"/v1/logs/{log}/records", "x", **told)).status == 200

                answer = await one.ask("DELETE", f"/v1/logs/{log}")

                assert answer.status == 204, (place, log, answer)
            await one.stop()


async def test_what_is_wrong_is_said_with_what_to_do() -> None:
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri, body_bytes_max=100_000, records_max=3)
        client = await one.client()
        assert (await client.ask("PUT", "/v1/logs/a", '{"txids": "given"}')).status == 201
        assert (await client.ask("POST", "/v1/logs/a/records", "x", dlog_txid="5")).status == 200
        for status, name, method, path, body, headers in [
            (404, "LogNotFound", "GET", "/v1/logs/nope/records", "", {}),
            (404, "LogNotFound", "POST", "/v1/logs/nope/records", "x", {"dlog_txid": "1"}),
            (404, "LogNotFound", "GET", "/v1/logs/nope/tail", "", {}),
            (404, "TurnedAway", "GET", "/v2/logs", "", {}),
            (405, "TurnedAway", "PATCH", "/v1/logs/a", "", {}),
            (409, "LogExists", "PUT", "/v1/logs/a", "", {}),
            (400, "InvalidLogName", "PUT", "/v1/logs/%20", "", {}),
            (400, "InvalidRequest", "PUT", "/v1/logs/%ff", "", {}),
            (400, "InvalidRequest", "PUT", "/v1/logs/b", '{"colour": 1}', {}),
            (400, "InvalidRequest", "PUT", "/v1/logs/b", "[" * 5000, {}),
            (400, "InvalidRequest", "PUT", "/v1/logs/b", '{"config": 5}', {}),
            (400, "InvalidRequest", "PUT", "/v1/logs/b", '{"config": false}', {}),
            (415, "TurnedAway", "PUT", "/v1/logs/b", "{}", {"content_encoding": "br"}),
            (415, "TurnedAway", "POST", "/v1/logs/a/records", "x", {"content_encoding": "gzip"}),
            (415, "TurnedAway", "POST", "/v1/logs/a/records", "x", FORM),
            (400, "InvalidRequest", "POST", "/v1/logs/a/records", '{"payload": 0}', JSON_LINES),
            (400, "InvalidRequest", "GET", "/v1/logs/a/records?from=1.x", "", {}),
            (400, "InvalidRequest", "GET", "/v1/logs/a/records?form=1.0.0", "", {}),
            (400, "InvalidRequest", "GET", "/v1/logs/a/records?limit=4", "", {}),
            (400, "InvalidRequest", "GET", "/v1/logs/a/records?txid=1&since_ms=1", "", {}),
            (400, "InvalidRequest", "POST", "/v1/logs/a/records", "x", {"dlog_sequence": "0"}),
            (400, "InvalidRequest", "POST", "/v1/logs/a/records", "not json", JSON_LINES),
            (400, "InvalidRequest", "POST", "/v1/logs/a/records", "", JSON_LINES),
            (409, "TransactionIdOutOfOrder", "POST", "/v1/logs/a/records", "x", {"dlog_txid": "4"}),
            (413, "RecordTooLarge", "POST", "/v1/logs/a/records", '"x"\n' * 4, JSON_LINES),
        ]:
            answer = await client.ask(method, path, body, **headers)
            assert (answer.status, answer.error) == (status, name), (path, answer)
            said = answer.json["error"]
            assert said["do"]
            assert said["what"]
            if status != 415:
                assert path.partition("?")[0].split("/")[-1] in said["where"] + said["what"]
        await client.close()
        large = await one.ask("POST", "/v1/logs/a/records", "x" * 100_001, dlog_txid="9")
        assert (large.status, large.error) == (413, "RecordTooLarge")
        assert await one.number("held_bytes") == 0


async def test_what_is_sent_again_is_stored_once_at_any_gateway() -> None:
    """A producer's number and sequence travel with each request: two gateways fence nobody."""
    async with behind("w1", "w2") as (w, uri):
        one, two = await gate(w.nursery, uri), await gate(w.nursery, uri)
        assert (await one.ask("PUT", "/v1/logs/orders")).status == 201
        mine = await opened(one, "orders", "import 7/ü")
        path = "/v1/logs/orders/records"
        first = await one.ask("POST", path, '"a"\n"b"', **JSON_LINES, **mine)
        assert (first.status, first.json["repeated"]) == (200, False), first
        again = await two.ask("POST", path, '"a"\n"b"', **JSON_LINES, **mine)
        assert again.json == {**first.json, "repeated": True}
        mine["dlog_sequence"] = "2"
        third = await two.ask("POST", path, "c", **mine)
        assert third.json["next_sequence"] == 3
        assert (await one.ask("POST", path, "c", **mine)).json["dlsns"] == third.json["dlsns"]

        for name in ("w1", "w2"):  # whoever has the log goes: the other one takes it
            owner = (await one.ask("GET", "/v1/logs/orders")).json["owner"]
            if owner.startswith(name) or owner == name:
                w.scopes[name].cancel()
                break
        mine["dlog_sequence"] = "3"
        answers = [await each.ask("POST", path, "d", **mine) for each in (one, two, one)]
        assert [found.status for found in answers] == [200] * 3, answers
        assert [found.json["repeated"] for found in answers] == [False, True, True]
        assert (await one.ask("POST", path, "plain")).status == 200

        here = {**mine, "dlog_sequence": "4", "if_match": answers[0].json["dlsns"][0]}
        late = await two.ask("POST", path, "x", **here)  # the plain one came between
        assert (late.status, late.error) == (412, "PositionConflict"), late
        here["if_match"] = late.json["error"]["detail"]
        assert (await one.ask("POST", path, "after", **here)).status == 200
        assert (await two.ask("POST", path, "after", **here)).json["repeated"]

        wrong = await two.ask("POST", path, "x", **{**mine, "dlog_sequence": "9"})
        assert (wrong.status, " 5" in wrong.json["error"]["what"]) == (400, True), wrong
        wrong = await two.ask("POST", path, "x", **{**mine, "dlog_sequence": "1"})
        assert (wrong.status, "other frames" in wrong.json["error"]["what"]) == (400, True), wrong
        newer = await opened(two, "orders", "import 7/ü")
        assert newer["dlog_producer"] != mine["dlog_producer"]
        for each in (one, two):
            fenced = await each.ask("POST", path, "x", **{**mine, "dlog_sequence": "5"})
            assert (fenced.status, fenced.error) == (409, "ProducerFenced"), fenced
        assert (await one.ask("POST", path, "e", **{**newer, "dlog_sequence": "5"})).status == 200
        nobody = await one.ask("POST", path, "x", dlog_producer="99:x", dlog_sequence="0")
        assert (nobody.status, nobody.error) == (410, "ProducerForgotten"), nobody
        assert await payloads(one, "orders", 7) == ["a", "b", "c", "d", "plain", "after", "e"]


async def test_over_the_cluster_itself_a_gateway_that_begins_anew_stores_nothing_twice() -> None:
    async with world() as w:
        one = await gate(w.nursery, w.uri)
        assert (await one.ask("PUT", "/v1/logs/orders", json.dumps({"config": ONE}))).status == 201
        path = "/v1/logs/orders/records"
        last = (await one.ask("POST", path, "1", if_match="0.0.0")).json["dlsns"][0]
        late = await one.ask("POST", path, "x", if_match="0.0.0")
        assert (late.status, late.json["error"]["detail"]) == (412, last), late
        assert (await one.ask("POST", path, "2", if_match=f'"{last}"')).status == 200
        mine = await opened(one, "orders")
        first = await one.ask("POST", path, '"a"\n"b"', **JSON_LINES, **mine)
        assert first.status == 200, first
        await one.stop()
        two = await gate(w.nursery, w.uri)
        again = await two.ask("POST", path, '"a"\n"b"', **JSON_LINES, **mine)
        assert again.json == {**first.json, "repeated": True}
        gap = await two.ask("POST", path, "x", **{**mine, "dlog_sequence": "3"})
        assert (gap.status, gap.error) == (400, "InvalidRequest"), gap
        assert await payloads(two, "orders", 4) == ["1", "2", "a", "b"]
        assert await two.number("records_written_total") == 0


@pytest.mark.parametrize("records", [0, 2])
@pytest.mark.parametrize("direct", [True, False])
async def test_who_asks_for_the_latest_and_comes_back_misses_nothing(
    records: int, direct: bool
) -> None:
    """It was told to go on at "latest": what was written between the two requests it never saw."""
    async with behind(*([] if direct else ["w1"])) as (w, uri):
        one = await gate(w.nursery, w.uri if direct else uri)
        assert (await one.ask("PUT", "/v1/logs/news")).status == 201
        path = "/v1/logs/news"
        log = w.namespace.open_log("news")
        async with log.open_writer() as writer:
            for number in range(records):
                await writer.write(LogRecord(number, b"old"))
        client = await one.client()
        began = await client.begin("GET", f"{path}/tail")
        head = await client.part()

        empty = await read(one, "news", "?from=latest", 0)
        async with log.open_writer() as writer:
            await writer.write(LogRecord(records, b"new"))

        assert empty["records"] == []
        found = await read(one, "news", f"?from={empty['next']}", 1)
        assert [record["payload"] for record in found["records"]] == ["new"]
        assert began.status == 200
        (told,) = [line[4:] for line in head.decode().splitlines() if line.startswith("id: ")]
        await client.close()
        back = await one.client()
        async for event in back.events(f"{path}/tail", last_event_id=told):
            assert event.json["payload"] == "new"
            break
        await back.close()
        await one.stop()


async def test_answer_as_bytes_has_keys_and_headers_or_is_refused() -> None:
    async with behind() as (w, _):
        one = await gate(w.nursery, w.uri)
        await w.namespace.create_log("a", config={**ONE, "record_headers": True})
        pairs = [{"name": "n", "value": "v"}, {"name": "", "value_base64": "/w=="}]
        lines = [{"payload": "plain"}, {"payload": "x", "key": "", "headers": pairs}]
        body = "\n".join(map(json.dumps, lines))
        path = "/v1/logs/a/records"
        assert (await one.ask("POST", path, body, content_type="application/jsonl")).status == 200
        await read(one, "a", "", 2)

        refused = await one.ask("GET", path, accept=BYTES)
        assert refused.status == 406
        assert "include_headers=true" in refused.json["error"]["do"]
        plain = await one.ask("GET", f"{path}?limit=1", accept=BYTES)
        assert (plain.status, len(plain.body)) == (200, 45)

        answer = await one.ask("GET", f"{path}?include_headers=true", accept=BYTES)
        found, position = [], 0
        while position < len(answer.body):
            size, *_, key_bytes, headers = struct.unpack_from("<IIQQqQiI", answer.body, position)
            parts, position = [], position + 48
            sizes = [size] if key_bytes < 0 else [size, key_bytes]
            for part_bytes in sizes:
                parts.append(answer.body[position : position + part_bytes])
                position += part_bytes
            for _ in range(headers):
                lengths = struct.unpack_from("<II", answer.body, position)
                position += 8
                for part_bytes in lengths:
                    parts.append(answer.body[position : position + part_bytes])
                    position += part_bytes
            found.append(parts)
        assert found == [[b"plain"], [b"x", b"", b"n", b"v", b"", b"\xff"]]


@pytest.mark.parametrize("search", ["txid=100", "since_ms=4000000000000"])
async def test_a_search_that_found_nothing_is_gone_on_with_by_next(search: str) -> None:
    """`next` was null. It is no place either: after the last record there may be lower ones."""
    async with behind() as (w, _):
        one = await gate(w.nursery, w.uri)
        assert (await one.ask("PUT", "/v1/logs/a", json.dumps({"config": ONE}))).status == 201
        path = "/v1/logs/a/records"
        assert (await one.ask("POST", path, "1", dlog_txid="1")).status == 200
        name, _, value = search.partition("=")
        found = await read(one, "a", f"?{search}", 0)
        assert found["next"] == f"{name}:{value}"
        as_bytes = await one.ask("GET", f"{path}?{search}", accept=BYTES)
        assert as_bytes.headers["dlog-next"] == found["next"]

        for txid in ("50", "100"):
            assert (await one.ask("POST", path, txid, dlog_txid=txid)).status == 200
        assert len((await read(one, "a", "", 3))["records"]) == 3
        later = await read(one, "a", f"?from={found['next']}", 1 if name == "txid" else 0)
        wanted = ["100"] if name == "txid" else []
        assert [record["payload"] for record in later["records"]] == wanted


@pytest.mark.parametrize("records", [0, 2])
@pytest.mark.parametrize("through", [False, True])
async def test_a_tail_of_a_sealed_log_ends_and_who_comes_back_is_told_to_stay_away(
    records: int, through: bool
) -> None:
    """A browser comes back after each end but 204, with the id of the last event."""
    async with behind("w1") as (w, uri):
        one = await gate(w.nursery, uri if through else w.uri)
        await w.namespace.create_log("done", config=ONE)
        async with w.namespace.open_log("done").open_writer() as writer:
            for number in range(records):
                await writer.write(LogRecord(number, b"x"))
            await writer.mark_end_of_stream()
        path = "/v1/logs/done/tail"
        for begins in ("", "?from=earliest", "?txid=100", "?from=9.0.0"):
            client = await one.client()
            events = [event async for event in client.events(path + begins)]
            await client.close()
            assert len(events) == 1 + (records if "earliest" in begins else 0)
            assert events[-1].name == "end"
            assert (await one.ask("GET", path, last_event_id=events[-1].id)).status == 204
        if records:
            client = await one.client()
            events = [event async for event in client.events(path, last_event_id="0.0.0")]
            await client.close()
            assert [event.name for event in events] == ["", "", "end"]
        assert await one.number("tails") == 0


async def test_a_slash_too_many_is_told_in_words() -> None:
    """It was answered 307 without a body: `curl -fsS … -d record` said nothing, and stored nothing."""
    async with behind() as (w, _):
        one = await gate(w.nursery, w.uri)
        assert (await one.ask("PUT", "/v1/logs/a")).status == 201

        for method, path in (("GET", "/v1/logs/"), ("POST", "/v1/logs/a/records/")):
            found = await one.ask(method, path, "x" if method == "POST" else "")
            assert (found.status, found.json["error"]["what"]) == (
                404,
                f"{method} {path} does not exist",
            )
        await one.stop()


async def test_a_tail_goes_on_after_the_last_event_elsewhere() -> None:
    async with behind("w1") as (w, uri):
        one, two = await gate(w.nursery, uri), await gate(w.nursery, uri)
        assert (await one.ask("PUT", "/v1/logs/news")).status == 201
        path = "/v1/logs/news"
        lines = "\n".join(f'"{n}"' for n in range(5))
        assert (await one.ask("POST", f"{path}/records", lines, **JSON_LINES)).status == 200
        client = await one.client()
        seen = []
        async for event in client.events(f"{path}/tail?from=earliest"):
            seen.append(event)
            if len(seen) == 3:
                break
        assert [event.json["payload"] for event in seen] == ["0", "1", "2"]
        assert await one.number("tails") == 1
        await client.close()  # and what was made for it ends
        await one.until("tails", 0)
        await one.until("connections", 1)  # who asks

        other = await two.client()
        async for event in other.events(f"{path}/tail", last_event_id=seen[-1].id):
            seen.append(event)
            if len(seen) == 5:
                assert (await one.ask("POST", f"{path}/records", "5")).status == 200
            if len(seen) == 6:
                break
        assert [event.json["payload"] for event in seen] == [str(n) for n in range(6)]
        assert [event.json["dlsn"] for event in seen] == [event.id for event in seen]
        await other.close()

        await one.stop()
        await two.stop()
        async with w.namespace.open_log("news").open_reader() as reader:
            assert len(await reader.read_bulk(6, wait_s=5)) == 6


@pytest.mark.parametrize("through", [False, True])
async def test_requests_with_and_without_txids_are_mixed_in_one_log(through: bool) -> None:
    """With those of a producer, and of a program; what is shown names the policy."""
    async with behind("w1") as (w, uri):
        door = await gate(w.nursery, uri if through else w.uri)
        assert (await door.ask("PUT", "/v1/logs/mixed", json.dumps({"config": ONE}))).status == 201
        for txid in ({}, {"dlog_txid": "5"}, {}, {"dlog_txid": "3"}):
            answer = await door.ask("POST", "/v1/logs/mixed/records", "x", **txid)
            assert answer.status == 200, answer
        producer = await opened(door, "mixed")
        for number, line in enumerate(('{"payload": "y", "txid": 4}', '"z"')):
            headers = {**producer, "dlog_sequence": str(number), **JSON_LINES}
            answer = await door.ask("POST", "/v1/logs/mixed/records", line, **headers)
            assert answer.status == 200, answer
        found = (await read(door, "mixed", "", 6))["records"]
        assert [one["txid"] for one in found if one["txid"] < 10] == [5, 3, 4]
        filled = [one["txid"] for one in found if one["txid"] > 10]
        assert filled == sorted(set(filled))
        assert (await read(door, "mixed", "?txid=4", 5))["records"][0] == found[0]
        assert (await door.ask("GET", "/v1/logs/mixed")).json["txids"] == "auto"
        assert (await door.ask("PUT", "/v1/logs/s", '{"txids": "strict"}')).status == 201
        assert (await door.ask("GET", "/v1/logs/s")).json["txids"] == "strict"
        assert (await door.ask("PUT", "/v1/logs/t", '{"txids": "other"}')).status == 400
