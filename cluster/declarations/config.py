"""Merge options from four sources into frozen dataclasses: flag > environment > file > default.

Each part declares its options in one frozen dataclass, with unit and reason. The command line provides flags
and environment as one mapping (click merges them). A file is TOML with one table per part. This module merges
the sources and checks the options. An unknown key or a wrong type is an error that names the source and the
known options.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ...runtime.interfaces.errors import InvalidRequest
from ...runtime.interfaces.host import Address

Options = TypeVar("Options")
Tables = dict[str, dict[str, Any]]


def parse_file(text: str, where: str) -> Tables:
    """Return the tables of a configuration file.

    Raises:
        InvalidRequest: The text is not TOML, or an option is outside of a table. The message names file and
            line.
    """
    import tomllib  # most nodes have no configuration file

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{where} is not TOML: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidRequest(
                f"{where}: {name} is outside of a table; write it under [{'part'}], one table per part"
            )
    return tables


def overlay(
    cls: type[Options], *layers: tuple[str, Mapping[str, Any]], base_options: Options | None = None
) -> Options:
    """Build an options object from layers, of which later ones override earlier ones.

    Args:
        cls: The dataclass of the options.
        layers: (source, options by name). Values of None are ignored.
        base_options: The options below all layers.

    Raises:
        InvalidRequest: An option is unknown, has a wrong type or an invalid value, or is missing without a
            default.
    """
    known_fields = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    merged: dict[str, Any] = {}
    if base_options is not None:
        merged = {name: getattr(base_options, name) for name in known_fields}
    for where, layer in layers:
        for key, value in layer.items():
            name = key.replace("-", "_")
            if value is None:
                continue
            if name not in known_fields:
                raise InvalidRequest(
                    f"{where}: {key} is not an option of {cls.__name__}; known options are "
                    f"{', '.join(sorted(known_fields))}"
                )
            merged[name] = _coerce(value, hints[name], f"{where}: {key}")
    for name, field in known_fields.items():
        if name not in merged and field.default is MISSING and field.default_factory is MISSING:
            raise InvalidRequest(f"{name} of {cls.__name__} is missing")
    return cls(**merged)


def _coerce(value: Any, kind: Any, where: str) -> Any:
    """Convert a value to its type. Numbers and booleans may be text, as in environment variables."""
    if get_origin(kind) in (typing.Union, types.UnionType):
        choices = [choice for choice in get_args(kind) if choice is not type(None)]
        kind = choices[0] if len(choices) == 1 else Any
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("1", "true", "yes", "on"):
            return True
        if str(value).lower() in ("0", "false", "no", "off"):
            return False
        raise InvalidRequest(f"{where} is {value!r}, must be true or false")
    if kind in (int, float):
        if isinstance(value, bool):
            raise InvalidRequest(f"{where} is {value!r}, must be a number")
        try:
            return kind(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidRequest(f"{where} is {value!r:.80}, must be a number") from None
    if kind is str and not isinstance(value, str):
        raise InvalidRequest(f"{where} is {value!r}, must be a text")
    return value


def parse_address(text: str, what: str) -> Address:
    """Parse ``HOST:PORT`` or ``[IPV6]:PORT``.

    Args:
        text: The address.
        what: The name of the option, for the error.

    Raises:
        InvalidRequest: The text is not an address.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not host or not is_number or int(port) > 65_535:
        raise InvalidRequest(
            f"{what} is {text!r}, must be HOST:PORT (or [IPV6]:PORT), such as 127.0.0.1:4181"
        )
    return host, int(port)


def parse_named_address(text: str, what: str) -> tuple[str, Address]:
    """Parse ``[NAME=]HOST:PORT``. The name is "" if none is given.

    Raises:
        InvalidRequest: The text is not an address, or the name is empty.
    """
    name, equals, address_text = text.partition("=")
    if not equals:
        return "", parse_address(text, what)
    if not name.strip():
        raise InvalidRequest(f"{what} is {text!r}: there is no name before the equals sign")
    return name.strip(), parse_address(address_text, what)


def parse_named_addresses(texts: typing.Sequence[str], what: str) -> dict[str, Address]:
    """Parse repeated ``[NAME=]HOST:PORT``, and return the addresses by name.

    Raises:
        InvalidRequest: A text is not an address, or a name occurs twice.
    """
    addresses: dict[str, Address] = {}
    for text in texts:
        name, address = parse_named_address(text, what)
        if name in addresses:
            raise InvalidRequest(
                f"{what} is given twice for the listener {name or 'without a name'}"
            )
        addresses[name] = address
    return addresses


def parse_quorum(text: str, what: str = "--metadata") -> dict[str, Address]:
    """Parse the metadata quorum, ``[NAME=]HOST:PORT,…``, and return the addresses by name.

    A node without a name is named by its address. The result is sorted, so that all nodes have the same list
    in any order of the input.

    Args:
        text: The list.
        what: The name of the option, for the error.

    Raises:
        InvalidRequest: An address is invalid, a name or address occurs twice, or the list is empty.
    """
    members: dict[str, Address] = {}
    for part in text.replace(";", ",").split(","):
        if not part.strip():
            continue
        name, address = parse_named_address(part, what)
        name = name or format_address(address)
        if name in members:
            raise InvalidRequest(f"{what} names {name} twice")
        if address in members.values():
            raise InvalidRequest(f"{what} names {format_address(address)} twice")
        members[name] = address
    if not members:
        raise InvalidRequest(f"{what} is {text!r}, must be HOST:PORT,HOST:PORT,…")
    return dict(sorted(members.items()))


def format_address(address: Address) -> str:
    """Return ``HOST:PORT``, with brackets around an IPv6 address."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
