"""Detect other packages that replace, hide or remove files of this distribution.

The package index has unrelated packages named `distributedlog` and `dlog`. pip installs them next to
`distributedlog-py` and overwrites files of the same name without a warning. An uninstallation removes such
files. The result is one line with the commands to run.

A start without a conflict lists the folders of `sys.path` and imports nothing: `importlib.metadata` takes
longer to import than the rest of the launcher.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution, PackagePath

DISTRIBUTION = "distributedlog-py"
IMPORT_PACKAGE = "distributedlog"
FOREIGN_NAMES = ("distributedlog", "dlog")
"""Distributions on the package index with an import package or a command of our name."""
EXIT_CODE = 1


def load_command() -> Callable[[], None]:
    """Import `dlog` and return its main function.

    End the process with one line if another package replaced or hides our modules. If another package
    replaced only the command `dlog`, print a line and continue.
    """
    for name in _installed_names():
        if name in FOREIGN_NAMES:
            _report(*_conflict_with(name))
    try:
        from distributedlog.cli.main import main
    except Exception:
        _report(*_any_conflict())
        raise
    # Our modules can be imported below another package's `__init__`, and below none.
    if "LogRecord" not in getattr(sys.modules[IMPORT_PACKAGE], "__all__", ()):
        _report(*_any_conflict())
    return main


def _report(problem: str, is_fatal: bool = True) -> None:
    if not problem:
        return
    os.write(2, f"dlog: {'error' if is_fatal else 'note'}: {problem}\n".encode())
    if is_fatal:
        os._exit(EXIT_CODE)


def _installed_names() -> list[str]:
    """Return the names of the distributions on `sys.path`, in lower case."""
    found = []
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:  # an archive, or a folder that does not exist
            continue
        for entry in entries:
            if entry.endswith((".dist-info", ".egg-info")):
                found.append(entry.rpartition(".")[0].partition("-")[0].lower())
    return found


def _conflict_with(name: str) -> tuple[str, bool]:
    """Describe how an installed distribution conflicts with this one, and whether `dlog` cannot run.

    The text is "" if there is no conflict, for example because the other one was installed first.
    """
    from importlib import metadata

    try:
        foreign = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return "", False
    title = f"the package {foreign.name} {foreign.version}"
    remove = f"{sys.executable} -m pip uninstall --yes {foreign.name}"
    foreign_files = {str(file): file for file in foreign.files or ()}
    replaced = [
        text
        for text, file in _our_files().items()
        if text in foreign_files and _state(file) == "changed"
    ]
    if replaced:
        is_fatal = any(text.startswith(f"{IMPORT_PACKAGE}/") for text in replaced)
        return (
            f"{title} replaced files of {DISTRIBUTION} ({_sample(replaced)}). "
            f"Run: {remove} && {_reinstall()}",
            is_fatal,
        )
    folder = _imported_folder()
    if folder and any(
        str(foreign.locate_file(text)) == os.path.join(folder, "__init__.py")
        for text in foreign_files
        if _our_files().get(text) is None or not _is_at(_our_files()[text], folder)
    ):
        return f"{title} hides {DISTRIBUTION}: {folder}. Run: {remove}", True
    return "", False


def _any_conflict() -> tuple[str, bool]:
    """Describe the first conflict with any installed package, or the missing files of this distribution."""
    from importlib import metadata

    for distribution in metadata.distributions():
        if distribution.name and distribution.name != DISTRIBUTION:
            files = distribution.files or ()
            if any(file.parts[:1] == (IMPORT_PACKAGE,) for file in files):
                problem, is_fatal = _conflict_with(distribution.name)
                if problem:
                    return problem, is_fatal
    missing = [text for text, file in _our_files().items() if _state(file) == "missing"]
    if missing:
        return (
            f"files of {DISTRIBUTION} are missing ({_sample(missing)}): another package removed them. "
            f"Run: {_reinstall()}",
            True,
        )
    return "", False


def _ours() -> "Distribution | None":
    from importlib import metadata

    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return None


def _our_files() -> "dict[str, PackagePath]":
    """Return the files of this distribution that pip recorded with a digest, by their recorded path."""
    ours = _ours()
    files = (ours.files if ours else None) or ()
    return {str(file): file for file in files if file.hash is not None}


def _state(file: "PackagePath") -> str:
    """Return "intact", "changed" or "missing" for an installed file with a recorded digest."""
    import base64
    import hashlib

    assert file.hash is not None
    try:
        with open(file.locate(), "rb") as opened:
            digest = hashlib.new(file.hash.mode, opened.read()).digest()
    except OSError:
        return "missing"
    text = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return "intact" if text == file.hash.value else "changed"


def _imported_folder() -> str:
    """Return the folder from which Python imports the package `distributedlog`, or ""."""
    from importlib.util import find_spec

    spec = find_spec(IMPORT_PACKAGE)
    return os.path.dirname(spec.origin) if spec and spec.origin else ""


def _is_at(file: "PackagePath", folder: str) -> bool:
    return os.path.dirname(str(file.locate())) == folder


def _sample(paths: list[str]) -> str:
    """Return the first of some paths, and the number of the others."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def _reinstall() -> str:
    """Return the command that installs this version again, from the source of the present installation."""
    import json
    import shlex

    ours = _ours()
    source = f"{DISTRIBUTION}=={ours.version}" if ours else DISTRIBUTION
    direct = ours.read_text("direct_url.json") if ours else None
    if direct:
        try:
            local = str(json.loads(direct)["url"]).removeprefix("file://")
        except (ValueError, TypeError, KeyError):
            local = ""
        source = local if os.path.exists(local) else source
    return f"{sys.executable} -m pip install --force-reinstall --no-deps {shlex.quote(source)}"
