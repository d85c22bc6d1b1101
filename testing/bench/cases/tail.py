"""Measure the latency from the write call to a reader in another process, at a constant rate.

The writer stamps each record with the clock that all processes of a machine share (CLOCK_MONOTONIC). The
reader, a child process, tails the log and measures on arrival.
"""

import json
import os
import struct
import subprocess
import sys
from time import perf_counter, process_time
from typing import Any

import trio

from ....log.format.record import LogRecord
from ....runtime.interfaces.host import Buffer
from ..measure.bench_plan import BenchPlan, own_logs, result
from ..measure.histogram import Histogram, per_second
from ..measure.machine_info import OthersCpu

STAMP = struct.Struct("<d")
RATE = 1000.0
"""Records per second by default. At full speed, tailing would only repeat the write benchmark."""
BATCH = 1000
START_S = 20.0
DRAIN_S = 10.0


async def measure(plan: BenchPlan) -> dict[str, Any]:
    """Write in this process and read in a child. The latency is that of the reader."""
    from .... import open_namespace

    if plan.size < STAMP.size:
        from ....runtime.interfaces.errors import InvalidRequest

        raise InvalidRequest(
            f"a record of {plan.size} bytes is too small for a time stamp of 8 bytes"
        )
    rate = plan.rate or RATE
    total = plan.records or int(rate * plan.seconds)
    other_processes = OthersCpu()
    async with (
        open_namespace(plan.uri, config=plan.config) as namespace,
        own_logs(namespace, plan) as names,
        namespace.open_log(names[0]).open_writer() as writer,
    ):
        await writer.write(
            LogRecord(0, STAMP.pack(0.0))
        )  # so that the segment exists before the reader starts
        reader = await _start_reader(plan, names[0], total)
        start = perf_counter()
        try:
            async with per_second(namespace, "dlog_client_records_written_total") as rates:
                await _write(writer, plan, rate, total, start)
            with trio.move_on_after(DRAIN_S):
                result_line = await _last_line(reader)
                await reader.wait()
            if reader.returncode is None:
                raise RuntimeError(
                    f"the reader did not receive every record within {DRAIN_S:g} s after the last write"
                )
        finally:
            if reader.returncode is None:
                reader.kill()  # before the log is deleted
        seconds = perf_counter() - start
    reader_result = json.loads(result_line)
    histogram = Histogram.from_pairs(reader_result["pairs"], reader_result["max_s"])
    return {
        **result(plan, reader_result["records"], seconds, histogram, other_processes, rates),
        "reader_cpu_us": round(reader_result["cpu_s"] / reader_result["records"] * 1e6, 1),
    }


async def _write(writer: Any, plan: BenchPlan, rate: float, total: int, start: float) -> None:
    padding = os.urandom(plan.size - STAMP.size)
    for count in range(total):
        intended = start + count / rate
        wait_s = intended - perf_counter()
        if wait_s > 0:
            await trio.sleep(wait_s)
        await writer.submit(LogRecord(count, STAMP.pack(perf_counter()) + padding))
    await writer.commit()


async def _start_reader(plan: BenchPlan, name: str, total: int) -> trio.Process:
    command = [sys.executable, "-m", __spec__.name, plan.uri, name, str(total), plan.take]
    # The pipe to stdin ends a reader whose parent has ended, which would otherwise wait for ever for the last
    # record. A separate process group keeps Ctrl-C from the reader, which would print a traceback.
    reader = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(),
        process_group=0,
    )
    assert reader.stdout is not None
    first_line = b""
    with trio.move_on_after(START_S):
        while not first_line.endswith(b"\n"):
            chunk = await reader.stdout.receive_some(1)  # later bytes belong to the result
            if not chunk:
                break
            first_line += chunk
    if first_line != b"ready\n":
        reader.kill()
        raise RuntimeError(f"the reader did not start (exit code {await reader.wait()})")
    return reader


def _environment() -> dict[str, str]:
    from ....cluster.local.child_processes import environment

    return environment()


async def _last_line(reader: trio.Process) -> bytes:
    assert reader.stdout is not None
    received = b""
    while more := await reader.stdout.receive_some(65_536):
        received += more
    return received


async def read(uri: str, name: str, total: int, take: str) -> None:
    """Run the child: tail the log, measure, and print the result."""
    from .... import open_namespace

    histogram = Histogram()
    count = 0
    async with open_namespace(uri) as namespace, namespace.open_log(name).open_reader() as reader:
        await reader.read_bulk(1)
        print("ready", flush=True)
        cpu_s = -process_time()
        while count < total:
            if take == "columns":
                columns = await reader.read_columns()
                assert columns is not None, "a tail does not end"
                ends = columns.offsets.tolist()
                payloads: list[Buffer] = [columns.payload[at:] for at in ends[:-1]]
            else:
                payloads = [record.payload for record in await reader.read_bulk(BATCH)]
            now = perf_counter()
            for payload in payloads:
                histogram.add(now - STAMP.unpack_from(payload)[0])
            count += len(payloads)
    cpu_s += process_time()
    reader_result = {
        "records": count,
        "cpu_s": cpu_s,
        "max_s": histogram.max_s,
        "pairs": histogram.as_pairs(),
    }
    print(json.dumps(reader_result), flush=True)


async def _read_while_wanted(uri: str, name: str, total: int, take: str) -> None:
    from ....cluster.process.process_lifetime import cancel_at_end_of_stdin

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_at_end_of_stdin, nursery.cancel_scope)
        await read(uri, name, total, take)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_read_while_wanted, sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
