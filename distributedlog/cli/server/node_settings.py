"""Read the options of a node from its file or ``--set``, in addition to the flags of `dlog serve`."""

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
    REMOVED_OPTION_NAMES,
    option_fields,
    option_names,
    parse_option,
    unknown_option_error,
    with_overrides,
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
"""Keys of a file that are flags of `dlog serve`, and their click parameter names."""
GATEWAY_FLAGS = {
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
"""As `FLAGS`, for a gateway."""
BOOKIE_ONLY_FLAGS = ("index-dir", "index_dir", "rack", "label")
DISK_NODE_FLAGS = ("data", "index-dir", "index_dir", "label")
PROXIES = ("write-proxy", "read-proxy")
TABLES = ("metadata", "bookie", "store", *PROXIES, "gateway")

BOOKIE_NODE_OPTIONS: dict[str, Field[Any]] = {
    one.name: one for one in option_fields(BookieNodeConfig)
}
STORE_OPTIONS: dict[str, Field[Any]] = {one.name: one for one in option_fields(BookieOptions)}
PROXY_OPTIONS: dict[str, Field[Any]] = {
    one.name: one for cls in (ProxyOptions, LogOptions, LedgerOptions) for one in option_fields(cls)
}
"""Options of a proxy, of its logs and of their ledgers."""
GATEWAY_OPTIONS: dict[str, Field[Any]] = {one.name: one for one in option_fields(GatewayOptions)}


def parse_changes(texts: Sequence[str]) -> dict[str, str]:
    """Split ``OPTION=VALUE`` texts. Raises `InvalidRequest`, also if an option is given twice."""
    values: dict[str, str] = {}
    for word in texts:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InvalidRequest(f"--set {word}: use OPTION=VALUE, such as lost_after_s=10m")
        if name.strip() in values:
            raise InvalidRequest(f"--set: {name.strip()} is given twice")
        values[name.strip()] = value
    return values


def split_settings(values: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check options of a bookie, and split them into those of its node and those of its store.

    Raises:
        InvalidRequest: An option is unknown or invalid. The message starts with ``where``.
    """
    node: dict[str, Any] = {}
    store: dict[str, Any] = {}
    for name, value in values.items():
        target, known_options = (
            (node, BOOKIE_NODE_OPTIONS) if name in BOOKIE_NODE_OPTIONS else (store, STORE_OPTIONS)
        )
        if name not in known_options:
            raise InvalidRequest(
                f"{where}: {unknown_option_error(name, [*BOOKIE_NODE_OPTIONS, *STORE_OPTIONS])}"
            )
        target[name] = _typed_value(known_options[name], value, where)
    try:
        with_overrides(BookieOptions(), store)
        BookieNodeConfig("", (), **node)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    return node, store


def check_options(part: str, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check options of a gateway, or of a proxy with its logs and ledgers.

    Raises:
        InvalidRequest: An option is unknown or invalid. The message starts with ``where``.
    """
    known_options = GATEWAY_OPTIONS if part == "gateway" else PROXY_OPTIONS
    parts = (GatewayOptions,) if part == "gateway" else (ProxyOptions, LogOptions, LedgerOptions)
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known_options:
            raise InvalidRequest(f"{where}: {unknown_option_error(name, list(known_options))}")
        checked[name] = _typed_value(known_options[name], value, where)
    try:
        for cls in parts:
            with_overrides(
                cls(), {name: checked[name] for name in option_names(cls) if name in checked}
            )
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    return checked


def flags_of(part: str) -> dict[str, str]:
    """Return the keys of a part's table that are flags of its command, and their click parameter names."""
    if part == "gateway":
        return GATEWAY_FLAGS
    excluded = {"bookie": (), "metadata": BOOKIE_ONLY_FLAGS}.get(part, DISK_NODE_FLAGS)
    return {key: name for key, name in FLAGS.items() if key not in excluded}


def read_file(path: Path, part: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a node's file.

    Returns:
        The flags, by key, and the options of this part, by name.

    Raises:
        InvalidRequest: The file cannot be read, or a table, key or value is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from None
    tables = parse_file(text, str(path))
    for name in tables:
        if name not in TABLES:
            raise InvalidRequest(
                f"{path}: unknown table [{name}]; known tables: "
                f"{', '.join(f'[{table_name}]' for table_name in TABLES)}"
            )
    flags: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    part_options = {"bookie": BOOKIE_NODE_OPTIONS, "gateway": GATEWAY_OPTIONS}.get(
        part, PROXY_OPTIONS if part in PROXIES else {}
    )
    known_flags = flags_of(part)
    for key, value in tables.get(part, {}).items():
        if key in known_flags:
            flags[key] = value
        elif key in part_options:
            settings[key] = _typed_value(part_options[key], value, str(path))
        else:
            if key in REMOVED_OPTION_NAMES:
                raise InvalidRequest(f"{path}: [{part}]: {unknown_option_error(key, [])}")
            known_names = sorted(known_flags) + list(part_options)
            raise InvalidRequest(
                f"{path}: [{part}] has no key {key}; known keys: {', '.join(known_names)}"
            )
    for key, value in tables.get("store", {}).items() if part == "bookie" else ():
        if key not in STORE_OPTIONS:
            raise InvalidRequest(
                f"{path}: [store]: {unknown_option_error(key, list(STORE_OPTIONS))}"
            )
        settings[key] = value
    if part in PROXIES or part == "gateway":
        check_options(part, settings, str(path))
    else:
        split_settings(settings, str(path))
    return flags, settings


def _typed_value(option_field: Field[Any], value: Any, where: str) -> Any:
    """Convert a value to the type of its option: ``"64MiB"`` to a number, whole numbers to a float.

    Raises:
        InvalidRequest: The option does not accept the value's unit. The message starts with ``where``.
    """
    if isinstance(value, str) and not isinstance(option_field.default, str):
        try:
            value = parse_option(option_field, value)
        except InvalidRequest as error:
            raise InvalidRequest(f"{where}: {error}") from None
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(option_field.default, float) and is_whole and abs(value) <= COUNT_LIMIT:
        return float(value)  # larger integers may have no float value, and are rejected as integers
    return value
