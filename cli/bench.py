"""`dlog bench`: rates, percentiles and the machine's own floor."""

from pathlib import Path
from typing import Any

import click

from .options import Command, Group, Settings, common
from .output import emit


@click.group(
    cls=Group,
    examples="""
    dlog bench floor --data ./data
    dlog bench write --seconds 10 --size 1024
    dlog bench write --rate 1000 --outstanding 1 --json
    dlog bench tail --rate 1000
    """,
)
def command() -> None:
    """Measure. Every figure depends on the machine: compare with `dlog bench floor` of the same run."""


@command.command(cls=Command, examples="dlog bench floor --data /mnt/disk --size 1024 --json")
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="A directory on the device to measure (default: the temporary directory).",
)
@click.option("--size", type=click.IntRange(1, 1 << 20), default=1024, help="Bytes a record.")
@click.option("--seconds", type=click.FloatRange(0.1), default=6.0, help="For all three.")
@common
def floor(settings: Settings, data: Path | None, size: int, seconds: float) -> None:
    """What this machine allows: a sync, a replicated sync, and framing at full speed."""
    from ..bench.floor import measure

    found = measure(data, size, seconds)
    if settings.json:
        emit(found)
        return
    click.echo(f"append + fdatasync of {size} B      {_pair(found['file'])}")
    click.echo(f"three nodes sync, two answer      {_pair(found['replicated'])}")
    framing = found["framing"]
    click.echo(
        f"framed, sent to three, synced     {framing['records_per_s']:,} records/s,"
        f" {framing['bytes_per_s'] / 1e6:,.0f} MB/s"
    )
    click.echo(f"other processes took {found['others_cpu_pct']} % of the CPU")


def _pair(found: dict[str, Any]) -> str:
    return f"p50 {found['p50']:.3f} ms, p99 {found['p99']:.3f} ms"
