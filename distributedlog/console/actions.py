"""Change logs and bookies from the console, if it was started with ``--allow-changes``.

A user requests the effect of an action first, and confirms it. The effect contains everything that the change
is bound to: the incarnation of the log, and the position of a truncation. If these no longer apply when the
user confirms, the change is refused. Changes use the functions and checks of the command line, and the rights
of the user whose token the page has. Each one is logged as the event `console.change`, also if it failed.
"""

import binascii
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import trio

from ..cluster.coordination.log_changes import (
    NO_WAY_BACK,
    PASSED_SHOWN,
    TruncationTarget,
    delete_effect,
    open_checked_writer,
    positions_before,
    records_before,
    truncate_effect,
    truncate_log,
)
from ..cluster.coordination.repair_settings import (
    RepairSettings,
    change_repair_settings,
    read_repair_settings,
)
from ..cluster.repair.decommission import cancel_decommission, count_ledgers, find_bookie
from ..cluster.status.bookie_names import bookie_names
from ..cluster.status.safe_to_stop import decommission
from ..log.format.dlsn import DLSN
from ..log.format.record_headers import KeyedContent
from ..log.log import Log
from ..log.model.lock_record import lock_owner
from ..log.model.log_keys import incarnation_id, incarnation_text
from ..log.namespace import Namespace
from ..log.segments.log_deletion import delete_log
from ..metadata.model.interface import Metadata
from ..runtime.declarations.events import EventDefinition
from ..runtime.declarations.options import parse_duration
from ..runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    LogExists,
    OutcomeUnknown,
    QuorumUnreachable,
)
from ..runtime.interfaces.log_lines import get_logger
from .cluster_state import cut

ACTION_S = 30.0
"""Timeout of a change, in seconds. Afterwards its outcome is unknown."""
EFFECT_S = 5.0
"""Timeout of an effect, in seconds."""
COUNT_S = 3.0
"""Time for a number in an effect, in seconds. Afterwards it is a lower limit, or unknown."""
FIELD_CHARS_MAX = 48 * 1024
"""Maximum number of characters of a field; for a payload in base64, 36 KiB."""
SUBJECT_CHARS_MAX = 300

CHANGED = EventDefinition(
    "console.change",
    logging.INFO,
    "A user of the console requested a change. `outcome` is the result or the error.",
    ("change", "action", "subject", "user", "client", "outcome"),
)
EVENTS = (CHANGED,)

log = get_logger("distributedlog.console")

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of an action, which the user confirms."""

    sentences: tuple[str, ...]
    """The first one is the change itself."""
    bound: Mapping[str, Any]
    """Fields that the confirmed change must have, in addition to those of the user."""
    typed: str = ""
    """A text that the user must type to confirm."""


@dataclass(frozen=True, slots=True)
class _Action:
    """One kind of change."""

    label: str
    fields: frozenset[str]
    """Names of the permitted fields."""
    effect: Callable[[Fields], Awaitable[Effect]]
    run: Callable[[Fields], Awaitable[str]]
    """Returns the result, as a sentence."""


class ConsoleActions:
    """The changes of one user. ``user`` is the name in the token, or "" for the rights of this process."""

    def __init__(
        self,
        opened: Callable[[], Namespace | None],
        metadata: Metadata,
        *,
        wall_ms: Callable[[], int],
        user: str,
        random_text: Callable[[], str],
    ) -> None:
        """Create the actions.

        Args:
            opened: Returns the namespace, or None until a quorum has answered.
            metadata: The metadata store, with the rights of the user.
            wall_ms: The wall clock.
            user: The name in logged events.
            random_text: Returns an unpredictable string.
        """
        self._user = user
        self._random_text = random_text
        self._actions = {
            **_LogActions(opened).table(),
            **_ClusterActions(metadata, wall_ms).table(),
        }

    def labels(self) -> dict[str, str]:
        """Return the label of each action."""
        return {name: action.label for name, action in self._actions.items()}

    async def effect(self, name: str, fields: Fields) -> dict[str, Any]:
        """Return the effect that the page shows for confirmation.

        Raises:
            InvalidRequest: There is no such action, or a field is invalid.
            DistributedLogError: The effect could not be determined.
        """
        action = self._checked(name, fields)
        with trio.move_on_after(EFFECT_S):
            effect = await action.effect(fields)
            return {
                "label": action.label,
                "sentences": [cut(sentence) for sentence in effect.sentences],
                "bound": dict(effect.bound),
                "typed": effect.typed,
            }
        raise OutcomeUnknown(f"the effect is not known after {EFFECT_S:g} s; nothing was changed")

    async def run(self, name: str, fields: Fields, client: str) -> str:
        """Execute a change and return its result.

        Args:
            name: The action.
            fields: Its fields.
            client: The address of the browser, for the logged event.

        Raises:
            InvalidRequest: There is no such action, or a field is invalid.
            ConfirmationRequired: The change would stop writes. It is executed with the field ``force``.
            OutcomeUnknown: No answer arrived within `ACTION_S`.
            DistributedLogError: The change was refused.
        """
        action = self._checked(name, fields)
        outcome = "OutcomeUnknown: the console ended"
        try:
            with trio.move_on_after(ACTION_S):
                outcome = await action.run(fields)
                return outcome
            raise OutcomeUnknown(f"no answer for {ACTION_S:g} s: the change may or may not be made")
        except DistributedLogError as error:
            outcome = f"{type(error).__name__}: {error}"
            raise
        finally:
            subject = fields.get("log", fields.get("bookie", ""))
            CHANGED.emit(
                log,
                "%s %s: %s",
                name,
                cut(subject, SUBJECT_CHARS_MAX),
                cut(outcome),
                change=self._random_text(),
                action=name,
                subject=cut(subject, SUBJECT_CHARS_MAX),
                user=cut(self._user, SUBJECT_CHARS_MAX),
                client=client,
                outcome=cut(outcome),
            )

    def _checked(self, name: str, fields: Fields) -> _Action:
        """Return the action, if all fields are permitted and of the right types."""
        action = self._actions.get(name)
        if action is None:
            raise InvalidRequest(f"there is no action {name[:40]!r}")
        for field, value in fields.items():
            if field not in action.fields:
                raise InvalidRequest(f"action {name} has no field {field[:40]!r}")
            if field == "force":
                if not isinstance(value, bool):
                    raise InvalidRequest("force must be true or false")
            elif not isinstance(value, str) or len(value) > FIELD_CHARS_MAX:
                raise InvalidRequest(
                    f"{field} must be text of at most {FIELD_CHARS_MAX} characters"
                )
            elif value != value.encode(errors="replace").decode():
                raise InvalidRequest(f"{field} is not UTF-8")  # a surrogate, which JSON permits
        return action


class _LogActions:
    """Changes of logs."""

    def __init__(self, opened: Callable[[], Namespace | None]) -> None:
        self._opened = opened

    def table(self) -> dict[str, _Action]:
        """Return the actions by name."""
        return {
            "create": _Action(
                "Create log",
                frozenset({"log", "durability", "txids"}),
                self._create_effect,
                self._create,
            ),
            "append": _Action(
                "Append record",
                frozenset({"log", "incarnation", "payload", "key", "txid"}),
                self._append_effect,
                self._append,
            ),
            "truncate": _Action(
                "Truncate log",
                frozenset({"log", "incarnation", "to", "txid", "position"}),
                self._truncate_effect,
                self._truncate,
            ),
            "delete": _Action(
                "Delete log", frozenset({"log", "incarnation"}), self._delete_effect, self._delete
            ),
        }

    def _namespace(self) -> Namespace:
        namespace = self._opened()
        if namespace is None:
            raise QuorumUnreachable("no metadata quorum has answered yet; the console retries")
        return namespace

    async def _create_effect(self, fields: Fields) -> Effect:
        name = _required(fields, "log")
        if await self._namespace().log_exists(name):
            raise LogExists(f'log "{name}" exists already', name)
        details = f"durability {_durability(fields)}, txid policy {_txids(fields)}"
        return Effect((f"create log {name}", details), {})

    async def _create(self, fields: Fields) -> str:
        name, durability = _required(fields, "log"), _durability(fields)
        await self._namespace().create_log(name, durability=durability, txids=_txids(fields))
        return f"created {name}"

    async def _append_effect(self, fields: Fields) -> Effect:
        namespace, name = self._namespace(), _required(fields, "log")
        log_id = await namespace.resolve_name(name)
        sentences = [f"append one record to log {name}", "It is stored in a segment of its own"]
        owner = await lock_owner(namespace.metadata, log_id)
        if owner is not None:
            sentences.append(f"Writer {owner} has the log: the append is refused until it ends")
        return Effect(tuple(sentences), await self._incarnation(name))

    async def _append(self, fields: Fields) -> str:
        name, incarnation = _required(fields, "log"), _required(fields, "incarnation")
        key, txid_text = fields.get("key"), fields.get("txid")
        txid = _number("txid", txid_text) if txid_text else None
        content: Any = _payload(fields)
        if key:
            content = KeyedContent(content, key.encode(), ())
        opening = await open_checked_writer(
            self._namespace(),
            name,
            (txid, content),
            create=False,
            recover_timeout_s=ACTION_S,
            wait_s=0,
            incarnation=incarnation,
        )
        async with opening as writer:
            (dlsn,) = await (await writer.submit_columns([txid], [content]))
        return f"appended {dlsn}"

    async def _truncate_effect(self, fields: Fields) -> Effect:
        namespace, name, target = self._namespace(), _required(fields, "log"), _target(fields)
        handle = namespace.open_log(name)
        log_id = await namespace.resolve_name(name)
        dlsn = await target.resolve(handle)
        records: int | None = None
        with trio.move_on_after(COUNT_S):
            records = await records_before(handle, dlsn)
        passed = await positions_before(namespace.metadata, log_id, dlsn)
        sentences = [
            truncate_effect(name, target),
            f"{_deleted(records)} before {dlsn}",
        ]
        if passed:
            more = f" and {len(passed) - PASSED_SHOWN} more" if len(passed) > PASSED_SHOWN else ""
            shown = ", ".join(passed[:PASSED_SHOWN])
            sentences.append(f"Positions before it lose their unread records: {shown}{more}")
        return Effect(
            (*sentences, NO_WAY_BACK), {"incarnation": incarnation_text(log_id), "to": str(dlsn)}
        )

    async def _truncate(self, fields: Fields) -> str:
        target = TruncationTarget(DLSN.parse(_required(fields, "to")))
        return f"truncated to {await truncate_log(self._bound_log(fields), target)}"

    async def _delete_effect(self, fields: Fields) -> Effect:
        namespace, name = self._namespace(), _required(fields, "log")
        log_id = await namespace.resolve_name(name)
        records: int | None = None
        with trio.move_on_after(COUNT_S):
            records = (await namespace.open_log(name).snapshot(limit=1)).records
        sentences = [delete_effect(name), _deleted(records)]
        owner = await lock_owner(namespace.metadata, log_id)
        if owner is not None:
            sentences.append(f"Writer {owner} has the log: the deletion is refused")
        bound = {"incarnation": incarnation_text(log_id)}
        return Effect((*sentences, NO_WAY_BACK), bound, typed=name)

    async def _delete(self, fields: Fields) -> str:
        namespace, handle = self._namespace(), self._bound_log(fields)
        await handle.settings()  # raises LogRecreated if another log has the name now
        log_id = incarnation_id(_required(fields, "incarnation"))
        await delete_log(namespace.context, log_id, handle.name, namespace.path)
        return f"deleted {handle.name}"

    async def _incarnation(self, name: str) -> dict[str, str]:
        """Return the field that binds a change to the present log of a name."""
        return {"incarnation": incarnation_text(await self._namespace().resolve_name(name))}

    def _bound_log(self, fields: Fields) -> Log:
        """Return a handle that refuses any other log of the same name."""
        name, incarnation = _required(fields, "log"), _required(fields, "incarnation")
        return self._namespace().open_log(name, incarnation=incarnation)


class _ClusterActions:
    """Changes of bookies and of repair."""

    def __init__(self, metadata: Metadata, wall_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._wall_ms = wall_ms

    def table(self) -> dict[str, _Action]:
        """Return the actions by name."""
        return {
            "decommission": _Action(
                "Decommission bookie",
                frozenset({"bookie", "force"}),
                self._decommission_effect,
                self._decommission,
            ),
            "cancel-decommission": _Action(
                "Cancel decommission",
                frozenset({"bookie"}),
                self._cancel_effect,
                self._cancel_decommission,
            ),
            "pause-repair": _Action(
                "Pause repair", frozenset({"duration", "until_ms"}), self._pause_effect, self._pause
            ),
            "resume-repair": _Action(
                "Resume repair", frozenset(), self._resume_effect, self._resume
            ),
        }

    async def _decommission_effect(self, fields: Fields) -> Effect:
        until = trio.current_time() + COUNT_S
        bookie, label = await self._bookie(fields)
        copied = _copied(*await count_ledgers(self._metadata, bookie, until=until))
        return Effect(
            (
                f"decommission bookie {label}",
                f"It becomes read-only, and {copied} to other bookies",
                "When no ledger needs it, it is removed from the cluster for good",
            ),
            {"bookie": bookie},
            typed=label,
        )

    async def _decommission(self, fields: Fields) -> str:
        bookie, label = await self._bookie(fields)
        await decommission(self._metadata, bookie, force=fields.get("force") is True)
        return f"bookie {label} is draining"

    async def _cancel_effect(self, fields: Fields) -> Effect:
        bookie, label = await self._bookie(fields)
        return Effect(
            (f"cancel the decommission of bookie {label}", "Copies that were made elsewhere stay"),
            {"bookie": bookie},
        )

    async def _cancel_decommission(self, fields: Fields) -> str:
        bookie, label = await self._bookie(fields)
        await cancel_decommission(self._metadata, bookie)
        return f"bookie {label} stays"

    async def _bookie(self, fields: Fields) -> tuple[str, str]:
        """Return the ID and the name of the bookie in the fields."""
        bookie = await find_bookie(self._metadata, _required(fields, "bookie"))
        return bookie, (await bookie_names(self._metadata)).name(bookie)

    async def _pause_effect(self, fields: Fields) -> Effect:
        pause = RepairSettings().with_pause(self._wall_ms(), _duration_s(fields))
        return Effect(
            (
                f"pause the repair of lost bookies until {pause.pause_end}",
                "No data is copied off offline or draining bookies until then",
                "Ledgers with few copies stay so; bookies of older versions ignore the pause",
            ),
            {"until_ms": str(pause.paused_until_ms)},
        )

    async def _pause(self, fields: Fields) -> str:
        now_ms, until_ms = self._wall_ms(), _number("until_ms", _required(fields, "until_ms"))
        RepairSettings().with_pause(now_ms, (until_ms - now_ms) / 1000)  # raises if it is too long
        settings = await change_repair_settings(
            self._metadata, lambda stored: replace(stored, paused_until_ms=until_ms)
        )
        return f"repair of lost bookies is paused until {settings.pause_end}"

    async def _resume_effect(self, fields: Fields) -> Effect:
        settings = await read_repair_settings(self._metadata)
        if not settings.is_paused(self._wall_ms()):
            raise InvalidRequest("repair is not paused")
        return Effect((f"end the pause of repair, which lasts until {settings.pause_end}",), {})

    async def _resume(self, fields: Fields) -> str:
        await change_repair_settings(
            self._metadata, lambda stored: replace(stored, paused_until_ms=0)
        )
        return "repair is not paused"


def _required(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name} is missing")
    return value


def _deleted(records: int | None) -> str:
    if records is None:
        return "an unknown number of records is deleted"
    return f"{records:,} record{' is' if records == 1 else 's are'} deleted"


def _copied(ledgers: int, is_complete: bool) -> str:
    if is_complete:
        return f"{ledgers:,} ledger{' is' if ledgers == 1 else 's are'} copied"
    return (
        f"at least {ledgers:,} ledgers are copied"
        if ledgers
        else "an unknown number of ledgers is copied"
    )


def _durability(fields: Fields) -> Any:
    return fields.get("durability") or "standard"


def _txids(fields: Fields) -> Any:
    return fields.get("txids") or "auto"


def _payload(fields: Fields) -> bytes:
    if "payload" not in fields:
        raise InvalidRequest("payload is missing")
    try:
        return b64decode(fields["payload"], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("payload is not base64") from None


def _duration_s(fields: Fields) -> float:
    """Return a duration such as 2h in seconds."""
    text = _required(fields, "duration")
    value = parse_duration(text)
    if value is None:
        raise InvalidRequest(f"{text[:40]!r} is not a duration with its unit, such as 2h")
    return value


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise InvalidRequest(f"{name} must be a whole number, got {text[:40]!r}")
    return int(text)


def _target(fields: Fields) -> TruncationTarget:
    """Return the target of a truncation. Exactly one of its fields must be given."""
    given = [name for name in ("to", "txid", "position") if fields.get(name)]
    if len(given) != 1:
        raise InvalidRequest("give exactly one of a DLSN, a txid and a position")
    text = fields[given[0]]
    match given[0]:
        case "to":
            return TruncationTarget(DLSN.parse(text))
        case "txid":
            return TruncationTarget(txid=_number("txid", text))
    return TruncationTarget(position=text)
