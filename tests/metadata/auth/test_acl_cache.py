"""Who may do what, followed key by key: the same answers as the judge of the same keys gives."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.cluster.auth.cluster_key_space import KEY_CLASSES
from distributedlog.metadata.auth.acl_cache import ALL_USERS, AclCache
from distributedlog.metadata.auth.authorizer import Authorizer
from distributedlog.metadata.model.acl_records import (
    GRANT_PREFIX,
    MODE_KEY,
    MODES,
    USER_PREFIX,
    User,
    encode_grant,
    encode_mode,
    grant_key,
    revoked_key,
    user_key,
)
from distributedlog.metadata.model.commands import AuthorizationChange
from distributedlog.metadata.model.rights import ADMIN, OPERATOR, ROLES
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.metadata.state.kv_state import KeyValueState
from tests.examples import examples

from ..state.test_kv_state import do

USERS = ("ann", "bob", "local")
SPACES = ("shop", "shop/eu", "")
PATHS = ("", "orders", "orders/", "orders/eu", "orders-secret")
NAMES = ("orders", "orders/eu", "orders/eu/1", "orders-secret", "o")
ROTTEN = b"\xc1 rotten"

_user = st.one_of(
    st.builds(User, disabled=st.booleans(), revoked_serials=st.sampled_from([(), ("ab",)])).map(
        User.encode
    ),
    st.just(ROTTEN),
    st.none(),
)
_role = st.one_of(st.sampled_from([*ROLES]).map(encode_grant), st.just(ROTTEN), st.none())
_mode = st.one_of(st.sampled_from(MODES).map(encode_mode), st.just(ROTTEN), st.none())
CHANGES = st.one_of(
    st.tuples(st.sampled_from(USERS).map(user_key), _user),
    st.tuples(
        st.builds(
            grant_key, st.sampled_from(USERS), st.sampled_from(SPACES), st.sampled_from(PATHS)
        ),
        _role,
    ),
    st.tuples(st.just(MODE_KEY), _mode),
)


@settings(max_examples=examples(200))
@given(st.lists(CHANGES, max_size=30))
def test_it_answers_as_the_judge_of_the_same_keys(
    changes: list[tuple[bytes, bytes | None]],
) -> None:
    state, judge, table = KeyValueState(), Authorizer(KEY_CLASSES), AclCache()
    do(state, AuthorizationChange("c", 1, 0, Transaction((), (Put(revoked_key("user/x"), b""),))))
    for number, (key, value) in enumerate(changes, 2):
        operation = Delete(key) if value is None else Put(key, value)
        do(state, AuthorizationChange("c", number, 0, Transaction((), (operation,))))
        table.update(key, value)
    judge.refresh(state)

    assert table.mode == judge.mode
    for principal in (*(f"user/{name}" for name in (*USERS, "nobody")), "anonymous"):
        for serial in ("", "ab", "cd"):
            assert table.is_active(principal, serial) == judge.is_active(principal, serial)
        both = OPERATOR | ADMIN
        assert table.cluster_rights(principal) == judge.cluster_rights(principal) & both
        if not judge.is_active(principal):
            continue  # asked before, by both
        for space in SPACES:
            for name in NAMES:
                assert table.rights(principal, space, name) == judge.rights(principal, space, name)


def test_nodes_have_no_rights_of_their_own_there_and_keys_that_name_nobody_give_none() -> None:
    table = AclCache()
    for key in (USER_PREFIX + b"\xff", GRANT_PREFIX + b"ann", GRANT_PREFIX + b"a\0b\0c\0d\xff"):
        assert table.update(key, encode_grant("owner")) is None
    assert table.update(revoked_key("user/ann"), b"") is None
    assert table.update(MODE_KEY, None) == ALL_USERS
    assert table.update(grant_key("ann", "shop", "orders"), encode_grant("producer")) == "ann"

    for principal in ("proxy/p1", "bookie/b1", "metadata/m1", "proxy/ann", "anonymous"):
        assert table.rights(principal, "shop", "orders") == 0
        assert table.paths(principal, "shop") == {}
    assert [*table.paths("user/ann", "shop")] == ["orders"]
    assert table.paths("user/ann", "other") == {}
