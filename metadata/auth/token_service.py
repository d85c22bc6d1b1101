"""Makes tokens, at the leader, and says of one who has it, at every metadata node.

A token is made for somebody by an admin, or asked for by somebody for himself: then for a day at most, and
never wider or longer than what he came by. What ends it early is a number in its user's record, which each
revocation changes; when it ends by itself, this node's steady clock says
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
    """Of one node."""

    def __init__(
        self,
        cluster_id: str,
        authorizer: Callable[[], Authorizer],
        time_s: Callable[[], float],
        secret_bytes: Callable[[int], bytes],
    ) -> None:
        """``judge``: by the state as it is now. ``time_s``: seconds since 1970."""
        self._cluster_id = cluster_id
        self._authorizer = authorizer
        self._secret_bytes = secret_bytes
        self.time_s = time_s

    def welcome(self, state: KeyValueState, proof: bytes) -> Welcome:
        """Who shows this token. Raises `NotAuthenticated`; `NotReady` where this node may not know it yet."""
        secrets = token_secrets_of(state)

        def secret_of(number: int) -> bytes:
            if number > max(secrets, default=0):
                raise NotReady(
                    "a token of a newer key than this metadata node knows, or of no cluster"
                )
            if number not in secrets:
                raise NotAuthenticated("a token whose key was rotated away: ask for another")
            return secrets[number]

        token = verify_token(proof, secret_of)
        if token.cluster_id != self._cluster_id:
            raise NotAuthenticated("a token of another cluster")
        remaining_s = token.ends_s + CLOCK_TOLERANCE_S - self.time_s()
        if remaining_s <= 0:
            raise NotAuthenticated(
                f"the token of {token.principal} has ended", NotAuthenticated.ENDED
            )
        error = self._authorizer().why_no_token(token)
        if error is not None:
            if token.revoked_at_revision > state.index:
                raise NotReady("a token of a user whom this metadata node does not know yet")
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
        """May this principal have such a token made? ``user`` "": for itself. Raises `NotAllowed`,
        `InvalidRequest`."""
        authorizer = self._authorizer()
        if user:
            if presented_token is not None and presented_token.token_scope:
                raise NotAllowed(f"a narrowed token of {principal} makes no tokens for others")
            if not authorizer.cluster_rights(principal) & ADMIN:
                raise NotAllowed(f"{principal} makes no tokens for others: it needs admin")
            valid_min_s, valid_max_s = VALID_S_MIN, DAYS_MAX * DAY_S
        else:
            if not principal.startswith("user/"):
                raise NotAllowed(f"{principal} is no user, and has no tokens")
            presented_scope = () if presented_token is None else presented_token.token_scope
            if not is_within(token_scope, presented_scope):
                raise NotAllowed(f"{principal} came by a token that is narrower than that")
            valid_min_s, valid_max_s = VALID_S_MIN, OWN_TOKEN_S_MAX
        if not valid_min_s <= valid_s <= valid_max_s:
            raise InvalidRequest(
                f"a token is for {valid_min_s} to {valid_max_s} seconds, not {valid_s}"
            )
        name = user or principal.removeprefix("user/")
        user_record = authorizer.user(name)
        if f"user/{name}" == LOCAL:
            raise InvalidRequest(f"{LOCAL} owns clusters on its own machine, and has no tokens")
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
        """The token, after `check_request`. Raises `InvalidRequest`; `NotReady` before secrets are drawn."""
        secrets = token_secrets_of(state)
        user_record = self._authorizer().user(user)
        if not secrets or user_record is None:
            raise NotReady("the secrets of tokens are not drawn yet")
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
    """T by its number; none: not drawn yet. Raises `CorruptData`."""
    item = state.get(TOKENS_KEY)
    return {} if item is None else decode_token_secrets(item.value)
