"""Users, grants and the authorization mode in memory, from the keys below ``trust/`` (pure).

For nodes that are not the leader and authorize users themselves, which are proxies. The caller passes each
changed key in order. The methods are those of `Authorizer`, with the same results for the same keys. An
unreadable key gives no rights: the mode is then "required", or the user is disabled.
"""

from collections.abc import Mapping
from contextlib import suppress

from ...runtime.interfaces.errors import CorruptData, NotAuthenticated, UnsupportedFormat
from ...runtime.interfaces.principals import ANONYMOUS, LOCAL, USER, Token, principal_kind
from ...runtime.protocol.tokens import covers
from ..model.acl_records import (
    GRANT_PREFIX,
    MODE_KEY,
    USER_PREFIX,
    User,
    decode_grant,
    decode_mode,
    grant_of,
)
from ..model.rights import ADMIN, ALL_LOG_RIGHTS, OPERATOR, ROLES

ALL_USERS = ""
"""Returned by `AclCache.update` if a change affects all users."""
REQUIRED = "required"


class AclCache:
    """Users by name, their grants, and the mode."""

    def __init__(self, mode: str = "open") -> None:
        self.mode = mode
        """One of `acl_records.MODES`."""
        self._users: dict[str, User] = {}
        self._grants: dict[str, dict[tuple[str, str], int]] = {}
        """Rights by user, and then by namespace and path. Those on the cluster are at ("", "")."""

    # --- updates ----------------------------------------------------------------------------------

    def update(self, key: bytes, value: bytes | None) -> str | None:
        """Apply a key that was put, or deleted if ``value`` is None.

        Returns:
            The affected user, `ALL_USERS`, or None.
        """
        if key == MODE_KEY:
            try:
                self.mode = decode_mode(value)
            except (CorruptData, UnsupportedFormat):
                self.mode = REQUIRED
            return ALL_USERS
        try:
            if key.startswith(USER_PREFIX):
                return self._update_user(key.removeprefix(USER_PREFIX).decode(), value)
            if key.startswith(GRANT_PREFIX):
                return self._update_grant(*grant_of(key), value)
        except (UnicodeDecodeError, CorruptData):
            return None  # a key without a valid user name gives no rights
        return None

    def _update_user(self, name: str, value: bytes | None) -> str:
        if value is None:
            self._users.pop(name, None)
            return name
        try:
            self._users[name] = User.decode(value)
        except (CorruptData, UnsupportedFormat):
            self._users[name] = User(disabled=True)
        return name

    def _update_grant(self, name: str, namespace: str, path: str, value: bytes | None) -> str:
        grants = self._grants.setdefault(name, {})
        grants.pop((namespace, path), None)
        if value is not None:
            with suppress(CorruptData, UnsupportedFormat):
                grants[namespace, path] = ROLES[decode_grant(value)]
        if not grants:
            del self._grants[name]
        return name

    # --- queries ----------------------------------------------------------------------------------

    def user(self, principal: str) -> User | None:
        """Return the record of a user. None if there is none, or the principal is not a user."""
        kind, _, name = principal.partition("/")
        return self._users.get(name) if kind == USER else None

    def is_active(self, principal: str, serial: str = "") -> bool:
        """Whether the user and its certificate are not disabled. Rights are a separate question."""
        user = self.user(principal)
        if user is None:
            return principal != ANONYMOUS
        return not (user.disabled or (serial and serial in user.revoked_serials))

    def token_error(self, token: Token) -> NotAuthenticated | None:
        """Return why the token is not accepted, in any mode, or None."""
        user = self.user(token.principal)
        if user is None or user.disabled:
            return NotAuthenticated(f"{token.principal} was disabled or removed")
        if user.tokens_valid_from != token.revoked_at_revision:
            return NotAuthenticated(f"the tokens of {token.principal} were revoked")
        return None

    def rights(self, principal: str, namespace: str, name: str) -> int:
        """Return a user's rights on a log of that name, whether it exists or not. Nodes have none here."""
        if principal == LOCAL:
            return ALL_LOG_RIGHTS
        rights_held = 0
        for (granted_namespace, path), rights in self._grants_of(principal).items():
            if granted_namespace == namespace and granted_namespace and covers(path, name):
                rights_held |= rights & ALL_LOG_RIGHTS
        return rights_held

    def cluster_rights(self, principal: str) -> int:
        """Return which of `OPERATOR` and `ADMIN` the principal has."""
        if principal == LOCAL and self.is_active(principal):
            return OPERATOR | ADMIN
        return self._grants_of(principal).get(("", ""), 0) & (OPERATOR | ADMIN)

    def paths(self, principal: str, namespace: str) -> dict[str, int]:
        """Return the paths of a namespace on which the principal has grants, with the rights."""
        if principal == LOCAL:
            return {"": ALL_LOG_RIGHTS}
        return {
            path: rights & ALL_LOG_RIGHTS
            for (granted_namespace, path), rights in self._grants_of(principal).items()
            if granted_namespace == namespace and granted_namespace
        }

    def _grants_of(self, principal: str) -> Mapping[tuple[str, str], int]:
        name = principal.partition("/")[2]
        if principal_kind(principal) != USER or not self.is_active(principal):
            return {}
        return self._grants.get(name, {})
