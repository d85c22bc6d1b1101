"""A second judge, written apart from the first: did whoever did this have a grant for it? (pure)

It is told of every command of the metadata's log, in order, and says what no grant allowed in the state of
its place (T1). It implements `docs/concepts/security-model.md` and shares no line with
`metadata/auth/authorizer.py` and its table. It is shorter, for it judges users and nodes whose certificate
was stolen, and where the first one must decide by what a key's log is called *now*, it takes whatever that
was ever called. So it is never the stricter one.

What users may do is kept as it was after each change: a bookie obeys what was given out until it has heard
that it ended, and a watch tells of changes of before.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from ....ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ....metadata.model.command_results import CommandResult
from ....metadata.model.commands import (
    Expire,
    Grant,
    ReplicatedCommand,
    Revoke,
    Transact,
    TrustChange,
    decode_command,
)
from ....metadata.model.interface import WatchEvent
from ....metadata.model.transaction import Delete, Put, Transaction
from ....runtime.interfaces.errors import DistributedLogError
from ....runtime.interfaces.principals import Narrowing
from ....runtime.protocol.frames import unpack

ROLES = {
    "reader": "r",
    "writer": "rw",
    "owner": "rwm",
    "producer": "p",
    "consumer": "c",
    "operator": "o",
    "admin": "oa",
}
"""r: read, w: write, m: manage, o: operator, a: admin."""
LETTERS = {"r": 1, "w": 2, "m": 4}
"""As bits of a token's narrowing."""
ANONYMOUS = "anonymous"
OPERATORS = ("bookie", "cookie", "seen", "leaving", "scrub", "conf", "cluster", "gc", "move")
"""First parts of keys that an operator writes, and whoever is known reads."""
OF_LEDGERS = ("ledger", "under", "on", "delete")
OF_LOGS = ("loose", "retired", "purge")
OF_READERS = ("position", "reader", "work", "worker")
NONE_MADE: Mapping[str, tuple[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may do what from a revision of the store on."""

    revision: int = 0
    mode: str = "open"
    users: Mapping[str, bool] = field(default_factory=dict)
    """Name, and whether it is disabled."""
    grants: Mapping[str, Mapping[tuple[str, str], str]] = field(default_factory=dict)
    """Of a user: namespace and path to role."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Of a user: the number that its tokens must have."""
    only: Narrowing = ()
    """What a token leaves of all that; of no paths: all."""

    def is_live(self, user: str) -> bool:
        """May it do anything at all?"""
        return not self.users.get(user, False)

    def of_cluster(self, user: str) -> str:
        """Letters of `ROLES` on the cluster."""
        if not self.is_live(user) or self.only:
            return ""
        return ROLES.get(self.grants.get(user, {}).get(("", ""), ""), "")

    def on_path(self, user: str, namespace: str, name: str) -> str:
        """Letters on a log of that name."""
        if not self.is_live(user) or not namespace:
            return ""
        held = "".join(
            ROLES[role]
            for (of, path), role in self.grants.get(user, {}).items()
            if of == namespace and _is_below(path, name)
        )
        if not self.only:
            return held
        left = 0
        for of, path, bits in self.only:
            left |= bits if of == namespace and _is_below(path, name) else 0
        return "".join(letter for letter in held if left & LETTERS.get(letter, 0))

    def narrowed(self, narrowing: Narrowing) -> "Policy":
        """The same for who came by such a token."""
        return replace(self, only=narrowing) if narrowing else self


def _is_below(path: str, name: str) -> bool:
    if not path:
        return True
    parts = name.split("/")
    if path.endswith("/"):
        upper = path[:-1].split("/")
        return len(parts) > len(upper) and parts[: len(upper)] == upper
    return path.split("/") == parts


@dataclass(frozen=True, slots=True)
class KnownLedger:
    """What its record said last."""

    log: str
    bookies: tuple[str, ...]
    state: LedgerState


class SecondJudge:
    """Of one run. ``fail`` is told what nobody was allowed; ``stolen``: bookies' names in wrong hands."""

    def __init__(self, fail: Callable[[str], None], stolen: Collection[str] = ()) -> None:
        self._fail = fail
        self._stolen = stolen
        self.policies = [Policy()]
        """In order; the last one counts now."""
        self.ledgers: dict[int, KnownLedger] = {}
        self.names: dict[str, None] = {}
        """Log ids that have a name now."""
        self.leases: dict[int, str] = {}
        """To whom each was granted; "": to nobody that is known."""
        self.clients: dict[str, int] = {}
        """What commands had for their client, and the highest number of a request."""
        self.judged = 0
        """Commands of users, where rights counted."""
        self._applied = 0
        self._paths: dict[str, dict[tuple[str, str], None]] = {}
        """All names that each log ever had."""
        self._names: dict[bytes, str] = {}

    @property
    def now(self) -> Policy:
        """What counts now."""
        return self.policies[-1]

    @property
    def revision(self) -> int:
        """Of the last change of who may do what."""
        return self.policies[-1].revision

    def on_applied(
        self,
        index: int,
        command: bytes,
        answer: CommandResult,
        events: tuple[WatchEvent, ...],
        revision: int,
    ) -> None:
        """A node's state has taken the command at ``index``; only the first time counts."""
        if index <= self._applied:
            return
        self._applied = index
        if not command:
            return
        try:
            meant = decode_command(command)
        except DistributedLogError:
            return
        if meant.client:
            principal = meant.client.rpartition("/")[0] or ANONYMOUS
            self.clients[meant.client] = max(meant.request, self.clients.get(meant.client, 0))
            why = self._why_not(principal, index, meant)
            if why:
                self._fail(f"T1: {principal} {why} (entry {index}, mode {self.now.mode})")
            if isinstance(meant, Grant) and answer.lease:  # else it was given none
                self.leases[answer.lease] = "" if principal == ANONYMOUS else principal
        if isinstance(meant, Revoke | Expire):
            self.leases.pop(meant.lease, None)
        self._learn(events, isinstance(meant, TrustChange), revision)

    # --- judging ----------------------------------------------------------------------------------

    def _why_not(self, principal: str, index: int, meant: ReplicatedCommand) -> str:
        """What it did without a right; ""."""
        policy = self.now
        if isinstance(meant, TrustChange):
            admins = [user for user in policy.grants if "a" in policy.of_cluster(user)]
            name = principal.removeprefix("user/")
            if admins and "a" not in policy.of_cluster(name):
                return "changed who may do what, and is no admin"
            return ""
        if isinstance(meant, Revoke):
            owner = self.leases.get(meant.lease, "")
            return f"ended lease {meant.lease} of {owner}" if owner not in ("", principal) else ""
        if not isinstance(meant, Transact):
            return ""
        for one in meant.transaction.operations:
            first = one.key.partition(b"/")[0]
            if first == b"audit" and self._is_own_line(principal, index, one):
                continue
            if first in (b"trust", b"audit", b"secret"):
                return f"wrote {one.key!r}"
        if policy.mode != "required":
            return ""
        self.judged += 1
        own = [o for o in meant.transaction.operations if not o.key.startswith(b"audit/")]
        return self._why_not_transact(
            policy, principal, replace(meant.transaction, operations=tuple(own))
        )

    def _is_own_line(self, principal: str, index: int, one: Put | Delete) -> bool:
        """The leader puts a line beside what it tells of; the oldest ones go with it."""
        if isinstance(one, Delete):
            return one.key < b"audit/%016x" % index
        return one.key == b"audit/%016x" % index and unpack(one.value, "a line")[2] == principal

    def _why_not_transact(self, policy: Policy, principal: str, transaction: Transaction) -> str:
        puts = {o.key: o.value for o in transaction.operations if isinstance(o, Put)}
        new = {v.decode(): _path(k[5:]) for k, v in puts.items() if k.startswith(b"name/")}
        for compare in transaction.compares:
            if not self.may_read(policy, principal, compare.key, new):
                return f"compared {compare.key!r}"
        for one in transaction.operations:
            if isinstance(one, Put) and self.leases.get(one.lease, "") not in ("", principal):
                return f"used lease {one.lease} of {self.leases[one.lease]}"
            if not self._may_write(policy, principal, one, puts, new):
                return f"wrote {one.key!r}"
        return ""

    def may_read(
        self,
        policy: Policy,
        principal: str,
        key: bytes,
        new: Mapping[str, tuple[str, str]] = NONE_MADE,
    ) -> bool:
        """A key, a change of it, or a condition on it."""
        kind, _, user = principal.partition("/")
        first, _, rest = key.decode(errors="replace").partition("/")
        if key == b"trust/mode" or kind in ("bookie", "metadata", "proxy"):
            return first != "secret"
        if kind != "user" or not policy.is_live(user):
            return False
        if "o" in policy.of_cluster(user):
            return first != "secret"
        if first == "log" or first in OF_LOGS or first == "logconf":
            log = rest.partition("/")[0]
            return log not in self.names or "r" in self._on_log(policy, user, log, new)
        if first in OF_LEDGERS:
            ledger = self.ledgers.get(_number(rest.rpartition("/")[2]))
            if (
                ledger is None
                or ledger.state is LedgerState.DELETING
                or ledger.log not in self.names
            ):
                return True  # nothing is there to be kept from anybody
            held = self._on_log(policy, user, ledger.log, new)
            return ("r" if first in ("ledger", "under") else "w") in held
        if first in ("name", "gone"):
            return bool(
                policy.on_path(user, *_path(key.split(b"/", 1 if first == "name" else 2)[-1]))
            )
        return first not in ("trust", "audit", "secret", "verify")

    def _may_write(
        self,
        policy: Policy,
        principal: str,
        one: Put | Delete,
        puts: Mapping[bytes, bytes],
        new: Mapping[str, tuple[str, str]],
    ) -> bool:
        kind, _, user = principal.partition("/")
        first, _, rest = one.key.decode(errors="replace").partition("/")
        if principal in self._stolen:  # it holds nothing, and repairs nothing
            return first in ("bookie", "cookie", "seen", "scrub", "leaving", "repair")
        if kind in ("metadata", "proxy", "bookie"):
            return True
        if kind != "user" or not policy.is_live(user):
            return False
        if one.key == b"next/ledger":
            return True
        cluster = policy.of_cluster(user)
        if first in ("bookie", "cookie") and isinstance(one, Put):
            return False  # a bookie says that of itself
        if first in OPERATORS:
            return "o" in cluster
        if first == "log" or first in OF_LOGS or first == "logconf":
            log, _, part = rest.partition("/")
            held = self._on_log(policy, user, log, new)
            if first == "logconf":
                return "m" in held
            if isinstance(one, Delete) and log not in self.names:
                return True  # what a deleted log has left
            part, _, name = part.partition("/")
            own = part in OF_READERS and name.startswith(f"~{user}/") and "r" in held
            return "w" in held or own
        if first in OF_LEDGERS:
            number = _number(rest.rpartition("/")[2])
            ledger = self.ledgers.get(number)
            if ledger is not None:
                log = ledger.log
            else:
                record = puts.get(b"ledger/%016x" % number)
                log = _log_of(record, number) if record is not None else ""
            return "o" in cluster or "w" in self._on_log(policy, user, log, new)
        if first in ("name", "gone", "bind"):
            place = one.key.split(b"/", 2 if first == "gone" else 1)[-1]
            return "m" in policy.on_path(user, *_path(place))
        return False

    def _on_log(
        self, policy: Policy, user: str, log: str, new: Mapping[str, tuple[str, str]]
    ) -> str:
        paths = {**self._paths.get(log, {}), **({new[log]: None} if log in new else {})}
        return "".join(policy.on_path(user, *path) for path in paths)

    def had_right(self, principal: str, ledger: int, letter: str, since: int) -> bool:
        """Had a user that right on a ledger's log at any time from a revision on?"""
        known = self.ledgers.get(ledger)
        user = principal.removeprefix("user/")
        return known is not None and any(
            letter in self._on_log(policy, user, known.log, {})
            for policy in self.policies
            if policy.revision >= since or policy is self.at(since)
        )

    def on_ledger(self, policy: Policy, user: str, ledger: int) -> str:
        """Letters of a user on a ledger's log."""
        known = self.ledgers.get(ledger)
        return "" if known is None else self._on_log(policy, user, known.log, {})

    def paths(self) -> list[tuple[str, str]]:
        """Namespace and name of all logs that there ever were."""
        return [path for paths in self._paths.values() for path in paths]

    def at(self, revision: int) -> Policy:
        """What counted at that revision of the store."""
        return next(one for one in reversed(self.policies) if one.revision <= revision)

    def since(self, revision: int) -> list[Policy]:
        """All that have counted from that revision on."""
        first = self.at(revision)
        return [one for one in self.policies if one.revision > revision or one is first]

    # --- learning ---------------------------------------------------------------------------------

    def _learn(self, events: tuple[WatchEvent, ...], is_trust: bool, revision: int) -> None:
        policy = self.now
        users, tokens = dict(policy.users), dict(policy.tokens)
        grants = {user: dict(held) for user, held in policy.grants.items()}
        mode = policy.mode
        for event in events:
            key, value = event.item.key, event.item.value if event.kind == "put" else None
            if key.startswith(b"name/"):
                self._learn_name(key, value)
            elif key.startswith(b"ledger/") and value is not None:
                self._learn_ledger(key, value)
            elif not is_trust:
                continue
            elif key == b"trust/mode":
                mode = "open" if value is None else unpack(value, "a mode")[1]
            elif key.startswith(b"trust/user/"):
                name = key[11:].decode()
                said = None if value is None else unpack(value, "a user")
                users[name] = said is not None and said[2]
                tokens[name] = -1 if said is None else said[3]
            elif key.startswith(b"trust/grant/"):
                name, namespace, path = key[12:].decode().split("\0")
                held = grants.setdefault(name, {})
                held.pop((namespace, path), None)
                if value is not None:
                    held[namespace, path] = unpack(value, "a grant")[1]
        if is_trust and events:
            self.policies.append(
                replace(
                    policy,
                    revision=revision,
                    mode=mode,
                    users=users,
                    grants=grants,
                    tokens=tokens,
                )
            )

    def _learn_name(self, key: bytes, value: bytes | None) -> None:
        before = self._names.pop(key, "")
        self.names.pop(before, None)
        if value is not None:
            log = value.decode()
            self._names[key] = log
            self.names[log] = None
            self._paths.setdefault(log, {})[_path(key[5:])] = None
        elif before in self._names.values():
            self.names[before] = None  # it was given another name before it lost this one

    def _learn_ledger(self, key: bytes, value: bytes) -> None:
        try:
            record = LedgerMetadata.decode(key, value)
        except DistributedLogError:
            return
        log = _log_of(value, record.ledger_id)
        before = self.ledgers.get(record.ledger_id)
        self.ledgers[record.ledger_id] = KnownLedger(
            log or (before.log if before is not None else ""), record.bookies(), record.state
        )


def _path(place: bytes) -> tuple[str, str]:
    """Namespace and log name."""
    namespace, _, name = place.decode(errors="replace").partition("\0")
    return namespace, name


def _number(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        return -1


def _log_of(value: bytes, ledger: int) -> str:
    """The id of the log that a ledger was made for, as it stands in keys."""
    try:
        record = LedgerMetadata.decode(b"ledger/%016x" % ledger, value)
    except DistributedLogError:
        return ""
    log = record.owner[0] if record.owner is not None else record.incarnation
    return f"{log:016x}" if log else ""
