"""What somebody asks to be changed about who may do what, as a transaction (pure).

    ["mode", MODE, ADMIN]         ADMIN: a user who is made one with it, "" for none
    ["user", NAME]                make it; ["disable", NAME], ["enable", NAME], ["remove", NAME] with grants
    ["tokens", NAME]              those that were made up to now are taken no more
    ["refuse", NAME, SERIAL]      that certificate is taken no more, nor tokens that were made up to now
    ["token", NAME, WHAT]         one is made: a line of the audit (`token_service.py`); of the leader alone
    ["quota", NAMESPACE, KEYS, BYTES, LEDGERS]     in digits; "": as it is; all "": its own are none any more
    ["grant", NAME, ROLE, NAMESPACE, PATH]        ["revoke", NAME, NAMESPACE, PATH]
    ["mode", …, "force"], ["quota", …, "force"]    also if it lowers the protection, or stops writers
    ["rescue", NAME, WHO]         make it an admin, whoever there is; of a majority of nodes
    (`admin_recovery.py`)

The forms are in `client_messages.py`. The leader composes it from the state that it has applied, and proposes
nothing else until it is applied (`replica.py`): so what was judged by the rights of before stands before the
change in the log, and a change that was answered is obeyed by all that comes after it (H232, H233). With it
go a line of the audit, and a mark that bookies watch where something is taken away. Who may: an admin. While
there is none, anybody: an open cluster has to begin somewhere, and lets anybody do anything as it is. The
first change clears away what was put under these keys before they meant anything.
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
"""The number of words before `FORCE`, of the changes that take it as their last word."""
RECOVER_ADMIN = "rescue"
"""The kind that no client can ask for: `client_messages.py` has no form for it."""
USERS_MAX = 10_000
AUDIT_LINES_MAX = 10_000
"""Lines that are kept; the oldest go first."""


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
    """The change as a transaction. ``index``: where in the log it will stand.

    ``serial``: of the certificate that the asker has shown, "" for none.
    ``by_token``: the asker has shown a token.
    ``uses``: what namespaces use of the metadata, as far as it is counted.

    Raises `NotAllowed`, `ConfirmationRequired`, and `InvalidRequest` for an impossible change.
    """
    authorizer.refresh(state)
    admins = authorizer.admins() if state.authorization_revision else []
    kind, *arguments = change
    is_forced = len(arguments) > WORDS_BEFORE_FORCE.get(kind, len(arguments))
    change_arguments = arguments[:-1] if is_forced else arguments
    if admins and kind != RECOVER_ADMIN and not authorizer.cluster_rights(principal) & ADMIN:
        raise NotAllowed(
            f"{principal} may not say who may do what: it needs {describe_rights(ADMIN)}"
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
            "nobody who is anonymous asks for `required`, for it would shut itself out:"
            " an admin does, with credentials that are taken already"
        )
    line = AuditLine(now_ms, principal, address, kind, " ".join(word for word in arguments if word))
    for operation in audit_line_ops(state, line, index).operations:
        if isinstance(operation, Put):
            acl_change.put(operation.key, operation.value)
        else:
            acl_change.delete(operation.key)
    return acl_change.transaction()


def audit_line_ops(state: KeyValueState, line: AuditLine, index: int) -> Transaction:
    """That line, for the transaction that does what it tells of; the oldest go. ``index``: see `compose`."""
    line_keys = state.keys.between(AUDIT_PREFIX, prefix_end(AUDIT_PREFIX), AUDIT_LINES_MAX + 2)
    oldest = line_keys[: max(0, len(line_keys) + 1 - AUDIT_LINES_MAX)]
    return Transaction((), (*map(Delete, oldest), Put(audit_key(index), line.encode())))


class _RequesterCredentials(NamedTuple):
    """The credentials of the connection that asks for a change."""

    serial: str
    """Of its certificate; "" for none."""
    by_token: bool


class _AclChange:
    """One of them, as it comes together."""

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
        """Or over what was to be put."""
        self._deletes.pop(key, None)
        self._puts[key] = value

    def delete(self, key: bytes) -> None:
        """Also what was to be put."""
        self._puts.pop(key, None)
        self._deletes[key] = None

    def transaction(self) -> Transaction:
        """All of it."""
        return Transaction(
            (),
            (
                *(Delete(key) for key in self._deletes),
                *(Put(key, value) for key, value in self._puts.items()),
            ),
        )

    def delete_existing(self) -> None:
        """Whatever was put under these keys before they meant anything."""
        self._is_first_change = True
        for prefix in (ACL_PREFIX, AUDIT_PREFIX):
            existing_keys = self._state.keys.between(prefix, prefix_end(prefix), OPERATIONS_MAX)
            if len(existing_keys) > OPERATIONS_MAX // 4:
                raise InvalidRequest(
                    f"there are {len(existing_keys)} keys that begin with {prefix!r}, of before they meant"
                    " anything: delete them first"
                )
            for key in existing_keys:
                self.delete(key)

    # --- changes ----------------------------------------------------------------------------------

    def do_mode(self, mode: str, admin: str) -> None:
        """Whether what is judged is refused."""
        if admin:
            if self._user(admin) is None:
                self.do_user(admin)
            self.do_grant(admin, "admin", "", "")
        elif mode != "open" and not self._admins:
            raise InvalidRequest(
                "there is no admin yet, and without one nobody could be given a right any more:"
                " name one with it"
            )
        if self._authorizer.mode == "required" and mode != "required" and not self._is_first_change:
            self._require_confirmation(
                "requests without a right are refused now, and would no longer be"
            )
        self.put(MODE_KEY, encode_mode(mode))

    def do_user(self, name: str) -> None:
        """A new one, without any right."""
        if not is_name(name):
            raise InvalidRequest(f"no name for a user: {name!r:.80}")
        if self._user(name) is not None:
            raise InvalidRequest(f"there is a user {name} already")
        count = len(self._state.keys.between(USER_PREFIX, prefix_end(USER_PREFIX), USERS_MAX))
        if count >= USERS_MAX:
            raise InvalidRequest(f"there are {USERS_MAX} users: remove some")
        # Tokens of one who had that name before are none of his.
        self.put(user_key(name), User(self._now_ms, tokens_valid_from=self._index).encode())

    def do_disable(self, name: str) -> None:
        """It may do nothing; its grants stay."""
        self._require_other_admin(name)
        self._update_user(name, disabled=True)
        self._record_revocation(name)

    def do_enable(self, name: str) -> None:
        """It may again what its grants say."""
        self._update_user(name, disabled=False)

    def do_remove(self, name: str) -> None:
        """With all its grants."""
        self._require_user(name)
        self._require_other_admin(name)
        self.delete(user_key(name))
        prefix = grants_prefix(name)
        for key in self._state.keys.between(prefix, prefix_end(prefix), KEYS_PER_PAGE):
            self.delete(key)
        self._record_revocation(name)

    def do_tokens(self, name: str) -> None:
        """None that was made up to now."""
        if self._credentials.by_token:
            self._require_other_admin(name)  # after that the token could not return
        self._update_user(name, tokens_valid_from=self._index)
        self._record_revocation(name)

    def do_token(self, name: str, what: str) -> None:
        """It is written down."""
        self._require_user(name)

    def do_refuse(self, name: str, serial: str) -> None:
        """That certificate, and what may have been asked for with it."""
        user = self._require_user(name)
        if len(user.revoked_serials) >= SERIALS_MAX:
            raise InvalidRequest(f"{SERIALS_MAX} certificates of {name} are refused: disable it")
        refused = serial_of(serial)
        if self._credentials.by_token or self._credentials.serial in ("", refused):
            self._require_other_admin(name)  # otherwise the asker has shown another certificate
        # Whoever has the key may have asked for tokens with it.
        serials = (*user.revoked_serials, refused)
        self._update_user(name, revoked_serials=serials, tokens_valid_from=self._index)
        self._record_revocation(name)

    def do_grant(self, name: str, role: str, namespace: str, path: str) -> None:
        """One path has one role; a role of the cluster has no path."""
        if user_key(name) not in self._puts:
            self._require_user(name)
        if (role in CLUSTER_ROLES) != (not namespace and not path):
            raise InvalidRequest(f"{role} is given on {'the cluster' if namespace else 'a path'}")
        if "\0" in namespace or "\0" in path:
            raise InvalidRequest("a path holds no zero byte")
        key = grant_key(name, namespace, path)
        grants = self._authorizer.grants(name) if self._state.authorization_revision else ()
        if len(grants) >= GRANTS_PER_USER_MAX and key not in self._state.stored_values:
            raise InvalidRequest(f"{name} has {GRANTS_PER_USER_MAX} grants: give it a directory")
        if not namespace and role != "admin":
            self._require_other_admin(name)
        if key in self._state.stored_values and not self._is_first_change:
            self._record_revocation(name)  # it may be less than before
        self.put(key, encode_grant(role))

    def do_rescue(self, name: str, who: str) -> None:
        """Make it an admin, whatever it was; a certificate of its that was refused stays so."""
        user = self._user(name)
        if user is None:
            self.do_user(name)
        elif user.disabled:
            self.do_enable(name)
        self.do_grant(name, "admin", "", "")

    def do_revoke(self, name: str, namespace: str, path: str) -> None:
        """Take it away."""
        self._require_user(name)
        key = grant_key(name, namespace, path)
        if key not in self._state.stored_values:
            raise InvalidRequest(f"{name} has no grant on {namespace}/{path}")
        if not namespace and not path:
            self._require_other_admin(name)
        self.delete(key)
        self._record_revocation(name)

    def do_quota(self, namespace: str, *limits: str) -> None:
        """What a namespace may have; "": all that have no quota of their own."""
        if "\0" in namespace:
            raise InvalidRequest("the name of a namespace holds no zero byte")
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
                raise InvalidRequest(f"a quota is a number, not {limit!r:.40}")
        current_limits = (quota_before.keys, quota_before.size_bytes, quota_before.ledgers)
        numbers = (
            int(limit) if limit else old for limit, old in zip(limits, current_limits, strict=True)
        )
        quota_after = NamespaceQuota(*numbers)
        self._confirm_lower_quota(namespace, quota_before, quota_after)
        self.put(key, quota_after.encode())

    # --- what they share --------------------------------------------------------------------------

    def _require_confirmation(self, consequence: str) -> None:
        if not self._is_forced:
            raise ConfirmationRequired(consequence)

    def _effective_quota(self, namespace: str) -> NamespaceQuota:
        """Its stored quota, otherwise the one of all namespaces without their own."""
        for quota_namespace in dict.fromkeys((namespace, "")):
            item = None if self._is_first_change else self._state.get(quota_key(quota_namespace))
            if item is not None:
                return NamespaceQuota.decode(item.value)
        return NamespaceQuota()

    def _confirm_lower_quota(
        self, namespace: str, old_quota: NamespaceQuota, new_quota: NamespaceQuota
    ) -> None:
        """A limit that is lowered to 0, or to the present use, stops writers at their next segment."""
        namespaces = (
            [namespace]
            if namespace
            else [s for s in self._usage_by_namespace if not self._has_own_quota(s)]
        )
        for affected in namespaces or [""]:
            use = self._usage_by_namespace.get(affected, NamespaceUsage())
            whose = (
                f"namespace {affected}" if affected else "each namespace without a quota of its own"
            )
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
            raise NotAllowed(f"{name} is the last admin: make another one first (H238)")
