"""Authorize the requests of principals (pure).

The leader authorizes each request of a client by the state that it has applied. A compare is a read,
because a failed transaction returns the compared keys (H234). A range or a watch must be within one kind of
keys and one log, or it is restricted to the paths that the requester may see. `acl_records` has the rights
of users, and `key_space.KeySpace` the kinds of keys. The rights of nodes are defined here.

As long as no `AuthorizationChange` was applied, all requests are allowed without a check.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from copy import copy

from ...runtime.interfaces.errors import (
    Compacted,
    CorruptData,
    DistributedLogError,
    NotAllowed,
    NotAuthenticated,
    UnsupportedFormat,
)
from ...runtime.interfaces.principals import ANONYMOUS, LOCAL, Token, TokenScope
from ...runtime.protocol.tokens import covers, restrict_to_scope
from ..model.acl_records import (
    ACL_PREFIX,
    AUDIT_PREFIX,
    GRANT_PREFIX,
    MODE_KEY,
    REPORTED_DENIALS_MAX,
    User,
    decode_grant,
    grant_of,
    grants_prefix,
    mode_of,
    user_key,
)
from ..model.interface import prefix_end
from ..model.request_identity import request_identity
from ..model.rights import (
    ADMIN,
    ALL,
    ALL_LOG_RIGHTS,
    AUTHENTICATED,
    BOOKIE,
    EVERYBODY,
    MANAGE,
    OPERATOR,
    OWN,
    PROXY,
    READ,
    REPAIR_LEADER,
    REPLICA_HOLDER,
    ROLES,
    WRITE,
    describe_rights,
)
from ..model.transaction import Delete, Put, Transaction
from ..state.kv_state import VALUE_HEADER, KeyValueState
from .key_space import KeyChange, KeyClass, KeyScope, KeySpace

KEY_SHOWN_BYTES = 80
NAMES = KeySpace().names_prefix
GRANTS_PER_USER_MAX = 64
"""Maximum number of grants of one user."""
KEYS_PER_PAGE = 1000

KeyRanges = tuple[tuple[bytes, bytes], ...]
"""Parts of a range, in order: start and end."""
VisibleParts = KeyRanges | Callable[[bytes], bool]
"""The visible parts of a range, or a function that decides for each key in it."""


class Authorizer:
    """Authorizes requests on one node, by the state that it has applied."""

    def __init__(self, key_space: KeySpace, now_s: Callable[[], float] = lambda: 0.0) -> None:
        """``now_s`` returns this node's monotonic time, which no other clock changes."""
        self.mode = "open"
        self.revision = 0
        """Revision of the last authorization change that was read."""
        self.rename_count = 0
        """Incremented when a log gets another name, because rights depend on the name."""
        self.report_denials: dict[tuple[str, str], int] = {}
        """In mode "report", the number of refusals by principal and missing right."""
        self._key_space = key_space
        self._now_s = now_s
        self._clock_baseline: tuple[int, float] | None = None
        """The cluster clock (ms) when it was first changed here, and the local time (ms) then."""
        self._state = KeyValueState()
        self._users: dict[str, User | None] = {}
        self._grants: dict[str, tuple[tuple[str, str, int], ...]] = {}
        self._name_by_log: dict[bytes, bytes] | None = None
        """Name keys by log ID, while requests are checked. None if they have not been read."""
        self._log_by_name: dict[bytes, bytes] = {}
        """Log IDs by name key."""
        self._names_revision = 0
        self._token_scope: TokenScope = ()
        self._request_owner = ""

    def restricted_to_token(self, token: Token | None) -> "Authorizer":
        """Return an authorizer for the holder of a restricted token, to be used immediately and not kept."""
        if token is None or not token.token_scope:
            return self
        scoped_authorizer = copy(self)
        scoped_authorizer._grants = {}
        scoped_authorizer._token_scope, scoped_authorizer._request_owner = (
            token.token_scope,
            request_identity(token.principal, token),
        )
        return scoped_authorizer

    def refresh(self, state: KeyValueState) -> None:
        """Use this state from now on. Called before each check, and fast if nothing has changed."""
        if state is not self._state:
            self._state, self._name_by_log = state, None
            self.revision = -1
        if state.authorization_revision != self.revision:
            self.revision = state.authorization_revision
            self._users.clear()
            self._grants.clear()
            self.mode = self._read_mode()
        if self._name_by_log is not None or self.mode != "open":
            self._update_names()

    def _read_mode(self) -> str:
        if not self.revision:
            return "open"
        return mode_of(self._state.get(MODE_KEY))

    def _update_names(self) -> None:
        state, prefix = self._state, self._key_space.names_prefix
        end = prefix_end(prefix)
        if self._name_by_log is not None:
            if self._names_revision == state.revision:
                return
            try:
                for _, events in state.events_after(self._names_revision, prefix, end):
                    names_before = [
                        (event.item.value, self._name_by_log.get(event.item.value))
                        for event in events
                    ]
                    for event in events:
                        self._set_name(event.item.key, event.item.value)
                    if any(key and self._name_by_log.get(log) != key for log, key in names_before):
                        self.rename_count += 1
                self._names_revision = state.revision
                return
            except Compacted:
                self.rename_count += 1
        self._name_by_log, self._log_by_name, start = {}, {}, prefix
        while keys := state.keys.between(start, end, KEYS_PER_PAGE):
            for key in keys:
                self._set_name(key, state.stored_values[key][VALUE_HEADER.size :])
            start = keys[-1] + b"\0"
        self._names_revision = state.revision

    @property
    def _log_names(self) -> dict[bytes, bytes]:
        if self._name_by_log is None:
            self._update_names()
        assert self._name_by_log is not None, "names have just been read"
        return self._name_by_log

    def _set_name(self, key: bytes, log: bytes) -> None:
        """Set the log of a name key, or remove the name if ``log`` is b""."""
        assert self._name_by_log is not None
        previous_log = self._log_by_name.pop(key, b"")
        if previous_log != log and self._name_by_log.get(previous_log) == key:
            del self._name_by_log[previous_log]  # otherwise the log has another name now
        if log:
            self._name_by_log[log] = key
            self._log_by_name[key] = log

    # --- rights of principals ---------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        """Return the record of a user, or None. An unreadable record counts as a disabled user."""
        if name not in self._users:
            record = self._state.get(user_key(name))
            try:
                self._users[name] = User.decode(record.value) if record is not None else None
            except DistributedLogError:
                self._users[name] = User(disabled=True)
        return self._users[name]

    def grants(self, name: str) -> tuple[tuple[str, str, int], ...]:
        """Return a user's grants: namespace, path, rights."""
        grants = self._grants.get(name)
        if grants is None:
            prefix = grants_prefix(name)
            keys = self._state.keys.between(prefix, prefix_end(prefix), GRANTS_PER_USER_MAX)
            decoded = []
            for key in keys:
                try:
                    _, namespace, path = grant_of(key)
                    rights = ROLES[
                        decode_grant(self._state.stored_values[key][VALUE_HEADER.size :])
                    ]
                except (CorruptData, UnsupportedFormat):
                    continue  # an unreadable grant gives no rights
                decoded.append((namespace, path, rights))
            grants = tuple(decoded)
            if self._token_scope:
                grants = restrict_to_scope(grants, self._token_scope)
            self._grants[name] = grants
        return grants

    def is_active(self, principal: str, serial: str = "") -> bool:
        """Whether the user and its certificate are not disabled. Rights are a separate question."""
        kind, _, name = principal.partition("/")
        if kind != "user":
            return principal != ANONYMOUS
        user = self.user(name)
        return user is None or not (user.disabled or (serial and serial in user.revoked_serials))

    def token_error(self, token: Token) -> NotAuthenticated | None:
        """Return why the token is not accepted, in any mode, or None."""
        user = self.user(token.user)
        if user is None or user.disabled:
            return NotAuthenticated(f"{token.principal} was disabled or removed")
        if user.tokens_valid_from != token.revoked_at_revision:
            return NotAuthenticated(f"the tokens of {token.principal} were revoked")
        return None

    def connection_error(
        self, principal: str, serial: str, token: Token | None = None
    ) -> NotAuthenticated | None:
        """Return why a connection must be closed, or None.

        An invalid token ends it in any mode. A disabled user or certificate ends it in mode "required".
        """
        if token is not None:
            return self.token_error(token)
        if self.mode != "required" or principal == ANONYMOUS or self.is_active(principal, serial):
            return None
        return NotAuthenticated(f"{principal} or its certificate was disabled")

    def cluster_rights(self, principal: str) -> int:
        """Return the rights of a principal that do not depend on a path."""
        kind, _, name = principal.partition("/")
        if not self.is_active(principal):
            return EVERYBODY
        rights_held = EVERYBODY | AUTHENTICATED
        if principal == LOCAL:
            return ALL  # it owns its cluster and the nodes
        if kind == "bookie":
            return rights_held | BOOKIE | (REPAIR_LEADER if self._is_janitor(principal) else 0)
        if kind == "proxy":
            return rights_held | PROXY
        if kind == "user":
            for namespace, path, rights in self.grants(name):
                if not namespace and not path:
                    rights_held |= rights & (OPERATOR | ADMIN)
        return rights_held

    def rights(self, principal: str, namespace: str, path: str) -> int:
        """Return the rights on a log of that name, whether it exists or not."""
        kind, _, name = principal.partition("/")
        if principal == LOCAL:
            return ALL_LOG_RIGHTS
        if kind == "proxy":
            return (
                READ | WRITE | MANAGE
            )  # a proxy writes, and reads for many clients, which it authorizes itself
        if kind == "bookie":
            return READ
        rights_held = 0
        if kind == "user" and self.is_active(principal):
            for granted_namespace, granted, rights in self.grants(name):
                if granted_namespace == namespace and granted_namespace and covers(granted, path):
                    rights_held |= rights & ALL_LOG_RIGHTS
        return rights_held

    def rights_on_log(self, principal: str, log: bytes, new: Mapping[bytes, bytes]) -> int:
        """Return the rights on a log. ``new`` has the names that the same transaction creates, by log ID."""
        key = self._log_names.get(log) or new.get(log)
        if key is None:
            return self.rights(principal, "", "")
        return self.rights(principal, *self._decode_name_key(key))

    def rights_on_ledger(self, principal: str, ledger_id: int) -> int:
        """Return the rights on a ledger. A missing ledger gives none."""
        return self._rights_on_ledger_key(
            principal, self._key_space.ledgers_prefix + b"%016x" % ledger_id, None, {}
        )

    def is_closed(self, ledger_id: int) -> bool:
        """Whether the end of the ledger is final. An unreadable record counts as closed."""
        key = self._key_space.ledgers_prefix + b"%016x" % ledger_id
        stored = self._state.stored_values.get(key)
        try:
            return stored is not None and self._key_space.is_closed(
                key, stored[VALUE_HEADER.size :]
            )
        except DistributedLogError:
            return True

    def is_bookie(self, principal: str, bookie_id: str) -> bool:
        """Whether the principal is the bookie with this ID, by its cookie."""
        return self._is_bookie(principal, bookie_id.encode())

    def _rights_on_ledger_key(
        self,
        principal: str,
        ledger_key: bytes,
        new_record: bytes | None,
        new_names: Mapping[bytes, bytes],
    ) -> int:
        """Return the rights on the record of a ledger.

        ``new_record`` is the value that the same transaction puts.
        """
        key_space = self._key_space
        stored = self._state.stored_values.get(ledger_key)
        stored_record = stored[VALUE_HEADER.size :] if stored is not None else None
        try:
            if stored_record is None:
                return (
                    self._rights_by_record(principal, ledger_key, new_record, new_names)
                    if new_record is not None
                    else 0
                )
            rights_held = self._rights_by_record(principal, ledger_key, stored_record, new_names)
            if principal.startswith("bookie/"):
                bookies = key_space.bookies_of_ledger(ledger_key, stored_record)
                if any(
                    self._is_bookie(principal, bookie.encode()) for bookie in bookies
                ) or self._is_move_target(principal, ledger_key):
                    rights_held |= REPLICA_HOLDER
            # A move to another log requires the rights on both logs. A deletion needs no second log.
            if new_record is not None and not key_space.is_deleting(ledger_key, new_record):
                rights_held &= (
                    self._rights_by_record(principal, ledger_key, new_record, new_names)
                    | REPLICA_HOLDER
                )
        except DistributedLogError:
            return 0
        return rights_held

    def _rights_by_record(
        self, principal: str, ledger_key: bytes, value: bytes, new_names: Mapping[bytes, bytes]
    ) -> int:
        return self.rights_on_log(
            principal, self._key_space.log_of_ledger(ledger_key, value), new_names
        )

    def _is_move_target(self, principal: str, ledger_key: bytes) -> bool:
        """Whether this bookie is to store a copy of the ledger."""
        ledger = ledger_key.rpartition(b"/")[2]
        cookies = self._key_space.cookies_prefix
        for key in self._state.keys.between(cookies, prefix_end(cookies), KEYS_PER_PAGE):
            bookie = key.removeprefix(cookies)
            move = self._key_space.moves_prefix + bookie + b"/" + ledger
            # A bookie that lost its disks also has the earlier cookie, until that ID is removed.
            if move in self._state.stored_values and self._is_bookie(principal, bookie):
                return True
        return False

    def _is_bookie(self, principal: str, bookie: bytes, new_cookie: bytes | None = None) -> bool:
        """Whether the cookie of that bookie belongs to the principal.

        ``new_cookie`` is the cookie if the transaction creates it.
        """
        key = self._key_space.cookies_prefix + bookie
        stored = self._state.stored_values.get(key)
        value = stored[VALUE_HEADER.size :] if stored is not None else new_cookie
        if value is None:
            return False
        try:
            return principal == self._key_space.owner_of_cookie(key, value)
        except DistributedLogError:
            return False

    def _is_janitor(self, principal: str) -> bool:
        repair_leader_item = self._state.get(self._key_space.repair_leader_key)
        if repair_leader_item is None:
            return False
        lease = self._state.leases.get(repair_leader_item.lease)
        return lease is not None and lease.owner == principal

    def _decode_name_key(self, name_key: bytes) -> tuple[str, str]:
        """Return namespace and log name of a name key, or ("", "") if it is invalid."""
        namespace, _, name = name_key.removeprefix(self._key_space.names_prefix).partition(b"\0")
        try:
            return namespace.decode(), name.decode()
        except UnicodeDecodeError:
            return "", ""

    def _rights_on_key(
        self,
        principal: str,
        base_rights: int,
        scope: KeyScope,
        puts: Mapping[bytes, bytes],
        new_names: Mapping[bytes, bytes],
    ) -> int:
        rights_held = base_rights
        if scope.path is not None:
            rights_held |= self.rights(principal, *scope.path)
        if scope.log:
            rights_held |= self.rights_on_log(principal, scope.log, new_names)
        if scope.ledger:
            rights_held |= self._rights_on_ledger_key(
                principal, scope.ledger, puts.get(scope.ledger), new_names
            )
        if scope.bookie and base_rights & BOOKIE:
            cookie = puts.get(self._key_space.cookies_prefix + scope.bookie)
            if self._is_bookie(principal, scope.bookie, cookie):
                rights_held |= OWN
        if scope.user and scope.user == principal.removeprefix("user/") and rights_held & READ:
            rights_held |= OWN
        return rights_held

    # --- authorization ----------------------------------------------------------------------------

    def read_error(self, principal: str, key: bytes) -> NotAllowed | None:
        """Return why the principal may not read a key, or None. The key may be missing."""
        return self._read_error(principal, self.cluster_rights(principal), key, {})

    def _read_error(
        self,
        principal: str,
        base_rights: int,
        key: bytes,
        new_names: Mapping[bytes, bytes],
    ) -> NotAllowed | None:
        key_class = self._key_space.of(key)
        if key_class.read_rights & base_rights:
            return None
        scope = key_class.scope_of(key)
        if scope is not None and key_class.read_rights & self._rights_on_key(
            principal, base_rights, scope, {}, new_names
        ):
            return None
        if scope is not None and base_rights & AUTHENTICATED and self._is_deleted(scope):
            # No data is left to protect, and a reader of the log can detect its deletion.
            return None
        return _not_allowed(principal, "read", key, key_class.read_rights)

    def _is_deleted(self, scope: KeyScope) -> bool:
        """Whether the scope is a deleted log, or a ledger that was deleted or belonged to such a log.

        If so, any authenticated principal may read its keys, and delete those of the log. Rights on a path or
        a bookie do not depend on its existence. An unreadable ledger record stays protected.
        """
        state, key_space = self._state, self._key_space
        if scope.path is not None or scope.bookie:
            return False
        if scope.ledger:
            stored = state.stored_values.get(scope.ledger)
            if stored is None:
                return True
            try:
                if key_space.is_deleting(scope.ledger, stored[VALUE_HEADER.size :]):
                    return True
                log = key_space.log_of_ledger(scope.ledger, stored[VALUE_HEADER.size :])
            except DistributedLogError:
                return False
        else:
            log = scope.log
        if not log or log in self._log_names:
            return False
        return not self._log_exists(log)

    def _is_cleanup(
        self, operation: Put | Delete, base_rights: int, scope: KeyScope | None
    ) -> bool:
        """Whether the operation deletes a remaining key of a deleted log.

        A deletion of a log visits its keys twice.
        """
        return (
            isinstance(operation, Delete)
            and operation.key.startswith(self._key_space.logs_prefix)
            and scope is not None
            and bool(base_rights & AUTHENTICATED)
            and self._is_deleted(scope)
        )

    def _log_exists(self, log: bytes) -> bool:
        return (
            self._key_space.logs_prefix + log + self._key_space.state_suffix
            in self._state.stored_values
        )

    def check_range(
        self, principal: str, start: bytes, end: bytes
    ) -> NotAllowed | VisibleParts | None:
        """Check the read of a range.

        Returns:
            None if all of it is visible, the visible parts, or the refusal.
        """
        base_rights = self.cluster_rights(principal)
        if end == start + b"\0" or (
            start in self._key_space.single_keys and end <= prefix_end(start)
        ):
            return self._read_error(principal, base_rights, start, {})
        key_class = self._key_space.of(start)
        class_prefix = start[: start.find(b"/") + 1]
        is_one_class = bool(class_prefix) and end <= prefix_end(class_prefix)
        if (
            is_one_class
            and key_class.listing_prefix is not None
            and not base_rights & key_class.read_rights
        ):
            return self._visible_ranges(principal, key_class.listing_prefix(start), start, end)
        if is_one_class and key_class.read_rights & base_rights:
            return None
        if is_one_class and key_class.filters_by_key and base_rights & AUTHENTICATED:
            return lambda key: self.read_error(principal, key) is None
        scope_prefix = key_class.scope_prefix(start)
        if is_one_class and scope_prefix and end <= prefix_end(scope_prefix):
            scope = key_class.scope_of(start)
            if scope is not None and key_class.read_rights & self._rights_on_key(
                principal, base_rights, scope, {}, {}
            ):
                return None
            if scope is not None and base_rights & AUTHENTICATED and self._is_deleted(scope):
                return None
        return _not_allowed(principal, "list", start, key_class.read_rights)

    def _visible_ranges(
        self, principal: str, prefix: bytes, start: bytes, end: bytes
    ) -> NotAllowed | KeyRanges | None:
        kind, _, name = principal.partition("/")
        if kind in ("proxy", "bookie") or principal == LOCAL:
            return None
        key_ranges: list[tuple[bytes, bytes]] = []
        if kind == "user" and self.is_active(principal):
            for namespace, path, rights in self.grants(name):
                if not namespace or not rights & ALL_LOG_RIGHTS:
                    continue
                range_start = prefix + namespace.encode() + b"\0" + path.encode()
                is_directory = not path or path.endswith("/")
                key_range = (
                    max(start, range_start),
                    min(end, prefix_end(range_start) if is_directory else range_start + b"\0"),
                )
                if key_range[0] < key_range[1]:
                    key_ranges.append(key_range)
        return _merge_ranges(key_ranges)

    def transaction_error(self, principal: str, transaction: Transaction) -> NotAllowed | None:
        """Check every compare and every operation. Return the refusal, or None."""
        base_rights = self.cluster_rights(principal)
        names = self._key_space.names_prefix
        puts = {o.key: o.value for o in transaction.operations if isinstance(o, Put)}
        deleted_keys = {o.key for o in transaction.operations if isinstance(o, Delete)}
        new_names = {value: key for key, value in puts.items() if key.startswith(names)}
        name_error = self._name_error(principal, new_names, deleted_keys)
        if name_error is not None:
            return name_error
        for compare in transaction.compares:
            read_error = self._read_error(principal, base_rights, compare.key, new_names)
            if read_error is not None:
                return read_error
        check = _TransactionCheck(self._state, principal, base_rights, transaction)
        for operation in transaction.operations:
            key = operation.key
            key_class = self._key_space.of(key)
            needed = key_class.write_rights
            if not isinstance(needed, int):
                needed = self._rights_for_value(needed, key_class, transaction, key, puts.get(key))
            scope = key_class.scope_of(key)
            rights_held = (
                base_rights
                if scope is None
                else self._rights_on_key(principal, base_rights, scope, puts, new_names)
            )
            if not needed & rights_held or scope is None:
                if self._is_cleanup(operation, base_rights, scope):
                    continue
                return _not_allowed(principal, "write", key, needed)
            if not self._is_well_formed(
                check, needed & rights_held, rights_held, key_class, operation
            ):
                shown = repr(key[:KEY_SHOWN_BYTES])[1:]
                return NotAllowed(
                    f"{principal} may not make this change of {shown} with its rights and the present record"
                )
            if isinstance(operation, Put) and not self._may_reference_ledger(
                principal, base_rights, operation, puts, new_names
            ):
                return _not_allowed(principal, "name another log's ledger in", key, WRITE)
            if isinstance(operation, Put) and operation.lease:
                lease_error = self._lease_error(principal, key_class, operation)
                if lease_error is not None:
                    return lease_error
        return None

    def _name_error(
        self, principal: str, new_names: Mapping[bytes, bytes], deleted_keys: Collection[bytes]
    ) -> NotAllowed | None:
        """Check that no new name takes the ID of an existing log, except to rename that log.

        ``new_names`` has the keys of the new names by log ID.
        """
        for log, key in new_names.items():
            current_name = self._log_names.get(log)
            is_name_taken = (
                current_name is not None
                and current_name != key
                and current_name not in deleted_keys
            )
            if is_name_taken or (current_name is None and self._log_exists(log)):
                return _not_allowed(principal, "give another log's id to", key, 0)
        return None

    def _rights_for_value(
        self,
        rights_by_value: Callable[[bytes, bytes | None, bytes | None], int],
        key_class: KeyClass,
        transaction: Transaction,
        key: bytes,
        new_value: bytes | None,
    ) -> int:
        """Return the rights that allow this change of the value, or 0 if the value is malformed."""
        stored = self._state.stored_values.get(key)
        stored_value = stored[VALUE_HEADER.size :] if stored is not None else None
        try:
            needed = rights_by_value(key, stored_value, new_value)
        except DistributedLogError:
            needed = 0
        if (
            key_class.is_created_once
            and stored is not None
            and _is_outdated(transaction, key, stored)
        ):
            needed |= key_class.read_rights  # the change has no effect, and a reader may learn this
        return needed

    def _lease_error(self, principal: str, key_class: KeyClass, put: Put) -> NotAllowed | None:
        if not key_class.allows_lease:
            return _not_allowed(principal, "put under a lease", put.key, 0)
        lease = self._state.leases.get(put.lease)
        is_granted_later = put.lease >= self._state.next_lease  # maybe to another owner
        owner = self._request_owner or principal
        if is_granted_later or (lease is not None and lease.owner and lease.owner != owner):
            return NotAllowed(
                f"{principal} may not use lease {put.lease}: it belongs to another principal"
            )
        return None

    def _is_well_formed(
        self,
        check: "_TransactionCheck",
        sufficient_rights: int,
        rights_held: int,
        key_class: KeyClass,
        operation: Put | Delete,
    ) -> bool:
        """Whether the operation satisfies the rules of its key.

        ``sufficient_rights`` are those of ``rights_held`` that allow the change at all.
        """
        rules = [key_class.change_rule] if key_class.change_rule is not None else []
        if key_class.repair_rule is not None and not sufficient_rights & ~(
            REPAIR_LEADER | REPLICA_HOLDER
        ):
            rules.append(key_class.repair_rule)
        key, principal = operation.key, check.principal
        if not rules and not key_class.lease_protected and key != self._key_space.clock_key:
            return True
        change = KeyChange(
            key,
            self._value(key),
            check.values_after[key],
            self._value,
            check.value_after,
            lambda log: self._decode_name_key(self._log_names.get(log, b""))[0],
            lambda bookie: self._is_bookie(principal, bookie.encode()),
            bool(check.base_rights & REPAIR_LEADER),
            rights_held,
            lambda other: other in check.pinned_keys,
        )
        try:
            is_valid = all(rule(change) for rule in rules)
        except DistributedLogError:
            is_valid = False
        if key_class.lease_protected:
            is_valid = is_valid and self._is_lease_free_for(principal, key)
        if key == self._key_space.clock_key:
            is_valid = is_valid and self._is_clock_plausible(change)
        return is_valid or self._condition_is_outdated(check.transaction, key)

    def _value(self, key: bytes) -> bytes | None:
        stored = self._state.stored_values.get(key)
        return None if stored is None else stored[VALUE_HEADER.size :]

    def _is_lease_free_for(self, principal: str, key: bytes) -> bool:
        item = self._state.get(key)
        lease = None if item is None else self._state.leases.get(item.lease)
        return lease is None or lease.owner == principal

    def _is_clock_plausible(self, change: KeyChange) -> bool:
        """Whether the cluster clock does not move back, and not faster than this node's time."""
        key_space, now_ms = self._key_space, self._now_s() * 1000
        if change.after is None:
            return False
        try:
            ms_before = 0 if change.before is None else key_space.clock_ms(change.before)
            ms_after = key_space.clock_ms(change.after)
        except DistributedLogError:
            return False
        if self._clock_baseline is None or ms_before < self._clock_baseline[0]:
            self._clock_baseline = (ms_before, now_ms)
        baseline_ms, since_ms = self._clock_baseline
        return ms_before <= ms_after <= baseline_ms + (now_ms - since_ms) + key_space.clock_step_ms

    def _condition_is_outdated(self, transaction: Transaction, key: bytes) -> bool:
        """Whether a condition on this key, or on a key that is created only once, can never hold again.

        Then nothing will change, and the requester receives the failed condition, like any late client, and
        no refusal.
        """
        for compare in transaction.compares:
            item = self._state.get(compare.key)
            if compare.kind == "exists" or compare.holds(item):
                continue
            if compare.kind == "mod_revision":
                is_past = (
                    0 < compare.number <= self._state.revision
                )  # no later change has that revision
            elif item is None:
                is_past = compare.number > 0 and self._key_space.of(compare.key).is_created_once
            else:
                # A later version is not final: the requester's next transactions may reach it before this
                # one is applied.
                is_final = compare.key == key or self._key_space.of(compare.key).is_created_once
                is_past = is_final and 0 < compare.number < item.version
            is_leased = (
                compare.key == key and item is not None and self._key_space.of(key).lease_protected
            )
            if is_past or is_leased:
                return True
        return False

    def _may_reference_ledger(
        self,
        principal: str,
        base_rights: int,
        put: Put,
        puts: Mapping[bytes, bytes],
        new_names: Mapping[bytes, bytes],
    ) -> bool:
        """Whether the principal may reference the ledger that the value names, if it did not name it before.

        The repair leader and proxies follow such a reference with rights that its writer need not have.
        """
        ledger_in = self._key_space.of(put.key).referenced_ledger
        if ledger_in is None or base_rights & REPAIR_LEADER:
            return True
        try:
            ledger_key = ledger_in(put.value)
        except DistributedLogError:
            return False
        stored = self._state.stored_values.get(put.key)
        with contextlib.suppress(DistributedLogError):
            if stored is not None and ledger_in(stored[VALUE_HEADER.size :]) == ledger_key:
                return True
        return bool(
            self._rights_on_ledger_key(principal, ledger_key, puts.get(ledger_key), new_names)
            & WRITE
        )

    def apply_mode(self, principal: str, error: NotAllowed | None) -> NotAllowed | None:
        """Return the result of a check in the present mode.

        In "report", a refusal is counted and not returned.
        """
        if error is not None and self._token_scope:
            error = NotAllowed(
                f"{error}, and the token is restricted to {self._describe_token_scope()}",
                NotAllowed.RESTRICTED_TOKEN,
            )
        if error is None or self.mode == "required":
            return error
        if self.mode == "report":
            denial = (principal, str(error))
            if denial in self.report_denials or len(self.report_denials) < REPORTED_DENIALS_MAX:
                self.report_denials[denial] = self.report_denials.get(denial, 0) + 1
        return None

    def _describe_token_scope(self) -> str:
        """Return the restriction of the presented token as text, such as "read of orders in ns"."""
        return ", ".join(
            f"{describe_rights(rights)} of {path or 'all'} in {namespace}"
            for namespace, path, rights in self._token_scope
        )

    def authorize_read(
        self, principal: str, start: bytes, end: bytes | None
    ) -> NotAllowed | VisibleParts | None:
        """Authorize a read or a watch in the present mode. Without ``end``, it is for one key."""
        if self.mode == "open":
            return None
        if end is None:
            return self.apply_mode(principal, self.read_error(principal, start))
        result = self.check_range(principal, start, end)
        if result is None or (self.mode == "required" and not isinstance(result, NotAllowed)):
            return result
        if not isinstance(result, NotAllowed):
            if callable(result) or result == ((start, end),):
                return None
            result = _not_allowed(principal, "list all of", start, READ)
        return self.apply_mode(principal, result)

    def authorize_transaction(self, principal: str, transaction: Transaction) -> NotAllowed | None:
        """Authorize a transaction in the present mode. Keys of authorization are refused in every mode."""
        for operation in transaction.operations:
            if operation.key.startswith(LEADER_ONLY_PREFIXES):
                return _not_allowed(principal, "write", operation.key, 0)
        if self.mode == "open":
            return None
        return self.apply_mode(principal, self.transaction_error(principal, transaction))

    def audited_action(self, principal: str, transaction: Transaction) -> tuple[str, str] | None:
        """Return action and subject of an audit record for a transaction, or None.

        Actions of nodes have none.
        """
        if principal.startswith(("bookie/", "metadata/", "proxy/")):
            return None
        audit_rules = self._key_space.audit_rules
        for operation in transaction.operations:
            key = operation.key
            audit_rule = audit_rules.get(key[: key.find(b"/") + 1])
            if audit_rule is None:
                continue
            puts = {
                changed.key: changed.value if isinstance(changed, Put) else None
                for changed in transaction.operations
            }
            stored = self._state.stored_values.get(key)
            action = audit_rule(key, puts, None if stored is None else stored[VALUE_HEADER.size :])
            if action is not None:
                return action
        return None

    def authorize_operation(self, principal: str, needed: int, what: str) -> NotAllowed | None:
        """Authorize an operation without a key in the present mode.

        One of the cluster rights is sufficient.
        """
        if self.mode == "open" or needed & self.cluster_rights(principal):
            return None
        error = NotAllowed(f"{principal} may not {what}: it needs {describe_rights(needed)}")
        return self.apply_mode(principal, error)

    def admins(self) -> list[str]:
        """Return the users that are admins and not disabled."""
        names = []
        start = GRANT_PREFIX
        while keys := self._state.keys.between(start, prefix_end(GRANT_PREFIX), KEYS_PER_PAGE):
            for key in keys:
                try:
                    name, namespace, path = grant_of(key)
                except CorruptData:
                    continue
                if not namespace and not path and self._is_admin(name, key):
                    names.append(name)
            start = keys[-1] + b"\0"
        return names

    def _is_admin(self, name: str, grant_key: bytes) -> bool:
        """Whether the grant makes this user an admin that is not disabled.

        ``grant_key`` is the key of a grant for the whole cluster. Its value is read directly, not by
        `grants`, which the token of this authorizer may restrict.
        """
        try:
            rights = ROLES[decode_grant(self._state.stored_values[grant_key][VALUE_HEADER.size :])]
        except (CorruptData, UnsupportedFormat):
            return False
        return bool(rights & ADMIN) and self.is_active(f"user/{name}")


class _TransactionCheck:
    """Values that are computed once per transaction, because it may change thousands of keys."""

    def __init__(
        self, state: KeyValueState, principal: str, base: int, transaction: Transaction
    ) -> None:
        self.principal = principal
        self.base_rights = base
        self.transaction = transaction
        self.values_after = {
            changed.key: changed.value if isinstance(changed, Put) else None
            for changed in transaction.operations
        }
        self.pinned_keys = {
            changed.key
            for changed in transaction.compares
            if changed.kind != "exists" and changed.holds(state.get(changed.key))
        }
        """Keys whose present version is a condition of the transaction."""
        self._state = state

    def value_after(self, key: bytes) -> bytes | None:
        """Return the value of a key after the transaction."""
        if key in self.values_after:
            return self.values_after[key]
        stored = self._state.stored_values.get(key)
        return None if stored is None else stored[VALUE_HEADER.size :]


LEADER_ONLY_PREFIXES = (ACL_PREFIX, AUDIT_PREFIX, b"secret/")
"""Prefixes of keys that only the leader puts."""


def _not_allowed(principal: str, verb: str, key: bytes, needed: int) -> NotAllowed:
    """Return a refusal, which is the same for missing and forbidden keys.

    It contains only the requested key.
    """
    printable = repr(key[:KEY_SHOWN_BYTES])[1:]
    namespace, separator, log = key.removeprefix(NAMES).partition(b"\0")
    if key.startswith(NAMES) and separator:
        name, printable_namespace = (
            part[:KEY_SHOWN_BYTES].decode(errors="replace") for part in (log, namespace)
        )
        printable = f"log {name!r} of {printable_namespace}"
    return NotAllowed(f"{principal} may not {verb} {printable}: it needs {describe_rights(needed)}")


def _is_outdated(transaction: Transaction, key: bytes, stored: bytes) -> bool:
    """Whether the key changed after the transaction's condition on it was read."""
    version = VALUE_HEADER.unpack_from(stored)[0]
    return any(
        compare.key == key and compare.kind == "version" and compare.number < version
        for compare in transaction.compares
    )


def is_visible(parts: VisibleParts, key: bytes) -> bool:
    """Whether a key is in the visible parts."""
    if callable(parts):
        return parts(key)
    return any(start <= key < end for start, end in parts)


def _merge_ranges(key_ranges: list[tuple[bytes, bytes]]) -> KeyRanges:
    merged: list[tuple[bytes, bytes]] = []
    for start, end in sorted(key_ranges):
        if merged and start < merged[-1][1]:
            start = merged[-1][1]
        if start < end:
            merged.append((start, end))
    return tuple(merged)
