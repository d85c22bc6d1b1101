"""Wheels of unrelated projects that have our names, installed before and after ours.

`distributedlog` 0.0.2 and `dlog` 1.0.5 are on the package index. pip overwrites files of one package with
those of another without a warning.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from .distributions import NAME, VERSION, Build, Environment, make_wheel, run

pytestmark = pytest.mark.processes
pytest.importorskip("setuptools", minversion="77", reason="pip install 'setuptools>=77'")

RUN_LAUNCHER = ("-m", "distributedlog_launcher")
SCRIPT_TEXT = "def main():\n    print('an easy log')\n"


@pytest.fixture
def foreign_package(tmp_path: Path) -> Path:
    """A wheel named `distributedlog` with an import package of that name."""
    logger = "class Logger: pass\n"
    init = "from distributedlog.logger import Logger\n\n__all__ = ['Logger']\n"
    files = {"distributedlog/__init__.py": init, "distributedlog/logger.py": logger}
    return make_wheel(tmp_path, "distributedlog", "0.0.2", files)


@pytest.fixture
def foreign_command(tmp_path: Path) -> Path:
    """A wheel named `dlog` with an import package and a command of that name.

    Version 1.0.5 on the index has no command, so it replaces nothing. This is the worse case.
    """
    files = {"dlog/__init__.py": SCRIPT_TEXT}
    return make_wheel(tmp_path, "dlog", "1.0.5", files, {"dlog": "dlog:main"})


@pytest.fixture
def environment(make_environment: Callable[[], Environment]) -> Environment:
    return make_environment()


@pytest.fixture
def changed(installed: Environment, tmp_path: Path) -> Environment:
    """A copy of the environment with the wheel, which the test may change."""
    return installed.copy(tmp_path / "changed")


def assert_works(environment: Environment) -> None:
    done = run(environment.dlog, "--version")
    assert (done.stdout, done.stderr) == (f"dlog {VERSION}\n", "")
    done = run(environment.python, "-c", "from distributedlog import LogRecord, local_cluster")
    assert done.stderr == ""


def one_line_of(done: object) -> str:
    """Return the only line that a command printed that ended with exit code 1."""
    returncode, stdout, stderr = (
        getattr(done, name) for name in ("returncode", "stdout", "stderr")
    )
    assert (returncode, stdout) == (1, ""), (returncode, stdout, stderr)
    [line] = stderr.splitlines()
    assert line.startswith("dlog: error: ")
    return str(line)


def test_packages_of_our_names_that_were_installed_before_change_nothing(
    environment: Environment, build: Build, foreign_package: Path, foreign_command: Path
) -> None:
    environment.install(foreign_package)
    environment.install(foreign_command)
    environment.install(build.wheel)

    assert_works(environment)


def test_package_that_replaced_our_modules_is_named_with_the_commands_that_restore_them(
    changed: Environment, build: Build, foreign_package: Path
) -> None:
    changed.install(foreign_package)

    line = one_line_of(run(changed.dlog, "--version", check=False))

    assert f"the package distributedlog 0.0.2 replaced files of {NAME}" in line
    assert "distributedlog/__init__.py" in line
    assert f"{changed.python} -m pip uninstall --yes distributedlog && " in line
    assert line.endswith(
        f"{changed.python} -m pip install --force-reinstall --no-deps {build.wheel}"
    )


@pytest.mark.parametrize("order", ["before", "after"])
def test_removal_of_our_modules_is_reported_and_the_printed_command_restores_them(
    order: str, environment: Environment, build: Build, foreign_package: Path
) -> None:
    """Both packages recorded `distributedlog/__init__.py`. pip removes it with the first one."""
    wheels = [foreign_package, build.wheel]
    for wheel in wheels if order == "before" else reversed(wheels):
        environment.install(wheel)

    environment.uninstall("distributedlog")
    line = one_line_of(run(environment.dlog, "--version", check=False))
    environment.install(build.wheel)

    assert f"files of {NAME} are missing (distributedlog/__init__.py)" in line
    assert "pip install --force-reinstall --no-deps" in line
    assert_works(environment)


def test_package_of_our_command_that_was_installed_later_is_named_by_the_launcher(
    changed: Environment, build: Build, foreign_command: Path
) -> None:
    """The command is the other package's. The launcher has a name of its own, and still runs ours."""
    changed.install(foreign_command)

    assert run(changed.dlog).stdout == "an easy log\n"
    done = run(changed.python, *RUN_LAUNCHER, "--version", cwd=build.wheel.parent)

    assert done.stdout == f"dlog {VERSION}\n"
    [line] = done.stderr.splitlines()
    assert line.startswith(f"dlog: note: the package dlog 1.0.5 replaced files of {NAME} (")
    assert f"{changed.python} -m pip uninstall --yes dlog && " in line


def test_package_of_any_other_name_that_replaced_our_modules_is_named(
    changed: Environment, tmp_path: Path
) -> None:
    files = {"distributedlog/__init__.py": "", "distributedlog/uri.py": "raise OSError('foreign')"}
    changed.install(make_wheel(tmp_path, "log-tools", "3.1", files))

    line = one_line_of(run(changed.dlog, "--version", check=False))

    assert f"the package log-tools 3.1 replaced files of {NAME}" in line
    assert "and 1 more" in line


def test_package_in_an_earlier_folder_of_the_path_is_named(
    installed: Environment, foreign_package: Path, tmp_path: Path
) -> None:
    """A user's own folder of packages, or PYTHONPATH, hides ours without a change to any file."""
    import zipfile

    hiding = tmp_path / "hiding"
    with zipfile.ZipFile(foreign_package) as archive:
        archive.extractall(hiding)

    done = run(installed.dlog, "--version", check=False, PYTHONPATH=str(hiding))

    line = one_line_of(done)
    assert f"the package distributedlog 0.0.2 hides {NAME}: {hiding / 'distributedlog'}" in line


def test_modules_that_fail_for_another_reason_keep_their_error(installed: Environment) -> None:
    """A missing dependency is not taken for a foreign package."""
    program = (
        "import sys; sys.modules['click'] = None; import distributedlog_launcher as d; d.main()"
    )
    done = run(installed.python, "-c", program, check=False)

    assert done.returncode == 1
    assert "import of click halted" in done.stderr
    assert "replaced" not in done.stderr
