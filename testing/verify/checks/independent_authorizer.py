"""A second, independent authorization check: every change and access had a grant (pure).

It receives every command of the metadata log in order, and reports commands that no grant allowed in the
state before them (T1). It implements `docs/concepts/security-model.md`, and shares no code with
`metadata/auth/authorizer.py` and its table. It is shorter, because it checks only users, and nodes whose
certificate was stolen. The first authorizer decides by the *present* name of a key's log. This one accepts
any name that the log ever had, so it is never stricter.

It stores the policy after each change. A bookie accepts issued credentials until it receives their
revocation, and a watch may report earlier changes.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from ....ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from ....metadata.model.command_results import CommandResult
from ....metadata.model.commands import (
    AuthorizationChange,
    ExpireLease,
    GrantLease,
    ReplicatedCommand,
    RevokeLease,
    Transact,
    decode_command,
)
from ....metadata.model.interface import WatchEvent
from ....metadata.model.transaction import Delete, Put, Transaction
from ....runtime.interfaces.errors import DistributedLogError
from ....runtime.interfaces.principals import TokenScope
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
"""The letters mean: r read, w write, m manage, o operator, a admin."""
LETTERS = {"r": 1, "w": 2, "m": 4}
"""The letters as bits of a token's restriction."""
ANONYMOUS = "anonymous"
OPERATORS = ("bookie", "cookie", "seen", "leaving", "scrub", "conf", "cluster", "gc", "move")
"""First parts of keys that an operator writes and every authenticated client reads."""
OF_LEDGERS = ("ledger", "under", "on", "delete")
OF_LOGS = ("loose", "retired", "purge")
OF_READERS = ("position", "reader", "work", "worker")
NONE_MADE: Mapping[str, tuple[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Policy:
    """The authorization policy from a revision of the store on."""

    revision: int = 0
    mode: str = "open"
    users: Mapping[str, bool] = field(default_factory=dict)
    """Whether each user is disabled."""
    grants: Mapping[str, Mapping[tuple[str, str], str]] = field(default_factory=dict)
    """By user: roles by namespace and path."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """By user: the number that its tokens must have."""
    token_scope: TokenScope = ()
    """The restriction of a token; without paths there is none."""

    def is_live(self, user: str) -> bool:
        """Whether the user is not disabled."""
        return not self.users.get(user, False)

    def cluster_rights(self, user: str) -> str:
        """Return the user's letters of `ROLES` on the cluster."""
        if not self.is_live(user) or self.token_scope:
            return ""
        return ROLES.get(self.grants.get(user, {}).get(("", ""), ""), "")

    def path_rights(self, user: str, namespace: str, name: str) -> str:
        """Return the user's letters on a log."""
        if not self.is_live(user) or not namespace:
            return ""
        letters = "".join(
            ROLES[role]
            for (grant_namespace, path), role in self.grants.get(user, {}).items()
            if grant_namespace == namespace and _is_below(path, name)
        )
        if not self.token_scope:
            return letters
        allowed_bits = 0
        for grant_namespace, path, bits in self.token_scope:
            allowed_bits |= bits if grant_namespace == namespace and _is_below(path, name) else 0
        return "".join(letter for letter in letters if allowed_bits & LETTERS.get(letter, 0))

    def narrowed(self, token_scope: TokenScope) -> "Policy":
        """Return the policy for a client with a restricted token."""
        return replace(self, token_scope=token_scope) if token_scope else self


def _is_below(path: str, name: str) -> bool:
    if not path:
        return True
    name_parts = name.split("/")
    if path.endswith("/"):
        folder_parts = path[:-1].split("/")
        return (
            len(name_parts) > len(folder_parts) and name_parts[: len(folder_parts)] == folder_parts
        )
    return path.split("/") == name_parts


@dataclass(frozen=True, slots=True)
class KnownLedger:
    """The last record of a ledger."""

    log: str
    bookies: tuple[str, ...]
    state: LedgerState


class IndependentAuthorizer:
    """Checks one run.

    ``fail`` receives the violations. ``stolen_bookies`` are the bookies whose certificate was stolen.
    """

    def __init__(self, fail: Callable[[str], None], stolen_bookies: Collection[str] = ()) -> None:
        self._fail = fail
        self._stolen_bookies = stolen_bookies
        self.policies = [Policy()]
        """All policies in order; the last one applies now."""
        self.ledgers: dict[int, KnownLedger] = {}
        self.named_logs: dict[str, None] = {}
        """IDs of the logs that have a name now."""
        self.lease_owners: dict[int, str] = {}
        """The principal of each lease; "" for an unauthenticated one."""
        self.last_requests: dict[str, int] = {}
        """By client of a command: the highest request number."""
        self.checked_commands = 0
        """Checked commands of users in mode ``required``."""
        self._applied_index = 0
        self._paths_by_log: dict[str, dict[tuple[str, str], None]] = {}
        """All names that each log ever had."""
        self._log_by_name_key: dict[bytes, str] = {}

    @property
    def current_policy(self) -> Policy:
        """The policy that applies now."""
        return self.policies[-1]

    @property
    def revision(self) -> int:
        """The revision of the last change of the policy."""
        return self.policies[-1].revision

    def on_applied(
        self,
        index: int,
        command: bytes,
        answer: CommandResult,
        events: tuple[WatchEvent, ...],
        revision: int,
    ) -> None:
        """Check the command at ``index``, which a node has applied.

        Only the first call per index has an effect.
        """
        if index <= self._applied_index:
            return
        self._applied_index = index
        if not command:
            return
        try:
            decoded = decode_command(command)
        except DistributedLogError:
            return
        if decoded.client:
            principal = decoded.client.rpartition("/")[0] or ANONYMOUS
            self.last_requests[decoded.client] = max(
                decoded.request_number, self.last_requests.get(decoded.client, 0)
            )
            violation = self._violation_of(principal, index, decoded)
            if violation:
                self._fail(
                    f"T1: {principal} {violation} (entry {index}, mode {self.current_policy.mode})"
                )
            if isinstance(decoded, GrantLease) and answer.lease:  # otherwise, no lease was granted
                self.lease_owners[answer.lease] = "" if principal == ANONYMOUS else principal
        if isinstance(decoded, RevokeLease | ExpireLease):
            self.lease_owners.pop(decoded.lease, None)
        self._apply_events(events, isinstance(decoded, AuthorizationChange), revision)

    # --- checking ---------------------------------------------------------------------------------

    def _violation_of(self, principal: str, index: int, decoded: ReplicatedCommand) -> str:
        """Return the unauthorized action of a command, or ""."""
        policy = self.current_policy
        if isinstance(decoded, AuthorizationChange):
            admins = [user for user in policy.grants if "a" in policy.cluster_rights(user)]
            name = principal.removeprefix("user/")
            if admins and "a" not in policy.cluster_rights(name):
                return "changed the authorization policy, and is not an admin"
            return ""
        if isinstance(decoded, RevokeLease):
            owner = self.lease_owners.get(decoded.lease, "")
            return f"ended lease {decoded.lease} of {owner}" if owner not in ("", principal) else ""
        if not isinstance(decoded, Transact):
            return ""
        for operation in decoded.transaction.operations:
            key_kind = operation.key.partition(b"/")[0]
            if key_kind == b"audit" and self._is_own_audit_line(principal, index, operation):
                continue
            if key_kind in (b"trust", b"audit", b"secret"):
                return f"wrote {operation.key!r}"
        if policy.mode != "required":
            return ""
        self.checked_commands += 1
        judged_operations = [
            candidate
            for candidate in decoded.transaction.operations
            if not candidate.key.startswith(b"audit/")
        ]
        return self._transaction_violation(
            policy, principal, replace(decoded.transaction, operations=tuple(judged_operations))
        )

    def _is_own_audit_line(self, principal: str, index: int, operation: Put | Delete) -> bool:
        """Whether this is the command's line in the audit log, or the removal of the oldest lines."""
        if isinstance(operation, Delete):
            return operation.key < b"audit/%016x" % index
        return (
            operation.key == b"audit/%016x" % index
            and unpack(operation.value, "a line")[2] == principal
        )

    def _transaction_violation(
        self, policy: Policy, principal: str, transaction: Transaction
    ) -> str:
        puts = {put.key: put.value for put in transaction.operations if isinstance(put, Put)}
        new_logs = {
            log_id.decode(): _path(name_key[5:])
            for name_key, log_id in puts.items()
            if name_key.startswith(b"name/")
        }
        for compare in transaction.compares:
            if not self.may_read(policy, principal, compare.key, new_logs):
                return f"compared {compare.key!r}"
        for operation in transaction.operations:
            if isinstance(operation, Put) and self.lease_owners.get(operation.lease, "") not in (
                "",
                principal,
            ):
                return f"used lease {operation.lease} of {self.lease_owners[operation.lease]}"
            if not self._may_write(policy, principal, operation, puts, new_logs):
                return f"wrote {operation.key!r}"
        return ""

    def may_read(
        self,
        policy: Policy,
        principal: str,
        key: bytes,
        new_logs: Mapping[str, tuple[str, str]] = NONE_MADE,
    ) -> bool:
        """Return whether a principal may read a key, watch its changes, or use it in a condition."""
        kind, _, user = principal.partition("/")
        key_kind, _, key_rest = key.decode(errors="replace").partition("/")
        if key == b"trust/mode" or kind in ("bookie", "metadata", "proxy"):
            return key_kind != "secret"
        if kind != "user" or not policy.is_live(user):
            return False
        if "o" in policy.cluster_rights(user):
            return key_kind != "secret"
        if key_kind == "log" or key_kind in OF_LOGS or key_kind == "logconf":
            log = key_rest.partition("/")[0]
            return log not in self.named_logs or "r" in self._log_rights(
                policy, user, log, new_logs
            )
        if key_kind in OF_LEDGERS:
            ledger = self.ledgers.get(_number(key_rest.rpartition("/")[2]))
            if (
                ledger is None
                or ledger.state is LedgerState.DELETING
                or ledger.log not in self.named_logs
            ):
                return True  # there is nothing to protect
            letters = self._log_rights(policy, user, ledger.log, new_logs)
            return ("r" if key_kind in ("ledger", "under") else "w") in letters
        if key_kind in ("name", "gone"):
            return bool(
                policy.path_rights(
                    user, *_path(key.split(b"/", 1 if key_kind == "name" else 2)[-1])
                )
            )
        return key_kind not in ("trust", "audit", "secret", "verify")

    def _may_write(
        self,
        policy: Policy,
        principal: str,
        operation: Put | Delete,
        puts: Mapping[bytes, bytes],
        new_logs: Mapping[str, tuple[str, str]],
    ) -> bool:
        kind, _, user = principal.partition("/")
        key_kind, _, key_rest = operation.key.decode(errors="replace").partition("/")
        if principal in self._stolen_bookies:  # it stores no ledger and is not the repair leader
            return key_kind in ("bookie", "cookie", "seen", "scrub", "leaving", "repair")
        if kind in ("metadata", "proxy", "bookie"):
            return True
        if kind != "user" or not policy.is_live(user):
            return False
        if operation.key == b"next/ledger":
            return True
        cluster = policy.cluster_rights(user)
        if operation.key == b"cluster/version":
            return "a" in cluster
        if key_kind in ("bookie", "cookie") and isinstance(operation, Put):
            return False  # only a bookie itself writes its record
        if key_kind in OPERATORS:
            return "o" in cluster
        if key_kind == "log" or key_kind in OF_LOGS or key_kind == "logconf":
            log, _, part = key_rest.partition("/")
            letters = self._log_rights(policy, user, log, new_logs)
            if key_kind == "logconf":
                return "m" in letters
            if isinstance(operation, Delete) and log not in self.named_logs:
                return True  # remaining records of a deleted log
            part, _, name = part.partition("/")
            is_own_position = part in OF_READERS and name.startswith(f"~{user}/") and "r" in letters
            return "w" in letters or is_own_position
        if key_kind in OF_LEDGERS:
            ledger_id = _number(key_rest.rpartition("/")[2])
            ledger = self.ledgers.get(ledger_id)
            if ledger is not None:
                log = ledger.log
            else:
                record = puts.get(b"ledger/%016x" % ledger_id)
                log = _log_of(record, ledger_id) if record is not None else ""
            return "o" in cluster or "w" in self._log_rights(policy, user, log, new_logs)
        if key_kind in ("name", "gone", "bind"):
            path_bytes = operation.key.split(b"/", 2 if key_kind == "gone" else 1)[-1]
            return "m" in policy.path_rights(user, *_path(path_bytes))
        return False

    def _log_rights(
        self, policy: Policy, user: str, log: str, new_logs: Mapping[str, tuple[str, str]]
    ) -> str:
        paths = {
            **self._paths_by_log.get(log, {}),
            **({new_logs[log]: None} if log in new_logs else {}),
        }
        return "".join(policy.path_rights(user, *path) for path in paths)

    def had_right(self, principal: str, ledger: int, letter: str, since: int) -> bool:
        """Return whether a user had a right on a ledger's log at any time since a revision."""
        known_ledger = self.ledgers.get(ledger)
        user = principal.removeprefix("user/")
        return known_ledger is not None and any(
            letter in self._log_rights(policy, user, known_ledger.log, {})
            for policy in self.policies
            if policy.revision >= since or policy is self.policy_at(since)
        )

    def ledger_rights(self, policy: Policy, user: str, ledger: int) -> str:
        """Return the user's letters on a ledger's log."""
        known_ledger = self.ledgers.get(ledger)
        return "" if known_ledger is None else self._log_rights(policy, user, known_ledger.log, {})

    def all_paths(self) -> list[tuple[str, str]]:
        """Return namespace and name of all logs that ever existed."""
        return [path for paths in self._paths_by_log.values() for path in paths]

    def policy_at(self, revision: int) -> Policy:
        """Return the policy that applied at a revision of the store."""
        return next(policy for policy in reversed(self.policies) if policy.revision <= revision)

    def policies_since(self, revision: int) -> list[Policy]:
        """Return all policies that have applied since a revision."""
        first = self.policy_at(revision)
        return [policy for policy in self.policies if policy.revision > revision or policy is first]

    # --- following the state ----------------------------------------------------------------------

    def _apply_events(self, events: tuple[WatchEvent, ...], is_trust: bool, revision: int) -> None:
        policy = self.current_policy
        users, tokens = dict(policy.users), dict(policy.tokens)
        grants = {user: dict(user_grants) for user, user_grants in policy.grants.items()}
        mode = policy.mode
        for event in events:
            key, value = event.item.key, event.item.value if event.kind == "put" else None
            if key.startswith(b"name/"):
                self._apply_name(key, value)
            elif key.startswith(b"ledger/") and value is not None:
                self._apply_ledger(key, value)
            elif not is_trust:
                continue
            elif key == b"trust/mode":
                mode = "open" if value is None else unpack(value, "a mode")[1]
            elif key.startswith(b"trust/user/"):
                name = key[11:].decode()
                user_fields = None if value is None else unpack(value, "a user")
                users[name] = user_fields is not None and user_fields[2]
                tokens[name] = -1 if user_fields is None else user_fields[3]
            elif key.startswith(b"trust/grant/"):
                name, namespace, path = key[12:].decode().split("\0")
                user_grants = grants.setdefault(name, {})
                user_grants.pop((namespace, path), None)
                if value is not None:
                    user_grants[namespace, path] = unpack(value, "a grant")[1]
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

    def _apply_name(self, key: bytes, value: bytes | None) -> None:
        previous_log = self._log_by_name_key.pop(key, "")
        self.named_logs.pop(previous_log, None)
        if value is not None:
            log = value.decode()
            self._log_by_name_key[key] = log
            self.named_logs[log] = None
            self._paths_by_log.setdefault(log, {})[_path(key[5:])] = None
        elif previous_log in self._log_by_name_key.values():
            self.named_logs[previous_log] = (
                None  # it received another name before this one was deleted
            )

    def _apply_ledger(self, key: bytes, value: bytes) -> None:
        try:
            record = LedgerMetadata.decode(key, value)
        except DistributedLogError:
            return
        log = _log_of(value, record.ledger_id)
        known_ledger = self.ledgers.get(record.ledger_id)
        self.ledgers[record.ledger_id] = KnownLedger(
            log or (known_ledger.log if known_ledger is not None else ""),
            record.bookies(),
            record.state,
        )


def _path(path_bytes: bytes) -> tuple[str, str]:
    """Return namespace and log name."""
    namespace, _, name = path_bytes.decode(errors="replace").partition("\0")
    return namespace, name


def _number(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        return -1


def _log_of(value: bytes, ledger: int) -> str:
    """Return the ID of the log for which a ledger was created, in the form used in keys."""
    try:
        record = LedgerMetadata.decode(b"ledger/%016x" % ledger, value)
    except DistributedLogError:
        return ""
    log = record.owner[0] if record.owner is not None else record.incarnation
    return f"{log:016x}" if log else ""
