"""Measure the write latency of a single-record writer during a catch-up read at full speed (H27).

A child process reads a filled log repeatedly. This process writes single records to another log, each after
the previous one is durable. The result also has the number of records read, and the number of elections of
the metadata nodes, whose heartbeats share the cores.
"""

import json
import subprocess
import sys
from time import perf_counter
from typing import Any

import trio

from ....log.format.record import LogRecord
from ..measure.bench_plan import BenchPlan, own_logs, result
from ..measure.histogram import Histogram, per_second
from ..measure.machine_info import OthersCpu
from .read import FILL_BYTES, READ_RECORDS
from .write import fill

FILLED = "read"
WRITTEN = "written"
STOP_S = 10.0


async def measure(plan: BenchPlan) -> dict[str, Any]:
    """Write for ``seconds``, or write ``records``, while the child reads."""
    from .... import open_namespace
    from ....cluster.local.child_processes import environment

    histogram = Histogram()
    async with (
        open_namespace(plan.uri, config=plan.config) as namespace,
        own_logs(namespace, plan, (FILLED, WRITTEN)) as (filled, written),
    ):
        await fill(namespace, filled, plan.records or FILL_BYTES // plan.size, plan.size)
        command = [sys.executable, "-m", __spec__.name, plan.uri, filled, plan.take]
        reader = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            process_group=0,  # so that Ctrl-C reaches only the parent
        )
        assert reader.stdin is not None
        assert reader.stdout is not None
        try:
            await reader.stdout.receive_some(1)  # sent when it starts to read
            term = await _term(namespace)
            other_processes = OthersCpu()
            start = perf_counter()
            payload = bytes(plan.size)
            count = 0
            async with (
                per_second(namespace, "dlog_client_records_written_total") as rates,
                namespace.open_log(written).open_writer() as writer,
            ):
                while count < plan.records or (
                    not plan.records and perf_counter() - start < plan.seconds
                ):
                    begun_at = perf_counter()
                    await writer.write(LogRecord(count, payload))
                    histogram.add(perf_counter() - begun_at)
                    count += 1
            seconds = perf_counter() - start
            write_result = result(plan, count, seconds, histogram, other_processes, rates)
            write_result["elections"] = await _term(namespace) - term
            await reader.stdin.aclose()  # ends the child
            reader_output = b""
            with trio.move_on_after(STOP_S):
                while chunk := await reader.stdout.receive_some(65_536):
                    reader_output += chunk
            if reader_output:
                write_result["beside"] = json.loads(reader_output)
        finally:
            if reader.returncode is None:
                reader.kill()
    return write_result


async def _term(namespace: Any) -> int:
    """Return the Raft term, which grows with each election."""
    return max(int(member.term) for member in await namespace.metadata.status() if member.alive)


async def _read(uri: str, name: str, take: str) -> None:
    """Run the child: read until stdin is closed, then print the number of records."""
    from .... import open_namespace
    from ....cluster.process.process_lifetime import cancel_at_end_of_stdin

    count = 0
    start = perf_counter()
    async with open_namespace(uri) as namespace:
        print(" ", end="", flush=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_at_end_of_stdin, nursery.cancel_scope)
            while True:
                async with namespace.open_log(name).open_reader(to="end") as reader:
                    while not reader.ended:
                        if take == "columns":
                            columns = await reader.read_columns()
                            count += 0 if columns is None else columns.count
                        else:
                            count += len(await reader.read_bulk(READ_RECORDS))
    rate = count / (perf_counter() - start)
    print(json.dumps({"records": count, "records_per_s": round(rate, 1)}), flush=True)


if __name__ == "__main__":
    trio.run(_read, sys.argv[1], sys.argv[2], sys.argv[3])
