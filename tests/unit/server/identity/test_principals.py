"""Creation and validation of tokens."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.server.identity.principals import JOIN_TTL_S, check_token, is_active_admin, new_token, view
from governor.wire.rest import TokenRequest

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def secret_of(text: str) -> str:
    return text.rpartition(".")[2]


def test_a_role_token_contains_its_id_and_only_its_hash_is_stored() -> None:
    token, text = new_token(TokenRequest(name="ci", role=Role.EDITOR), NOW)
    prefix, token_id, secret = text.reveal().split(".")
    assert (prefix, token_id, token.name, token.expires) == ("rgt1", token.id, "ci", None)
    assert secret not in str(token)
    assert check_token(token, secret, NOW) == token


def test_a_join_token_expires_after_an_hour_by_default() -> None:
    token, _ = new_token(TokenRequest(runtime="r1"), NOW)
    short, _ = new_token(TokenRequest(runtime="r1", ttl_seconds=5), NOW)
    assert token.expires == NOW + timedelta(seconds=JOIN_TTL_S)
    assert short.expires == NOW + timedelta(seconds=5)


@pytest.mark.parametrize(
    "request_",
    [
        TokenRequest(),
        TokenRequest(role=Role.VIEWER, runtime="r1"),
        TokenRequest(role=Role.VIEWER, ttl_seconds=0),
        TokenRequest(role=Role.VIEWER, ttl_seconds=10**12),
        TokenRequest(role=Role.VIEWER, name="x" * 1000),
    ],
)
def test_an_invalid_token_request_is_rejected(request_: TokenRequest) -> None:
    with pytest.raises(GovernorError) as caught:
        new_token(request_, NOW)
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"revoked": NOW}, "revoked"),
        ({"used": NOW}, "used"),
        ({"expires": NOW}, "expired"),
        ({"secret_hash": "0" * 64}, "not created by this server"),
    ],
)
def test_an_invalid_token_is_rejected_with_the_reason(change: dict[str, object], reason: str) -> None:
    token, text = new_token(TokenRequest(role=Role.ADMIN), NOW)
    invalid = msgspec.structs.replace(token, **change)
    with pytest.raises(GovernorError, match=reason) as caught:
        check_token(invalid, secret_of(text.reveal()), NOW)
    assert caught.value.kind is Kind.UNAUTHENTICATED
    assert secret_of(text.reveal()) not in str(caught.value)


def test_a_wrong_secret_reveals_nothing_about_the_token() -> None:
    token, _ = new_token(TokenRequest(role=Role.ADMIN), NOW)
    messages = set()
    for stored in (None, token, msgspec.structs.replace(token, revoked=NOW)):
        with pytest.raises(GovernorError) as caught:
            check_token(stored, "guess", NOW)
        messages.add(caught.value.message)
    assert len(messages) == 1


def test_only_a_valid_admin_token_counts_as_an_active_admin() -> None:
    admin, _ = new_token(TokenRequest(role=Role.ADMIN, ttl_seconds=60), NOW)
    editor, _ = new_token(TokenRequest(role=Role.EDITOR), NOW)
    assert is_active_admin(admin, NOW)
    assert not is_active_admin(admin, NOW + timedelta(seconds=60))
    assert not is_active_admin(msgspec.structs.replace(admin, revoked=NOW), NOW)
    assert not is_active_admin(editor, NOW)


def test_a_used_join_token_is_shown_as_revoked() -> None:
    token, _ = new_token(TokenRequest(runtime="r1"), NOW)
    assert not view(token).revoked
    assert view(msgspec.structs.replace(token, used=NOW)).revoked
