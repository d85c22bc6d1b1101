"""Issue tokens on the leader, and verify them on every metadata node.

An admin can request a token for any user. A user can request one for itself, for a day at most, and never
with more rights or a later end than the credentials of the request. A revocation changes a number in the
user's record, which ends tokens early. Otherwise a token ends by the node's steady clock
(`distributedlog/runtime/primitives/steady_clock.py`).
"""

from collections.abc import Callable
from math import inf

from ...runtime.interfaces.errors import InvalidRequest, NotAllowed, NotAuthenticated, NotReady
from ...runtime.interfaces.principals import LOCAL, Token, TokenScope, Welcome
from ...runtime.protocol.tokens import (
    CLOCK_TOLERANCE_S,
    DAYS_MAX,
    NAME_BYTES,
    OWN_TOKEN_S_MAX,
    encode_token,
    is_within,
    verify_token,
)
from ..model.rights import ADMIN
from ..state.kv_state import KeyValueState
from .authorizer import Authorizer
from .quorum_secrets import TOKENS_KEY, decode_token_secrets

DAY_S = 24 * 3600
VALID_S_MIN = 60


class TokenService:
    """The token service of one node."""

    def __init__(
        self,
        cluster_id: str,
        authorizer: Callable[[], Authorizer],
        time_s: Callable[[], float],
        secret_bytes: Callable[[int], bytes],
    ) -> None:
        """``authorizer`` returns the authorizer of the present state.

        ``time_s`` returns seconds since 1970.
        """
        self._cluster_id = cluster_id
        self._authorizer = authorizer
        self._secret_bytes = secret_bytes
        self.time_s = time_s

    def check_token(self, state: KeyValueState, proof: bytes) -> Welcome:
        """Verify a token, and return its principal.

        Raises:
            NotAuthenticated: The token is invalid, has ended or was revoked.
            NotReady: The state of this node may be too old to verify it.
        """
        secrets = token_secrets_of(state)

        def secret_of(number: int) -> bytes:
            if number > max(secrets, default=0):
                raise NotReady(
                    "the token has a newer key than this metadata node has, or belongs to no cluster"
                )
            if number not in secrets:
                raise NotAuthenticated(
                    "the key of the token is no longer valid after a rotation. Request a new token"
                )
            return secrets[number]

        token = verify_token(proof, secret_of)
        if token.cluster_id != self._cluster_id:
            raise NotAuthenticated("a token of another cluster")
        remaining_s = token.ends_s + CLOCK_TOLERANCE_S - self.time_s()
        if remaining_s <= 0:
            raise NotAuthenticated(
                f"the token of {token.principal} has ended", NotAuthenticated.ENDED
            )
        error = self._authorizer().token_error(token)
        if error is not None:
            if token.revoked_at_revision > state.index:
                raise NotReady("the user of the token does not exist on this metadata node yet")
            raise error
        return Welcome(token.principal, token=token, valid_s=remaining_s)

    def check_request(
        self,
        principal: str,
        presented_token: Token | None,
        user: str,
        valid_s: int,
        token_scope: TokenScope,
    ) -> None:
        """Check that a principal may request a token.

        Args:
            principal: The principal of the request.
            presented_token: The token of its connection, if it used one.
            user: The user of the new token, or "" for the principal itself.
            valid_s: The lifetime in seconds.
            token_scope: The restriction of the new token.

        Raises:
            NotAllowed: The principal may not request this token.
            InvalidRequest: The lifetime or the user is invalid.
        """
        authorizer = self._authorizer()
        if user:
            if presented_token is not None and presented_token.token_scope:
                raise NotAllowed(
                    f"a restricted token of {principal} may not request tokens for other users"
                )
            if not authorizer.cluster_rights(principal) & ADMIN:
                raise NotAllowed(
                    f"{principal} may not request tokens for other users: it needs admin"
                )
            valid_min_s, valid_max_s = VALID_S_MIN, DAYS_MAX * DAY_S
        else:
            if not principal.startswith("user/"):
                raise NotAllowed(f"{principal} is not a user, and cannot have tokens")
            presented_scope = () if presented_token is None else presented_token.token_scope
            if not is_within(token_scope, presented_scope):
                raise NotAllowed(
                    f"{principal} uses a token with fewer rights than the requested one"
                )
            valid_min_s, valid_max_s = VALID_S_MIN, OWN_TOKEN_S_MAX
        if not valid_min_s <= valid_s <= valid_max_s:
            raise InvalidRequest(
                f"a token must be valid for {valid_min_s} to {valid_max_s} seconds, not {valid_s}"
            )
        name = user or principal.removeprefix("user/")
        user_record = authorizer.user(name)
        if f"user/{name}" == LOCAL:
            raise InvalidRequest(f"{LOCAL} is the local owner of a cluster, and cannot have tokens")
        if user_record is None or user_record.disabled:
            raise InvalidRequest(f"there is no user {name}, or it is disabled: dlog user add")

    def make_token(
        self,
        state: KeyValueState,
        user: str,
        valid_s: int,
        token_scope: TokenScope,
        presented_token: Token | None = None,
    ) -> bytes:
        """Return a new token, after `check_request`.

        Raises:
            InvalidRequest: The token is too long.
            NotReady: There are no token secrets yet.
        """
        secrets = token_secrets_of(state)
        user_record = self._authorizer().user(user)
        if not secrets or user_record is None:
            raise NotReady("the secrets of tokens do not exist yet")
        ends_max_s = presented_token.ends_s if presented_token is not None else inf
        token = Token(
            user,
            ends_s=int(min(self.time_s() + valid_s, ends_max_s)),
            revoked_at_revision=user_record.tokens_valid_from,
            key=max(secrets),
            cluster_id=self._cluster_id,
            name=self._secret_bytes(NAME_BYTES),
            token_scope=token_scope,
        )
        try:
            return encode_token(token, secrets[token.key])
        except ValueError as error:
            raise InvalidRequest(str(error)) from None


def token_secrets_of(state: KeyValueState) -> dict[int, bytes]:
    """Return the token secrets by number, or none if none exist. Raises `CorruptData`."""
    item = state.get(TOKENS_KEY)
    return {} if item is None else decode_token_secrets(item.value)
