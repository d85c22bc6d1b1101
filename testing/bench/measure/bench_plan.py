"""The arguments and the result of a benchmark, and the exit of benchmark programs.

Benchmarks start clusters as processes, which also receive a Ctrl-C. Each of them ends with one line and
without a traceback.
"""

import argparse
import json
import os
import random
import re
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from ....runtime.interfaces.errors import DistributedLogError
from .histogram import Histogram
from .machine_info import OthersCpu, settings

FAILED, INTERRUPTED = 1, 130
"""Exit codes, the same as those of `dlog`."""
WIDTH_MAX = 100
DELETE_S = 15.0
"""Timeout for deleting the logs of a run. An interrupted writer may keep its log for a second."""
PAYLOADS = 4096
"""Number of different payloads: more than the records of an entry, so that none repeats within one."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The flags of `dlog bench write`, `read` and `tail`."""

    uri: str
    log: str | None = None
    """None: a new log, which is deleted afterwards."""
    records: int = 0
    """0: as many as possible in ``seconds``."""
    seconds: float = 10.0
    size: int = 1024
    rate: float = 0.0
    """Records per second over all logs; 0 for full speed."""
    logs: int = 1
    outstanding: int = 0
    """Limit of pending records per log; 0 for the writer's own limit."""
    call: str = "submit"
    take: str = "records"
    """How a reader receives data: ``records`` or ``columns``."""
    passes: int = 0
    """How often a reader reads the whole log; 0 to read for ``seconds``."""
    codec: str | None = None
    """The codec of the log; None to keep its setting."""
    payload: str = "random"
    """``random`` (the same random bytes in each record), ``noise`` (different ones) or ``json`` (events)."""
    timeout_s: float = 30.0
    """Timeout of metadata requests in seconds."""

    @property
    def config(self) -> dict[str, float]:
        """Options for `open_namespace`."""
        return {"metadata_timeout_s": self.timeout_s}

    @property
    def log_config(self) -> dict[str, str]:
        """Options for `open_log`."""
        return {} if self.codec is None else {"codec": self.codec}

    def names(self) -> list[str]:
        """Return the names of the logs."""
        base_name = self.log or f"bench-{os.getpid()}-{os.urandom(3).hex()}"
        return (
            [base_name]
            if self.logs == 1
            else [f"{base_name}-{index + 1}" for index in range(self.logs)]
        )

    def payloads(self) -> list[bytes]:
        """Return the payloads that records use in rotation."""
        if self.payload == "random":
            return [os.urandom(self.size)]
        rng = random.Random(1)
        if self.payload == "noise":
            return [rng.randbytes(self.size) for _ in range(PAYLOADS)]
        return [_events(rng, self.size) for _ in range(PAYLOADS)]


@asynccontextmanager
async def own_logs(
    namespace: Any, plan: BenchPlan, suffixes: tuple[str, ...] = ()
) -> AsyncIterator[list[str]]:
    """Yield names of existing logs. Logs that were created for this run are deleted afterwards.

    Args:
        suffixes: Create one log per suffix, instead of the logs of the plan.
    """
    names = plan.names()
    if suffixes:
        names = [f"{names[0]}-{suffix}" for suffix in suffixes]
    created: list[str] = []
    try:
        for name in names:
            if plan.log is None or not await namespace.log_exists(name):
                await namespace.create_log(name)
                created.append(name)
        yield names
    finally:
        if plan.log is None:
            import trio

            from .... import open_namespace

            # With a separate namespace, because a Ctrl-C may have ended a task of the other one.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + DELETE_S):
                async with open_namespace(plan.uri) as cleanup_namespace:
                    for name in created:
                        await cleanup_namespace.delete_log(name, wait_s=DELETE_S)


def result(
    plan: BenchPlan,
    records: int,
    seconds: float,
    latency: Histogram | None,
    other_processes: OthersCpu,
    rates: Sequence[float] = (),
) -> dict[str, Any]:
    """Return the documented keys of a result.

    Args:
        latency: The latencies, if any were measured.
        rates: Records of each second; the last interval may be shorter.
    """
    shown_plan = asdict(replace(plan, uri=plan.uri))
    shown_plan["as"] = shown_plan.pop("take")
    return {
        "records": records,
        "bytes": records * plan.size,
        "seconds": round(seconds, 6),
        "records_per_s": round(records / seconds, 1) if seconds else 0.0,
        "bytes_per_s": round(records * plan.size / seconds, 1) if seconds else 0.0,
        "latency_ms": latency.summary_ms() if latency is not None else None,
        "percentiles_ms": latency.curve_ms() if latency is not None else None,
        "per_second": [round(rate, 1) for rate in rates],
        "settings": {**shown_plan, **settings()},
        "others_cpu_pct": other_processes.percent(),
    }


def _events(rng: random.Random, size: int) -> bytes:
    """Return lines of JSON that resemble log events of applications."""
    lines = b""
    while len(lines) < size:
        event = {
            "id": f"{rng.getrandbits(64):016x}",
            "user": rng.randrange(100_000),
            "kind": rng.choice(("view", "cart", "order", "refund")),
            "page": f"/shop/{rng.choice(('books', 'garden', 'music'))}/{rng.randrange(10_000)}",
            "price": round(1000 * rng.random(), 2),
            "agent": "Mozilla/5.0 (X11; Linux x86_64)",
        }
        lines += json.dumps(event).encode() + b"\n"
    return lines[:size]


# --- as a program ------------------------------------------------------------------------------------


def run(main: Callable[[], object]) -> None:
    """Run a program. Raises `SystemExit` if it is interrupted or fails with a `DistributedLogError`."""
    try:
        main()
    except BaseException as error:
        leaf_errors = list(_leaves(error))
        if any(isinstance(leaf_error, KeyboardInterrupt) for leaf_error in leaf_errors):
            print("interrupted", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        own_errors = [
            leaf_error for leaf_error in leaf_errors if isinstance(leaf_error, DistributedLogError)
        ]
        if not own_errors:
            raise
        print(
            f"error: {type(own_errors[0]).__name__} ({own_errors[0].code}): {own_errors[0]}",
            file=sys.stderr,
        )
        raise SystemExit(FAILED) from None


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def parser_of(module: str, text: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows the command and the docstring of a module."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=wrapped(text or "", min(WIDTH_MAX, shutil.get_terminal_size().columns) - 2),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def wrapped(text: str, width: int) -> str:
    """Wrap paragraphs; indented ones are commands to copy and stay unchanged."""
    paragraphs = []
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        indented = paragraph.startswith(" ")
        paragraphs.append(
            paragraph if indented else textwrap.fill(" ".join(paragraph.split()), width)
        )
    return "\n\n".join(paragraphs)
