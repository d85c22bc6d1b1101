"""Execute one run: start a cluster and clients, inject faults, end them, read all logs, and check.

All files are in one directory: the observations of each client, all of them together (``history``), the
report (``report.html``, ``result.json``), and the logs of the nodes. The result depends only on the history,
so `dlog chaos check` computes the same one later.
"""

import hashlib
import json
import math
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import trio

from ....runtime.disk.output_file import write_file
from ....runtime.interfaces.errors import DistributedLogError, InvalidRequest
from ....runtime.interfaces.host import Address
from ...verify.checks.run_check import FINISH, RunResult, check_run, to_json
from ...verify.history.observations import (
    FORMAT,
    ObservationWriter,
    PipelineObservations,
    read_observations,
)
from ..clients.authorization_walk import (
    ADMIN,
    ROUND,
    MakeCertificates,
    ModeSequence,
    connected,
    credentials_of,
    principals,
)
from ..clients.client_context import after, before
from ..clients.client_processes import Clients
from ..clients.cluster_endpoints import TARGETS, endpoints_of, write_targets
from ..model.adapter import NODE_MODULE, Adapter, ChaosFailed, Needs
from ..model.scenario import WRITERS, Scenario
from .fault_player import FaultPlayer

END_FAULTS = "mend"
"""The command that ends the present faults."""
END = "end"
"""The command that also starts no more faults and ends the run, which is then checked."""
COMMANDS_POLL_S = 0.1
FIRST_ACK_S = 120.0
STATUS_S = 2.0
HISTORY = "history"
CERTIFICATES = "certificates"
RUNNER = "runner"


class MakeAdapter(Protocol):
    """Creates an adapter for the needs of a scenario."""

    def __call__(self, needs: Needs, store: dict[str, Any]) -> Adapter:
        """Create the adapter; ``store`` has the options of the bookies' stores."""
        ...


class Refused(Exception):
    """The scenario requires capabilities that are not available; the message lists them."""


@dataclass(slots=True)
class CheckedRun:
    """A finished run and its result."""

    run_result: RunResult
    observations: PipelineObservations
    result: dict[str, Any]
    directory: Path
    history: Path = field(default_factory=Path)


def refusals(scenario: Scenario, adapter: Adapter) -> list[str]:
    """Return the capabilities that the scenario requires and the machine lacks, one line each."""
    missing = []
    for name, capability in scenario.capabilities_by_name.items():
        reason = adapter.refusal(capability)
        if reason is not None:
            missing.append(f"{name} on {adapter.kind}: {reason}")
    return missing


def seconds_needed(scenario: Scenario) -> float:
    """Return about how long a run must last to satisfy the limits of its scenario; a shorter one is VOID.

    Loops select pauses and faults at random. Mean values are used here, so a run of this length may still be
    VOID.
    """
    bounds = scenario.bounds
    records_per_s = sum(
        client.rate * client.count for client in scenario.clients if client.kind in WRITERS
    )
    needed_s = bounds.acked_min / records_per_s if records_per_s else 0.0
    if bounds.rounds_min and scenario.walk is not None:
        needed_s = max(needed_s, bounds.rounds_min * len(ROUND) * _mean(scenario.walk.hold_s))
    moments = sorted(moment.at_s for moment in scenario.moments)
    random_faults = bounds.faults_min - len(moments)
    if moments and not scenario.loops and bounds.faults_min:
        needed_s = max(needed_s, moments[: bounds.faults_min][-1])
    if random_faults > 0 and scenario.loops:
        per_s = 0.0
        for loop in scenario.loops:
            mean_holds_s = [_mean(fault.hold_s) for fault in loop.faults]
            per_s += 1 / (_mean(loop.pause_s) + sum(mean_holds_s) / len(mean_holds_s))
        needed_s = max(needed_s, random_faults / per_s)
    return needed_s


def _mean(bounds: tuple[float, float]) -> float:
    return (bounds[0] + bounds[1]) / 2


def needs_of(scenario: Scenario, directory: Path, *, http: bool = False, module: str = "") -> Needs:
    """Return the needs of a scenario. ``directory`` is that of the run."""
    cluster = scenario.cluster
    return Needs(
        directory / "cluster",
        cluster.bookies,
        cluster.metadata_nodes,
        scenario.capabilities,
        cluster.disk_mb,
        http,
        module or NODE_MODULE,
        directory / CERTIFICATES if scenario.certificate_days else None,
        write_proxies=cluster.write_proxies,
        read_proxies=cluster.read_proxies,
        gateways=cluster.gateways,
        gateway_settings=cluster.gateway,
    )


async def play(
    scenario: Scenario,
    make_adapter: MakeAdapter,
    directory: Path,
    *,
    seed: int,
    seconds: float,
    scenario_name: str = "",
    node_module: str = "",
    http: bool = False,
    make_certificates: MakeCertificates | None = None,
    by_hand: bool = False,
    print_line: Callable[[str], None] = lambda _: None,
) -> CheckedRun:
    """Run a scenario.

    Args:
        scenario: The scenario.
        make_adapter: Creates the adapter.
        directory: The directory of the run, which is created and must be empty.
        seed: The seed of all random values.
        seconds: The duration of the load.
        scenario_name: The name or file of the scenario, for the command that repeats the run.
        node_module: The module that nodes run; the default is the product.
        http: Nodes and clients serve ``/metrics``, and ``cluster/targets.json`` lists them.
        make_certificates: Required for a scenario with certificates.
        by_hand: Faults and the run last until a command ends them (`send_command`).
        print_line: Receives progress messages.

    Raises:
        Refused: A capability is missing. Nothing was started.
        ChaosFailed: The cluster or machine did not do what it must.
    """
    needs = needs_of(scenario, directory, http=http, module=node_module)
    adapter = make_adapter(needs, dict(scenario.cluster.store))
    missing = refusals(scenario, adapter)
    if missing:
        raise Refused("; ".join(missing))
    _make(directory, needs.directory)
    if needs.certificates is not None:
        assert make_certificates is not None, "the scenario has certificates"
        try:
            valid_days = scenario.certificate_days
            make_certificates(needs.certificates, principals(scenario), valid_days)
        except InvalidRequest as error:
            raise ChaosFailed(str(error)) from None
    plan = RunPlan(
        scenario, needs, directory, seed, seconds, scenario_name or scenario.name, by_hand
    )
    chaos_run = _Run(plan, adapter, print_line)
    await chaos_run.run()
    return chaos_run.check_history()


def _make(directory: Path, cluster_directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise ChaosFailed(f"{directory} is not empty: each run needs a separate directory")
    cluster_directory.mkdir()


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The scenario of a run, with its directory and duration."""

    scenario: Scenario
    needs: Needs
    directory: Path
    """Of the run."""
    seed: int
    seconds: float
    file: str
    """The scenario's name or file, as the user typed it."""
    by_hand: bool
    """Faults and the run last until a command ends them."""


class _Run:
    """The state of one run. It is the `FaultRecorder` of its faults."""

    def __init__(self, plan: RunPlan, adapter: Adapter, print_line: Callable[[str], None]) -> None:
        self.plan = plan
        self.certificates = plan.needs.certificates
        self.mode_sequence: ModeSequence | None = None
        self.adapter = adapter
        self.failures: list[str] = []
        self._start = time.monotonic()
        self._print_line = print_line
        self._file = (plan.directory / f"{RUNNER}.notes").open("ab", buffering=0)
        self._observations = ObservationWriter(RUNNER, self._file.write)
        self._fault_count = 0
        self.clients: Clients

    def report(self, text: str) -> None:
        """Print and record a line."""
        self._print_line(f"{time.monotonic() - self._start:6.1f} s  {text}")
        self._observations.record("note", before(), text)

    async def run(self) -> None:
        """Execute the run, without the check."""
        observations = self._observations
        observations.record("begin", FORMAT, os.getpid(), before())
        observations.record(
            "run",
            before(),
            {
                "scenario": self.plan.scenario.name,
                "about": self.plan.scenario.about,
                "seed": self.plan.seed,
                "seconds": self.plan.seconds,
                "adapter": self.adapter.kind,
                "bookies": self.plan.scenario.cluster.bookies,
                "metadata_nodes": self.plan.scenario.cluster.metadata_nodes,
                "bounds": asdict(self.plan.scenario.bounds),
                "machine": machine(),
            },
        )
        async with self.adapter as adapter:
            self.report(f"{len(adapter.nodes)} nodes serve at {adapter.uri}")
            service_addresses = endpoints_of(adapter.uri, adapter.nodes)
            for address in (service_addresses.proxies, *service_addresses.gateways):
                if address:
                    self.report(f"and at {address}")
            if self.certificates is not None:
                self.report(
                    f"the credentials of an admin are {credentials_of(self.certificates, ADMIN)}"
                )
            self.clients = Clients(
                self.plan.scenario,
                self.plan.directory,
                service_addresses,
                self.plan.seed,
                self.certificates,
            )
            try:
                if self.plan.needs.http:
                    self._write_scrape_targets(await self.clients.assign_page_addresses())
                await self._set_up_walk()
                async with _asking(
                    adapter.uri, credentials_of(self.certificates, ADMIN)
                ) as ask_leader:
                    await self._run_load(ask_leader)
                await self._finish()
            finally:
                with trio.CancelScope(shield=True):
                    await self.clients.kill_all()
                self._save_node_logs()

    async def _set_up_walk(self) -> None:
        walk, certificates = self.plan.scenario.walk, self.certificates
        if walk is None or certificates is None:
            return

        def changed(mode: str, asked_at: float, answered_at: float) -> None:
            self._observations.record("mode", mode, asked_at, answered_at)

        self.mode_sequence = ModeSequence(
            walk,
            self.plan.scenario,
            self.adapter.uri,
            certificates,
            Random(f"{self.plan.seed}/walk"),
            on_mode_changed=changed,
            print_line=self.report,
        )
        await self.mode_sequence.set_up()

    async def _run_load(self, ask_leader: "Callable[[], Any]") -> None:
        player = FaultPlayer(
            self.plan.scenario,
            self.adapter,
            self.plan.seed,
            leader=ask_leader,
            recorder=self,
            clients=self.clients,
            by_hand=self.plan.by_hand,
        )
        await self.clients.start_all()
        await self._wait_first_ack()
        self.report("clients write; faults begin")
        self._observations.record("run", before(), {"begun_at": before()})
        is_over = player.targets.is_over

        def end() -> None:
            is_over.set()
            player.end_faults()

        async def count_down() -> None:
            await player.targets.wait_over(math.inf if self.plan.by_hand else self.plan.seconds)
            is_over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                follow_commands, self.plan.directory, {END_FAULTS: player.end_faults, END: end}
            )
            nursery.start_soon(count_down)
            async with trio.open_nursery() as fault_nursery:
                fault_nursery.start_soon(player.run)
                if self.mode_sequence is not None:
                    fault_nursery.start_soon(self.mode_sequence.run, is_over)
            nursery.cancel_scope.cancel()
        await player.heal()
        end_observation = {"ended_at": after(), "gone": player.targets.refusing_nodes}
        self._observations.record("run", before(), end_observation)
        self.report("no more faults; all nodes that can run are running")
        self.failures += player.unexpected_exits

    def _write_scrape_targets(self, clients: Sequence[tuple[str, Address]] = ()) -> None:
        """Write the addresses that Prometheus scrapes."""
        page_rows = [
            (node.name, node.role.value, node.pages)
            for node in self.adapter.nodes
            if node.pages is not None
        ]
        page_rows += [(name, "client", page_address) for name, page_address in clients]
        write_targets(self.plan.directory / "cluster" / TARGETS, page_rows)

    async def _wait_first_ack(self) -> None:
        with trio.move_on_after(FIRST_ACK_S):
            while not self.clients.has_acknowledged():  # noqa: ASYNC110 (files of other processes tell)
                await trio.sleep(0.1)
            return
        raise ChaosFailed(f"no client received an acknowledgement within {FIRST_ACK_S:g} s")

    async def _finish(self) -> None:
        """Check liveness: after the faults a writer can write, and each log can be read completely."""
        if self.plan.needs.http:
            self._write_scrape_targets()  # without the clients, which are ended intentionally
        self.failures += await self.clients.end_all()
        await self.clients.start(FINISH)
        begun_at = time.monotonic()
        exit_code: int | None = None
        with trio.move_on_after(self.plan.scenario.settle_s + 2 * self.plan.seconds):
            exit_code = await self.clients.wait(FINISH)
        if exit_code != 0:
            failure = await self.clients.end(FINISH)
            self.failures.append(
                f"liveness: after the faults no writer could write, or no reader could read a log completely:"
                f" {failure or 'the attempts timed out'}"
            )
        self.report(
            f"every log was written and read completely, in {time.monotonic() - begun_at:.1f} s"
        )
        self._observations.record("run", before(), {"failures": self.failures})

    def fault_begins(self, kind: str, names: Sequence[str], text: str) -> int:
        """See `FaultRecorder`."""
        self._fault_count += 1
        self._observations.record("fault", self._fault_count, kind, list(names), before(), text)
        self._print_line(
            f"{time.monotonic() - self._start:6.1f} s  fault {self._fault_count}: {kind} {', '.join(names)}"
        )
        return self._fault_count

    def fault_ends(self, number: int, text: str) -> None:
        """See `FaultRecorder`."""
        self._observations.record("over", number, after(), text)
        self._print_line(
            f"{time.monotonic() - self._start:6.1f} s  fault {number} ended: {text[:160]}"
        )

    def _save_node_logs(self) -> None:
        logs_directory = self.plan.directory / "words"
        logs_directory.mkdir(exist_ok=True)
        for node in self.adapter.nodes:
            (logs_directory / f"{node.name}.txt").write_text(self.adapter.log_of(node.name))

    def check_history(self) -> CheckedRun:
        """Join the history into one file, and check it."""
        self._file.close()
        history = self.plan.directory / HISTORY
        with history.open("wb") as out:
            for path in [
                self.plan.directory / f"{RUNNER}.notes",
                *self.clients.observation_files(),
            ]:
                content = path.read_bytes()
                out.write(content[: content.rfind(b"\n") + 1])
        checked_run = check(history)
        checked_run.directory = self.plan.directory
        checked_run.result["command"] = self._replay_command()
        return checked_run

    def _replay_command(self) -> str:
        """Return the command that repeats the run."""
        plan = self.plan
        options = f" --seconds {plan.seconds:g}" if plan.seconds != plan.scenario.seconds else ""
        options += " --on containers" if self.adapter.kind == "containers" else ""
        return f"dlog chaos run {shlex.quote(plan.file)} --seed {plan.seed}{options}"


def check(history: Path) -> CheckedRun:
    """Check a stored history."""
    content = history.read_bytes()
    observations = read_observations(content.splitlines(keepends=True))
    run_result = check_run(observations)
    run_fields = {
        key: value for key, value in observations.run.items() if key not in ("bounds", "failures")
    }
    result = {
        **run_fields,
        **to_json(run_result, observations),
        "history": {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        },
    }
    return CheckedRun(run_result, observations, result, history.parent, history)


def write_result(checked_run: CheckedRun) -> Path:
    """Write ``result.json`` next to the history."""
    path = checked_run.directory / "result.json"
    write_file(path, json.dumps(checked_run.result, indent=1) + "\n")
    return path


def clean(directory: Path) -> None:
    """Remove the nodes' data; history, report and logs remain."""
    shutil.rmtree(directory / "cluster", ignore_errors=True)
    shutil.rmtree(directory / CERTIFICATES, ignore_errors=True)


def machine() -> str:
    """Return a description of this machine."""
    return f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}"


@asynccontextmanager
async def _asking(uri: str, credentials: str) -> AsyncIterator[Callable[[], Any]]:
    """Yield a function that returns the name of the metadata leader; None if there is no answer in time."""
    async with connected(uri, credentials, STATUS_S) as client:

        async def ask() -> str | None:
            with trio.move_on_after(STATUS_S):
                try:
                    for member in await client.status():
                        if member.alive and member.role == "leader":
                            return member.name
                except DistributedLogError:
                    return None
            return None

        yield ask


# --- commands to a run --------------------------------------------------------------------------------


def send_command(directory: Path, command: str) -> None:
    """Create a command for the run of a directory.

    The command is a file, which the run deletes when it executes the command.
    """
    _file_of(directory, command).touch()


def is_pending(directory: Path, command: str) -> bool:
    """Return whether the run has not executed the command yet."""
    return _file_of(directory, command).exists()


def withdraw_command(directory: Path, command: str) -> None:
    """Delete a command that no run has executed."""
    _file_of(directory, command).unlink(missing_ok=True)


async def follow_commands(directory: Path, actions: Mapping[str, Callable[[], None]]) -> None:
    """Execute arriving commands, until cancelled."""
    while True:
        for command, action in actions.items():
            if is_pending(directory, command):
                withdraw_command(directory, command)
                action()
        await trio.sleep(COMMANDS_POLL_S)


def _file_of(directory: Path, command: str) -> Path:
    return directory / f"{command}.word"
