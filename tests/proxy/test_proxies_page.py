"""docs/concepts/proxies.md: its lists of calls match the program; its example stores each record once."""

import re
from array import array
from collections.abc import Callable
from typing import Any

import trio

from distributedlog import DLSN, InvalidRequest, LogEvent, LogRecord, blocking, open_namespace
from distributedlog.cluster.declarations.options import READ_PROXY
from distributedlog.log.namespace import Namespace
from distributedlog.uri import format_address
from tests.extras import missing
from tests.mutation import ROOT

from .proxy_world import world

PAGE = (ROOT / "docs/concepts/proxies.md").read_text()
Call = Callable[[Any], Any]


async def read_several(namespace: Namespace) -> None:
    """Read one record of several logs."""
    async with namespace.open_reader(logs=["made"], to="end") as reader:
        while item := await reader.next():
            if isinstance(item, LogEvent) and item.error is not None:
                raise item.error


NAMESPACE: dict[str, Call] = {
    "open_log": lambda one: one.open_log("l"),
    "create_log": lambda one: one.create_log("made"),
    "log_exists": lambda one: one.log_exists("made"),
    "open_reader": lambda one: read_several(one),
    "rename_log": lambda one: one.rename_log("made", "renamed"),
    "delete_log": lambda one: one.delete_log("renamed"),
    "logs": lambda one: anext(one.logs()),
    "log_page": lambda one: one.log_page(),
    "metrics": lambda one: one.metrics,
    "watch_logs": lambda one: one.watch_logs(),
    "settings": lambda one: one.settings(),
    "set": lambda one: one.set({"codec": "lz4"}),
}
WRITER: dict[str, Call] = {
    "submit": lambda one: one.submit(b"x"),
    "submit_bulk": lambda one: one.submit_bulk([b"x"]),
    "submit_columns": lambda one: one.submit_columns([1 << 60], [b"x"]),
    "submit_packed": lambda one: one.submit_packed(None, array("i", [0, 1]), b"x"),
    "submit_set": lambda one: one.submit_set([b"x"]),
    "write": lambda one: one.write(LogRecord(1 << 60, b"x")),
    "write_bulk": lambda one: one.write_bulk([b"x"]),
    "write_set": lambda one: one.write_set([b"x"]),
    "flush": lambda one: one.flush(),
    "commit": lambda one: one.commit(),
    "last_txid": lambda one: one.last_txid,
    "txid_policy": lambda one: one.txid_policy,
    "over_rate": lambda one: one.over_rate,
    "producer": lambda one: one.producer,
    "position": lambda one: one.position,
    "truncate": lambda one: one.truncate(DLSN(1, 0, 0)),
    "write_frame": lambda one: one.write_frame(one.producer.next_sequence, [b"x"]),
    "mark_end_of_stream": lambda one: one.mark_end_of_stream(),
}
STREAMS: dict[str, Call] = {
    "open_byte_writer": lambda one: one.open_byte_writer(),
    "open_byte_reader": lambda one: one.open_byte_reader(),
}
LOG: dict[str, Call] = {
    "open_writer": lambda one: one.open_writer(),
    "open_reader": lambda one: one.open_reader(),
    # Without its extra the call is refused everywhere, and a reader is what it opens.
    "to_arrow": lambda one: one.open_reader(to="end") if missing("arrow") else one.to_arrow(),
    "describe": lambda one: one.describe(),
    "last_dlsn": lambda one: one.last_dlsn(),
    "first_record": lambda one: one.first_record(),
    "last_record": lambda one: one.last_record(),
    "count": lambda one: one.count(),
    "find": lambda one: one.find(txid=0),
    "segments": lambda one: one.segments(),
    "watch_segments": lambda one: one.watch_segments(),
    "settings": lambda one: one.settings(),
    "set": lambda one: one.set({"codec": "lz4"}),
    "merge_segments": lambda one: one.merge_segments(),
    "snapshot": lambda one: one.snapshot(),
    "open_ranges": lambda one: one.open_ranges([]),
    "positions": lambda one: one.positions.list(),
    "subscribe": lambda one: one.subscribe("s"),
    "work_queue": lambda one: one.work_queue("q"),
    "work_queues": lambda one: one.work_queues(),
    "delete_work_queue": lambda one: one.delete_work_queue("q"),
    "open_segment_writer": lambda one: one.open_segment_writer(),
    "link_segments": lambda one: one.link_segments([]),
    "discard_segments": lambda one: one.discard_segments([]),
    "collect_unlinked": lambda one: one.collect_unlinked(),
    "linked_version": lambda one: one.linked_version("app"),
    "truncate": lambda one: one.truncate(DLSN(1, 0, 0)),
    "seal": lambda one: one.seal(),
}
"""Each public call, with arguments that a direct namespace accepts, the ending ones last."""


def listed(name: str) -> tuple[list[str], list[str]]:
    """The calls of an object in the page's table: those that work, those that are refused."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} | `")]
    works, refused = ([*re.findall(r"`(\w+)`", cell)] for cell in row.split("|")[2:4])
    return sorted(works), sorted(refused)


async def is_refused(one: Any, call: Call) -> bool:
    """Whether a call raises `InvalidRequest`. An opened object is closed again."""
    try:
        with trio.fail_after(30):
            answer = call(one)
            if hasattr(answer, "__await__"):
                answer = await answer
            if hasattr(answer, "aclose"):
                await answer.aclose()
    except InvalidRequest:
        return True
    return False


async def split(one: Any, calls: dict[str, Call]) -> tuple[list[str], list[str]]:
    """The names of the calls that work, and of those that are refused."""
    found: tuple[list[str], list[str]] = ([], [])
    for name, call in calls.items():
        found[await is_refused(one, call)].append(name)
    return sorted(found[0]), sorted(found[1])


async def found_in(namespace: Namespace, log: str) -> dict[str, tuple[list[str], list[str]]]:
    """Each object's calls that work and that are refused."""
    async with namespace.open_log(f"{log}-written").open_writer() as writer:
        await writer.write(b"first")
        written = await split(writer, {k: v for k, v in WRITER.items() if k != "write_frame"})
    async with namespace.open_log(log).open_writer(producer="p") as writer:
        await writer.write(b"first")
        frames = await split(writer, {"write_frame": WRITER["write_frame"]})
    await namespace.create_log(f"{log}-bytes", txids="bytes")
    streams = await split(namespace.open_log(f"{log}-bytes"), STREAMS)
    calls = await split(namespace.open_log(log), LOG)
    return {
        "namespace": await split(namespace, NAMESPACE),
        "log": (sorted(calls[0] + streams[0]), sorted(calls[1] + streams[1])),
        "writer": (sorted(written[0] + frames[0]), sorted(written[1] + frames[1])),
    }


async def test_the_page_lists_each_public_call_where_it_belongs() -> None:
    """A call that proxies refuse raises `InvalidRequest`. With a direct URI the same call does not."""
    kinds = {
        "namespace": (NAMESPACE, blocking.Namespace),
        "log": ({**LOG, **STREAMS}, blocking.Log),
    }
    for calls, public in (*kinds.values(), (WRITER, blocking.LogWriter)):
        assert set(calls) == {n for n in dir(public) if n[0] != "_"} - {"close", "abort"}

    async with world() as it:
        places = [(await it.proxy("w1")).address, (await it.proxy("r1", READ_PROXY)).address]
        uri = f"distributedlog+proxy://{';'.join(map(format_address, places))}/default"
        direct = await found_in(it.namespace, "l")
        async with open_namespace(uri) as through:
            found = await found_in(through, "behind")

    print(found)
    assert {kind: refused for kind, (_, refused) in direct.items()} == {kind: [] for kind in direct}
    assert found == {kind: listed(kind) for kind in found}


async def test_the_program_of_the_page_stores_each_record_once_however_often_it_runs() -> None:
    """Run whole, run again, and run with one more record in its source."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    async with world() as it:
        node = await it.proxy("w1")
        own = format_address(node.address)
        program, changed = re.subn(r"//h7:4183,h8:4184/ns", f"//{own}/default", program)
        assert changed == 1
        for _ in range(2):
            await trio.to_thread.run_sync(exec, program, {})
            assert await it.stored("orders") == [b"7 pears", b"3 apples", b"5 plums"]

        more = program.replace('b"5 plums"', 'b"5 plums", b"2 figs"')
        await trio.to_thread.run_sync(exec, more, {})
        assert (await it.stored("orders"))[3:] == [b"2 figs"]
