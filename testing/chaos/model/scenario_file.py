"""Read scenario files: TOML into the values of scenario.py. Every error names its place."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

from ....runtime.interfaces.errors import InvalidRequest
from .adapter import NodeRole
from .scenario import (
    CERTIFICATE_DAYS,
    CLIENT_KINDS,
    DIRECTIONS,
    HOWS,
    KINDS,
    MANY_NODES,
    ONE_NODE,
    ROLES,
    THROUGH_PROXIES,
    AcceptanceLimits,
    ClientSpec,
    Cluster,
    Fault,
    Loop,
    Moment,
    Range,
    Scenario,
    Walk,
)

PACKAGED = Path(__file__).parent.parent / "scenarios"


def load(path: str) -> Scenario:
    """Return a scenario by its file, or by the name of a packaged one.

    Raises:
        InvalidRequest: The file cannot be read, or is invalid.
    """
    file = Path(path)
    if not file.exists() and (PACKAGED / f"{path}.toml").exists():
        file = PACKAGED / f"{path}.toml"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        packaged_names = ", ".join(packaged())
        raise InvalidRequest(
            f"scenario {path}: {error.strerror}; packaged scenarios are {packaged_names}"
        ) from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"scenario {path} is not UTF-8") from None
    return parse(text, str(file), default_name=file.stem)


def packaged() -> list[str]:
    """Return the names of the packaged scenarios."""
    return sorted(file.stem for file in PACKAGED.glob("*.toml"))


def parse(text: str, where: str, *, default_name: str = "unnamed") -> Scenario:
    """Return a scenario from its text.

    Raises:
        InvalidRequest: The text is invalid; the message names the place.
    """
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{where} is not TOML: {error}") from None
    value.setdefault("name", default_name)
    clients = _tables(value.pop("client", []), f"{where}: [[client]]")
    loops = _tables(value.pop("loop", []), f"{where}: [[loop]]")
    moments = _tables(value.pop("moment", []), f"{where}: [[moment]]")
    cluster = _build(Cluster, value.pop("cluster", {}), f"{where}: [cluster]")
    bounds = _build(AcceptanceLimits, value.pop("bounds", {}), f"{where}: [bounds]")
    walk = None
    if "walk" in value:
        walk = _build(Walk, value.pop("walk"), f"{where}: [walk]")
    nested = {
        "clients": tuple(_client(table, place) for table, place in clients),
        "loops": tuple(_loop(table, place) for table, place in loops),
        "moments": tuple(_moment(table, place) for table, place in moments),
        "cluster": cluster,
        "bounds": bounds,
        "walk": walk,
    }
    _check_cluster(cluster, where)
    scenario: Scenario = _build(Scenario, value, where, nested)
    if not scenario.clients:
        raise InvalidRequest(f"{where}: a scenario needs at least one [[client]]")
    if not scenario.logs:
        raise InvalidRequest(f"{where}: no client writes, so there would be nothing to check")
    if scenario.seconds <= 0:
        raise InvalidRequest(f"{where}: seconds is {scenario.seconds:g}, must be more than 0")
    for moment in scenario.moments:
        if moment.at_s >= scenario.seconds:
            raise InvalidRequest(
                f"{where}: [[moment]] at {moment.at_s:g} s, but the scenario ends at"
                f" {scenario.seconds:g} s"
            )
    _check_walk(walk, scenario, where)
    for client in scenario.clients:
        _check_way(client, cluster, where)
    for fault in scenario.faults:
        if KINDS[fault.kind].targets_clients:
            _check_client(fault, scenario, where)
        else:
            _check_target(fault, cluster, where)
    return scenario


def _check_way(client: ClientSpec, cluster: Cluster, where: str) -> None:
    """Check that the cluster has the proxies or gateways that the client uses."""
    if client.kind == "poster" and not cluster.gateways:
        raise InvalidRequest(f"{where}: a poster, but [cluster] has no gateways")
    if not client.through:
        return
    if client.kind not in THROUGH_PROXIES:
        raise InvalidRequest(
            f"{where}: a {client.kind} through proxies; possible are {', '.join(THROUGH_PROXIES)}"
        )
    needed = "read" if client.kind in ("tail", "catch-up") else "write"
    if not (cluster.read_proxies if needed == "read" else cluster.write_proxies):
        raise InvalidRequest(
            f"{where}: a {client.kind} through proxies, but [cluster] has no {needed}_proxies"
        )


def _check_client(fault: Fault, scenario: Scenario, where: str) -> None:
    """Check that the scenario has a client for the fault."""
    is_waiting = fault.kind == "run-client"
    if not any(
        client_spec.kind == fault.target and client_spec.waits == is_waiting
        for client_spec in scenario.clients
    ):
        condition = "with waits = true" if is_waiting else "that does not wait"
        raise InvalidRequest(
            f"{where}: {fault.kind} of {fault.target!r}, but no [[client]] {condition} is of that kind"
        )


def _check_target(fault: Fault, cluster: Cluster, where: str) -> None:
    """Check that the cluster has targets for the fault, and that all of them are suitable."""
    role_by_name, present_roles = (
        cluster.names,
        {role for role, count in cluster.counts.items() if count},
    )
    groups = {
        "leader": {NodeRole.METADATA},
        "follower": {NodeRole.METADATA},
        "quorum": {NodeRole.METADATA},
        "bookies": {NodeRole.BOOKIE},
        "node": present_roles,
        "all": present_roles,
        **{role.value: {role} for role in NodeRole},
        **{name: {role} for name, role in role_by_name.items()},
    }
    target_roles = groups.get(fault.target)
    if target_roles is None or not target_roles <= present_roles:
        raise InvalidRequest(
            f"{where}: {fault.kind} of {fault.target!r}; known are"
            f" {', '.join((*ONE_NODE, *MANY_NODES))}, and the nodes {', '.join(role_by_name)}"
        )
    if unfit_roles := sorted(role.value for role in target_roles - {*KINDS[fault.kind].roles}):
        raise InvalidRequest(
            f"{where}: {fault.kind} of {fault.target!r} could affect a {unfit_roles[0]}; possible roles are"
            f" {', '.join(role.value for role in KINDS[fault.kind].roles)}"
        )
    if fault.kind == "rot-everywhere" and fault.target != "bookies":
        raise InvalidRequest(
            f'{where}: rot-everywhere affects all bookies: its target must be "bookies"'
        )


def _check_cluster(cluster: Cluster, where: str) -> None:
    if cluster.metadata_nodes not in (1, 3, 5):
        raise InvalidRequest(
            f"{where}: metadata_nodes is {cluster.metadata_nodes}, must be 1, 3, 5"
        )
    if not 1 <= cluster.bookies <= 20:
        raise InvalidRequest(f"{where}: bookies is {cluster.bookies}, must be 1 to 20")
    if not all(0 <= count <= 20 for count in cluster.counts.values()):
        raise InvalidRequest(f"{where}: proxies and gateways must be 0 to 20 of each kind")
    if not 0 <= cluster.certificate_days <= CERTIFICATE_DAYS:
        raise InvalidRequest(f"{where}: certificate_days must be 0 (none) to {CERTIFICATE_DAYS}")
    if cluster.gateways and cluster.certificate_days:
        raise InvalidRequest(
            f"{where}: with certificates, gateways require tokens of users, which clients here do not"
            " have: leave out one of the two"
        )


def _check_walk(walk: Walk | None, scenario: Scenario, where: str) -> None:
    kinds, cluster = {client.kind for client in scenario.clients}, scenario.cluster
    if walk is not None and cluster.write_proxies + cluster.read_proxies + cluster.gateways:
        raise InvalidRequest(f"{where}: [walk] is for clients without proxies and gateways")
    if walk is None and "stranger" in kinds:
        raise InvalidRequest(f"{where}: a stranger requires authorization: add [walk]")
    for kind in sorted(kinds - set(ROLES)) if walk is not None else ():
        raise InvalidRequest(
            f"{where}: with [walk] no client can be of kind {kind!r}: no user has rights on its"
            " keys"
        )


def _client(value: Mapping[str, Any], where: str) -> ClientSpec:
    client: ClientSpec = _build(ClientSpec, value, where)
    _one_of(client.kind, CLIENT_KINDS, f"{where}: kind")
    if client.count < 1 or client.rate <= 0 or not 20 <= client.payload_bytes <= 1_000_000:
        raise InvalidRequest(
            f"{where}: count must be 1 or more, rate more than 0, payload_bytes 20 to 1,000,000"
        )
    _one_of(client.through or "proxies", ("proxies",), f"{where}: through")
    return client


def _loop(value: Mapping[str, Any], where: str) -> Loop:
    remaining = dict(value)
    faults = _tables(remaining.pop("fault", []), f"{where} [[loop.fault]]")
    if not faults:
        raise InvalidRequest(f"{where}: a loop needs at least one [[loop.fault]]")
    loop: Loop = _build(
        Loop, remaining, where, {"faults": tuple(_fault(table, place) for table, place in faults)}
    )
    return loop


def _moment(value: Mapping[str, Any], where: str) -> Moment:
    remaining = dict(value)
    if "at_s" not in remaining:
        raise InvalidRequest(f"{where}: at_s is missing")
    at_s = _as(remaining.pop("at_s"), float, f"{where}: at_s")
    return Moment(at_s, _fault(remaining, where))


def _fault(value: Mapping[str, Any], where: str) -> Fault:
    fault: Fault = _build(Fault, value, where)
    _one_of(fault.kind, KINDS, f"{where}: kind")
    kind = KINDS[fault.kind]
    for key in value:
        if key not in ("kind", "target", "hold_s", *kind.options):
            known_options = ", ".join(("target", "hold_s", *kind.options))
            raise InvalidRequest(f"{where}: {fault.kind} has no {key}; known are {known_options}")
    _one_of(fault.direction, DIRECTIONS, f"{where}: direction")
    _one_of(fault.how, HOWS, f"{where}: how")
    if kind.targets_clients:
        _one_of(fault.target, CLIENT_KINDS, f"{where}: target")
    if kind.destroys_data and fault.target not in ("bookie", "metadata"):
        raise InvalidRequest(
            f'{where}: {fault.kind} destroys data: its target is "bookie" or "metadata"'
            " (one random node of each, per run), so that an intact copy remains"
        )
    return fault


def _tables(value: Any, where: str) -> list[tuple[Mapping[str, Any], str]]:
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise InvalidRequest(f"{where} must be written with two brackets, one table each")
    return [(table, f"{where} {number}") for number, table in enumerate(value, 1)]


def _one_of(value: str, allowed: Any, where: str) -> None:
    if value not in allowed:
        raise InvalidRequest(f"{where} is {value!r}; known are {', '.join(allowed)}")


def _build(cls: Any, value: Any, where: str, extra: Mapping[str, Any] | None = None) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{where} is {value!r}, must be a table")
    hints = get_type_hints(cls)
    fields_by_name = {dataclass_field.name: dataclass_field for dataclass_field in fields(cls)}
    arguments = dict(extra or {})
    for key, item in value.items():
        if key not in fields_by_name or key in (extra or {}):
            names = ", ".join(name for name in fields_by_name if name not in (extra or {}))
            raise InvalidRequest(f"{where}: there is no {key}; known are {names}")
        arguments[key] = _as(item, hints[key], f"{where}: {key}")
    for name, dataclass_field in fields_by_name.items():
        if (
            name not in arguments
            and dataclass_field.default is MISSING
            and dataclass_field.default_factory is MISSING
        ):
            raise InvalidRequest(f"{where}: {name} is missing")
    return cls(**arguments)


def _as(value: Any, kind: Any, where: str) -> Any:
    if kind == Range:
        pair = value if isinstance(value, list) else [value, value]
        if len(pair) != 2 or not all(_is_number(bound) for bound in pair) or pair[0] > pair[1]:
            raise InvalidRequest(f"{where} is {value!r}, must be a number, or [low, high]")
        return float(pair[0]), float(pair[1])
    if kind is float and _is_number(value):
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if kind == Mapping[str, Any] and isinstance(value, dict):
        return value
    type_names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    raise InvalidRequest(f"{where} is {value!r}, must be {type_names.get(kind, 'a table')}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
