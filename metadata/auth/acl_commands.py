"""Changes of users, grants, quotas and the authorization mode as transactions (pure).

The words of a change::

    ["mode", MODE, ADMIN]         ADMIN is a user who becomes admin in the same change, or ""
    ["user", NAME]                create; ["disable", NAME], ["enable", NAME], ["remove", NAME] with grants
    ["tokens", NAME]              revoke all existing tokens
    ["refuse", NAME, SERIAL]      refuse a certificate, and revoke all existing tokens
    ["token", NAME, DETAIL]       record an issued token in the audit log (`token_service.py`); leader only
    ["quota", NAMESPACE, KEYS, BYTES, LEDGERS]     decimal; "": unchanged; all "": delete the quota
    ["grant", NAME, ROLE, NAMESPACE, PATH]        ["revoke", NAME, NAMESPACE, PATH]
    ["mode", …, "force"], ["quota", …, "force"]    although it lowers the protection, or stops writers
    ["rescue", NAME, NODES]       make a user admin for a majority of nodes (`admin_recovery.py`)

The forms are in `client_messages.py`. The leader composes the transaction from the state that it has
applied, and proposes no other command until the change is applied (`replica.py`). So requests that were
authorized by the old rights are before the change in the log, and all later requests are authorized by the
new ones (H232, H233).

The transaction also has an audit record, and, if rights are revoked, a key that bookies watch. Only an
admin may make changes. While there is none, any client may, because a cluster in mode "open" allows
everything anyway. The first change deletes all keys that were put under these prefixes before they had a
meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...runtime.interfaces.errors import ConfirmationRequired, InvalidRequest, NotAllowed
from ...runtime.interfaces.principals import ANONYMOUS, serial_of
from ..model.acl_records import (
    ACL_PREFIX,
    AUDIT_PREFIX,
    MODE_KEY,
    SERIALS_MAX,
    USER_PREFIX,
    AuditLine,
    NamespaceQuota,
    User,
    audit_key,
    encode_grant,
    encode_mode,
    encode_revoked,
    grant_key,
    grants_prefix,
    quota_key,
    revoked_key,
    user_key,
)
from ..model.interface import prefix_end
from ..model.request_identity import is_name
from ..model.rights import ADMIN, CLUSTER_ROLES, describe_rights
from ..model.transaction import NUMBER_MAX, OPERATIONS_MAX, Delete, Put, Transaction
from ..state.kv_state import KeyValueState
from .authorizer import GRANTS_PER_USER_MAX, KEYS_PER_PAGE, Authorizer
from .namespace_usage import NamespaceUsage

WORDS_BEFORE_FORCE = {"mode": 2, "quota": 4}
"""The number of words before `FORCE`, for the changes that accept it as their last word."""
RECOVER_ADMIN = "rescue"
"""A kind that clients cannot request, because `client_messages.py` has no form for it."""
USERS_MAX = 10_000
AUDIT_LINES_MAX = 10_000
"""Number of audit records that are kept. The oldest are deleted first."""


def compose(
    authorizer: Authorizer,
    state: KeyValueState,
    change: Sequence[str],
    *,
    principal: str,
    address: str,
    now_ms: int,
    index: int,
    serial: str = "",
    by_token: bool = False,
    usage_by_namespace: Mapping[str, NamespaceUsage] = {},
) -> Transaction:
    """Return a change as a transaction.

    Args:
        authorizer: The authorizer of the leader.
        state: The state that the leader has applied.
        change: The words of the change.
        principal: The principal of the request.
        address: Its address, for the audit log.
        now_ms: The present time, in ms since the epoch.
        index: The log index that the change will have.
        serial: The serial number of the requester's certificate, or "".
        by_token: Whether the requester presented a token.
        usage_by_namespace: The counted usage of namespaces.

    Raises:
        NotAllowed: The principal may not make the change.
        ConfirmationRequired: The change lowers the protection or stops writers, and is not forced.
        InvalidRequest: The change is impossible.
    """
    authorizer.refresh(state)
    admins = authorizer.admins() if state.authorization_revision else []
    kind, *arguments = change
    is_forced = len(arguments) > WORDS_BEFORE_FORCE.get(kind, len(arguments))
    change_arguments = arguments[:-1] if is_forced else arguments
    if admins and kind != RECOVER_ADMIN and not authorizer.cluster_rights(principal) & ADMIN:
        raise NotAllowed(
            f"{principal} may not change authorization: it needs {describe_rights(ADMIN)}"
        )
    acl_change = _AclChange(
        authorizer,
        state,
        admins,
        now_ms,
        index,
        _RequesterCredentials(serial, by_token),
        is_forced=is_forced,
        usage_by_namespace=usage_by_namespace,
    )
    if not state.authorization_revision:
        acl_change.delete_existing()
    getattr(acl_change, f"do_{kind}")(*change_arguments)
    if kind == "mode" and arguments[0] == "required" and principal == ANONYMOUS:
        raise NotAllowed(
            "an anonymous client cannot set the mode `required`, because it would exclude itself."
            " Use the credentials of an admin"
        )
    line = AuditLine(now_ms, principal, address, kind, " ".join(word for word in arguments if word))
    for operation in audit_line_ops(state, line, index).operations:
        if isinstance(operation, Put):
            acl_change.put(operation.key, operation.value)
        else:
            acl_change.delete(operation.key)
    return acl_change.transaction()


def audit_line_ops(state: KeyValueState, line: AuditLine, index: int) -> Transaction:
    """Return the operations for an audit record, to be added to the transaction of the action.

    They also delete the oldest records. ``index`` is that of `compose`.
    """
    line_keys = state.keys.between(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX), AUDIT_LINES_MAX + 2)
    oldest = line_keys[: max(0, len(line_keys) + 1 - AUDIT_LINES_MAX)]
    return Transaction((), (*map(Delete, oldest), Put(audit_key(index), line.encode())))


class _RequesterCredentials(NamedTuple):
    serial: str
    """Serial number of its certificate, or ""."""
    by_token: bool


class _AclChange:
    """Collects the operations of one change."""

    def __init__(
        self,
        authorizer: Authorizer,
        state: KeyValueState,
        admins: Sequence[str],
        now_ms: int,
        index: int,
        credentials: "_RequesterCredentials",
        *,
        is_forced: bool,
        usage_by_namespace: Mapping[str, NamespaceUsage],
    ) -> None:
        self._is_forced = is_forced
        self._usage_by_namespace = usage_by_namespace
        self._credentials = credentials
        self._authorizer = authorizer
        self._state = state
        self._admins = admins
        self._now_ms = now_ms
        self._index = index
        self._puts: dict[bytes, bytes] = {}
        self._deletes: dict[bytes, None] = {}
        self._is_first_change = False

    def put(self, key: bytes, value: bytes) -> None:
        """Add a put, which replaces an earlier one of the same key."""
        self._deletes.pop(key, None)
        self._puts[key] = value

    def delete(self, key: bytes) -> None:
        """Add a deletion, which replaces an earlier put of the same key."""
        self._puts.pop(key, None)
        self._deletes[key] = None

    def transaction(self) -> Transaction:
        """Return all operations as a transaction."""
        return Transaction(
            (),
            (
                *(Delete(key) for key in self._deletes),
                *(Put(key, value) for key, value in self._puts.items()),
            ),
        )

    def delete_existing(self) -> None:
        """Delete all keys that were put under these prefixes before they had a meaning."""
        self._is_first_change = True
        for prefix in (ACL_PREFIX, AUDIT_PREFIX):
            existing_keys = self._state.keys.between(prefix, prefix_end(prefix), OPERATIONS_MAX)
            if len(existing_keys) > OPERATIONS_MAX // 4:
                raise InvalidRequest(
                    f"{len(existing_keys)} keys with the prefix {prefix!r} exist, which had no meaning"
                    " until now. Delete them first"
                )
            for key in existing_keys:
                self.delete(key)

    # --- changes ----------------------------------------------------------------------------------

    def do_mode(self, mode: str, admin: str) -> None:
        """Set the authorization mode."""
        if admin:
            if self._user(admin) is None:
                self.do_user(admin)
            self.do_grant(admin, "admin", "", "")
        elif mode != "open" and not self._admins:
            raise InvalidRequest(
                "there is no admin yet, and without one no right could be granted later."
                " Name an admin in this change"
            )
        if self._authorizer.mode == "required" and mode != "required" and not self._is_first_change:
            self._require_confirmation(
                "requests without a right are refused now, and would be executed after the change"
            )
        self.put(MODE_KEY, encode_mode(mode))

    def do_user(self, name: str) -> None:
        """Create a user without rights."""
        if not is_name(name):
            raise InvalidRequest(f"not a valid user name: {name!r:.80}")
        if self._user(name) is not None:
            raise InvalidRequest(f"there is a user {name} already")
        count = len(self._state.keys.between(USER_PREFIX, prefix_end(USER_PREFIX), USERS_MAX))
        if count >= USERS_MAX:
            raise InvalidRequest(f"there are {USERS_MAX} users already. Remove some")
        # Tokens of an earlier user with this name are not valid for the new one.
        self.put(user_key(name), User(self._now_ms, tokens_valid_from=self._index).encode())

    def do_disable(self, name: str) -> None:
        """Disable a user. Its grants remain."""
        self._require_other_admin(name)
        self._update_user(name, disabled=True)
        self._record_revocation(name)

    def do_enable(self, name: str) -> None:
        """Enable a user with its grants."""
        self._update_user(name, disabled=False)

    def do_remove(self, name: str) -> None:
        """Delete a user and its grants."""
        self._require_user(name)
        self._require_other_admin(name)
        self.delete(user_key(name))
        prefix = grants_prefix(name)
        for key in self._state.keys.between(prefix, prefix_end(prefix), KEYS_PER_PAGE):
            self.delete(key)
        self._record_revocation(name)

    def do_tokens(self, name: str) -> None:
        """Revoke all existing tokens of a user."""
        if self._credentials.by_token:
            self._require_other_admin(name)  # the token could not undo this change
        self._update_user(name, tokens_valid_from=self._index)
        self._record_revocation(name)

    def do_token(self, name: str, what: str) -> None:
        """Record an issued token, without a further effect."""
        self._require_user(name)

    def do_refuse(self, name: str, serial: str) -> None:
        """Refuse a certificate, and revoke all tokens that may have been requested with it."""
        user = self._require_user(name)
        if len(user.revoked_serials) >= SERIALS_MAX:
            raise InvalidRequest(
                f"{SERIALS_MAX} certificates of {name} are refused already. Disable the user instead"
            )
        refused = serial_of(serial)
        if self._credentials.by_token or self._credentials.serial in ("", refused):
            # otherwise the requester has presented another certificate
            self._require_other_admin(name)
        # Anyone with the private key may have requested tokens.
        serials = (*user.revoked_serials, refused)
        self._update_user(name, revoked_serials=serials, tokens_valid_from=self._index)
        self._record_revocation(name)

    def do_grant(self, name: str, role: str, namespace: str, path: str) -> None:
        """Set the role of a user on a path, or a cluster role without a path. A path has one role."""
        if user_key(name) not in self._puts:
            self._require_user(name)
        if (role in CLUSTER_ROLES) != (not namespace and not path):
            raise InvalidRequest(
                f"{role} can be granted only on {'the cluster' if namespace else 'a path'}"
            )
        if "\0" in namespace or "\0" in path:
            raise InvalidRequest("a path must not contain a zero byte")
        key = grant_key(name, namespace, path)
        grants = self._authorizer.grants(name) if self._state.authorization_revision else ()
        if len(grants) >= GRANTS_PER_USER_MAX and key not in self._state.stored_values:
            raise InvalidRequest(
                f"{name} has {GRANTS_PER_USER_MAX} grants already. Grant a directory instead"
            )
        if not namespace and role != "admin":
            self._require_other_admin(name)
        if key in self._state.stored_values and not self._is_first_change:
            self._record_revocation(name)  # the new role may have fewer rights
        self.put(key, encode_grant(role))

    def do_rescue(self, name: str, who: str) -> None:
        """Make a user admin in any case. A refused certificate of it stays refused."""
        user = self._user(name)
        if user is None:
            self.do_user(name)
        elif user.disabled:
            self.do_enable(name)
        self.do_grant(name, "admin", "", "")

    def do_revoke(self, name: str, namespace: str, path: str) -> None:
        """Revoke a grant."""
        self._require_user(name)
        key = grant_key(name, namespace, path)
        if key not in self._state.stored_values:
            raise InvalidRequest(f"{name} has no grant on {namespace}/{path}")
        if not namespace and not path:
            self._require_other_admin(name)
        self.delete(key)
        self._record_revocation(name)

    def do_quota(self, namespace: str, *limits: str) -> None:
        """Set the quota of a namespace, or with "" the default of namespaces without a quota."""
        if "\0" in namespace:
            raise InvalidRequest("the name of a namespace must not contain a zero byte")
        key = quota_key(namespace)
        quota_before, default = self._effective_quota(namespace), self._effective_quota("")
        if not any(limits):
            self._confirm_lower_quota(
                namespace, quota_before, default if namespace else NamespaceQuota()
            )
            self.delete(key)
            return
        for limit in limits:
            if limit and not (limit.isascii() and limit.isdigit() and int(limit) <= NUMBER_MAX):
                raise InvalidRequest(f"a quota must be a number, not {limit!r:.40}")
        current_limits = (quota_before.keys, quota_before.size_bytes, quota_before.ledgers)
        numbers = (
            int(limit) if limit else old for limit, old in zip(limits, current_limits, strict=True)
        )
        quota_after = NamespaceQuota(*numbers)
        self._confirm_lower_quota(namespace, quota_before, quota_after)
        self.put(key, quota_after.encode())

    # --- shared helpers ---------------------------------------------------------------------------

    def _require_confirmation(self, consequence: str) -> None:
        if not self._is_forced:
            raise ConfirmationRequired(consequence)

    def _effective_quota(self, namespace: str) -> NamespaceQuota:
        """Return the stored quota of the namespace, otherwise the default."""
        for quota_namespace in dict.fromkeys((namespace, "")):
            item = None if self._is_first_change else self._state.get(quota_key(quota_namespace))
            if item is not None:
                return NamespaceQuota.decode(item.value)
        return NamespaceQuota()

    def _confirm_lower_quota(
        self, namespace: str, old_quota: NamespaceQuota, new_quota: NamespaceQuota
    ) -> None:
        """Require confirmation for a limit that is lowered to 0, or to the present use.

        It would stop writers at their next segment.
        """
        namespaces = (
            [namespace]
            if namespace
            else [s for s in self._usage_by_namespace if not self._has_own_quota(s)]
        )
        for affected in namespaces or [""]:
            use = self._usage_by_namespace.get(affected, NamespaceUsage())
            whose = f"namespace {affected}" if affected else "each namespace without its own quota"
            for what, old, new, used in (
                ("keys", old_quota.keys, new_quota.keys, use.keys),
                ("bytes", old_quota.size_bytes, new_quota.size_bytes, use.size_bytes),
                ("ledgers", old_quota.ledgers, new_quota.ledgers, use.ledgers),
            ):
                if new < old and new <= used:
                    self._require_confirmation(
                        f"{whose} uses {used} {what} of {old}; with a limit of {new} its writers stop at "
                        "their"
                        " next segment"
                    )

    def _has_own_quota(self, namespace: str) -> bool:
        return not self._is_first_change and quota_key(namespace) in self._state.stored_values

    def _user(self, name: str) -> User | None:
        return None if self._is_first_change else self._authorizer.user(name)

    def _require_user(self, name: str) -> User:
        user = self._user(name)
        if user is None:
            raise InvalidRequest(f"there is no user {name}")
        return user

    def _update_user(self, name: str, **changes: Any) -> None:
        self.put(user_key(name), replace(self._require_user(name), **changes).encode())

    def _record_revocation(self, name: str) -> None:
        self.put(revoked_key(f"user/{name}"), encode_revoked(self._now_ms))

    def _require_other_admin(self, name: str) -> None:
        if list(self._admins) == [name]:
            raise NotAllowed(f"{name} is the last admin. Make another user admin first (H238)")
