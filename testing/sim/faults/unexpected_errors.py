"""Unexpected exceptions in the tasks of nodes: thrown into a waiting task, as a bug would raise them.

Such an exception ends one attempt of one piece of work (`distributedlog/runtime/schedule/work_failures.py`)
or one connection. In the tasks of `ENDS_NODE` it ends the node. A task that only waits for its children has
no code that could fail (`waits_for_children`).
"""

from random import Random

import trio

from ...verify.checks.history_check import Violation
from ..world.bug_injection import ENDS_NODE, Injected
from ..world.machine_state import machine_of_task
from ..world.sim_cluster import SimCluster
from ..world.sim_host import SimHost

OWN = "distributedlog"
WRAPPERS = {
    "SimHost._run",
    "Endpoint._run_contained",
    "Endpoint._run_serving",
    "run_services.<locals>.run_in_scope",
}
"""Wrappers that run other functions and do not name the work of a task."""
PART_OF_SEEDS = 0.3
PART_THAT_ENDS = 0.2
"""Minimum share of exceptions that are thrown into tasks that end their node."""
PAUSE_S = 2.0
END_S = 15.0
"""Time for a node to end: it removes its registration and writes a checkpoint."""


def tasks_of(host: SimHost) -> list[trio.lowlevel.Task]:
    """Return the tasks of the process that runs on a machine, in the order in which they began."""
    tasks = []
    root = trio.lowlevel.current_root_task()
    unvisited = [] if root is None else [root]
    while unvisited:
        task = unvisited.pop()
        for nursery in task.child_nurseries:
            unvisited += nursery.child_tasks
        if task.context.get(machine_of_task) is host.state:
            tasks.append(task)
    return sorted(tasks, key=lambda task: task._counter)


def work_of(task: trio.lowlevel.Task) -> str:
    """Return the name of the function that a task runs, below the wrappers that contain its exceptions."""
    for frame, _ in task.iter_await_frames():
        module = frame.f_globals.get("__name__", "")
        name = frame.f_code.co_qualname
        if module.startswith(OWN) and not module.endswith("work_failures") and name not in WRAPPERS:
            return name
    return ""


def waits_for_children(task: trio.lowlevel.Task) -> bool:
    """Return whether a task only waits for its child tasks or for its end."""
    names: list[str] = []
    for frame, _ in task.iter_await_frames():
        if frame.f_globals.get("__name__", "").startswith(OWN):
            names = []
        else:
            names.append(frame.f_code.co_name)
    return names[:1] == ["sleep_forever"] or "_nested_child_finished" in names


def throw(task: trio.lowlevel.Task) -> bool:
    """Make a waiting task raise `Injected`.

    Return False if the task is running or its wait cannot be interrupted.
    """
    error = Injected(work_of(task))

    def raise_error() -> None:
        raise error

    abort = task._abort_func
    if abort is None or task._next_send_fn is not None:
        return False
    task._attempt_abort(raise_error)
    if task._next_send_fn is None:
        task._abort_func = abort  # the wait cannot be interrupted
        return False
    return True


class UnexpectedErrors:
    """Throws exceptions into tasks of serving nodes, at random times, in some of the seeds.

    `SimHost` fails the run if a node ends that the exception must not end. This class fails the run if a node
    continues that the exception must end.
    """

    def __init__(self, cluster: SimCluster, rng: Random) -> None:
        self.thrown_at: list[str] = []
        """First letter of the machine's name, and the function of the task, for each exception."""
        self._ending: set[tuple[str, int]] = set()
        self._cluster = cluster
        self._rng = rng
        self._is_enabled = rng.random() < PART_OF_SEEDS

    async def run(self) -> None:
        """Throw exceptions until cancelled."""
        cluster, rng = self._cluster, self._rng
        while self._is_enabled:
            await trio.sleep(rng.expovariate(1.0 / PAUSE_S))
            name = rng.choice(cluster.nodes)
            if cluster.machines[name].state.running and cluster.is_ready(name):
                self.throw_into(name)

    def throw_into(self, name: str) -> None:
        """Throw into a random task of a serving node.

        Functions that do not end the node are equally likely, independent of their number of tasks.
        """
        host = self._cluster.machines[name]
        if (name, host.state.incarnation) in self._ending:
            return  # it is already ending
        by_work: dict[str, list[trio.lowlevel.Task]] = {}
        for task in tasks_of(host):
            work = work_of(task)
            if not work or work.startswith("SimCluster.") or work == "serve_node":
                continue  # a task of the simulator, or the node's main task, which ends the node
            if work in ENDS_NODE or not waits_for_children(task):
                by_work.setdefault(work, []).append(task)
        ending = [work for work in by_work if work in ENDS_NODE]
        if ending and self._rng.random() < PART_THAT_ENDS:
            by_work = {work: by_work[work] for work in ending}
        if not by_work:
            return
        work = self._rng.choice(list(by_work))
        task = self._rng.choice(by_work[work])
        if not throw(task):
            return
        self.thrown_at.append(f"{name[0]} {work}")
        self._cluster.simulation.record_event("unexpected", name, work)
        if work in ENDS_NODE:
            self._ending.add((name, host.state.incarnation))
            self._cluster.simulation.call_after(
                END_S, self._check_ended, host, host.state.incarnation, work
            )

    def _check_ended(self, host: SimHost, incarnation: int, work: str) -> None:
        if host.state.stalled:
            self._cluster.simulation.call_after(END_S, self._check_ended, host, incarnation, work)
        elif host.state.is_current(incarnation):
            error = Violation(f"{host.name} continues after an unexpected exception in {work}")
            self._cluster.simulation.fail(error)
