"""The arguments of a benchmark, its result in the words of the contract, and its end.

Benchmarks start clusters as processes, which a Ctrl-C reaches too: each end is one line, and no traceback.
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
"""Exit codes, as those of `dlog`."""
WIDTH_MAX = 100
DELETE_S = 15.0
"""For the deletion of what a run made: a writer that was interrupted may hold its log for a second more."""
PAYLOADS = 4096
"""Different ones, in turn: more than an entry has, so that nothing is found twice in one."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The flags of `dlog bench write`, `read` and `tail`."""

    uri: str
    log: str | None = None
    """None: its own, deleted after."""
    records: int = 0
    """0: as many as fit into ``seconds``."""
    seconds: float = 10.0
    size: int = 1024
    rate: float = 0.0
    """Records a second over all logs; 0: full speed."""
    logs: int = 1
    outstanding: int = 0
    """Records under way at most, a log; 0: what the writer's own bound lets through."""
    call: str = "submit"
    take: str = "records"
    """``records`` or ``columns``: how a reader takes them."""
    passes: int = 0
    """Of a reader: how often it reads all there is; 0: until the time is over."""
    codec: str | None = None
    """The log's; None: as it is."""
    payload: str = "random"
    """``random``: the same random bytes in each record; ``noise``: others; ``json``: events."""
    timeout_s: float = 30.0
    """No answer of the metadata for so long ends it."""

    @property
    def config(self) -> dict[str, float]:
        """For `open_namespace`."""
        return {"metadata_timeout_s": self.timeout_s}

    @property
    def log_config(self) -> dict[str, str]:
        """For `open_log`."""
        return {} if self.codec is None else {"codec": self.codec}

    def names(self) -> list[str]:
        """The logs' names."""
        base_name = self.log or f"bench-{os.getpid()}-{os.urandom(3).hex()}"
        return (
            [base_name]
            if self.logs == 1
            else [f"{base_name}-{index + 1}" for index in range(self.logs)]
        )

    def payloads(self) -> list[bytes]:
        """What records carry, in turn."""
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
    """Names of logs that exist; those that are only for this run are deleted after it.

    ``suffixes``: one log for each, instead of the plan's.
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

            # By connections of its own: a Ctrl-C that falls into a task of the namespace's ends that.
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
    """The keys of the contract. ``rates``: records of each second, the last one shorter."""
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
    """Lines of JSON, as applications log them."""
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
    """Run a program to its end. Raises `SystemExit` where it is interrupted or refused."""
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
        description=broken(text or "", min(WIDTH_MAX, shutil.get_terminal_size().columns) - 2),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def broken(text: str, width: int) -> str:
    """Wrap paragraphs; indented ones are commands to copy and stay unchanged."""
    paragraphs = []
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        indented = paragraph.startswith(" ")
        paragraphs.append(
            paragraph if indented else textwrap.fill(" ".join(paragraph.split()), width)
        )
    return "\n\n".join(paragraphs)
