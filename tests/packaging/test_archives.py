"""Contents and metadata of source distribution and wheel, and programs that use the installed wheel."""

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet

from .distributions import NAME, PROJECT, ROOT, VERSION, Build, Environment, build_archive, run

pytestmark = pytest.mark.processes
pytest.importorskip("setuptools", minversion="77", reason="pip install 'setuptools>=77'")

NOT_IN_SDIST = {".gitignore"}
SAMPLE = Path(__file__).with_name("typed_program.py")


def wheel_files(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel, without the list of digests, whose order may differ."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")
        }


def sdist_files(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def wheel_metadata(wheel: Path) -> bytes:
    files = wheel_files(wheel)
    return next(text for name, text in files.items() if name.endswith(".dist-info/METADATA"))


def test_wheel_has_the_modules_and_data_files_of_the_declared_packages_and_nothing_else(
    build: Build,
) -> None:
    setuptools = PROJECT["tool"]["setuptools"]
    wanted = {f"{module}.py" for module in setuptools["py-modules"]}
    for package in setuptools["packages"]:
        parts = package.split(".")
        folder = ROOT / setuptools["package-dir"].get(package, "/".join(parts))
        patterns = ["*.py", *setuptools["package-data"]["*"]]
        patterns += setuptools["package-data"].get(package, [])
        for pattern in patterns:
            found = (path.relative_to(folder).as_posix() for path in folder.glob(pattern))
            wanted |= {"/".join((*parts, name)) for name in found}

    files = {name for name in wheel_files(build.wheel) if ".dist-info/" not in name}

    assert files == wanted


def test_wheel_has_no_tests_simulator_or_peers(build: Build) -> None:
    """They need packages that a user does not have."""
    unwanted = ("tests/", "distributedlog/testing/sim/", "distributedlog/testing/bench/peers/")

    files = wheel_files(build.wheel)

    assert [name for name in files if name.startswith(unwanted) or "conftest" in name] == []
    assert sum(map(len, files.values())) < 12 * 1024 * 1024


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_source_distribution_has_every_tracked_file(build: Build) -> None:
    """A builder of another distribution tests it. Links are missing: setuptools stores files only."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    tracked = {name for name in listed if name and (ROOT / name).is_file()}

    assert sorted(tracked - NOT_IN_SDIST - sdist_files(build.sdist)) == []


def test_source_distribution_builds_the_same_wheel(build: Build, tmp_path: Path) -> None:
    with tarfile.open(build.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = (path for path in tmp_path.iterdir() if path.is_dir())

    again = build_archive("wheel", source, tmp_path / "again")

    assert again.name == build.wheel.name
    assert wheel_files(again) == wheel_files(build.wheel)


def test_metadata_is_valid_and_names_each_extra_and_supported_python(build: Build) -> None:
    found = Metadata.from_email(wheel_metadata(build.wheel), validate=True)  # raises for any flaw

    assert (found.name, str(found.version)) == (NAME, VERSION)
    assert {*(found.provides_extra or ())} == set(PROJECT["project"]["optional-dependencies"])
    minors = [
        line.rpartition(" :: ")[2]
        for line in found.classifiers or ()
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert minors
    assert all(f"{minor}.0" in SpecifierSet(str(found.requires_python)) for minor in minors)


@pytest.mark.extra
def test_index_would_accept_both_archives(build: Build) -> None:
    """`twine check` reads them as the index does, with the long description."""
    done = run(sys.executable, "-m", "twine", "check", "--strict", build.sdist, build.wheel)

    assert done.stdout.count("PASSED") == 2


PROGRAM = """
from distributedlog import DistributedLogError, LogRecord, UnsupportedFormat
from distributedlog.blocking import local_cluster, open_namespace

with local_cluster(memory=True) as cluster, open_namespace(cluster.uri) as namespace:
    namespace.create_log("orders")
    with namespace.open_log("orders").open_writer() as writer:
        writer.write(LogRecord(txid=1, payload=b"first"))
        writer.commit()
    with namespace.open_log("orders").open_reader() as reader:
        print(bytes(reader.read_next().payload))
    for codec in ("lz4", "zstd"):
        namespace.create_log(codec, config={"codec": codec})
        try:
            namespace.open_log(codec).open_writer().__enter__()
        except DistributedLogError as error:
            print(type(error).__name__, error)
"""


def test_declared_dependencies_suffice_and_a_missing_codec_names_its_extra(
    make_environment: Callable[[], Environment], build: Build, tmp_path: Path
) -> None:
    """The environment has the dependencies of the wheel without extras, and no other package."""
    environment = make_environment()
    environment.install(build.wheel)

    done = run(environment.python, "-c", PROGRAM, cwd=tmp_path)

    first, lz4, zstd = done.stdout.splitlines()
    assert first == "b'first'"
    for line, package in ((lz4, "lz4"), (zstd, "zstandard")):
        assert line.startswith("UnsupportedFormat ")
        assert f"needs the package {package}, which is not installed" in line
        assert line.endswith("pip install 'distributedlog-py[compression]'")


def test_version_command_names_versions_of_the_installation_and_missing_extras(
    make_environment: Callable[[], Environment], build: Build
) -> None:
    environment = make_environment()
    environment.install(build.wheel)

    versions = json.loads(run(environment.dlog, "version", "--json").stdout)

    assert versions["version"] == VERSION
    assert versions["folder"] == str(environment.packages / "distributedlog")
    assert versions["packages"]["trio"]
    assert versions["packages"]["lz4"] is None
    assert not {"pytest", "sphinx", "playwright"} & set(versions["packages"])


CHECKERS = {
    "mypy": ("--strict", "--python-executable"),
    "pyright": ("--pythonpath",),
}


@pytest.mark.extra
@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checker_sees_the_types_of_the_installed_package(
    checker: str, make_environment: Callable[[], Environment], build: Build, tmp_path: Path
) -> None:
    """The program asserts types itself, and has one error that a checker without types overlooks."""
    pytest.importorskip(checker, reason="pip install '.[release]'")
    environment = make_environment()
    environment.install(build.wheel)
    program = tmp_path / "program.py"
    text = SAMPLE.read_text()
    program.write_text(text)
    command: tuple[str | Path, ...]
    command = (sys.executable, "-m", checker, *CHECKERS[checker], environment.python, program)

    done = run(*command, cwd=tmp_path)
    program.write_text(text + '\nposition: int = LogRecord(txid=1, payload=b"").payload\n')
    wrong = run(*command, cwd=tmp_path, check=False)

    assert done.returncode == 0
    assert wrong.returncode == 1
    assert "int" in wrong.stdout
