"""`dlog placement`: show or set the placement policy, and list its violations."""

from dataclasses import asdict
from typing import Any

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, common
from ..framework.output import emit, size, table, visible

SHOWN_LEDGERS_MAX = 20


@click.command(
    cls=CliCommand,
    examples="""
    dlog placement                                     show the policy and the racks or zones
    dlog placement --check                             check all ledgers; exit code 6 for violations
    dlog placement --level zone --at-least 2           set a preference
    dlog placement --level rack --at-least 2 --enforced
    dlog placement --reset                             remove the stored policy
    """,
)
@click.option(
    "--level",
    type=click.Choice(["host", "rack", "zone", "region"]),
    help="Widest level at which copies are separated; copies are also separated at the narrower levels.",
)
@click.option(
    "--at-least",
    type=click.IntRange(1, 100),
    help="Minimum number of racks, zones, ... per write set.",
)
@click.option(
    "--enforced/--preferred",
    default=None,
    help="If this is impossible: create no ledger (enforced), or create it anyway (preferred).",
)
@click.option("--reset", is_flag=True, help="Remove the stored value: the default applies again.")
@click.option("--check", is_flag=True, help="Check all ledgers; exit code 6 for violations.")
@common
def command(
    settings: Settings,
    level: str | None,
    at_least: int | None,
    enforced: bool | None,
    reset: bool,
    check: bool,
) -> None:
    """Show or set the placement policy: the racks or zones that copies must span.

    Under every policy, copies are placed on different hosts while another host has free space. A new policy
    applies to new data. Existing copies do not move; use "dlog repair --all --fix-placement". Bookies declare
    their location with --rack and --label. Their default host is the machine that they run on.
    """
    from ...cluster.status import placement_status as placing
    from ...cluster.status.bookie_names import bookie_names
    from ..connection.cluster_connection import quorum, run_call

    policy_options: dict[str, Any] = {"level": level, "at_least": at_least, "enforced": enforced}
    changes = {key: value for key, value in policy_options.items() if value is not None}
    if reset and changes:
        raise click.UsageError("--reset excludes --level, --at-least, --enforced and --preferred")

    async def work(metadata: Any) -> tuple[Any, Any, list[tuple[int, str]]]:
        if reset:
            await placing.reset_policy(metadata)
        if changes:
            await placing.change_policy(metadata, changes)
        status, names = await placing.placement_status(metadata), await bookie_names(metadata)
        if not check and not status.may_miss:
            return names, status, []
        newest_ledgers = None if check else placing.NEWEST_LEDGERS
        pairs = [
            violation
            async for violation in placing.placement_violations(
                metadata, status, newest_ledgers=newest_ledgers
            )
        ]
        return names, status, pairs

    names, placement, violations = run_call(settings, "the placement", work, quorum)
    _print_placement(settings, names, placement, violations, check)
    if check and violations:
        raise ExitWithCode(NO)


def _print_placement(
    settings: Settings, names: Any, placement: Any, violations: list[tuple[int, str]], check: bool
) -> None:
    """Print the policy, the domains, and the ledgers that violate the policy."""
    if settings.json:
        emit(
            {
                "policy": asdict(placement.policy),
                "stored": placement.stored,
                "domains": [asdict(domain) for domain in placement.domains],
                "checked": "all" if check else "newest",
                "violations": [{"ledger": ledger, "why": why} for ledger, why in violations],
            }
        )
    else:
        policy = placement.policy
        strength = "enforced" if policy.enforced else "preferred"
        print(f"{policy.at_least} {policy.level}s per write set, {strength}")
        table(
            (policy.level, "bookies", "writable", "free"),
            [
                [
                    domain.name or "(no label)",
                    len(domain.bookies),
                    domain.writable,
                    size(domain.free_bytes),
                ]
                for domain in placement.domains
            ],
            empty="no bookie is up",
        )
        print(
            f"{'all' if check else 'newest'} ledgers: {len(violations) or 'none'} with placement violations"
        )
        for ledger, why in violations[:SHOWN_LEDGERS_MAX]:
            print(f"ledger {ledger}: {visible(names.with_names(why))}")
