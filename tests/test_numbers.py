"""Numbers of users and operators have finite limits: options and arguments, in all API variants."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import Field
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from distributedlog import LogRecord, aio, blocking
from distributedlog.cli.server.node_settings import check_options, read_file, split_settings
from distributedlog.cluster.declarations.config import overlay
from distributedlog.cluster.declarations.options import BookieNodeConfig, ProxyNodeConfig
from distributedlog.connect import split_config
from distributedlog.log.interfaces.open_call import Opening
from distributedlog.proxy.client.proxied_namespace import ProxiedLog, ProxiedNamespace
from distributedlog.runtime.declarations.options import (
    COUNT_LIMIT,
    DURATION_S_MAX,
    EIB,
    is_number,
    option_fields,
    parse_value,
    with_overrides,
)
from distributedlog.runtime.interfaces.errors import InvalidRequest
from tests.face_world import model_namespace
from tests.test_options import PARTS
from tools.generate_api_variants import API_CLASSES

INF, NAN = float("inf"), float("nan")
BAD: tuple[Any, ...] = (INF, -INF, NAN, 1e306, float("1e400"), 10**400, -1, True, "5", None, [1])
NEEDED: dict[type, dict[str, Any]] = {BookieNodeConfig: {"name": "b", "metadata": ()}}
OPTIONS = [
    pytest.param(cls, one, id=f"{part}-{one.name}")
    for part, cls in PARTS.items()
    for one in option_fields(cls)
    if is_number(one)
]


def made(cls: type, **given: Any) -> Any:
    """A part's options with some replaced."""
    return with_overrides(cls(**NEEDED.get(cls, {})), given)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "one"), OPTIONS)
def test_an_option_refuses_numbers_out_of_its_limits(cls: type, one: Field[Any]) -> None:
    rule = one.metadata
    for value in (*BAD, rule["at_most"] + 1, rule["at_most"] * 2.0):
        if value == INF and rule["infinite"] is not None:
            assert getattr(made(cls, **{one.name: value}), one.name) == rule["infinite"]
            continue
        with pytest.raises(InvalidRequest, match=f"^option {one.name}: "):
            made(cls, **{one.name: value})


@pytest.mark.parametrize(("cls", "one"), OPTIONS)
def test_an_option_has_finite_limits_that_fit_63_bits(cls: type, one: Field[Any]) -> None:
    rule = one.metadata
    most = (
        DURATION_S_MAX if rule["unit"] == "s" else EIB if "bytes" in rule["unit"] else COUNT_LIMIT
    )

    assert 0 < rule["at_most"] <= most < 2**63
    quorums = dict.fromkeys(("ensemble_size", "write_quorum", "ack_quorum"), rule["at_most"])
    given = quorums if one.name in quorums else {one.name: rule["at_most"]}
    assert getattr(made(cls, **given), one.name) == rule["at_most"]


def test_infinity_is_never_for_retention_and_holds_alone() -> None:
    assert [
        one.name
        for cls in PARTS.values()
        for one in option_fields(cls)
        if one.metadata["infinite"] is not None
    ] == ["retention_s", "hold_max_s"]


@pytest.mark.parametrize("value", ["inf", "1e400", "1e400d", "nan", "-1", "9" * 500, "true"])
@pytest.mark.parametrize(
    "name", ["lease_s", "scrub_s", "repair_bytes_per_s", "lost_after_s", "checkpoint_bytes"]
)
def test_a_bookies_settings_are_refused_wherever_they_are_written(
    tmp_path: Path, name: str, value: str
) -> None:
    with pytest.raises(InvalidRequest, match=name):
        split_settings({name: parse_value(value)}, "--set")
    for number in (value, f'"{value}"'):
        if value.startswith("1e400"):
            number = f'"{value}"'
        file = tmp_path / "node.toml"
        file.write_text(f"[bookie]\n{name} = {number}\n")
        if name in ("scrub_s", "checkpoint_bytes"):
            file.write_text(f"[store]\n{name} = {number}\n")
        with pytest.raises(InvalidRequest, match=name):
            read_file(file, "bookie")


@pytest.mark.parametrize("value", BAD)
def test_settings_of_other_nodes_and_clients_are_refused(value: Any) -> None:
    refused: list[Callable[[], object]] = [
        lambda: split_config({"metadata_timeout_s": value}),
        lambda: split_config({"recover_timeout_s": value}),
        lambda: split_config({"add_timeout_s": value}),
        lambda: ProxyNodeConfig("p", "write-proxy", (), metadata_timeout_s=value),
        lambda: BookieNodeConfig("b", (), metadata_timeout_s=value),
    ]
    if value != "5":  # files and environments may write a number as text
        refused += [
            lambda: check_options("gateway", {"append_s": value}, "--set"),
            lambda: check_options("write-proxy", {"idle_s": value}, "--set"),
            lambda: check_options("read-proxy", {"lock_lease_s": value}, "--set"),
        ]
    if value not in (None, "5"):
        layer = {"name": "b", "metadata": (), "lease_s": value}
        refused.append(lambda: overlay(BookieNodeConfig, ("a file", layer)))
    for call in refused:
        with pytest.raises(InvalidRequest):
            call()


# --- arguments ------------------------------------------------------------------------------------

BY_OTHERS = {"txid", "txids", "records", "columns", "dlsn", "ownership_wait_s"}
"""Parameters with checks of their own (tests/log/write/test_record_validation.py), or of the product."""
INFINITE_COUNTS = {("ByteReader", "read", "size"), ("ByteReader", "seek", "offset")}
"""-1 is the whole rest; an offset may go back."""
TIMES = {"since", "wall_ms", "before"}
"""Any time, also before 1970."""


def numbers_of(
    kind: type[Any], left_out: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    """(call, parameter) of each public number."""
    for name, call in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") or name in left_out:
            continue
        for one in inspect.signature(call).parameters.values():
            if re.search(r"\b(int|float)\b", str(one.annotation)) and one.name not in BY_OTHERS:
                yield name, one.name


NUMBERS = [
    (api_class.name, name, parameter)
    for api_class in API_CLASSES
    for name, parameter in numbers_of(api_class.trio_class, api_class.excluded)
]
OTHER_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Namespace.delete_log": ("l",),
    "Log.subscribe": ("s",),
    "Log.work_queue": ("w",),
    "Log.link_segments": ([],),
    "LogWriter.write_frame": ([b"x"],),
}
"""What a call needs before its numbers; of `write_frame` after it."""
NEEDS = {("LogReader", "read_bulk", "wait_s"): {"number": 5}}


async def objects(namespace: Any, done: Callable[[Any], Awaitable[Any]]) -> SimpleNamespace:
    """One of each class that has calls with numbers, of any API variant."""
    log = namespace.open_log("l")
    writer = await done(log.open_writer(producer=True))
    for txid in range(3):
        await done(writer.write(LogRecord(txid, b"x")))
    queue = await done(log.work_queue("q"))
    await done(namespace.create_log("b", txids="bytes"))
    return SimpleNamespace(
        Namespace=namespace,
        Log=log,
        LogWriter=writer,
        LogReader=await done(log.open_reader()),
        RangeReader=await done(log.open_ranges([])),
        LogWatch=await done(namespace.watch_logs()),
        SegmentWatch=await done(log.watch_segments()),
        WorkQueue=queue,
        WorkClaim=await done(queue.claim()),
        MultiReader=await done(namespace.open_reader(logs=["l"])),
        ByteReader=await done(namespace.open_log("b").open_byte_reader()),
    )


def hostile_calls(of: SimpleNamespace) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every public number of the objects with every value that none of them accepts."""
    byte_reader = [
        ("ByteReader", name, which) for name, which in (("read", "size"), ("seek", "offset"))
    ]
    for kind, name, parameter in NUMBERS + byte_reader:
        call = getattr(getattr(of, kind), name)
        for value in BAD:
            if value is None:  # of many calls "no limit"
                continue
            if value == -1 and (parameter in TIMES or (kind, name, parameter) in INFINITE_COUNTS):
                continue
            given = {parameter: value, **NEEDS.get((kind, name, parameter), {})}
            first = OTHER_ARGUMENTS.get(f"{kind}.{name}", ())
            if name == "write_frame":
                given["records"], first = first[0], ()
            what = f"{kind}.{name}({parameter}={str(value)[:10]})"
            yield what, partial(call, *first, **given)


async def accepted(of: SimpleNamespace, done: Callable[[Any], Awaitable[Any]]) -> list[str]:
    """The calls that were not refused, which should be."""
    wrong: list[str] = []
    for what, call in hostile_calls(of):
        try:
            await done(call())
        except InvalidRequest:
            continue
        except Exception as error:
            wrong.append(f"{what}: {error!r}")
        else:
            wrong.append(what)
    return wrong


def test_the_walk_finds_the_waits() -> None:
    """Had the signatures other words, nothing would be tried."""
    assert {
        ("LogReader", "read_next", "wait_s"),
        ("Log", "open_writer", "wait_s"),
        ("WorkClaim", "release", "delay_s"),
        ("Log", "work_queue", "claim_s"),
        ("Namespace", "log_page", "limit"),
    } <= set(NUMBERS)
    assert len(NUMBERS) >= 30


async def test_trio_calls_refuse_numbers_that_cannot_be_meant() -> None:
    async def done(value: Any) -> Any:
        if isinstance(value, Opening) or inspect.isawaitable(value):
            with trio.fail_after(10):
                return await value
        return value

    async with model_namespace() as namespace:
        assert await accepted(await objects(namespace, done), done) == []


def test_asyncio_calls_refuse_numbers_that_cannot_be_meant() -> None:
    async def done(value: Any) -> Any:
        return await asyncio.wait_for(_whole(value), 10) if hasattr(value, "__await__") else value

    async def _whole(value: Any) -> Any:
        return await value

    async def main() -> None:
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            assert await accepted(await objects(namespace, done), done) == []

    asyncio.run(main())


def test_blocking_calls_refuse_numbers_that_cannot_be_meant() -> None:
    async def done(value: Any) -> Any:
        return value

    with blocking._Opened(model_namespace(), "test", blocking.Namespace) as namespace:

        async def main() -> None:
            assert await accepted(await objects(namespace, done), done) == []

        asyncio.run(main())


@pytest.mark.parametrize("value", [one for one in BAD if one is not None])
def test_a_pending_write_refuses_waits_that_cannot_be_meant(value: Any) -> None:
    """Also once its outcome is known, and `exception` does not take it for the write's error."""
    with (
        blocking._Opened(model_namespace(), "test", blocking.Namespace) as namespace,
        namespace.open_log("l").open_writer() as writer,
    ):
        records = [LogRecord(1, b"x"), LogRecord(2, b"y")]
        pending, bulk = writer.submit(records[0]), writer.submit_bulk(records)
        writer.commit()
        for call in (pending.result, pending.exception, bulk.result, bulk.wait, bulk.outcomes):
            with pytest.raises(InvalidRequest, match="seconds from 0 to 10 years"):
                call(value)


@pytest.mark.parametrize(("kind", "parent"), [(ProxiedLog, "Log"), (ProxiedNamespace, "Namespace")])
def test_calls_through_proxies_refuse_them_before_they_are_sent(
    kind: type[Any], parent: str
) -> None:
    sent: list[Any] = []

    class Sent(Exception):
        pass

    async def make_call(*call: Any, **more: Any) -> Any:
        sent.append(call)
        raise Sent

    through = object.__new__(kind)
    if kind is ProxiedLog:
        through._namespace = SimpleNamespace(
            make_call=make_call, context=SimpleNamespace(random=Random(1))
        )
        through.name, through.incarnation = "l", None
    else:
        through.make_call = make_call
    calls = [
        (name, parameter)
        for name, parameter in numbers_of(kind)
        if name in vars(kind) and parameter not in TIMES
    ]
    assert calls

    async def main() -> None:
        for name, parameter in calls:
            for value in BAD:
                if value is None:
                    continue
                first = OTHER_ARGUMENTS.get(f"{parent}.{name}", ())
                with pytest.raises(InvalidRequest):
                    await getattr(through, name)(*first, **{parameter: value})

    trio.run(main)
    assert sent == []
