"""May this principal do that? (pure)

The leader judges each request of a client by the state that it has applied: a compare is a read (H234: a
transaction that does not hold tells what it compared), a range or a watch lies within one kind of keys and
one log, or is narrowed to the paths that its asker may see. `trust_records` has what users may;
`classes.Classes` what the keys are; the kinds of nodes have their rights here.

While `AuthorizationChange` was never applied nothing is asked here at all.
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
"""Of one user."""
KEYS_PER_PAGE = 1000

KeyRanges = tuple[tuple[bytes, bytes], ...]
"""Parts of a range, in order: from, and up to."""
VisibleParts = KeyRanges | Callable[[bytes], bool]
"""What somebody may see of a range; or of each key in it, whether."""


class Authorizer:
    """Of one node, over the state that it has applied."""

    def __init__(self, key_space: KeySpace, now_s: Callable[[], float] = lambda: 0.0) -> None:
        """``now_s``: this node's time, which no clock of anybody else moves."""
        self.mode = "open"
        self.revision = 0
        """Of the last change of trust that is known here."""
        self.rename_count = 0
        """Grows where a log has got another name: who may what with it goes by that."""
        self.report_denials: dict[tuple[str, str], int] = {}
        """In mode ``report``: principal and what it lacked, how often."""
        self._key_space = key_space
        self._now_s = now_s
        self._clock_baseline: tuple[int, float] | None = None
        """What the clock of the classes said when it was first moved here, and when that was, ms."""
        self._state = KeyValueState()
        self._users: dict[str, User | None] = {}
        self._grants: dict[str, tuple[tuple[str, str, int], ...]] = {}
        self._name_by_log: dict[bytes, bytes] | None = None
        """The names' keys by the logs' ids, while anything is judged; None: not read yet."""
        self._log_by_name: dict[bytes, bytes] = {}
        """The other way round."""
        self._names_revision = 0
        self._token_scope: TokenScope = ()
        self._request_owner = ""

    def narrowed(self, token: Token | None) -> "Authorizer":
        """The same, of what one may who came by that token; for a question or two at this moment."""
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
        """This is the state from now on; called before each question, cheap where nothing has changed."""
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
        assert self._name_by_log is not None, "they were read just now"
        return self._name_by_log

    def _set_name(self, key: bytes, log: bytes) -> None:
        """That log has this name now; b"": none has it any more."""
        assert self._name_by_log is not None
        previous_log = self._log_by_name.pop(key, b"")
        if previous_log != log and self._name_by_log.get(previous_log) == key:
            del self._name_by_log[previous_log]  # else it has another one by now
        if log:
            self._name_by_log[log] = key
            self._log_by_name[key] = log

    # --- what somebody has ------------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        """What is known of a user; None: no such user, or a record that cannot be read."""
        if name not in self._users:
            record = self._state.get(user_key(name))
            try:
                self._users[name] = User.decode(record.value) if record is not None else None
            except DistributedLogError:
                self._users[name] = User(disabled=True)
        return self._users[name]

    def grants(self, name: str) -> tuple[tuple[str, str, int], ...]:
        """A user's grants: namespace, path, rights."""
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
                    continue  # what cannot be read gives nothing
                decoded.append((namespace, path, rights))
            grants = tuple(decoded)
            if self._token_scope:
                grants = restrict_to_scope(grants, self._token_scope)
            self._grants[name] = grants
        return grants

    def is_active(self, principal: str, serial: str = "") -> bool:
        """Not disabled, nor the certificate that it comes with refused. What it may do is another thing."""
        kind, _, name = principal.partition("/")
        if kind != "user":
            return principal != ANONYMOUS
        user = self.user(name)
        return user is None or not (user.disabled or (serial and serial in user.revoked_serials))

    def why_no_token(self, token: Token) -> NotAuthenticated | None:
        """Why this one is taken no more, in no mode."""
        user = self.user(token.user)
        if user is None or user.disabled:
            return NotAuthenticated(f"{token.principal} was disabled, or removed")
        if user.tokens_valid_from != token.revoked_at_revision:
            return NotAuthenticated(f"the tokens of {token.principal} were revoked")
        return None

    def connection_error(
        self, principal: str, serial: str, token: Token | None = None
    ) -> NotAuthenticated | None:
        """Why this connection ends, where rights are refused: who came by it is nobody here any more."""
        if token is not None:
            return self.why_no_token(token)
        if self.mode != "required" or principal == ANONYMOUS or self.is_active(principal, serial):
            return None
        return NotAuthenticated(f"{principal}, or the certificate that it comes with, was disabled")

    def cluster_rights(self, principal: str) -> int:
        """Those that need no place."""
        kind, _, name = principal.partition("/")
        if not self.is_active(principal):
            return EVERYBODY
        rights_held = EVERYBODY | AUTHENTICATED
        if principal == LOCAL:
            return ALL  # its cluster is its own, and the nodes are, too
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
        """On a log of that name, there or not."""
        kind, _, name = principal.partition("/")
        if principal == LOCAL:
            return ALL_LOG_RIGHTS
        if kind == "proxy":
            return (
                READ | WRITE | MANAGE
            )  # a writer, a reader that many share; its clients it judges itself
        if kind == "bookie":
            return READ
        rights_held = 0
        if kind == "user" and self.is_active(principal):
            for granted_namespace, granted, rights in self.grants(name):
                if granted_namespace == namespace and granted_namespace and covers(granted, path):
                    rights_held |= rights & ALL_LOG_RIGHTS
        return rights_held

    def rights_on_log(self, principal: str, log: bytes, new: Mapping[bytes, bytes]) -> int:
        """``new``: names that the same transaction makes, by log id."""
        key = self._log_names.get(log) or new.get(log)
        if key is None:
            return self.rights(principal, "", "")
        return self.rights(principal, *self._decode_name_key(key))

    def rights_on_ledger(self, principal: str, ledger_id: int) -> int:
        """Of a ledger that is not there, none."""
        return self._rights_on_ledger_key(
            principal, self._key_space.ledgers_prefix + b"%016x" % ledger_id, None, {}
        )

    def is_closed(self, ledger_id: int) -> bool:
        """Is that ledger's end known for good? So is that of one whose record cannot be read."""
        key = self._key_space.ledgers_prefix + b"%016x" % ledger_id
        stored = self._state.stored_values.get(key)
        try:
            return stored is not None and self._key_space.is_closed(
                key, stored[VALUE_HEADER.size :]
            )
        except DistributedLogError:
            return True

    def is_bookie(self, principal: str, bookie_id: str) -> bool:
        """Is it the bookie with this id, by its cookie?"""
        return self._is_bookie(principal, bookie_id.encode())

    def _rights_on_ledger_key(
        self,
        principal: str,
        ledger_key: bytes,
        new_record: bytes | None,
        new_names: Mapping[bytes, bytes],
    ) -> int:
        """``made``: the record that the same transaction puts."""
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
            # It goes from one log to another by who has both; to none as it is deleted.
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
        """Is this bookie to take a place in that ledger?"""
        ledger = ledger_key.rpartition(b"/")[2]
        cookies = self._key_space.cookies_prefix
        for key in self._state.keys.between(cookies, prefix_end(cookies), KEYS_PER_PAGE):
            bookie = key.removeprefix(cookies)
            move = self._key_space.moves_prefix + bookie + b"/" + ledger
            # One that lost its disks has the cookie of before, too, until that id is given up.
            if move in self._state.stored_values and self._is_bookie(principal, bookie):
                return True
        return False

    def _is_bookie(self, principal: str, bookie: bytes, new_cookie: bytes | None = None) -> bool:
        """Is that bookie's cookie this principal's? ``made``: the cookie, where it is being made."""
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
        janitor_item = self._state.get(self._key_space.janitor_key)
        if janitor_item is None:
            return False
        lease = self._state.leases.get(janitor_item.lease)
        return lease is not None and lease.owner == principal

    def _decode_name_key(self, name_key: bytes) -> tuple[str, str]:
        """Namespace and log name; ("", "") of a key that names none."""
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
        """All that this principal has on a key with that place."""
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

    # --- questions --------------------------------------------------------------------------------

    def read_error(self, principal: str, key: bytes) -> NotAllowed | None:
        """Of one key, there or not."""
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
            return None  # nothing is there to be kept from anybody; who read a log learns that it was deleted
        return _not_allowed(principal, "read", key, key_class.read_rights)

    def _is_deleted(self, scope: KeyScope) -> bool:
        """Is it the place of a log that is no more, or of a ledger that is not?"""
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
        """Does it clear away what a deleted log has left under its id? Deleting goes over that twice."""
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
        """None: it may have all of it; or the parts of it that it may have."""
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

    def why_not_transact(self, principal: str, transaction: Transaction) -> NotAllowed | None:
        """Every compare and every operation."""
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
                    f"{principal} may not change {shown} in this way: with its rights, as the record is now"
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
        """Return the rights that allow this change of the value; 0 if the value is malformed."""
        stored = self._state.stored_values.get(key)
        stored_value = stored[VALUE_HEADER.size :] if stored is not None else None
        try:
            needed = rights_by_value(key, stored_value, new_value)
        except DistributedLogError:
            needed = 0
        if key_class.is_made_once and stored is not None and _is_outdated(transaction, key, stored):
            needed |= key_class.read_rights  # the change has no effect, and a reader may learn this
        return needed

    def _lease_error(self, principal: str, key_class: KeyClass, put: Put) -> NotAllowed | None:
        """Return the error if this put may not use its lease."""
        if not key_class.allows_lease:
            return _not_allowed(principal, "put under a lease", put.key, 0)
        lease = self._state.leases.get(put.lease)
        is_granted_later = put.lease >= self._state.next_lease  # maybe to another owner
        owner = self._request_owner or principal
        if is_granted_later or (lease is not None and lease.owner and lease.owner != owner):
            return NotAllowed(f"{principal} may not use lease {put.lease}: it is another's")
        return None

    def _is_well_formed(
        self,
        check: "_TransactionCheck",
        sufficient_rights: int,
        rights_held: int,
        key_class: KeyClass,
        operation: Put | Delete,
    ) -> bool:
        """Does it change that key as it may? ``by``: the rights of ``held`` that let it change it at all."""
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
        """Does no lease of somebody else's hold it?"""
        item = self._state.get(key)
        lease = None if item is None else self._state.leases.get(item.lease)
        return lease is None or lease.owner == principal

    def _is_clock_plausible(self, change: KeyChange) -> bool:
        """Does the clock go on, and no faster than this node has seen time pass?"""
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
        """Is its condition past on this key, or on one that is never made again? Nothing will come of it.

        Its asker is told so, as whoever comes too late, and not that it may not.
        """
        for compare in transaction.compares:
            item = self._state.get(compare.key)
            if compare.kind == "exists" or compare.holds(item):
                continue
            if compare.kind == "mod_revision":
                is_past = (
                    0 < compare.number <= self._state.revision
                )  # no change has that revision again
            elif item is None:
                is_past = compare.number > 0 and self._key_space.of(compare.key).is_made_once
            else:
                # Not a later version: the asker's next transactions may reach it before this is applied.
                is_final = compare.key == key or self._key_space.of(compare.key).is_made_once
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
        """May it write the ledger that this value names, if it names one that was not named there before?

        The bookie that repairs, and proxies, follow such a name with rights that its writer need not have.
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
        """What comes of a judgement in this mode: in ``report`` it is counted, and done all the same."""
        if error is not None and self._token_scope:
            error = NotAllowed(
                f"{error}, and the token is narrowed to {self._describe_token_scope()}",
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
        """What the token that was shown is for: "read of orders in ns"."""
        return ", ".join(
            f"{describe_rights(rights)} of {path or 'all'} in {namespace}"
            for namespace, path, rights in self._token_scope
        )

    def authorize_read(
        self, principal: str, start: bytes, end: bytes | None
    ) -> NotAllowed | VisibleParts | None:
        """A read or a watch, in this mode; ``end`` None: of one key."""
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
        """A change, in this mode. What says who may do what changes otherwise, in every mode."""
        for operation in transaction.operations:
            if operation.key.startswith(LEADER_ONLY_PREFIXES):
                return _not_allowed(principal, "write", operation.key, 0)
        if self.mode == "open":
            return None
        return self.apply_mode(principal, self.why_not_transact(principal, transaction))

    def audited_action(self, principal: str, transaction: Transaction) -> tuple[str, str] | None:
        """What a line of the audit tells of it, if one does: the act and its subject. Not what nodes do."""
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
        """What goes by no key, in this mode: any one of these rights of the cluster."""
        if self.mode == "open" or needed & self.cluster_rights(principal):
            return None
        error = NotAllowed(f"{principal} may not {what}: it needs {describe_rights(needed)}")
        return self.apply_mode(principal, error)

    def admins(self) -> list[str]:
        """The users, not disabled, who may say who may what."""
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

    def _is_admin(self, name: str, grant: bytes) -> bool:
        """Is that so by itself? Not asked by `grants`: these are a narrowed asker's, where there is one."""
        try:
            rights = ROLES[decode_grant(self._state.stored_values[grant][VALUE_HEADER.size :])]
        except (CorruptData, UnsupportedFormat):
            return False
        return bool(rights & ADMIN) and self.is_active(f"user/{name}")


class _TransactionCheck:
    """A transaction that is checked: computed once, for it may change some thousand keys."""

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
        """Keys whose present version is a condition of it."""
        self._state = state

    def value_after(self, key: bytes) -> bytes | None:
        """The value of a key after all that is done at once."""
        if key in self.values_after:
            return self.values_after[key]
        stored = self._state.stored_values.get(key)
        return None if stored is None else stored[VALUE_HEADER.size :]


LEADER_ONLY_PREFIXES = (ACL_PREFIX, AUDIT_PREFIX, b"secret/")
"""Put by the leader itself alone."""


def _not_allowed(principal: str, verb: str, key: bytes, needed: int) -> NotAllowed:
    """The same for what is absent and what is forbidden; the key is the asker's own word."""
    printable = repr(key[:KEY_SHOWN_BYTES])[1:]
    namespace, separator, log = key.removeprefix(NAMES).partition(b"\0")
    if key.startswith(NAMES) and separator:
        name, printable_namespace = (
            part[:KEY_SHOWN_BYTES].decode(errors="replace") for part in (log, namespace)
        )
        printable = f"log {name!r} of {printable_namespace}"
    return NotAllowed(f"{principal} may not {verb} {printable}: it needs {describe_rights(needed)}")


def _is_outdated(transaction: Transaction, key: bytes, stored: bytes) -> bool:
    """Was that key changed since the transaction's condition on it was read?"""
    version = VALUE_HEADER.unpack_from(stored)[0]
    return any(
        compare.key == key and compare.kind == "version" and compare.number < version
        for compare in transaction.compares
    )


def is_visible(parts: VisibleParts, key: bytes) -> bool:
    """Is it what somebody may see?"""
    if callable(parts):
        return parts(key)
    return any(start <= key < end for start, end in parts)


def _merge_ranges(key_ranges: list[tuple[bytes, bytes]]) -> KeyRanges:
    """In order, none overlapping another."""
    merged: list[tuple[bytes, bytes]] = []
    for start, end in sorted(key_ranges):
        if merged and start < merged[-1][1]:
            start = merged[-1][1]
        if start < end:
            merged.append((start, end))
    return tuple(merged)
