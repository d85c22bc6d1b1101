"""Check that the metadata service shows clients no keys, names or capabilities of others (T4).

Each answer is checked against the independent authorizer when it leaves a node: items of reads and ranges,
current values of failed conditions, watch events, capabilities, session credentials, tokens and error texts.
An answer is correct if it was permitted at any time since its request arrived.
"""

import re
from collections.abc import Callable

from ....metadata.protocol.client_messages import (
    AuthorizationRequest,
    RangeRequest,
    decode_authorization_report,
    decode_events,
    decode_item,
    decode_outcome,
    decode_page,
)
from ....metadata.protocol.token_messages import decode_authorization_request
from ....runtime.interfaces.principals import TokenScope
from ....runtime.protocol.capabilities import CapabilityKind
from ....runtime.protocol.capability_messages import (
    BookieKeysRequest,
    CapabilityReply,
    decode_request,
)
from ....runtime.protocol.frames import Op, error_from
from ....runtime.protocol.tokens import PREFIX, read_token
from ...verify.checks.independent_authorizer import IndependentAuthorizer, Policy
from .connection_observer import ConnectionOracle, ObservedConnection, ObservedRequest, SessionFrame

SECRET = b"secret/"


class DisclosureOracle(ConnectionOracle):
    """A `ConnectionOracle` of the answers of metadata nodes."""

    def __init__(self, reference: IndependentAuthorizer, fail: Callable[[str], None]) -> None:
        self._reference = reference
        self._fail = fail
        self.checked_answers = 0
        """Number of checks while authorization was enforced."""
        self.given_capabilities: dict[tuple[str, bytes], int] = {}
        """Maps a machine and a capability to the newest `IndependentAuthorizer.revision` at which it was
        given."""

    def on_answer(self, connection: ObservedConnection, answer: SessionFrame) -> None:
        """Check an answer of a metadata node; see `ConnectionOracle`."""
        request, op, status, body = answer.request, answer.op, answer.status, answer.body
        if not connection.node.startswith("m"):
            return
        if op == Op.META_WATCH_EVENTS and not status:
            for event in decode_events(body).events:
                # Permitted also if the right was granted after the change: a user whose right returns
                # receives the missed changes.
                self._check_item(
                    connection, event.item.key, event.item.mod_revision, "received a watch event of"
                )
        elif op != Op.REPLY or request is None:
            return
        elif status:
            self._check_error_text(connection, request, str(error_from(status, body)))
        elif request.op == Op.META_READ:
            if RangeRequest.decode(request.body).end is None:
                items = [decode_item(body)[1]]
            else:
                items = [*decode_page(body)[1].items]
            for item in items:
                if item is not None:
                    self._check_item(connection, item.key, request.revision, "received")
        elif request.op == Op.META_TRANSACT:
            outcome = decode_outcome(body)[1]
            if outcome.error is not None:
                self._check_error_text(connection, request, str(outcome.error))
            for item in outcome.transaction.current if outcome.transaction is not None else ():
                if item is not None:
                    self._check_item(
                        connection, item.key, request.revision, "received by a condition"
                    )
        elif request.op == Op.META_CAPS:
            self._check_capabilities(connection, request, body)
        elif request.op == Op.META_TRUST:
            self._check_trust(connection, request, bytes(body))
        elif request.op == Op.META_SAVE and not self._was_allowed_since(
            connection, request.revision, _is_admin
        ):
            self._fail(f"T4: {self._describe_client(connection)} received a backup")

    # --- checks of contents --------------------------------------------------------------------------

    def _check_item(
        self, connection: ObservedConnection, key: bytes, revision: int, how: str
    ) -> None:
        if key.startswith(SECRET):
            self._fail(f"T4: {self._describe_client(connection)} {how} a secret, {key!r}")
            return

        def may(policy: Policy, user: str, token_scope: TokenScope) -> bool:
            narrowed = policy.narrowed(token_scope)
            return self._reference.may_read(narrowed, connection.principal, key)

        if not self._was_allowed_since(connection, revision, may):
            self._fail(
                f"T4: {self._describe_client(connection)} {how} {key!r} of revision {revision}"
            )

    def _check_capabilities(
        self, connection: ObservedConnection, request: ObservedRequest, body: memoryview
    ) -> None:
        question = decode_request(request.body)
        if isinstance(question, BookieKeysRequest):
            self._fail(
                f"T1: {self._describe_client(connection)} received the keys of {question.bookie_id}"
            )
            return
        answer = CapabilityReply.decode(body)
        if (
            answer.session_credential
            and connection.principal.encode() not in answer.session_credential
        ):
            self._fail(f"T1: {self._describe_client(connection)} received another user's pass")
        letter = "r" if question.kind in (CapabilityKind.LIST, CapabilityKind.READ) else "w"
        for ledger, keys in answer.keys.items():
            for key in keys:
                self.given_capabilities[connection.machine, key] = self._reference.revision
            if not keys or not connection.principal.startswith("user/"):
                continue

            def may(policy: Policy, user: str, token_scope: TokenScope, of: int = ledger) -> bool:
                return letter in self._reference.ledger_rights(
                    policy.narrowed(token_scope), user, of
                )

            if not self._was_allowed_since(connection, request.revision, may):
                self._fail(
                    f"T4: {self._describe_client(connection)} received a capability of {ledger}"
                )

    def _check_trust(
        self, connection: ObservedConnection, request: ObservedRequest, body: bytes
    ) -> None:
        if body.startswith(PREFIX):
            token = read_token(body)
            if token.principal != connection.principal and not self._was_allowed_since(
                connection, request.revision, _is_admin
            ):
                self._fail(
                    f"T4: {self._describe_client(connection)} received a token of {token.principal}"
                )
            return
        question = decode_authorization_request(request.body)
        if not isinstance(question, AuthorizationRequest) or question.change is not None:
            return
        report = decode_authorization_report(memoryview(body))
        if report.principal != connection.principal:
            self._fail(
                f"T4: {self._describe_client(connection)} received the report of {report.principal}"
            )
        if report.would_refuse and not self._was_allowed_since(
            connection, request.revision, _is_operator
        ):
            self._fail(
                f"T4: {self._describe_client(connection)} received the list of would-be refusals"
            )

    def _check_error_text(
        self, connection: ObservedConnection, request: ObservedRequest, text: str
    ) -> None:
        """Check that an error names only logs that the client may see or has named itself (H234)."""
        for namespace, name in self._reference.all_paths():
            if name.encode() in request.body or not re.search(rf"\b{re.escape(name)}\b", text):
                continue

            def may(
                policy: Policy,
                user: str,
                token_scope: TokenScope,
                place: tuple[str, str] = (namespace, name),
            ) -> bool:
                narrowed = policy.narrowed(token_scope)
                return bool(narrowed.path_rights(user, *place)) or "o" in narrowed.cluster_rights(
                    user
                )

            if not self._was_allowed_since(connection, request.revision, may):
                self._fail(
                    f"T4: {self._describe_client(connection)} received the name {name}: {text}"
                )

    # --- permission at a time --------------------------------------------------------------------------

    def _was_allowed_since(
        self,
        connection: ObservedConnection,
        revision: int,
        allows: Callable[[Policy, str, TokenScope], bool],
    ) -> bool:
        """Return whether the answer was permitted at any time since that revision."""
        policies = self._reference.policies_since(revision)
        if any(policy.mode != "required" for policy in policies):
            return True
        self.checked_answers += 1
        user = connection.principal.partition("/")[2]
        token_scope = () if connection.token is None else connection.token.token_scope
        return any(allows(policy, user, token_scope) for policy in policies)

    def _describe_client(self, connection: ObservedConnection) -> str:
        suffix = (
            " with a restricted token"
            if connection.token is not None and connection.token.token_scope
            else ""
        )
        return f"{connection.principal} on {connection.machine}{suffix}"


def _is_admin(policy: Policy, user: str, token_scope: TokenScope) -> bool:
    return not token_scope and "a" in policy.cluster_rights(user)


def _is_operator(policy: Policy, user: str, token_scope: TokenScope) -> bool:
    return not token_scope and "o" in policy.cluster_rights(user)
