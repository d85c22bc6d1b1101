"""What a node is told by a file or ``--set``: the options of its parts, beside the flags of `dlog serve`."""

from collections.abc import Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

from ...bookie.declarations.options import BookieOptions
from ...cluster.declarations.config import parse_file
from ...cluster.declarations.options import BookieNodeConfig
from ...gateway.options import GatewayOptions
from ...ledger.declarations.options import LedgerOptions
from ...log.declarations.options import LogOptions
from ...proxy.declarations.options import ProxyOptions
from ...runtime.declarations.options import (
    COUNT_LIMIT,
    REMOVED,
    described,
    names,
    overlaid,
    typed,
    unknown,
)
from ...runtime.interfaces.errors import InvalidRequest

FLAGS = {
    "name": "name",
    "data": "data",
    "metadata": "quorum",
    "listen": "listen",
    "advertise": "advertise",
    "http": "http",
    "tls": "tls",
    "transport": "transport",
    "insecure": "insecure",
    "index-dir": "index_dir",
    "index_dir": "index_dir",
    "rack": "rack",
    "label": "label",
    "end_with_stdin": "end_with_stdin",
}
"""Keys of a file that are flags of `dlog serve`, and the names that click has for them."""
OF_A_GATEWAY = {
    "name": "name",
    "uri": "uri",
    "listen": "listen",
    "allow-host": "hosts",
    "token-file": "token_file",
    "users": "users",
    "tls": "tls",
    "insecure": "insecure",
    "end_with_stdin": "end_with_stdin",
}
"""Likewise, of a gateway."""
OF_A_BOOKIE = ("index-dir", "index_dir", "rack", "label")
OF_A_DISK = ("data", "index-dir", "index_dir", "label")
PROXIES = ("write-proxy", "read-proxy")
TABLES = ("metadata", "bookie", "store", *PROXIES, "gateway")

NODE: dict[str, Field[Any]] = {one.name: one for one in described(BookieNodeConfig)}
STORE: dict[str, Field[Any]] = {one.name: one for one in described(BookieOptions)}
PROXY: dict[str, Field[Any]] = {
    one.name: one for cls in (ProxyOptions, LogOptions, LedgerOptions) for one in described(cls)
}
"""Of a proxy, of its logs, of their ledgers."""
GATEWAY: dict[str, Field[Any]] = {one.name: one for one in described(GatewayOptions)}


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


def check_options(part: str, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options of a proxy, its logs and their ledgers, or of a gateway. Raises `InvalidRequest`."""
    known = GATEWAY if part == "gateway" else PROXY
    parts = (GatewayOptions,) if part == "gateway" else (ProxyOptions, LogOptions, LedgerOptions)
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise InvalidRequest(f"{where}: {unknown(name, list(known))}")
        found[name] = _of_kind(known[name], value)
    try:
        for cls in parts:
            overlaid(cls(), {name: found[name] for name in names(cls) if name in found})
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    return found


def flags_of(part: str) -> dict[str, str]:
    """Keys of a part's table that are flags of its command, and what click calls these."""
    if part == "gateway":
        return OF_A_GATEWAY
    not_its = {"bookie": (), "metadata": OF_A_BOOKIE}.get(part, OF_A_DISK)
    return {key: name for key, name in FLAGS.items() if key not in not_its}


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
    its = {"bookie": NODE, "gateway": GATEWAY}.get(part, PROXY if part in PROXIES else {})
    known_flags = flags_of(part)
    for key, value in tables.get(part, {}).items():
        if key in known_flags:
            flags[key] = value
        elif key in its:
            settings[key] = _of_kind(its[key], value)
        else:
            if key in REMOVED:
                raise InvalidRequest(f"{path}: [{part}]: {unknown(key, [])}")
            known = sorted(known_flags) + list(its)
            raise InvalidRequest(f"{path}: [{part}] has no {key}; known are {', '.join(known)}")
    for key, value in tables.get("store", {}).items() if part == "bookie" else ():
        if key not in STORE:
            raise InvalidRequest(f"{path}: [store]: {unknown(key, list(STORE))}")
        settings[key] = value
    if part in PROXIES or part == "gateway":
        check_options(part, settings, str(path))
    else:
        split_settings(settings, str(path))
    return flags, settings


def _of_kind(one: Field[Any], value: Any) -> Any:
    """``"64MiB"`` for an option that is a number; whole seconds for one that has fractions."""
    if isinstance(value, str) and not isinstance(one.default, str):
        value = typed(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(one.default, float) and whole and abs(value) <= COUNT_LIMIT:
        return float(value)  # a larger one may have no float, and is refused as a whole number
    return value
