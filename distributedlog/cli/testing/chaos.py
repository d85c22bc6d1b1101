"""`dlog chaos`: inject faults into real processes or containers, and check the results of the clients."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode, print_notice
from ..framework.options import CliCommand, Group, Settings, without_cluster
from ..framework.output import emit, paint, size, table
from ..framework.progress import ProgressLine, show_progress

REFUSED_EXIT_CODE = 5
EXIT_CODE_OF_VERDICT = {"OK": 0, "VOID": NO, "FAIL": NO}

place_option = click.option(
    "--on",
    "place",
    type=click.Choice(["processes", "containers"]),
    default="processes",
    show_default=True,
    help="Environment in which the nodes run.",
)


@click.group(
    cls=Group,
    examples="""
    dlog chaos list
    dlog chaos run kills                               kill -9 and SIGSTOP for 60 s, then a report
    dlog chaos run kills --seed 7 --seconds 300 --output ./kills-7
    dlog chaos run my.toml --on containers
    dlog chaos run strangers --metrics --hold-faults --output ./drill
    dlog chaos end-faults ./drill --end-run
    dlog chaos check ./kills-7/history                 check a stored history again
    """,
)
def command() -> None:
    """Inject faults into a test cluster and check that no acknowledged record is lost."""


@command.command(
    cls=CliCommand,
    examples="""
    dlog chaos run kills
    dlog chaos run power-all --seed 3 --json
    dlog chaos run my.toml --output ./run --keep-data
    """,
)
@click.argument("file", metavar="FILE")
@click.option("--seed", type=click.IntRange(0), help="Seed of the run (default: as in the file).")
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    help="Duration in seconds (default: as in the file).",
)
@place_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory to write (default: ./chaos-NAME-SEED-TIME). It must be new.",
)
@click.option("--keep-data", is_flag=True, help="Keep the data directories of the nodes.")
@click.option(
    "--metrics",
    is_flag=True,
    help="Serve /metrics of nodes and clients; OUTPUT/cluster/targets.json lists them for Prometheus.",
)
@click.option(
    "--hold-faults",
    is_flag=True,
    help="Keep each fault, and the run, until dlog chaos end-faults ends it. Use it to practice runbooks.",
)
@click.option(
    "--node-module",
    default="",
    metavar="MODULE",
    help="Module to run as nodes instead of dlog, for injected bugs.",
)
@without_cluster()
def run(
    settings: Settings,
    file: str,
    seed: int | None,
    seconds: float | None,
    place: str,
    output: Path | None,
    keep_data: bool,
    metrics: bool,
    hold_faults: bool,
    node_module: str,
) -> None:
    """Run a scenario (a TOML file, or the name of a packaged one) on a new cluster, and check the results.

    The exit code is 0 for the result OK, 6 for FAIL or VOID, and 1 if the run itself failed. It is 5 if the
    machine lacks a requirement of the scenario (root, a loop device, Docker).
    """
    import trio

    from ...testing.chaos.model.adapter import ChaosFailed
    from ...testing.chaos.model.scenario_file import load
    from ...testing.chaos.run import runner

    if metrics and place == "containers":
        raise click.UsageError("--metrics requires processes: containers have their own HTTP pages")
    scenario = load(file)
    seed = scenario.seed if seed is None else seed
    directory = output or _default_directory(scenario.name, seed)
    adapter_factory = _adapter_class(place)
    duration_s = seconds or scenario.seconds
    # An injected bug ends a run as FAIL, and a run by hand lasts until a person ends it.
    if not node_module and not hold_faults:
        _check_duration(scenario, duration_s)

    async def work(progress: ProgressLine) -> Any:
        return await runner.play(
            scenario,
            adapter_factory,
            directory.absolute(),
            seed=seed,
            seconds=duration_s,
            scenario_name=file,
            node_module=node_module,
            http=metrics,
            make_certificates=_certificates,
            by_hand=hold_faults,
            print_line=progress.note,
        )

    try:
        with show_progress(
            settings, lambda s: f"{s:6.1f} s  faults for {duration_s:g} s"
        ) as progress:
            outcome = trio.run(work, progress)
    except runner.Refused as refused:
        print_notice(f"error: refused: {refused}")
        raise ExitWithCode(REFUSED_EXIT_CODE) from None
    except ChaosFailed as failed:
        raise click.ClickException(f"the run failed: {failed}; see {directory}") from None
    _report(settings, outcome, keep_data)


def _default_directory(scenario_name: str, seed: int) -> Path:
    """Return the directory for history and report of a run that starts now."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path(f"chaos-{scenario_name}-{seed}-{stamp}")


def _check_duration(scenario: Any, duration_s: float) -> None:
    """Reject a run that is shorter than the scenario and too short for its limits."""
    from ...testing.chaos.run import runner

    if duration_s >= scenario.seconds:
        return
    needed_s = runner.seconds_needed(scenario)
    if duration_s < needed_s:
        raise click.UsageError(
            f"--seconds {duration_s:g} is too short for {scenario.name}, so the result would be VOID: its"
            f" limits need about {math.ceil(needed_s)} s (the scenario has {scenario.seconds:g} s)"
        )


def _report(settings: Settings, outcome: Any, keep_data: bool) -> None:
    """Write the result and the report of a run, print the result, and exit with its code."""
    from ...testing.chaos.run import runner
    from ...testing.chaos.run.html_report import write_report

    runner.write_result(outcome)
    report = write_report(outcome.result, outcome.directory / "report.html")
    if not keep_data:
        runner.clean(outcome.directory)
    _print_result(settings, outcome.result)
    settings.note(f"report: {report}")
    if EXIT_CODE_OF_VERDICT[outcome.run_result.verdict]:
        raise ExitWithCode(EXIT_CODE_OF_VERDICT[outcome.run_result.verdict])


@command.command(
    name="end-faults",
    cls=CliCommand,
    examples="""
    dlog chaos end-faults ./drill                      end the current faults: restart nodes, free disks
    dlog chaos end-faults ./drill --end-run            also end the run, and check its results
    """,
)
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--end-run", is_flag=True, help="Start no further faults: end the run and check its results."
)
@without_cluster("timeout")
def end_faults(settings: Settings, directory: Path, end_run: bool) -> None:
    """End the current faults of a run that was started with --output DIR."""
    from ...testing.chaos.run import runner

    word = runner.END if end_run else runner.END_FAULTS
    runner.send_command(directory, word)
    give_up_at = time.monotonic() + settings.timeout_s
    while runner.is_pending(directory, word):
        if time.monotonic() > give_up_at:
            runner.withdraw_command(directory, word)
            raise click.ClickException(
                f"no run is active in {directory}: dlog chaos run … --output {directory}"
            )
        time.sleep(runner.COMMANDS_POLL_S)


@command.command(cls=CliCommand, examples="dlog chaos check ./kills-7/history --json")
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@without_cluster()
def check(settings: Settings, history: Path) -> None:
    """Check a stored history again.

    The exit code is 0 for OK, and 6 for FAIL and VOID.
    """
    from ...testing.chaos.run import runner

    outcome = runner.check(history)
    _print_result(settings, outcome.result)
    if EXIT_CODE_OF_VERDICT[outcome.run_result.verdict]:
        raise ExitWithCode(EXIT_CODE_OF_VERDICT[outcome.run_result.verdict])


@command.command(name="list", cls=CliCommand, examples="dlog chaos list --json")
@place_option
@without_cluster()
def list_(settings: Settings, place: str) -> None:
    """List the packaged scenarios, and whether they can run here."""
    from ...testing.chaos.model.scenario_file import load, packaged
    from ...testing.chaos.run import runner

    make = _adapter_class(place)
    rows: list[list[str]] = []
    for name in packaged():
        scenario = load(name)
        missing = runner.refusals(scenario, make(runner.needs_of(scenario, Path(".")), {}))
        if settings.json:
            emit(
                {
                    "name": name,
                    "about": scenario.about,
                    "seconds": scenario.seconds,
                    "faults": sorted({fault.kind for fault in scenario.faults}),
                    "refused": missing,
                }
            )
            continue
        rows.append([name, f"{scenario.seconds:g} s", scenario.about])
        rows += [["", "", f"unavailable: {line}"] for line in missing]
    if not settings.json:
        table(("scenario", "time", "description"), rows)


def _adapter_class(adapter_name: str) -> Any:
    """Return the adapter class of an environment."""
    if adapter_name == "containers":
        from ...testing.chaos.adapters.containers import Containers

        return Containers
    from ...testing.chaos.adapters.local_processes import LocalProcesses

    return LocalProcesses


def _certificates(directory: Path, principals: Sequence[str], days: int) -> None:
    from ...testing.chaos.clients.authorization_walk import place_of
    from ..access.certificates import issue, make_authority

    authority = directory / "authority"
    make_authority(authority, "chaos")
    for principal in principals:
        issue(authority, principal, place_of(directory, principal), days=days)


def _print_result(settings: Settings, result: dict[str, Any]) -> None:
    if settings.json:
        output = {key: value for key, value in result.items() if key != "time_line"}
        emit(output)
        return
    latency = result["latency_ms"]
    click.echo(
        f"{paint(result['verdict'])}  {result.get('scenario', '?')}, seed {result.get('seed', '?')}"
    )
    for reason in result["reasons"]:
        click.echo(f"  - {reason}")
    click.echo(
        f"  acknowledged {result['acked']:,} ({result['acked_per_s']:,.0f}/s), lost {result['lost']:,},"
        f" unknown {result['unknown']:,}, refused {result['refused']:,}"
    )
    click.echo(
        f"  read {result['read']:,} records in {result['readings']} readings,"
        f" {result['register_calls']:,} calls on registers, {len(result['faults'])} faults"
    )
    if latency:
        latency_text = ", ".join(f"{name} {ms:g}" for name, ms in latency.items())
        click.echo(f"  latency in ms: {latency_text}")
    click.echo(
        f"  longest time without an acknowledged write: {result['gap_s']:.2f} s,"
        f" at {result['gap_at_s']:.1f} s"
    )
    click.echo(
        f"  history: {size(result['history']['bytes'])}, sha256 {result['history']['sha256']}"
    )
