"""`dlog bench`: rates, percentiles and the machine's own floor."""

from pathlib import Path
from typing import Any

import click

from ..framework.options import CliCommand, Group, Settings, common, without_cluster
from ..framework.output import emit, plural
from ..framework.progress import show_progress


@click.group(
    cls=Group,
    examples="""
    dlog bench floor --data ./data
    dlog bench write --seconds 10 --size 1024
    dlog bench write --rate 1000 --outstanding 1 --json
    dlog bench tail --rate 1000
    dlog bench write --seconds 30 --picture run.svg
    """,
)
def command() -> None:
    """Measure. Every figure depends on the machine: compare with `dlog bench floor` of the same run."""


@command.command(cls=CliCommand, examples="dlog bench floor --data /mnt/disk --size 1024 --json")
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="A directory on the device to measure (default: the temporary directory).",
)
@click.option("--size", type=click.IntRange(1, 1 << 20), default=1024, help="Bytes a record.")
@click.option("--seconds", type=click.FloatRange(0.1), default=6.0, help="For all three.")
@without_cluster()
def floor(settings: Settings, data: Path | None, size: int, seconds: float) -> None:
    """What this machine allows: a sync, a replicated sync, and framing at full speed."""
    from ...testing.bench.measure.hardware_baseline import measure

    with show_progress(settings, lambda s: f"measuring for {seconds:g} s: {s:.0f} s"):
        baseline = measure(data, size, seconds)
    if settings.json:
        emit(baseline)
        return
    _print_build(settings)
    click.echo(f"append + fdatasync of {size} B      {_percentile_text(baseline['file'])}")
    click.echo(f"three nodes sync, two answer      {_percentile_text(baseline['replicated'])}")
    framing = baseline["framing"]
    click.echo(
        f"framed, sent to three, synced     {framing['records_per_s']:,} records/s,"
        f" {framing['bytes_per_s'] / 1e6:,.0f} MB/s"
    )
    click.echo(f"programs of other terminals took {baseline['others_cpu_pct']} % of the CPU")


_LOAD_OPTIONS = (
    click.option("--log", "log_name", metavar="NAME", help="Default: its own, deleted after."),
    click.option(
        "--records", type=click.IntRange(0), default=0, help="End after so many, not by time."
    ),
    click.option(
        "--seconds",
        type=click.FloatRange(0, min_open=True),
        default=10.0,
        show_default=True,
        help="End after so long, unless --records is given.",
    ),
    click.option(
        "--size",
        type=click.IntRange(1, 1032192),
        default=1024,
        show_default=True,
        help="Bytes a record.",
    ),
    click.option("--rate", type=click.FloatRange(0), default=0.0, help="Records/s; 0: full speed."),
    click.option(
        "--logs",
        type=click.IntRange(1, 10_000),
        default=1,
        show_default=True,
        help="Written side by side.",
    ),
    click.option(
        "--outstanding",
        type=click.IntRange(0),
        default=0,
        help="1: one at a time; 0: no limit.",
    ),
)
"""Which log, how many records, and at which rate."""

_FORM_OPTIONS = (
    click.option(
        "--call",
        type=click.Choice(["submit", "bulk", "packed"]),
        default="submit",
        show_default=True,
        help="How records are written: one a call, many, or as columns (at full speed).",
    ),
    click.option(
        "--as",
        "take",
        type=click.Choice(["records", "columns"]),
        default="records",
        show_default=True,
        help="How they are read: as objects, or as an entry's columns.",
    ),
    click.option(
        "--codec",
        type=click.Choice(["none", "lz4", "zstd"]),
        help="What entries are compressed with.  [default: the log's]",
    ),
    click.option(
        "--payload",
        type=click.Choice(["random", "noise", "json"]),
        default="random",
        show_default=True,
        help="The same random bytes in each record, others in each, or events (by bulk or packed).",
    ),
    click.option(
        "--picture",
        type=click.File("w", encoding="utf-8", lazy=False, atomic=True),
        metavar="FILE",
        help="Draw the run: records of each second, latency by percent. An SVG, for any browser.",
    ),
)
"""The calls, the form of the records, and the form of the result."""


def log_options(function: Any) -> Any:
    """What the benches of logs take."""
    for option in (*_LOAD_OPTIONS, *_FORM_OPTIONS):
        function = option(function)
    return function


@command.command(
    cls=CliCommand,
    examples="""
    dlog bench write --seconds 10
    dlog bench write --outstanding 1 --records 1000
    dlog bench write --rate 10000 --size 100 --call bulk --json
    """,
)
@log_options
@common
def write(settings: Settings, **given: Any) -> None:
    """Write records: rate, and latency from the call (with --rate: the intended time) to durable."""
    from ...testing.bench.cases.write import measure

    _run_benchmark(settings, measure, given)


@command.command(
    cls=CliCommand,
    examples="dlog bench read --records 1000000\ndlog bench read --passes 3 --as columns",
)
@log_options
@click.option(
    "--passes",
    type=click.IntRange(2),
    default=None,
    help="Read all of it so often: from the device, then from the page cache.",
)
@common
def read(settings: Settings, passes: int | None, **given: Any) -> None:
    """Fill a log, then read it from its beginning; only reading counts."""
    from ...testing.bench.cases.read import measure

    _run_benchmark(settings, measure, {**given, "passes": passes or 0})


@command.command(cls=CliCommand, examples="dlog bench tail --rate 1000 --seconds 10")
@log_options
@common
def tail(settings: Settings, **given: Any) -> None:
    """A writer and a reader in two processes: latency from the write call to the record in hand."""
    from ...testing.bench.cases.tail import measure

    _run_benchmark(settings, measure, given)


@command.command(cls=CliCommand, examples="dlog bench beside --seconds 60")
@log_options
@common
def beside(settings: Settings, **given: Any) -> None:
    """One record at a time, while another process reads at full speed; counts elections meanwhile."""
    from ...testing.bench.cases.interference import measure

    _run_benchmark(settings, measure, given)


def _run_benchmark(settings: Settings, measure: Any, option_values: dict[str, Any]) -> None:
    from ...testing.bench.measure.bench_plan import BenchPlan
    from ..connection.cluster_connection import end_if_refused, run

    async def work() -> dict[str, Any]:
        await end_if_refused(settings)
        measured: dict[str, Any] = await measure(plan)
        return measured

    file = option_values.pop("picture")
    plan = BenchPlan(
        uri=settings.where(),
        log=option_values.pop("log_name"),
        timeout_s=settings.timeout_s,
        **option_values,
    )

    command_name = click.get_current_context().info_name
    limit_text = f"{plan.records:,} records" if plan.records else f"{plan.seconds:g} s"
    with show_progress(settings, lambda s: f"bench {command_name} of {limit_text}: {s:.0f} s"):
        result = run(work)
    if file is not None:
        from ...testing.bench.measure.svg_report import picture

        file.write(picture(result, f"dlog bench {command_name}, {plan.size} B a record"))
    if settings.json:
        emit(result)
        return
    _print_build(settings)
    click.echo(
        f"{plural(result['records'], 'record')} of {plan.size} B in {result['seconds']:.2f} s:"
        f" {result['records_per_s']:,.0f} records/s, {result['bytes_per_s'] / 1e6:,.1f} MB/s"
    )
    for part in ("cold", "hot"):
        if part in result:
            rate, bytes_rate = result[part]["records_per_s"], result[part]["bytes_per_s"]
            click.echo(f"{part}: {rate:,.0f} records/s, {bytes_rate / 1e6:,.1f} MB/s")
    if result["latency_ms"] is not None:
        latency_text = ", ".join(f"{name} {ms:.3f}" for name, ms in result["latency_ms"].items())
        click.echo(f"latency in ms: {latency_text}")
    if "stored_bytes" in result:
        ratio = result["bytes"] / max(1, result["stored_bytes"])
        cpu_us = result["writer_cpu_us"]
        click.echo(f"{ratio:.2f} payload bytes a byte stored; {cpu_us:.2f} µs of CPU a record")
    if "elections" in result:
        beside_rate = result.get("beside", {}).get("records_per_s", 0.0)
        click.echo(
            f"read beside it: {beside_rate:,.0f} records/s; elections: {result['elections']}"
        )
    click.echo(
        f"programs of other terminals, a cluster's too, took {result['others_cpu_pct']} % of the CPU"
    )
    if file is not None:
        click.echo(f"picture: {file.name}")


def _print_build(settings: Settings) -> None:
    """What all figures below are of."""
    from ...testing.bench.measure.interpreter_info import this_build

    build = this_build()
    click.echo(build.describe())
    if (advice := build.advice()) is not None:
        settings.note(f"warning: {advice}")


def _percentile_text(percentiles: dict[str, Any]) -> str:
    return f"p50 {percentiles['p50']:.3f} ms, p99 {percentiles['p99']:.3f} ms"
