"""What a node is told by a file or ``--set``: the options of its parts, beside the flags of `dlog serve`."""

from collections.abc import Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

from ..bookie.options import BookieOptions
from ..cluster.config import parse_file
from ..cluster.options import BookieNodeConfig
from ..runtime.errors import InvalidRequest
from ..runtime.options import described, overlaid, typed, unknown

FLAGS = {
    "name": "name",
    "data": "data",
    "metadata": "quorum",
    "listen": "listen",
    "advertise": "advertise",
    "http": "http",
    "index-dir": "index_dir",
    "index_dir": "index_dir",
    "rack": "rack",
    "label": "label",
    "end_with_stdin": "end_with_stdin",
}
"""Keys of a file that are flags of `dlog serve`, and the names that click has for them."""
OF_A_BOOKIE = ("index-dir", "index_dir", "rack", "label")
TABLES = ("metadata", "bookie", "store")

NODE: dict[str, Field[Any]] = {one.name: one for one in described(BookieNodeConfig)}
STORE: dict[str, Field[Any]] = {one.name: one for one in described(BookieOptions)}


def words(given: Sequence[str]) -> dict[str, Any]:
    """``OPTION=VALUE``, each once. Raises `InvalidRequest`."""
    found: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InvalidRequest(f"--set {word}: wanted is OPTION=VALUE, such as lost_after_s=10m")
        if name.strip() in found:
            raise InvalidRequest(f"--set gives {name.strip()} twice")
        found[name.strip()] = typed(value)
    return found


def split_settings(given: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of a bookie's node, and of its store, checked. Raises `InvalidRequest` that names the place."""
    node: dict[str, Any] = {}
    store: dict[str, Any] = {}
    for name, value in given.items():
        into, known = (node, NODE) if name in NODE else (store, STORE)
        if name not in known:
            raise InvalidRequest(f"{where}: {unknown(name, [*NODE, *STORE])}")
        into[name] = _of_kind(known[name], value)
    try:
        overlaid(BookieOptions(), store)
        BookieNodeConfig("", (), **node)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    return node, store


def read_file(path: Path, part: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a node's file: flags by their names there, and options by theirs. Raises `InvalidRequest`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from None
    tables = parse_file(text, str(path))
    for name in tables:
        if name not in TABLES:
            raise InvalidRequest(
                f"{path}: there is no table [{name}]; known are {', '.join(f'[{one}]' for one in TABLES)}"
            )
    flags: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for key, value in tables.get(part, {}).items():
        if key in FLAGS and (part == "bookie" or key not in OF_A_BOOKIE):
            flags[key] = value
        elif part == "bookie" and key in NODE:
            settings[key] = value
        else:
            known = sorted({one for one in FLAGS if part == "bookie" or one not in OF_A_BOOKIE})
            known += list(NODE) if part == "bookie" else []
            raise InvalidRequest(f"{path}: [{part}] has no {key}; known are {', '.join(known)}")
    for key, value in tables.get("store", {}).items() if part == "bookie" else ():
        if key not in STORE:
            raise InvalidRequest(f"{path}: [store]: {unknown(key, list(STORE))}")
        settings[key] = value
    split_settings(settings, str(path))
    return flags, settings


def _of_kind(one: Field[Any], value: Any) -> Any:
    """``"64MiB"`` for an option that is a number; whole seconds for one that has fractions."""
    if isinstance(value, str) and not isinstance(one.default, str):
        value = typed(value)
    if isinstance(one.default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value
