"""One build of the archives for all tests of packages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .distributions import Build, Environment, build_archive, copy_tree, required


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build both archives from a copy of the tree, as a release does."""
    folder = tmp_path_factory.mktemp("build")
    copy_tree(folder / "source")
    sdist = build_archive("sdist", folder / "source", folder / "dist")
    return Build(sdist, build_archive("wheel", folder / "source", folder / "dist"))


@pytest.fixture
def make_environment(tmp_path: Path, build: Build) -> Callable[[], Environment]:
    """Return a function that makes an environment with the dependencies of the wheel."""
    return lambda: Environment(tmp_path / "environment", required(build.wheel))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, build: Build) -> Environment:
    """Make one environment with the wheel, for tests that change no file of it, or copy it."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    environment = Environment(folder, required(build.wheel))
    environment.install(build.wheel)
    return environment
