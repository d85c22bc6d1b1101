"""`dlog bench`: measure rates, latencies and the baseline of the machine."""

from pathlib import Path
from typing import Any

import click

from ..framework.options import CliCommand, Group, Settings, common, without_cluster
from ..framework.output import emit, plural
from ..framework.output import size as size_text
from ..framework.progress import show_progress


@click.group(
    cls=Group,
    examples="""
    dlog bench baseline --directory ./data
    dlog bench write --seconds 10 --size 1024
    dlog bench write --rate 1000 --outstanding 1 --json
    dlog bench tail --rate 1000
    dlog bench write --seconds 30 --picture run.svg
    """,
)
def command() -> None:
    """Measure rates and latencies.

    All figures depend on the machine. Compare them with `dlog bench baseline` of the same run.
    """


@command.command(
    cls=CliCommand, examples="dlog bench baseline --directory /mnt/disk --size 1024 --json"
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Directory on the device to measure (default: the temporary directory).",
)
@click.option(
    "--size",
    type=click.IntRange(1, 1 << 20),
    default=1024,
    help="Record size in bytes (default 1024).",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=6.0,
    help="Duration in seconds (default 6, for all three measurements together).",
)
@without_cluster()
def baseline(settings: Settings, directory: Path | None, size: int, seconds: float) -> None:
    """Measure the baseline of this machine.

    The three measurements are a sync, a replicated sync, and framing at full speed.
    """
    from ...testing.bench.measure.hardware_baseline import measure

    with show_progress(settings, lambda s: f"measuring for {seconds:g} s: {s:.0f} s"):
        measured = measure(directory, size, seconds)
    if settings.json:
        emit(measured)
        return
    _print_build(settings)
    click.echo(f"append + fdatasync of {size} B      {_percentile_text(measured['file'])}")
    click.echo(f"three nodes sync, two answer      {_percentile_text(measured['replicated'])}")
    framing = measured["framing"]
    click.echo(
        f"framed, sent to three, synced     {framing['records_per_s']:,} records/s,"
        f" {size_text(framing['bytes_per_s'])}/s"
    )
    click.echo(f"programs of other terminals used {measured['others_cpu_pct']} % of the CPU")


_LOAD_OPTIONS = (
    click.option(
        "--log",
        "log_name",
        metavar="NAME",
        help="Log to use (default: a new one, deleted afterwards).",
    ),
    click.option(
        "--records",
        type=click.IntRange(0),
        default=0,
        help="Number of records, instead of a duration (default 0: use --seconds).",
    ),
    click.option(
        "--seconds",
        type=click.FloatRange(0, min_open=True),
        default=10.0,
        show_default=True,
        help="Duration in seconds. Ignored with --records.",
    ),
    click.option(
        "--size",
        type=click.IntRange(1, 1032192),
        default=1024,
        show_default=True,
        help="Record size in bytes.",
    ),
    click.option(
        "--rate",
        type=click.FloatRange(0),
        default=0.0,
        help="Target rate in records per second (default 0: full speed).",
    ),
    click.option(
        "--logs",
        type=click.IntRange(1, 10_000),
        default=1,
        show_default=True,
        help="Number of logs that are written concurrently.",
    ),
    click.option(
        "--outstanding",
        type=click.IntRange(0),
        default=0,
        help="Maximum number of outstanding writes (default 0: no limit).",
    ),
)
"""Log, number of records and rate."""

_FORM_OPTIONS = (
    click.option(
        "--call",
        type=click.Choice(["submit", "bulk", "packed"]),
        default="submit",
        show_default=True,
        help="Write call: one record per call, many records, or columns (at full speed).",
    ),
    click.option(
        "--as",
        "take",
        type=click.Choice(["records", "columns"]),
        default="records",
        show_default=True,
        help="Form in which records are read: objects, or the columns of an entry.",
    ),
    click.option(
        "--codec",
        type=click.Choice(["none", "lz4", "zstd"]),
        help="Compression codec of entries.  [default: the log's]",
    ),
    click.option(
        "--payload",
        type=click.Choice(["random", "noise", "json"]),
        default="random",
        show_default=True,
        help="Content: the same random bytes in all records, different ones, or events (bulk or packed).",
    ),
    click.option(
        "--picture",
        type=click.File("w", encoding="utf-8", lazy=False, atomic=True),
        metavar="FILE",
        help="SVG file for a diagram of the records per second and the latency percentiles.",
    ),
)
"""Calls, form of the records and form of the result."""


def log_options(function: Any) -> Any:
    """Add the options of the benchmarks of logs."""
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
    """Measure writes: the rate, and the latency until records are durable.

    The latency starts at the call, or with --rate at the intended time.
    """
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
    help="Number of times to read everything: first from the device, then from the page cache.",
)
@common
def read(settings: Settings, passes: int | None, **given: Any) -> None:
    """Measure reads of a log from its beginning.

    The command first fills the log, which is not measured.
    """
    from ...testing.bench.cases.read import measure

    _run_benchmark(settings, measure, {**given, "passes": passes or 0})


@command.command(cls=CliCommand, examples="dlog bench tail --rate 1000 --seconds 10")
@log_options
@common
def tail(settings: Settings, **given: Any) -> None:
    """Measure the latency from a write call to the delivery of the record in another process."""
    from ...testing.bench.cases.tail import measure

    _run_benchmark(settings, measure, given)


@command.command(cls=CliCommand, examples="dlog bench interference --seconds 60")
@log_options
@common
def interference(settings: Settings, **given: Any) -> None:
    """Measure single-record writes while another process reads at full speed, and count elections."""
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

        file.write(picture(result, f"dlog bench {command_name}, {plan.size} B per record"))
    if settings.json:
        emit(result)
        return
    _print_build(settings)
    click.echo(
        f"{plural(result['records'], 'record')} of {plan.size} B in {result['seconds']:.2f} s:"
        f" {result['records_per_s']:,.0f} records/s, {size_text(result['bytes_per_s'])}/s"
    )
    for part in ("cold", "hot"):
        if part in result:
            rate, bytes_rate = result[part]["records_per_s"], result[part]["bytes_per_s"]
            click.echo(f"{part}: {rate:,.0f} records/s, {size_text(bytes_rate)}/s")
    if result["latency_ms"] is not None:
        latency_text = ", ".join(f"{name} {ms:.3f}" for name, ms in result["latency_ms"].items())
        click.echo(f"latency in ms: {latency_text}")
    if "stored_bytes" in result:
        ratio = result["bytes"] / max(1, result["stored_bytes"])
        cpu_us = result["writer_cpu_us"]
        click.echo(f"{ratio:.2f} payload bytes per stored byte; {cpu_us:.2f} µs of CPU per record")
    if "elections" in result:
        beside_rate = result.get("beside", {}).get("records_per_s", 0.0)
        click.echo(
            f"concurrent reader: {beside_rate:,.0f} records/s; elections: {result['elections']}"
        )
    click.echo(
        f"programs of other terminals, including a cluster, used {result['others_cpu_pct']} % of the CPU"
    )
    if file is not None:
        click.echo(f"picture: {file.name}")


def _print_build(settings: Settings) -> None:
    """Print the interpreter build to which all figures apply."""
    from ...testing.bench.measure.interpreter_info import this_build

    build = this_build()
    click.echo(build.describe())
    if (advice := build.advice()) is not None:
        settings.note(f"warning: {advice}")


def _percentile_text(percentiles: dict[str, Any]) -> str:
    return f"p50 {percentiles['p50']:.3f} ms, p99 {percentiles['p99']:.3f} ms"
