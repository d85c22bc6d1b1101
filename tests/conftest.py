"""Hooks for every test: tiers (tests/tiers.py), examples of properties, extras that are not installed."""

import gc
import importlib
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings

from tests import extras, tiers

# The same examples each time; another thousand, drawn anew: see `examples.py`.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")

LEFT_OUT = pytest.StashKey[dict[str, int]]()
"""How many tests of each tier this run leaves out."""


@pytest.fixture(autouse=True, scope="session")
def _own_contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the contexts that `dlog local` makes out of those of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("contexts")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier`."""
    parser.addoption(
        "--tier",
        metavar="NAME[,NAME]",
        help=f"Tiers to run: {', '.join(tiers.TIERS)}, all, or default (units and a few of each other kind). "
        "Without it: every tier if tests are selected by a path, -m, -k or --lf; otherwise default.",
    )


def _selected(config: pytest.Config) -> bool:
    """Whether the command line selects tests, by paths or otherwise."""
    option = config.option
    by_path = config.args_source is pytest.Config.ArgsSource.ARGS
    return bool(by_path or option.markexpr or option.keyword or getattr(option, "lf", False))


def _wanted(config: pytest.Config) -> str:
    """Return the tiers to run: tests that are selected are taken from all tiers."""
    if hasattr(config, "workerinput"):  # a worker does not know how tests were selected
        return str(config.workerinput["tier"])
    return config.option.tier or (tiers.ALL if _selected(config) else tiers.DEFAULT)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the number of workers
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run whole tiers in parallel. Selected tests run in this process, so that a debugger reaches them."""
    if hasattr(config, "workerinput"):
        return  # or each worker would start workers
    try:
        tiers.check(_wanted(config))
    except ValueError as error:
        raise pytest.UsageError(f"--tier: {error}") from None
    option = config.option
    if getattr(option, "numprocesses", 0) is None and not _selected(config) and not option.usepdb:
        option.numprocesses = tiers.workers(_wanted(config), len(os.sched_getaffinity(0)))
        option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand a worker the tiers that run."""
    node.workerinput["tier"] = _wanted(node.config)


def pytest_configure(config: pytest.Config) -> None:
    """Let tests interrupt what they start, also where a shell runs them in its background.

    Such a shell has SIGINT ignored, children inherit that, and Python then installs no handler.
    """
    config.stash[LEFT_OUT] = {}
    if hasattr(
        config, "workerinput"
    ):  # set here, it breaks the lines of each program that a test starts
        os.environ.pop("COLUMNS", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the tiers that run."""
    wanted = _wanted(config)
    kept, left_out, tiers_left_out = [], [], Counter[str]()
    for item in items:
        tier = tiers.tier_of(mark.name for mark in item.iter_markers())
        if tiers.chosen(wanted, item.nodeid, tier):
            kept.append(item)
        else:
            left_out.append(item)
            tiers_left_out[tier] += 1
    config.stash[LEFT_OUT] = dict(tiers_left_out)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(kept, key=lambda item: tiers.place(item.nodeid)) if left_out else kept


def _import_in_turn(config: pytest.Config) -> None:
    """Import the modules of tests. Each worker begins at another one.

    On a fresh clone, modules are compiled and their asserts rewritten, which takes 15 s. So each worker
    writes a share of the bytecode and reads that of the others. An error is reported by the collection.
    """
    modules = sorted(config.rootpath.glob("tests/**/test_*.py"))
    worker = config.workerinput  # type: ignore[attr-defined]
    begin = len(modules) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in modules[begin:] + modules[:begin]:
        name = ".".join(path.relative_to(config.rootpath).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect tests without garbage collection, which would walk a million objects again and again.

    It would take half of the start. What was collected lives to the end, and is exempt from then on.
    """
    gc.disable()
    try:
        # Tests that are selected by path need only their own modules.
        if hasattr(session.config, "workerinput") and _wanted(session.config) != tiers.ALL:
            _import_in_turn(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test of an extra that is not installed is skipped, by name."""
    if not item.get_closest_marker("extra"):
        return
    if why := extras.missing(item.path.parent.name):
        pytest.skip(why)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what a worker left out to the process that prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker left out: each of them collected all tests."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = output.get("left_out", node.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give whole files to workers, so that a file's fixtures are made once."""
    from xdist.scheduler import LoadScopeScheduling

    wanted = _wanted(config)

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return tiers.group(wanted, nodeid)

    return ByGroup(config, log)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name the tiers that were not run, and the command for each."""
    if tiers.DEFAULT in _wanted(config).split(","):
        for line in tiers.not_run(config.stash[LEFT_OUT]):
            terminalreporter.write_line(line)
