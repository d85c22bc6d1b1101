"""The versions of a cluster's nodes, and the health conditions that follow from them (pure).

A build up to version 0.1 states no version. It is shown as "0.1 or older", and is never reported to lack a
feature, because its registration does not state what it can do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ledger.model.bookie_registration import BookieRegistration
from ...metadata.model.interface import MemberRole, MemberStatus
from ...proxy.membership.proxy_registration import ProxyRegistration
from ...runtime.declarations.health_conditions import Code, HealthCondition, condition
from ...runtime.declarations.versions import Version, parse_version, shown_version

NAMES_SHOWN_MAX = 8
"""Names of nodes per version in a condition. Further ones are counted."""


@dataclass(frozen=True, slots=True)
class NodeVersion:
    """The version that one node states."""

    name: str
    kind: str
    """``metadata``, ``bookie``, ``write-proxy`` or ``read-proxy``."""
    version: str | None
    """As stated. "" if it states none, and None if the node is offline, so that it is unknown."""

    @property
    def shown(self) -> str | None:
        """The version for people and for ``--json`` output."""
        return None if self.version is None else shown_version(self.version)

    def runs(self, wanted: Version) -> bool:
        """Return whether the node is up and has this version or a newer one."""
        return self.version is not None and parse_version(self.version) >= wanted

    def __str__(self) -> str:
        state = "is offline" if self.version is None else f"has version {self.shown}"
        return f"{self.kind} {self.name} {state}"


def member_version(member: MemberStatus) -> str | None:
    """Return the version of a metadata node, or None if it is unknown."""
    if not member.alive or (member.role == MemberRole.EMPTY and not member.version):
        return None
    return member.version


def node_versions(
    members: Iterable[MemberStatus],
    bookie_rows: Iterable[tuple[Mapping[str, Any], BookieRegistration | None]],
    proxies: Iterable[ProxyRegistration],
) -> list[NodeVersion]:
    """Return the versions of all nodes.

    Args:
        members: The metadata nodes.
        bookie_rows: The rows of `cluster_overview.read_bookies`, which include offline bookies.
        proxies: The registered proxies.
    """
    return [
        *(NodeVersion(member.name, "metadata", member_version(member)) for member in members),
        *(
            NodeVersion(
                row["label"] or row["id"],
                "bookie",
                None if registration is None else registration.version,
            )
            for row, registration in bookie_rows
        ),
        *(
            NodeVersion(proxy.label or proxy.id, f"{proxy.kind}-proxy", proxy.version)
            for proxy in proxies
        ),
    ]


def nodes_by_version(nodes: Iterable[NodeVersion]) -> dict[str, list[str]]:
    """Return the names of the nodes that are up, by the version that is shown, oldest first."""
    names: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: parse_version(node.version or "")):
        if node.shown is not None:
            names.setdefault(node.shown, []).append(node.name)
    return names


def version_conditions(
    finalized: Version | None, nodes: Sequence[NodeVersion]
) -> list[HealthCondition]:
    """Return the conditions of a cluster with these nodes.

    Args:
        finalized: The version for which it is finalized, or None if that is unreadable.
        nodes: The versions of its nodes.
    """
    conditions: list[HealthCondition] = []
    names = nodes_by_version(nodes)
    if len(names) > 1:
        versions = "; ".join(f"{version} on {_listed(names[version])}" for version in names)
        conditions.append(condition(Code.VERSIONS_DIFFER, versions=versions))
    running = [parse_version(node.version) for node in nodes if node.version is not None]
    if finalized is None or not running:
        return conditions
    too_old = [node.name for node in nodes if node.shown is not None and not node.runs(finalized)]
    if too_old:
        conditions.append(
            condition(Code.NODES_BELOW_FINALIZED, names=_listed(too_old), finalized=str(finalized))
        )
    elif min(running) > finalized:
        conditions.append(
            condition(
                Code.UPGRADE_NOT_FINALIZED, finalized=str(finalized), version=str(min(running))
            )
        )
    return conditions


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
